"""Concatenations of many tensors in parts, because a router has colors for few streams.

Symbols: n operands; m of them at most in one region.

The streams of all operands of a kernel end in its region, each with its own colors (two if gradients return). So a
concatenation of n > m operands becomes a tree: kernels that each concatenate m operands, then their results::

    kernels  ceil(n / m) + ceil(n / m^2) + ... + 1
    words    those of the result once more for each level
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wse_sim.compiler.coloring import colors_for_streams
from wse_sim.graph import Kernel, KernelGraph, Phase, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Wafer


def most_operands(wafer: Wafer, training: bool) -> int:
    """Return how many tensors one region may concatenate: a third of the streams for which a router has colors, and one more.

    The other streams are those of the result, of neighbours and of tensors on their way elsewhere.
    """
    return 1 + max(1, colors_for_streams(wafer.colors, training) // (6 if training else 3))


def concatenated_in_parts(graph: KernelGraph, wafer: Wafer) -> KernelGraph:
    """Return the graph with every concatenation of too many tensors as a tree; the same graph if there are none."""
    most = most_operands(wafer, graph.training)
    wide = [kernel for kernel in graph.kernels if _is_concatenation(kernel) and len(kernel.inputs) > most]
    if not wide:
        return graph
    gradients = {one.forward: one for one in graph.kernels if one.phase is Phase.INPUT_GRADIENT}
    tensors, made = dict(graph.tensors), dict[str, Sequence[Kernel]]()
    for kernel in wide:
        parts, gradient_parts = _tree(kernel, gradients.get(kernel.name), tensors, most)
        made[kernel.name] = parts
        if gradient_parts:
            made[gradients[kernel.name].name] = gradient_parts
    kernels = tuple(part for kernel in graph.kernels for part in made.get(kernel.name, (kernel,)))
    names = ", ".join(kernel.name for kernel in wide)
    note = f"colors: concatenations of more than {most} tensors are made in parts, since a router has colors for few streams ({names})"
    return replace(graph, kernels=kernels, tensors=frozen(tensors), notes=(*graph.notes, note))


def _is_concatenation(kernel: Kernel) -> bool:
    return kernel.phase is Phase.FORWARD and kernel.attrs.get("op") == "cat"


def _tree(
    kernel: Kernel, gradient: Kernel | None, tensors: dict[str, Tensor], most: int
) -> tuple[list[Kernel], list[Kernel]]:
    """Return the forward and the gradient kernels of a tree in the order in which they run; adds the tensors between them."""
    forward, backward = list[Kernel](), list[Kernel]()
    operands = _with_gradients(kernel, gradient, tensors)
    while len(operands) > most:
        level = list[tuple[str, str]]()
        for first in range(0, len(operands), most):
            group = operands[first : first + most]
            part, part_gradient, result = _part(kernel, gradient, group, len(forward), tensors)
            forward.append(part)
            backward += [part_gradient] if part_gradient is not None else []
            level.append(result)
        operands = level
    forward.append(replace(kernel, inputs=tuple(name for name, _ in operands)))
    if gradient is not None:
        backward.append(replace(gradient, outputs=tuple(name for _, name in operands if name)))
    return forward, backward[::-1]


def _part(
    kernel: Kernel,
    gradient: Kernel | None,
    group: Sequence[tuple[str, str]],
    number: int,
    tensors: dict[str, Tensor],
) -> tuple[Kernel, Kernel | None, tuple[str, str]]:
    """Return the kernel that concatenates a group, its gradient if there is one, and the names of its result and of the
    result's gradient."""
    name = f"{kernel.name}.part{number}"
    elements = sum(tensors[operand].elements for operand, _ in group)
    result = Tensor(f"{name}.out", (1, elements), tensors[kernel.outputs[0]].dtype, TensorKind.ACTIVATION)
    tensors[result.name] = result
    dims = frozen(elements=elements)
    part = replace(kernel, name=name, dims=dims, inputs=tuple(operand for operand, _ in group), outputs=(result.name,), parameters=())  # fmt: skip
    arriving = tuple(name for _, name in group if name)
    if gradient is None or not arriving:
        return part, None, (result.name, "")
    back = replace(result, name=f"grad.{result.name}", kind=TensorKind.GRADIENT)
    tensors[back.name] = back
    return part, replace(gradient, name=f"{name}.dx", dims=dims, inputs=(back.name,), outputs=arriving, forward=name), (result.name, back.name)  # fmt: skip


def _with_gradients(
    kernel: Kernel, gradient: Kernel | None, tensors: dict[str, Tensor]
) -> list[tuple[str, str]]:
    """Return the operands with the names of their gradients, "" for those without: the first that is left of its size."""
    left = list(gradient.outputs) if gradient is not None else []
    found = []
    for operand in kernel.inputs:
        size = tensors[operand].elements
        its = next((name for name in left if tensors[name].elements == size), "")
        found.append((operand, its))
        left = [name for name in left if name != its]
    return found
