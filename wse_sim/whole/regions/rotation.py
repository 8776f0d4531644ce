"""Rotations of positions on tokens: elementwise work on whole heads.

Symbols: a core has k heads of d features of some tokens; their tables C and S rest on it (:mod:`wse_sim.whole.regions.rotation_tables`)::

    y = x C                                             k d elements
    y = y + x[partner] S    for both sides of a pair    k d / 2 elements each: halves of heads, or every second one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from wse_sim.fabric.format.builder import Buffer, Builder
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.frontend.rotations import HALVES
from wse_sim.graph import Kernel
from wse_sim.whole.regions.contract import PAIR, Floats
from wse_sim.whole.regions.pointwise import Pointwise
from wse_sim.whole.regions.rotation_tables import is_rotation, table

BANKS = 4
"""An instruction that reads two vectors from banks that are equal modulo this number takes twice as long."""


class Rotation(Pointwise):
    """Rotation of queries or keys by their positions, in inference."""

    @staticmethod
    def is_for(kernel: Kernel) -> bool:
        """Return whether a kernel is a rotation."""
        return is_rotation(kernel)

    @property
    def unit(self) -> int:
        """Features of a head, d."""
        return int(self.kernel.dims["cols"])

    def splits(self, tensor: str) -> Sequence[int]:
        """Return the numbers of bundles of whole heads."""
        heads = PAIR * self.token_words // self.unit
        return [count for count in super().splits(tensor) if heads % count == 0]

    def held_values(self, number: int, parameter: Floats) -> Floats:
        """Return the cosines (0) or sines (1) of all features of a token."""
        heads = PAIR * self.token_words // self.unit
        return table(parameter, self.unit, heads, self.kernel.access.pairs, is_sine=number == 1)

    def _declare(self, b: Builder) -> None:
        """Declare the buffers: sums and partners begin in different banks, an even number of elements apart."""
        where = (self.rows, self.columns)
        apart = self.kernel.access.turned // 2 if self.kernel.access.pairs == HALVES else 0
        to = 0 if apart % BANKS else 2

        def buffer(name: str, bank: int) -> Buffer:
            return b.buffer(f"{self.name}.{name}", self.each, "fp16", where, bank=bank)

        self.taken = [[buffer(f"operand0 {turn}", 0)] for turn in (0, 1)]
        self.results = [buffer(f"result{turn}", to) for turn in (0, 1)]
        self.held = [buffer("parameter0", 2), buffer("parameter1", 2)]

    # ---- program -----------------------------------------------------------------------------------------------------

    @property
    def _sides(self) -> tuple[tuple[int, int], ...]:
        """First element of the result, and of the partners, for both sides of a pair."""
        apart = self.kernel.access.turned // 2 if self.kernel.access.pairs == HALVES else 1
        return (0, apart), (apart, 0)

    def emit(
        self, core: CoreClass, result: Operand, value: Operand, others: Sequence[Operand], count: int
    ) -> None:
        """Write a product with the cosines, and sums with the sines of both sides of every pair."""
        cosines, sines = others
        core.mul(result, value, cosines, dtype="fp16")
        for to, partner in self._sides:
            if self.kernel.access.pairs == HALVES:
                half = self.kernel.access.turned // 2
                core.busy(round(self.wafer.vector_start_cycles))  # one instruction on a side of every head
                with core.loop(count // self.unit):
                    sums, met, sine = (
                        replace(one, offset=first, length=half, step=self.unit)
                        for one, first in ((result, to), (value, partner), (sines, to))
                    )
                    core.fmac(sums, sums, met, sine, length=half, dtype="fp16", start="none")
            else:
                sums, met, sine = (
                    replace(one, offset=first, length=count // 2, stride=2)
                    for one, first in ((result, to), (value, partner), (sines, to))
                )
                core.fmac(sums, sums, met, sine, dtype="fp16")

    def work_cycles(self, count: int) -> float:
        """Return the issue cycles of the three instructions."""
        start, rate = ceil(self.wafer.vector_start_cycles), self.wafer.fma_fp16_per_cycle
        side = ceil(count / 2 / rate)
        if self.kernel.access.pairs == HALVES:
            side = count // self.unit * ceil(self.kernel.access.turned / 2 / rate)
        return 3 * start + ceil(count / rate) + 2 * side
