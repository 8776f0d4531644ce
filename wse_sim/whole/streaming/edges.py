"""Outer rows: feeders receive weights, collectors gather gradients; host streams at both edges.

Symbols: a stream serves the columns j_0 .. j_{p-1} of every lane; w words per column and round::

    feeder of j_i      of every p w words it receives: drops i w, keeps w, drops the rest; sends them while the next arrive
    collector of j_i   adds to its sums those of the lane before (of every p w words: drops i w, adds w, drops the rest);
                       sends them in sequence to the next lane, or from the last lane to the host, in fp16

It drops two words per cycle, so a feeder takes less than the p w cycles in which the words of a round arrive.
Words that switch from one feeder to the next would cost less, but no switch has enough positions to serve the
same columns in several lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from wse_sim.fabric.format.builder import Buffer, Builder, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.kernels.blocks.rounds import SENDER
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.regions.contract import PAIR
from wse_sim.whole.streaming.common import COLORS
from wse_sim.whole.streaming.layout import EdgeStream, StreamedLayout

TAKER = SENDER + 1  # microthread that takes the sums of a column


def arriving_blocks(layout: StreamedLayout) -> Iterator[tuple[int, int]]:
    """Yield (words per column, repetitions) of the rounds that arrive, in order."""
    for one in layout.passes:
        if one.is_product:
            if one.kind == "forward" and one.layer.bias:
                yield ceil_div(one.owned, PAIR), 1
            yield ceil_div(one.rest, PAIR), one.rounds


def leaving_blocks(layout: StreamedLayout) -> Iterator[tuple[int, int]]:
    """Yield (elements per column, repetitions) of the rounds of gradients that leave, in order."""
    for one in layout.passes:
        if one.kind == "weights":
            if one.layer.bias:
                yield one.owned, 1
            yield one.rest, one.rounds


def write_edges(b: Builder, layout: StreamedLayout) -> None:
    """Write all feeders, collectors and host streams."""
    left = max(size for size, _ in arriving_blocks(layout))
    left = max([left, *(ceil_div(size, PAIR) for size, _ in leaving_blocks(layout))])
    most = PAIR * left * max(len(stream.columns) for stream in layout.streams)
    scrap = {
        row: b.buffer(f"scrap {row}", most, "fp16", (row, slice(None)))
        for row in sorted(
            {row for stream in layout.streams for row in (stream.weights_row, stream.gradients_row)}
        )
    }
    for stream in layout.streams:
        _feed(b, layout, stream, scrap[stream.weights_row])
        if any(one.kind == "weights" for one in layout.passes):
            _collect(b, layout, stream, scrap[stream.gradients_row])


# ---- weights ------------------------------------------------------------------------------------------------------


def _feed(b: Builder, layout: StreamedLayout, stream: EdgeStream, scrap: Buffer) -> None:
    color = COLORS.arriving["WE".index(stream.edge)]
    count, row = len(stream.columns), stream.weights_row
    sent = COLORS.weights if stream.is_downward else COLORS.rising
    words = sum(count * size * times for size, times in arriving_blocks(layout))
    b.host_in(f"weights {stream.number}", color, words, row, stream.edge)
    cells = {layout.fabric_col(lane, col) for lane in range(layout.lanes) for col in stream.columns}
    _route_from_edge(b, color, row, stream.edge, cells)
    longest = max(size for size, _ in arriving_blocks(layout))
    held = [b.buffer(f"words {stream.number} {i}", longest, "fp32", (row, slice(None))) for i in (0, 1)]
    for i, col in enumerate(stream.columns):
        core = b.core_class(f"feeder of column {col}")

        def keep_and_send(turn: int, size: int, core: CoreClass = core, i: int = i) -> None:
            _leave(core, color, scrap, i * size)
            core.mov(held[turn].dsd(0, size), fabric_in(color), start="none")
            _leave(core, color, scrap, (count - 1 - i) * size)
            core.mov(fabric_out(sent), held[turn].dsd(0, size), start="none", thread=SENDER)

        _in_turns(core, arriving_blocks(layout), keep_and_send)
        for lane in range(layout.lanes):
            b.place(core, (row, layout.fabric_col(lane, col)))
            _route_down(b, layout, stream, layout.fabric_col(lane, col))
    if not stream.is_downward:
        relay = b.core_class(f"relay of stream {stream.number}")
        relay.mov(fabric_out(COLORS.weights), fabric_in(sent), length=words // count, start="none")
        for col in cells:
            b.place(relay, (layout.area.row - 1, col))


def _in_turns(
    core: CoreClass,
    blocks: Iterable[tuple[int, int]],
    write: Callable[[int, int], None],
    buffers: int = 2,
    first: int = 0,
) -> int:
    """Write all rounds of blocks (size, repetitions), cycling through the buffers from `first`; return the
    next buffer."""
    turn = first
    for size, times in blocks:
        with core.loop(times // buffers):
            for later in range(buffers):
                write((turn + later) % buffers, size)
        for _ in range(times % buffers):
            write(turn, size)
            turn = (turn + 1) % buffers
    return turn


def _leave(core: CoreClass, color: int, scrap: Buffer, count: int) -> None:
    """Drop words for other cores, two per cycle."""
    if count:
        core.mov(scrap.dsd(0, PAIR * count), fabric_in(color), dtype="fp16", wire="fp16x4", start="none")


def _route_from_edge(b: Builder, color: int, row: int, edge: str, cells: set[int]) -> None:
    """Route words from the edge past all cells that receive them."""
    onward = "E" if edge == "W" else "W"
    end = max(cells) if edge == "W" else min(cells)
    for col in range(end + 1) if edge == "W" else range(end, b.cols):
        b.route(color, (row, col), rx=edge, tx=("R" if col in cells else "") + ("" if col == end else onward))


def _route_down(b: Builder, layout: StreamedLayout, stream: EdgeStream, col: int) -> None:
    """Route from the feeder to all cores of the column; words of the row below go up first, and a core above
    reverses them.

    If words ran up some columns and down others, the program would deadlock: the first row would have those
    of one column long before those of its neighbour, the last row the other way round, and every row must
    receive each word.
    """
    area = layout.area
    top, end = area.row - 1, area.row + area.rows - 1
    if not stream.is_downward:
        b.route(COLORS.rising, (stream.weights_row, col), rx="R", tx="N")
        b.route(COLORS.rising, (slice(area.row, stream.weights_row), col), rx="S", tx="N")
        b.route(COLORS.rising, (top, col), rx="S", tx="R")
    first = stream.weights_row if stream.is_downward else top
    b.route(COLORS.weights, (first, col), rx="R", tx="S")
    for row in range(first + 1, end + 1):
        b.route(
            COLORS.weights,
            (row, col),
            rx="N",
            tx=("R" if row >= area.row else "") + ("" if row == end else "S"),
        )


# ---- gradients ----------------------------------------------------------------------------------------------------


def _collect(b: Builder, layout: StreamedLayout, stream: EdgeStream, scrap: Buffer) -> None:
    """Write the collectors of one stream. Lanes pass sums towards the edge; the one nearest to it sends to
    the host."""
    side = "WE".index(stream.edge)
    row, columns = stream.gradients_row, stream.columns
    words = sum(len(columns) * ceil_div(size, PAIR) * times for size, times in leaving_blocks(layout))
    b.host_out(f"gradients {stream.number}", COLORS.leaving[side], words, row, stream.edge)
    longest = max(size for size, _ in leaving_blocks(layout))
    order = range(layout.lanes) if stream.edge == "E" else range(layout.lanes - 1, -1, -1)
    for place, lane in enumerate(order):
        is_last = place == layout.lanes - 1
        out = COLORS.leaving[side] if is_last else COLORS.between[side][place % 2]
        behind = COLORS.between[side][1 - place % 2] if place else None
        for i, col in enumerate(columns):
            at = (row, layout.fabric_col(lane, col))
            sums = [b.buffer(f"collected {lane} {col} {n}", longest, "fp32", at, bank=0) for n in range(3)]
            core = b.core_class(f"collector of column {col} in lane {lane}")
            advance = None if len(columns) == 1 else ("path" if i == len(columns) - 1 else "local")
            along = COLORS.along[(layout.area.rows - 1) % 2]
            collector = _Collector(core, sums, along, out, advance)
            if behind is None:
                _in_turns(core, leaving_blocks(layout), collector.take_and_send)
            else:
                collector.add_lanes(leaving_blocks(layout), behind, scrap, i, len(columns))
            b.place(core, at)
            _route_to_collector(b, layout, stream, at)
        _route_lane(b, layout, stream, out, lane, is_last=is_last)


@dataclass(frozen=True)
class _Collector:
    """A core that gathers the sums of a column and sends them in sequence, in fp16."""

    core: CoreClass
    sums: list[Buffer]
    along: int  # color of the column
    out: int
    advance: str | None

    def take_and_send(self, turn: int, size: int) -> None:
        """Write a round of the first lane, which has no sums to add."""
        self.core.mov(self.sums[turn].dsd(0, size), fabric_in(self.along), start="none")
        self._send(turn, size)

    def add_lanes(
        self, blocks: Iterable[tuple[int, int]], behind: int, scrap: Buffer, place: int, count: int
    ) -> None:
        """Write all rounds: a microthread receives the sums of the next round while those of the lanes before
        are added.

        Those of the round before leave meanwhile, so there are three buffers. A buffer is free when it is
        received into, because a microthread starts to send only after its last words are out.
        """
        buffers, first = len(self.sums), 0
        for size, times in blocks:

            def add(turn: int, size: int, *, has_next: bool = True) -> None:
                words = ceil_div(size, PAIR)
                self.core.join(TAKER)
                if has_next:
                    self._take((turn + 1) % buffers, size)
                _leave(self.core, behind, scrap, place * words)
                own = self.sums[turn].dsd(0, size)
                self.core.add(own, own, fabric_in(behind), dtype="mixed", wire="fp16x2", start="none")
                _leave(self.core, behind, scrap, (count - 1 - place) * words)
                self._send(turn, size)

            self._take(first, size)
            last = _in_turns(self.core, [(size, times - 1)], add, buffers, first)
            add(last, size, has_next=False)
            first = (last + 1) % buffers

    def _take(self, turn: int, size: int) -> None:
        self.core.mov(self.sums[turn].dsd(0, size), fabric_in(self.along), start="none", thread=TAKER)

    def _send(self, turn: int, size: int) -> None:
        target = fabric_out(self.out, self.advance)
        self.core.mov(target, self.sums[turn].dsd(0, size), dtype="fp16", start="none", thread=SENDER)


def _route_to_collector(b: Builder, layout: StreamedLayout, stream: EdgeStream, at: tuple[int, int]) -> None:
    color, area = COLORS.along[(layout.area.rows - 1) % 2], layout.area
    onward, back = ("S", "N") if stream.is_downward else ("N", "S")
    step = 1 if stream.is_downward else -1
    begin = area.row + area.rows if stream.is_downward else area.row - 1
    for row in range(begin, at[0], step):
        b.route(color, (row, at[1]), rx=back, tx=onward)
    b.route(color, at, rx=back, tx="R")


def _route_lane(
    b: Builder, layout: StreamedLayout, stream: EdgeStream, color: int, lane: int, *, is_last: bool
) -> None:
    """Route a lane's collectors, which send towards the edge in sequence, the nearest first; then past those
    of the next lane."""
    row, onward, back = stream.gradients_row, stream.edge, "E" if stream.edge == "W" else "W"
    step = -1 if stream.edge == "W" else 1
    senders = [layout.fabric_col(lane, col) for col in stream.columns]  # the nearest to the edge first
    listeners = set[int]()
    if not is_last:
        listeners = {layout.fabric_col(lane + step, col) for col in stream.columns}
    end = (
        (0 if stream.edge == "W" else b.cols - 1)
        if is_last
        else (min(listeners) if stream.edge == "W" else max(listeners))
    )
    for col in range(senders[-1], end + step, step):
        tx = ("R" if col in listeners else "") + ("" if col == end and not is_last else onward)
        if col == senders[-1]:
            b.route(color, (row, col), rx="R", tx=tx)
        elif col in senders:
            b.route(color, (row, col), rx="R", tx=tx, switch=Switch([{"rx": back}], ring=True))
        else:
            b.route(color, (row, col), rx=back, tx=tx)
