"""Activations with their slopes: the outputs of a sample, and what their gradients are multiplied by on the way back.

Symbols: z the sum with bias and residual, y the output, s the slope; o the start of an instruction, n elements::

    relu      y = max(z, 0)               s = 1 where y > 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from wse_sim.fabric.format.builder import scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.hardware import Wafer

ACTIVATIONS = ("relu",)


@dataclass(frozen=True)
class Slopes:
    """One activation."""

    activation: str
    wafer: Wafer

    @property
    def scratch(self) -> int:
        """Buffers of fp32 elements that it takes."""
        return 0

    def emit(
        self,
        core: CoreClass,
        value: Operand,
        slope: Operand,
        scratch: Sequence[Operand],
        *,
        is_done: bool,
    ) -> None:
        """Turns `value` from z to y, unless that is done, and writes the slope."""
        if not is_done:
            core.max(value, value, scalar(0.0), dtype="fp16")
        core.map(Fn.STEP, slope, value, dtype="fp16", period=round(1000 / self.wafer.max_fp16_per_cycle))

    def cycles(self, size: int, *, is_done: bool) -> float:
        """Cycles that :meth:`emit` issues for `size` elements."""
        each = ceil(self.wafer.vector_start_cycles) + ceil(size / self.wafer.max_fp16_per_cycle)
        return float(each * (2 - is_done))
