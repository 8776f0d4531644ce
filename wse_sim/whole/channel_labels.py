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
from wse_sim.whole.regions.contract import IMAGE_AXES, PAIR, POINTWISE
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


def joins(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether a kernel concatenates the channels of activations."""
    given = sum(len(places) for _, places in taken_by(graph, kernel)) if kernel.access.slices else 0
    return kernel.attrs.get("op") == "cat" and given == count_of(graph, kernel.outputs[0])


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
    """Return a number for every channel of every tensor; a product makes channels with equal numbers together.

    If some would be no whole words, products that take only some channels do not count, since they may have zeros for the others; if
    that does not help, all channels have one number.
    """
    ties = [tie for kernel in kernels for tie in _ties(graph, kernel)]
    groups: dict[str, set[str]] = {name: {name} for name in graph.tensors}
    for tie in ties:
        joined = set[str]().union(*(groups[name] for name, _ in tie))
        groups |= dict.fromkeys(joined, joined)
    none = {name: np.zeros(count_of(graph, name), np.intp) for name in graph.tensors}
    labels = dict(none)
    for readers in ([one for one in kernels if not is_product(graph, one)], kernels):
        found = _distinguished(graph, readers, ties, none)
        even = {name for name, one in found.items() if not (np.bincount(one) % PAIR).any()}
        labels |= {name: found[name] for name in found if groups[name] <= even}
    return labels


def _ties(graph: KernelGraph, kernel: Kernel) -> list[list[Taken]]:
    """Return channels of several tensors that a kernel keeps, in equal order."""
    (out, *_), taken = kernel.outputs, taken_by(graph, kernel)
    every = np.arange(count_of(graph, out))
    if joins(graph, kernel):
        return [[*ends] for ends in zip(taken, _sections(graph, kernel), strict=True)]
    if keeps_channels(graph, kernel):
        return [[(out, every), *(one for one in taken if len(one[1]) == len(every))]]
    return [[(out, every), one] for one in taken[1:]] if is_product(graph, kernel) else []


def _sections(graph: KernelGraph, kernel: Kernel) -> list[Taken]:
    """Return the channels of each operand of a concatenation in its result."""
    ends = np.cumsum([0, *(len(places) for _, places in taken_by(graph, kernel))])
    return [(kernel.outputs[0], np.arange(first, end)) for first, end in pairwise(ends)]


def _distinguished(
    graph: KernelGraph, readers: Sequence[Kernel], ties: Sequence[list[Taken]], start: dict[str, Places]
) -> dict[str, Places]:
    """Return numbers by which all `readers` take channels together, with the same differences at all ends of `ties`."""
    labels = dict(start)
    for kernel in filter(moves, readers):
        sections = _sections(graph, kernel) if joins(graph, kernel) else []
        for part in (*taken_by(graph, kernel), *sections):
            _distinguish(labels, part, np.zeros(len(part[1]), np.intp))
    before = -1
    while (now := sum(int(one.max(initial=0)) for one in labels.values())) > before:
        before = now
        for ends in (*ties, *reversed(ties)):
            keys = np.zeros(len(ends[0][1]), np.intp)
            for name, places in ends:
                keys = _joined(keys, labels[name][places])
            for end in ends:
                _distinguish(labels, end, keys)
    return labels


def _distinguish(labels: dict[str, Places], end: Taken, keys: Places) -> None:
    """Give channels of a tensor that have one number different ones if their keys differ, or only some have one."""
    own = np.full(len(labels[end[0]]), -1)
    own[end[1]] = keys
    labels[end[0]] = _joined(labels[end[0]], own + 1)


def _joined(one: Places, other: Places) -> Places:
    """Return numbers that are equal where both are."""
    return np.unique(one * (other.max(initial=0) + 1) + other, return_inverse=True)[1]
