"""Expand elementwise work with constants into single operators, and detach it from the products it is fused
to.

A kernel lists the operands of its operators in `access.steps`: ``clamp(x, 0, 6)`` is a maximum and a minimum,
``1 - x`` a product and a sum.
"""

from __future__ import annotations

import dataclasses

from wse_sim.graph import Access, Kernel, KernelGraph, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.regions.contract import POINTWISE
from wse_sim.whole.regions.fused_work import items_of

PRODUCTS = ("gemm", "conv2d")
OF_PRODUCT = ("bias",)
"""Fused operations that stay with a product if operators with constants follow."""


def with_steps(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with operators expanded by their `steps`; a note names each product that is
    split."""
    tensors, kernels, notes = dict(graph.tensors), list[Kernel](), list[str]()
    for kernel in graph.kernels:
        if kernel.access.steps and kernel.family in POINTWISE:
            kernels.append(_spelled(kernel))
        elif kernel.access.steps and kernel.family in PRODUCTS:
            kernels += _two(kernel, tensors)
            notes.append(
                f"'{kernel.name}' applies numbers ({','.join(items_of(kernel))}); on the fabric a separate region does this"
            )
        else:
            kernels.append(kernel)
    return graph if kernels == list(graph.kernels) else with_kernels(graph, kernels, tensors, *notes)


def _spelled(kernel: Kernel) -> Kernel:
    """Return an elementwise kernel expanded by its steps."""
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
    """Return the product with its bias, and an elementwise kernel for the rest."""
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
