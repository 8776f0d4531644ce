"""2-D convolution of b images (h, w, c) with k filters of (r, s), direct (no unfolded copy is stored).

Mapping: pixels over the rows of lanes in strips of image lines, input channels and filter taps over the
columns, as a product (M, K) x (K, N):

    forward          M = b out_h out_w,     K = c r s,     N = k / groups
    transposed       M = b h w,             K = c r s,     N = k / groups
    weight gradient  M = c r s,  tokens = b out_h out_w,   N = k / groups

An input gradient is a transposed convolution (attribute `transposed`) with its own dims: c and k, input
and output have changed sides.  The weight gradient states the dims of the forward kernel.  Groups lie side by side on the columns.  Strips
exchange halos of r - 1 lines with their neighbours before the product:

    halo = words((r - 1) w ceil(c / c_lane)) when a strip is a part of an image

Equations of the product: :mod:`wse_sim.kernels.products`.  Program: :mod:`wse_sim.kernels.convolve` (3 x 3,
stride 1, streamed, one image line per row of cores).  Band of cost against program: 5 % from 16 filters and
16 pixels per line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import bytes_of, ceil_div, check_tiling, words
from wse_sim.kernels.products import product, product_footprint


class Conv2d(Family):
    """The family of 2-D convolutions."""

    name = "conv2d"
    dims = ("b", "h", "w", "c", "k", "r", "s", "stride", "out_h", "out_w")
    mappings = ("stationary", "streamed")

    def flops(self, dims: Dims) -> Any:
        """2 per multiply-accumulate of one group's channels; `groups` is read from dims when given."""
        outputs = dims["b"] * dims["out_h"] * dims["out_w"] * dims["k"]
        return 2 * outputs * (dims["c"] // dims.get("groups", 1)) * dims["r"] * dims["s"]

    def matmul_phases(self, phase: Phase) -> int:
        """One product."""
        return 1

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """As the product, plus the halo lines of a strip."""
        phase, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        m, k, n = as_product(dims, phase, attrs)
        base = product_footprint(m, k, n, tiling, dtype, attrs, phase)
        halo = halo_elements(dims, tiling) * bytes_of(dtype)
        return Footprint(
            base.weights_bytes, base.activations_bytes, base.buffers_bytes + halo, base.code_bytes
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """The product and the exchange of halo lines."""
        phase, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        m, k, n = as_product(dims, phase, attrs)
        halo = words(halo_elements(dims, tiling), dtype) * wafer.wavelet_cycles
        start = 2 * wafer.vector_start_cycles * (halo > 0)
        return product(m, k, n, tiling, wafer, dtype, attrs, phase) + Cost(
            ramp=1.0 * halo, startup=1.0 * start
        )

    def compute(
        self,
        x: Any,
        filters: Any,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        dtype: str = "fp32",
        parts: int = 1,
    ) -> Any:
        """x (b, h, w, c) with filters (r, s, c / groups, k): one product per tap, summed in fp32."""
        from wse_sim.kernels import numerics as core

        x, filters = core.rounded(x, dtype), core.rounded(filters, dtype)
        r, s, _, k = filters.shape
        padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        out_h, out_w = ((padded.shape[axis] - size) // stride + 1 for axis, size in ((1, r), (2, s)))
        out = np.zeros((x.shape[0], out_h, out_w, k), np.float32)
        for i, j, g in np.ndindex(r, s, groups):
            pixels = _tap(padded, i, j, stride, out_h, out_w)[..., _slice(g, groups, x.shape[-1])]
            part = core.matmul(
                pixels.reshape(-1, pixels.shape[-1]), filters[i, j][:, _slice(g, groups, k)], parts=parts
            )
            out[..., _slice(g, groups, k)] += part.reshape(*out.shape[:-1], -1)
        return core.rounded(out, dtype)

    def gradient(
        self,
        x: Any,
        filters: Any,
        g: Any,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        dtype: str = "fp32",
        parts: int = 1,
    ) -> tuple[Any, Any]:
        """Gradients of x and of the filters."""
        from wse_sim.kernels import numerics as core

        x, filters, g = core.rounded(x, dtype), core.rounded(filters, dtype), core.rounded(g, dtype)
        r, s, _, k = filters.shape
        padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        d_padded, d_filters = np.zeros_like(padded), np.zeros_like(filters)
        for i, j, group in np.ndindex(r, s, groups):
            inputs, outputs = _slice(group, groups, x.shape[-1]), _slice(group, groups, k)
            flat = np.ascontiguousarray(g[..., outputs]).reshape(-1, k // groups)
            pixels = _tap(padded, i, j, stride, *g.shape[1:3])[..., inputs].reshape(-1, x.shape[-1] // groups)
            d_filters[i, j][:, outputs] = core.matmul(pixels.T, flat, parts=parts)
            back = core.matmul(flat, filters[i, j][:, outputs].T, parts=parts)
            target = _tap(d_padded, i, j, stride, *g.shape[1:3])
            target[..., inputs] += back.reshape(*g.shape[:3], -1)
        inner = d_padded[:, padding : padded.shape[1] - padding, padding : padded.shape[2] - padding]
        return core.rounded(inner, dtype), core.rounded(d_filters, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """Direct 3 x 3 convolution of the streamed mapping: halo exchange, then the product.

        Raises
        ------
        KernelError
            For weight gradients and for shapes that the program does not do.
        """
        if options.get("phase", Phase.FORWARD) is Phase.WEIGHT_GRADIENT:
            raise KernelError("conv2d: the weight gradient has no fabric program; use --timing model")
        from wse_sim.kernels.convolve import convolution_program

        return convolution_program(dims, tiling, wafer, **options)


def _tap(x: Any, i: int, j: int, stride: int, out_h: int, out_w: int) -> Any:
    """The pixels that tap (i, j) of the filter meets, (b, out_h, out_w, c); a view."""
    return x[:, i : i + stride * out_h : stride, j : j + stride * out_w : stride][:, :out_h, :out_w]


def _slice(group: int, groups: int, channels: int) -> slice:
    size = channels // groups
    return slice(group * size, (group + 1) * size)


def as_product(dims: Dims, phase: Phase, attrs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """(M, K, N) of the product that the convolution is."""
    sides = ("h", "w") if attrs.get("transposed", False) else ("out_h", "out_w")
    pixels = dims["b"] * dims[sides[0]] * dims[sides[1]]
    features = dims["c"] * dims["r"] * dims["s"]
    outputs = ceil_div(dims["k"], int(attrs.get("groups", 1)))
    if phase is Phase.WEIGHT_GRADIENT:
        return features, pixels, outputs
    return pixels, features, outputs


def halo_elements(dims: Dims, tiling: Tiling) -> Any:
    """Elements that a strip receives from its neighbours: r - 1 lines of its channels."""
    lines = dims["r"] - 1
    channels = ceil_div(dims["c"], tiling.cols // tiling.lanes)
    shared = np.asarray(tiling.lanes * tiling.rows) > dims["b"]
    return lines * dims["w"] * channels * shared


FAMILY = register(Conv2d())
