"""Products of a mixture of experts: m rows spread over G groups, each with its own (k, n) weights.

streamed    the weights of all groups stream; those of a group trigger only its own rows, which are
            spread over all L R core rows: t = ceil(rows of a group / (L R))::

                T = G n (f (s + ceil(t/w)) + s + ceil(rho t)) + fill,     f = ceil(k/c)

stationary  each group has separate cores // G cores (as batch_gemm); rows of a group stream.

rows of a group = ceil(imbalance m / G); `imbalance` (option, default 1) is the load of the fullest group over
the mean.  A weight gradient has k = rows.  Source: the equations of gemm. Program: streamed, the groups'
weights arrive one after the other and are multiplied by the rows of their group (equal groups); stationary,
the cores of one group (the others are equal and independent). Band of cost against program: 3 % from 8
features and 8 rows per core; weight gradients as those of gemm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Kernel, Phase, frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.probes import product_probe
from wse_sim.kernels.blocks.products import SUM_BYTES, TiledProduct, WeightProduct, weight_bytes
from wse_sim.kernels.blocks.training import product_gradients, turned
from wse_sim.kernels.blocks.triggered_products import triggered_program
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div
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
    Role,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import WeightAttributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape


@dataclass(frozen=True)
class GroupedGemmAttributes(WeightAttributes):
    """Attributes of a grouped product."""

    imbalance: float = attribute(
        1.0, "rows of the fullest group over those of the mean", at_least=1, at_most=1e6
    )


class GroupedGemm(WeightProduct):
    """The family of products with one weight matrix per group of rows."""

    name = "grouped_gemm"
    role = Role.PRODUCT
    dims = sizes(
        m="rows of all groups",
        k="features of a row",
        n="outputs of a row",
        groups="groups, each with its own weights",
    )
    mappings = ("stationary", "streamed")
    lies = "streamed: weights of the groups follow each other over their rows; stationary: cores per group"
    programs = "both mappings, all phases"
    bands = "1 %; weight gradient as gemm"
    attributes = GroupedGemmAttributes
    rows_by = ("m",)
    color = "#6baed6"

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of the weights of all groups (stationary) or of buffers (streamed), partial sums
        and code."""
        phase, dtype, attrs = self.asked(tiling, how)
        groups = dims["groups"]
        if tiling.mapping == "stationary":
            features = dims["m"] if phase is Phase.WEIGHT_GRADIENT else dims["k"]
            weights = ceil_div(groups * features * dims["n"], tiling.rows * tiling.cols)
            side = np.sqrt(weights)
            return Footprint(
                weights_bytes=1.0 * weights * weight_bytes(tiling, attrs, dtype, phase),
                buffers_bytes=2 * side * (bytes_of(dtype) + SUM_BYTES),
                code_bytes=wafer.kernel_code_bytes,
            )
        m, k = of_group(dims, tiling, attrs, phase)
        return TiledProduct(m, k, dims["n"], tiling, wafer, phase, dtype, attrs).footprint()

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the groups' products: in sequence (streamed) or in parallel (stationary)."""
        product, times = product_of_group(dims, tiling, wafer, self.asked(tiling, how))
        return times * product.cost()

    def compute(
        self, x: Array, weights: Array, group: Array, *, dtype: str = "fp32", parts: int = 1
    ) -> Array:
        """Return every row of x (m, k) times the weights (groups, k, n) of its group."""
        x, group = np.asarray(x), np.asarray(group)
        out = np.zeros((x.shape[0], np.shape(weights)[-1]), np.float32)
        for g in range(len(weights)):
            rows = group == g
            if rows.any():
                out[rows] = core.matmul(x[rows], weights[g], dtype, parts=parts)
        return out

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of all groups in sequence (streamed), or of the cores of one group
        (stationary)."""
        one, groups = product_of_group(dims, tiling, wafer, asked(options))
        sizes = {"m": one.m, "k": one.k, "n": one.n}
        return triggered_program(sizes, one.tiling, wafer, groups=int(groups), **options)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe of one group's product on a small rectangle with the same tile, repeated for every
        group of a core."""
        product, times = product_of_group(dims, tiling, wafer, asked(how))
        return (product_probe("product", product, float(times)),)

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit two grouped products of the same size: the weight gradient and the input gradient."""
        m, k, n, groups = (kernel.dims[d] for d in ("m", "k", "n", "groups"))
        of_weights = frozen(m=k, k=m, n=n, groups=groups), turned(kernel, "m", "k"), False
        of_inputs = frozen(m=m, k=n, n=k, groups=groups), kernel.attrs
        own = list(kernel.inputs)
        product_gradients(kernel, gradient, own, tape, of_weights=of_weights, of_inputs=of_inputs)


def rows_of_group(rows: Size, groups: Size, tiling: Tiling, attrs: Attrs) -> Size:
    """Return the rows of the fullest group."""
    load = np.ceil(rows * GroupedGemmAttributes.of(tiling.options, attrs).imbalance / groups)
    return load.astype(np.int64) if np.ndim(load) else int(load)


def of_group(dims: Dims, tiling: Tiling, attrs: Attrs, phase: Phase) -> tuple[Any, Any]:
    """Return (m, k) of the fullest group's product: its rows are m, or k in a weight gradient."""
    groups = dims["groups"]
    if phase is Phase.WEIGHT_GRADIENT:
        return dims["m"], rows_of_group(dims["k"], groups, tiling, attrs)
    return rows_of_group(dims["m"], groups, tiling, attrs), dims["k"]


def product_of_group(dims: Dims, tiling: Tiling, wafer: Wafer, how: Asked) -> tuple[TiledProduct, Any]:
    """Return the product of the fullest group, and how often a core does one. Stationary groups have separate cores, in
    the shape of their tiles."""
    m, k = of_group(dims, tiling, how.attrs, how.phase)
    product = TiledProduct(m, k, dims["n"], tiling, wafer, *how)
    if tiling.mapping == "streamed":
        return product, dims["groups"]
    cores = tiling.rows * tiling.cols
    area = np.maximum(1, cores // dims["groups"])
    r = np.clip(np.rint(np.sqrt(area * product.features / dims["n"])).astype(np.int64), 1, area)
    part = Tiling(r, np.maximum(1, area // r), "stationary", options=tiling.options)
    return replace(product, tiling=part), ceil_div(dims["groups"], cores)


FAMILY = register(GroupedGemm())
