"""Normalisation of (rows, cols): layer, rms, batch or group norm.

Mapping: cols (hidden) over the c = C // L columns of a lane, rows (tokens) over the L R rows of lanes:
each core holds f = ceil(cols/c) features of t = ceil(rows/(L R)) tokens.

    T = passes t f / rate + passes o + row all-reduce of the t statistics + t (root + division)

layer: mean, centred square, scale and shift (4 passes); rms: square, scale (2); batch and group as
layer.  Statistics are fp32 and reduced along the row (chain and multicast); backward reduces two sums
per token (layer) or one (rms) and needs 2 more passes, plus the sums for scale and shift.
Source: vector rates of the SDK documentation; reduce as in calibration 1.2.

grid: the hand-written kernel in fp32, forward only, without scale and shift; stages and equation in
:mod:`wse_sim.kernels.rows`.  Band: 3 %.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import (
    CODE_BYTES,
    add_rate,
    bytes_of,
    ceil_div,
    check_tiling,
    edge_wait,
    fill_cycles,
    row_allreduce,
)
from wse_sim.kernels.products import chain_latency
from wse_sim.kernels.rows import STATISTIC, Stage, grid_values, stages_cost, stages_program


class Norm(Family):
    """The family of normalisations."""

    name = "norm"
    dims = ("rows", "cols")
    mappings = ("stationary", "streamed", "grid")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Statistics, scale and shift, a stage buffer, code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        if tiling.mapping == "grid":
            t, f = ceil_div(dims["rows"], tiling.rows), ceil_div(dims["cols"], tiling.cols)
            return Footprint(activations_bytes=4.0 * t * f, buffers_bytes=4 * t + 8, code_bytes=CODE_BYTES)
        f, t = (
            ceil_div(dims["cols"], tiling.cols // tiling.lanes),
            ceil_div(dims["rows"], tiling.lanes * tiling.rows),
        )
        return Footprint(
            weights_bytes=2.0 * f * bytes_of(dtype),
            buffers_bytes=2 * f * bytes_of(dtype) + 8 * t,
            code_bytes=CODE_BYTES,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Vector passes, row all-reduces of the statistics, one root and one division per token."""
        phase, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        if tiling.mapping == "grid":
            return stages_cost(
                grid_stages(int(dims["cols"]), str(attrs.get("kind", "layer")) == "rms"),
                dims["rows"],
                dims["cols"],
                tiling,
                wafer,
            )
        is_rms = str(attrs.get("kind", "layer")) == "rms"
        backward = phase is not Phase.FORWARD
        if phase is Phase.WEIGHT_GRADIENT:
            return self._weight_gradient(dims, tiling, wafer, dtype, 1 if is_rms else 2)
        passes = (2 if is_rms else 4) + (2 if backward else 0)
        lane = tiling.cols // tiling.lanes
        f, t = ceil_div(dims["cols"], lane), ceil_div(dims["rows"], tiling.lanes * tiling.rows)
        zero = 0.0 * (f * t)
        # The statistics accumulate in fp32: one pass at the mixed rate, the others at the type's rate.
        rate = add_rate(dtype, wafer)
        mixed = wafer.fma_fp32_per_cycle if dtype == "fp32" else wafer.fma_mixed_per_cycle
        compute = t * f * (1.0 / mixed + (passes - 1) / rate) + zero
        special = zero if backward else t * (wafer.sqrt_cycles + wafer.divide_cycles) + zero
        startup = passes * wafer.vector_start_cycles + zero
        busy = compute + special + startup
        elements = dims["rows"] * dims["cols"] * (2 if backward else 1)
        local = Cost(
            compute=compute,
            special=special,
            startup=startup,
            fabric=edge_wait(elements, busy, tiling, dtype, wafer),
            idle=fill_cycles(tiling.rows, tiling.cols, wafer) + zero,
        )
        sums = 1 if is_rms else 2
        return local + row_allreduce(sums * t, lane, wafer)

    def _weight_gradient(self, dims: Dims, tiling: Tiling, wafer: Wafer, dtype: str, sums: int) -> Cost:
        """Sums over the tokens of g x and of g: two passes, then a chain down the columns."""
        f = ceil_div(dims["cols"], tiling.cols // tiling.lanes)
        t = ceil_div(dims["rows"], tiling.lanes * tiling.rows)
        mixed = wafer.fma_fp32_per_cycle if dtype == "fp32" else wafer.fma_mixed_per_cycle
        zero = 0.0 * (f * t)
        return Cost(
            compute=sums * t * f / mixed + zero,
            fabric=sums * f * wafer.wavelet_cycles + zero,
            startup=2 * sums * wafer.vector_start_cycles + zero,
            idle=chain_latency(tiling.rows, wafer) + zero,
        )

    def compute(
        self,
        x: Any,
        scale: Any = None,
        shift: Any = None,
        *,
        kind: str = "layer",
        eps: float = 1e-5,
        dtype: str = "fp32",
        parts: int = 1,
    ) -> Any:
        """Normalise the last dimension of x (group and batch norm: bring their groups there first)."""
        from wse_sim.kernels import numerics as core

        normal, _ = _normalised(x, kind, eps, dtype, parts)
        if scale is not None:
            normal = core.binary("mul", normal, core.rounded(scale, dtype))
        if shift is not None:
            normal = core.binary("add", normal, core.rounded(shift, dtype))
        return core.rounded(normal, dtype)

    def gradient(
        self,
        x: Any,
        scale: Any,
        g: Any,
        *,
        kind: str = "layer",
        eps: float = 1e-5,
        dtype: str = "fp32",
        parts: int = 1,
    ) -> tuple[Any, Any, Any]:
        """Gradients of x, scale, shift."""
        from wse_sim.kernels import numerics as core

        normal, inverse = _normalised(x, kind, eps, dtype, parts)
        g = core.rounded(g, dtype)
        rows = (-1, normal.shape[-1])
        d_scale = core.row_reduce(core.binary("mul", g, normal).reshape(rows).T, core.SUM)[:, 0]
        d_shift = core.row_reduce(g.reshape(rows).T, core.SUM)[:, 0]
        scaled = core.binary("mul", g, core.rounded(scale, dtype))
        width = np.float32(normal.shape[-1])
        along = core.row_reduce(core.binary("mul", scaled, normal), core.SUM, parts) / width
        rest = core.binary("sub", scaled, core.binary("mul", normal, along))
        if kind != "rms":
            rest = core.binary("sub", rest, core.row_reduce(scaled, core.SUM, parts) / width)
        return core.binary("mul", rest, inverse, dtype), d_scale, d_shift

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """Hand-written layer or RMS norm of fp32 rows on a grid; rows and cols must fill the tiles."""
        kind = str((options.get("attrs") or {}).get("kind", "layer"))
        values = grid_values(self.name, dims, tiling, options)
        stages = grid_stages(int(dims["cols"]), kind == "rms")
        wanted = self.compute(values, kind=kind)
        return stages_program(stages, dims["rows"], dims["cols"], tiling, wafer, values, wanted)


def _normalised(x: Any, kind: str, eps: float, dtype: str, parts: int) -> tuple[Any, Any]:
    """(x - mean) / deviation and 1 / deviation, statistics in fp32."""
    from wse_sim.kernels import numerics as core

    x = core.rounded(x, dtype)
    width = np.float32(x.shape[-1])
    if kind != "rms":
        x = core.binary("sub", x, core.row_reduce(x, core.SUM, parts) / width)
    inverse = core.unary("rsqrt", core.row_reduce(x, core.SQUARES, parts) / width + np.float32(eps))
    return core.binary("mul", x, inverse), inverse


def grid_stages(cols: int, is_rms: bool, eps: float = 1e-5) -> tuple[Stage, ...]:
    """Mean and its subtraction (layer), mean square, inverse root, product."""
    mean = (
        Stage("fold", "add"),
        Stage("share", "add"),
        Stage("scale", value=1.0 / cols),
        Stage("row", "sub"),
        Stage("scale", value=0.0),
    )
    deviation = (
        Stage("fold", "mac"),
        Stage("share", "add"),
        Stage("scale", value=1.0 / cols, add=eps),
        Stage("map", "rsqrt", STATISTIC),
        Stage("row", "mul"),
    )
    return deviation if is_rms else mean + deviation


FAMILY = register(Norm())
