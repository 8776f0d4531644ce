"""Collectors: cores that only receive sums and send them in sequence.

A core has one output queue for all colors. Words that wait to be sent block the words behind them, so a core
that sends in sequence should not also send sums that others need. A collector has two buffers: it receives
the sums of a sample while those of the one before leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wse_sim.fabric.format.builder import Buffer, Builder, Place, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.shared_color import advance_of, place_kinds, send_all
from wse_sim.whole.regions.turns import in_pairs

SEND = 1  # microthread


@dataclass(frozen=True)
class Collected:
    """Sums that arrive per sample on one color, and the streams on which their parts leave in sequence.

    `parts` are pairs of color and elements, in the order of the sums.
    """

    color: int
    parts: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Elements per sample."""
        return sum(size for _, size in self.parts)


def write_collectors(
    b: Builder,
    name: str,
    cells: Sequence[Cell],
    where: Place,
    rounds: int,
    samples: int,
    passes: Sequence[tuple[Collected, ...]],
) -> None:
    """Write the core classes of `cells`, which send in this order, for `rounds` rounds of `samples` samples.

    `where` covers all cells; `passes` lists for each cell what arrives in a round, in order.
    """
    size = max(one.size for own in passes for one in own)
    held = [b.buffer(f"{name}{i}", size, "fp16", where) for i in (0, 1)]

    def write(core: CoreClass, kind: tuple[str | None, tuple[Collected, ...]]) -> None:
        advance, own = kind
        with core.loop(rounds):
            for number, one in enumerate(own):
                _take_all(core, one, held, advance, samples, number * samples)
            if len(own) * samples % 2:
                core.join(SEND)  # the next round begins with the same buffer

    turns = [advance_of(i, len(cells)) for i in range(len(cells))]
    place_kinds(b, dict(zip(cells, zip(turns, passes, strict=True), strict=True)), name, write)


def _take_all(
    core: CoreClass, one: Collected, held: Sequence[Buffer], advance: str | None, samples: int, done: int
) -> None:
    """Receive and forward the sums of `samples` samples in two alternating buffers, after `done` earlier
    samples."""

    def sample(turn: int, _first: int, _step: int) -> None:
        buffer, first = held[(done + turn) % 2], 0
        core.mov(buffer.dsd(0, one.size), fabric_in(one.color), start="none")
        for stream, size in one.parts:
            send_all(core, fabric_out(stream, advance), buffer.dsd(first, size), SEND)
            first += size

    in_pairs(core, samples, sample)
