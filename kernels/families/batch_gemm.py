"""Batched matrix product: b independent products (m, k) x (k, n) of two activations.

Mapping: each product has a = cores // b separate cores. If b > cores, a core computes p = ceil(b / cores)
products, one after another.

streamed    r = min(ceil(m/w), a) cores along m, q = a // r along k; the right operand circulates and
            triggers, partial sums are reduced over the q cores; with the attribute `heads` the lanes fix
            q = c // heads and r = L R heads // b instead::

                f = ceil(k/q), t = ceil(m/r):   T = p n (f (s + ceil(t/w)) + s + ceil(rho t)) + fill

stationary  the right operand is stationary, k over r = sqrt(a k / n) cores, n over q = a // r; the left streams::

                T = p m (ceil(k/r) (s + ceil(ceil(n/q)/w)) + ceil(n/q)) + fill

Gradients are such products as well, with their own dims.  Source: calibration against published training
rates. Program: one sub-rectangle (the others are equal and independent), its products one after another. Band
of cost against program: 3 % from 8 x 8 elements per core; the fill counts the whole rectangle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Kernel, Phase, Tensor, frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import fused_cost, fused_forward, fused_probes
from wse_sim.kernels.blocks.probes import product_probe, steady
from wse_sim.kernels.blocks.products import SUM_BYTES, MatrixProduct, TiledProduct
from wse_sim.kernels.blocks.training import (
    before_fusion,
    fused_items,
    kept_by_product,
    pass_on,
    reduce_to,
    turned,
    unfused,
)
from wse_sim.kernels.blocks.triggered_products import shape_of, shape_program
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, fill_cycles, fma_rate, per_core
from wse_sim.kernels.contract.family import (
    Array,
    Asked,
    Case,
    Cost,
    Dims,
    Flow,
    Footprint,
    How,
    Kept,
    Probe,
    ProgramOptions,
    Role,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import HALF_SUMS, ProductAttributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import DATA, WEIGHT, Tape


@dataclass(frozen=True)
class BatchGemmAttributes(ProductAttributes):
    """Attributes of products of two activations."""

    heads: int = attribute(0, "parallel products on the columns; 0: none")


class BatchGemm(MatrixProduct):
    """The family of independent products of two activations."""

    name = "batch_gemm"
    role = Role.MIXER
    dims = sizes(b="products", m="rows of a result", k="inner dimension", n="columns of a result")
    mappings = ("stationary", "streamed")
    lies = "a sub-rectangle per product, or several products per core"
    programs = "streamed, stationary"
    bands = "1 %"
    attributes = BatchGemmAttributes
    rows_by = ("m",)
    flows = Flow(is_barrier=True, sums_on_links=True)  # a complete sample arrives before the first row leaves
    takes_epilogue = True
    color = "#9ecae1"

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of the stationary operand, the double-buffered arriving operand and partial sums,
        and code."""
        product, times = product_of(dims, tiling, wafer, self.asked(tiling, how))
        (f, t), size = product.tile, bytes_of(product.dtype)
        at_rest = 1.0 * times * f * t * size if tiling.mapping == "stationary" else 0
        buffers = 2.0 * (f * size + t * SUM_BYTES)
        return Footprint(activations_bytes=at_rest, buffers_bytes=buffers, code_bytes=wafer.kernel_code_bytes)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the products of one sub-rectangle (all run in parallel), and of the fused
        operations."""
        phase, dtype, attrs = self.asked(tiling, how)
        fused = fused_cost(fused_forward(attrs, phase), per_core(results(dims), tiling), wafer, dtype)
        product, times = product_of(dims, tiling, wafer, Asked(phase, dtype, attrs))
        part, cost = product.tiling, product.cost()
        # Words fill the whole rectangle once.
        idle = (
            cost.idle
            - fill_cycles(part.rows, part.cols, wafer)
            + fill_cycles(tiling.rows, tiling.cols, wafer)
        )
        return fused + times * steady(cost) + Cost(idle=idle)

    def compute(
        self, a: Array, b: Array, *, dtype: str = "fp32", parts: int = 1, accumulate: str = "fp32"
    ) -> Array:
        """Return a (..., m, k) times b (..., k, n)."""
        return core.matmul(a, b, dtype, parts=parts, half=accumulate in HALF_SUMS)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of one sub-rectangle, which computes its products one after another; gradients
        alike."""
        product, times = product_of(dims, tiling, wafer, asked(options))
        part = Tiling(int(product.tiling.rows), int(product.tiling.cols), tiling.mapping)
        return shape_program(replace(shape_of(dims, part), groups=int(times)), wafer, **options)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe of one product on a small rectangle with the same tile, repeated for every product
        of a core.

        Fused operations are measured separately.
        """
        phase, dtype, attrs = asked(how)
        product, times = product_of(dims, tiling, wafer, Asked(phase, dtype, attrs))
        fused = fused_probes(fused_forward(attrs, phase), per_core(results(dims), tiling), wafer, dtype)
        return product_probe("product", product, int(times)), *fused

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return both operands, and the tensors that a fused activation needs."""
        return kept_by_product(kernel, tensors, True)

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit a product per operand, and a sum for a bias or another operand of the operations on the
        results."""
        gradient, own = before_fusion(kernel, gradient, tape)
        b, m, k, n = (kernel.dims[d] for d in "bmkn")
        operands, added = _operands(kernel, own, tape)
        x, y = operands[0], operands[-1]
        for suffix, target, other, dims, sample in (
            ("dx", x, y, frozen(b=b, m=m, k=n, n=k), turned(kernel, "k", "n")),
            ("dy", y, x, frozen(b=b, m=k, k=m, n=n), turned(kernel, "m", "k")),
        ):
            if target not in tape.wanted:
                continue
            weight = target in kernel.parameters
            tape.emit(
                kernel,
                suffix,
                WEIGHT if weight else DATA,
                tuple(dict.fromkeys((gradient, other))),
                (tape.give_weight(target) if weight else tape.give(target),),
                dims=dims,
                attrs=frozen(unfused(kernel)),
                sample_dim=sample,
                parameters=(),
            )
        for tensor in added:
            if tensor in tape.wanted and tensor in kernel.parameters:
                reduce_to(kernel, tensor, gradient, tape)
            elif tensor in tape.wanted:
                pass_on(kernel, tensor, gradient, tape)


def _operands(kernel: Kernel, own: list[str], tape: Tape) -> tuple[list[str], list[str]]:
    """Return the multiplied operands, and those that are added or fused to the results, which come last,
    inputs before parameters.

    A product of a tensor with itself has a single operand; a vector of another size is not a second one.
    """
    operands, added = [*own, *kernel.parameters], list[str]()
    fused = sum(item in ("bias", "prelu") for item in fused_items(kernel))
    while len(operands) > 1:
        last = tape.tensors[operands[-1]]
        vector = last.name not in own and len(last.shape) < 2 and last.elements in (1, kernel.dims["n"])
        fits = not vector or last.elements == kernel.dims["k"]
        if len(operands) < 3 and fits and not fused:
            break
        added.append(operands.pop())
        fused = max(0, fused - 1)
    return operands, added


def results(dims: Dims) -> Size:
    """Return the number of elements of all results."""
    return dims["b"] * dims["m"] * dims["n"]


def product_of(dims: Dims, tiling: Tiling, wafer: Wafer, how: Asked) -> tuple[TiledProduct, Any]:
    """Return the product of one sub-rectangle, and the products of a core."""
    stated = BatchGemmAttributes.of(tiling.options, how.attrs)
    heads = BatchGemmAttributes.of(how.attrs).heads
    times, rows, cols = split(dims, tiling, fma_rate(how.dtype, wafer, stated.accumulate), heads)
    part = Tiling(rows, cols, tiling.mapping, options={**tiling.options, "orientation": "kn"})
    how = how._replace(phase=Phase.FORWARD)
    return TiledProduct(dims["m"], dims["k"], dims["n"], part, wafer, *how), times


def split(dims: Dims, tiling: Tiling, w: float, heads: int = 0) -> tuple[Any, Any, Any]:
    """Return (products per core, cores along rows, cores along columns) of one product."""
    cores = tiling.rows * tiling.cols
    b = dims["b"]
    area = np.maximum(1, cores // b)
    if tiling.mapping == "stationary":
        r = np.rint(np.sqrt(area * dims["k"] / dims["n"])).astype(np.int64)
        r = np.clip(r, 1, area)
        return ceil_div(b, cores), r, np.maximum(1, area // r)
    if heads and not b % heads:
        q = np.maximum(1, (tiling.cols // tiling.lanes) // heads)
        side_by_side = np.minimum(heads, tiling.cols // tiling.lanes)
        rows = tiling.lanes * tiling.rows
        samples = b // heads
        r = np.maximum(1, rows // samples)
        return ceil_div(samples, rows) * ceil_div(heads, side_by_side), r, q
    r = np.clip(np.ceil(np.asarray(dims["m"]) / w).astype(np.int64), 1, area)
    return ceil_div(b, cores), r, np.maximum(1, np.minimum(area // r, dims["k"]))


FAMILY = register(BatchGemm())
