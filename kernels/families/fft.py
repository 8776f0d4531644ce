"""Fourier transforms of `rows` blocks of n points; n2, n3: over two or three axes.  A complex number is a pair of words.

Mapping: pencils.  Along an axis a core has whole lines of n points, p = ceil(lines / cores). If there are
fewer lines than cores, a line is spread over q cores (a power of two that divides n), e = n / q points each.
v = p e points of a core, w(x) words::

    local stage of radix r     T = I_r (o + v / (r add))       I_2 = 10 instructions (6 of fp32, 4 of 16 bits
                               read twice from one bank and take 2 v), I_r = 6 (r - 1) + 8 r (r - 1)
    stage over q cores         T = 8 (o + v / add) + w(2 v)    (each of two cores has a half of the results)
    words of these stages      (q - 1) w(2 v) through the middle link, and q - 1 hops
    n with a factor over 7     two transforms of 2^k >= 2 n - 1 points and three products with tables (Bluestein)

The fastest q is used.  Several axes: lines are exchanged after each, so that the result is where the operand
was, over L = sqrt(cores of a block), at most sqrt(points of a block), cores of a line; both directions of a
line one after the other::

    T = 2 o + 2 L/4 w(2 v) + L hop

`real`: operand or result are real, so half of the points are transformed, and one more stage separates the
result.  Source: the pencils and exchanges of the published wafer-scale FFT (arXiv 2209.15040).  Nothing is
fitted: its published time, 512^3 points of fp32 on 512 x 512 cores, is 815,150 cycles; this cost is 11 %
higher. The paper's grids have at least one line per core; for lines over several cores, only the equations of
the exchange support the cost.

FLOPs are 0, as in torch's counter.  Program: a line of 2^k points per core, in constant geometry (each stage
reads halves and writes pairs).  Band: 3 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnePass
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import add_rate, bytes_of, ceil_div, fill_cycles, per_core, words
from wse_sim.kernels.contract.family import (
    Array,
    Case,
    Cost,
    Dims,
    Flow,
    Footprint,
    How,
    ProgramOptions,
    Role,
    Size,
    Tiling,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register

BUTTERFLY = 10
"""Real operations of a radix-2 butterfly: a complex product (six), a sum and a difference (two each)."""
COLLIDING = {"fp32": 6, "half": 4}
"""Instructions that read twice from one bank: halves of a line have equal banks; in fp32 also every second
result."""
HALF_BUTTERFLY = 8
"""Real operations for one of the two results of a butterfly: the product and one sum."""
COMPLEX_PRODUCT = 6
MOST_DIRECT = 7
"""Largest prime factor of n whose stage is computed directly."""


@dataclass(frozen=True)
class FourierAttributes(Attributes):
    """Attributes of a Fourier transform: whether one side is real."""

    real: bool = attribute(False, "operand or result are real numbers")


class Fourier(OnePass):
    """The family of Fourier transforms."""

    name = "fft"
    role = Role.MIXER
    cheaper = "transform fewer or shorter axes, of lengths that are powers of two"
    dims = sizes(rows="blocks that are transformed", n="points along the last axis")
    more_dims = sizes(n2="points along a second axis", n3="points along a third axis")
    mappings = ("stationary", "streamed")
    lies = "whole lines on each core, or a line over several"
    programs = "a line of 2^k complex points on each core"
    bands = "3 %"
    sums_rows = True
    named_for = ("_fft_c2c", "_fft_r2c", "_fft_c2r", "prims.fft_c2c", "prims.fft_r2c", "prims.fft_c2r")
    attributes = FourierAttributes
    flows = Flow(is_barrier=True)  # the first result needs all points of a block
    moves = True  # the gradient is the inverse transform

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of points before and after a stage, differences, factors of every stage, and
        code."""
        dtype = self.asked(tiling, how).dtype
        points = per_core(_points(dims), tiling)
        n = max(_axes(dims))
        elements = 5.5 * points + np.minimum(points, n) * max(1, len(factors_of(n)))
        return Footprint(
            buffers_bytes=elements * bytes_of(dtype),
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the lines along each axis, and of the exchanges between axes."""
        _, dtype, attrs = self.asked(tiling, how)
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
        """Transform pairs x (..., n3, n2, n, 2) over the last `axes` axes, without scaling in either
        direction."""
        pairs = core.rounded(x, dtype)
        points = pairs[..., 0] + 1j * pairs[..., 1]
        for axis in range(-axes, 0):
            points = np.moveaxis(_lines(np.moveaxis(points, axis, -1), inverse=inverse), -1, axis)
        return core.rounded(np.stack([points.real, points.imag], -1), dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of one line of 2^k complex points per core: stages read halves and write sums
        and rotated differences.

        Results are in bit-reversed order.

        Raises
        ------
        KernelError
            For several axes, real operands, other lengths, or more than one line per core.
        """
        _, dtype, attrs = self.asked(tiling, options, "fp32")
        n, lines = int(dims["n"]), int(dims["rows"])
        plain = len(_axes(dims)) == 1 and not FourierAttributes.of(attrs).real
        if not plain or n & (n - 1) or n < 4 or lines > int(tiling.rows) * int(tiling.cols):
            raise KernelError(
                f"fft: {lines} x {_axes(dims)} points on {tiling.rows} x {tiling.cols} cores have no fabric program; "
                "use one axis of 2^k complex points, a line per core, or --timing model"
            )
        return self._stages(n, int(tiling.rows), int(tiling.cols), wafer, dtype, int(options.get("seed", 0)))

    def _stages(self, n: int, rows: int, cols: int, wafer: Wafer, dtype: str, seed: int) -> Case:
        """Return the program of the stages in order, all alike except for their factors."""
        b, half = new_builder(rows, cols, wafer), n // 2
        k = b.core_class("core")
        stages = n.bit_length() - 1
        # Operands of one instruction are in different banks.
        parts = {
            name: [b.buffer(f"{name}{i}", n, dtype, bank=bank) for i in (0, 1)]
            for name, bank in (("re", 0), ("im", 4))
        }
        table = {name: b.buffer(name, half * stages, dtype, bank=2) for name in ("cos", "sin")}
        d_re, d_im, part = (
            b.buffer(name, half, dtype, bank=bank) for name, bank in (("dr", 0), ("di", 4), ("part", 6))
        )
        for s in range(stages):
            now, then = s % 2, 1 - s % 2
            for name, difference in (("re", d_re), ("im", d_im)):
                first, second = parts[name][now].dsd(0, half), parts[name][now].dsd(half, half)
                k.add(parts[name][then].dsd(0, half, 2), first, second, dtype=dtype)
                k.sub(difference.dsd(), first, second, dtype=dtype)
            c, t = (table[name].dsd(s * half, half) for name in ("cos", "sin"))
            re, im = (parts[name][then].dsd(1, half, 2) for name in ("re", "im"))
            k.mul(part.dsd(), d_im.dsd(), t, dtype=dtype)
            k.mul(re, d_re.dsd(), c, dtype=dtype)
            k.sub(re, re, part.dsd(), dtype=dtype)
            k.mul(part.dsd(), d_re.dsd(), t, dtype=dtype)
            k.mul(im, d_im.dsd(), c, dtype=dtype)
            k.add(im, im, part.dsd(), dtype=dtype)
        b.place(k, None)
        x = np.random.default_rng(seed).integers(-2, 3, (rows, cols, n, 2)).astype(np.float32)
        angles = [-2 * np.pi * (np.arange(half) >> s << s) / n for s in range(stages)]
        tables = {"cos": np.cos(np.concatenate(angles)), "sin": np.sin(np.concatenate(angles))}
        inputs = {
            name: np.broadcast_to(values.astype(np.float32), (rows, cols, half * stages))
            for name, values in tables.items()
        }
        order = [int(f"{i:0{stages}b}"[::-1], 2) for i in range(n)]
        wanted, last = self.compute(x, dtype=dtype)[..., order, :], stages % 2
        inputs |= {"re0": x[..., 0], "im0": x[..., 1]}
        expected = {f"re{last}": wanted[..., 0], f"im{last}": wanted[..., 1]}
        return Case(b.build(), b.config, inputs, expected, tolerance=1e-4 if dtype == "fp32" else 0.1)


def _axes(dims: Dims) -> tuple[int, ...]:
    """Return the points along each axis."""
    return tuple(int(dims[name]) for name in ("n", "n2", "n3") if int(dims.get(name, 1)) > 1) or (1,)


def _points(dims: Dims) -> Size:
    """Return the number of points of all blocks."""
    return dims["rows"] * dims["n"] * dims.get("n2", 1) * dims.get("n3", 1)


def factors_of(n: int) -> list[int]:
    """Return the prime factors of n, the smallest first."""
    found, factor = [], 2
    while n > 1:
        while n % factor == 0:
            found.append(factor)
            n //= factor
        factor += 1 if factor * factor <= n else max(1, n - factor)
    return found


def _along(n: int, lines: Size, tiling: Tiling, wafer: Wafer, dtype: str) -> Cost:
    """Return the cost of `lines` lines of n points, with the fastest number of cores per line."""
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


def _split(n: int, factors: list[int], q: int, lines: Size, tiling: Tiling, wafer: Wafer, dtype: str) -> Cost:
    """Return the cost of lines of n points, over q cores each."""
    cores = tiling.rows * tiling.cols
    p = ceil_div(lines * q, cores)
    v, rate, o = p * (n // q), add_rate(dtype, wafer), wafer.vector_start_cycles
    across = round(log2(q))
    compute, starts = HALF_BUTTERFLY * across * v / rate, HALF_BUTTERFLY * across
    for r in factors[across:]:
        collide = COLLIDING["fp32" if dtype == "fp32" else "half"] if r == 2 else 0
        instructions = BUTTERFLY if r == 2 else COMPLEX_PRODUCT * (r - 1) + 8 * r * (r - 1)
        compute = compute + (instructions + collide) * v / r / rate
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
    """Return the cost to exchange all lines of a block along lines of its cores."""
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


def _lines(x: NDArray[np.complex64], *, inverse: bool) -> NDArray[np.complex64]:
    """Transform the last axis stage by stage: radix 2 while the length is even, then directly."""
    n, sign = x.shape[-1], 1 if inverse else -1
    if n % 2 or n == 2:
        k = np.arange(n)
        table = np.exp(sign * 2j * np.pi * np.outer(k, k) / n).astype(np.complex64)
        return np.asarray(x @ table, np.complex64)
    even, odd = _lines(x[..., ::2], inverse=inverse), _lines(x[..., 1::2], inverse=inverse)
    turned = odd * np.exp(sign * 2j * np.pi * np.arange(n // 2) / n).astype(np.complex64)
    return np.concatenate([even + turned, even - turned], -1)


FAMILY = register(Fourier())
