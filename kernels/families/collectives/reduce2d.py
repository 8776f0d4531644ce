"""Reduction (sum) of `words` elements per core over a rectangle, to its north-west core.

xy      every row reduces to column 0, then column 0 reduces northward; each with a tree of its line
        (option `line`: star, chain, tree, two_phase, auto; default auto)
snake   one chain over all cores, row by row, alternately from east to west and back

    xy      T = T_row + T_column + o - (second task start)         (times of line_reduce)
    snake   T = task start + B + (hop + 5)(R C - 1)

Source: arXiv 2404.15888.  Band: exact, o of the second phase included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, Builder
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import Collective
from wse_sim.kernels.blocks.lines import Line, ReductionStep, emit_reduce, new_builder, route_reduce
from wse_sim.kernels.blocks.trees import LINE_ALGORITHMS, LineTree, best_tree
from wse_sim.kernels.contract.equations import relay_cycles, words
from wse_sim.kernels.contract.family import Attrs, Case, Cost, Dims, How, ProgramOptions, Size, Tiling, asked
from wse_sim.kernels.contract.parameters import Attributes, attribute
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.families.collectives.line_reduce import reduce_case, tree_cost


@dataclass(frozen=True)
class Reduce2DAttributes(Attributes):
    """Attributes of the collective; options of the tiling take precedence."""

    line: str = attribute("auto", "algorithm along a line", choices=LINE_ALGORITHMS)
    group: int = attribute(0, "cores per group of two_phase; 0: the best")


class Reduce2d(Collective):
    """The family of reductions over a rectangle."""

    name = "reduce2d"
    programs = "xy (a tree per row, then one down the first column), snake"
    attributes = Reduce2DAttributes

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of row trees and a column tree, or of one chain over all cores."""
        _, dtype, attrs = self.asked(tiling, how, "fp32")
        n, rows, cols = dims["words"], int(tiling.rows), int(tiling.cols)
        if _algorithm(tiling) == "snake":
            b = words(n, dtype) * wafer.wavelet_cycles
            # Every link ends in a core, so no wavelet turns inside a router.
            idle = relay_cycles(wafer) * (rows * cols - 1)
            return Cost(fabric=1.0 * b, startup=wafer.task_start_cycles, idle=idle)
        row, column = (_tree(n, size, tiling, wafer, dtype, attrs) for size in (cols, rows))
        second = Cost(startup=wafer.vector_start_cycles - wafer.task_start_cycles)
        first_cost, last_cost = (
            tree_cost(row, n, wafer, dtype),
            tree_cost(column, n, wafer, dtype, vertical=True),
        )
        if rows == 1 or cols == 1:
            return first_cost if rows == 1 else last_cost
        return first_cost + last_cost + second

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which every core starts with x, and the north-west core ends with the sum of all."""
        _, dtype, attrs = asked(options, "fp32")
        n, rows, cols = int(dims["words"]), int(tiling.rows), int(tiling.cols)
        b = new_builder(rows, cols, wafer)
        x = b.buffer("x", n, dtype)
        if _algorithm(tiling) == "snake":
            _snake(b, x, dtype)
            return reduce_case(b, n, dtype, int(options.get("seed", 0)), axis=(0, 1))
        row_tree, column_tree = (_tree(n, size, tiling, wafer, dtype, attrs) for size in (cols, rows))
        place_xy(b, row_tree, column_tree, x, dtype)
        return reduce_case(b, n, dtype, int(options.get("seed", 0)), axis=(0, 1))


def place_xy(
    b: Builder,
    row_tree: LineTree,
    column_tree: LineTree,
    x: Buffer,
    dtype: str,
    after: Callable[[CoreClass, bool], None] | None = None,
) -> int:
    """Write routes, core classes and places of an xy reduction of x; ``after(k, is_root)`` writes subsequent
    code.

    Return the number of colors used.
    """
    row_steps, used = route_reduce(Line(b, vertical=False), row_tree, 0)
    column_steps, more = route_reduce(Line(b, vertical=True, across=0), column_tree, used)
    classes: dict[Any, Any] = {}

    def place(
        key: tuple[ReductionStep, ...], where: tuple[int | slice, int], *, is_root: bool = False
    ) -> None:
        if (key, is_root) not in classes:
            classes[key, is_root] = k = b.core_class(f"reduce {len(classes)}")
            k.busy(b.config.task_start_cycles)
            began = False
            for step in key:
                emit_reduce(k, step, x, dtype, start="code" if began else "none")
                began = began or bool(step.receives) or step.sends is not None
            if after is not None:
                after(k, is_root)
        b.place(classes[key, is_root], where)

    for col in range(1, b.cols):
        place((row_steps[col],), (slice(None), col))
    for row in range(b.rows):
        place((row_steps[0], column_steps[row]), (row, 0), is_root=row == 0)
    return used + more


def _algorithm(tiling: Tiling) -> str:
    name = tiling.algorithm or "xy"
    if name not in {"xy", "snake"}:
        raise KernelError(f"reduce2d has no algorithm '{name}'; use xy or snake")
    return name


def _tree(n: Size, size: int, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> LineTree:
    stated = Reduce2DAttributes.of(tiling.options, attrs)
    b = int(np.max(words(n, dtype)))
    return best_tree(size, stated.line, stated.group, b, wafer)


def _snake(b: Builder, x: Buffer, dtype: str) -> None:
    """Write the chain: core i sends to core i - 1 on a color that alternates by parity."""
    path = [
        (row, col)
        for row in range(b.rows)
        for col in (range(b.cols) if row % 2 == 0 else range(b.cols - 1, -1, -1))
    ]
    port = {(0, 1): "E", (0, -1): "W", (1, 0): "S", (-1, 0): "N"}
    classes: dict[ReductionStep, Any] = {}
    for i, at in enumerate(path):
        receives: tuple[int, ...] = ()
        if i + 1 < len(path):
            nxt = path[i + 1]
            receives = ((i + 1) % 2,)
            b.route((i + 1) % 2, at, rx=port[nxt[0] - at[0], nxt[1] - at[1]], tx="R")
        if i:
            before = path[i - 1]
            b.route(i % 2, at, rx="R", tx=port[before[0] - at[0], before[1] - at[1]])
        step = ReductionStep(receives, i % 2 if i else None, None)
        if step not in classes:
            classes[step] = b.core_class(f"snake {len(classes)}")
            classes[step].busy(b.config.task_start_cycles)
            emit_reduce(classes[step], step, x, dtype)
        b.place(classes[step], at)


FAMILY = register(Reduce2d())
