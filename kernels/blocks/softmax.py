"""Softmax of rows: values and vector instructions, for all families that contain a softmax."""

from __future__ import annotations

from wse_sim.kernels.blocks.line_stages import Vector
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.family import Array


def softmax(x: Array, *, dtype: str = "fp32", parts: int = 1, log: bool = False) -> Array:
    """Return the softmax (or its logarithm) over the last dimension, computed in fp32 and rounded once."""
    shifted = core.binary("sub", x, core.row_reduce(x, core.MAXIMUM, parts))
    exponentials = core.unary("exp", shifted)
    total = core.row_reduce(exponentials, core.SUM, parts)
    if log:
        return core.binary("sub", shifted, core.unary("log", total), dtype)
    return core.binary("div", exponentials, total, dtype)


def softmax_gradient(y: Array, g: Array, *, dtype: str = "fp32", parts: int = 1, log: bool = False) -> Array:
    """Return the gradient of the input, from the result y and its gradient g."""
    if log:
        total = core.row_reduce(g, core.SUM, parts)
        return core.binary("sub", g, core.binary("mul", core.unary("exp", y), total), dtype)
    total = core.row_reduce(core.binary("mul", y, g), core.SUM, parts)
    return core.binary("mul", y, core.binary("sub", g, total), dtype)


def softmax_vectors(x: str) -> tuple[Vector, ...]:
    """Return the instructions: maximum, difference, exponentials, sum, quotient; `statistic` has one value
    per row."""
    return (
        *exponentials(x, x),
        Vector("reciprocal", "statistic", ("statistic",)),
        Vector("mul", x, (x, "statistic")),
    )


def exponentials(x: str, kept: str) -> tuple[Vector, ...]:
    """Return the instructions that subtract the maximum from x, and put exponentials in `kept`, their sum in
    `statistic`."""
    return (
        Vector("mov", "statistic", (-3e38,)),
        Vector("max", "statistic", ("statistic", x)),
        Vector("share max", "statistic"),
        Vector("sub", x, (x, "statistic")),
        Vector("exp", kept, (x,)),
        Vector("mov", "statistic", (0.0,)),
        Vector("add", "statistic", ("statistic", kept)),
        Vector("share add", "statistic"),
    )


def gradient_vectors(y: str, g: str) -> tuple[Vector, ...]:
    """Return the instructions that replace g by y (g - sum of y g)."""
    return (
        Vector("mov", "statistic", (0.0,)),
        Vector("mac", "statistic", (y, g)),
        Vector("share add", "statistic"),
        Vector("sub", g, (g, "statistic")),
        Vector("mul", g, (g, y)),
    )
