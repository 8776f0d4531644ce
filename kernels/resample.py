"""Resampling of b images (h, w, c) to (out_h, out_w): nearest (copy) or bilinear (four weighted taps).

Mapping: outputs spread over all cores, n = ceil(b out_h out_w c / cores); source lines come from the
neighbours that hold them.

    nearest   T = o + n / mov                bilinear  T = 4 (o + n / fma)

Source: vector rates of the SDK documentation.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import check_tiling, fma_rate, mov_rate, pointwise, pointwise_footprint


class Resample(Family):
    """The family of resampling."""

    name = "resample"
    dims = ("b", "h", "w", "c", "out_h", "out_w")
    mappings = ("stationary", "streamed")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        return pointwise_footprint(dims["b"] * dims["out_h"] * dims["out_w"] * dims["c"], tiling, dtype)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """One copy, or four weighted taps."""
        _, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        outputs = dims["b"] * dims["out_h"] * dims["out_w"] * dims["c"]
        if str(attrs.get("mode", "nearest")) == "nearest":
            return pointwise(outputs, tiling, wafer, dtype=dtype, issue=1.0 / mov_rate(dtype, wafer))
        issue = 4.0 / fma_rate(dtype, wafer)
        return pointwise(outputs, tiling, wafer, dtype=dtype, issue=issue, instructions=4)

    def compute(self, x: Any, out_h: int, out_w: int, *, mode: str = "nearest", dtype: str = "fp32") -> Any:
        """Resample x (b, h, w, c); bilinear keeps corners unaligned (pixel centres)."""
        from wse_sim.kernels import numerics as core

        x = core.rounded(x, dtype)
        h, w = x.shape[1:3]
        if mode == "nearest":
            return x[:, np.arange(out_h) * h // out_h][:, :, np.arange(out_w) * w // out_w]
        (y0, y1, fy), (x0, x1, fx) = _taps(out_h, h), _taps(out_w, w)
        fy, fx = fy[:, None, None], fx[:, None]
        top = core.binary("add", x[:, y0][:, :, x0] * (1 - fx), x[:, y0][:, :, x1] * fx)
        bottom = core.binary("add", x[:, y1][:, :, x0] * (1 - fx), x[:, y1][:, :, x1] * fx)
        return core.binary("add", top * (1 - fy), bottom * fy, dtype)


def _taps(out: int, size: int) -> tuple[Any, Any, Any]:
    """Lower and upper source pixel of each output, and the weight of the upper."""
    at = np.clip((np.arange(out) + 0.5) * size / out - 0.5, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    return low, np.minimum(low + 1, size - 1), (at - low).astype(np.float32)


FAMILY = register(Resample())
