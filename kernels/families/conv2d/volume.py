"""3-D convolution of b volumes (d, h, w, c) with k filters of (t, r, s): 2-D convolutions over slices.

A slice of the result needs t slices of the volume, so the kernel is a 2-D convolution of b out_d images whose channels
are the c channels of those t slices (:mod:`wse_sim.kernels.families.conv2d`):

    forward, weight gradient    images b out_d,  channels c t
    transposed, stride z        result slices fall into min(t, z) classes by depth; class u has t_u taps of t / z,
                                one less or more: images b d, channels c t_u each, class after class

FLOPs are those of the sum over all classes: 2 b out_d out_h out_w (c t r s) k / groups, with d, h, w for a transposed one.

Exchange: a row of cores has lines of the volume, and of each line a number of slices according to its
fraction of the work. There are R rows of cores in all lanes, b out_h lines and out_d slices (b h and d if
transposed). A row has

    lines_own = max(1, lines / R),   slices_own = max(1, lines slices / R) if R > lines, else all slices
    halo = ((lines_own + halo lines) (slices_own + halo slices) - lines_own slices_own) w ceil(c / c_lane)   elements

Halo lines and slices are those of a 2-D convolution; each exists only if a volume is divided along that axis.
They are sent and received (streamed). Only the formula covers their cost, because in the programs a row
already has its t slices. Stationary weights are multiplied by unfolded pixels.  Band of cost (without the
exchange) against program: that of the 2-D convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import fused_cost, fused_forward, fused_probes
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, per_core, words
from wse_sim.kernels.contract.family import (
    Array,
    Asked,
    Attrs,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    Probe,
    ProgramOptions,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.conv2d.cost import as_product, halo_lines, turns_cost
from wse_sim.kernels.families.conv2d.family import FAMILY as CONV2D
from wse_sim.kernels.families.conv2d.family import SlidingProduct, results
from wse_sim.kernels.families.conv2d.reference import compute as compute2d
from wse_sim.kernels.families.conv2d.reference import gradient as gradient2d


@dataclass(frozen=True)
class Planes:
    """A 2-D convolution that represents `count` classes of result slices."""

    dims: Dims
    count: Size


def planes_of(dims: Dims, attrs: Attrs) -> tuple[Planes, ...]:
    """Return the 2-D convolutions that make up the kernel."""
    flat = {name: dims[name] for name in ("h", "w", "k", "r", "s", "stride", "out_h", "out_w")}
    taps, stride = dims["t"], dims["stride_d"]
    if not Conv2dAttributes.of(attrs).transposed:
        return (Planes({"b": dims["b"] * dims["out_d"], "c": dims["c"] * taps, **flat}, 1),)
    classes = min(int(taps), int(stride))
    less, more = divmod(int(taps), classes)
    sizes = ((less, classes - more), (less + 1, more))
    images = dims["b"] * max(int(dims["d"]), ceil_div(int(dims["out_d"]), int(stride)))
    return tuple(
        Planes({"b": images, "c": dims["c"] * size, **flat}, count) for size, count in sizes if count
    )


def slices_halo(dims: Dims, tiling: Tiling, attrs: Attrs) -> Size:
    """Return the elements that a row of cores receives for its channels: halo lines and slices."""
    transposed = Conv2dAttributes.of(attrs).transposed
    depth, height = ("d", "h") if transposed else ("out_d", "out_h")
    rows, lines, slices = np.asarray(tiling.lanes * tiling.rows), dims["b"] * dims[height], dims[depth]
    own_lines = np.maximum(1, ceil_div(lines, rows))
    own_slices = np.where(rows > lines, np.maximum(1, ceil_div(lines * slices, rows)), slices)
    if not transposed:
        own_lines, own_slices = own_lines * dims["stride"], own_slices * dims["stride_d"]
    more_lines = halo_lines(dims["r"], dims["stride"], attrs) * (rows > dims["b"])
    more_slices = halo_lines(dims["t"], dims["stride_d"], attrs) * (rows > lines)
    channels = ceil_div(dims["c"], tiling.cols // tiling.lanes)
    around = (own_lines + more_lines) * (own_slices + more_slices) - own_lines * own_slices
    return around * dims["w"] * channels


class Conv3d(SlidingProduct):
    """The family of 3-D convolutions."""

    name = "conv3d"
    dims = sizes(
        b="volumes",
        d="slices of a volume",
        h="lines of a slice",
        w="pixels of a line",
        c="input channels",
        k="output channels",
        t="slices of a filter",
        r="lines of a filter",
        s="columns of a filter",
        stride="lines and pixels from one position to the next",
        stride_d="slices from one position to the next",
        out_d="slices of the result",
        out_h="lines of the result",
        out_w="columns of the result",
    )
    lies = "as conv2d, with the slices under a filter as channels"
    programs = "as conv2d; transposed only with one class of result slices"
    bands = "as conv2d"
    axes: Mapping[str, str] = {"d": "t", "h": "r", "w": "s"}
    rows_by = ("out_d", "out_h")  # slice by slice, and line by line

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the footprint of the product of the largest class, plus the halo."""
        phase, dtype, attrs = self.asked(tiling, how)
        base = as_product(
            planes_of(dims, attrs)[-1].dims, tiling, wafer, Asked(phase, dtype, attrs)
        ).footprint()
        halo = slices_halo(dims, tiling, attrs) * bytes_of(dtype)
        return Footprint(
            base.weights_bytes, base.activations_bytes, base.buffers_bytes + halo, base.code_bytes
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the products of all classes, of the halo exchange, and of the fused
        operations."""
        phase, dtype, attrs = self.asked(tiling, how)
        halo = words(slices_halo(dims, tiling, attrs), dtype) * wafer.wavelet_cycles
        halo = halo * (tiling.mapping == "streamed")
        total = Cost(ramp=2.0 * halo, startup=4.0 * wafer.vector_start_cycles * (halo > 0))
        for planes in planes_of(dims, attrs):
            total = total + turns_cost(planes.dims, tiling, wafer, how) * planes.count
        return total + fused_cost(fused_forward(attrs, phase), per_core(results(dims), tiling), wafer, dtype)

    def compute(
        self,
        x: Array,
        filters: Array,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        dilation: int = 1,
        dtype: str = "fp32",
    ) -> Array:
        """Convolve x (b, d, h, w, c) with filters (t, r, s, c / groups, k): one 2-D convolution per tap along
        depth."""
        x = _padded_depth(core.rounded(x, dtype), padding)
        how: dict[str, Any] = {"stride": stride, "padding": padding, "groups": groups, "dilation": dilation}
        taps = filters.shape[0]
        out_d = (x.shape[1] - dilation * (taps - 1) - 1) // stride + 1
        total: Array | float = 0.0
        for tap in range(taps):
            slices = x[:, dilation * tap :: stride][:, :out_d]
            flat = slices.reshape(-1, *x.shape[2:])
            part = compute2d(flat, core.rounded(filters[tap], dtype), **how)
            total = total + part.reshape(x.shape[0], out_d, *part.shape[1:])
        return core.rounded(np.asarray(total), dtype)

    def gradient(
        self,
        x: Array,
        filters: Array,
        g: Array,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        dilation: int = 1,
        dtype: str = "fp32",
    ) -> tuple[Array, Array]:
        """Return the gradients of x and of the filters."""
        padded = _padded_depth(core.rounded(x, dtype), padding)
        how: dict[str, Any] = {"stride": stride, "padding": padding, "groups": groups, "dilation": dilation}
        d_padded, d_filters, out_d = np.zeros_like(padded), np.zeros_like(filters), g.shape[1]
        flat = core.rounded(g, dtype).reshape(-1, *g.shape[2:])
        for tap in range(filters.shape[0]):
            slices = padded[:, dilation * tap :: stride][:, :out_d]
            dx, d_filters[tap] = gradient2d(
                slices.reshape(-1, *x.shape[2:]), core.rounded(filters[tap], dtype), flat, **how
            )
            d_padded[:, dilation * tap :: stride][:, :out_d] += dx.reshape(slices.shape)
        inner = d_padded[:, padding : padded.shape[1] - padding]
        return core.rounded(inner, dtype), core.rounded(d_filters, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of the 2-D convolution of the slices; every row stores t of them.

        Raises
        ------
        KernelError
            For a transposed convolution with several classes of result slices, and as the 2-D program.
        """
        planes = planes_of(dims, options.get("attrs") or {})
        if len(planes) > 1 or planes[0].count > 1:
            raise KernelError(
                f"conv3d: a transposed convolution of stride {int(dims['stride_d'])} along depth has no fabric program "
                "(its classes of slices are separate programs); use --timing model"
            )
        return CONV2D.program(planes[0].dims, tiling, wafer, **options)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return the 2-D probes of every class, and those of the fused operations; no probe measures the
        exchange."""
        phase, dtype, attrs = asked(how)
        bare: How = {
            "phase": phase,
            "dtype": dtype,
            "attrs": {k: v for k, v in attrs.items() if k != "fused"},
        }
        found = [
            _times(probe, planes.count)
            for planes in planes_of(dims, attrs)
            for probe in CONV2D.probes(planes.dims, tiling, wafer, **bare)
        ]
        return (
            *found,
            *fused_probes(fused_forward(attrs, phase), per_core(results(dims), tiling), wafer, dtype),
        )


def _times(probe: Probe, count: Size) -> Probe:
    """Return a probe that represents `count` classes."""
    return probe if count == 1 else replace(probe, cost=probe.cost * count)


def _padded_depth(x: Array, padding: int) -> Array:
    return np.pad(x, ((0, 0), (padding, padding), *((0, 0),) * (x.ndim - 2)))


FAMILY = register(Conv3d())
