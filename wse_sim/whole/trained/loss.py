"""The loss of a model: cores that receive tokens in rotation, like those of a norm.

Symbols: T tokens of N logits per sample, d samples in flight, L cores with d T / L tokens of a round each. L is
the largest divisor of T for which cores are free; a sample of one token is shared by as many cores as keep the
pace of the regions (:func:`core_counts`)::

    logits > inlet > token by token, up or down the column >   core: loss and gradient     > in the same order to the last region

With z the n logits of a token, y its one-hot label, m = max z and s = sum of exp(z - m)::

    cross entropy   gradient  exp(z - m) / s - y      loss  log s - sum of (z - m) y
    squared error   gradient  z - y                   loss  sum of (z - y)^2 / 2

Two totals of the batch stay on a core in fp32, that of log s (or of the squares) and that of (z - m) y; the host adds those of
all cores. A core stores the gradients of d
samples and sends them after the forward part of a round, since no region reads them earlier. Only the first
one leaves at once, during the work, so that it is already on its route when the last region needs it. If logits come in several bundles, the inlet
receives the parts of a token one after the other, and each core sends the parts of its gradients on as many streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Buffer, Builder, Operand, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Fn
from wse_sim.kernels.blocks.rounds import pitch
from wse_sim.modes.pipelined.loss import LOSSES
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, IntArray, elements_of
from wse_sim.whole.regions.shared_color import advance_of, deal, place_kinds, route_senders, route_takers
from wse_sim.whole.room import HELD_FRACTION
from wse_sim.whole.trained.contract import Batch, Floats

FP16_BYTES = 2
SEND, THREADS = 1, 6  # first microthread that sends, and how many do


class LossBuffers(NamedTuple):
    """Buffers of a core that computes the loss."""

    gradient: Buffer
    logits: Buffer
    exponentials: Buffer
    statistic: Buffer  # one number: m, then s, then 1 / s
    total: Buffer  # two numbers
    wanted: Buffer  # labels of all samples
    logarithm: Buffer


@dataclass(frozen=True)
class LossPlace:
    """Placement of the loss: an inlet, and a column of cores in the order in which they receive."""

    inlet: Cell
    cores: tuple[Cell, ...]
    tokens: int  # of a sample
    features: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Inlet and cores."""
        return (self.inlet, *self.cores)

    @property
    def padded(self) -> int:
        """Logits of a token in whole words."""
        return self.features + self.features % PAIR

    @property
    def apart(self) -> int:
        """Elements from one token to the next, so that the labels of all tokens are in another bank than their logits."""
        return pitch(self.padded)

    def each(self, samples: int) -> int:
        """Return a core's tokens of a number of samples."""
        return samples * self.tokens // len(self.cores)

    def most_in_flight(self, config: FabricConfig, samples: int) -> int:
        """Return the samples whose gradients a core can store in addition to the labels of the batch.

        Raises
        ------
        ModelError
            If the labels alone exceed a core's memory.
        """
        token_bytes, count = FP16_BYTES * self.apart, len(self.cores)
        label_bytes = token_bytes * self.each(samples)
        free = HELD_FRACTION * config.sram_usable_bytes - label_bytes
        if free < token_bytes:
            raise ModelError(
                f"labels of {samples} samples take {label_bytes} bytes on a core of the loss, limit "
                f"{int(HELD_FRACTION * config.sram_usable_bytes)}; use a smaller batch"
            )
        return int(free // token_bytes) * count // self.tokens

    def parts(self, of: int) -> list[range]:
        """Return the logits of a token in each of `of` bundles."""
        return [elements_of(self.padded, bundle, of) for bundle in range(of)]

    def write(
        self,
        b: Builder,
        loss: str,
        batch: Batch,
        logits: Sequence[int],
        feed: int,
        gradients: Sequence[tuple[int, str]],
    ) -> None:
        """Write core classes, buffers and routes; by bundle, `logits` is the color of the logits, and `gradients` are the
        color of the gradients and the output ports of the first core."""
        inlet, count = b.core_class("loss inlet"), len(self.cores)
        with inlet.loop(self.each(batch.samples)):
            token = zip(logits, self.parts(len(logits)), strict=True)
            share = [(fabric_in(color), len(part)) for color, part in token]
            deal(inlet, feed, [share] * count, count)
        b.place(inlet, self.inlet)
        route_takers(b, feed, self.inlet, self.cores)
        for color, towards in gradients:
            route_senders(b, color, self.cores, towards)
        held = self._declare(b, batch)

        def write(core: CoreClass, advance: str | None) -> None:
            self._core(core, loss, batch, held, feed, [fabric_out(color, advance) for color, _ in gradients])

        kinds = {cell: advance_of(i, count) for i, cell in enumerate(self.cores)}
        place_kinds(b, kinds, "loss", write)

    def _declare(self, b: Builder, batch: Batch) -> LossBuffers:
        (first, col), (last, _) = min(self.cores), max(self.cores)
        where, apart = (slice(first, last + 1), slice(col, col + 1)), self.apart

        def buffer(name: str, length: int, dtype: str, bank: int | None = None) -> Buffer:
            return b.buffer(f"loss.{name}", length, dtype, where, bank=bank)

        return LossBuffers(
            buffer("gradient", apart * self.each(batch.in_flight), "fp16", 0),
            buffer("logits", self.padded, "fp16", 0),
            buffer("exponentials", self.padded, "fp32", 0),
            buffer("statistic", 1, "fp32"),
            buffer("total", 2, "fp32"),
            buffer("wanted", apart * self.each(batch.samples), "fp16", 2),
            buffer("logarithm", 1, "fp32"),
        )

    def _row(
        self, core: CoreClass, loss: str, held: LossBuffers, logits: int, label: Operand, slope: Operand
    ) -> None:
        """Write loss and gradient of one row, whose logits arrive on the color `logits`; `label` is its label, `slope` the
        place for its gradient."""
        # Padding of the last word is not a logit; its gradient stays 0.
        real = self.features
        logit = held.logits.dsd(0, real)
        core.mov(held.logits.dsd(), fabric_in(logits), dtype="fp16", start="none")
        if loss == "squared error":
            core.sub(slope, logit, label)
            core.mac(held.total.dsd(0, real, stride=0), slope, slope)
            return
        statistic, logarithm, total = held.statistic.dsd(), held.logarithm.dsd(), held.total
        one, value = held.statistic.dsd(0, real, stride=0), held.exponentials.dsd(0, real)
        core.mov(statistic, scalar(-3e38))
        core.max(one, one, logit)
        core.sub(value, logit, one)
        core.mac(total.dsd(1, real, stride=0), value, label)
        core.map(Fn.EXP, value, value)
        core.mov(statistic, scalar(0.0))
        core.add(one, one, value)
        core.map(Fn.LOG, logarithm, statistic)
        core.add(total.dsd(0, 1), total.dsd(0, 1), logarithm)
        core.map(Fn.RECIPROCAL, statistic, statistic)
        core.mul(value, value, one)
        core.sub(slope, value, label)

    def _core(
        self,
        core: CoreClass,
        loss: str,
        batch: Batch,
        held: LossBuffers,
        feed: int,
        leaving: Sequence[Operand],
    ) -> None:
        """Write rounds of a forward part, with loss and gradient of every token, and a backward part that
        sends."""
        n, size, turns = self.features, self.apart, self.each(batch.in_flight)
        parts = list(zip(leaving, self.parts(len(leaving)), strict=True))
        with core.loop(batch.rounds):
            label = held.wanted.dsd(0, n, step=size * turns)
            self._row(core, loss, held, feed, label, held.gradient.dsd(0, n))
            # A thread each: none waits for another's words to leave, and the next token is received meanwhile.
            for thread, (stream, part) in enumerate(parts[:THREADS], SEND):
                first = held.gradient.dsd(part.start, len(part))
                core.mov(stream, first, dtype="fp16", start="none", thread=thread)
            if turns > 1:
                with core.loop(turns - 1):
                    label = held.wanted.dsd(size, n, step=size, outer_step=size * turns)
                    self._row(core, loss, held, feed, label, held.gradient.dsd(size, n, step=size))
            for thread, _ in enumerate(parts[:THREADS], SEND):
                core.join(thread)
            for stream, part in parts[THREADS:]:
                core.mov(stream, held.gradient.dsd(part.start, len(part)), dtype="fp16", start="none")
            if turns > 1:
                with core.loop(turns - 1):
                    for stream, part in parts:
                        token = held.gradient.dsd(size + part.start, len(part), step=size)
                        core.mov(stream, token, dtype="fp16", start="none")

    def values(self, labels: NDArray[np.int64], order: IntArray | None) -> dict[str, Floats]:
        """Return the buffer of labels, from the labels of all rows of a batch (samples T,); `order` is the
        stream order of the logits."""
        count = len(self.cores)
        rows = one_hot(labels, self.features)
        rows = np.pad(rows if order is None else rows[:, order], ((0, 0), (0, self.apart - self.features)))
        wanted = rows.reshape(-1, count, self.apart)
        # A core has every count-th row.
        of_core = wanted.swapaxes(0, 1)
        if count > 1 and self.cores[0] > self.cores[-1]:
            of_core = of_core[::-1]  # buffers begin in the north
        return {"loss.wanted": np.ascontiguousarray(of_core).reshape(count, 1, -1)}


def check_loss(loss: str) -> None:
    """Check that the loss is one of :data:`LOSSES`.

    Raises
    ------
    ModelError
        If it is not.
    """
    if loss not in LOSSES:
        raise ModelError(f"loss '{loss}' is unknown; use one of {', '.join(LOSSES)}")


def core_counts(tokens: int, in_flight: int, wanted: int) -> list[int]:
    """Return the numbers of cores that can share the tokens of a round, the preferred one first.

    Cores share the tokens of a sample, or the samples of a round if they have one token: then the least number of
    `wanted` cores or more, or else the largest below it.
    """
    shared = tokens if tokens > 1 else in_flight
    divisors = [count for count in range(1, shared + 1) if shared % count == 0]
    if tokens > 1:
        return divisors[::-1]
    enough = next((i for i, count in enumerate(divisors) if count >= wanted), len(divisors) - 1)
    return divisors[enough::-1]


def place_loss(free: set[Cell], near: Cell, tokens: int, features: int, counts: Sequence[int]) -> LossPlace:
    """Return the placement nearest to a cell, with the first of the `counts` of cores for which cores are free.

    Raises
    ------
    ModelError
        If no two cores in a column are free.
    """
    for count in counts:
        found = [
            column
            for (row, col) in free
            for step in (1, -1)
            if free.issuperset(column := [(row + step * i, col) for i in range(count + 1)])
        ]
        if found:
            inlet, *cores = min(found, key=lambda column: (_distance(column[0], near), column))
            return LossPlace(inlet, tuple(cores), tokens, features)
    raise ModelError(
        "no two cores in a column are free for the loss; use fewer cores for the layers or a larger wafer"
    )


def _distance(a: Cell, b: Cell) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def mean_of(loss: str, totals: Floats, rows: int) -> float:
    """Return the mean loss of `rows` rows from the totals of all cores (cores, 2)."""
    first, second = (float(total) for total in totals.reshape(-1, 2).sum(axis=0, dtype=np.float64))
    return (first - second if loss == "cross entropy" else first / 2) / rows


def one_hot(labels: NDArray[np.int64], size: int) -> Floats:
    """Return one-hot labels (rows, size)."""
    wanted = np.zeros((len(labels), size), np.float32)
    wanted[np.arange(len(labels)), labels] = 1
    return wanted
