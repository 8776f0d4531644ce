"""2-D convolution of b images (h, w, c) with k filters of (r, s), direct (no unfolded copy is stored).

Mapping: pixels over the rows of lanes in strips of image lines, input channels and filter taps over the
columns, as a product (M, K) x (K, N):

    forward          M = b out_h out_w,     K = c r s,     N = k / groups
    input gradient   M = b out_h out_w,     K = k r s,     N = c / groups
    weight gradient  M = c r s,  tokens = b out_h out_w,   N = k / groups

All phases state the dims of the forward convolution.  Groups lie side by side on the columns.  Strips
exchange halos of r - 1 lines with their neighbours before the product:

    halo = words((r - 1) w ceil(c / c_lane)) when a strip is a part of an image

Equations of the product: :mod:`wse_sim.kernels.products`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from wse_sim.kernels.base import Cost, Family, Footprint, Tiling, register
from wse_sim.kernels.equations import bytes_of, ceil_div, check_tiling, words
from wse_sim.kernels.products import product, product_footprint

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer


class Conv2d(Family):
    """The family of 2-D convolutions."""

    name = "conv2d"
    dims = ("b", "h", "w", "c", "k", "r", "s", "stride", "out_h", "out_w")
    mappings = ("stationary", "streamed")

    def flops(self, dims: Mapping[str, Any]) -> Any:
        """2 per multiply-accumulate of one group's channels; `groups` is read from dims when given."""
        outputs = dims["b"] * dims["out_h"] * dims["out_w"] * dims["k"]
        return 2 * outputs * (dims["c"] // dims.get("groups", 1)) * dims["r"] * dims["s"]

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
        """As the product, plus the halo lines of a strip."""
        check_tiling(self.name, tiling, self.mappings)
        attrs = attrs or {}
        m, k, n = as_product(dims, phase, int(attrs.get("groups", 1)))
        base = product_footprint(m, k, n, tiling, dtype, attrs, phase)
        halo = halo_elements(dims, tiling) * bytes_of(dtype)
        return Footprint(
            base.weights_bytes, base.activations_bytes, base.buffers_bytes + halo, base.code_bytes
        )

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
        """The product and the exchange of halo lines."""
        check_tiling(self.name, tiling, self.mappings)
        attrs = attrs or {}
        m, k, n = as_product(dims, phase, int(attrs.get("groups", 1)))
        halo = words(halo_elements(dims, tiling), dtype) * wafer.wavelet_cycles
        start = 2 * wafer.vector_start_cycles * (halo > 0)
        return product(m, k, n, tiling, wafer, dtype, attrs, phase) + Cost(
            ramp=1.0 * halo, startup=1.0 * start
        )


def as_product(dims: Mapping[str, Any], phase: Phase, groups: int) -> tuple[Any, Any, Any]:
    """(M, K, N) of the product that the convolution is."""
    pixels = dims["b"] * dims["out_h"] * dims["out_w"]
    taps = dims["r"] * dims["s"]
    if phase is Phase.WEIGHT_GRADIENT:
        return dims["c"] * taps, pixels, ceil_div(dims["k"], groups)
    if phase is Phase.INPUT_GRADIENT:
        return pixels, dims["k"] * taps, ceil_div(dims["c"], groups)
    return pixels, dims["c"] * taps, ceil_div(dims["k"], groups)


def halo_elements(dims: Mapping[str, Any], tiling: Tiling) -> Any:
    """Elements that a strip receives from its neighbours: r - 1 lines of its channels."""
    lines = dims["r"] - 1
    channels = ceil_div(dims["c"], tiling.cols // tiling.lanes)
    shared = np.asarray(tiling.lanes * tiling.rows) > dims["b"]
    return lines * dims["w"] * channels * shared


FAMILY = register(Conv2d())
