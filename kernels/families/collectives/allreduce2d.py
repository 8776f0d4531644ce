"""All-reduce (sum) of `words` elements over a rectangle of cores.

corner          xy reduction to the north-west core (:mod:`wse_sim.kernels.families.collectives.reduce2d`), multicast to the rectangle
rows_columns    an all-reduce along every row, then one along every column (:mod:`wse_sim.kernels.families.collectives.allreduce`)
auto            the faster of both

    corner          T = T_reduce2d + o + B + hop (R + C - 2) + turn + 2 T_R + 1
    rows_columns    T = T_row + T_column + o - (second task start)

Option `line`: tree along a line (star, chain, tree, two_phase, k_tree; default auto, of trees).

Source: arXiv 2404.15888.  Band: that of the trees (exact for chain, star, tree; 2 % for k_tree).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import Collective
from wse_sim.kernels.blocks.lines import new_builder, place_rows_columns, route_rectangle
from wse_sim.kernels.blocks.trees import LINE_ALGORITHMS, LineTree, multicast_back
from wse_sim.kernels.contract.equations import crossing_cycles, words
from wse_sim.kernels.contract.family import Attrs, Case, Cost, Dims, How, ProgramOptions, Size, Tiling, asked
from wse_sim.kernels.contract.parameters import Attributes, attribute
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.families.collectives.allreduce import allreduce_tree
from wse_sim.kernels.families.collectives.line_reduce import tree_cost, tree_of
from wse_sim.kernels.families.collectives.reduce2d import place_xy

ALGORITHMS = ("corner", "rows_columns")


@dataclass(frozen=True)
class Allreduce2DAttributes(Attributes):
    """Attributes of the collective; options of the tiling take precedence."""

    line: str = attribute("auto", "algorithm along a line", choices=(*LINE_ALGORITHMS, "k_tree"))
    group: int = attribute(0, "cores per group of two_phase; 0: the best")
    groups: int = attribute(0, "groups of k_tree; 0: about the square root of the cores")


class Allreduce2d(Collective):
    """The family of all-reduces over a rectangle."""

    name = "allreduce2d"
    programs = "corner (xy and a multicast), rows_columns (two all-reduces along lines), auto"
    attributes = Allreduce2DAttributes

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the algorithm; the sides of the rectangle must be integers."""
        _, dtype, attrs = self.asked(tiling, how, "fp32")
        algorithm = chosen(dims["words"], tiling, wafer, dtype, attrs)
        return _cost(algorithm, dims["words"], tiling, wafer, dtype, attrs)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which every core starts with x and ends with the sum of all."""
        _, dtype, attrs = asked(options, "fp32")
        n, rows, cols = int(dims["words"]), int(tiling.rows), int(tiling.cols)
        algorithm = chosen(n, tiling, wafer, dtype, attrs)
        row_tree, column_tree = (
            _tree(algorithm, n, side, tiling, wafer, dtype, attrs) for side in (cols, rows)
        )
        b = new_builder(rows, cols, wafer)
        x = b.buffer("x", n, dtype)
        if algorithm == "corner":
            _place_corner(b, row_tree, column_tree, x, dtype)
        else:
            place_rows_columns(b, (row_tree, column_tree), x, dtype)
        values = np.random.default_rng(int(options.get("seed", 0))).integers(-4, 5, (rows, cols, n))
        total = np.broadcast_to(values.sum(axis=(0, 1)), values.shape)
        return Case(b.build(), b.config, {"x": values.astype(np.float32)}, {"x": total.astype(np.float32)})


def chosen(n: Size, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> str:
    """Return the algorithm of a tiling, for vectors of at most n elements.

    Raises
    ------
    KernelError
        If it is unknown.
    """
    name = tiling.algorithm or "auto"
    if name in ALGORITHMS:
        return name
    if name != "auto":
        raise KernelError(f"allreduce2d has no algorithm '{name}'; use {', '.join(ALGORITHMS)}, auto")
    longest = int(np.max(n))
    return min(ALGORITHMS, key=lambda way: float(_cost(way, longest, tiling, wafer, dtype, attrs).total))


def _tree(
    algorithm: str, n: Size, side: int, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs
) -> LineTree:
    """Return the tree of a line of `side` cores: the fastest to reduce (corner), or to all-reduce
    (rows_columns)."""
    along = Allreduce2DAttributes.of(tiling.options, attrs).line
    line = replace(tiling, rows=1, cols=side, algorithm=along)
    return (tree_of if algorithm == "corner" else allreduce_tree)(n, line, wafer, dtype, attrs)


def _cost(algorithm: str, n: Size, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> Cost:
    lines = [
        (int(side), vertical) for side, vertical in ((tiling.cols, False), (tiling.rows, True)) if side > 1
    ]
    lines = lines or [(1, False)]
    cost = Cost(startup=wafer.task_start_cycles)
    for i, (side, vertical) in enumerate(lines):
        tree = _tree(algorithm, n, side, tiling, wafer, dtype, attrs)
        start = wafer.vector_start_cycles * (i > 0) - wafer.task_start_cycles
        cost = cost + tree_cost(tree, n, wafer, dtype, vertical=vertical) + Cost(startup=start)
        if algorithm == "rows_columns":
            cost = cost + multicast_back(n, tree, wafer, dtype, vertical=vertical)
    if algorithm == "corner" and lines != [(1, False)]:
        hops = 1.0 * (int(tiling.rows) + int(tiling.cols) - 2)
        turn = wafer.turn_cycles if len(lines) == 2 else 0
        cost = cost + Cost(
            fabric=1.0 * words(n, dtype) * wafer.wavelet_cycles,
            startup=wafer.vector_start_cycles,
            idle=hops * wafer.hop_cycles
            + crossing_cycles(tiling.rows - 1, wafer)
            + turn
            + wafer.handover_cycles,
        )
    return cost


def _place_corner(b: Builder, row_tree: LineTree, column_tree: LineTree, x: Buffer, dtype: str) -> None:
    """Write a reduction to the corner and a multicast back; the multicast uses the last color."""
    back = b.config.colors - 4  # higher colors are reserved for the system

    def receive(k: CoreClass, is_root: bool) -> None:
        if b.rows * b.cols > 1:
            k.mov(*((fabric_out(back), x.dsd()) if is_root else (x.dsd(), fabric_in(back))), dtype=dtype)

    used = place_xy(b, row_tree, column_tree, x, dtype, after=receive)
    if used > back:
        raise KernelError(f"allreduce2d: the trees need {used} colors, {back} are left; use line=chain")
    if b.rows * b.cols > 1:
        route_rectangle(b, back)


FAMILY = register(Allreduce2d())
