"""Matrix product (m, k) x (k, n).

Mappings
--------
streamed    activations are stationary, k over the columns of a lane, m over rows; weights stream.
    stationary  weights are stationary, k over rows and n over columns (or transposed); activations stream.
Equations and symbols: :mod:`wse_sim.kernels.blocks.products`.
grid        all three matrices tiled on P x P cores, fp16 accumulation: "mesh" (MeshGEMM, the default),
            "cannon", "summa" (rectangles too).  Equations: :mod:`wse_sim.kernels.blocks.mesh`.

word_rows (an attribute): stationary, with the layout of a whole model on the fabric; equations:
:mod:`wse_sim.kernels.blocks.word_rows`.  trained_rows: the same with gradients; equations:
:mod:`wse_sim.kernels.blocks.trained_rows`.

Backward kernels state their own dims: the input gradient is a product like the forward one, the weight
gradient has m = features, k = tokens, n = outputs.  `fused` ("bias,gelu,residual") adds work on the outputs.
Source: calibration against published training rates; WaferLLM; a published SGEMM.

Programs: :mod:`wse_sim.kernels.blocks.triggered_products` (lanes, zero weights, work on the outputs),
:mod:`wse_sim.kernels.blocks.outer` (stationary weight gradient), :mod:`wse_sim.kernels.families.gemm.shift`,
:mod:`wse_sim.kernels.families.gemm.summa`. Band of cost against program: 1 % (tiles of 8 and more); streamed
weight gradient of f features per core 1 / f (the program multiplies while the gradient arrives; the cost adds
the arrival); stationary weight gradient 1 / v, v the longer side of the tile (one operand is received first);
with `fused` 1 / f more (sums travel back to their cores).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Kernel, Phase, frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import fused_cost, fused_forward, fused_probes
from wse_sim.kernels.blocks.mesh import mesh_product, summa
from wse_sim.kernels.blocks.probes import product_probe
from wse_sim.kernels.blocks.products import TiledProduct, WeightProduct, product_lay
from wse_sim.kernels.blocks.trained_rows import Streams, TrainedRows
from wse_sim.kernels.blocks.training import before_fusion, product_gradients, turned, unfused
from wse_sim.kernels.blocks.triggered_products import triggered_program
from wse_sim.kernels.blocks.word_rows import PAIR, WordRows
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, words
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Attrs,
    Case,
    Cost,
    Count,
    Dims,
    Footprint,
    How,
    Lay,
    Probe,
    ProgramOptions,
    Role,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import HALF_SUMS, sizes
from wse_sim.kernels.contract.recent import recent
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape
from wse_sim.kernels.families.gemm.attributes import GemmAttributes


class Gemm(WeightProduct):
    """The family of matrix products with weights."""

    name = "gemm"
    role = Role.PRODUCT
    dims = sizes(
        m="rows of the result (tokens)",
        k="inner dimension (input features)",
        n="columns of the result (output features)",
    )
    mappings = ("stationary", "streamed", "grid")
    lies = (
        "streamed: k over the columns of a lane, m over rows; stationary: k over rows, n over "
        "columns; grid: tiles"
    )
    programs = "all mappings, both gradients; lanes, zero weights, work on outputs"
    bands = (
        "streamed, stationary, SUMMA, MeshGEMM, Cannon 1 %; weight gradient 1 / f streamed, 1 / v "
        "stationary; with work on outputs 1 / f"
    )
    attributes = GemmAttributes
    rows_by = ("m",)
    takes_epilogue = True
    shards_weights = True
    color = "#9ecae1"

    def lay(self, dims: Dims, attrs: Attrs = NONE) -> Lay:
        """Return the layout of products; the last row of word rows has no inputs, and a residual needs stores next to it."""
        lay = product_lay(attrs)
        if lay.takes_over != "rows":
            return lay
        stated = GemmAttributes.of(attrs)
        if stated.trained_rows:
            # Gradients of inputs need a separate moving column; a narrow region gives up a compute column for it.
            return replace(
                lay,
                least_rows=2,
                least_cols=1 + stated.passes_on,
                more_colors=3,
                rows_without_inputs=1,
                most_links=max(1, stated.most_bundles, stated.most_results),
            )
        if "residual" in fused_forward(attrs, Phase.FORWARD):
            return replace(lay, least_rows=2, least_cols=1 + stated.word_rows, more_colors=2)
        return replace(lay, least_rows=2) if stated.word_rows else lay

    def store_bytes(self, dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs = NONE) -> Size:
        """Return the bytes of the store of a residual next to the rows that finish outputs; in training of the last row, or
        of a core that has the inputs of a row."""
        stated = GemmAttributes.of(attrs)
        if stated.trained_rows and tiling.mapping == "stationary":
            inner = replace(part_of(tiling, stated.layers), rows=np.maximum(1, tiling.rows - 1))
            layer = _one_stream(dims["m"], dims["k"], dims["n"], stated, inner, wafer)
            return layer.held_bytes(max(1, stated.held_samples))
        is_kept = "residual" in fused_forward(attrs, Phase.FORWARD)
        if not is_kept or product_lay(attrs).takes_over != "rows":
            return 0
        if not stated.word_rows:
            return 2 * dims["m"] * dims["n"] * bytes_of("fp16")
        return word_rows(dims, tiling, wafer, attrs).store_bytes

    def at_rest(self, dims: Dims, phase: Phase = Phase.FORWARD) -> Size:
        """Return the input features of a row of weights; for a weight gradient, those of a column."""
        return dims["m"] if phase is Phase.WEIGHT_GRADIENT else dims["k"]

    def widens(self, phase: Phase) -> str:
        """Return the dimension along which products that read the same tensor merge: that of their
        outputs."""
        return "k" if phase is Phase.INPUT_GRADIENT else "n"

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of weights (stationary) or weight buffers (streamed), partial sums, and code."""
        phase, dtype, attrs = self.asked(tiling, how)
        if tiling.mapping == "grid":
            m, k, n, _ = grid_tile(dims, tiling)
            size = bytes_of(dtype)
            return Footprint(
                weights_bytes=2.0 * k * n * size,
                activations_bytes=(2.0 * m * k + m * n) * size,
                code_bytes=wafer.kernel_code_bytes,
            )
        found = TiledProduct(dims["m"], dims["k"], dims["n"], tiling, wafer, phase, dtype, attrs).footprint()
        if (
            phase is Phase.INPUT_GRADIENT
            and GemmAttributes.of(attrs).trained_rows
            and tiling.mapping == "stationary"
        ):
            waits = trained_layer(dims, tiling, wafer, attrs, phase).together_bytes
            return replace(found, buffers_bytes=found.buffers_bytes + waits)
        return found

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the product and of its fused operations."""
        phase, dtype, attrs = self.asked(tiling, how)
        if tiling.mapping == "grid":
            return grid_cost(dims, tiling, wafer, dtype, attrs)
        if tiling.mapping == "stationary" and GemmAttributes.of(attrs).trained_rows:
            return trained_cost(dims, tiling, wafer, attrs, phase)
        is_plain = tiling.mapping == "stationary" and phase is Phase.FORWARD
        if is_plain and GemmAttributes.of(attrs).word_rows:
            return word_rows(dims, tiling, wafer, attrs).cost()
        product = TiledProduct(dims["m"], dims["k"], dims["n"], tiling, wafer, phase, dtype, attrs)
        if not (fused := fused_forward(attrs, phase)):
            return product.cost()
        held = product.held
        moved = Cost(ramp=words(held, dtype) * wafer.wavelet_cycles)  # to the cores that work on the outputs
        return product.cost() + moved + fused_cost(fused, held, wafer, dtype)

    def compute(
        self,
        x: Array,
        weights: Array,
        bias: Array | None = None,
        *,
        dtype: str = "fp32",
        parts: int = 1,
        accumulate: str = "fp32",
    ) -> Array:
        """Return x (..., m, k) times weights (k, n) plus bias; k is spread over the `parts` cores of a chain.

        The input gradient is ``compute(g, weights.T)``, the weight gradient ``compute(x.T, g)``.
        """
        product = core.matmul(x, weights, dtype, parts=parts, half=accumulate in HALF_SUMS)
        return product if bias is None else core.binary("add", product, core.rounded(bias, dtype), dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program: MeshGEMM, Cannon or SUMMA on a grid; streamed or stationary weights on a
        rectangle."""
        if tiling.mapping == "grid" and tiling.algorithm in {"", "mesh", "cannon"}:
            from wse_sim.kernels.families.gemm.shift import mesh_program

            grid_tile(dims, tiling)
            return mesh_program(dims, tiling, wafer, **options)
        if tiling.mapping == "grid":
            from wse_sim.kernels.families.gemm.summa import summa_program

            return summa_program(dims, tiling, wafer, **options)
        return triggered_program(dims, tiling, wafer, **options)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe of the product on a small rectangle with the same tile, and probes of the fused
        operations."""
        phase, dtype, attrs = asked(how)
        if tiling.mapping == "grid":
            return ()
        product = TiledProduct(dims["m"], dims["k"], dims["n"], tiling, wafer, phase, dtype, attrs)
        fused = fused_forward(attrs, phase)
        return product_probe("product", product), *fused_probes(fused, product.held, wafer, dtype)

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit two products of the same size: the weight gradient and the input gradient."""
        gradient, own = before_fusion(kernel, gradient, tape)
        m, k, n = (kernel.dims[d] for d in "mkn")
        of_weights = frozen(m=k, k=m, n=n), turned(kernel, "m", "k"), True
        of_inputs = frozen(m=m, k=n, n=k), unfused(kernel)
        product_gradients(kernel, gradient, own, tape, of_weights=of_weights, of_inputs=of_inputs)


