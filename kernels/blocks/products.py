"""Matrix products in closed form: the two mappings of training, shared by gemm, convolution, attention.

Symbols: M, K, N the product (M, K) x (K, N); R, C rows and columns; L lanes of c = C // L columns;
s = triggered_start_cycles; w multiply-accumulates per cycle; rho = words per partial sum (fp32: 1).

streamed (activations are stationary: K over the c columns of a lane, M over the L R rows; weights stream,
each triggers a multiply-accumulate over the t resident rows; partial sums are reduced along the lane)::

    f = ceil(K/c), t = ceil(M/(L R))
    T = N (f (s + ceil(t/w)) + s + ceil(rho t)) + fill

streamed weight gradient ``(M, K=tokens) x (tokens, N)`` (both operands are stationary; the output gradient of
one column is broadcast along the lane, the sums leave down the columns)::

    f = ceil(M/c), t = ceil(K/(L R))
    T = N (f (s + ceil(t/w)) + s + ceil(t/2) + f) + fill

stationary (weights are stationary: K over rows, N over columns; each arriving activation triggers a
multiply-accumulate over the n resident columns; partial sums are reduced down the column)::

    k = ceil(K/R), n = ceil(N/C),  per token: k (s + ceil(n/w)) + n      (weight gradient: no "+ n")

work on the outputs: one core of the line stores a whole round of sums (streamed: one of N rounds, of t
tokens; stationary: one of M rounds, of n outputs); the busiest core stores::

    streamed  ceil(N/c) t        stationary  ceil(M/R) n

Source: calibration against published training rates; s = 0, rho = 1, mixed rate w.  These forms were chosen
with the published rates known. So was the ceil(t/2) of a streamed weight gradient: the program overlaps the
arrival of a gradient with the arithmetic and takes 10 to 25 % fewer cycles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from wse_sim.graph import Phase
from wse_sim.graph.optimizers import DEFAULT_OPTIMIZER, optimizer_named
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import (
    CHUNK_ELEMENTS,
    bytes_of,
    ceil_div,
    ceil_rate,
    fill_cycles,
    fma_rate,
    relay_cycles,
    words,
)
from wse_sim.kernels.contract.family import Attrs, Cost, Family, Footprint, Lay, Size, Tiling
from wse_sim.kernels.contract.parameters import ProductAttributes, WeightAttributes

SUM_BYTES = 4  # partial sums are fp32 unless the kernel accumulates in fp16


def chain_latency(cores: Size, wafer: Wafer) -> Size:
    """Return the latency of a chain of P = `cores` cores for one word: ``(hop + 2 T_R + 1) (P - 1)``
    cycles."""
    return (cores - 1) * relay_cycles(wafer)


def _rate(dtype: str, tiling: Tiling, attrs: Attrs, wafer: Wafer) -> float:
    return fma_rate(dtype, wafer, ProductAttributes.of(tiling.options, attrs).accumulate)


def streamed(m: Size, k: Size, n: Size, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> Cost:
    """Return the cost of a product of streamed weights: forward or input gradient.

    `density` (option or attribute): fraction of non-zero weights; zeros are neither sent nor computed.
    """
    w = _rate(dtype, tiling, attrs, wafer)
    lane = tiling.cols // tiling.lanes
    f = ceil_div(k, lane) * WeightAttributes.of(tiling.options, attrs).density
    t = ceil_div(m, tiling.lanes * tiling.rows)
    s = wafer.triggered_start_cycles
    zero = 0.0 * (f * t)
    return Cost(
        compute=n * f * ceil_rate(t, w) + zero,
        fabric=n * t * wafer.wavelet_cycles + zero,
        startup=n * (f + 1) * s + zero,
        idle=fill_cycles(tiling.rows, tiling.cols, wafer) + chain_latency(lane, wafer) + zero,
    )


def streamed_weight_gradient(
    m: Size, k: Size, n: Size, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs
) -> Cost:
    """Return the cost of a streamed weight gradient: (m features) x (k tokens) x (n outputs)."""
    w = _rate(dtype, tiling, attrs, wafer)
    lane = tiling.cols // tiling.lanes
    f = ceil_div(m, lane) * WeightAttributes.of(tiling.options, attrs).density
    t = ceil_div(k, tiling.lanes * tiling.rows)
    s = wafer.triggered_start_cycles
    zero = 0.0 * (f * t)
    return Cost(
        compute=n * f * ceil_rate(t, w) + zero,
        fabric=n * words(t, "fp16" if dtype != "fp32" else dtype) * wafer.wavelet_cycles + zero,
        ramp=n * f * wafer.wavelet_cycles + zero,
        startup=n * (f + 1) * s + zero,
        idle=fill_cycles(tiling.rows, tiling.cols, wafer) + chain_latency(tiling.rows, wafer) + zero,
    )


def _oriented(
    tokens: Size, k_dim: Size, n_dim: Size, rows: Size, cols: Size, w: float, reduce: bool, wafer: Wafer
) -> tuple[Any, Any, Any, Any, Any]:
    """Return (compute, reduction, start-up, chain, stored outputs) with K over `rows` and N over `cols`."""
    k, n = ceil_div(k_dim, rows), ceil_div(n_dim, cols)
    zero = 0.0 * (k * n)
    return (
        tokens * k * ceil_rate(n, w) + zero,
        tokens * n * wafer.wavelet_cycles * float(reduce) + zero,
        tokens * k * wafer.triggered_start_cycles + zero,
        chain_latency(rows, wafer) + zero,
        ceil_div(tokens, rows) * n + zero,
    )


def stationary(
    m: Size,
    k: Size,
    n: Size,
    tiling: Tiling,
    wafer: Wafer,
    dtype: str,
    attrs: Attrs,
    phase: Phase = Phase.FORWARD,
) -> Cost:
    """Return the cost of a stationary product; `orientation`: K over rows ("kn") or columns ("nk"), or the
    faster ("best").

    In a weight gradient (m features) x (k tokens) x (n outputs) the sums are stationary, with m over rows.
    """
    parts = _best_oriented(m, k, n, tiling, wafer, dtype, attrs, phase)
    return Cost(
        compute=parts[0],
        fabric=parts[1],
        startup=parts[2],
        idle=parts[3] + fill_cycles(tiling.rows, tiling.cols, wafer),
    )


def product_lay(attrs: Attrs) -> Lay:
    """Return the layout: words over one axis of the region, outputs over the other; open if the orientation
    is."""
    ways = {"kn": Lay("rows", "cols"), "nk": Lay("cols", "rows")}
    return ways.get(WeightAttributes.of(attrs).orientation, Lay())


def outputs_held(m: Size, k: Size, n: Size, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> Size:
    """Return the outputs that the busiest core works on in a forward product: whole rounds of sums."""
    if tiling.mapping == "stationary":
        return _best_oriented(m, k, n, tiling, wafer, dtype, attrs, Phase.FORWARD)[4]
    lane = tiling.cols // tiling.lanes
    return ceil_div(n, lane) * ceil_div(m, tiling.lanes * tiling.rows)


def _best_oriented(
    m: Size,
    k: Size,
    n: Size,
    tiling: Tiling,
    wafer: Wafer,
    dtype: str,
    attrs: Attrs,
    phase: Phase,
) -> tuple[Any, ...]:
    """Return the result of :func:`_oriented` for the fastest allowed orientation."""
    w = _rate(dtype, tiling, attrs, wafer)
    reduce = phase is not Phase.WEIGHT_GRADIENT
    tokens, k_dim = (m, k) if reduce else (k, m)
    rows, cols = tiling.rows, tiling.cols
    wanted = WeightAttributes.of(tiling.options, attrs).orientation
    ways = [
        _oriented(tokens, k_dim, n, a, b, w, reduce, wafer)
        for a, b, name in ((rows, cols, "kn"), (cols, rows, "nk"))
        if wanted in (name, "best")
    ]
    parts = ways[0]
    for other in ways[1:]:
        better = sum(other[:4]) < sum(parts[:4])
        parts = tuple(np.where(better, b, a) if np.ndim(better) else (b if better else a)
                      for a, b in zip(parts, other, strict=True))  # fmt: skip
    return parts


def laid(
    m: Size,
    k: Size,
    n: Size,
    tiling: Tiling,
    wafer: Wafer,
    dtype: str,
    attrs: Attrs,
    phase: Phase,
) -> tuple[Any, Any]:
    """Return the cores along the words and along the outputs of a stationary product, in the faster
    orientation."""
    wanted = WeightAttributes.of(tiling.options, attrs).orientation
    if wanted == "best":
        cycles = {}
        for name in ("kn", "nk"):
            way = replace(tiling, options={**tiling.options, "orientation": name})
            cycles[name] = float(np.asarray(stationary(m, k, n, way, wafer, dtype, attrs, phase).total))
        wanted = min(cycles, key=lambda name: cycles[name])
    return (tiling.cols, tiling.rows) if wanted == "nk" else (tiling.rows, tiling.cols)


def product(
    m: Size,
    k: Size,
    n: Size,
    tiling: Tiling,
    wafer: Wafer,
    dtype: str,
    attrs: Attrs,
    phase: Phase,
) -> Cost:
    """Return the cost of a product in the mapping of the tiling ("streamed" or "stationary")."""
    if tiling.mapping == "stationary":
        return stationary(m, k, n, tiling, wafer, dtype, attrs, phase)
    if phase is Phase.WEIGHT_GRADIENT:
        return streamed_weight_gradient(m, k, n, tiling, wafer, dtype, attrs)
    return streamed(m, k, n, tiling, wafer, dtype, attrs)


def weight_bytes(tiling: Tiling, attrs: Attrs, dtype: str, phase: Phase) -> float:
    """Return the bytes per resident weight: its data type; fp32 for a gradient; in training with optimizer
    state.

    "int8" weights take one byte and "frozen" weights do not train; neither has a gradient or optimizer state.
    """
    kept = WeightAttributes.of(attrs).weights
    if kept and phase is not Phase.WEIGHT_GRADIENT:
        return float(bytes_of("int8" if kept == "int8" else dtype))
    if tiling.options.get("training", False):
        name = str(tiling.options.get("optimizer", DEFAULT_OPTIMIZER) or "sgd")
        return float(optimizer_named(name).resident_bytes)
    return float(SUM_BYTES if phase is Phase.WEIGHT_GRADIENT else bytes_of(dtype))


def product_footprint(
    m: Size,
    k: Size,
    n: Size,
    tiling: Tiling,
    wafer: Wafer,
    dtype: str,
    attrs: Attrs,
    phase: Phase,
    weights: bool = True,
) -> Footprint:
    """Return the bytes per core: stationary weights, double-buffered operands and partial sums, code."""
    gradient = phase is Phase.WEIGHT_GRADIENT
    if tiling.mapping == "stationary":
        k_core, n_core = ceil_div(m if gradient else k, tiling.rows), ceil_div(n, tiling.cols)
        at_rest = weight_bytes(tiling, attrs, dtype, phase) if weights else bytes_of(dtype)
        return Footprint(
            weights_bytes=1.0 * k_core * n_core * at_rest,
            buffers_bytes=2 * k_core * bytes_of(dtype) + 2 * n_core * SUM_BYTES,
            code_bytes=wafer.kernel_code_bytes,
        )
    features, tokens = (m, k) if gradient else (k, m)
    f = ceil_div(features, tiling.cols // tiling.lanes)
    t = ceil_div(tokens, tiling.lanes * tiling.rows)
    sums = f if gradient else t
    return Footprint(
        # A weight is used on arrival; only two pieces of a column are buffered.
        weights_bytes=2.0 * np.minimum(f, CHUNK_ELEMENTS) * SUM_BYTES,
        buffers_bytes=2 * sums * SUM_BYTES + (2 * t * bytes_of(dtype) if gradient else 0),
        code_bytes=wafer.kernel_code_bytes,
    )


INT8_NOTE = (
    "int8 weights take 1 byte at rest and on their way to the wafer; products run at the rate of 16-bit operands, "
    "widening the weights is not counted (assumed)"
)


def weight_notes(attrs: Attrs) -> tuple[str, ...]:
    """Return notes on the weights of a product for readers of a plan."""
    return (INT8_NOTE,) if WeightAttributes.of(attrs).weights == "int8" else ()


class MatrixProduct(Family):
    """A family that is one matrix product: one launch in every phase."""

    def matmul_phases(self, phase: Phase) -> int:
        """Return 1: one product, or one launch for all of them."""
        return 1


class WeightProduct(MatrixProduct):
    """A product with weights."""

    def notes(self, attrs: Attrs) -> tuple[str, ...]:
        """Return a note on how int8 weights are priced."""
        return weight_notes(attrs)
