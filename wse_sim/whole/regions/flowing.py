"""A dense layer that streams its results out as they are summed: the last row has no inputs.

Symbols as in :mod:`wse_sim.whole.regions.dense`; k inputs of a row, over R - 1 rows::

    first row    products; its sums leave with the bias in fp32
    other rows   products; their sums with those from above
    last row     ReLU of the sums that arrive, token by token, and out at the same time

If the last row multiplies as well, it finishes the outputs of a whole sample with one start per operation,
and nothing leaves meanwhile. Here neither bias nor ReLU is a separate instruction::

    row         T (k ceil(v / w) + v)
    last row    T (v / min(1, rate of maxima) + v / 2)
"""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.regions.contract import PAIR, Floats, Ports
from wse_sim.whole.regions.dense import Dense, Sent


class Flowing(Dense):
    """A product with a weight; the first row adds the bias to the sums, the last row applies ReLU."""

    items_covered = ("bias", "relu")

    @property
    def is_possible(self) -> bool:
        """Whether there is a row above the last, and only bias and ReLU are fused."""
        return self.height > 1 and set(self.items) <= set(self.items_covered)

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

    def _pass_on(self, core: CoreClass, row: int, ports: Ports) -> None:
        if row or "bias" not in self.items:
            super()._pass_on(core, row, ports)
            return
        self._products(core, ports.own[0], row)
        core.add(fabric_out(ports.own[1]), self.y.dsd(), self.bias.dsd(), start="none")

    def _last(self, core: CoreClass, ports: Ports, samples: int, sends: Sequence[Sent]) -> None:
        """Write the last row, token by token in two buffers: while one leaves, the next arrives."""
        sums = fabric_in(ports.own[1 + self.height % 2])

        def token(out: Buffer) -> None:
            if "relu" in self.items:
                core.max(out.dsd(), sums, scalar(0.0), start="none")
            else:
                core.mov(out.dsd(), sums, start="none")
            for part in sends:
                part.emit(core, out)

        count = samples * self.tokens
        with core.loop(count // 2):
            for out in self.outs:
                token(out)
        if count % 2:
            token(self.outs[0])

    def _biases(self, each: Floats) -> Floats:
        return each[None]

    @property
    def late_fraction(self) -> float:
        """Results leave as they are summed."""
        return 0.0

    def held_up_cycles(self) -> float:
        """Return 0: either no row is busy for long between two tokens, or all are."""
        return 0.0

    def issued_cycles(self) -> float:
        """Return the issue cycles per sample, by the formulas of the module."""
        v, wafer = self.outputs, self.wafer
        each = PAIR * max(self.words) * ceil_div(v, wafer.fma_mixed_per_cycle) + v
        return float(self.tokens * max(each, self._last_cycles()))

    def _last_cycles(self) -> float:
        """Return the cycles of the last row per token."""
        rate = min(1.0, self.wafer.max_fp32_per_cycle) if "relu" in self.items else 1.0
        return self.outputs / rate + self.outputs / PAIR