def word_rows(dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs) -> WordRows:
    """Return a layer with the layout of a whole model on the fabric."""
    stated, work = GemmAttributes.of(attrs), fused_forward(attrs, Phase.FORWARD)
    words, tiling = ceil_div(dims["k"], PAIR), part_of(tiling, stated.layers)
    return WordRows(
        dims["m"], words, ceil_div(dims["n"], stated.layers), work, tiling, wafer,
        most_bundles=stated.most_bundles, residuals=stated.most_residuals, results=stated.least_bundles,
    )  # fmt: skip


def part_of(tiling: Tiling, layers: int) -> Tiling:
    """Return the columns of one of `layers` equal layers."""
    return tiling if layers == 1 else replace(tiling, cols=np.maximum(1, tiling.cols / layers))


def trained_cost(dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs, phase: Phase) -> Cost:
    """Return the cost of one pass of a layer in a network that trains on the fabric; every pass has its own
    dims."""
    layer = trained_layer(dims, tiling, wafer, attrs, phase)
    if phase is Phase.WEIGHT_GRADIENT:
        return layer.weight_gradient_cost()
    if phase is Phase.INPUT_GRADIENT:
        return layer.input_gradient_cost()
    return layer.forward_cost() + Cost(stalled_input=np.where(layer.has_room, 0.0, np.inf))


