"""Cores of a product that trains, token by token: rows with inputs, and the last row, which finishes outputs and takes gradients.

Symbols: T tokens of a sample, d samples in flight; x the k inputs of a core for a token, W its (k, v) weights, y its part of the
outputs; g gradients of the outputs, w products a cycle, o the start of an instruction::

    row i        forward   y = x W + y of the row above (b in the first row)          sent down
                 backward  dW += x g, all tokens of a sample
                           p = W g + p of the core east, all tokens                   sent west
                 update    W' -= r / B dW in fp32, W = W' in fp16;  b' -= r / B db in the first row
    last row     forward   act(y) as the sums arrive; the columns send in turn, token by token
                 backward  g = g * act', some tokens at a time; then sent up, all tokens twice; db += g

A residual meets the sums as they arrive, before or in place of ReLU.  What else there is to be done (another activation, or one
that follows on a residual), and the slope of it, is done for all tokens of a sample at once; their gradients meet this slope
as they arrive.  While one token (or sample) leaves the last row, the sums of the next one arrive.  While a sample goes up a
second time, slopes meet the next one.  No word waits for one of a later sample.  Cycles of a sample, with m maxima of sums
a cycle and o the start of an instruction::

    row          T (k ceil(v / w) + v)  +  T (v / 2 + k ceil(v / w) + v ceil(k / w) + k)
    last row     T (v / m + v / 2) + T v / 2 of a residual
                 + T v / 2 (1 + times sent up) + slope of every part + o + T v / 2 for the bias
                 [+ T v / 2 for the gradient of a residual before an activation]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Issue, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.slopes import Slopes
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.regions.contract import PAIR, Floats
from wse_sim.whole.regions.turns import advance_of, receive_all, route_senders
from wse_sim.whole.trained.contract import Batch, TrainedPorts

# Microthreads of the last row: sums or gradients arrive, gradients go up, outputs leave, a residual arrives.
TAKE, CAST, SEND, ADDED = 1, 2, 3, 4
DOWN, WEST = 1, 2  # microthreads of the others
MOST_PARTS, LEAST_PART = (
    7,
    64,
)  # of a sample in the last row, and elements of one: starts of instructions cost as much
VECTOR = 4  # fp16 elements
BANK_WORDS = 4  # fp32 words over all banks of a core
OWN_COLORS = 6
FEED_QUEUE = 0  # input queue of the words that trigger products


@dataclass
class Products:
    """The compute cores of one layer.

    Attributes
    ----------
    name : str
        Of the region.
    top, left, cols : int
        Fabric row and column of the first core, columns.
    inputs : Sequence[int]
        Inputs of every row but the last, which has none; even numbers.
    outputs, features : int
        Outputs of a column, and of all.
    tokens : int
        Of a sample.
    items : tuple[str, ...]
        Work on the outputs: bias, then an activation, a residual or both.
    has_dx : bool
        Whether gradients of the inputs are asked for.
    beside : int | None
        Color on which the last row sends the gradient of a residual that lies before an activation.
    inputs_first : bool
        Backward, whether the gradient of the inputs of a sample comes before that of the weights.
    """

    name: str
    wafer: Wafer
    top: int
    left: int
    cols: int
    inputs: Sequence[int]
    outputs: int
    features: int
    tokens: int
    items: tuple[str, ...]
    has_dx: bool
    beside: int | None = None
    inputs_first: bool = False

    @property
    def has_bias(self) -> bool:
        """Whether a bias is added, in the first row."""
        return "bias" in self.items

    @property
    def has_residual(self) -> bool:
        """Whether a tensor is added."""
        return "residual" in self.items

    @property
    def arriving(self) -> str | None:
        """The item that sums meet as they arrive."""
        rest = self.items[self.has_bias :]
        return rest[0] if rest and rest[0] in ("relu", "residual") else None

    @property
    def finishing(self) -> tuple[str, ...]:
        """Items on all tokens of a sample at once."""
        return self.items[self.has_bias + (self.arriving is not None) :]

    @property
    def activation(self) -> str | None:
        """The item that has a slope."""
        return next((item for item in self.items if item not in ("bias", "residual")), None)

    @property
    def slopes(self) -> Slopes | None:
        """The slope that is kept of all samples in flight; that of ReLU alone is taken from the outputs."""
        wanted = self.activation is not None and self.finishing
        return Slopes(self.activation, self.wafer) if wanted and self.activation else None

    @property
    def last(self) -> int:
        """Fabric row of the last row."""
        return self.top + len(self.inputs)

    @property
    def columns(self) -> slice:
        """Fabric columns."""
        return slice(self.left, self.left + self.cols)

    @property
    def senders(self) -> tuple[tuple[int, int], ...]:
        """The last row from the west, where gradients come from as well: the first features lie there."""
        return tuple((self.last, self.left + col) for col in range(self.cols))

    def sent(self, col: int) -> int:
        """Features of a column."""
        return min(self.outputs, self.features - col * self.outputs)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Buffers, classes and routes of all compute cores."""
        self.feed, *sums, self.cast, east, west = ports.own
        self.sums, self.along = (sums[0], sums[1]), (east, west)
        for color, queue in zip(ports.own, (FEED_QUEUE, 2, 3, 1, 4, 5), strict=True):
            b.input_queue(color, queue)
        self._declare(b, batch)
        for i in range(len(self.inputs)):
            kinds: dict[tuple[bool, int], list[int]] = {}
            for col in range(self.cols):
                kinds.setdefault((col == self.cols - 1, col % 2), []).append(col)
            for (is_final, parity), members in kinds.items():
                core = b.core_class(f"{self.name} row {i} columns {members[0]} to {members[-1]}")
                self._row(core, i, parity, batch, is_final=is_final)
                for col in members:
                    b.place(core, (self.top + i, self.left + col))
        ends: dict[tuple[int, str | None], list[int]] = {}
        for col in range(self.cols):
            ends.setdefault((self.sent(col), advance_of(col, self.cols)), []).append(col)
        for (sent, advance), members in ends.items():
            core = b.core_class(f"{self.name} last row columns {members[0]} to {members[-1]}")
            self._last(core, ports.outward, sent, advance, batch)
            for col in members:
                b.place(core, (self.last, self.left + col))
        route_senders(b, ports.outward, self.senders, ports.towards)
        self._route(b)

    @property
    def deal(self) -> int:
        """Color of the gradients along the last row: none of its cores sends sums on it."""
        return self.sums[len(self.inputs) % 2]

    def _declare(self, b: Builder, batch: Batch) -> None:
        rows, end = (slice(self.top, self.last), self.columns), (self.last, self.columns)
        most, v, size = max(self.inputs), self.outputs, self.tokens * self.outputs
        self.y_ring, self.p_ring = (BANK_WORDS * ceil_div(each, BANK_WORDS) for each in (v, most))

        def over(name: str, length: int, dtype: str, bank: int, where: tuple[slice | int, slice]) -> Buffer:
            return b.buffer(f"{self.name}.{name}", length, dtype, where, bank=bank)

        self.y, self.p = (
            over("y", 2 * self.y_ring, "fp32", 0, rows),
            over("p", 2 * self.p_ring, "fp32", 0, rows),
        )
        self.dw, self.master = (
            over("dw", most * v, "fp32", 0, rows),
            over("master", most * v, "fp32", 2, rows),
        )
        self.x, self.g = over("x", most * v, "fp16", 2, rows), over("g", v, "fp16", 2, rows)
        self.pitch = BANK_WORDS * ceil_div(size, BANK_WORDS)  # of what is read beside other vectors
        held = batch.in_flight * self.pitch
        if not self.keeps_outputs:
            self.outs = [over(f"out{i}", self.outs_size, "fp16", 0, end) for i in (0, 1)]
        else:
            self.out = over("out", batch.in_flight * size, "fp16", 0, end)
        self.taken = [over(f"taken{i}", size, "fp16", 0, end) for i in (0, 1)]
        if self.slopes is not None:
            self.slope = over("slope", held, "fp16", 2, end)
            banks = enumerate(self.slopes.scratch)
            self.scratch = [over(f"scratch{i}", size, "fp32", bank, end) for i, bank in banks]
        elif self.activation:
            self.slope = over("slope", size // self.parts, "fp16", 2, end)
        if self.has_residual:
            self.added = over("added", held, "fp16", 2, end)
        if self.has_bias:
            first = (self.top, self.columns)
            self.one, self.sum = over("one", 1, "fp16", 2, end), over("sum", v, "fp32", 0, end)
            self.sums_of_tokens = over("sums of tokens", self.tokens_summed * v, "fp32", 2, end)
            self.db, self.bias = over("db", v, "fp32", 0, first), over("bias", v, "fp32", 2, first)

    @property
    def keeps_outputs(self) -> bool:
        """Whether the outputs of all samples in flight are held, for the slope of ReLU."""
        return not self.finishing

    @property
    def outs_size(self) -> int:
        """Elements of each of two buffers of outputs on their way out, where they are not held."""
        return self.tokens * self.outputs

    @property
    def tokens_at_once(self) -> int:
        """Tokens whose gradients of the bias are added at once."""
        return self.tokens

    @property
    def tokens_summed(self) -> int:
        """Tokens over which the gradient of the bias is added up at the end of a batch."""
        return self.tokens_at_once

    # ---- rows with inputs ------------------------------------------------------------------------------------------

    def _row(self, core: CoreClass, row: int, parity: int, batch: Batch, *, is_final: bool) -> None:
        def sums(turn: int) -> None:
            self._sums(core, row, turn)

        def west(turn: int) -> None:
            self._input_gradient(core, row, parity, turn, is_final=is_final)

        with core.loop(batch.rounds):
            self._forth(core, row, sums, batch.in_flight)
            self._back(core, row, west, batch.in_flight)
        core.fmac(self.master.dsd(), self.master.dsd(), self.dw.dsd(), scalar(batch.factor))
        core.mov(self.x.dsd(), self.master.dsd())
        if self.has_bias:
            target = self.y.dsd(0, self.outputs) if row else self.db.dsd()
            core.mov(target, fabric_in(self.cast), start="none")
            if not row:
                core.fmac(self.bias.dsd(), self.bias.dsd(), self.db.dsd(), scalar(batch.factor))

    def _forth(self, core: CoreClass, row: int, sums: Callable[[int], None], d: int) -> None:
        """Forward of d samples."""
        alternate(core, d * self.tokens, sums)
        core.join(DOWN)

    def _back(self, core: CoreClass, row: int, west: Callable[[int], None], d: int) -> None:
        """Backward of d samples: all tokens meet the weight gradient, then the gradient of the inputs, or the other way round."""
        with core.loop(d):
            if self.has_dx and self.inputs_first:
                core.join(WEST)
                alternate(core, self.tokens, west)
            with core.loop(self.tokens):
                self._weight_gradient(core, row)
            if self.has_dx and not self.inputs_first:
                core.join(WEST)
                alternate(core, self.tokens, west)

    def _sums(self, core: CoreClass, row: int, turn: int) -> None:
        v, here, above = self.outputs, self.sums[row % 2], self.sums[(row + 1) % 2]
        y = self.y.dsd(turn * self.y_ring, v)
        core.fmac_vectors(
            y, fabric_in(self.feed), self.x.dsd(0, v), v,
            b_stride=v, length=self.inputs[row], dtype="mixed", wire="fp16x2", start="none",
            triggered=True, fresh=True,
        )  # fmt: skip
        core.join(DOWN)
        if row:
            core.add(fabric_out(here), y, fabric_in(above), start="none", thread=DOWN, priority="high")
        elif self.has_bias:
            core.add(fabric_out(here), y, self.bias.dsd(), start="none", thread=DOWN, priority="high")
        else:
            core.mov(fabric_out(here), y, start="none", thread=DOWN, priority="high")

    def _weight_gradient(self, core: CoreClass, row: int) -> None:
        """Takes the gradients of a column; the inputs come again and trigger the products."""
        v = self.outputs
        core.mov(self.g.dsd(), fabric_in(self.cast), dtype="fp16", start="none")
        core.fmac_vectors(
            self.dw.dsd(0, v), fabric_in(self.feed), self.g.dsd(), v,
            dst_stride=v, length=self.inputs[row], dtype="mixed", wire="fp16x2", start="none", triggered=True,
        )  # fmt: skip

    def _input_gradient(self, core: CoreClass, row: int, parity: int, turn: int, *, is_final: bool) -> None:
        """The gradients come again and trigger the products; the sums run west."""
        v, k = self.outputs, self.inputs[row]
        own = self.p.dsd(turn * self.p_ring, k)
        core.fmac_vectors(
            own, fabric_in(self.cast), self.x.dsd(0, k, stride=v), k,
            b_stride=1, length=v, dtype="mixed", wire="fp16x2", start="none", triggered=True, fresh=True,
        )  # fmt: skip
        here, behind = self.along[parity], self.along[1 - parity]
        core.join(WEST)
        if is_final:
            core.mov(fabric_out(here), own, start="none", thread=WEST, priority="high")
        else:
            core.add(fabric_out(here), own, fabric_in(behind), start="none", thread=WEST, priority="high")

    # ---- the last row ----------------------------------------------------------------------------------------------

    def _last(self, core: CoreClass, out: int, sent: int, advance: str | None, batch: Batch) -> None:
        leaving = Leaving(core, sent, advance, self.outputs)
        with core.loop(batch.rounds):
            if self.finishing:
                self._all_samples(core, out, leaving, batch.in_flight)
            else:
                self._all_tokens(core, out, leaving, batch.in_flight)
            self._all_gradients(core, leaving, batch.in_flight)
        if self.has_bias:
            core.fmac_vectors(
                self.sum.dsd(), self.one.dsd(0, self.tokens_summed, stride=0),
                self.sums_of_tokens.dsd(0, self.outputs), self.outputs,
                b_stride=self.outputs, length=self.tokens_summed,
            )  # fmt: skip
            core.mov(fabric_out(self.cast), self.sum.dsd(), start="none")

    def _arrive(self, core: CoreClass, result: Operand, added: Operand | None, thread: int = 0) -> None:
        """Sums from the row above meet the first item."""
        above = fabric_in(self.sums[(len(self.inputs) + 1) % 2])
        how = Issue(start="none", thread=thread, priority="high")
        if self.arriving == "relu":
            core.max(result, above, scalar(0.0), **how)
        elif added is not None:
            core.add(result, above, added, **how)
        else:
            core.mov(result, above, **how)

    def _expect(self, core: CoreClass, slot: int, step: int) -> None:
        """The residual of a sample arrives beside the work on the one before."""
        if self.has_residual:
            receive_all(core, self.deal, self._slot(self.added, slot, step), ADDED)

    def _slot(self, held: Buffer, slot: int, step: int) -> Operand:
        """The elements of one sample; the loop over samples counts slots on by `step`."""
        return held.dsd(slot * self.pitch, self.tokens * self.outputs, step=step * self.pitch)

    def _all_tokens(self, core: CoreClass, out: int, leaving: Leaving, d: int) -> None:
        """Forward of d samples: the sums of a token arrive; they leave beside those of the next one."""
        v, size = self.outputs, self.tokens * self.outputs

        def sample(first: int, step: int, *, more: bool) -> None:
            if self.has_residual:
                core.join(ADDED)
                if more:
                    self._expect(core, first + 1, step)
            with core.loop(self.tokens):
                result = self.out.dsd(first * size, v, step=v, outer_step=step * size)
                added = None
                if self.has_residual:
                    added = self.added.dsd(first * self.pitch, v, step=v, outer_step=step * self.pitch)
                self._arrive(core, result, added)
                leaving.token(out, self.out, first * size, step * size)

        self._expect(core, 0, 0)
        if not self.has_residual:
            with core.loop(d):
                sample(0, 1, more=False)
        else:
            if d > 1:
                with core.loop(d - 1):
                    sample(0, 1, more=True)
            sample(d - 1, 0, more=False)
        core.join(SEND)

    def _all_samples(self, core: CoreClass, out: int, leaving: Leaving, d: int) -> None:
        """Forward of d samples: while one is finished and leaves, the sums of the next arrive.

        Where a residual is added they arrive once it has left: no sample waits for what comes with the next one.
        """

        def arrive(turn: int, slot: int, step: int) -> None:
            core.join(ADDED)
            added = self._slot(self.added, slot, step) if self.arriving == "residual" else None
            self._arrive(core, self.outs[turn].dsd(), added, TAKE)

        def finish(turn: int, slot: int, step: int) -> None:
            value = self.outs[turn].dsd()
            if self.slopes is not None and self.activation == self.arriving:
                self._emit_slope(core, value, slot, step, is_done=True)
            for item in self.finishing:
                if item == "residual":
                    core.add(value, value, self._slot(self.added, slot, step), dtype="fp16")
                else:
                    self._emit_slope(core, value, slot, step, is_done=False)

        def sample(turn: int, slot: int, step: int, *, more: bool = True) -> None:
            if more:
                self._expect(core, slot + 1, step)
            core.join(TAKE)
            if more and not self.has_residual:
                arrive(1 - turn, slot + 1, step)
            finish(turn, slot, step)
            with core.loop(self.tokens):
                leaving.token(out, self.outs[turn], 0, 0)
            if more and self.has_residual:
                arrive(1 - turn, slot + 1, step)
            core.join(SEND)

        self._expect(core, 0, 0)
        arrive(0, 0, 0)
        in_pairs(core, d - 1, sample)
        sample((d - 1) % 2, d - 1, 0, more=False)

    def _emit_slope(self, core: CoreClass, value: Operand, slot: int, step: int, *, is_done: bool) -> None:
        if self.slopes is not None:
            slope = self._slot(self.slope, slot, step)
            scratch = [part.dsd() for part in self.scratch]
            self.slopes.emit(core, value, slope, scratch, is_done=is_done)

    def _all_gradients(self, core: CoreClass, leaving: Leaving, d: int) -> None:
        """Backward of d samples, part by part: while one goes up, the next arrives."""
        parts, size = self.parts, self.tokens * self.outputs
        part = size // parts

        def arrive(turn: int, i: int, slot: int, step: int) -> None:
            target, first = self.taken[turn].dsd(i * part, part), slot * self.pitch + i * part
            if self.slopes is None:
                receive_all(core, self.deal, target, TAKE)
            else:
                slope = self.slope.dsd(first, part, step=step * self.pitch)
                core.mul(
                    target,
                    fabric_in(self.deal),
                    slope,
                    dtype="fp16",
                    start="none",
                    thread=TAKE,
                    priority="high",
                )

        def rise(turn: int, first: int, count: int) -> None:
            source, up = self.taken[turn].dsd(first, count), fabric_out(self.cast)
            core.mov(up, source, dtype="fp16", start="none", thread=CAST, priority="high")

        def sample(turn: int, slot: int, step: int, *, more: bool = True) -> None:
            for i in range(parts):
                core.join(TAKE)
                if i < parts - 1:
                    arrive(turn, i + 1, slot, step)
                elif parts > 1 and more:
                    arrive(1 - turn, 0, slot + 1, step)
                if self.activation and self.slopes is None:
                    self._meet_slope(core, self.taken[turn], i * part, slot * size + i * part, step * size)
                if self.beside is not None:
                    with core.loop(self.tokens // parts):
                        leaving.token(self.beside, self.taken[turn], i * part, 0)
                rise(turn, i * part, part)  # when all before is through: its place is free
                if parts == 1 and more:
                    arrive(1 - turn, 0, slot + 1, step)
            if self.has_dx:
                rise(turn, 0, size)
            if self.has_bias:
                total = self.sums_of_tokens.dsd()
                core.add(total, total, self.taken[turn].dsd(), dtype="mixed")
            core.join(SEND)

        arrive(0, 0, 0, 0)
        in_pairs(core, d - 1, sample)
        sample((d - 1) % 2, d - 1, 0, more=False)
        core.join(CAST)

    @property
    def parts(self) -> int:
        """Of the tokens of a sample whose gradients meet their slope at once."""
        size = self.tokens * self.outputs
        # Each begins at a whole SIMD vector.
        found = [n for n in range(1, MOST_PARTS + 1) if self.tokens % n == 0 and size // n % VECTOR == 0]
        return max((n for n in found if size // n >= LEAST_PART), default=1)

    def _meet_slope(self, core: CoreClass, taken: Buffer, first: int, result: int, step: int) -> None:
        """Gradients of a part of a sample times the slope of ReLU."""
        count = self.tokens // self.parts * self.outputs
        here, slope = taken.dsd(first, count), self.slope.dsd(0, count)
        period = round(1000 / self.wafer.max_fp16_per_cycle)
        core.map(Fn.STEP, slope, self.out.dsd(result, count, step=step), dtype="fp16", period=period)
        core.mul(here, here, slope, dtype="fp16")

    # ---- routes ----------------------------------------------------------------------------------------------------

    def _route(self, b: Builder) -> None:
        """Sums down the columns, gradients up them, sums of gradients west to the column beside."""
        cols, count = self.columns, len(self.inputs)
        for i in range(count):
            row = self.top + i
            b.route(self.sums[i % 2], (row, cols), rx="R", tx="S")
            b.route(self.sums[i % 2], (row + 1, cols), rx="N", tx="R")
            b.route(self.cast, (row, cols), rx="S", tx="R" + ("N" if i else ""))
            if not self.has_dx:
                continue
            b.route(self.along[0], (row, self.left - 1), rx="E", tx="R")
            for col in range(self.cols):
                b.route(self.along[col % 2], (row, self.left + col), rx="R", tx="W")
                if col < self.cols - 1:
                    b.route(self.along[(col + 1) % 2], (row, self.left + col), rx="E", tx="R")
        b.route(self.cast, (self.last, cols), rx="R", tx="N")

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weight: Floats, bias: Floats | None) -> dict[str, Floats]:
        """Buffers of a run from a weight (N, K), inputs in the order in which they come, and a bias (N,)."""
        v, most, count = self.outputs, max(self.inputs), len(self.inputs)
        x = np.zeros((count, self.cols, most, v), np.float32)
        wide = np.zeros((self.cols * v, weight.shape[1]), np.float32)
        wide[: self.features] = weight
        for i, part in enumerate(self._parts()):
            x[i, :, : self.inputs[i]] = wide[:, part].reshape(self.cols, v, -1).swapaxes(1, 2)
        tiles = x.reshape(count, self.cols, -1)
        out = {f"{self.name}.x": tiles, f"{self.name}.master": tiles}
        if bias is not None:
            each = np.zeros((1, self.cols, v), np.float32)
            each.reshape(-1)[: self.features] = bias
            out[f"{self.name}.bias"] = each
            out[f"{self.name}.one"] = np.ones((1, self.cols, 1), np.float32)
        return out

    def _parts(self) -> list[slice]:
        ends = np.cumsum([0, *self.inputs]).tolist()
        return [slice(first, end) for first, end in itertools.pairwise(ends)]

    def learned(
        self, buffers: Mapping[str, Floats], parameters: Sequence[str], shaped: Callable[[Floats], Floats]
    ) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Gradients and new weights by parameter; `shaped` makes of a weight by the order of inputs the parameter."""
        held = [buffers[name] for name in self.reads]
        out: tuple[dict[str, Floats], dict[str, Floats]] = ({}, {})
        for found, tiles in zip(out, held[:2], strict=True):
            found[parameters[0]] = shaped(self.weight_of(tiles))
        for found, bias in zip(out, held[2:], strict=False):
            found[parameters[1]] = self.bias_of(bias)
        return out

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers with the gradient of the weight and the new weight, and of the bias."""
        names = ("dw", "master", "db", "bias")[: 4 if self.has_bias else 2]
        return tuple(f"{self.name}.{name}" for name in names)

    def weight_of(self, tiles: Floats) -> Floats:
        """(N, K) from the tiles of all cores."""
        v = self.outputs
        x = tiles.reshape(len(self.inputs), self.cols, -1, v)
        wide = np.zeros((self.cols * v, sum(self.inputs)), np.float32)
        for i, part in enumerate(self._parts()):
            wide[:, part] = x[i, :, : self.inputs[i]].swapaxes(1, 2).reshape(self.cols * v, -1)
        return wide[: self.features]

    def bias_of(self, held: Floats) -> Floats:
        """(N,) from the first row."""
        return held.reshape(-1)[: self.features]

    def held_bytes(self, in_flight: int) -> float:
        """What a core of the last row holds of samples in flight."""
        each = 2.0 * self.tokens * self.outputs
        return in_flight * each * (self.keeps_outputs + (self.slopes is not None) + self.has_residual)

    def issued_cycles(self) -> float:
        """Of a sample, both ways, on the busiest core: as the module says."""
        return max(self._row_cycles(), self._last_cycles())

    def _row_cycles(self) -> float:
        return self._cycles_of(max(self.inputs))

    def _cycles_of(self, k: int) -> float:
        """Of a row of k inputs."""
        v, w = self.outputs, self.wafer.fma_mixed_per_cycle
        each = k * ceil_div(v, w) + v + v / PAIR + k * ceil_div(v, w)
        return float(self.tokens * (each + self.has_dx * (v * ceil_div(k, w) + k)))

    def _last_cycles(self) -> float:
        wafer, o = self.wafer, ceil(self.wafer.vector_start_cycles)
        size = self.tokens * self.outputs
        maxima = min(1.0, wafer.max_fp32_per_cycle) if self.arriving == "relu" else 1.0
        cycles = size / maxima + size / PAIR * (3 + self.has_dx)
        if self.has_residual:
            cycles += size / PAIR * (1 + (self.beside is not None))
            cycles += ("residual" in self.finishing) * (o + ceil(size / wafer.add_fp16_per_cycle))
        if self.slopes is not None:
            cycles += float(self.slopes.cycles(size, is_done=self.arriving == self.activation))
        elif self.activation:
            part = size / self.parts
            step, product = ceil(part / wafer.max_fp16_per_cycle), ceil(part / wafer.add_fp16_per_cycle)
            cycles += self.parts * (2 * o + step + product)
        if self.has_bias:
            cycles += o + ceil(size / wafer.fma_mixed_per_cycle)
        return float(cycles)

    def update_cycles(self) -> float:
        """Of the busiest core: in the first row if there is a bias, or in the last, which adds its gradient up over the tokens."""
        o, v, wafer = ceil(self.wafer.vector_start_cycles), self.outputs, self.wafer
        size = max(self.inputs) * v
        cycles = 2 * o + ceil(size / wafer.fma_fp32_per_cycle) + ceil(size / wafer.mov_fp32_per_cycle)
        if not self.has_bias:
            return float(cycles)
        each = wafer.map_element_cycles + wafer.map_vector_cycles + ceil_div(v, wafer.fma_fp32_per_cycle)
        return float(
            max(cycles + o + ceil(v / wafer.fma_fp32_per_cycle), o + ceil(self.tokens_summed * each)) + v
        )


@dataclass(frozen=True)
class Leaving:
    """How a column of the last row sends its share of a token: in turn with the others."""

    core: CoreClass
    sent: int
    advance: str | None
    outputs: int

    def token(self, out: int, held: Buffer, first: int, step: int) -> None:
        """The token that the innermost loop counts, of the sample that the loop around it counts on by `step`."""
        part = held.dsd(first, self.sent, step=self.outputs, outer_step=step)
        self.core.mov(
            fabric_out(out, self.advance), part, dtype="fp16", start="none", thread=SEND, priority="high"
        )


def alternate(core: CoreClass, count: int, one: Callable[[int], None]) -> None:
    """`count` turns on two buffers."""
    with core.loop(count // 2):
        one(0)
        one(1)
    if count % 2:
        one(0)


def in_pairs(core: CoreClass, count: int, sample: Callable[[int, int, int], None]) -> None:
    """`count` samples on two buffers in turn: sample(buffer, slot, slots that the loop around counts on)."""
    if count > 1:
        with core.loop(count // 2):
            sample(0, 0, 2)
            sample(1, 1, 2)
    if count % 2:
        sample(0, count - 1, 0)
