"""Program of a core that turns pairs of features: k heads of d features, in blocks whose halves turn together.

Symbols: b features of a block, p(i) the feature that turns with i; C has cosines, and S sines at the place of the feature that
they multiply, with the signs of the pairs; u is a scratch vector::

    forward    y = x C     u = x S             y[i] = y[i] + u[p(i)]        for the first and the second halves of blocks
    backward   g_x = g C   u[i] = g[p(i)] S[i] g_x[i] = g_x[i] + u[i]       the same

b = d: halves of heads; b = 2: neighbours, for which a half is every second element. A head may have several blocks: with two,
one half of it turns by the row of a token of an image and one by its column. Features behind the first `turned` ones stay.

Two vectors that an instruction reads begin in one bank if b / 2 is 2 modulo 4 (odd, in fp32); such instructions take twice as long.
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
from wse_sim.kernels.contract.element_work import (
    BANKS,
    WITH_TABLES,
    ElementWork,
    Floats,
    Held,
    Rounded,
    part,
)
from wse_sim.kernels.contract.equations import add_rate, bytes_of

PAIR = 2  # neighbours


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

    @property
    def scratch(self) -> tuple[int, ...]:
        """One vector of products with sines."""
        return (WITH_TABLES,)

    def values(self, x: Floats, *tables: Floats, rounded: Rounded) -> Floats:
        """Return x C + (x S)[p]."""
        cosines, sines = tables
        return rounded(x * cosines) + rounded(x * sines)[..., self.partner]

    def table(self, number: int, values: Floats, features: int) -> Floats:
        """Return cosines, or sines at the place of the partner, negative where that is the second of a pair; 1 and 0 for features
        that stay."""
        is_sine = number == 1
        rows = np.asarray(values, np.float32).reshape(-1, self.turned)
        wide = np.full((len(rows), self.unit), 0.0 if is_sine else 1.0, np.float32)
        wide[:, : self.turned] = rows
        if is_sine:
            wide = (wide * np.where(self.partner > np.arange(self.unit), -1.0, 1.0))[:, self.partner]
        return np.tile(wide.astype(np.float32), (1, features // self.unit))

    # ---- program ------------------------------------------------------------------------------------------------------

    def forward(self, core: CoreClass, y: Operand, x: Operand, held: Held, count: int) -> None:
        """Write the products with cosines and sines, and the sums for both sides of all pairs."""
        (cosines, sines), (products,) = held
        core.mul(y, x, cosines, dtype=self.dtype)
        core.mul(products, x, sines, dtype=self.dtype)
        for here, there in self._sides:
            self._on_halves(core, "add", (y, y, products), (here, here, there), count)

    def backward(self, core: CoreClass, x: Operand, g: Operand, held: Held, count: int) -> None:
        """Write the product with the cosines, and the products and sums for both sides of all pairs."""
        (cosines, sines), (products,) = held
        core.mul(x, g, cosines, dtype=self.dtype)
        for here, there in self._sides:
            self._on_halves(core, "mul", (products, g, sines), (here, there, here), count)
            self._on_halves(core, "add", (x, x, products), (here, here, here), count)

    @property
    def _sides(self) -> tuple[tuple[int, int], ...]:
        """First element, and that of its partner, for both halves of blocks."""
        return (0, self.block // 2), (self.block // 2, 0)

    def _on_halves(
        self, core: CoreClass, instruction: str, vectors: Sequence[Operand], places: Sequence[int], count: int
    ) -> None:
        """Write an instruction on one half of every block; these halves of the `vectors` begin at `places`."""
        if self.block == PAIR:
            halves = (
                part(vector, first, count // PAIR, PAIR)
                for vector, first in zip(vectors, places, strict=True)
            )
            getattr(core, instruction)(*halves, dtype=self.dtype)
            return
        every = self.block if self.turned == self.unit else self.unit
        for block in range(0, self.turned if every == self.unit else 1, self.block):
            first = [block + place for place in places]
            self.on_units(core, instruction, vectors, first, self.block // 2, count, every=every)

    # ---- cycles -------------------------------------------------------------------------------------------------------

    def unit_cycles(self, phase: Phase, wafer: Wafer) -> float:
        """Return forward 2 d / w + turned / b 2 ceil(b / 2 / a), backward d / w + turned / b 2 (ceil(b / 2 / w) + ceil(b / 2 / a)),
        without rounding up for neighbours."""
        product = wafer.mul_fp32_per_cycle if self.dtype == "fp32" else wafer.fma_fp16_per_cycle
        total, half = add_rate(self.dtype, wafer), self.block // 2
        words = bytes_of(self.dtype) // 2 * half
        slower = wafer.bank_conflict_factor if (WITH_TABLES + words) % BANKS == 0 else 1.0
        is_forward = phase is Phase.FORWARD
        products, sums = slower / product, 1 / total  # cycles per element of a half
        if is_forward:
            products, sums = 0.0, slower / total
        if self.block == PAIR:
            halves = self.unit * (products + sums)
        else:
            halves = 2 * self.turned // self.block * (ceil(half * products) + ceil(half * sums))
        return (2 if is_forward else 1) * self.unit / product + halves

    def starts(self, phase: Phase) -> int:
        """Return one start for each product of all features, and one for each half of the blocks that a loop covers."""
        is_whole = self.block == PAIR or self.turned == self.unit
        halves = 2 * (1 if is_whole else self.turned // self.block)
        return 2 + halves if phase is Phase.FORWARD else 1 + 2 * halves
