"""Softmax over the last dimension of (rows, cols).

Mapping: elements spread over all cores of the rectangle; a row of the matrix lies on one row of
cores, or on one core when it fits.

    T = n e + n / add + allreduce of the row maxima and sums,      n = ceil(rows cols / cores)

e = special_element_cycles covers mask, maximum, exponential, sum and division of one element, as a
compiled training kernel does it; backward (y (g - sum g y)) is products and one sum: e / 4.
Source: calibration (GPT-2 small).

grid: the hand-written kernel in fp32, forward only: E cycles per exponential, stages and equation in
:mod:`wse_sim.kernels.rows`.  Band: 3 %.
"""

from __future__ import annotations

from typing import Any, Unpack

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import (
    BACKWARD_SPECIAL_SHARE,
    CODE_BYTES,
    ceil_div,
    check_tiling,
    pointwise,
    pointwise_footprint,
)
from wse_sim.kernels.rows import STATISTIC, Stage, grid_values, stages_cost, stages_program


class Softmax(Family):
    """The family of softmax over the last dimension."""

    name = "softmax"
    dims = ("rows", "cols")
    mappings = ("stationary", "streamed", "grid")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        if tiling.mapping == "grid":
            t, f = ceil_div(dims["rows"], tiling.rows), ceil_div(dims["cols"], tiling.cols)
            return Footprint(activations_bytes=4.0 * t * f, buffers_bytes=4 * t + 8, code_bytes=CODE_BYTES)
        return pointwise_footprint(dims["rows"] * dims["cols"], tiling, dtype)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Special elements; a quarter in a backward pass."""
        phase, dtype, _ = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        if tiling.mapping == "grid":
            return stages_cost(GRID_STAGES, dims["rows"], dims["cols"], tiling, wafer)
        share = 1.0 if phase is Phase.FORWARD else BACKWARD_SPECIAL_SHARE
        inputs = 1 if phase is Phase.FORWARD else 2
        elements = dims["rows"] * dims["cols"]
        return pointwise(elements, tiling, wafer, dtype=dtype, special=share, instructions=3, inputs=inputs)

    def compute(self, x: Any, *, dtype: str = "fp32", parts: int = 1, log: bool = False) -> Any:
        """Softmax (or its logarithm) over the last dimension, in fp32, rounded once."""
        from wse_sim.kernels import numerics as core

        shifted = core.binary("sub", x, core.row_reduce(x, core.MAXIMUM, parts))
        exponentials = core.unary("exp", shifted)
        total = core.row_reduce(exponentials, core.SUM, parts)
        if log:
            return core.binary("sub", shifted, core.unary("log", total), dtype)
        return core.binary("div", exponentials, total, dtype)

    def gradient(self, y: Any, g: Any, *, dtype: str = "fp32", parts: int = 1, log: bool = False) -> Any:
        """Gradient of the input from the result y and its gradient g."""
        from wse_sim.kernels import numerics as core

        if log:
            total = core.row_reduce(g, core.SUM, parts)
            return core.binary("sub", g, core.binary("mul", core.unary("exp", y), total), dtype)
        total = core.row_reduce(core.binary("mul", y, g), core.SUM, parts)
        return core.binary("mul", y, core.binary("sub", g, total), dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """Hand-written softmax of fp32 rows on a grid; rows and cols must fill the tiles."""
        values = grid_values(self.name, dims, tiling, options)
        return stages_program(
            GRID_STAGES, dims["rows"], dims["cols"], tiling, wafer, values, self.compute(values)
        )


# maximum, all-reduce, subtract, exponentials, sum, all-reduce, divide
GRID_STAGES = (
    Stage("fold", "max"),
    Stage("share", "max"),
    Stage("row", "sub"),
    Stage("map", "exp"),
    Stage("scale", value=0.0),
    Stage("fold", "add"),
    Stage("share", "add"),
    Stage("map", "reciprocal", STATISTIC),
    Stage("row", "mul"),
)

FAMILY = register(Softmax())
