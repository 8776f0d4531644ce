"""Operations fused to a product: which have a program; and what operators on elements cost."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from wse_sim.graph import Kernel
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import op_rate
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS

FUNCTIONS = ("gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
"""Functions that the program of a layer with streamed weights does."""
ITEMS = ("bias", "residual", "relu")
"""Operations that the program of a dense layer in a region does, in this order."""


def work_cycles(operators: Sequence[str], size: int, wafer: Wafer) -> float:
    """Return the issue cycles of operators on `size` elements, with one vector start each; a quotient is a reciprocal and a
    product."""
    cycles = 0.0
    for op in operators:
        cycles += ceil(wafer.vector_start_cycles)
        if op == "div":
            cycles += ceil(wafer.vector_start_loaded_cycles) + ceil(size / wafer.fma_fp16_per_cycle)
        if op == "div" or op in SPECIAL_FUNCTIONS:
            cycles += size * wafer.special_element_cycles
        else:
            cycles += ceil(size / op_rate(op, "fp16", wafer))
    return cycles


def items_of(kernel: Kernel) -> tuple[str, ...]:
    """Return the operations fused to a product, in order."""
    parts = (part.strip() for part in str(kernel.attrs.get("fused", "")).split(","))
    return tuple(part for part in parts if part)
