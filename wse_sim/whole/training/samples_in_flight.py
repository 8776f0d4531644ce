"""The number of samples that a region has in flight.

Symbols: d_p samples in flight of region p (inputs stored), o_p of its last row (outputs stored); v outputs of
a core; r words that fit in the queues between two cores; s spare samples per region, e further passes ahead;
l passes that sums of gradients take along a row (:mod:`wse_sim.whole.training.order`)::

    a_p = 1 + e + min(floor(r / v), 3)   passes that the rows may be ahead of the last row: sums wait in the queues
    d_p = o_p + a_p                      of the last region o = L + min(s, 1): L cores of the loss have one each
    l_p <= d_p - 2                       a slot whose sums are in flight is not overwritten
    o_p = d_{p+1} + l_{p+1} + 2 s        what the next region needs, and what is in flight there and back

No value exceeds the B samples of a batch or the number that fits in memory. If a value is reduced for that
reason, these conditions still hold, from the first region to the last::

    o_p <= d_p <= o_p + a_p              the last row finishes what the rows have sent; the rest fits in the queues
    d_{p+1} + l_{p+1} <= o_p, or o_p = B

A region sends the gradients of its first sample in backward pass l, so after it has received d + l samples.
The last row before it finishes o samples before it waits for the first gradient. If o is less, both wait for
each other: a deadlock. A region that is further ahead than links and queues can buffer waits for a gradient
that waits for it. The best lead is found by trial: passes alternate in a fixed order, so a region that is
less far ahead waits for samples in flight.

With s = e = l = 0 there is no deadlock. A core sends all colors through one ring, so the sends that must not
be blocked are those that another core waits for:

* Outputs: the next region itself stores every sample that leaves before gradient 0 arrives (so does the
  loss), and gradient j arrives once it has sample d + j - 1; its rows then receive sample d + j,
  independently of gradient j + 1.
* Sums of outputs: the part of the last sample that does not fit in the queues waits in the ring until the
  last row has sent a gradient up twice. The rows receive both before they send sums west.
* Sums west: the neighbour received the same gradient before, and reaches the same pass without any sum of a
  later one. Sums that lag behind reach a core one pass later, and until then block its sums of outputs.
* Sequence: collectors buffer two samples, so a row is at most two samples ahead of the row above. A core that
  both computes and sends in sequence sends its sums of outputs first, because the row above can send only after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wse_sim.fabric.format.config import FabricConfig
from wse_sim.whole.layout import RegionLayout
from wse_sim.whole.training.stream_layouts import Legs

FP16_BYTES = 2
SUMS_QUEUE = 2  # input queue of the sums
ROOMS = ((3, 1), (2, 1), (2, 0), (1, 2), (1, 0))
"""Combinations of spare samples and further passes ahead that are tried; (0, 0), which cannot deadlock, is
the fallback."""
LEAST = 2  # samples of a core whose sums do not lag behind: one is sent, one receives products
HELD_FRACTION = 0.7  # of a core's memory that samples in flight may take


@dataclass(frozen=True)
class Flight:
    """Samples in flight of a region (inputs stored) and of its last row (outputs stored), and the passes that
    its sums lag behind."""

    rows: int
    last_row: int
    lag: int


@dataclass(frozen=True)
class Chains:
    """Number of passes that a sum takes along a row of cores, each of which adds its part."""

    relay_cycles: int  # from the issue in a core to that in the next
    pass_cycles: float  # of a backward pass

    def passes(self, layout: RegionLayout, col: int) -> int:
        """Return the passes until sums of input gradients reach a column."""
        words = max(len(row.inputs) for row in layout.rows)
        return int((self.relay_cycles * (layout.cols - 1 - col) + words) / self.pass_cycles)


def in_flight(
    layouts: Sequence[RegionLayout],
    legs: Legs,
    config: FabricConfig,
    samples: int,
    room: tuple[int, int],
    chains: Chains,
) -> list[Flight]:
    """Return the samples in flight of every region, for a batch of `samples`."""
    resting = config.input_queue_wavelets[SUMS_QUEUE] + config.router_queue_wavelets
    spare, more = room
    ahead = [1 + more + min(resting // layout.outputs, 3) for layout in layouts]
    lags = [chains.passes(layout, 0) if p and any(room) else 0 for p, layout in enumerate(layouts)]
    # An inlet has one extra slot, into which the next sample arrives.
    held = [FP16_BYTES * len(legs.into(p, 0).elements) for p in range(len(layouts))]
    fits = [int(HELD_FRACTION * config.sram_usable_bytes) // each - 1 for each in held]
    return flights(samples, len(legs.loss), spare, ahead, lags, fits)


def flights(
    samples: int, losses: int, spare: int, ahead: Sequence[int], lags: Sequence[int], fits: Sequence[int]
) -> list[Flight]:
    """Return the samples in flight from the numbers B, L, s, and by region a, the largest l, and the samples
    that fit in memory."""
    wanted: list[Flight] = []
    outputs = losses + min(spare, 1)
    for more, lag in zip(reversed(ahead), reversed(lags), strict=True):
        rows = max(LEAST, outputs + more)
        wanted.insert(0, Flight(rows, outputs, min(lag, rows - LEAST)))
        outputs = rows + wanted[0].lag + 2 * spare
    least, come = min(LEAST, samples), samples
    found: list[Flight] = []
    for one, more, most in zip(wanted, ahead, fits, strict=True):
        rows = max(least, min(one.rows, most, come))
        last_row = min(one.last_row, rows if rows == samples else max(least, rows - more))
        lag = min(one.lag, rows - least, samples if come == samples else come - rows)
        found.append(Flight(rows, last_row, lag))
        come = last_row
    return found
