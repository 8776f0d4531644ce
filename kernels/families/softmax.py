"""Softmax over the last dimension of (rows, cols).

Mapping: elements spread over all cores of the rectangle; a row of the matrix is spread over p = min(c, cores
// rows) cores of a lane's row, or is on one core if there are more rows than cores: t = ceil(rows p / cores).

    T = n e + 3 o + 2 all-reduces of t along the p cores,      n = ceil(rows cols / cores)

e = special_element_cycles covers mask, maximum, exponential, sum and division of one element, as a compiled
training kernel does it; backward (y (g - sum g y)) is products and one sum: e / 4, one all-reduce. Source:
calibration (GPT-2 small).  Program: :mod:`wse_sim.kernels.blocks.line_programs`; scalar code takes those of
the e cycles that its vector instructions do not issue.  Band of cost against program: 2 %.

whole (an attribute): whole rows on every core, or on neighbours if rows travel over several links, block by block, as
in a whole model on the fabric (:mod:`wse_sim.kernels.blocks.token_blocks`): the instructions without scalar code, plus
words received and sent.

grid: written by hand, the same instructions without scalar code: E cycles per exponential.  Band: 3 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

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
from wse_sim.kernels.blocks.softmax import (
    exponentials,
    gradient_vectors,
    softmax,
    softmax_gradient,
    softmax_vectors,
)
from wse_sim.kernels.blocks.token_blocks import TokenBlocks, linked_cost
from wse_sim.kernels.contract.equations import pointwise, pointwise_footprint
from wse_sim.kernels.contract.family import (
    NONE,
    Attrs,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    Kept,
    Lay,
    ProgramOptions,
    Tiling,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register

STARTS = 3  # starts that the calibrated cycles per element do not include


@dataclass(frozen=True)
class SoftmaxAttributes(Attributes):
    """Attributes of a softmax: whether it returns the logarithm."""

    log: bool = attribute(False, "its logarithm")
    whole: bool = attribute(False, "every row is on one core, without help of others")


class Softmax(OnLines, OnePass):
    """The family of softmax over the last dimension."""

    name = "softmax"
    cheaper = "let scaled_dot_product_attention take the place of its products and the softmax, or make the rows shorter"
    sums_rows = True
    dims = sizes(rows="rows", cols="elements of a row")
    mappings = ("stationary", "streamed", "grid")
    lies = (
        "rows over the cores of a lane, or whole rows on cores; grid: rows over rows of cores, "
        "columns over columns"
    )
    programs = "forward and backward, also of its logarithm"
    bands = "1 %; grid 3 %"
    attributes = SoftmaxAttributes
    color = "#fdd0a2"

    def lay(self, dims: Dims, attrs: Attrs = NONE) -> Lay:
        """Return the layout: with whole rows on one core, rows enter and leave over the rows of cores; lanes need a color
        for their statistics."""
        said = SoftmaxAttributes.of(attrs)
        if not said.whole:
            return Lay()
        most = max(1, said.most_bundles)
        return Lay("rows", "rows", most_links=most, more_colors=int(most > 1))

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of the operands' stage buffers and of code."""
        phase, dtype, attrs = self.asked(tiling, how)
        if tiling.mapping == "grid":
            return grid_footprint(_work(phase, dtype, wafer, attrs).by_hand, grid_tile(dims, tiling), wafer)
        if SoftmaxAttributes.of(attrs).whole and tiling.mapping == "stationary":
            found = whole_blocks(dims, wafer, dtype, attrs)
            return found.footprint(int(dims["rows"]), tiling.rows * tiling.cols)
        return pointwise_footprint(dims["rows"] * dims["cols"], tiling, wafer, dtype)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of special elements (backward: `backward_special_fraction` of them) and of the all-reduces."""
        phase, dtype, attrs = self.asked(tiling, how)
        if tiling.mapping == "grid":
            return grid_cost(_work(phase, dtype, wafer, attrs).by_hand, grid_tile(dims, tiling), wafer)
        if SoftmaxAttributes.of(attrs).whole and phase is Phase.FORWARD:
            return linked_cost(
                lambda lane: whole_blocks(dims, wafer, dtype, attrs, lane),
                dims,
                tiling,
                wafer,
                SoftmaxAttributes.of(attrs),
            )
        fraction = 1.0 if phase is Phase.FORWARD else wafer.backward_special_fraction
        inputs = 1 if phase is Phase.FORWARD else 2
        elements = dims["rows"] * dims["cols"]
        local = pointwise(
            elements, tiling, wafer, dtype=dtype, special=fraction, instructions=STARTS, inputs=inputs
        )
        p, t, f = self.tile(dims, tiling)
        return local + _work(phase, dtype, wafer, attrs).collectives(t, f, p, tiling.rows, wafer)

    compute = staticmethod(softmax)

    gradient = staticmethod(softmax_gradient)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of softmax (or its logarithm) along lines of cores, or of its gradient."""
        phase, dtype, attrs = self.asked(tiling, options, "fp32")
        tile, work, tree = spread_tile(dims, tiling), _work(phase, dtype, wafer, attrs), None
        if tiling.mapping == "grid":
            tile, work = grid_tile(dims, tiling), work.by_hand
            tree = grid_tree(work, tile, wafer)
        rng = np.random.default_rng(int(options.get("seed", 0)))
        x, g = rng.standard_normal((2, tile.rows, tile.cols)).astype(np.float32)
        log = SoftmaxAttributes.of(attrs).log
        y = self.compute(x, log=log)
        given, wanted = ({"x": x}, {"x": y})
        if phase is not Phase.FORWARD:
            given, wanted = {"y": y, "g": g}, {"g": self.gradient(y, g, log=log)}
        return line_program(work, tile, wafer, given, wanted, tree=tree)

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the kernel's result."""
        return Kept(kernel.outputs)


