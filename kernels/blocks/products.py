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

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.graph.optimizers import DEFAULT_OPTIMIZER, optimizer_named
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.training import kept_by_product
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
from wse_sim.kernels.contract.family import (
    NONE,
    Attrs,
    Cost,
    Count,
    Dims,
    Family,
    Flow,
    Footprint,
    Kept,
    Lay,
    Size,
    Tiling,
)
from wse_sim.kernels.contract.parameters import WeightAttributes

SUM_BYTES = 4  # partial sums are fp32 unless the kernel accumulates in fp16


def chain_latency(cores: Size, wafer: Wafer) -> Size:
    """Return the latency of a chain of P = `cores` cores for one word: ``(hop + 2 T_R + 1) (P - 1)``
    cycles."""
    return (cores - 1) * relay_cycles(wafer)


class _Way(NamedTuple):
    """A stationary product with its words over some cores and its outputs over others."""

    compute: Size
    reduction: Size
    startup: Size
    chain: Size
    held: Size  # outputs of the busiest core that works on them
    along: Count  # cores along the words
    across: Count  # cores along the outputs


@dataclass(frozen=True)
class TiledProduct:
    """The product (m, k) x (k, n) in the mapping of its tiling, "streamed" or "stationary".

    Options of the tiling take precedence over attributes. `density`: fraction of non-zero weights; zeros are
    neither sent nor computed. `orientation`: K over rows ("kn") or columns ("nk"), or the faster ("best"). In a
    weight gradient (m features) x (k tokens) x (n outputs) of stationary weights the sums are stationary, with m
    over rows.
    """

    m: Size
    k: Size
    n: Size
    tiling: Tiling
    wafer: Wafer
    phase: Phase = Phase.FORWARD
    dtype: str = "fp16"
    attrs: Attrs = field(default_factory=dict)

    @cached_property
    def stated(self) -> WeightAttributes:
        """The options of the tiling and the attributes of the kernel."""
        return WeightAttributes.of(self.tiling.options, self.attrs)

    @property
    def is_gradient(self) -> bool:
        """Whether it is a weight gradient."""
        return self.phase is Phase.WEIGHT_GRADIENT

    @property
    def features(self) -> Size:
        """Features of a token: the inner dimension, or the rows of a weight gradient."""
        return self.m if self.is_gradient else self.k

    @property
    def tokens(self) -> Size:
        """Tokens: the rows of the result, or the inner dimension of a weight gradient."""
        return self.k if self.is_gradient else self.m

    @cached_property
    def rate(self) -> float:
        """Multiply-accumulates per cycle, w."""
        return fma_rate(self.dtype, self.wafer, self.stated.accumulate)

    @property
    def lane(self) -> Size:
        """Columns of a lane."""
        return self.tiling.cols // self.tiling.lanes

    @property
    def tile(self) -> tuple[Any, Any]:
        """Words of a round and elements that each of them meets, on a core: f and t, or k and n."""
        if self.tiling.mapping == "stationary":
            way = self.way
            return ceil_div(self.features, way.along), ceil_div(self.n, way.across)
        return ceil_div(self.features, self.lane), ceil_div(self.tokens, self.tiling.lanes * self.tiling.rows)

    @property
    def held(self) -> Size:
        """Outputs that the busiest core works on in a forward product: whole rounds of sums."""
        return (
            self.way.held
            if self.tiling.mapping == "stationary"
            else ceil_div(self.n, self.lane) * self.tile[1]
        )

    def cost(self) -> Cost:
        """Return the cost by the equations of the mapping and phase."""
        fill, wavelet = fill_cycles(self.tiling.rows, self.tiling.cols, self.wafer), self.wafer.wavelet_cycles
        if self.tiling.mapping == "stationary":
            way = self.way
            return Cost(compute=way.compute, fabric=way.reduction, startup=way.startup, idle=way.chain + fill)
        n, s, (f, t) = self.n, self.wafer.triggered_start_cycles, self.tile
        f = f * self.stated.density
        zero = 0.0 * (f * t)
        received, sent = t, 0.0
        chain = chain_latency(self.tiling.rows if self.is_gradient else self.lane, self.wafer)
        if self.is_gradient:
            received, sent = words(t, "fp16" if self.dtype != "fp32" else "fp32"), n * f * wavelet + zero
        return Cost(
            compute=n * f * ceil_rate(t, self.rate) + zero,
            fabric=n * received * wavelet + zero,
            ramp=sent,
            startup=n * (f + 1) * s + zero,
            idle=fill + chain + zero,
        )

    def _oriented(self, along: Count, across: Count) -> _Way:
        k, n, tokens = ceil_div(self.features, along), ceil_div(self.n, across), self.tokens
        zero = 0.0 * (k * n)
        return _Way(
            tokens * k * ceil_rate(n, self.rate) + zero,
            tokens * n * self.wafer.wavelet_cycles * float(not self.is_gradient) + zero,
            tokens * k * self.wafer.triggered_start_cycles + zero,
            chain_latency(along, self.wafer) + zero,
            ceil_div(tokens, along) * n + zero,
            along,
            across,
        )

    @cached_property
    def way(self) -> _Way:
        """The fastest allowed orientation of a stationary product."""
        rows, cols, wanted = self.tiling.rows, self.tiling.cols, self.stated.orientation
        if wanted != "best":
            return self._oriented(rows, cols) if wanted == "kn" else self._oriented(cols, rows)
        first, other = self._oriented(rows, cols), self._oriented(cols, rows)
        better = sum(other[:4]) < sum(first[:4])
        if not np.ndim(better):
            return other if better else first
        return _Way(*map(np.where, [better] * len(first), other, first))

    def footprint(self) -> Footprint:
        """Return the bytes per core: stationary weights, double-buffered operands and partial sums, code."""
        size, code = bytes_of(self.dtype), self.wafer.kernel_code_bytes
        if self.tiling.mapping == "stationary":
            k, n = ceil_div(self.features, self.tiling.rows), ceil_div(self.n, self.tiling.cols)
            at_rest = weight_bytes(self.tiling, self.attrs, self.dtype, self.phase)
            buffers = 2 * k * size + 2 * n * SUM_BYTES
            return Footprint(weights_bytes=1.0 * k * n * at_rest, buffers_bytes=buffers, code_bytes=code)
        f, t = self.tile
        return Footprint(
            # A weight is used on arrival; only two pieces of a column are buffered.
            weights_bytes=2.0 * np.minimum(f, CHUNK_ELEMENTS) * SUM_BYTES,
            buffers_bytes=2 * f * SUM_BYTES + 2 * t * size if self.is_gradient else 2 * t * SUM_BYTES,
            code_bytes=code,
        )


