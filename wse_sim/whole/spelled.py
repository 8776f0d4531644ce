"""Elementwise work with numbers: the operators one by one, and off the products that they are fused to.

A kernel states what its operators take (`access.steps`): ``clamp(x, 0, 6)`` is a maximum and a minimum, ``1 - x`` a product and a sum.
"""

from __future__ import annotations

import dataclasses

from wse_sim.graph import Access, Kernel, KernelGraph, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.front import with_kernels
from wse_sim.whole.regions.contract import POINTWISE
from wse_sim.whole.regions.fused import items_of

PRODUCTS = ("gemm", "conv2d")
OF_PRODUCT = ("bias",)
"""What a product keeps of its items where numbers follow."""


def with_steps(graph: KernelGraph) -> KernelGraph:
    """The forward graph with operators as `steps` say them; a note names each product that gives some up to its own region."""
    tensors, kernels, notes = dict(graph.tensors), list[Kernel](), list[str]()
    for kernel in graph.kernels:
        if kernel.access.steps and kernel.family in POINTWISE:
            kernels.append(_spelled(kernel))
        elif kernel.access.steps and kernel.family in PRODUCTS:
            kernels += _two(kernel, tensors)
            notes.append(
                f"'{kernel.name}' continues with numbers ({','.join(items_of(kernel))}); on the fabric its own region does"
            )
        else:
            kernels.append(kernel)
    return graph if kernels == list(graph.kernels) else with_kernels(graph, kernels, tensors, *notes)


def _spelled(kernel: Kernel) -> Kernel:
    """Elementwise work by its steps."""
    ops = ",".join(op for op, _ in kernel.access.steps[1:])
    family = "elementwise" if kernel.family == "activation" else kernel.family
    count = len(kernel.inputs) + len(kernel.parameters)
    first = str(kernel.access.steps[0][1])
    inputs = (first, *(name for name in kernel.inputs if name != first))
    attrs = frozen({"ops": ops, "inputs": count})
    return dataclasses.replace(
        kernel, family=family, inputs=inputs, attrs=attrs, access=dataclasses.replace(kernel.access, order=())
    )


def _two(kernel: Kernel, tensors: dict[str, Tensor]) -> tuple[Kernel, Kernel]:
    """The product with its bias, and what follows it."""
    whole, between = tensors[kernel.outputs[0]], f"{kernel.name}.product"
    tensors[between] = dataclasses.replace(whole, name=between, kind=TensorKind.ACTIVATION)
    fused = ",".join(item for item in items_of(kernel) if item in OF_PRODUCT)
    attrs = {name: value for name, value in kernel.attrs.items() if name != "fused"}
    first = dataclasses.replace(
        kernel,
        inputs=kernel.inputs[:1],
        outputs=(between,),
        attrs=frozen(attrs | ({"fused": fused} if fused else {})),
        access=dataclasses.replace(kernel.access, factor=1.0, steps=()),
    )
    steps = (("", between), *kernel.access.steps[1:])
    others = kernel.inputs[1:]
    cols = int(kernel.dims["n" if kernel.family == "gemm" else "k"])
    stored = {"stored": True} if others and kernel.family == "conv2d" else {}
    second = dataclasses.replace(
        kernel,
        name=f"{kernel.name}.numbers",
        family="generated",
        dims=frozen({"elements": whole.elements, "rows": whole.elements // cols, "cols": cols}),
        sample_dim="elements",
        inputs=(between, *others),
        parameters=(),
        attrs=frozen({"ops": ",".join(op for op, _ in steps[1:]), "inputs": 1 + len(others), **stored}),
        flops=0,
        saved_bytes=0,
        access=Access(steps=steps),
    )
    return first, second
