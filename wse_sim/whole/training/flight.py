"""How many samples a region has in flight.

Symbols: d_p samples in flight of region p (inputs held), o_p of its last row (outputs held); v outputs of a core; r words
that rest in the queues between two cores; s spare samples per region, e further passes ahead; l passes that
sums of gradients take along a row (:mod:`wse_sim.whole.training.order`)::

    a_p = 1 + e + min(floor(r / v), 3)   passes that the rows may be ahead of the last row: sums wait in the queues
    o_p = d_{p+1} + 2 s + l_{p+1}        what the next region holds, and what is on its way there and back
    d_p = o_p + a_p                      of the last region o = L + min(s, 1): L cores of the loss have one each

Passes alternate in a fixed order, so a region that is less far ahead waits for samples on their way.  One that is further
ahead than links and queues have room for waits for a gradient that waits for it, and all stops; with s = e = 0 the
next region itself holds every sample that goes out before the first gradient comes.  How much more finds room, and is
of use, is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wse_sim.fabric.format.config import FabricConfig
from wse_sim.whole.layout import RegionLayout
from wse_sim.whole.training.ways import Legs

FP16_BYTES = 2
SUMS_QUEUE = 2  # input queue of the sums
ROOMS = ((3, 1), (2, 1), (2, 0), (1, 2), (1, 0))
"""Spare samples and further passes ahead that are tried; (0, 0) runs if none of them does."""
LEAST_SLOTS = 2  # of a core whose sums do not lag behind: one sends, into one come products
HELD_FRACTION = 0.7  # of a core's memory that samples in flight may take


@dataclass(frozen=True)
class Flight:
    """Samples in flight of a region (inputs held), and of its last row (outputs held)."""

    rows: int
    last_row: int


@dataclass(frozen=True)
class Chains:
    """How many passes a sum takes along a row of cores, each of which adds its own part."""

    relay_cycles: int  # from the issue in a core to that in the next
    pass_cycles: float  # of a backward pass

    def passes(self, layout: RegionLayout, col: int) -> int:
        """Passes until sums of gradients of the inputs are in a column."""
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
    """Of every region: at most all `samples`, and what the inlets can hold."""
    resting = config.input_queue_wavelets[SUMS_QUEUE] + config.router_queue_wavelets
    spare, more = room
    ahead = [1 + more + min(resting // layout.outputs, 3) for layout in layouts]
    lags = [0, *(chains.passes(layout, 0) for layout in layouts[1:])]
    outputs = len(legs.loss) + min(spare, 1)
    wanted: list[int] = []
    for more_ahead, lag in zip(reversed(ahead), reversed(lags), strict=True):
        # A slot whose sums are on their way is not written.
        wanted.append(max(outputs + more_ahead, lag + LEAST_SLOTS))
        outputs = wanted[-1] + 2 * spare + lag
    found: list[Flight] = []
    most = samples + ahead[0]
    for p, rows in enumerate(reversed(wanted)):
        # An inlet has a slot more, into which the next sample comes.
        fits = (
            int(HELD_FRACTION * config.sram_usable_bytes) // (FP16_BYTES * len(legs.into(p, 0).elements)) - 1
        )
        if most < samples:
            most -= lags[p]
        rows = max(1 + ahead[p], lags[p] + LEAST_SLOTS, min(rows, fits, most))
        found.append(Flight(min(rows, samples), min(rows - ahead[p], samples)))
        most = rows - ahead[p]
    return found
