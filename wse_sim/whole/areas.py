"""Places and streams of a complete model, as compared on the fabric and in the event engine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FabricPlace:
    """The compute cores of a region, as a rectangle of the fabric.

    `ahead_cycles`: cycles in which a core reads operands of its first sample that may arrive before the last
    operand does.
    `start_rows`: the rows of the fabric whose first work is the start of the region, if not all of them: in a dense
    layer the last row only reads its residual until sums arrive.
    """

    name: str
    rows: slice
    cols: slice
    ahead_cycles: float = field(default=0.0, kw_only=True)
    start_rows: slice | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class StreamLinks:
    """Parallel links and route lengths of a stream on the fabric, and the plan's values for both."""

    tensor: str
    planned_links: int
    links: int
    planned_hops: int
    least_hops: int
    most_hops: int
