"""2-D convolution of b images (h, w, c) with k filters of (r, s), direct (no unfolded copy is stored).

Mapping: pixels over the rows of lanes in strips of image lines, input channels and filter taps over the
columns, as a product (M, K) x (K, N):

    forward          M = b out_h out_w,     K = c r s,     N = k / groups
    transposed       M = b h w,             K = c r s,     N = k / groups
    weight gradient  M = c r s,  tokens = b out_h out_w,   N = k / groups

An input gradient is a transposed convolution (attribute `transposed`) with its own dims: c and k, input
and output have changed sides.  The weight gradient states the dims of the forward kernel.  Groups lie side by side on the columns.  Strips
exchange halos of r - 1 lines with their neighbours before the product:

    halo = words(lines w ceil(c / c_lane)), sent and received (streamed), when a strip is a part of an image
    lines = max(0, r - stride), transposed (r - 1) // stride

Several lines per core issue line by line, so a line of odd length rounds up; a transposed convolution gives
min(r, stride) min(s, stride) sums per pixel; a column of streamed weights that holds whole groups sends none.

Equations of the product: :mod:`wse_sim.kernels.parts.products`.  Programs: :mod:`wse_sim.kernels.parts.convolve` (streamed,
forward and transposed), :mod:`wse_sim.kernels.parts.convgrad` (streamed weight gradient),
:mod:`wse_sim.kernels.parts.convflow` (stationary, all phases).  Band of cost against program: 6 % from 16 filters and 16
pixels per line (15 % where a tap of 7 and more meets the bank of the sums); weight gradients as those of gemm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Corner, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import bytes_of, ceil_div, ceil_rate, check_tiling, fma_rate, option, words
from wse_sim.kernels.parts.corners import product_corner
from wse_sim.kernels.parts.products import product, product_footprint


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
        halo = halo_elements(dims, tiling, attrs) * bytes_of(dtype)
        return Footprint(
            base.weights_bytes, base.activations_bytes, base.buffers_bytes + halo, base.code_bytes
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """The product and the exchange of halo lines."""
        _, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        streamed = tiling.mapping == "streamed"
        halo = words(halo_elements(dims, tiling, attrs), dtype) * wafer.wavelet_cycles * streamed
        start = 4 * wafer.vector_start_cycles * (halo > 0)
        return turns_cost(dims, tiling, wafer, how) + Cost(ramp=2.0 * halo, startup=1.0 * start)

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
        """Lines at rest and streamed weights, or filters at rest and unfolded pixels."""
        from wse_sim.kernels.parts.convflow import flowing_program
        from wse_sim.kernels.parts.convgrad import gradient_program
        from wse_sim.kernels.parts.convolve import convolution_program

        if tiling.mapping == "stationary":
            return flowing_program(dims, tiling, wafer, **options)
        if options.get("phase", Phase.FORWARD) is Phase.WEIGHT_GRADIENT:
            return gradient_program(dims, tiling, wafer, **options)
        return convolution_program(dims, tiling, wafer, **options)

    def corners(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Corner, ...]:
        """The product on a small rectangle with the same tile; the exchange of lines keeps its formula."""
        from wse_sim.kernels.parts.conv_corners import streamed_corner

        wanted = asked(how)
        phase, dtype, attrs = wanted
        m, k, n = as_product(dims, phase, attrs)
        if tiling.mapping == "stationary":
            return (product_corner("product", m, k, n, tiling, wafer, dtype=dtype, phase=phase, attrs=attrs),)
        cost = turns_cost(dims, tiling, wafer, how)
        return (streamed_corner(dims, (m, k, n), line_pixels(dims, attrs)[1], tiling, wafer, cost, wanted),)


def turns_cost(dims: Dims, tiling: Tiling, wafer: Wafer, how: How) -> Cost:
    """The product that the convolution is, without the exchange of halo lines."""
    phase, dtype, attrs = asked(how)
    m, k, n = as_product(dims, phase, attrs)
    whole = product(m, k, n, tiling, wafer, dtype, attrs, phase)
    issue = issue_per_pixel(dims, tiling, m, phase, attrs, dtype, wafer)
    sums = sums_per_pixel(dims, tiling, phase, attrs)
    return replace(whole, compute=whole.compute * issue, fabric=whole.fabric * sums)


def _tap(x: Any, i: int, j: int, stride: int, out_h: int, out_w: int) -> Any:
    """The pixels that tap (i, j) of the filter meets, (b, out_h, out_w, c); a view."""
    return x[:, i : i + stride * out_h : stride, j : j + stride * out_w : stride][:, :out_h, :out_w]


def _slice(group: int, groups: int, channels: int) -> slice:
    size = channels // groups
    return slice(group * size, (group + 1) * size)


def as_product(dims: Dims, phase: Phase, attrs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """(M, K, N) of the product that the convolution is."""
    lines, per_line = line_pixels(dims, attrs)
    pixels = dims["b"] * lines * per_line
    features = dims["c"] * dims["r"] * dims["s"]
    outputs = ceil_div(dims["k"], int(attrs.get("groups", 1)))
    if phase is Phase.WEIGHT_GRADIENT:
        return features, pixels, outputs
    return pixels, features, outputs


def line_pixels(dims: Dims, attrs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Lines and pixels over which the taps slide: results, or what a transposed convolution spreads them from."""
    if not attrs.get("transposed", False):
        return dims["out_h"], dims["out_w"]
    stride = dims["stride"]
    return (
        np.maximum(dims["h"], ceil_div(dims["out_h"], stride)),
        np.maximum(dims["w"], ceil_div(dims["out_w"], stride)),
    )


def issue_per_pixel(
    dims: Dims, tiling: Tiling, pixels: Any, phase: Phase, attrs: Mapping[str, Any], dtype: str, wafer: Wafer
) -> Any:
    """Issue cycles of whole lines over those of as many pixels in one vector: a line of odd length rounds up."""
    if tiling.mapping != "streamed" or phase is Phase.WEIGHT_GRADIENT:
        return 1.0
    w = fma_rate(dtype, wafer, option(tiling, attrs, "accumulate", "fp32"))
    line = line_pixels(dims, attrs)[1]
    several = ceil_div(pixels, tiling.lanes * tiling.rows) >= 2 * line
    return np.where(several, ceil_rate(line, w) * w / line, 1.0)


def sums_per_pixel(dims: Dims, tiling: Tiling, phase: Phase, attrs: Mapping[str, Any]) -> Any:
    """Words of sums that leave per word of the product: results per pixel of a transposed convolution.

    None leave when a column of streamed weights holds whole groups: its sums are complete.
    """
    if phase is Phase.WEIGHT_GRADIENT:
        return 1
    groups, lane = int(attrs.get("groups", 1)), tiling.cols // tiling.lanes
    leave = 1 - (tiling.mapping == "streamed") * (groups > 1) * (groups >= np.asarray(lane))
    if not attrs.get("transposed", False):
        return leave
    return leave * np.minimum(dims["r"], dims["stride"]) * np.minimum(dims["s"], dims["stride"])


def halo_elements(dims: Dims, tiling: Tiling, attrs: Mapping[str, Any]) -> Any:
    """Elements of its channels that a strip receives from its neighbours, if it is a part of an image."""
    stride = dims["stride"]
    if attrs.get("transposed", False):
        lines = (dims["r"] - 1) // stride
    else:
        lines = np.maximum(0, dims["r"] - stride)
    channels = ceil_div(dims["c"], tiling.cols // tiling.lanes)
    shared = np.asarray(tiling.lanes * tiling.rows) > dims["b"]
    return lines * dims["w"] * channels * shared


FAMILY = register(Conv2d())
