"""All-reduce (sum) of `words` elements along every row of the rectangle.

Algorithms
----------
tree algorithms   star, chain, tree, two_phase: reduce to column 0, multicast back on another color
k_tree            WaferLLM: groups with their root in the middle, group roots chained to the middle group,
                  one multicast each way (option `groups`)
ring              reduce-scatter, then all-gather on a folded ring (:mod:`wse_sim.kernels.blocks.ring`)
auto              the fastest of these and of generated trees, for the longest requested vector

    reduce and multicast   T = T_reduce + o + B + hop (P - 1) + 2 T_R + 1
    k_tree                 T = T_tree + max(o + B + hop low, 2 (o + B) + hop high) + 2 T_R + 1
    ring                   T = task start + 2 T_half + o_l

`low` and `high` are the distances from the root to the ends; the low side is sent first.

Source: arXiv 2404.15888, WaferLLM; calibration 1.2, 1.4.  Band: 1 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import Collective
from wse_sim.kernels.blocks.lines import Line, new_builder, place_allreduce
from wse_sim.kernels.blocks.mesh import best_groups
from wse_sim.kernels.blocks.ring import emit_all_gather, emit_reduce_scatter, half_cost, place_ring
from wse_sim.kernels.blocks.trees import (
    LINE_ALGORITHMS,
    LineTree,
    candidates,
    k_tree,
    multicast_back,
    reduce_cycles,
)
from wse_sim.kernels.contract.equations import ceil_div, words
from wse_sim.kernels.contract.family import Attrs, Case, Cost, Dims, How, ProgramOptions, Size, Tiling, asked
from wse_sim.kernels.contract.parameters import attribute
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.families.collectives.line_reduce import LineReduceAttributes, tree_cost, tree_of


@dataclass(frozen=True)
class AllreduceAttributes(LineReduceAttributes):
    """Attributes of the collective; options of the tiling take precedence."""

    algorithm: str = attribute("auto", "tree or ring", choices=(*LINE_ALGORITHMS, "k_tree", "ring"))
    groups: int = attribute(0, "groups of k_tree; 0: about the square root of the cores")


class Allreduce(Collective):
    """The family of all-reduces along a line."""

    name = "allreduce"
    programs = "star, chain, tree, two_phase or k_tree and back; ring; auto"
    bands = "exact; k_tree 2 %"
    attributes = AllreduceAttributes
    in_pieces = True  # as a ring needs it

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the tree and the multicast back, or of the ring; the number of cores must be one
        integer."""
        _, dtype, attrs = self.asked(tiling, how, "fp32")
        n, tree = dims["words"], tree_or_ring(dims["words"], tiling, wafer, dtype, attrs)
        if tree is None:
            return ring_cost(n, int(tiling.cols), wafer, dtype)
        return tree_cost(tree, n, wafer, dtype) + multicast_back(n, tree, wafer, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which every core starts with x and ends with the sum of its row."""
        _, dtype, attrs = asked(options, "fp32")
        n, rows, cols = int(dims["words"]), int(tiling.rows), int(tiling.cols)
        tree = tree_or_ring(n, tiling, wafer, dtype, attrs)
        b = new_builder(rows, cols, wafer)
        length = n if tree is not None else cols * ceil_div(n, cols)
        x = b.buffer("x", length, dtype)
        line = Line(b, vertical=False)
        if tree is None:
            place_ring(line, x, length // cols, dtype, (emit_reduce_scatter, emit_all_gather))
        else:
            place_allreduce(line, tree, x, dtype, 0)
        values = np.zeros((rows, cols, length), np.float32)
        rng = np.random.default_rng(int(options.get("seed", 0)))
        values[..., :n] = rng.integers(-4, 5, (rows, cols, n))
        total = np.broadcast_to(values.sum(axis=1, keepdims=True), values.shape)
        return Case(b.build(), b.config, {"x": values}, {"x": total})


def ring_cost(n: Size, cores: int, wafer: Wafer, dtype: str) -> Cost:
    """Return the cost of both halves of the ring, one after the other."""
    between = wafer.vector_start_loaded_cycles * (cores > 1)
    return 2.0 * half_cost(n, cores, wafer, dtype) + Cost(startup=wafer.task_start_cycles + between)


def tree_or_ring(n: Size, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> LineTree | None:
    """Return the tree of a tiling for vectors of at most n elements; None: a ring."""
    algorithm = tiling.algorithm or AllreduceAttributes.of(tiling.options, attrs).algorithm
    if algorithm == "ring":
        return None
    tree, longest, cores = allreduce_tree(n, tiling, wafer, dtype, attrs), int(np.max(n)), int(tiling.cols)
    is_faster = algorithm == "auto" and float(ring_cost(longest, cores, wafer, dtype).total) < (
        _cycles(tree, longest, wafer, dtype)
    )
    return None if is_faster else tree


def allreduce_tree(n: Size, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> LineTree:
    """Return the tree of a tiling for vectors of at most n elements: the stated one, or the fastest."""
    stated = AllreduceAttributes.of(tiling.options, attrs)
    cores, algorithm = int(tiling.cols), tiling.algorithm or stated.algorithm
    if algorithm == "k_tree":
        return _k_tree(cores, stated.groups, wafer)
    if algorithm != "auto":
        return tree_of(n, tiling, wafer, dtype, attrs)
    ways = [*candidates(cores, "auto"), _k_tree(cores, 0, wafer)]
    return min(ways, key=lambda tree: _cycles(tree, int(np.max(n)), wafer, dtype))


def _cycles(tree: LineTree, n: int, wafer: Wafer, dtype: str) -> float:
    """Return the cycles of an all-reduce over a tree."""
    up = reduce_cycles(tree, words(n, dtype), wafer)[0]
    return float(up + multicast_back(n, tree, wafer, dtype).total + wafer.task_start_cycles)


def _k_tree(cores: int, groups: int, wafer: Wafer) -> LineTree:
    groups = groups or int(best_groups(cores))
    if groups > cores:
        raise KernelError(f"allreduce: {groups} groups on {cores} cores; use at most one group per core")
    return k_tree(cores, groups, wafer.stream_order)


FAMILY = register(Allreduce())