LOG = (
    *exponentials("x", "y"),
    Vector("log", "statistic", ("statistic",)),
    Vector("sub", "x", ("x", "statistic")),
)
LOG_GRADIENT = (
    Vector("mov", "statistic", (0.0,)),
    Vector("add", "statistic", ("statistic", "g")),
    Vector("share add", "statistic"),
    Vector("exp", "y", ("y",)),
    Vector("mul", "y", ("y", "statistic")),
    Vector("sub", "g", ("g", "y")),
)


def _work(phase: Phase, dtype: str, wafer: Wafer, attrs: Attrs) -> RowWork:
    """Return the instructions of a phase."""
    forward, log = phase is Phase.FORWARD, SoftmaxAttributes.of(attrs).log
    if forward:
        vectors = LOG if log else softmax_vectors("x")
    else:
        vectors = LOG_GRADIENT if log else gradient_vectors("y", "g")
    names = (("x", "y") if log else ("x",)) if forward else ("g", "y")
    shapes = {name: Shape(MATRIX, dtype) for name in names} | {"statistic": Shape(ROW)}
    fraction = 1.0 if forward else wafer.backward_special_fraction
    return RowWork(
        vectors, shapes, fraction * wafer.special_element_cycles, STARTS * wafer.vector_start_cycles
    )


def whole_blocks(dims: Dims, wafer: Wafer, dtype: str, attrs: Attrs, lane: int = 1) -> TokenBlocks:
    """Return the blocks of whole rows on every `lane` of cores."""
    return TokenBlocks(whole_work(dtype, attrs), int(dims["cols"]) // lane, dtype, wafer, lane=lane)


def whole_work(dtype: str, attrs: Attrs) -> RowWork:
    """Return the instructions for a whole row on one core, without scalar code."""
    log = SoftmaxAttributes.of(attrs).log
    matrices = {name: Shape(MATRIX, dtype) for name in (("x", "y") if log else ("x",))}
    return RowWork(LOG if log else softmax_vectors("x"), matrices | {"statistic": Shape(ROW)})


FAMILY = register(Softmax())
