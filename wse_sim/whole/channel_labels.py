"""Which channels of a tensor the kernels of a graph read together, so that one product may make them.

Every channel has a number. Readers that take only some channels of a tensor tell them from the others; operands and result of a
kernel that keeps channels, and of a concatenation, have the same differences where they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wse_sim.graph import Kernel, KernelGraph
from wse_sim.graph.access import channel_axis, channels_of
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.whole.regions.contract import IMAGE_AXES, POINTWISE
from wse_sim.whole.regions.depthwise import Depthwise
from wse_sim.whole.regions.fused_work import items_of

RESIDUAL = "residual"
Places = NDArray[np.intp]
"""For every channel of a tensor its place in another one, -1 for none; or the channels of a tensor in some order."""
Taken = tuple[str, Places]


def moves(kernel: Kernel) -> bool:
    """Return whether a kernel concatenates channels, or takes some, or all in another order."""
    return bool(kernel.access.slices) or is_gated(kernel)


def is_gated(kernel: Kernel) -> bool:
    """Return whether a kernel multiplies the first half of its operand by the sigmoid of the second half."""
    return kernel.family == "activation" and kernel.attrs["function"] == "glu"


def count_of(graph: KernelGraph, name: str) -> int:
    """Return the channels of a tensor."""
    shape = graph.tensors[name].shape
    return shape[channel_axis(len(shape))] if shape else 1


def taken_by(graph: KernelGraph, kernel: Kernel) -> list[Taken]:
    """Return the operands of a kernel in order, each with the channels that it takes."""
    if kernel.access.slices:
        return [(name, channels_of(runs)) for name, runs in kernel.access.slices]
    every = [(name, np.arange(count_of(graph, name))) for name in kernel.inputs]
    if is_gated(kernel) and len(every[0][1]) == 2 * count_of(graph, kernel.outputs[0]):
        value, gate = np.split(every[0][1], 2)
        return [(kernel.inputs[0], gate), (kernel.inputs[0], value)]
    return every


def keeps_channels(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether every channel of a kernel's result follows from the same channel of its operands."""
    access, taken, count = kernel.access, taken_by(graph, kernel), count_of(graph, kernel.outputs[0])
    is_several = len({name for name, _ in taken}) < len(taken)
    if (access.reordered and not access.slices) or access.channels or (access.steps and is_several):
        return False
    if not taken or all(len(places) != count for _, places in taken):
        return False
    rank = len(graph.tensors[taken[0][0]].shape)
    if kernel.family == "reduce":
        return bool(access.axes) and channel_axis(rank) not in access.axes
    if kernel.family == "conv2d":
        return Depthwise.is_for(kernel) and len(taken) == 1
    if kernel.family == "pool2d":
        return rank == IMAGE_AXES
    return kernel.family in (*POINTWISE, "dropout") and not (is_gated(kernel) and len(taken) == 1)


def is_product(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether a kernel is a product with one weight, whose rows are channels of its result."""
    access, taken = kernel.access, taken_by(graph, kernel)
    if (
        kernel.family not in ("gemm", "conv2d")
        or not kernel.parameters
        or access.transposed
        or access.channels
    ):
        return False
    is_viewed = bool(access.reordered) and not access.slices
    if is_viewed or access.steps or len(taken) != 1 + (RESIDUAL in items_of(kernel)):
        return False
    rows = graph.tensors[kernel.parameters[0]].shape[0]
    attrs = Conv2dAttributes.of(kernel.attrs) if kernel.family == "conv2d" else None
    return rows == count_of(graph, kernel.outputs[0]) and (
        attrs is None or (attrs.groups == 1 and not attrs.transposed)
    )


def labels_of(graph: KernelGraph, kernels: Sequence[Kernel]) -> dict[str, Places]:
    """Return a number for every channel of every tensor; `kernels` take channels with equal numbers together."""
    labels = {name: np.zeros(count_of(graph, name), np.intp) for name in graph.tensors}
    ties: list[list[Taken]] = []
    for kernel in kernels:
        taken, every = taken_by(graph, kernel), np.arange(count_of(graph, kernel.outputs[0]))
        out, given = kernel.outputs[0], [len(places) for _, places in taken]
        parts = list(taken) if moves(kernel) else []
        if kernel.family == "layout" and kernel.access.slices and sum(given) == len(every):
            sections = [(out, every[first:end]) for first, end in pairwise(np.cumsum([0, *given]))]
            ties += ([*ends] for ends in zip(taken, sections, strict=True))
            parts += sections
        elif keeps_channels(graph, kernel):
            ties.append([(out, every), *(one for one in taken if len(one[1]) == len(every))])
        elif is_product(graph, kernel):
            ties += ([(out, every), one] for one in taken[1:])
        for part in parts:
            _tell_apart(labels, part, np.zeros(len(part[1]), np.intp))
    before = -1
    while (now := sum(int(one.max(initial=0)) for one in labels.values())) > before:
        before = now
        for ends in (*ties, *reversed(ties)):
            keys = np.zeros(len(ends[0][1]), np.intp)
            for name, places in ends:
                keys = _joined(keys, labels[name][places])
            for end in ends:
                _tell_apart(labels, end, keys)
    return labels


def _tell_apart(labels: dict[str, Places], end: Taken, keys: Places) -> None:
    """Give channels of a tensor that have one number different ones if their keys differ, or only some have one."""
    own = np.full(len(labels[end[0]]), -1)
    own[end[1]] = keys
    labels[end[0]] = _joined(labels[end[0]], own + 1)


def _joined(one: Places, other: Places) -> Places:
    """Return numbers that are equal where both are."""
    return np.unique(one * (other.max(initial=0) + 1) + other, return_inverse=True)[1]
