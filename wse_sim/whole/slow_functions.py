"""Separate slow functions from the dense layers of several tokens and the convolutions before them.

The last row of such a layer has all its outputs, so one row of cores would apply the function for all tokens or pixels. A region
of elementwise work has all its cores for it.
"""

from __future__ import annotations

import dataclasses

from wse_sim.frontend.repeats import find_repeats
from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS
from wse_sim.whole.parallel_links import plain_priced
from wse_sim.whole.regions.contract import PAIR
from wse_sim.whole.regions.fused_work import items_of

ACTIVATION = ".function"
"""Name suffix of the kernel that applies the function of a layer."""
OF_CONVOLUTION = ("bias", "relu")
"""Operations that the program of a convolution does."""


def finished_apart(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with the slow function of a dense layer of several tokens, and every function but ReLU of a
    convolution, as a separate kernel; a note names them. An odd number of features stays in one region."""
    tensors, kernels, notes = dict(graph.tensors), list[Kernel](), list(graph.notes)
    plain = plain_priced(graph)
    for kernel in graph.kernels:
        if kernel.name in plain or not _ends_slowly(kernel, graph.samples):
            kernels.append(kernel)
            continue
        *items, function = items_of(kernel)
        result = tensors[kernel.outputs[0]]
        between = f"{kernel.name}.sums"
        tensors[between] = dataclasses.replace(result, name=between, kind=TensorKind.ACTIVATION)
        sums = frozen({**kernel.attrs, "fused": ",".join(items)})
        applied = dataclasses.replace(
            kernel,
            name=f"{kernel.name}{ACTIVATION}",
            family="activation",
            dims=frozen({"elements": result.elements}),
            sample_dim="elements",
            inputs=(between,),
            parameters=(),
            attrs=frozen({"function": function}),
            access=type(kernel.access)(),
            flops=0,
            saved_bytes=0,
        )
        kernels += [dataclasses.replace(kernel, outputs=(between,), attrs=sums), applied]
        notes.append(f"'{kernel.name}' applies '{function}'; on the fabric a separate region does this")
    if len(kernels) == len(graph.kernels):
        return graph
    return dataclasses.replace(
        graph,
        kernels=tuple(kernels),
        tensors=frozen(tensors),
        repeats=find_repeats(kernels, tensors),
        notes=tuple(notes),
    )


def _ends_slowly(kernel: Kernel, samples: int) -> bool:
    """Return whether a dense layer of several tokens ends with a slow function of whole words, or a convolution with a function
    that its program does not apply."""
    items = items_of(kernel)
    if not items or "residual" in items:
        return False
    if kernel.family == "conv2d":
        return items[-1] not in OF_CONVOLUTION and int(kernel.dims["k"]) % PAIR == 0
    is_slow = kernel.family == "gemm" and items[-1] in SPECIAL_FUNCTIONS
    return is_slow and int(kernel.dims["m"]) > samples and int(kernel.dims["n"]) % PAIR == 0
