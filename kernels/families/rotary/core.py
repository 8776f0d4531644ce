"""Program of a core that turns pairs of features: k heads of d features, in blocks whose halves turn together.

Symbols: b features of a block, p(i) the feature that turns with i; C and S have cosines, and sines with the signs of the pairs::

    forward    y = x C     y[i] = y[i] + x[p(i)] S[i]            for the first and the second halves of blocks
    backward   g_x = g C   g_x[i] = g_x[i] + g[p(i)] S[p(i)]

b = d: halves of heads; b = 2: neighbours, for which a half is every second element. A head may have several blocks: with two,
one half of it turns by the row of a token of an image and one by its column. Features behind the first `turned` ones stay.

A sum reads two vectors besides the sines, and takes twice as long if they begin in the same bank, so the operand that
begins elsewhere is read first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.element_work import ElementWork, Floats, Rounded, part

PAIR = 2  # neighbours
BANKS = 4
"""Two vectors whose beginnings are equal modulo this number of fp16 elements are in the same bank."""


@dataclass(frozen=True)
class Turning(ElementWork):
    """Rotation of the pairs of all heads; a unit is a head."""

    block: int = PAIR
    turned: int = 0
    tables = (".cos", ".sin")

    @property
    def partner(self) -> NDArray[np.int64]:
        """The feature that each feature of a head turns with; itself for those that stay.

        >>> Turning(unit=6, block=4, turned=4).partner.tolist(), Turning(unit=4, block=2, turned=4).partner.tolist()
        ([2, 3, 0, 1, 4, 5], [1, 0, 3, 2])
        """
        found = np.arange(self.unit)
        blocks = found[: self.turned].reshape(-1, self.block)
        found[: self.turned] = np.roll(blocks, self.block // 2, axis=1).reshape(-1)
        return found

    @property
    def table_width(self) -> int:
        """The features that turn."""
        return self.turned

    def values(self, x: Floats, *tables: Floats, rounded: Rounded) -> Floats:
        """Return x C + x[p] S."""
        cosines, sines = tables
        return rounded(x * cosines) + x[..., self.partner] * sines

    def table(self, number: int, values: Floats, features: int) -> Floats:
        """Return cosines, or sines with their signs: negative where the partner is the second of a pair; 1 and 0 for features
        that stay."""
        is_sine = number == 1
        rows = np.asarray(values, np.float32).reshape(-1, self.turned)
        wide = np.full((len(rows), self.unit), 0.0 if is_sine else 1.0, np.float32)
        wide[:, : self.turned] = rows
        if is_sine:
            wide *= np.where(self.partner > np.arange(self.unit), -1.0, 1.0)
        return np.tile(wide, (1, features // self.unit))

    # ---- program ------------------------------------------------------------------------------------------------------

    def forward(
        self, core: CoreClass, y: Operand, x: Operand, tables: Sequence[Operand], count: int, wafer: Wafer
    ) -> None:
        """Write the product with the cosines, and the sums with the sines of both sides of all pairs."""
        core.mul(y, x, tables[0], dtype=self.dtype)
        for here, there in self._sides:
            self._sum(core, (y, tables[1], x), (here, here, there), count, wafer)

    def backward(
        self, core: CoreClass, x: Operand, g: Operand, tables: Sequence[Operand], count: int, wafer: Wafer
    ) -> None:
        """Write the same with the sines of the partners."""
        core.mul(x, g, tables[0], dtype=self.dtype)
        same_bank = self.block // 2 % BANKS == 0
        for here, there in self._sides:
            met = (tables[1], g) if same_bank else (g, tables[1])
            self._sum(core, (x, *met), (here, there, there), count, wafer)

    @property
    def _sides(self) -> tuple[tuple[int, int], ...]:
        """First element, and that of its partner, for both halves of blocks."""
        return (0, self.block // 2), (self.block // 2, 0)

    def _sum(
        self, core: CoreClass, vectors: Sequence[Operand], places: Sequence[int], count: int, wafer: Wafer
    ) -> None:
        """Write sums += a b for one half of every block; the halves of `vectors` begin at `places`."""
        if self.block == PAIR:
            sums, a, b = (
                part(vector, first, count // PAIR, PAIR)
                for vector, first in zip(vectors, places, strict=True)
            )
            core.fmac(sums, sums, a, b, dtype=self.dtype)
            return
        half, is_whole = self.block // 2, self.turned == self.unit
        step = self.block if is_whole else self.unit
        for block in range(1 if is_whole else self.turned // self.block):
            core.busy(round(wafer.vector_start_cycles))  # one instruction for this half of all blocks
            with core.loop(count // step):
                sums, a, b = (
                    part(vector, block * self.block + first, half, step=step)
                    for vector, first in zip(vectors, places, strict=True)
                )
                core.fmac(sums, sums, a, b, length=half, dtype=self.dtype, start="none")

    # ---- cycles -------------------------------------------------------------------------------------------------------

    def unit_cycles(self, phase: Phase, wafer: Wafer) -> float:
        """Return d / w + 2 d / 2 / w for neighbours, d / w + 2 (turned / b) ceil(b / 2 / w) for others."""
        rate = wafer.mul_fp32_per_cycle if self.dtype == "fp32" else wafer.fma_fp16_per_cycle
        sums = wafer.fma_fp32_per_cycle if self.dtype == "fp32" else wafer.fma_fp16_per_cycle
        if self.block == PAIR:
            return self.unit / rate + self.unit / sums
        return self.unit / rate + 2 * self.turned // self.block * ceil(self.block / 2 / sums)

    def starts(self, phase: Phase) -> int:
        """Return one start for the product and one for each half of the blocks that a loop covers."""
        is_whole = self.block == PAIR or self.turned == self.unit
        return 1 + 2 * (1 if is_whole else self.turned // self.block)
