"""Phases of products in which the items of a sequence circulate over a rectangle, as parts of fabric
programs.

An item (a key, a query) is a vector of which every line of cores holds or receives a piece.  A phase handles all
items in order; a core enters the next phase when it has finished the last.

product   the item's elements arrive, each triggers a multiply-accumulate over the resident vectors, and the sums go
          along the other axis to the item's owner there (ring), or out at the edge (chain).
spread    the item's owner multicasts its values along one axis, and each element that arrives triggers a
          multiply-accumulate over them: an outer product with stationary sums.

The cores of the line send elements in sequence, or a feeder in the column at the east edge sends them. A
wavelet carries two fp16 elements; sums are fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Program
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.rounds import (
    RING_COLORS,
    Blocks,
    Cuts,
    Ring,
    Sender,
    end_turn,
    even,
    pitch,
    route_turns,
    stretches,
)

Phase = Callable[[Any, int, int], None]  # writes the phase of core (row, col)


@dataclass(frozen=True)
class VectorRun:
    """`count` vectors of `length` elements in a buffer: vector v starts at v `apart`, its elements are
    `stride` apart."""

    buffer: Buffer
    count: int
    length: int
    apart: int
    stride: int = 1


class BuiltRectangle:
    """The builder of a rectangle, the phases of its cores, and (with `edge`) a column of feeders and collectors."""

    def __init__(self, rows: int, cols: int, items: int, wafer: Wafer, *, edge: bool = False) -> None:
        self.rows, self.cols, self.items, self.wafer = rows, cols, items, wafer
        self.builder = new_builder(rows, cols + edge, wafer)
        self.inner = (slice(None), slice(0, cols))
        self.outer = (slice(None), cols)
        # Lines of the rectangle without the edge.
        self.row = Line(self.builder, vertical=False)
        self.column = Line(self.builder, vertical=True, across=slice(0, cols))
        self.colors = 0
        self.phases: list[Phase] = []
        self.edge: list[Callable[[Any], None]] = []

    def buffer(self, name: str, length: int, dtype: str = "fp32", bank: int | None = None) -> Buffer:
        """Declare a buffer on every core of the rectangle."""
        return self.builder.buffer(name, length, dtype, self.inner, bank=bank)

    def take(self, colors: int) -> int:
        """Return the first of that many unused colors."""
        self.colors += colors
        return self.colors - colors

    def line(self, *, vertical: bool) -> tuple[Line, int]:
        """Return the lines along an axis, and their number of cores."""
        return (self.column, self.rows) if vertical else (self.row, self.cols)

    def build(self) -> Program:
        """Return the program; every core has a separate class, because each owns different items."""
        for i, j in np.ndindex(self.rows, self.cols):
            core = self.builder.core_class(f"core {i} {j}")
            for phase in self.phases:
                phase(core, i, j)
            self.builder.place(core, (i, j))
        if self.edge:
            core = self.builder.core_class("edge")
            for emit in self.edge:
                emit(core)
            self.builder.place(core, self.outer)
        return self.builder.build()


class Rounds:
    """Elements of `sent` that the cores along an axis multicast in sequence."""

    def __init__(self, region: BuiltRectangle, sent: Buffer, length: int, *, vertical: bool) -> None:
        line, cores = region.line(vertical=vertical)
        self.color, self.sent, self.length, self.vertical = region.take(1), sent, length, vertical
        self.blocks = Blocks(region.items, cores)
        route_turns(line, cores, self.color, loop_back=True)

    def at(self, core: CoreClass, i: int, j: int) -> Sender:
        """Return the sender of a core."""
        return Sender(core, self.color, self.sent, self.length, self.blocks.of(i if self.vertical else j))


class Feed:
    """Elements that a feeder at the edge multicasts along its row, from its own buffer."""

    def __init__(self, region: BuiltRectangle, name: str, length: int) -> None:
        self.color = color = region.take(1)
        self.length = length
        self.sent = sent = region.builder.buffer(name, region.items * even(length), "fp16", region.outer)
        route, last = region.builder.route, region.cols
        route(color, region.outer, rx="R", tx="W")
        for v in range(last):
            route(color, region.row.place(v), rx="E", tx="R" if v == 0 else "RW")
        region.edge.append(lambda core: core.mov(fabric_out(color), sent.dsd(), dtype="fp16", start="none"))

    def at(self, core: CoreClass, i: int, j: int) -> Sender:
        """Return no sender: no core of the rectangle sends."""
        return Sender(core, self.color, self.sent, self.length, (0, 0))


class KeptSums:
    """Sums that travel around rings to their owners along an axis; `buffer` stores a vector of `length` per
    item."""

    def __init__(
        self, region: BuiltRectangle, ring: Ring, buffer: Buffer, length: int, *, vertical: bool
    ) -> None:
        self.ring, self.buffer, self.length, self.vertical = ring, buffer, length, vertical
        self.blocks = Blocks(region.items, ring.cores)

    def cuts(self, i: int, j: int) -> Cuts:
        """Return the items at which a core's part in the sums changes."""
        at = i if self.vertical else j
        return (self.blocks.of(at - 1), self.blocks.of(at))

    def emit(self, core: CoreClass, i: int, j: int, start: int, y: Operand) -> None:
        """Emit the sums of the current item; `start` is the first item of the current range."""
        at = i if self.vertical else j
        first, end = self.blocks.of(at)
        place, apart = None, pitch(self.length)
        if first <= start < end:
            place = self.buffer.dsd((start - first) * apart, self.length, step=apart)
        self.ring.emit(core, at, start // self.blocks.size, y, place)


class SentSums:
    """Sums that leave along the rows, added from core to core, to a collector at the edge."""

    def __init__(self, region: BuiltRectangle, name: str, length: int) -> None:
        self.first, self.cols = region.take(2), region.cols
        kept = region.builder.buffer(name, region.items * length, "fp32", region.outer)
        route = region.builder.route
        for v in range(self.cols):
            route(self._color(v), region.row.place(v), rx="R", tx="E")
            route(self._color(v), region.row.place(v + 1), rx="W", tx="R")
        last = self._color(self.cols - 1)
        region.edge.append(lambda core: core.mov(kept.dsd(), fabric_in(last), start="none"))

    def _color(self, position: int) -> int:
        return self.first + position % 2

    def cuts(self, i: int, j: int) -> Cuts:
        """Return (): all rounds are equal."""
        return ()

    def emit(self, core: CoreClass, i: int, j: int, start: int, y: Operand) -> None:
        """Send the core's sums, added to those from behind."""
        out = fabric_out(self._color(j))
        if j == 0:
            core.mov(out, y, start="none")
        else:
            core.add(out, y, fabric_in(self._color(j - 1)), start="none")


def ring(region: BuiltRectangle, *, vertical: bool) -> Ring:
    """Route rings of sums along every line of an axis, and return them."""
    line, cores = region.line(vertical=vertical)
    found = Ring(cores, region.take(RING_COLORS))
    found.route(line)
    return found


def _triggered(
    core: CoreClass,
    color: int,
    count: int,
    vectors: Callable[[int], tuple[Any, Any]],
    *,
    inner: int,
    dst_stride: int = 0,
    b_stride: int = 0,
    fresh: bool = False,
) -> None:
    """Emit multiply-accumulates with `count` arriving elements, two per word; an odd last element has its own
    word.

    `vectors(first)` returns sums and factors from element `first` on.
    """
    pairs = count - count % 2
    for first, elements, wire in ((0, pairs, "fp16x2"), (pairs, count - pairs, "fp16")):
        if elements:
            sums, factors = vectors(first)
            core.fmac_vectors(
                *(sums, fabric_in(color), factors),
                inner=inner,
                dst_stride=dst_stride,
                b_stride=b_stride,
                fresh=fresh and first == 0,
                length=elements,
                wire=wire,
                triggered=True,
                dtype="mixed",
                start="none",
            )


def product(
    region: BuiltRectangle, source: Rounds | Feed, rest: VectorRun, y: Buffer, sums: KeptSums | SentSums
) -> None:
    """Write a product phase; `y` has the sums of one item."""

    def vectors(first: int) -> tuple[Any, Any]:
        return y.dsd(), rest.buffer.dsd(first * rest.apart, rest.length, rest.stride)

    def phase(core: CoreClass, i: int, j: int) -> None:
        sender = source.at(core, i, j)
        for start, end in stretches(region.items, *sender.cuts, *sums.cuts(i, j)):
            sender.begin(start)
            with core.loop(end - start):
                sender.rest(start)
                _triggered(
                    core,
                    source.color,
                    rest.count,
                    vectors,
                    inner=rest.length,
                    b_stride=rest.apart,
                    fresh=True,
                )
                sender.ahead(start)
                sums.emit(core, i, j, start, y.dsd())

    region.phases.append(phase)


def spread(
    region: BuiltRectangle,
    source: Rounds | Feed,
    owned: Buffer,
    length: int,
    arrived: Buffer,
    out: Buffer,
    *,
    vertical: bool,
) -> None:
    """Add a spread phase: owners along an axis multicast the `length` values of an item; `out` is
    (elements, values).

    `owned` stores the values of the core's own items, `arrived` those of another owner's item.
    """
    line, cores = region.line(vertical=vertical)
    blocks, color, apart = Blocks(region.items, cores), region.take(1), pitch(length)
    route_turns(line, cores, color, loop_back=False)

    def vectors(values: Operand, first: int) -> tuple[Any, Any]:
        return out.dsd(first * length, length), values

    def phase(core: CoreClass, i: int, j: int) -> None:
        sender, own = source.at(core, i, j), blocks.of(i if vertical else j)
        core.mov(out.dsd(), scalar(0.0))
        for start, end in stretches(region.items, *sender.cuts, own):
            mine = own[0] <= start < own[1]
            values = owned.dsd((start - own[0]) * apart, length, step=apart) if mine else arrived.dsd()
            sender.begin(start)
            with core.loop(end - start):
                if mine and cores > 1:
                    core.mov(fabric_out(color), values, dtype="fp16", start="none")
                elif not mine:
                    core.mov(values, fabric_in(color), dtype="fp16", start="none")
                sender.rest(start)
                _triggered(
                    core,
                    source.color,
                    source.length,
                    partial(vectors, values),
                    inner=length,
                    dst_stride=length,
                )
                sender.ahead(start)
            if end == own[1] and mine and cores > 1:
                end_turn(core, color)

    region.phases.append(phase)
