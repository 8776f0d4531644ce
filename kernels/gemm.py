"""Matrix product (m, k) x (k, n).

Mappings
--------
streamed    activations rest, k over the columns of a lane, m over rows; weights stream.
stationary  weights rest, k over rows and n over columns (or transposed); activations stream.
Equations and symbols: :mod:`wse_sim.kernels.products`.

Backward kernels state their own dims: the input gradient is a product like the forward one, the
weight gradient has m = features, k = tokens, n = outputs.  `fused` ("bias,gelu,residual") adds the
work on the outputs.  Source: calibration against published training rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wse_sim.kernels.base import Cost, Family, Footprint, Tiling, register
from wse_sim.kernels.equations import SPECIAL_FUNCTIONS, add_rate, check_tiling, per_core
from wse_sim.kernels.products import product, product_footprint

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer


class Gemm(Family):
    """The family of matrix products with weights."""

    name = "gemm"
    dims = ("m", "k", "n")
    mappings = ("stationary", "streamed")

    def flops(self, dims: Mapping[str, Any]) -> Any:
        """2 m k n."""
        return 2 * dims["m"] * dims["k"] * dims["n"]

    def matmul_phases(self, phase: Phase) -> int:
        """One product."""
        return 1

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
        """Weights (stationary) or weight buffers (streamed), partial sums, code."""
        check_tiling(self.name, tiling, self.mappings)
        return product_footprint(dims["m"], dims["k"], dims["n"], tiling, dtype, attrs or {}, phase)

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
        """Cycles of the product and of what is fused to its output."""
        check_tiling(self.name, tiling, self.mappings)
        attrs = attrs or {}
        whole = product(dims["m"], dims["k"], dims["n"], tiling, wafer, dtype, attrs, phase)
        fused = str(attrs.get("fused", ""))
        if fused and phase is Phase.FORWARD:
            whole = whole + fused_cost(fused, dims["m"] * dims["n"], tiling, wafer, dtype)
        return whole


def fused_cost(fused: str, outputs: Any, tiling: Tiling, wafer: Wafer, dtype: str) -> Cost:
    """Work on each output element before it leaves: bias and residual adds, one activation."""
    n = per_core(outputs, tiling)
    cost = Cost(compute=0.0 * n)
    for item in filter(None, (part.strip() for part in fused.split(","))):
        if item in SPECIAL_FUNCTIONS:
            cost = cost + Cost(special=n * wafer.special_element_cycles)
        else:
            cost = cost + Cost(compute=n / add_rate(dtype, wafer), startup=wafer.vector_start_cycles)
    return cost


FAMILY = register(Gemm())
