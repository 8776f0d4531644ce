"""Reduction (sum, mean, max) of (rows, cols) over the last dimension.

Mapping: cols over the c columns of a lane, rows over the L R rows of lanes; each core reduces its
f = ceil(cols/c) elements of t = ceil(rows/(L R)) rows, then the t results go through a chain.

    T = t f / rate + o + t + (hop + 2 T_R + 1)(c - 1) + o
    backward: broadcast of the t gradients along the row and a copy

Sums accumulate in fp32 at the mixed rate; the chain is that of calibration 1.2.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import CODE_BYTES, bytes_of, ceil_div, check_tiling, max_rate
from wse_sim.kernels.products import chain_latency


class Reduce(Family):
    """The family of reductions over the last dimension."""

    name = "reduce"
    dims = ("rows", "cols")
    mappings = ("stationary", "streamed")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Partial results, a stage buffer, code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        f, t = (
            ceil_div(dims["cols"], tiling.cols // tiling.lanes),
            ceil_div(dims["rows"], tiling.lanes * tiling.rows),
        )
        return Footprint(buffers_bytes=1.0 * f * bytes_of(dtype) + 8 * t, code_bytes=CODE_BYTES)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Local reduction, then a chain along the row."""
        _, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        lane = tiling.cols // tiling.lanes
        f, t = ceil_div(dims["cols"], lane), ceil_div(dims["rows"], tiling.lanes * tiling.rows)
        is_max = str(attrs.get("op", "sum")) in {"max", "min", "amax", "amin"}
        mixed = wafer.add_fp32_memory_per_cycle if dtype == "fp32" else wafer.add_fp32_per_cycle
        rate = max_rate(dtype, wafer) if is_max else mixed
        zero = 0.0 * (t * f)
        return Cost(
            compute=t * f / rate + zero,
            fabric=t * wafer.wavelet_cycles + zero,
            startup=2 * wafer.vector_start_cycles + zero,
            idle=chain_latency(lane, wafer) + zero,
        )

    def compute(self, x: Any, *, op: str = "sum", dtype: str = "fp32", parts: int = 1) -> Any:
        """Reduce the last dimension of x (sum, mean, max, min)."""
        from wse_sim.kernels import numerics as core

        kinds = {"sum": core.SUM, "mean": core.SUM, "max": core.MAXIMUM, "min": core.MINIMUM}
        if op not in kinds:
            raise KernelError(f"reduce has no numerics for '{op}'; use one of {', '.join(kinds)}")
        total = core.row_reduce(core.rounded(x, dtype), kinds[op], parts)[..., 0]
        return core.rounded(total / np.float32(np.shape(x)[-1]) if op == "mean" else total, dtype)


FAMILY = register(Reduce())
