"""A dense layer that streams its results out as they are summed: the last row has no inputs.

Symbols as in :mod:`wse_sim.whole.regions.dense`; k inputs of a row, over R - 1 rows::

    first row    products; its sums leave with the bias in fp32
    other rows   products; their sums with those from above
    last row     ReLU of the sums that arrive, or a residual added to them, token by token, and out at the same time

If the last row multiplies as well, it finishes the outputs of a whole sample with one start per operation,
and nothing leaves meanwhile. Here neither bias nor ReLU nor residual is a separate instruction, unless ReLU
follows a residual. A residual arrives in k bundles: each has its own stores in the moving cores, enters over
its own row and is dealt out to its own columns, token by token; a column with features of two bundles
receives both, on two colors. No core works on a whole sample, so stores hold parts of samples::

    row         T (k ceil(v / w) + v)
    last row    T (v / min(1, rate of maxima) + v / 2 [+ v / 2 of a residual [+ o + v / rate of ReLU]])
    store       T (N / k + C / k + 1)
"""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.kernels.blocks.word_rows import flowing_cycles
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Ports
from wse_sim.whole.regions.dense import RESIDUAL, Dense, Sent, Taken
from wse_sim.whole.regions.shared_color import receive_all
from wse_sim.whole.regions.turns import alternate


class Flowing(Dense):
    """A product with a weight; the first row adds the bias to the sums, the last row applies ReLU."""

    fills_columns = False
    has_even_rows = True

    @property
    def is_possible(self) -> bool:
        """Whether there is a row above the last."""
        return self.height > 1

    @property
    def most_residual(self) -> int:
        """Bundles in which a residual may arrive: each has rows of moving cores and columns."""
        return min(self.height, self.cols)

    def extent(self) -> tuple[int, int]:
        """Return the rows with at least one word plus the last row, and the columns with at least one output."""
        cols = super().extent()[1]
        return min(self.region.rows, self.inputs // PAIR + 1), cols

    @property
    def fed(self) -> int:
        """Number of rows that take inputs: all but the last."""
        return self.height - 1

    @property
    def words(self) -> list[int]:
        """Words of a token that every row takes, evenly spread; the last row takes none. A row has one
        bundle."""
        return [*super().words, 0]

    def _shares(self, words: int, rows: int, *, has_last: bool) -> list[int]:
        return super()._shares(words, rows, has_last=False)

    def _declare_finish(self, b: Builder) -> None:
        v, last = self.outputs, (self.last, self.columns)
        self.outs = [b.buffer(f"{self.name}.out{i}", v, "fp16", last, bank=0) for i in (0, 1)]
        if "bias" in self.items:
            self.bias = b.buffer(f"{self.name}.bias", v, "fp32", (self.top, self.columns), bank=2)
        if "residual" in self.items:
            self.added = [b.buffer(f"{self.name}.residual{i}", v, "fp16", last, bank=2) for i in (0, 1)]

    def _pass_on(self, core: CoreClass, row: int, ports: Ports) -> None:
        if row or "bias" not in self.items:
            super()._pass_on(core, row, ports)
            return
        self._products(core, ports.own[0], row)
        core.add(fabric_out(ports.own[1]), self.y.dsd(), self.bias.dsd(), start="none")

    def _takes(self, cell: Cell) -> tuple[Taken, ...]:
        """Return the parts of a residual that arrive at a cell of the last row: color, first element, number."""
        return tuple(
            (bundle % 2, first, length)
            for bundle in range(self.residuals)
            for taker, first, length in self._taking(bundle)
            if taker == cell
        )

    def _last(
        self, core: CoreClass, ports: Ports, samples: int, sends: Sequence[Sent], takes: Sequence[Taken]
    ) -> None:
        """Write the last row, token by token in two buffers: while one leaves, the next arrives."""
        sums, threads = fabric_in(ports.own[1 + self.height % 2]), [RESIDUAL + i for i in range(len(takes))]

        def receive(turn: int) -> None:
            for thread, (odd, first, length) in zip(threads, takes, strict=True):
                receive_all(core, ports.own[3 + odd], self.added[turn].dsd(first, length), thread)

        def token(turn: int) -> None:
            out = self.outs[turn]
            if takes:
                core.add(out.dsd(), sums, self.added[turn].dsd(), start="none")
                if "relu" in self.items:
                    core.max(out.dsd(), out.dsd(), scalar(0.0), dtype="fp16")
            elif "relu" in self.items:
                core.max(out.dsd(), sums, scalar(0.0), start="none")
            else:
                core.mov(out.dsd(), sums, start="none")
            for part in sends:
                part.emit(core, out)

        alternate(core, samples * self.tokens, receive, token, threads)

    def _biases(self, each: Floats) -> Floats:
        return each[None]

    @property
    def late_fraction(self) -> float:
        """Results leave as they are summed."""
        return 0.0

    def held_up_cycles(self) -> float:
        """Return 0: either no row is busy for long between two tokens, or all are."""
        return 0.0

    def ahead_cycles(self) -> float:
        """Return the cycles to receive the residual of two tokens: one waits for its sums, the next one arrives."""
        return min(2, self.tokens) * self.outputs / PAIR * ("residual" in self.items)

    def issued_cycles(self) -> float:
        """Return the issue cycles per sample, by the formulas of the module."""
        v, wafer = self.outputs, self.wafer
        each = PAIR * max(self.words) * ceil_div(v, wafer.fma_mixed_per_cycle) + v
        return float(self.tokens * max(each, self._last_cycles()))

    def _last_cycles(self) -> float:
        """Return the cycles of the last row per token."""
        return float(flowing_cycles(self.items, self.outputs, self.wafer))
