"""Dropout: a random mask times a scale.

Mapping: elements spread over all cores of the rectangle, n = ceil(elements / cores).

    T = n e + o        (one random number per element, scalar code);      backward e / 4

The mask is drawn by a counter-based generator, so the backward pass does not store it.
Source: calibration (GPT-2 small, special elements).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Cost, Family, Footprint, Tiling, register
from wse_sim.kernels.equations import BACKWARD_SPECIAL_SHARE, check_tiling, pointwise, pointwise_footprint


class Dropout(Family):
    """The family of dropout."""

    name = "dropout"
    dims = ("elements",)
    mappings = ("stationary", "streamed")

    def footprint(
        self,
        dims: Mapping[str, Any],
        tiling: Tiling,
        wafer: Wafer,
        *,
        phase: Phase = Phase.FORWARD,
        dtype: str = "fp16",
        attrs: Mapping[str, Any] | None = None,
    ) -> Footprint:
        """Stage buffers of the operands and code."""
        check_tiling(self.name, tiling, self.mappings)
        return pointwise_footprint(dims["elements"], tiling, dtype)

    def cost(
        self,
        dims: Mapping[str, Any],
        tiling: Tiling,
        wafer: Wafer,
        *,
        phase: Phase = Phase.FORWARD,
        dtype: str = "fp16",
        attrs: Mapping[str, Any] | None = None,
    ) -> Cost:
        """Random elements; nothing when p is 0."""
        check_tiling(self.name, tiling, self.mappings)
        if float((attrs or {}).get("p", 0.1)) == 0.0:
            return 0.0 * pointwise(dims["elements"], tiling, wafer, dtype=dtype)
        share = 1.0 if phase is Phase.FORWARD else BACKWARD_SPECIAL_SHARE
        return pointwise(dims["elements"], tiling, wafer, dtype=dtype, special=share)

    def compute(self, x: Any, *, p: float = 0.1, seed: int = 0, dtype: str = "fp32") -> Any:
        """x times the mask of `seed`; the gradient is the same product with the gradient."""
        from wse_sim.kernels import numerics as core

        return core.binary("mul", core.rounded(x, dtype), core.keep_mask(np.shape(x), p, seed), dtype)


FAMILY = register(Dropout())
