"""Collectives on a ring of P cores along a line: pieces of n / P elements travel from rank to rank.

A ring is folded (even positions upward, odd positions downward: neighbours at most two links apart) or plain
(neighbours adjacent, the wrap-around crosses the line).

Symbols: q = ceil(n / P) elements per piece, w = words(q), o_l = vector_start_loaded_cycles (descriptors advance,
nothing else is reloaded), d = 2 hop + 2 T_R + 1 cycles from sending a word to receiving it two links on (one hop less once), i = issue
cycles to move a piece: w, or w / 2 where a 16-bit stream moves two words per cycle (SIMD-64).

reduce-scatter   rank r sends piece r - 1, adds what arrives of r - 2, r - 3, ... to its own and sends the sum on; the
                 sum of piece r ends in rank r
all-gather       rank r sends piece r, stores what arrives of r - 1, r - 2, ... and sends it on

A microthread forwards a piece while the next one arrives; both share the issue slot. Each half takes::

    fp32     T = (P - 1) max(2 w + 2 o_l, o_l + d + w) - o_l       the send comes before the start of the receive
    16 bit   T = (P - 1) (2 o_l + d + w) - o_l                     and after it, where it leaves half the slot free

An all-reduce of both halves takes one more o_l, because its second half starts with loaded descriptors.

Adding and forwarding word by word would take one issue cycle per word instead of two, but it deadlocks: all
cores of the ring would send their first piece and none would receive.

Source: arXiv 2404.15888 for the algorithm (there (P - 1) (w + d) for each half).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand, Travel
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line
from wse_sim.kernels.contract.equations import ceil_div, words
from wse_sim.kernels.contract.family import Cost, Size

# Moves of 16-bit streams without arithmetic take two words per issue cycle.
WIDE = {"fp16": "fp16x4"}


def ring(cores: int, *, folded: bool = True) -> list[int]:
    """Return the positions of a line in the order of the ring."""
    return [*range(0, cores, 2), *reversed(range(1, cores, 2))] if folded else [*range(cores)]


def route_ring(line: Line, order: list[int], first: int) -> tuple[list[int], list[int], int]:
    """Set the routes of all streams to the next rank; return each position's send and receive colors, and
    their number.

    Streams on overlapping or adjacent segments of the line have different colors.
    """
    cores = len(order)
    edges = sorted((min(a, b), max(a, b), a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True))
    busy_until: list[int] = []
    sends, receives = [0] * cores, [0] * cores
    for low, high, source, target in edges:
        free = next((i for i, end in enumerate(busy_until) if end < low), len(busy_until))
        busy_until[free : free + 1] = [high]
        color = first + free
        onward = line.toward(1 if target > source else -1)
        behind = line.toward(-1 if target > source else 1)
        line.builder.route(color, line.place(source), rx="R", tx=onward)
        for between in range(low + 1, high):
            line.builder.route(color, line.place(between), rx=behind, tx=onward)
        line.builder.route(color, line.place(target), rx=behind, tx="R")
        sends[source] = receives[target] = color
    return sends, receives, len(busy_until)


@dataclass(frozen=True)
class RingTurn:
    """Parameters of one core of a ring: its rank, the ring's size, pieces of q elements, two colors."""

    rank: int
    cores: int
    x: Buffer
    q: int
    dtype: str
    sends: int
    receives: int

    def pieces(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return pieces first, first - 1, ... (`count` of them, modulo P) as runs (piece, length) that do not
        wrap around."""
        first %= self.cores
        before = min(count, first + 1)
        return [run for run in ((first, before), (self.cores - 1, count - before)) if run[1] > 0]

    def piece(self, number: int, *, falling: bool = False) -> Operand:
        """Return a piece in memory; with `falling`, the preceding one in each iteration of the enclosing loop."""
        step = -self.q if falling else 0
        return self.x.dsd(number % self.cores * self.q, self.q, step=step)


def emit_reduce_scatter(k: CoreClass, turn: RingTurn, start: str) -> None:
    """Emit a reduce-scatter: the sum of piece r ends in rank r. The first instruction starts as `start` specifies."""
    _emit_half(k, turn, turn.rank - 1, start, adds=True)


def emit_all_gather(k: CoreClass, turn: RingTurn, start: str) -> None:
    """Emit an all-gather: piece r of rank r reaches all cores. The first instruction starts as `start` specifies."""
    _emit_half(k, turn, turn.rank, start, adds=False)


def _emit_half(k: CoreClass, turn: RingTurn, own: int, start: str, *, adds: bool) -> None:
    """Send piece `own`, then P - 1 times receive the preceding piece and forward it; the last one is kept."""
    how: Travel = {"dtype": turn.dtype, "wire": WIDE.get(turn.dtype)}

    def send(piece: Operand, start: str) -> None:
        priority = "low" if turn.dtype in WIDE else "medium"
        k.mov(fabric_out(turn.sends), piece, start=start, thread=1, priority=priority, **how)

    def receive(piece: Operand) -> None:
        arriving = fabric_in(turn.receives)
        if adds:
            k.add(piece, piece, arriving, start="loaded", **how)
        else:
            k.mov(piece, arriving, start="loaded", **how)
        k.join(1)

    send(turn.piece(own), start)
    for first, count in turn.pieces(own - 1, turn.cores - 2):
        with k.loop(count):
            receive(turn.piece(first, falling=True))
            send(turn.piece(first, falling=True), "loaded")
    receive(turn.piece(own + 1))


def half_cost(n: Size, cores: int, wafer: Wafer, dtype: str) -> Cost:
    """Return the cost of one half, without the task start."""
    q = ceil_div(n, cores)
    w = words(q, dtype) * wafer.wavelet_cycles
    if cores == 1:
        return Cost(fabric=0.0 * w)
    wide = dtype in WIDE
    issue = ceil_div(w, 2) if wide else w
    steps, o = cores - 1, wafer.vector_start_loaded_cycles
    # A piece crosses P - 1 edges of the folded ring; each has two hops, except one.
    flight = (2 * steps - 1) / steps * wafer.hop_cycles + wafer.handover_cycles
    busy = 2 * issue + 2 * o
    wait = np.maximum(0.0, (1 + wide) * o + flight + w - busy)
    return Cost(ramp=2.0 * steps * issue, startup=(2 * steps - 1) * o + 0.0 * w, idle=steps * wait)


def place_ring(line: Line, x: Buffer, q: int, dtype: str, halves: tuple[Any, ...]) -> None:
    """Write routes, core classes and places of the `halves` (emitters) on a folded ring; x consists of pieces
    of q elements."""
    b = line.builder
    order = ring(b.rows if line.vertical else b.cols)
    sends, receives, colors = route_ring(line, order, 0)
    for color in range(colors):
        b.input_queue(
            color, 0
        )  # a core receives on one of them: six words keep a stream of pairs at full rate
    for rank, position in enumerate(order):
        k = b.core_class(f"rank {rank}")
        k.busy(b.config.task_start_cycles)
        turn = RingTurn(rank, len(order), x, q, dtype, sends[position], receives[position])
        for i, emit in enumerate(halves if len(order) > 1 else ()):
            emit(k, turn, "loaded" if i else "none")
        b.place(k, line.place(position))
