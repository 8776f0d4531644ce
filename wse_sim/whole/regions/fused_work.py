"""Operations fused to a product, and which of them have a program."""

from __future__ import annotations

from wse_sim.graph import Kernel

FUNCTIONS = ("gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
"""Functions that the program of a layer with streamed weights does."""
ITEMS = ("bias", "residual", "relu")
"""Operations that the program of a dense layer in a region does, in this order."""


def items_of(kernel: Kernel) -> tuple[str, ...]:
    """Return the operations fused to a product, in order."""
    parts = (part.strip() for part in str(kernel.attrs.get("fused", "")).split(","))
    return tuple(part for part in parts if part)
