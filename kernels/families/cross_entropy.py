"""Cross-entropy of (rows, cols) logits against one label per row.

Mapping: as softmax; the label's logit is selected on its core and subtracted from the row's log-sum-exp.

    T = n e + 3 o + 3 all-reduces of t along the p cores of a row,      n = ceil(rows cols / cores)
    backward (softmax - one-hot) / rows: n e / 4 + 3 o

Program: :mod:`wse_sim.kernels.blocks.line_programs`, with the label as a mask; the backward pass starts from the probabilities
that the forward pass kept.  Band of cost against program: 2 %.

grid: written by hand, the same instructions without scalar code: maximum, difference, the label's element by a product with its
mask, exponentials, sum, logarithm.

Source: calibration (special elements).  Band of cost against program (grid): 3 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnePass
from wse_sim.kernels.blocks.line_programs import (
    OnLines,
    RowWork,
    grid_cost,
    grid_footprint,
    grid_tile,
    grid_tree,
    line_program,
    spread_tile,
)
from wse_sim.kernels.blocks.line_stages import MATRIX, ROW, Shape, Vector
from wse_sim.kernels.blocks.softmax import softmax
from wse_sim.kernels.blocks.training import FP32_BYTES
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import pointwise, pointwise_footprint
from wse_sim.kernels.contract.family import (
    Array,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    Kept,
    ProgramOptions,
    Tiling,
)
from wse_sim.kernels.contract.parameters import sizes
from wse_sim.kernels.contract.registry import register

STARTS = 3  # starts that the calibrated cycles per element do not include


class CrossEntropy(OnLines, OnePass):
    """The family of softmax cross-entropy losses."""

    name = "cross_entropy"
    named_for = ("cross_entropy_loss",)
    sums_rows = True
    dims = sizes(rows="rows, one label each", cols="logits of a row")
    mappings = ("stationary", "streamed", "grid")
    lies = "as softmax"
    programs = "forward and backward"
    bands = "1 %; grid 3 %"
    color = "#fdd0a2"

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of the operands' stage buffers and of code."""
        phase, dtype, _ = self.asked(tiling, how)
        if tiling.mapping == "grid":
            return grid_footprint(_work(phase, dtype, wafer).by_hand, grid_tile(dims, tiling), wafer)
        return pointwise_footprint(dims["rows"] * dims["cols"], tiling, wafer, dtype)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of special elements (backward: `backward_special_fraction` of them) and of the all-reduces."""
        phase, dtype, _ = self.asked(tiling, how)
        if tiling.mapping == "grid":
            return grid_cost(_work(phase, dtype, wafer).by_hand, grid_tile(dims, tiling), wafer)
        fraction = 1.0 if phase is Phase.FORWARD else wafer.backward_special_fraction
        elements = dims["rows"] * dims["cols"]
        local = pointwise(elements, tiling, wafer, dtype=dtype, special=fraction, instructions=STARTS)
        p, t, f = self.tile(dims, tiling)
        return local + _work(phase, dtype, wafer).collectives(t, f, p, tiling.rows, wafer)

    def compute(self, logits: Array, labels: Array, *, dtype: str = "fp32", parts: int = 1) -> Array:
        """Return the mean over the rows of log-sum-exp minus the label's logit."""
        logs = softmax(core.rounded(logits, dtype), parts=parts, log=True)
        picked = np.take_along_axis(logs, np.asarray(labels)[:, None], axis=-1)
        return -picked.mean(dtype=np.float32)

    def gradient(self, logits: Array, labels: Array, *, dtype: str = "fp32", parts: int = 1) -> Array:
        """Return the gradient of the logits: (softmax - one-hot) / rows."""
        g = softmax(core.rounded(logits, dtype), parts=parts)
        g[np.arange(len(g)), np.asarray(labels)] -= 1.0
        return core.binary("mul", g, 1.0 / len(g), dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of the loss of every row, or of the gradient of the logits."""
        phase, dtype, _ = self.asked(tiling, options, "fp32")
        tile, tree = spread_tile(dims, tiling), None
        if tiling.mapping == "grid":
            tile = grid_tile(dims, tiling)
        work = _work(phase, dtype, wafer, tile.rows)
        if tiling.mapping == "grid":
            work, tree = work.by_hand, grid_tree(work, tile, wafer)
        rng = np.random.default_rng(int(options.get("seed", 0)))
        logits = rng.standard_normal((tile.rows, tile.cols)).astype(np.float32)
        mask, losses = self._reference(logits, options)
        if phase is Phase.FORWARD:
            given = {"x": logits, "mask": mask}
            return line_program(work, tile, wafer, given, {"statistic": losses}, tree=tree)
        wanted = self.gradient(logits, mask.argmax(axis=1))
        kept = {"y": wanted * tile.rows + mask, "mask": mask}
        return line_program(work, tile, wafer, kept, {"y": wanted}, tree=tree)

    def _reference(self, logits: Array, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the one-hot mask of random labels, and the loss of every row."""
        rng = np.random.default_rng(int(options.get("seed", 0)) + 1)
        labels = rng.integers(0, logits.shape[1], len(logits))
        mask = np.zeros_like(logits)
        mask[np.arange(len(logits)), labels] = 1.0
        losses = np.array([self.compute(row[None], labels[i : i + 1]) for i, row in enumerate(logits)])
        return mask, losses

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the inputs and the logarithm of each row's sum."""
        return Kept(kernel.inputs, kernel.dims["rows"] * FP32_BYTES)


# Maximum, difference, the label's element, exponentials and their sum, logarithm, loss.
FORWARD = (
    Vector("mov", "statistic", (-3e38,)),
    Vector("max", "statistic", ("statistic", "x")),
    Vector("share max", "statistic"),
    Vector("sub", "x", ("x", "statistic")),
    Vector("mov", "picked", (0.0,)),
    Vector("mac", "picked", ("x", "mask")),
    Vector("share add", "picked"),
    Vector("exp", "x", ("x",)),
    Vector("mov", "statistic", (0.0,)),
    Vector("add", "statistic", ("statistic", "x")),
    Vector("share add", "statistic"),
    Vector("log", "statistic", ("statistic",)),
    Vector("sub", "statistic", ("statistic", "picked")),
)


def _work(phase: Phase, dtype: str, wafer: Wafer, rows: int = 1) -> RowWork:
    """Return the instructions of a phase; backward: probabilities minus the label, divided by the `rows` of
    the mean."""
    forward = phase is Phase.FORWARD
    shapes = {name: Shape(MATRIX, dtype) for name in ("x" if forward else "y", "mask")}
    if forward:
        shapes |= {"statistic": Shape(ROW), "picked": Shape(ROW)}
    fraction = 1.0 if forward else wafer.backward_special_fraction
    starts = STARTS * wafer.vector_start_cycles
    vectors = (
        FORWARD if forward else (Vector("sub", "y", ("y", "mask")), Vector("mul", "y", ("y", 1.0 / rows)))
    )
    return RowWork(vectors, shapes, fraction * wafer.special_element_cycles, starts)


FAMILY = register(CrossEntropy())
