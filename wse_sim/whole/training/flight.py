"""How many samples a region has in flight.

Symbols: d_p samples in flight of region p (inputs held), o_p of its last row (outputs held); v outputs of a core; r words
that rest in the queues between two cores; s spare samples per region, e further passes ahead::

    a_p = 1 + e + min(floor(r / v), 3)   passes that the rows may be ahead of the last row: sums wait in the queues
    o_p = d_{p+1} + 2 s                  what the next region holds, and what is on its way there and back
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
HELD_FRACTION = 0.7  # of a core's memory that samples in flight may take


@dataclass(frozen=True)
class Flight:
    """Samples in flight of a region (inputs held), and of its last row (outputs held)."""

    rows: int
    last_row: int


def in_flight(
    layouts: Sequence[RegionLayout], legs: Legs, config: FabricConfig, samples: int, room: tuple[int, int]
) -> list[Flight]:
    """Of every region: at most all `samples`, and what the inlets can hold."""
    resting = config.input_queue_wavelets[SUMS_QUEUE] + config.router_queue_wavelets
    spare, more = room
    ahead = [1 + more + min(resting // layout.outputs, 3) for layout in layouts]
    outputs = len(legs.loss) + min(spare, 1)
    wanted: list[int] = []
    for p in range(len(layouts) - 1, -1, -1):
        wanted.append(outputs + ahead[p])
        outputs = wanted[-1] + 2 * spare
    found: list[Flight] = []
    most = samples + ahead[0]
    for p, rows in enumerate(reversed(wanted)):
        # An inlet has a slot more, into which the next sample comes.
        fits = (
            int(HELD_FRACTION * config.sram_usable_bytes) // (FP16_BYTES * len(legs.into(p, 0).elements)) - 1
        )
        rows = max(1 + ahead[p], min(rows, fits, most))
        found.append(Flight(min(rows, samples), min(rows - ahead[p], samples)))
        most = rows - ahead[p]
    return found
