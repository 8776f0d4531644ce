"""Finds repeated blocks: groups of kernels of one module list that are equal except for their names.

Kernels are grouped by the outermost numbered container in their module path ("transformer.h", 3). The
signature of a group has, for each kernel, its own signature, FLOPs and kept bytes, the kernel of the group
that makes each operand (or the size and type of an operand from outside), and its forward kernel. Groups of a
container with equal signatures are one :class:`~wse_sim.graph.Repeat`. In a group that is equal to no other,
the next numbered level is searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from wse_sim.graph import Kernel, Repeat, Tensor

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def find_repeats(kernels: Iterable[Kernel], tensors: Mapping[str, Tensor]) -> tuple[Repeat, ...]:
    """Return the blocks that occur at least twice, in the order of their containers' first kernels."""
    return tuple(_level(tuple(kernels), tensors, 0))


def _place(kernel: Kernel, level: int) -> tuple[str, int] | None:
    """Return (container, index) of the numbered module at `level` in a kernel's path; None without one."""
    for i, match in enumerate(_NUMBER.finditer(kernel.layer)):
        if i == level:
            return kernel.layer[: match.start(1)].rstrip("."), int(match[1])
    return None


def _level(kernels: tuple[Kernel, ...], tensors: Mapping[str, Tensor], level: int) -> list[Repeat]:
    groups: dict[tuple[str, int], list[Kernel]] = {}
    for kernel in kernels:
        place = _place(kernel, level)
        if place is not None:
            groups.setdefault(place, []).append(kernel)
    containers: dict[str, list[list[Kernel]]] = {}
    for (container, _), members in groups.items():
        containers.setdefault(container, []).append(members)
    found: list[Repeat] = []
    for container, blocks in containers.items():
        equal: dict[int, list[list[Kernel]]] = {}
        for block in blocks:
            equal.setdefault(_signature(block, tensors), []).append(block)
        for same in equal.values():
            if len(same) > 1:
                found.append(Repeat(container, tuple(tuple(k.name for k in block) for block in same)))
            else:
                found.extend(_level(tuple(same[0]), tensors, level + 1))
    return found


def _signature(block: list[Kernel], tensors: Mapping[str, Tensor]) -> int:
    made = {tensor: (i, j) for i, kernel in enumerate(block) for j, tensor in enumerate(kernel.outputs)}
    outside: dict[str, int] = {}
    index = {kernel.name: i for i, kernel in enumerate(block)}
    parts = []
    for kernel in block:
        reads = tuple(
            made[t]
            if t in made
            else (outside.setdefault(t, len(outside)), tensors[t].elements, tensors[t].dtype)
            for t in (*kernel.inputs, *kernel.parameters)
        )
        parts.append(
            (kernel.signature, reads, kernel.flops, kernel.saved_bytes, index.get(kernel.forward, -1))
        )
    return hash(tuple(parts))
