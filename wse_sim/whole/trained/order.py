"""The order in which gradients of one sample leave their regions, and why no order of readers can deadlock a
batch.

A region sends gradients of its operands in its own order, once it has that of its result. So a walk from the
loss gives one list of all gradients of a sample: take the region whose gradient has been complete for the
longest time, and append those that it sends; a tensor is complete when all of its readers have sent. Samples
follow each other in order.

This list, sample after sample, orders all transfers, and every core respects it: regions by contract (words
wait only for words of the same or of earlier samples), sums and stores because they receive gradients in this
order. Take the first transfer in the list that is not done: neither its sender nor its reader waits for a
later one. So it can proceed, however small the queues are. The same holds forward, with the regions in the
order of the plan. The forward part of a round needs no gradient, and its backward part needs no result of a
later round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wse_sim.whole.trained.contract import TrainedKind


@dataclass(frozen=True)
class SentGradient:
    """The gradient of a tensor that one reader sends; `depth` is the number of regions on the longest path
    from the loss."""

    tensor: str
    reader: str
    depth: int


def gradients_of(regions: Sequence[TrainedKind], output: str) -> tuple[SentGradient, ...]:
    """Return all gradients of a sample in order, starting from that of the `output` of the model."""
    by_output = {region.kernel.outputs[0]: region for region in regions}
    missing = _readers(regions)
    ready = deque([(by_output[output], 1)])
    depths: dict[str, int] = {}
    found: list[SentGradient] = []
    while ready:
        region, depth = ready.popleft()
        for tensor in region.gradient_order:
            found.append(SentGradient(tensor, region.name, depth))
            depths[tensor] = max(depths.get(tensor, 0), depth)
            missing[tensor] -= 1
            if not missing[tensor]:
                ready.append((by_output[tensor], depths[tensor] + 1))
    return tuple(found)


def _readers(regions: Sequence[TrainedKind]) -> dict[str, int]:
    """Return the number of gradients by tensor."""
    count: dict[str, int] = {}
    for region in regions:
        for tensor in region.gradient_order:
            count[tensor] = count.get(tensor, 0) + 1
    return count


def by_tensor(sent: Sequence[SentGradient]) -> Mapping[str, tuple[SentGradient, ...]]:
    """Return the gradients by tensor, in order of arrival."""
    out: dict[str, tuple[SentGradient, ...]] = {}
    for one in sent:
        out[one.tensor] = (*out.get(one.tensor, ()), one)
    return out
