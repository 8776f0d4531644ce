"""In which order gradients of one sample leave their regions, and why no order of readers can stop a batch.

A region sends gradients of its operands when it has that of its result, in its own order.  So a walk from the loss gives
one list of all gradients of a sample: take the region whose gradient is complete for the longest time, append those that it
sends; a tensor is complete when all of its readers have sent.  Samples follow each other in their order.

This list, sample after sample, is an order of all transfers that every core keeps to: regions by contract (words wait only for
words of the same sample or of earlier ones), sums and stores because they take gradients in it.  The first transfer in the
list that is not yet done has a sender that waits for none after it and a reader that waits for none after it.  So it can continue,
however small queues are.  Forward likewise: the regions in the order of the plan.  A round's forward part needs no gradient,
and its backward part no result of a later round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wse_sim.whole.trained.contract import TrainedKind


@dataclass(frozen=True)
class SentGradient:
    """The gradient of a tensor that a reader of it sends; `depth`: regions that it has passed on the longest way from the loss."""

    tensor: str
    reader: str
    depth: int


def gradients_of(regions: Sequence[TrainedKind], output: str) -> tuple[SentGradient, ...]:
    """All gradients of a sample in their order, from that of the `output` of the model on."""
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
    """How many gradients of every tensor come."""
    count: dict[str, int] = {}
    for region in regions:
        for tensor in region.gradient_order:
            count[tensor] = count.get(tensor, 0) + 1
    return count


def by_tensor(sent: Sequence[SentGradient]) -> Mapping[str, tuple[SentGradient, ...]]:
    """The gradients of every tensor, in order of arrival."""
    out: dict[str, tuple[SentGradient, ...]] = {}
    for one in sent:
        out[one.tensor] = (*out.get(one.tensor, ()), one)
    return out
