"""Cores of a trainable product, token by token: rows with inputs, and the last row, which finishes outputs
and receives gradients.

Symbols: T tokens of a sample, d samples in flight; x the k inputs of a core for a token, W its (k, v)
weights, y its part of the outputs; g gradients of the outputs; p tokens of a group, w products per cycle, o the
start of an instruction, l that of one whose descriptors only advance::

    row i        forward   y = x W + y of the row above (b in the first row)          sent down
                 backward  T times  p = W g + p of the core east, sent west;  dW += x g
                 update    W' -= r / B dW in fp32, W = W' in fp16;  b' -= r / B db in the first row
    last row     forward   y, ReLU of y or y + a residual, as the sums arrive; the columns send in sequence, token by token
                 backward  groups of p tokens: g = g * act' as they arrive; each goes up its column twice; db += g

Other activations, and ReLU after a residual, are separate kernels (:mod:`wse_sim.whole.separate_work`).
While one token leaves the last row, the sums of the next one arrive; while a group goes up, the
gradients of the next one are multiplied. No word waits for one of a later sample.

A link carries the input gradients of some tokens while the cores work on the next ones: of as many as the sums need to
pass all columns (:func:`~wse_sim.kernels.blocks.trained_rows.tokens_together`). If all tokens of a sample
went through one product first and then through the other (:mod:`.pixels`), this link would be idle half of
the time and the bottleneck in the other half. The input gradient goes first: it does not need the inputs,
which arrive when those of the token before have left (a layer 128-32 of 8 tokens on 12 x 8 cores: 560 cycles
per sample backward, 720 in the other order). Cycles per sample, with m maxima of sums per cycle::

    row          T (k ceil(v / w) + v)  +  T (v / 2 + k ceil(v / w) + v ceil(k / w) + k)
    last row     T (v / m + v / 2) + T v / 2 (1 + times sent up) + T v / 2 of a residual [+ T v / 2 of its gradient]
                 + T / p (l + p v) for the derivative of ReLU + T / p (l + p v / 2) for the bias
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cached_property

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.kernels.blocks.trained_rows import tokens_together
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import Floats
from wse_sim.whole.regions.shared_color import advance_of, place_kinds, route_senders
from wse_sim.whole.regions.turns import Item, in_pairs
from wse_sim.whole.trained.contract import Batch, TrainedPorts
from wse_sim.whole.trained.last_row import BANK_WORDS, LastRow

DOWN, WEST = 1, 2  # microthreads of the rows
OWN_COLORS = 6
FEED_QUEUE = 0  # input queue of the words that trigger products


class Products(LastRow):
    """The compute cores of one layer."""

    @cached_property
    def together(self) -> int:
        """Tokens whose input gradients run west together, a divisor of the tokens of a sample."""
        if not self.has_dx:
            return 1
        return int(tokens_together(self.tokens, max(self.inputs), self.outputs, self.cols, self.wafer))

    # ---- program ---------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write buffers, core classes and routes of all compute cores."""
        self.feed, *sums, cast, east, west = ports.own
        self._color((sums[0], sums[1]), cast)
        self.along = (east, west)
        for color, queue in zip(ports.own, (FEED_QUEUE, 2, 3, 1, 4, 5), strict=True):
            b.input_queue(color, queue)
        self._declare(b, batch)
        kinds = {
            (self.top + i, self.left + col): (i, col % 2, col == self.cols - 1)
            for i in range(len(self.inputs))
            for col in range(self.cols)
        }
        place_kinds(b, kinds, f"{self.name} rows", lambda core, kind: self._row(core, batch, *kind))
        ends: dict[Cell, tuple[tuple[int, int | None], int, str | None]] = {}
        for bundle, (group, (color, towards)) in enumerate(zip(self.groups, ports.results, strict=True)):
            colors = color, self.beside[bundle] if self.beside else None
            for col in group:
                ends[self.senders[col]] = colors, self.sent(col), advance_of(col - group.start, len(group))
            route_senders(b, color, self.senders[group.start : group.stop], towards)
        place_kinds(b, ends, f"{self.name} last row", lambda core, kind: self._last(core, batch, *kind))
        self._route(b)

    def _declare(self, b: Builder, batch: Batch) -> None:
        rows, most, v = (slice(self.top, self.last), self.columns), max(self.inputs), self.outputs
        self.y_ring, self.p_ring = (
            BANK_WORDS * ceil_div(each, BANK_WORDS) for each in (v, self.together * most)
        )

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
        self._declare_last(b, batch)
        if self.has_bias:
            first = (self.top, self.columns)
            self.db, self.bias = over("db", v, "fp32", 0, first), over("bias", v, "fp32", 2, first)

    # ---- rows with inputs ------------------------------------------------------------------------------------------

    def _row(self, core: CoreClass, batch: Batch, row: int, parity: int, is_final: bool) -> None:
        def sums(turn: int, _first: int, _step: int) -> None:
            self._sums(core, row, turn)

        def west(turn: int) -> None:
            self._send_west(core, row, parity, turn, is_final=is_final)

        with core.loop(batch.rounds):
            in_pairs(core, batch.in_flight * self.tokens, sums)
            core.join(DOWN)
            self._back(core, row, west, batch.in_flight)
        core.fmac(self.master.dsd(), self.master.dsd(), self.dw.dsd(), scalar(batch.factor))
        core.mov(self.x.dsd(), self.master.dsd())
        if self.has_bias:
            target = self.y.dsd(0, self.outputs) if row else self.db.dsd()
            core.mov(target, fabric_in(self.cast), start="none")
            if not row:
                core.fmac(self.bias.dsd(), self.bias.dsd(), self.db.dsd(), scalar(batch.factor))

    def _back(self, core: CoreClass, row: int, west: Callable[[int], None], d: int) -> None:
        """Write the backward pass of d samples, token by token."""
        in_pairs(core, d * self.tokens // self.together, self._tokens(core, row, west))

    def _tokens(self, core: CoreClass, row: int, west: Callable[[int], None]) -> Item:
        """Return the work on the gradients of tokens whose input gradients run west together."""

        def tokens(turn: int, _first: int, _step: int) -> None:
            with core.loop(self.together - 1):
                if self.has_dx:
                    self._input_gradient(core, row, turn, each=self.inputs[row])
                self._weight_gradient(core, row)
            if self.has_dx:
                self._input_gradient(core, row, turn, self.together - 1)
                west(turn)
            self._weight_gradient(core, row)

        return tokens

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
        """Receive the gradients of a column; the inputs arrive again and trigger the products."""
        v = self.outputs
        core.mov(self.g.dsd(), fabric_in(self.cast), dtype="fp16", start="none")
        core.fmac_vectors(
            self.dw.dsd(0, v), fabric_in(self.feed), self.g.dsd(), v,
            dst_stride=v, length=self.inputs[row], dtype="mixed", wire="fp16x2", start="none", triggered=True,
        )  # fmt: skip

    def _input_gradient(self, core: CoreClass, row: int, turn: int, number: int = 0, each: int = 0) -> None:
        """Receive the gradients again, which trigger the products, for a token by its `number` among those that run west
        together; the innermost loop advances `each` elements."""
        v, k = self.outputs, self.inputs[row]
        core.fmac_vectors(
            self.p.dsd(turn * self.p_ring + number * k, k, step=each), fabric_in(self.cast), self.x.dsd(0, k, stride=v), k,
            b_stride=1, length=v, dtype="mixed", wire="fp16x2", start="none", triggered=True, fresh=True,
        )  # fmt: skip

    def _send_west(self, core: CoreClass, row: int, parity: int, turn: int, *, is_final: bool) -> None:
        """Add the input gradients of some tokens to those of the core east, and send the sums west."""
        own = self.p.dsd(turn * self.p_ring, self.together * self.inputs[row])
        here, behind = self.along[parity], self.along[1 - parity]
        core.join(WEST)
        if is_final:
            core.mov(fabric_out(here), own, start="none", thread=WEST, priority="high")
        else:
            core.add(fabric_out(here), own, fabric_in(behind), start="none", thread=WEST, priority="high")

    # ---- routes ----------------------------------------------------------------------------------------------------

    def _route(self, b: Builder) -> None:
        """Route sums down the columns, gradients up the columns, and input gradients west to the column next
        to the region."""
        cols, count = self.columns, len(self.inputs)
        for i in range(count):
            row = self.top + i
            b.route(self.sums[i % 2], (row, cols), rx="R", tx="S")
            b.route(self.sums[i % 2], (row + 1, cols), rx="N", tx="R")
            b.route(self.cast, (row, cols), rx="S", tx="R" + ("N" if i else ""))
            if not self.has_dx:
                continue
            self._route_out(b, row)
            for col in range(self.cols):
                b.route(self.along[col % 2], (row, self.left + col), rx="R", tx="W")
                if col < self.cols - 1:
                    b.route(self.along[(col + 1) % 2], (row, self.left + col), rx="E", tx="R")
        b.route(self.cast, (self.last, cols), rx="R", tx="N")

    def _route_out(self, b: Builder, row: int) -> None:
        """Route input gradients past the core that has the inputs of a row, to the one that sends them on."""
        b.route(self.along[0], (row, self.left - 1), rx="E", tx="W")
        b.route(self.along[0], (row, self.left - 2), rx="E", tx="R")

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weight: Floats, bias: Floats | None) -> dict[str, Floats]:
        """Return the buffers of a run from a weight (N, K), inputs in stream order, and a bias (N,)."""
        v, most, count = self.outputs, max(self.inputs), len(self.inputs)
        x = np.zeros((count, self.cols, most, v), np.float32)
        wide = np.zeros((self.cols * v, weight.shape[1]), np.float32)
        wide[self.places] = weight
        for i, part in enumerate(self._parts()):
            x[i, :, : self.inputs[i]] = wide[:, part].reshape(self.cols, v, -1).swapaxes(1, 2)
        tiles = x.reshape(count, self.cols, -1)
        out = {f"{self.name}.x": tiles, f"{self.name}.master": tiles}
        if bias is not None:
            each = np.zeros((1, self.cols, v), np.float32)
            each.reshape(-1)[self.places] = bias
            out[f"{self.name}.bias"] = each
            out[f"{self.name}.one"] = np.ones((1, self.cols, 1), np.float32)
        return out

    def _parts(self) -> list[slice]:
        ends = np.cumsum([0, *self.inputs]).tolist()
        return [slice(first, end) for first, end in itertools.pairwise(ends)]

    @property
    def learning(self) -> tuple[tuple[str, str], ...]:
        """Buffers with the gradient of the weight and the new weight, then the same of the bias."""
        pairs = (("dw", "master"), ("db", "bias"))[: 1 + self.has_bias]
        return tuple((f"{self.name}.{first}", f"{self.name}.{second}") for first, second in pairs)

    def weight_of(self, tiles: Floats) -> Floats:
        """Return the weight (N, K) from the tiles of all cores."""
        v = self.outputs
        x = tiles.reshape(len(self.inputs), self.cols, -1, v)
        wide = np.zeros((self.cols * v, sum(self.inputs)), np.float32)
        for i, part in enumerate(self._parts()):
            wide[:, part] = x[i, :, : self.inputs[i]].swapaxes(1, 2).reshape(self.cols * v, -1)
        return wide[self.places]

    def bias_of(self, held: Floats) -> Floats:
        """Return the bias (N,) from the first row."""
        return held.reshape(-1)[self.places]
