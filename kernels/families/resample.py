"""Resampling of b images (h, w, c) to (out_h, out_w): nearest (copy), bilinear (4 weighted taps), bicubic (16).

The d h lines of a volume are stored slice by slice; trilinear has 8 taps. With the attribute `antialias` the
taps widen as the image shrinks, and each direction is a separate pass, first along the lines, then across
them (a product with a sparse weight matrix per direction, as in torch). With T_w taps per result pixel, S = 1
(bilinear) or 2 (bicubic):

    T_w = 2 ceil(S max(1, w / out_w)) + 1, T_h alike;   T = T_w (o + n (h / out_h) / fma) + T_h (o + n / fma)

Mapping: outputs spread over all cores, n = ceil(b out_h out_w c / cores); source lines come from the
neighbours that hold them.

    nearest   T = o + n / mov                weighted  T = taps (o + n / fma)

Backward adds or weighs the same taps into the source.  Source: vector rates of the SDK documentation.
Program, nearest: for integer multiples in both directions; the s^2 strided moves are one instruction with a
four-dimensional descriptor, so there is one start. Weighted: for outputs at one position between the pixels,
so that a tap has one weight; each further position starts its taps again. Backward: nearest only. Band: 3 %;
backward only for 16-bit elements, because half of the fp32 sums read conflicting banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import scalar
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnElements
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.probes import arrival_probes, sized_probe
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import ceil_div, fma_rate, mov_rate, per_core, pointwise
from wse_sim.kernels.contract.family import (
    Array,
    Asked,
    Attrs,
    Case,
    Cost,
    Dims,
    Flow,
    How,
    Probe,
    ProgramOptions,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register

TAPS = {"nearest": 1, "bilinear": 4, "trilinear": 8, "bicubic": 16}
SUPPORT = {
    "bilinear": 1,
    "bicubic": 2,
}  # pixels on either side that the weights cover if the size is unchanged
PROBE_OUTPUTS = 2048  # per core; larger sizes are measured by the difference of two runs


@dataclass(frozen=True)
class ResampleAttributes(Attributes):
    """Attributes of a resampling: the operator or the mode of interpolation, and antialiasing."""

    op: str = attribute("nearest", "operator of the model")
    mode: str = attribute("", "weights of the taps; empty: those of `op`", choices=("", *TAPS))
    antialias: bool = attribute(False, "taps widen with the factor by which an image shrinks")


class Resample(OnElements):
    """The family of resampling."""

    name = "resample"
    dims = sizes(
        b="images",
        h="lines of an image",
        w="pixels of a line",
        c="channels",
        out_h="lines of the result",
        out_w="columns of the result",
    )
    mappings = ("stationary", "streamed")
    lies = "outputs over all cores"
    programs = "nearest (whole multiples) both ways; weighted taps forward"
    bands = "3 %"
    attributes = ResampleAttributes
    rows_by = ("out_h",)
    flows = Flow(is_barrier=True)  # the first line needs the complete image
    moves = True

    def elements(self, dims: Dims) -> Size:
        """Return the number of results."""
        return dims["b"] * dims["out_h"] * dims["out_w"] * dims["c"]

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of one copy, or of weighted taps."""
        _, dtype, attrs = self.asked(tiling, how)
        if ResampleAttributes.of(attrs).antialias:
            return self._passes(dims, tiling, wafer, dtype, mode_of(attrs))
        taps = TAPS[mode_of(attrs)]
        issue = 1.0 / mov_rate(dtype, wafer) if taps == 1 else taps / fma_rate(dtype, wafer)
        return pointwise(self.elements(dims), tiling, wafer, dtype=dtype, issue=issue, instructions=taps)

    def _passes(self, dims: Dims, tiling: Tiling, wafer: Wafer, dtype: str, mode: str) -> Cost:
        """Return the cost with antialiasing: one pass along all source lines, and one across them."""
        rate, across = fma_rate(dtype, wafer), passes(dims, mode)
        wide = dims["b"] * dims["h"] * dims["out_w"] * dims["c"]
        along, taps = across
        first = pointwise(wide, tiling, wafer, dtype=dtype, issue=along / rate, instructions=along)
        return first + pointwise(
            self.elements(dims), tiling, wafer, dtype=dtype, issue=taps / rate, instructions=taps
        )

    def compute(
        self,
        x: Array,
        out_h: int,
        out_w: int,
        *,
        mode: str = "nearest",
        antialias: bool = False,
        dtype: str = "fp32",
    ) -> Array:
        """Resample x (b, h, w, c); bilinear samples at pixel centres, without aligned corners.

        Raises
        ------
        KernelError
            For other modes.
        """
        x = core.rounded(x, dtype)
        h, w = x.shape[1:3]
        if antialias and mode in SUPPORT:
            lines = np.einsum("bhwc,ow->bhoc", x, weights_of(w, out_w, mode)).astype(np.float32)
            whole = np.einsum("bhwc,oh->bowc", lines, weights_of(h, out_h, mode)).astype(np.float32)
            return core.rounded(whole, dtype)
        if mode == "nearest":
            return x[:, np.arange(out_h) * h // out_h][:, :, np.arange(out_w) * w // out_w]
        if mode != "bilinear":
            raise KernelError(f"resample has no numerics for '{mode}'; use nearest or bilinear")
        (y0, y1, fy), (x0, x1, fx) = _taps(out_h, h), _taps(out_w, w)
        fy, fx = fy[:, None, None], fx[:, None]
        top = core.binary("add", x[:, y0][:, :, x0] * (1 - fx), x[:, y0][:, :, x1] * fx)
        bottom = core.binary("add", x[:, y1][:, :, x0] * (1 - fx), x[:, y1][:, :, x1] * fx)
        return core.binary("add", top * (1 - fy), bottom * fy, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program: nearest on a line of source pixels per core, its gradient, or weighted taps.

        Raises
        ------
        KernelError
            For sizes that are not integer multiples (nearest), antialiasing, and the backward pass of
            weighted taps.
        """
        rows, cols = int(tiling.rows), int(tiling.cols)
        phase, dtype, attrs = asked(options)
        mode, backward = mode_of(attrs), phase is not Phase.FORWARD
        if ResampleAttributes.of(attrs).antialias:
            raise KernelError("an antialiased resample has no fabric program; use --timing model")
        seed = int(options.get("seed", 0))
        if mode == "nearest":
            s = _enlargement(dims)
            pixels = int(ceil_div(per_core(self.elements(dims), tiling), s * s))
            return self._nearest(pixels, s, rows, cols, wafer, dtype, seed, backward=backward)
        if backward:
            raise KernelError(
                f"the backward pass of resample '{mode}' has no fabric program; use --timing model"
            )
        n = int(per_core(self.elements(dims), tiling))
        return _weighted(n, TAPS[mode], rows, cols, wafer, dtype, seed)

    def _nearest(
        self,
        pixels: int,
        s: int,
        rows: int,
        cols: int,
        wafer: Wafer,
        dtype: str,
        seed: int,
        *,
        backward: bool,
    ) -> Case:
        """Return a program in which each core enlarges a line of `pixels` to s lines of s `pixels`, or sums
        their gradients."""
        b = new_builder(rows, cols, wafer)
        line, image = (
            b.buffer("line", pixels, dtype, bank=0),
            b.buffer("image", s * s * pixels, dtype, bank=2),
        )
        k = b.core_class("core")
        for tap in range(s * s):
            dy, dx = divmod(tap, s)
            part, start = image.dsd(dy * s * pixels + dx, pixels, s), "none" if tap else "code"
            if not backward:
                k.mov(part, line.dsd(), dtype=dtype, start=start)
            elif tap == 0:
                k.mov(line.dsd(), part, dtype=dtype, start=start)
            else:
                k.add(line.dsd(), line.dsd(), part, dtype=dtype, start=start)
        b.place(k, None)
        values = np.random.default_rng(seed).integers(-9, 9, (rows * cols, s, s * pixels)).astype(np.float32)
        if backward:
            sums = values.reshape(rows, cols, s, pixels, s).sum(axis=(2, 4))
            return Case(b.build(), b.config, {"image": values.reshape(rows, cols, -1)}, {"line": sums})
        source = values[:, :1, :pixels]
        enlarged = self.compute(source[..., None], s, s * pixels).reshape(rows, cols, -1)
        return Case(b.build(), b.config, {"line": source.reshape(rows, cols, -1)}, {"image": enlarged})

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return probes of one core with its part of the outputs, and of operand arrival; none without a
        program."""
        phase, dtype, attrs = asked(how)
        mode = mode_of(attrs)
        if mode == "nearest":
            s = _enlargement(dims)
        elif phase is not Phase.FORWARD or ResampleAttributes.of(attrs).antialias:
            return ()
        else:
            s = 1
        pixels = int(ceil_div(per_core(self.elements(dims), tiling), s * s))
        most = PROBE_OUTPUTS if mode == "nearest" else PROBE_OUTPUTS // 2  # so that the taps fit in a core
        cost, how_mode = self.cost(dims, tiling, wafer, **how), Asked(phase, dtype, {"mode": mode})
        # The taps of `pixels` source pixels are measured as `pixels` images of one pixel.
        lines = {"b": pixels, "h": 1, "c": 1, "w": 1, "out_h": s, "out_w": s}
        tile = f"{pixels * s * s} outputs"
        own = sized_probe(mode, self.name, lines, "b", most // (s * s), cost, tile, how_mode)
        return (own, *arrival_probes(cost, dtype))


def mode_of(attrs: Attrs | None) -> str:
    """Return the mode (nearest, bilinear, trilinear, bicubic): the stated one, or that of the operator's
    name.

    Raises
    ------
    KernelError
        If a stated mode is unknown.
    """
    stated = ResampleAttributes.of(attrs)
    if stated.mode:
        if stated.mode not in TAPS:
            raise KernelError(f"resample mode '{stated.mode}' is unknown; use {', '.join(TAPS)}")
        return stated.mode
    op = stated.op
    for mode in ("bicubic", "trilinear"):
        if mode in op:
            return mode
    return "bilinear" if "linear" in op or "grid_sampler" in op else "nearest"


def passes(dims: Dims, mode: str) -> tuple[int, int]:
    """Return the taps of an antialiased resampling, along a line and across lines."""
    found = []
    for size, out in ((dims["w"], dims["out_w"]), (dims["h"], dims["out_h"])):
        found.append(2 * int(np.ceil(SUPPORT[mode] * max(1.0, size / out))) + 1)
    return found[0], found[1]


def weights_of(size: int, out: int, mode: str) -> Array:
    """Return the weights (out, size) of an antialiased resampling: triangle, or Keys' cubic (a = -1/2); rows
    sum to 1."""
    scale = max(1.0, size / out)
    centre = (np.arange(out)[:, None] + 0.5) * size / out
    at = np.abs((np.arange(size)[None] + 0.5 - centre) / scale)
    if mode == "bilinear":
        found = np.maximum(0.0, 1.0 - at)
    else:
        near, far = (1.5 * at - 2.5) * at * at + 1.0, ((-0.5 * at + 2.5) * at - 4.0) * at + 2.0
        found = np.where(at < 1.0, near, np.where(at < 2.0, far, 0.0))
    return (found / found.sum(axis=1, keepdims=True)).astype(np.float32)


def _enlargement(dims: Dims) -> int:
    h, w, out_h, out_w = (int(dims[name]) for name in ("h", "w", "out_h", "out_w"))
    if out_h % h or out_h // h * w != out_w:
        raise KernelError(
            f"resample of {h} x {w} to {out_h} x {out_w} has no fabric program; "
            "use the same whole multiple in both directions"
        )
    return out_h // h


def _weighted(n: int, taps: int, rows: int, cols: int, wafer: Wafer, dtype: str, seed: int) -> Case:
    """Return the program of sums over `taps` pixels per output, for outputs with equal weights (one subpixel
    position)."""
    rng = np.random.default_rng(seed)
    b = new_builder(rows, cols, wafer)
    k, y = b.core_class("core"), b.buffer("y", n, dtype, bank=0).dsd()
    inputs, total = {}, np.zeros((rows, cols, n), np.float32)
    for i in range(taps):
        # Two banks away from the sums.
        pixels, weight = b.buffer(f"x{i}", n, dtype, bank=2).dsd(), float(rng.integers(1, 4))
        inputs[f"x{i}"] = values = rng.integers(-4, 5, (rows, cols, n)).astype(np.float32)
        total += weight * values
        if i == 0:
            k.mul(y, pixels, scalar(weight), dtype=_mixed(dtype))
        else:
            k.fmac(y, y, pixels, scalar(weight), dtype=_mixed(dtype))
    b.place(k, None)
    return Case(b.build(), b.config, inputs, {"y": total})


def _mixed(dtype: str) -> str:
    """Return the precision of products: fp16 pixels accumulate in fp32."""
    return "mixed" if dtype == "fp16" else dtype


def _taps(out: int, size: int) -> tuple[Any, Any, Any]:
    """Return the lower and upper source pixel of each output, and the weight of the upper one."""
    at = np.clip((np.arange(out) + 0.5) * size / out - 0.5, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    return low, np.minimum(low + 1, size - 1), (at - low).astype(np.float32)


FAMILY = register(Resample())