def product_lay(attrs: Attrs) -> Lay:
    """Return the layout: words over one axis of the region, outputs over the other; open if the orientation
    is."""
    ways = {"kn": Lay("rows", "cols"), "nk": Lay("cols", "rows")}
    return ways.get(WeightAttributes.of(attrs).orientation, Lay())


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


INT8_NOTE = (
    "int8 weights take 1 byte at rest and on their way to the wafer; products run at the rate of 16-bit operands, "
    "widening the weights is not counted (assumed)"
)


def weight_notes(attrs: Attrs) -> tuple[str, ...]:
    """Return notes on the weights of a product for readers of a plan."""
    return (INT8_NOTE,) if WeightAttributes.of(attrs).weights == "int8" else ()


class MatrixProduct(Family):
    """A family that is one matrix product: one launch in every phase."""

    def flops(self, dims: Dims, attrs: Attrs = NONE, phase: Phase = Phase.FORWARD) -> Size:
        """Return the FLOPs: 2 m k n in every phase, of each of b products."""
        return 2 * dims.get("b", 1) * dims["m"] * dims["k"] * dims["n"]

    def matmul_phases(self, phase: Phase) -> int:
        """Return 1: one product, or one launch for all of them."""
        return 1


class WeightProduct(MatrixProduct):
    """A product with weights: partial sums travel, zero weights are not sent."""

    flows = Flow(sums_on_links=True, skips_zero_weights=True)

    def notes(self, attrs: Attrs) -> tuple[str, ...]:
        """Return a note on how int8 weights are priced."""
        return weight_notes(attrs)

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the inputs, if the weights are trained, and the tensors that a fused activation needs."""
        return kept_by_product(kernel, tensors, not trained.isdisjoint(kernel.parameters))
