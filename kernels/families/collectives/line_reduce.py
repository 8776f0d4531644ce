"""Reduction (sum) of `words` elements per core along every row of the rectangle, to column 0.

Mapping: each row is a line of P = cols cores; algorithms star, chain, tree, two_phase (option `group`),
auto (the fastest of all and of generated trees).  B = words(elements).

    chain       T = task start + B + (hop + 5)(P - 1)
    two_phase   T = task start + 2B + (hop + 5)(S - 1) + (G - 2)(S hop + 5) + o,     G = ceil(P / S) >= 2
    star        T = task start + (P - 1) B + (P - 2) o + hop + 5
    any tree    the recursion of :mod:`wse_sim.kernels.blocks.trees`

Source: calibration 1.2, exact on four published rows (0.2 % on the fifth).  Band: exact for chain, star and
tree; two_phase up to 6 cycles (a stream restarts after a switch); auto 4 % if streams share links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.fabric.format.builder import Builder
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import Collective
from wse_sim.kernels.blocks.lines import Line, emit_reduce, new_builder, route_reduce
from wse_sim.kernels.blocks.trees import LINE_ALGORITHMS, LineTree, best_tree, reduce_cost
from wse_sim.kernels.contract.equations import words
from wse_sim.kernels.contract.family import Attrs, Case, Cost, Dims, How, ProgramOptions, Size, Tiling, asked
from wse_sim.kernels.contract.parameters import Attributes, attribute
from wse_sim.kernels.contract.registry import register


@dataclass(frozen=True)
class LineReduceAttributes(Attributes):
    """Attributes of the collective; options of the tiling take precedence."""

    algorithm: str = attribute("auto", "tree", choices=LINE_ALGORITHMS)
    group: int = attribute(0, "cores per group of two_phase; 0: the best")


class LineReduce(Collective):
    """The family of reductions along a line."""

    name = "line_reduce"
    programs = "star, chain, tree, two_phase, auto (these and generated trees)"
    bands = "exact; two_phase up to 6 cycles"
    attributes = LineReduceAttributes

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the tree; the number of cores must be one integer, the words may be an array."""
        _, dtype, attrs = self.asked(tiling, how, "fp32")
        return tree_cost(tree_of(dims["words"], tiling, wafer, dtype, attrs), dims["words"], wafer, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which every core starts with x, and column 0 ends with the sums of its rows."""
        _, dtype, attrs = asked(options, "fp32")
        n, rows, cols = int(dims["words"]), int(tiling.rows), int(tiling.cols)
        tree = tree_of(n, tiling, wafer, dtype, attrs)
        b = new_builder(rows, cols, wafer)
        x = b.buffer("x", n, dtype)
        line = Line(b, vertical=False)
        steps, _ = route_reduce(line, tree, 0)
        classes: dict[Any, Any] = {}
        for v, step in enumerate(steps):
            if step not in classes:
                classes[step] = b.core_class(f"reduce {len(classes)}")
                classes[step].busy(b.config.task_start_cycles)
                emit_reduce(classes[step], step, x, dtype)
            b.place(classes[step], line.place(v))
        return reduce_case(b, n, dtype, int(options.get("seed", 0)), axis=1)


def tree_of(n: Size, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> LineTree:
    """Return the tree of a tiling for vectors of at most n elements."""
    stated = LineReduceAttributes.of(tiling.options, attrs)
    b = int(np.max(words(n, dtype)))
    return best_tree(int(tiling.cols), tiling.algorithm or stated.algorithm, stated.group, b, wafer)


def tree_cost(tree: LineTree, n: Size, wafer: Wafer, dtype: str, *, vertical: bool = False) -> Cost:
    """Return the cost of a tree with its task start; `vertical`: along a column."""
    return reduce_cost(tree, n, wafer, dtype, vertical=vertical) + Cost(startup=wafer.task_start_cycles)


def reduce_case(b: Builder, n: int, dtype: str, seed: int, axis: int | tuple[int, int]) -> Case:
    """Return a case with random integers, whose sums are exact in any order, and their sums along `axis`."""
    values = np.random.default_rng(seed).integers(-4, 5, (b.rows, b.cols, n)).astype(np.float32)
    expected = np.full(values.shape, np.nan, np.float32)
    target = expected[:, :1] if axis == 1 else expected[:1, :1]
    target[...] = values.sum(axis=axis, keepdims=True)
    return Case(b.build(), b.config, {"x": values}, {"x": expected})


FAMILY = register(LineReduce())
