"""The last row of a trainable product: it finishes outputs and receives gradients.

Symbols as in :mod:`wse_sim.whole.trained.products`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Issue, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.regions.contract import IntArray
from wse_sim.whole.regions.shared_color import receive_all, send_all
from wse_sim.whole.regions.turns import with_next
from wse_sim.whole.trained.contract import Batch

# Microthreads: sums or gradients arrive, gradients go up, outputs leave, a residual arrives.
TAKE, CAST, SEND, ADDED = 1, 2, 3, 4
MANY = 1 << 20  # samples: more than any batch
FP16_BYTES, WORD_BYTES = 2, 4
BANK_WORDS = 4  # fp32 words over all banks of a core


@dataclass
class LastRow:
    """The sizes of one layer, and the program of its last row.

    Attributes
    ----------
    name : str
        Name of the region.
    top, left, cols : int
        Fabric row and column of the first core, number of columns.
    inputs : Sequence[int]
        Inputs of every row but the last, which has none; even numbers.
    outputs, features : int
        Most outputs of a column, and those of all columns.
    tokens : int
        Tokens of a sample.
    items : tuple[str, ...]
        Operations on the outputs: bias, then ReLU or a residual.
    has_dx : bool
        Whether gradients of the inputs are needed.
    beside : Sequence[int]
        Colors, one per bundle, on which the last row sends the gradient of a residual; empty if it does not.
    bundles : Sequence[int]
        Features of every bundle of the result, each on as few columns as it needs; by default, one has all.
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
    beside: Sequence[int] = ()
    bundles: Sequence[int] = ()

    @property
    def has_bias(self) -> bool:
        """Whether the first row adds a bias."""
        return "bias" in self.items

    @property
    def has_residual(self) -> bool:
        """Whether a tensor is added."""
        return "residual" in self.items

    @property
    def has_relu(self) -> bool:
        """Whether ReLU is applied, whose derivative is stored for all samples in flight."""
        return "relu" in self.items

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
        """The cells of the last row from the west, where the first features are and gradients arrive."""
        return tuple((self.last, self.left + col) for col in range(self.cols))

    @cached_property
    def groups(self) -> tuple[range, ...]:
        """The columns of every bundle of the result."""
        counts = [int(ceil_div(size, self.outputs)) for size in self.bundles or (self.features,)]
        ends = [0, *itertools.accumulate(counts)]
        return tuple(range(first, end) for first, end in itertools.pairwise(ends))

    def group_of(self, col: int) -> range:
        """Return the columns of the bundle of a column."""
        return next(group for group in self.groups if col in group)

    def sent(self, col: int) -> int:
        """Return the features of a column."""
        group = self.group_of(col)
        size = (self.bundles or (self.features,))[self.groups.index(group)]
        return min(self.outputs, size - (col - group.start) * self.outputs)

    @cached_property
    def places(self) -> IntArray:
        """Where the features are among the outputs of all columns: (features,)."""
        parts = [np.arange(self.sent(col)) + col * self.outputs for col in range(self.cols)]
        return np.concatenate(parts)

    @property
    def deal(self) -> int:
        """Color of the gradients along the last row; none of its cores sends sums on it."""
        return self.sums[len(self.inputs) % 2]

    group_elements: ClassVar[int] = 8
    """Least elements of a group of tokens: with fewer, instruction starts would cost more than the work."""

    @property
    def tokens_at_once(self) -> int:
        """Tokens of a group, a divisor of the tokens of a sample."""
        counts = (p for p in range(1, self.tokens) if self.tokens % p == 0)
        return next((p for p in counts if p * self.outputs >= self.group_elements), self.tokens)

    @property
    def _group(self) -> int:
        """Elements of a group."""
        return self.tokens_at_once * self.outputs

    @property
    def tokens_summed(self) -> int:
        """Tokens whose gradients wait in each of two buffers, and over which the bias gradient is summed at the end of a
        batch."""
        return self.tokens_at_once

    def last_row_buffers(self, in_flight: int) -> dict[str, tuple[int, str, int]]:
        """Return elements, type and bank of every buffer of a core of the last row, by name."""
        v = self.outputs
        found = {f"out{i}": (self._group, "fp16", 0) for i in (0, 1)}
        found |= {f"taken{i}": (self.tokens_summed * v, "fp16", 0) for i in (0, 1)}
        if self.has_relu:
            found["slope"] = in_flight * self.tokens * v, "fp16", 2
        if self.has_residual:
            found |= {f"added{i}": (self._group, "fp16", 2) for i in (0, 1)}
        if self.has_bias:
            found |= {"one": (1, "fp16", 2), "sum": (v, "fp32", 0)}
            found["sums of tokens"] = self.tokens_summed * v, "fp32", 2
        return found

    def last_row_bytes(self, in_flight: int) -> int:
        """Return the bytes of a core of the last row, with the gaps before buffers that start in their bank."""
        end = 0
        for length, dtype, bank in self.last_row_buffers(in_flight).values():
            end += -end % WORD_BYTES
            end += FP16_BYTES * ((bank - end // FP16_BYTES) % self.wafer.sram_banks)
            end += length * (FP16_BYTES if dtype == "fp16" else WORD_BYTES)
        return end

    def most_in_flight(self, limit_bytes: int) -> int:
        """Return the samples in flight whose derivatives fit on a core of the last row, at most :data:`MANY`; 0 if what it
        has besides does not fit."""
        each = self.last_row_bytes(2) - self.last_row_bytes(1)
        if self.last_row_bytes(1) > limit_bytes or not each:
            return MANY * (self.last_row_bytes(1) <= limit_bytes)
        return min(MANY, 1 + (limit_bytes - self.last_row_bytes(1)) // each)

    # ---- program ---------------------------------------------------------------------------------------------------

    def _color(self, sums: tuple[int, int], cast: int) -> None:
        """Set the colors of sums down even and odd rows, and of gradients up the columns."""
        self.sums, self.cast = sums, cast

    def _declare_last(self, b: Builder, batch: Batch) -> None:
        where = self.last, self.columns
        held = self.last_row = {
            name: b.buffer(f"{self.name}.{name}", length, dtype, where, bank=bank)
            for name, (length, dtype, bank) in self.last_row_buffers(batch.in_flight).items()
        }
        self.outs, self.taken = ([held[f"{name}{i}"] for i in (0, 1)] for name in ("out", "taken"))
        if self.has_residual:
            self.added = [held[f"added{i}"] for i in (0, 1)]
        if self.has_bias:
            self.one, self.sum = held["one"], held["sum"]
            self.sums_of_tokens = held["sums of tokens"]

    def _last(
        self, core: CoreClass, batch: Batch, ends: tuple[int, int | None], sent: int, advance: str | None
    ) -> None:
        """Write the last row of some columns; `ends` are the colors of the result and of the gradient of a residual."""
        out, beside = ends
        leaving = Leaving(core, sent, advance, self.outputs, beside)
        with core.loop(batch.rounds):
            self._all_tokens(core, out, leaving, batch.in_flight)
            self._all_gradients(core, leaving, batch.in_flight)
        if self.has_bias:
            core.fmac_vectors(
                self.sum.dsd(), self.one.dsd(0, self.tokens_summed, stride=0),
                self.sums_of_tokens.dsd(0, self.outputs), self.outputs,
                b_stride=self.outputs, length=self.tokens_summed,
            )  # fmt: skip
            core.mov(fabric_out(self.cast), self.sum.dsd(), start="none")

    def _arrive(self, core: CoreClass, result: Operand, added: Operand | None) -> None:
        """Apply the first operation to sums from the row above as they arrive."""
        above = fabric_in(self.sums[(len(self.inputs) + 1) % 2])
        if self.has_relu:
            core.max(result, above, scalar(0.0), start="none")
        elif added is not None:
            core.add(result, above, added, start="none")
        else:
            core.mov(result, above, start="none")

    def _expect(self, core: CoreClass, turn: int) -> None:
        """Start to receive the residual of a group of tokens during the work on the one before."""
        if self.has_residual:
            receive_all(core, self.deal, self.added[turn].dsd(), ADDED)

    def _all_tokens(self, core: CoreClass, out: int, leaving: Leaving, d: int) -> None:
        """Write the forward pass of d samples: a token leaves while the sums of the next one arrive."""
        v, size = self.outputs, self.tokens_at_once * self.outputs

        def group(turn: int, number: int, step: int, *, more: bool) -> None:
            core.join(ADDED)
            if more:
                self._expect(core, 1 - turn)
            with core.loop(self.tokens_at_once):
                added = None
                if self.has_residual:
                    added = self.added[turn].dsd(0, v, step=v)
                self._arrive(core, self.outs[turn].dsd(0, v, step=v), added)
                leaving.token(out, self.outs[turn])
            if self.has_relu:
                slope = self.last_row["slope"].dsd(number * size, size, step=step * size)
                period = round(1000 / self.wafer.max_fp16_per_cycle)
                value = self.outs[turn].dsd(0, size)
                core.map(Fn.STEP, slope, value, dtype="fp16", period=period, start="loaded")

        count = d * self.tokens // self.tokens_at_once
        self._expect(core, 0)
        with_next(core, count, group)
        core.join(SEND)

    def _all_gradients(self, core: CoreClass, leaving: Leaving, d: int) -> None:
        """Write the backward pass of d samples."""
        slope = self.last_row["slope"] if self.has_relu else None
        self._groups(core, leaving, slope, d * self.tokens // self.tokens_at_once)
        core.join(CAST)

    def _take(self, core: CoreClass, target: Operand, slope: Operand | None) -> None:
        """Receive gradients, and multiply them by the derivative as they arrive."""
        if slope is None:
            receive_all(core, self.deal, target, TAKE)
        else:
            how = Issue(dtype="fp16", start="none", thread=TAKE, priority="high")
            core.mul(target, fabric_in(self.deal), slope, **how)

    def _groups(self, core: CoreClass, leaving: Leaving, slopes: Buffer | None, count: int) -> None:
        """Write the work on the gradients of `count` groups: while one goes up, the next arrives and is multiplied by its
        derivatives."""
        v, size = self.outputs, self._group

        def arrive(turn: int, number: int, step: int) -> None:
            slope = None if slopes is None else slopes.dsd(number * size, size, step=step * size)
            self._take(core, self.taken[turn].dsd(0, size), slope)

        def group(turn: int, number: int, step: int, *, more: bool) -> None:
            core.join(TAKE)
            core.join(CAST)  # the previous group is complete: its place is free
            if more:
                arrive(1 - turn, number + 1, step)
            with core.loop(self.tokens_at_once):
                if leaving.beside is not None:
                    leaving.token(leaving.beside, self.taken[turn])
                for _ in range(1 + self.has_dx):
                    up = self.taken[turn].dsd(0, v, step=v)
                    send_all(core, fabric_out(self.cast), up, CAST)
            if self.has_bias:
                total = self.sums_of_tokens.dsd()
                core.add(total, total, self.taken[turn].dsd(0, size), dtype="mixed", start="loaded")
            core.join(SEND)

        arrive(0, 0, 0)
        with_next(core, count, group)


@dataclass(frozen=True)
class Leaving:
    """How a column of the last row sends its part of a token, in sequence with the other columns."""

    core: CoreClass
    sent: int
    advance: str | None
    outputs: int
    beside: int | None

    def token(self, out: int, held: Buffer) -> None:
        """Send the token of the innermost loop."""
        part = held.dsd(0, self.sent, step=self.outputs)
        send_all(self.core, fabric_out(out, self.advance), part, SEND)