def trained_layer(dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs, phase: Phase) -> TrainedRows:
    """Return the layer that has a kernel as one of its passes, with its streams."""
    stated, (m, k, n) = GemmAttributes.of(attrs), (dims[name] for name in "mkn")
    of_layer = {
        Phase.WEIGHT_GRADIENT: (k, m, n), Phase.INPUT_GRADIENT: (m, n, k),
    }.get(phase, (m, k, n))  # fmt: skip
    where = part_of(tiling, stated.layers)
    return _with_streams(*of_layer, stated, where.rows, where.cols, wafer)


@recent(4)
def _with_streams(
    tokens: Size, inputs: Size, outputs: Size, stated: GemmAttributes, rows: Count, cols: Count, wafer: Wafer
) -> TrainedRows:
    """Return the layer on `rows` x `cols` cores, which all its passes share, with its streams."""
    layer = _one_stream(tokens, inputs, outputs, stated, Tiling(rows, cols), wafer)
    most = Streams(max(1, stated.most_bundles), max(1, stated.most_results))
    return replace(layer, streams=most) if stated.has_links else layer.with_streams(layer.streams, most)


def _one_stream(
    tokens: Size, inputs: Size, outputs: Size, stated: GemmAttributes, where: Tiling, wafer: Wafer
) -> TrainedRows:
    """Return the layer with the fewest streams that it may have."""
    return TrainedRows(
        tokens,
        inputs,
        ceil_div(outputs, stated.layers),
        stated.finished,
        where,
        wafer,
        stated.passes_on,
        layers=stated.layers,
        readers=stated.readers,
        streams=Streams(max(1, stated.least_bundles), max(1, stated.least_results)),
    )


def grid_tile(dims: Dims, tiling: Tiling) -> tuple[Any, Any, Any, Any]:
    """Return the tile (m, k, n) of one core and the number of steps.

    Raises
    ------
    KernelError
        If a shifting algorithm is requested on a rectangle that is not square.
    """
    square = np.all(np.asarray(tiling.rows) == np.asarray(tiling.cols))
    if not square and tiling.algorithm != "summa":
        raise KernelError(
            f"gemm '{tiling.algorithm or 'mesh'}' on {tiling.rows} x {tiling.cols} cores: operands shift on a square; "
            "use equal rows and cols, or summa"
        )
    steps = np.maximum(tiling.rows, tiling.cols)
    return (
        ceil_div(dims["m"], tiling.rows),
        ceil_div(dims["k"], steps),
        ceil_div(dims["n"], tiling.cols),
        steps,
    )


def grid_cost(dims: Dims, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> Cost:
    """Return the cost of a grid algorithm; `accumulate` defaults to fp16."""
    m, k, n, steps = grid_tile(dims, tiling)
    stated = GemmAttributes.of(tiling.options, attrs)
    accumulate = stated.accumulate or "fp16"
    algorithm = tiling.algorithm or "mesh"
    if algorithm == "summa":
        conflict = stated.bank_conflict
        return summa(m, k, n, steps, wafer, dtype=dtype, accumulate=accumulate, conflict=conflict)
    if algorithm not in {"mesh", "cannon"}:
        raise KernelError(f"gemm has no grid algorithm '{algorithm}'; use mesh, cannon, summa")
    ring = "folded" if algorithm == "mesh" else "plain"
    skewed = stated.skew
    return mesh_product((m, k, n), steps, wafer, dtype=dtype, accumulate=accumulate, skewed=skewed, ring=ring)


FAMILY = register(Gemm())
