"""Products of streamed weights on the cores of the lanes: forward, and the gradient of the inputs.

Symbols: x the stationary features of a core, W their weights of one round, t tokens, c columns of a lane, j a
column::

    y = x W                    computed as words arrive
    j = 0       y, sent on: the chain starts here
    j > 0       y + the sum from the west, sent on
    j = c - 1   the result, sent back to its owner (or kept)

So every core takes t cycles for the sums of a round, and an owner t more for each of its results. Owners
alternate, one round each, from the last column to the first: each lags behind its western neighbour by one
hop only, and none waits for the extra time of an owner. A router forwards results once its own core has
received one, until a control word ends the cycle.

Alternatives that were tried: sums from both ends towards the owner add twice, 2 t cycles, and all other cores
wait for it. In a ring that starts after the owner, the owner is one trip around the ring behind its neighbour
although both receive one stream of weights, so on long lanes all columns wait for it.

The bias b of an output is stored on its owner, which adds it to the result. After all rounds, the forward
pass applies the activation; the gradient of the inputs is multiplied by its derivative. That of ReLU follows
from the outputs; other functions store theirs next to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wse_sim.fabric.format.builder import Buffer, Operand, Switch, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command, Fn
from wse_sim.kernels.blocks.activation_slopes import Slopes
from wse_sim.kernels.blocks.rounds import SENDER
from wse_sim.whole.regions.contract import PAIR
from wse_sim.whole.streaming.common import COLORS, ColumnKind, Cores
from wse_sim.whole.streaming.layout import Pass

TAKER = SENDER + 1  # microthread that takes results
BIAS_APART = 2  # elements of fp32: operands of a sum are in different banks


def write_product(cores: Cores, core: CoreClass, kind: ColumnKind, one: Pass) -> None:
    """Write all rounds of a product, and the work on its results."""
    number = one.layer.number
    forward = one.kind == "forward"
    if forward and one.layer.bias:
        bias = cores.bias.dsd(0, one.owned, stride=BIAS_APART)
        core.mov(bias, fabric_in(COLORS.weights), dtype="fp16", start="none")
    rest, result = (
        (cores.x[number], cores.x[number + 1]) if forward else (cores.g[number + 1], cores.g[number])
    )
    rounds = _Rounds(cores, core, kind, one, rest, result)
    if kind.is_first and kind.is_last:
        rounds.alone()
    elif kind.is_last:
        rounds.end()
    else:
        rounds.begin_or_pass()
    _bend(cores, core, one, result)


@dataclass(frozen=True)
class _Rounds:
    """The rounds of a product on the cores of one kind; `rest` is multiplied by the weights, `result` is
    stored in fp16."""

    cores: Cores
    core: CoreClass
    kind: ColumnKind
    one: Pass
    rest: Buffer
    result: Buffer

    @property
    def _own(self) -> Operand:
        return self.cores.y.dsd(0, self.cores.layout.held)

    def _behind(self) -> Operand:
        return fabric_in(COLORS.sums[1 - self.kind.parity])

    def alone(self) -> None:
        """Write a lane of one column."""
        with self.core.loop(self.one.rounds):
            _multiply(self.cores, self.core, self.one, self.rest)
            self._keep(self._own)

    def begin_or_pass(self) -> None:
        """Write all columns but the last: sums go east; a microthread receives the results that come back."""
        lay, core, most = self.cores.layout, self.core, self.one.owned
        at_end = int(self.kind.is_first)  # of its results: nothing remains except to wait for it

        def taken(col: int) -> int:
            return max(0, len(self.one.rounds_of(col)) - at_end)

        core.mov(
            self.cores.raw.dsd(0, most * lay.held), fabric_in(COLORS.back),
            length=self.cores.per_column(lambda col: taken(col) * lay.held), thread=TAKER, priority="medium", start="none",
        )  # fmt: skip
        east = fabric_out(COLORS.sums[self.kind.parity])
        with core.loop(self.one.rounds):
            _multiply(self.cores, core, self.one, self.rest)
            if self.kind.is_first:
                core.mov(east, self._own, start="none")
            else:
                core.add(east, self._own, self._behind(), start="none")
        core.join(TAKER)
        with core.loop(self.cores.per_column(taken)):
            self._keep(self.cores.raw.dsd(0, lay.held, step=lay.held))
        if at_end:
            self._keep(fabric_in(COLORS.back), taken(0))

    def end(self) -> None:
        """Write the last column: results go to their owners, the nearest first."""
        lay, core, one = self.cores.layout, self.core, self.one
        own, shortest = len(one.rounds_of(lay.cols - 1)), len(one.rounds_of(one.owners - 1))
        others = min(one.owners, lay.cols - 1)
        with core.loop(shortest):
            if own:
                _multiply(self.cores, core, one, self.rest)
                core.add(
                    self.cores.raw.dsd(0, lay.held, step=lay.held), self._own, self._behind(), start="none"
                )
            self._turn(others)
        with core.loop(one.owned - shortest):
            self._turn(others if own else others - 1)
        with core.loop(own):
            self._keep(self.cores.raw.dsd(0, lay.held, step=lay.held))

    def _turn(self, owners: int) -> None:
        """Send a result to each of `owners` owners; its last word switches the router there to forward the
        results of the others."""
        with self.core.loop(self.cores.layout.cols - 1 - owners):  # columns without a result
            self.core.control(COLORS.back, Command.ADVANCE, start="none")
        with self.core.loop(owners):
            self._send_round()
        self.core.control(COLORS.back, Command.RESET, start="none")

    def _send_round(self) -> None:
        _multiply(self.cores, self.core, self.one, self.rest)
        self.core.add(fabric_out(COLORS.back, "path"), self._own, self._behind(), start="none")

    def _keep(self, source: Operand, first: int = 0) -> None:
        """Add the bias to a sum and store the result, at number `first` plus the loop counter."""
        lay = self.cores.layout
        kept = self.result.dsd(first * lay.apart, lay.held, step=lay.apart)
        if self.one.kind == "forward" and self.one.layer.bias:
            bias = self.cores.bias.dsd(first * BIAS_APART, lay.held, stride=0, step=BIAS_APART)
            self.core.add(kept, source, bias, start="none")
        else:
            self.core.mov(kept, source, start="none")


def _multiply(cores: Cores, core: CoreClass, one: Pass, rest: Buffer) -> None:
    """Multiply; every word triggers the products of two features."""
    held, apart = cores.layout.held, cores.layout.apart
    meets = Meets(cores.y.dsd(0, held), lambda i: rest.dsd(i * apart, held), held, apart)
    meets.write(core, COLORS.weights, 0, one.rest)


@dataclass(frozen=True)
class Meets:
    """Multiply-accumulate on arriving elements: element i with the vector `vector(i)` of length `inner`,
    `apart` from the next."""

    sums: Operand
    vector: Callable[[int], Operand]
    inner: int
    apart: int

    def write(self, core: CoreClass, color: int, first: int, end: int) -> None:
        """Receive elements `first` to `end`, two per word; the very first one overwrites the sums.

        A last word with one element has a separate instruction that takes the time of one element.
        """
        pairs = first + PAIR * ((end - first) // PAIR)
        for start, stop, wire in ((first, pairs, "fp16x2"), (pairs, end, "fp16")):
            if stop > start:
                core.fmac_vectors(
                    self.sums, fabric_in(color), self.vector(start), self.inner,
                    b_stride=self.apart, length=stop - start, dtype="mixed", wire=wire, start="none",
                    triggered=True, fresh=start == 0,
                )  # fmt: skip


def _bend(cores: Cores, core: CoreClass, one: Pass, result: Buffer) -> None:
    """Forward: apply the activation to all results of a core; backward: multiply by the derivative of the
    layer before."""
    lay, function = cores.layout, one.layer.function
    if one.kind == "inputs":
        _times_slope(cores, core, one.layer.number - 1, result)
    elif function == "relu":
        values = result.dsd(0, one.owned * lay.apart)
        core.max(values, values, scalar(0.0), dtype="fp16")
    elif function:
        period = round(1000 * cores.wafer.special_element_cycles)
        size, apart, times = cores.bent_at_once(one.layer)
        tokens = result.dsd(0, size, step=apart)
        with core.loop(times):
            if lay.is_training:
                slopes = cores.slopes[one.layer.number].dsd(0, size, step=apart)
                made = Slopes(function, cores.wafer)
                made.emit(core, tokens, slopes, cores.scratch_of(made, size), period=period)
            else:
                core.map(Fn[function.upper()], tokens, tokens, dtype="fp16", period=period)


def _times_slope(cores: Cores, core: CoreClass, number: int, gradients: Buffer) -> None:
    """Convert gradients of a layer's outputs to gradients of its sums."""
    layer = cores.layout.layers[number]
    values = gradients.dsd(0, layer.outputs * cores.layout.apart)
    if layer.function == "relu":
        slope, outputs = (buffer.dsd(0, values.length) for buffer in (cores.slope, cores.x[number + 1]))
        core.map(Fn.STEP, slope, outputs, dtype="fp16", period=round(1000 / cores.wafer.max_fp16_per_cycle))
        core.mul(values, values, slope, dtype="fp16")
    elif layer.function:
        core.mul(values, values, cores.slopes[number].dsd(0, values.length), dtype="fp16")


def write_loss(cores: Cores, core: CoreClass, one: Pass) -> None:
    """Write the gradient of half the squared error: (outputs - labels) times the derivative of the last
    layer's activation.

    It is zero for padding tokens.
    """
    lay = cores.layout
    count = one.owned * lay.apart
    gradient = cores.g[-1].dsd(0, count)
    core.sub(gradient, cores.x[-1].dsd(0, count), cores.wanted.dsd(0, count), dtype="fp16")
    if lay.held * lay.area.rows * lay.lanes > lay.tokens:
        core.mul(gradient, gradient, cores.real.dsd(0, count), dtype="fp16")
    _times_slope(cores, core, one.layer.number, cores.g[-1])


def route_sums(cores: Cores) -> None:
    """Route sums from neighbour to neighbour in every lane, and results from its last column back to their owners."""
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
            if col == last:
                b.route(COLORS.back, at, rx="R", tx="W", switch=Switch((), pop="never"))
            else:  # takes its own results, then lets those of the next owner pass
                passes = Switch([{"tx": "W"}], pop="never") if col else None
                b.route(COLORS.back, at, rx="E", tx="R", switch=passes)
