"""Fourier transforms of `rows` blocks of n points; n2, n3: over two or three axes.  A complex number is a pair of words.

Mapping: pencils.  Along an axis a core has whole lines of n points, p = ceil(lines / cores); where there are fewer lines than
cores, a line lies over q cores (a power of two that divides n), e = n / q points each.  v = p e points of a core, w(x) words::

    local stage of radix r     T = I_r (o + v / (r add))       I_2 = 10 instructions, I_r = 6 (r - 1) + 8 r (r - 1)
    stage over q cores         T = 8 (o + v / add) + w(2 v)    (each of two cores has a half of the results)
    words of these stages      (q - 1) w(2 v) through the middle link, and q - 1 hops
    n with a factor over 7     two transforms of 2^k >= 2 n - 1 points and three products with tables (Bluestein)

The fastest q is taken.  Several axes: lines are exchanged after each, so that the result is where the operand was, over
L = sqrt(cores of a block), at most sqrt(points of a block), cores of a line; both directions of a line one after the other::

    T = 2 o + 2 L/4 w(2 v) + L hop

`real`: operand or result are real: a transform of half of the points and a stage that takes it apart.  Source: the pencils and
exchanges of the published wafer-scale FFT (arXiv 2209.15040).  Nothing is fitted: its published time, 512^3 points of fp32 on
512 x 512 cores, is 815,150 cycles, this says 6 % more.  The paper's grids hold one line or more per core; lines over several cores rest on
the equations of the exchange alone.

FLOPs are 0, as torch's counter has it.  No program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Kernel, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.training import pointwise_gradient
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import (
    add_rate,
    bytes_of,
    ceil_div,
    check_tiling,
    fill_cycles,
    per_core,
    words,
)
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Cost,
    Dims,
    Family,
    Flow,
    Footprint,
    How,
    Kept,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape

BUTTERFLY = 10
"""Real operations of a radix-2 butterfly: a complex product (six), a sum and a difference (two each)."""
HALF_BUTTERFLY = 8
"""Of one of its two results: the product and one sum."""
COMPLEX_PRODUCT = 6
MOST_DIRECT = 7
"""Largest factor of n whose stage is worked out directly."""


@dataclass(frozen=True)
class FourierAttributes(Attributes):
    """Attributes of a Fourier transform: whether one side is real."""

    real: bool = attribute(False, "operand or result are real numbers")


class Fourier(Family):
    """The family of Fourier transforms."""

    name = "fft"
    cheaper = "transform fewer or shorter axes, of lengths that are powers of two"
    dims = sizes(rows="blocks that are transformed", n="points along the last axis")
    more_dims = sizes(n2="points along a second axis", n3="points along a third axis")
    mappings = ("stationary", "streamed")
    lies = "whole lines on each core, or a line over several"
    programs = "none"
    bands = "none"
    sums_rows = True
    named_for = ("_fft_c2c", "_fft_r2c", "_fft_c2r", "prims.fft_c2c", "prims.fft_r2c", "prims.fft_c2r")
    attributes = FourierAttributes

    def flow(self, dims: Dims, attrs: Mapping[str, Any] = NONE) -> Flow:
        """All points of a block before the first result."""
        return Flow(is_barrier=True)

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Points before and after a stage, factors of a line, code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        points = 2 * per_core(_points(dims), tiling)
        factors = max(_axes(dims))
        return Footprint(
            buffers_bytes=2.0 * points * bytes_of(dtype) + np.minimum(points, factors) * bytes_of(dtype),
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Lines along each axis, and the exchanges between axes."""
        _, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        axes, points = _axes(dims), _points(dims)
        half = 2 if FourierAttributes.of(attrs).real else 1
        total = Cost(compute=0.0 * per_core(points, tiling))
        for n in axes:
            total = total + _along(n, ceil_div(points // n, half), tiling, wafer, dtype)
        if len(axes) > 1:
            total = total + len(axes) * _exchanged(dims, ceil_div(points, half), tiling, wafer, dtype)
        if tiling.mapping == "stationary":
            total = total + Cost(idle=fill_cycles(tiling.rows, tiling.cols, wafer))
        return total

    def compute(self, x: Array, *, axes: int = 1, inverse: bool = False, dtype: str = "fp32") -> Array:
        """Transform pairs x (..., n3, n2, n, 2) over their last `axes` axes; not scaled either way."""
        pairs = core.rounded(x, dtype)
        points = pairs[..., 0] + 1j * pairs[..., 1]
        for axis in range(-axes, 0):
            points = np.moveaxis(_lines(np.moveaxis(points, axis, -1), inverse=inverse), -1, axis)
        return core.rounded(np.stack([points.real, points.imag], -1), dtype)

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Nothing: it is linear."""
        return Kept()

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """The transform the other way, of the gradient alone."""
        pointwise_gradient(kernel, gradient, tape, moves=True)


def _axes(dims: Dims) -> tuple[int, ...]:
    """Points along each axis."""
    return tuple(int(dims[name]) for name in ("n", "n2", "n3") if int(dims.get(name, 1)) > 1) or (1,)


def _points(dims: Dims) -> Size:
    """Points of all blocks."""
    return dims["rows"] * dims["n"] * dims.get("n2", 1) * dims.get("n3", 1)


def factors_of(n: int) -> list[int]:
    """Prime factors of n, the smallest first."""
    found, factor = [], 2
    while n > 1:
        while n % factor == 0:
            found.append(factor)
            n //= factor
        factor += 1 if factor * factor <= n else max(1, n - factor)
    return found


def _along(n: int, lines: Size, tiling: Tiling, wafer: Wafer, dtype: str) -> Cost:
    """`lines` lines of n points each, on as many cores per line as is fastest."""
    factors = factors_of(n)
    if factors and factors[-1] > MOST_DIRECT:
        m = 1 << ceil(log2(2 * n - 1))
        v = per_core(lines * m, tiling)
        tables = Cost(
            compute=3 * COMPLEX_PRODUCT * v / add_rate(dtype, wafer),
            startup=3 * COMPLEX_PRODUCT * wafer.vector_start_cycles + 0.0 * v,
        )
        return 2 * _along(m, lines, tiling, wafer, dtype) + tables
    best = _split(n, factors, 1, lines, tiling, wafer, dtype)
    most = factors.count(2)
    for k in range(1, most + 1):
        best = best.or_faster(_split(n, factors, 1 << k, lines, tiling, wafer, dtype))
    return best


def _split(
    n: int, factors: list[int], q: int, lines: Size, tiling: Tiling, wafer: Wafer, dtype: str
) -> Cost:
    """Lines of n points over q cores each."""
    cores = tiling.rows * tiling.cols
    p = ceil_div(lines * q, cores)
    v, rate, o = p * (n // q), add_rate(dtype, wafer), wafer.vector_start_cycles
    across = round(log2(q))
    compute, starts = HALF_BUTTERFLY * across * v / rate, HALF_BUTTERFLY * across
    for r in factors[across:]:
        instructions = BUTTERFLY if r == 2 else COMPLEX_PRODUCT * (r - 1) + 8 * r * (r - 1)
        compute = compute + instructions * v / r / rate
        starts += instructions
    sent = words(2 * v, dtype) * wafer.wavelet_cycles
    ramp = across * sent
    fits = np.where(q <= cores, 0.0, np.inf)
    return Cost(
        compute=compute,
        ramp=ramp,
        fabric=np.maximum(0.0, (q - 1) * sent - ramp),
        startup=starts * o + 0.0 * v,
        idle=((q - 1) * wafer.hop_cycles + across * wafer.handover_cycles) + fits,
    )


def _exchanged(dims: Dims, points: Size, tiling: Tiling, wafer: Wafer, dtype: str) -> Cost:
    """All lines of a block are exchanged along lines of its cores."""
    cores = tiling.rows * tiling.cols
    block = _points(dims) // dims["rows"]
    side = np.sqrt(np.maximum(1, np.minimum(cores // dims["rows"], block)))
    sent = words(2 * per_core(points, tiling), dtype) * wafer.wavelet_cycles
    apart = 1.0 * (side > 1)
    return Cost(
        ramp=apart * sent,
        fabric=apart * np.maximum(0.0, side * sent / 2 - sent),
        startup=2.0 * wafer.vector_start_cycles + 0.0 * sent,
        idle=apart * side * wafer.hop_cycles,
    )


def _lines(x: Any, *, inverse: bool) -> Any:
    """Stage by stage along the last axis: radix 2 while the length is even, then directly."""
    n, sign = x.shape[-1], 1 if inverse else -1
    if n % 2 or n == 2:
        k = np.arange(n)
        table = np.exp(sign * 2j * np.pi * np.outer(k, k) / n).astype(np.complex64)
        return (x @ table).astype(np.complex64)
    even, odd = _lines(x[..., ::2], inverse=inverse), _lines(x[..., 1::2], inverse=inverse)
    turned = odd * np.exp(sign * 2j * np.pi * np.arange(n // 2) / n).astype(np.complex64)
    return np.concatenate([even + turned, even - turned], -1)


FAMILY = register(Fourier())
