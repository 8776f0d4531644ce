"""Reduction (sum, mean, max, min) of (rows, cols) over the last dimension.

Mapping: cols over the c columns of a lane, rows over the L R rows of lanes; each core reduces its
f = ceil(cols/c) elements of t = ceil(rows/(L R)) rows, then the t results go through a chain to the first core.

    T = o + t / w + o + f ceil(t / w) + chain (t + (hop + 2 T_R + 1)(c - 1) + o)      and o + t / w for a mean
    backward: multicast of the t gradients along the row, o + f ceil(t / w') to copy them (a mean scales them first)

Sums accumulate in fp32 at the mixed rate w.  One instruction covers the rows of a feature or the features of
a row, whichever is faster.  Program and equation of the parts: :mod:`wse_sim.kernels.blocks.line_stages`; the
chain is that of calibration 1.2.  Band of cost against program: 3 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_programs import LineTile, OnLines, RowWork, lane_tile, line_program
from wse_sim.kernels.blocks.line_stages import MATRIX, ROW, Shape, Vector
from wse_sim.kernels.blocks.training import moved_gradient
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div
from wse_sim.kernels.contract.family import (
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    Kept,
    ProgramOptions,
    Size,
    Tiling,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape


@dataclass(frozen=True)
class ReduceAttributes(Attributes):
    """Attributes of a reduction."""

    op: str = attribute("sum", "operator", choices=("sum", "mean", "max", "min"))


class Reduce(OnLines):
    """The family of reductions over the last dimension."""

    name = "reduce"
    sums_rows = True
    dims = sizes(rows="rows", cols="elements of a row")
    mappings = ("stationary", "streamed")
    lies = "rows along the lanes, a chain to the first core"
    programs = "sum and mean forward and backward, max and min forward"
    bands = "1 %"
    attributes = ReduceAttributes

    tile = staticmethod(lane_tile)

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of partial results, a stage buffer and code."""
        dtype = self.asked(tiling, how).dtype
        f, t = (
            ceil_div(dims["cols"], tiling.cols // tiling.lanes),
            ceil_div(dims["rows"], tiling.lanes * tiling.rows),
        )
        return Footprint(buffers_bytes=1.0 * f * bytes_of(dtype) + 8 * t, code_bytes=wafer.kernel_code_bytes)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of a local reduction and a chain along the row."""
        phase, dtype, attrs = self.asked(tiling, how)
        lane, t, f = self.tile(dims, tiling)
        return _work(phase, dtype, attrs, dims["cols"]).cost(t, f, lane, tiling.rows, wafer)

    def compute(self, x: Array, *, op: str = "sum", dtype: str = "fp32", parts: int = 1) -> Array:
        """Reduce the last dimension of x (sum, mean, max, min)."""
        kinds = {"sum": core.SUM, "mean": core.SUM, "max": core.MAXIMUM, "min": core.MINIMUM}
        if op not in kinds:
            raise KernelError(f"reduce has no numerics for '{op}'; use one of {', '.join(kinds)}")
        total = core.row_reduce(core.rounded(x, dtype), kinds[op], parts)[..., 0]
        return core.rounded(total / np.float32(np.shape(x)[-1]) if op == "mean" else total, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of rows along lanes; the first core of a lane has the result (backward: its
        gradient)."""
        phase, dtype, attrs = self.asked(tiling, options, "fp32")
        lane, t, f = (int(v) for v in self.tile(dims, tiling))
        tile, op = LineTile(int(tiling.rows), lane, t, f), _kind(attrs)
        work = _work(phase, dtype, attrs, tile.cols)
        if phase is not Phase.FORWARD and op in {"max", "min"}:
            raise KernelError(
                f"reduce: the gradient of '{op}' has no fabric program; use sum, mean, or --timing model"
            )
        x = np.random.default_rng(int(options.get("seed", 0))).standard_normal((tile.rows, tile.cols))
        x = x.astype(np.float16 if dtype == "fp16" else np.float32).astype(np.float32)
        if phase is Phase.FORWARD:
            total = self.compute(x, op=op)
            return line_program(work, tile, wafer, {"x": x}, {"total": total}, at_first=True)
        g = x[:, 0]
        wanted = np.repeat(g[:, None], tile.cols, axis=1) / (tile.cols if op == "mean" else 1)
        return line_program(work, tile, wafer, {"total": g}, {"x": wanted})

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return nothing: the backward pass needs only sizes."""
        return Kept()

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit a broadcast of the gradient to all elements that were reduced."""
        moved_gradient(kernel, gradient, tape, "broadcast")


def _kind(attrs: Attrs) -> str:
    op = ReduceAttributes.of(attrs).op
    return {"amax": "max", "amin": "min"}.get(op, op)


def _work(phase: Phase, dtype: str, attrs: Attrs, cols: Size) -> RowWork:
    """Return the instructions of a phase; `cols`: elements of the whole row, for a mean."""
    op = _kind(attrs)
    shapes = {"x": Shape(MATRIX, dtype), "total": Shape(ROW)}
    # If many sizes are priced at once, the value of the factor does not matter.
    mean = (
        (Vector("mul", "total", ("total", 1.0 if isinstance(cols, np.ndarray) else 1.0 / cols)),)
        if op == "mean"
        else ()
    )
    if phase is not Phase.FORWARD:
        # The gradient of a maximum goes to one element, at the cost of a copy.
        return RowWork((*mean, Vector("multicast", "total"), Vector("mov", "x", ("total",))), shapes)
    extreme = op if op in {"max", "min"} else "add"
    first = {"max": -3e38, "min": 3e38}.get(op, 0.0)
    local = (Vector("mov", "total", (first,)), Vector(extreme, "total", ("total", "x")))
    return RowWork((*local, Vector(f"reduce {extreme}", "total"), *mean), shapes)


FAMILY = register(Reduce())
