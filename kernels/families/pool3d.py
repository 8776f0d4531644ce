"""3-D pooling (max or avg) of b volumes (d, h, w, c) over windows of (t, r, s).

Mapping and equations are those of :mod:`wse_sim.kernels.families.pool2d` with t r s positions per window: outputs over
all cores, one vector instruction per position.  As 2-D pooling it has d h lines and windows of t r lines; programs,
corners and gradients are those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Kernel, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.training import pointwise_gradient
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Case,
    Corner,
    Cost,
    Dims,
    Family,
    Flow,
    Footprint,
    How,
    Kept,
    ProgramOptions,
    Tiling,
)
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape
from wse_sim.kernels.families.pool2d import FAMILY as POOL2D
from wse_sim.kernels.families.pool2d import Pool2dAttributes


def flat(dims: Dims) -> Dims:
    """The 2-D pooling with as many inputs, outputs and positions per window."""
    same = {name: dims[name] for name in ("b", "w", "c", "s", "stride", "out_w")}
    return {
        **same,
        "h": dims["d"] * dims["h"],
        "r": dims["t"] * dims["r"],
        "out_h": dims["out_d"] * dims["out_h"],
    }


class Pool3d(Family):
    """The family of 3-D pooling."""

    name = "pool3d"
    dims = ("b", "d", "h", "w", "c", "t", "r", "s", "stride", "out_d", "out_h", "out_w")
    mappings = ("stationary", "streamed")
    attributes = Pool2dAttributes

    def flow(self, dims: Dims, attrs: Mapping[str, Any] = NONE) -> Flow:
        """Line by line of every slice."""
        return Flow(rows=dims["out_d"] * dims["out_h"])

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        return POOL2D.footprint(flat(dims), tiling, wafer, **how)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """One vector instruction per position of the window."""
        return POOL2D.cost(flat(dims), tiling, wafer, **how)

    def compute(
        self,
        x: Array,
        *,
        window: int = 2,
        stride: int = 2,
        padding: int = 0,
        kind: str = "max",
        dtype: str = "fp32",
    ) -> Array:
        """Pool x (b, d, h, w, c): 2-D pooling of every slice, then the slices of a window."""
        is_max = kind == "max"
        how: dict[str, Any] = {"window": window, "stride": stride, "padding": padding, "kind": kind}
        planes = POOL2D.compute(x.reshape(-1, *x.shape[2:]), **how, dtype=dtype)
        planes = planes.reshape(x.shape[0], x.shape[1], *planes.shape[1:])
        pads = ((0, 0), (padding, padding), (0, 0), (0, 0), (0, 0))
        padded = np.pad(planes, pads, constant_values=-np.inf if is_max else 0.0)
        out_d = (padded.shape[1] - window) // stride + 1
        total: Array = padded[:, 0::stride][:, :out_d]
        for tap in range(1, window):
            total = core.binary("max" if is_max else "add", total, padded[:, tap::stride][:, :out_d])
        return core.rounded(total, dtype) if is_max else core.binary("mul", total, 1.0 / window, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """One vector instruction per position of the window, on every core."""
        return POOL2D.program(flat(dims), tiling, wafer, **options)

    def corners(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Corner, ...]:
        """The outputs of one core."""
        return POOL2D.corners(flat(dims), tiling, wafer, **how)

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Its inputs, to find the largest; an average needs none."""
        return POOL2D.keeps(kernel, trained, tensors)

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """As the forward kernel, on the gradient alone."""
        pointwise_gradient(kernel, gradient, tape, moves=True)


FAMILY = register(Pool3d())
