"""The loss of a model of several rows a sample: cores that take tokens in turn, as a norm's do.

Symbols: T tokens of N logits, L cores, t = T / L tokens a core (L the largest divisor of T that finds a place); d samples in flight::

    logits > inlet > token by token, up or down the column >   core: loss and gradient     > in the same order to the last region

Loss and gradient of a token are those of :mod:`wse_sim.whole.training.loss`.  A core holds the gradients of d samples and sends them
when the forward part of a round is over: before, nobody would take them.  Only the first one leaves at once, during the work; it
waits on its way, so that the last region need not wait for it.  Totals stay on the cores in fp32; their sum over
the cores is the only one that the host makes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Builder, Operand, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import IntArray
from wse_sim.whole.regions.turns import advance_of, deal, route_senders, route_takers
from wse_sim.whole.trained.contract import HELD_FRACTION, Batch, Floats
from wse_sim.whole.training.loss import LossBuffers, loss_buffers, one_hot, write_loss

FP16_BYTES = 2
SEND = 1  # microthread


@dataclass(frozen=True)
class LossPlace:
    """Where the loss lies: an inlet, and a column of cores, the one that takes first first."""

    inlet: Cell
    cores: tuple[Cell, ...]
    tokens: int
    features: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All of them."""
        return (self.inlet, *self.cores)

    @property
    def each(self) -> int:
        """Tokens of a core."""
        return self.tokens // len(self.cores)

    def most_in_flight(self, config: FabricConfig, samples: int) -> int:
        """Samples whose gradients a core can hold in addition to the labels of the batch.

        Raises
        ------
        ModelError
            If labels alone take more than a core has.
        """
        token = FP16_BYTES * self.features * self.each
        free = HELD_FRACTION * config.sram_usable_bytes - samples * token
        if free < token:
            raise ModelError(
                f"labels of {samples} samples take {samples * token} bytes on a core of the loss, limit "
                f"{int(HELD_FRACTION * config.sram_usable_bytes)}; use a smaller batch"
            )
        return int(free // token)

    def write(
        self, b: Builder, loss: str, batch: Batch, logits: int, feed: int, gradient: tuple[int, str]
    ) -> None:
        """Classes, buffers and routes; `gradient` is the color of the gradients and the ports by which the first core sends on."""
        inlet, count = b.core_class("loss inlet"), len(self.cores)
        with inlet.loop(batch.samples * self.each):
            deal(inlet, feed, [[(fabric_in(logits), self.features)]] * count, count)
        b.place(inlet, self.inlet)
        route_takers(b, feed, self.inlet, self.cores, 0, "E")
        color, towards = gradient
        route_senders(b, color, self.cores, towards)
        held = self._declare(b, batch)
        for advance in dict.fromkeys(advance_of(i, count) for i in range(count)):
            core = b.core_class(f"loss {advance or ''}")
            self._core(core, loss, batch, held, feed, fabric_out(color, advance))
            for i, cell in enumerate(self.cores):
                if advance_of(i, count) == advance:
                    b.place(core, cell)

    def _declare(self, b: Builder, batch: Batch) -> LossBuffers:
        (first, col), (last, _) = min(self.cores), max(self.cores)
        where = (slice(first, last + 1), slice(col, col + 1))
        return loss_buffers(b, where, self.features, batch.samples * self.each, batch.in_flight * self.each)

    def _core(
        self,
        core: CoreClass,
        loss: str,
        batch: Batch,
        held: LossBuffers,
        feed: int,
        leaving: Operand,
    ) -> None:
        """Rounds of a forward part, with loss and gradient of every token, and a backward part that sends."""
        n, turns = self.features, batch.in_flight * self.each
        with core.loop(batch.rounds):
            first = held.gradient.dsd(0, n)
            write_loss(core, loss, held, n, feed, held.wanted.dsd(0, n, step=n * turns), first)
            core.mov(leaving, first, dtype="fp16", start="none", thread=SEND)
            if turns > 1:
                with core.loop(turns - 1):
                    label = held.wanted.dsd(n, n, step=n, outer_step=n * turns)
                    write_loss(core, loss, held, n, feed, label, held.gradient.dsd(n, n, step=n))
            core.join(SEND)
            if turns > 1:
                with core.loop(turns - 1):
                    core.mov(leaving, held.gradient.dsd(n, n, step=n), dtype="fp16", start="none")

    def values(self, labels: NDArray[np.int64], order: IntArray | None) -> dict[str, Floats]:
        """The buffer of labels from those of all rows of a batch (samples T,); `order` is that of logits on their way."""
        count = len(self.cores)
        rows = one_hot(labels, self.features)
        wanted = (rows if order is None else rows[:, order]).reshape(-1, count, self.features)
        # A core has every count-th row.
        of_core = wanted.swapaxes(0, 1)
        if count > 1 and self.cores[0] > self.cores[-1]:
            of_core = of_core[::-1]  # buffers begin in the north
        return {"loss.wanted": np.ascontiguousarray(of_core).reshape(count, 1, -1)}


def place_loss(free: set[Cell], near: Cell, tokens: int, features: int) -> LossPlace:
    """The place for as many cores as there are tokens, or the largest divisor that finds one; nearest to a cell.

    Raises
    ------
    ModelError
        If not two cores in a column are free.
    """
    for count in range(tokens, 0, -1):
        if tokens % count:
            continue
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
