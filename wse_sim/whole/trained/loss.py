"""The loss of a model with several rows per sample: cores that receive tokens in sequence, like those of a
norm.

Symbols: T tokens of N logits, L cores, t = T / L tokens per core (L the largest divisor of T for which cores
are free); d samples in flight::

    logits > inlet > token by token, up or down the column >   core: loss and gradient     > in the same order to the last region

Loss and gradient of a token are those of :mod:`wse_sim.whole.training.loss`. A core stores the gradients of d
samples and sends them after the forward part of a round, since no region reads them earlier. Only the first
one leaves at once, during the work, so that it is already on its route when the last region needs it. Totals
stay on the cores in fp32; the host computes only their sum over the cores.
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
from wse_sim.whole.regions.shared_color import advance_of, deal, route_senders, route_takers
from wse_sim.whole.trained.contract import HELD_FRACTION, Batch, Floats
from wse_sim.whole.training.loss import LossBuffers, loss_buffers, one_hot, write_loss

FP16_BYTES = 2
SEND = 1  # microthread


@dataclass(frozen=True)
class LossPlace:
    """Placement of the loss: an inlet, and a column of cores in the order in which they receive."""

    inlet: Cell
    cores: tuple[Cell, ...]
    tokens: int
    features: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Inlet and cores."""
        return (self.inlet, *self.cores)

    @property
    def each(self) -> int:
        """Tokens of a core."""
        return self.tokens // len(self.cores)

    def most_in_flight(self, config: FabricConfig, samples: int) -> int:
        """Return the samples whose gradients a core can store in addition to the labels of the batch.

        Raises
        ------
        ModelError
            If the labels alone exceed a core's memory.
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
        """Write core classes, buffers and routes; `gradient` is the color of the gradients and the output
        ports of the first core."""
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
        """Write rounds of a forward part, with loss and gradient of every token, and a backward part that
        sends."""
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
        """Return the buffer of labels, from the labels of all rows of a batch (samples T,); `order` is the
        stream order of the logits."""
        count = len(self.cores)
        rows = one_hot(labels, self.features)
        wanted = (rows if order is None else rows[:, order]).reshape(-1, count, self.features)
        # A core has every count-th row.
        of_core = wanted.swapaxes(0, 1)
        if count > 1 and self.cores[0] > self.cores[-1]:
            of_core = of_core[::-1]  # buffers begin in the north
        return {"loss.wanted": np.ascontiguousarray(of_core).reshape(count, 1, -1)}


def place_loss(free: set[Cell], near: Cell, tokens: int, features: int) -> LossPlace:
    """Return the placement nearest to a cell, with one core per token or the largest divisor of them for
    which cores are free.

    Raises
    ------
    ModelError
        If no two cores in a column are free.
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
