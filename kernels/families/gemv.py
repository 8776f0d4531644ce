"""Matrix-vector product y = x A with A (m, n) on a grid of R x C cores (MeshGEMV).

Mapping: rows of A over the core rows, columns over the core columns; each core multiplies its piece of x
(K = ceil(m/R)) with its tile (K, N = ceil(n/C)), then the columns all-reduce the N partial sums over a
K-tree of G `groups`.

    T = L + o + ceil(N / mov) + L + K (o_map + ceil(N / w)) + L + o + T_k_tree(N)    (fp16: w = 4, fp16 accumulation)

The matrix is multiplied by `vectors` vectors in one invocation: one all-reduce combines the sums of all. The
local products are those of :func:`wse_sim.kernels.blocks.mesh.joined_gemv`, with a row of weights or a
feature of all vectors as the column.

The published measurement repeats the product in a loop: every round clears y, then calls the product and the
all-reduce.  T_k_tree is the recursion of :mod:`wse_sim.kernels.blocks.trees` and one multicast in each
direction, including die edges; streams are received in the wafer's `stream_order`. Source: calibration 1.4
(WaferLLM; the grid of the published 16K product is assumed to be 512 x 512 with 16 groups, as in the authors'
script; its 1,320 cycles are 1.20 us, a time of two digits: 4 % either way). Band: 2 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.mesh import best_groups, joined_gemv
from wse_sim.kernels.blocks.products import MatrixProduct
from wse_sim.kernels.blocks.trees import LineTree, k_tree, multicast_back, reduce_cost
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, ceil_rate, mov_rate
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    ProgramOptions,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import HALF_SUMS, Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.families.collectives.allreduce import place_allreduce


@dataclass(frozen=True)
class GemvAttributes(Attributes):
    """Attributes of a matrix-vector product."""

    accumulate: str = attribute("fp16", "type of the sums", choices=("fp32", *HALF_SUMS))
    groups: int = attribute(0, "groups of the K-tree; 0: about the square root of the rows")
    vectors: int = attribute(1, "vectors that meet the matrix at once", at_least=1)
    column: str = attribute(
        "",
        "what an instruction covers: a row of weights, or one feature of all vectors; '': the faster",
        choices=("", "weights", "vectors"),
    )


class Gemv(MatrixProduct):
    """The family of matrix-vector products."""

    name = "gemv"
    dims = sizes(m="features", n="outputs")
    mappings = ("grid",)
    attributes = GemvAttributes

    def flops(self, dims: Dims, attrs: Attrs = NONE, phase: Phase = Phase.FORWARD) -> Size:
        """Return the FLOPs: 2 m n per vector."""
        return 2 * dims["m"] * dims["n"] * GemvAttributes.of(attrs).vectors

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of the tile, its two vectors and code."""
        dtype = self.asked(tiling, how).dtype
        k, n = ceil_div(dims["m"], tiling.rows), ceil_div(dims["n"], tiling.cols)
        size, vectors = bytes_of(dtype), GemvAttributes.of(tiling.options, asked(how).attrs).vectors
        return Footprint(
            weights_bytes=1.0 * k * n * size,
            activations_bytes=1.0 * (k + n) * vectors * size,
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of one round: loop, clear, local product, K-tree; the number of core rows must be
        one integer."""
        _, dtype, attrs = self.asked(tiling, how)
        k, n = ceil_div(dims["m"], tiling.rows), ceil_div(dims["n"], tiling.cols)
        stated = GemvAttributes.of(tiling.options, attrs)
        tree, sums = _tree(tiling, wafer, attrs), n * stated.vectors
        call = Cost(
            compute=ceil_rate(sums, mov_rate(dtype, wafer)),
            startup=2 * wafer.loop_cycles + 2 * wafer.vector_start_cycles,
        )
        how_local = {"column": stated.column, "dtype": dtype, "accumulate": stated.accumulate}
        local = joined_gemv(k, n, stated.vectors, wafer, **how_local)
        up = reduce_cost(tree, sums, wafer, dtype, vertical=True)
        return local + call + up + multicast_back(sums, tree, wafer, dtype, vertical=True)

    def compute(
        self, x: Array, a: Array, *, dtype: str = "fp32", parts: int = 1, accumulate: str = "fp32"
    ) -> Array:
        """Return x (m,) times A (m, n), or the products of several vectors x (vectors, m)."""
        product = core.matmul(np.atleast_2d(x), a, dtype, parts=parts, half=accumulate in HALF_SUMS)
        return product if np.ndim(x) == 2 else product[0]

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which every core has its parts of x, A and y, and ends with its column's part
        of the product."""
        _, dtype, attrs = asked(options)
        rows, cols = int(tiling.rows), int(tiling.cols)
        k, n = ceil_div(int(dims["m"]), rows), ceil_div(int(dims["n"]), cols)
        stated = GemvAttributes.of(tiling.options, attrs)
        vectors, is_together = stated.vectors, _is_together(k, n, stated, wafer, dtype)
        b = new_builder(rows, cols, wafer)
        # The operand of an instruction (a row of A, or a feature of all vectors) starts two banks away from
        # y, so that the two never conflict, as in the vendor's matrix-vector example.
        y = b.buffer("y", n * vectors, dtype, bank=0)
        x = b.buffer("x", k * vectors, dtype, bank=2 if is_together else None)
        a = b.buffer("a", k * n, dtype, bank=None if is_together else 2)

        def product(core: CoreClass) -> None:
            core.busy(round(wafer.loop_cycles))
            emit_joined(core, y, x, a, vectors, wafer, dtype, is_together=is_together)

        tree = _tree(tiling, wafer, attrs)
        place_allreduce(Line(b, vertical=True), tree, y, dtype, 0, before=product)
        rng = np.random.default_rng(int(options.get("seed", 0)))
        # Small integers: sums are exact in fp16 up to 2048, in any order.
        matrix = np.zeros((rows * k, cols * n), np.float32)
        matrix[: dims["m"], : dims["n"]] = rng.integers(-1, 2, (dims["m"], dims["n"]))
        inputs = np.zeros((vectors, rows * k), np.float32)
        inputs[:, : dims["m"]] = rng.integers(-1, 2, (vectors, dims["m"]))
        tiles = matrix.reshape(rows, k, cols, n).transpose(0, 2, 1, 3).reshape(rows, cols, k * n)
        # On a core: vector after vector, or feature after feature.
        order = (1, 2, 0) if is_together else (1, 0, 2)
        pieces = inputs.reshape(vectors, rows, k).transpose(order).reshape(rows, 1, k * vectors)
        sums = (inputs @ matrix).reshape(vectors, cols, n).transpose(order).reshape(1, cols, n * vectors)
        held = {"a": tiles, "x": np.broadcast_to(pieces, (rows, cols, k * vectors))}
        wanted = np.broadcast_to(sums, (rows, cols, n * vectors))
        return Case(b.build(), b.config, held | {"y": np.ones_like(wanted)}, {"y": wanted})


def emit_joined(
    core: CoreClass,
    y: Buffer,
    x: Buffer,
    a: Buffer,
    vectors: int,
    wafer: Wafer,
    dtype: str,
    *,
    is_together: bool,
) -> None:
    """Emit y = x A of one core for `vectors` vectors: clear y, then add a row of weights for each vector.

    With `is_together` an instruction covers one feature of all vectors; x and y then store the first features
    of all vectors, then the second ones, and so on. Otherwise they store vector after vector.
    """
    k, n = x.length // vectors, y.length // vectors
    loop = round(wafer.loop_cycles)
    core.mov(y.dsd(), scalar(0.0), dtype=dtype)
    if is_together:
        core.busy(round(wafer.step_cycles))
        with core.loop(k):
            core.busy(loop)
            weights, column = a.dsd(0, n, step=n), x.dsd(0, vectors, step=vectors)
            core.fmac_vectors(
                y.dsd(), weights, column, vectors, dst_stride=vectors, b_stride=0, dtype=dtype, start="none"
            )
    else:
        for v in range(vectors):
            core.busy(loop)
            mine = x.dsd(v * k, k), a.dsd()
            core.fmac_vectors(y.dsd(v * n, n), *mine, n, b_stride=n, dtype=dtype, start="none")
    core.busy(loop)


def _is_together(k: int, n: int, stated: GemvAttributes, wafer: Wafer, dtype: str) -> bool:
    """Return whether instructions cover one feature of all vectors."""
    if stated.column or stated.vectors == 1:
        return stated.column == "vectors"
    times = (
        float(np.asarray(joined_gemv(
            k, n, stated.vectors, wafer, column=column, dtype=dtype, accumulate=stated.accumulate
        ).total))
        for column in ("weights", "vectors")
    )  # fmt: skip
    weights, together = times
    return together < weights


def _tree(tiling: Tiling, wafer: Wafer, attrs: Attrs) -> LineTree:
    rows = int(tiling.rows)
    groups = GemvAttributes.of(tiling.options, attrs).groups or int(best_groups(rows))
    if groups > rows:
        raise KernelError(f"gemv: {groups} groups on {rows} core rows; use at most one group per row")
    return k_tree(rows, groups, wafer.stream_order)


FAMILY = register(Gemv())
