"""Dropout: a random mask times a scale.

Mapping: elements spread over all cores of the rectangle, n = ceil(elements / cores).

    T = n e + o        (one random number per element, scalar code);      backward e / 4

The mask is drawn by a counter-based generator, so the backward pass does not store it.
Source: calibration (GPT-2 small, special elements).  The fabric has no generator: the program spends e
cycles per element in scalar code and multiplies by the mask that this code would have drawn.
Band of cost against program: 2 % (the product is a part of e).
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Corner, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.corners import elements_corner
from wse_sim.kernels.equations import (
    BACKWARD_SPECIAL_SHARE,
    check_tiling,
    per_core,
    pointwise,
    pointwise_footprint,
)


class Dropout(Family):
    """The family of dropout."""

    name = "dropout"
    dims = ("elements",)
    mappings = ("stationary", "streamed")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        return pointwise_footprint(dims["elements"], tiling, dtype)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Random elements; nothing when p is 0."""
        phase, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        if float(attrs.get("p", 0.1)) == 0.0:
            return 0.0 * pointwise(dims["elements"], tiling, wafer, dtype=dtype)
        share = 1.0 if phase is Phase.FORWARD else BACKWARD_SPECIAL_SHARE
        return pointwise(dims["elements"], tiling, wafer, dtype=dtype, special=share)

    def compute(self, x: Any, *, p: float = 0.1, seed: int = 0, dtype: str = "fp32") -> Any:
        """x times the mask of `seed`; the gradient is the same product with the gradient."""
        from wse_sim.kernels import numerics as core

        return core.binary("mul", core.rounded(x, dtype), core.keep_mask(np.shape(x), p, seed), dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """Scalar code of the random numbers, then the product with the mask, on every core."""
        from wse_sim.kernels import numerics as core
        from wse_sim.kernels.lines import new_builder

        dtype, seed = str(options.get("dtype", "fp32")), int(options.get("seed", 0))
        p = float((options.get("attrs") or {}).get("p", 0.1))
        rows, cols, n = int(tiling.rows), int(tiling.cols), int(per_core(dims["elements"], tiling))
        b = new_builder(rows, cols, wafer)
        k, x, mask = b.core_class("core"), b.buffer("x", n, dtype, bank=0), b.buffer("mask", n, dtype, bank=2)
        k.busy(round(n * wafer.special_element_cycles))
        k.mul(x.dsd(), x.dsd(), mask.dsd(), dtype=dtype)
        b.place(k, None)
        values = np.random.default_rng(seed).integers(-4, 5, (rows, cols, n)).astype(np.float32)
        inputs = {"x": values, "mask": core.rounded(core.keep_mask(values.shape, p, seed), dtype)}
        wanted = self.compute(values, p=p, seed=seed, dtype=dtype)
        return Case(b.build(), b.config, inputs, {"x": wanted}, tolerance=1e-2 if dtype == "fp16" else 1e-5)

    def corners(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Corner, ...]:
        """The elements of one core; forward only."""
        forward = asked(how).phase is Phase.FORWARD
        return elements_corner(self, dims, tiling, wafer, how) if forward else ()


FAMILY = register(Dropout())
