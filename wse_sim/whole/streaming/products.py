"""Products of streamed weights on the cores of the lanes: forward, and the gradient of the inputs.

Symbols: x the features at rest on a core, W their weights of one round, t tokens, o the owner of the round, j a core::

    y = x W                    by words as they come
    j = o + 1   y + b, sent on: here the ring begins         (the first column follows the last)
    j = o       y + what comes from behind, kept in fp16
    others      y + what comes from behind, sent on

Every core so takes t cycles for the sums of a round.  Sums from both ends towards the owner were tried first: it adds
twice, 2 t cycles, and all others wait for it.

The bias b of an output so lies on the core behind its owner.  After all rounds, forward: the activation; gradient of the
inputs: times the slope of the activation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wse_sim.fabric.format.builder import Buffer, Operand, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.whole.layout import PAIR
from wse_sim.whole.streaming.common import COLORS, ColumnKind, Cores
from wse_sim.whole.streaming.layout import Pass

BIAS_APART = 2  # elements of fp32: operands of a sum lie in different banks


def write_product(cores: Cores, core: CoreClass, kind: ColumnKind, one: Pass) -> None:
    """All rounds of a product, and the work on its results."""
    number = one.layer.number
    forward = one.kind == "forward"
    if forward and one.layer.bias:
        bias = cores.bias.dsd(0, one.owned, stride=BIAS_APART)
        core.mov(bias, fabric_in(COLORS.weights), dtype="fp16", start="none")
    rest, result = (
        (cores.x[number], cores.x[number + 1]) if forward else (cores.g[number + 1], cores.g[number])
    )
    turns = _Turns(cores, one)
    for count, act in (
        (turns.before, "add"),
        (turns.start, "start"),
        (turns.own, "keep"),
        (turns.after, "add"),
        (turns.wrapped, "start"),
    ):
        with core.loop(cores.per_column(count)):
            _multiply(cores, core, one, rest)
            _hand_over(cores, core, kind, one, result, act)
    _bend(cores, core, one, result)


@dataclass(frozen=True)
class _Turns:
    """Rounds of a core by its column: the owner before it makes it the start of the ring."""

    cores: Cores
    one: Pass

    def before(self, col: int) -> int:
        """Of owners before the one that precedes it."""
        return max(0, min(col - 1, self.one.owners)) * self.one.owned

    def start(self, col: int) -> int:
        """Of the owner that precedes it."""
        return self.one.owned if 1 <= col <= self.one.owners else 0

    def own(self, col: int) -> int:
        """Its own."""
        return self.one.owned if col < self.one.owners else 0

    def wrapped(self, col: int) -> int:
        """Of the last column, which precedes the first."""
        cols = self.cores.layout.cols
        return self.one.owned if col == 0 and self.one.owners == cols > 1 else 0

    def after(self, col: int) -> int:
        """Of the owners behind it."""
        return self.one.rounds - self.before(col) - self.start(col) - self.own(col) - self.wrapped(col)


def _multiply(cores: Cores, core: CoreClass, one: Pass, rest: Buffer) -> None:
    """Every word triggers the products of two features."""
    held, apart = cores.layout.held, cores.layout.apart
    meets = Meets(cores.y.dsd(0, held), lambda i: rest.dsd(i * apart, held), held, apart)
    meets.write(core, COLORS.weights, 0, one.rest)


@dataclass(frozen=True)
class Meets:
    """What arriving elements meet: element i the vector `vector(i)` of length `inner`, `apart` from the next."""

    sums: Operand
    vector: Callable[[int], Operand]
    inner: int
    apart: int

    def write(self, core: CoreClass, color: int, first: int, end: int) -> None:
        """Elements `first` to `end` arrive, two a word; the first of all replaces the sums.

        A last word of one element has an instruction of its own, which takes the time of one.
        """
        pairs = first + PAIR * ((end - first) // PAIR)
        for start, stop, wire in ((first, pairs, "fp16x2"), (pairs, end, "fp16")):
            if stop > start:
                core.fmac_vectors(
                    self.sums, fabric_in(color), self.vector(start), self.inner,
                    b_stride=self.apart, length=stop - start, dtype="mixed", wire=wire, start="none",
                    triggered=True, fresh=start == 0,
                )  # fmt: skip


def _hand_over(cores: Cores, core: CoreClass, kind: ColumnKind, one: Pass, result: Buffer, act: str) -> None:
    """Own sums start the ring with the bias, or go on with what comes from behind, or the core keeps both."""
    lay = cores.layout
    own, kept = cores.y.dsd(0, lay.held), result.dsd(0, lay.held, step=lay.apart)
    here = COLORS.back if kind.is_last else COLORS.sums[kind.parity]
    behind = COLORS.back if kind.is_first else COLORS.sums[1 - kind.parity]
    is_alone = kind.is_first and kind.is_last
    if is_alone and act != "keep":
        return
    if is_alone or act == "start":
        target = kept if is_alone else fabric_out(here)
        if one.kind == "forward" and one.layer.bias:
            core.add(target, own, cores.bias.dsd(0, lay.held, stride=0, step=BIAS_APART), start="none")
        else:
            core.mov(target, own, start="none")
    else:
        core.add(kept if act == "keep" else fabric_out(here), own, fabric_in(behind), start="none")


def _bend(cores: Cores, core: CoreClass, one: Pass, result: Buffer) -> None:
    """Forward: the activation of all results of a core; backward: times the slope of the one before."""
    values = result.dsd(0, one.owned * cores.layout.apart)
    if one.kind == "forward" and one.layer.has_relu:
        core.max(values, values, scalar(0.0), dtype="fp16")
    elif one.kind == "inputs" and cores.layout.layers[one.layer.number - 1].has_relu:
        slope, operand = (buffer.dsd(0, values.length) for buffer in (cores.slope, cores.x[one.layer.number]))
        period = round(1000 / cores.wafer.max_fp16_per_cycle)
        core.map(Fn.STEP, slope, operand, dtype="fp16", period=period)
        core.mul(values, values, slope, dtype="fp16")


def write_loss(cores: Cores, core: CoreClass, one: Pass) -> None:
    """The gradient of half the squared error: outputs less what is wanted; nothing of tokens that fill up."""
    lay = cores.layout
    count = one.owned * lay.apart
    gradient = cores.g[-1].dsd(0, count)
    core.sub(gradient, cores.x[-1].dsd(0, count), cores.wanted.dsd(0, count), dtype="fp16")
    if lay.held * lay.area.rows * lay.lanes > lay.tokens:
        core.mul(gradient, gradient, cores.real.dsd(0, count), dtype="fp16")


def route_sums(cores: Cores) -> None:
    """The ring of every lane: from neighbour to neighbour, and from the last column back to the first."""
    lay, b = cores.layout, cores.b
    rows = slice(lay.area.row, lay.area.row + lay.area.rows)
    last = lay.cols - 1
    for lane in range(lay.lanes):
        for col in range(lay.cols if last else 0):
            at, parity = (rows, lay.fabric_col(lane, col)), col % 2
            if col < last:
                b.route(COLORS.sums[parity], at, rx="R", tx="E")
            if col:
                b.route(COLORS.sums[1 - parity], at, rx="W", tx="R")
            ends = {0: ("E", "R"), last: ("R", "W")}
            rx, tx = ends.get(col, ("E", "W"))
            b.route(COLORS.back, at, rx=rx, tx=tx)
