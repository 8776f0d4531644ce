"""Split a residual sum from the product before it: a separate region adds the two tensors.

``relu(convolution(y) + x)`` is one kernel in the graph. On the fabric the convolution sends its image with
the bias, and an elementwise region adds x, which it buffers (:mod:`wse_sim.whole.regions.pointwise`). A dense layer adds a
residual itself, unless it trains and the residual is its input: a region sends one gradient of a tensor.
"""

from __future__ import annotations

import dataclasses

from wse_sim.frontend.repeats import find_repeats
from wse_sim.graph import Kernel, KernelGraph, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.parallel_links import plain_priced
from wse_sim.whole.regions.fused_work import items_of

RESIDUAL = "residual"
SUM = ".sum"
"""Name suffix of the kernel that adds the residual of a convolution."""


def summed_apart(graph: KernelGraph, *, twice: bool = False) -> KernelGraph:
    """Return the forward graph with each residual sum of a convolution as a separate elementwise kernel, and with `twice` that
    of a dense layer that adds its own input; a note names them. A product with a plain price, or whose sum would have one,
    stays one kernel."""
    tensors, kernels, notes = dict(graph.tensors), list[Kernel](), list(graph.notes)
    plain = plain_priced(graph)
    for kernel in graph.kernels:
        items, is_plain = items_of(kernel), plain.intersection((kernel.name, f"{kernel.name}{SUM}"))
        is_twice = twice and kernel.family == "gemm" and len(set(kernel.inputs)) == 1
        is_split = (kernel.family == "conv2d" or is_twice) and RESIDUAL in items and len(kernel.inputs) == 2
        if not is_split or is_plain:
            kernels.append(kernel)
            continue
        kernels += _two(kernel, items, tensors)
        notes.append(f"'{kernel.name}' adds a residual; on the fabric a separate region does this")
    if len(kernels) == len(graph.kernels):
        return graph
    return dataclasses.replace(
        graph,
        kernels=tuple(kernels),
        tensors=frozen(tensors),
        repeats=find_repeats(kernels, tensors),
        notes=tuple(notes),
    )


def _two(kernel: Kernel, items: tuple[str, ...], tensors: dict[str, Tensor]) -> tuple[Kernel, Kernel]:
    """Split a product with a residual sum: the product alone, and a kernel with the sum and the operations after it."""
    place, whole = items.index(RESIDUAL), tensors[kernel.outputs[0]]
    between = f"{kernel.name}.image"
    tensors[between] = dataclasses.replace(whole, name=between, kind=TensorKind.ACTIVATION)
    image, residual = kernel.inputs
    first = dataclasses.replace(
        kernel,
        inputs=(image,),
        outputs=(between,),
        attrs=frozen({**kernel.attrs, "fused": ",".join(items[:place])}),
    )
    cols = int(kernel.dims["n" if kernel.family == "gemm" else "k"])
    dims = {"elements": whole.elements, "rows": whole.elements // cols, "cols": cols}
    second = dataclasses.replace(
        kernel,
        name=f"{kernel.name}{SUM}",
        family="generated",
        dims=frozen(dims),
        sample_dim="elements",
        inputs=(between, residual),
        parameters=(),
        attrs=frozen({"ops": ",".join(("add", *items[place + 1 :])), "inputs": 2, "stored": True}),
        flops=0,
        saved_bytes=0,
    )
    return first, second
