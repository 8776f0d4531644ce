"""Expand elementwise work with constants into single operators, and detach it from the products it is fused
to.

A kernel lists the operands of its operators in `access.steps`: ``clamp(x, 0, 6)`` is a maximum and a minimum,
``1 - x`` a product and a sum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from wse_sim.graph import PLAIN, Access, Kernel, KernelGraph, Tensor
from wse_sim.graph.access import START, Step
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.blocks.activation_slopes import KEPT
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.parallel_links import plain_priced
from wse_sim.whole.regions.contract import POINTWISE
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.regions.pointwise_place import operators_of
from wse_sim.whole.separate_work import separate_notes, split_product

PRODUCTS = ("gemm", "conv2d")
OF_ITSELF: dict[str, tuple[str, str | float]] = {"mul": ("square", ""), "add": ("mul", 2.0)}
"""Operators on a tensor and itself, as a step."""
NUMBERS = ".numbers"
"""Name suffix of the kernel with the operators that follow a product."""
OF_PRODUCT = ("bias",)
"""Fused operations that stay with a product if operators with constants follow."""


def with_steps(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with operators expanded by their `steps`; notes name the products that are
    split."""
    tensors, kernels, names = dict(graph.tensors), list[Kernel](), dict[str, list[str]]()
    plain = plain_priced(graph)
    for kernel in map(_of_one_tensor, graph.kernels):
        if kernel.access.steps and kernel.family in POINTWISE:
            kernels.append(_spelled(kernel))
        elif kernel.access.steps and kernel.family in PRODUCTS:
            kernels += _two(kernel, tensors, stores=f"{kernel.name}{NUMBERS}" not in plain)
            names.setdefault(f"applies numbers ({','.join(items_of(kernel))})", []).append(kernel.name)
        else:
            kernels.append(kernel)
    same = kernels == list(graph.kernels)
    return graph if same else with_kernels(graph, kernels, tensors, *separate_notes(names))


def in_one_family(graph: KernelGraph) -> KernelGraph:
    """Return the forward part of a training graph with elementwise work and activations as generated kernels, whose price in
    training is that of the program: words both ways, and slopes; kernels with plain prices stay."""
    plain = plain_priced(graph)

    def changed(kernel: Kernel) -> Kernel:
        ops = operators_of(kernel) if kernel.family in ("elementwise", "activation") else ()
        if not ops or kernel.name in plain or not set(ops) <= set(KEPT):
            return kernel
        attrs = frozen({"ops": ",".join(ops), "inputs": max(1, len(kernel.inputs))})
        return dataclasses.replace(kernel, family="generated", attrs=attrs)

    kernels = [changed(kernel) for kernel in graph.kernels]
    return graph if kernels == list(graph.kernels) else with_kernels(graph, kernels, dict(graph.tensors))


def _of_one_tensor(kernel: Kernel) -> Kernel:
    """Return a product of a tensor with itself as a square, and a sum as twice the tensor, as steps."""
    step = OF_ITSELF.get(str(kernel.attrs.get("ops", "")))
    is_one = kernel.family == "elementwise" and kernel.attrs.get("inputs", 2) == 2 and len(kernel.inputs) == 1
    if step is None or not is_one or kernel.parameters or kernel.access != PLAIN:
        return kernel
    steps = (("", kernel.inputs[0]), step)
    return dataclasses.replace(kernel, access=dataclasses.replace(kernel.access, steps=steps))


def _spelled(kernel: Kernel) -> Kernel:
    """Return an elementwise kernel expanded by its steps."""
    first = str(kernel.access.steps[0][1])
    steps = _started(first, kernel.access.steps[1:])
    ops = ",".join(op for op, _ in steps[1:])
    family = "elementwise" if kernel.family == "activation" else kernel.family
    count = len(kernel.inputs) + len(kernel.parameters)
    inputs = (first, *(name for name in kernel.inputs if name != first))
    attrs = frozen({"ops": ops, "inputs": count})
    return dataclasses.replace(
        kernel,
        family=family,
        inputs=inputs,
        attrs=attrs,
        access=dataclasses.replace(kernel.access, order=(), steps=steps),
    )


def _started(first: str, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return steps that start with a tensor, which replaces START."""
    return (("", first), *((op, first if taken == START else taken) for op, taken in steps))


def _two(kernel: Kernel, tensors: dict[str, Tensor], *, stores: bool) -> tuple[Kernel, Kernel]:
    """Return the product with its bias, and an elementwise kernel for the rest, whose price may count the image that it `stores`."""
    steps, count = _started(f"{kernel.name}.product", kernel.access.steps[1:]), len(kernel.inputs)
    attrs: dict[str, object] = {"ops": ",".join(op for op, _ in steps[1:]), "inputs": count}
    if stores and count > 1 and kernel.family == "conv2d":
        attrs["stored"] = True
    ends = "product", tuple(item for item in items_of(kernel) if item in OF_PRODUCT)
    first, second = split_product(kernel, tensors, ends, NUMBERS, attrs, access=Access(steps=steps))
    first = dataclasses.replace(first, access=dataclasses.replace(kernel.access, factor=1.0, steps=()))
    return first, second
