"""Operations fused to a product: which have a program, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from wse_sim.graph import Kernel
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS

FUNCTIONS = ("gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
ITEMS = ("bias", "residual", "relu", *FUNCTIONS)


def work_cycles(items: Sequence[str], size: int, wafer: Wafer) -> float:
    """Return the cycles of the operations on `size` outputs, with one vector start each."""
    cycles = 0.0
    for item in items:
        cycles += ceil(wafer.vector_start_cycles)
        if item in SPECIAL_FUNCTIONS:
            cycles += size * wafer.special_element_cycles
        else:
            cycles += ceil(size / (wafer.max_fp16_per_cycle if item == "relu" else wafer.add_fp16_per_cycle))
    return cycles


def items_of(kernel: Kernel) -> tuple[str, ...]:
    """Return the operations fused to a product, in order."""
    parts = (part.strip() for part in str(kernel.attrs.get("fused", "")).split(","))
    return tuple(part for part in parts if part)
