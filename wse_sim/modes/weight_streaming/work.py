"""The work of a streamed step in order: parallel products merged, blocks run again where needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.blocks import block_numbers
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels import family


@dataclass(frozen=True)
class Work:
    """A kernel to run: merged from `members`, perhaps a second forward run."""

    kernel: Kernel
    members: tuple[str, ...]
    recompute: bool = False


def merge_parallel(kernels: Sequence[Kernel]) -> list[Work]:
    """Merge parallel products, the gemms of one phase that read the same tensor, into one.

    Forward ``(m, k) x (k, n_i)`` becomes ``n = sum n_i``; their input gradients become one product with ``k =
    sum n_i``, their weight gradients one with ``n = sum n_i``.
    """
    group_of: dict[str, tuple[object, ...]] = {}
    for kernel in kernels:
        wide = family(kernel.family).widens(kernel.phase)
        if wide and kernel.phase is Phase.FORWARD and kernel.inputs:
            same = tuple(size for dim, size in sorted(kernel.dims.items()) if dim != wide)
            group_of[kernel.name] = (kernel.family, kernel.layer.rpartition(".")[0], kernel.inputs[0], same)
    grouped: dict[tuple[object, ...], list[Kernel]] = {}
    order: list[tuple[object, ...]] = []
    for kernel in kernels:
        forward = kernel.name if kernel.phase is Phase.FORWARD else kernel.forward
        group = group_of.get(forward) if family(kernel.family).widens(kernel.phase) else None
        key = (kernel.phase, group) if group is not None else (kernel.name,)
        if key not in grouped:
            order.append(key)
        grouped.setdefault(key, []).append(kernel)
    return [_merged(grouped[key]) for key in order]


def _merged(members: Sequence[Kernel]) -> Work:
    first = members[0]
    if len(members) == 1:
        return Work(first, (first.name,))
    wide = family(first.family).widens(first.phase)
    total = sum(member.dims[wide] for member in members)
    kernel = dataclasses.replace(
        first,
        dims=frozen({**first.dims, wide: total}),
        flops=sum(member.flops for member in members),
        saved_bytes=sum(member.saved_bytes for member in members),
        parameters=tuple(dict.fromkeys(name for member in members for name in member.parameters)),
        outputs=tuple(dict.fromkeys(name for member in members for name in member.outputs)),
    )
    return Work(kernel, tuple(member.name for member in members))


def with_recompute(graph: KernelGraph, recompute: str) -> list[Work]:
    """Return the step's work in order; with full recomputation each block runs forward again before its
    backward pass."""
    blocks = block_numbers(graph)
    work = merge_parallel([k for k in graph.kernels if k.phase is not Phase.UPDATE])
    if recompute != "full":
        return work
    forward_of: dict[int, list[Work]] = {}
    for item in work:
        number = blocks.get(item.kernel.name)
        if item.kernel.phase is Phase.FORWARD and number is not None:
            forward_of.setdefault(number, []).append(item)
    out: list[Work] = []
    again: set[int] = set()
    for item in work:
        number = blocks.get(item.kernel.forward) if item.kernel.phase is not Phase.FORWARD else None
        if number is not None and number not in again:
            again.add(number)
            out += [dataclasses.replace(w, recompute=True) for w in forward_of.get(number, [])]
        out.append(item)
    return out
