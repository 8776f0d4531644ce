"""All-reduce (sum) of `words` elements along every row of the rectangle; reduce-scatter and all-gather.

Algorithms
----------
tree algorithms   star, chain, tree, two_phase, auto: reduce to column 0, multicast back on another color
k_tree            WaferLLM: groups with their root in the middle, group roots chained to the middle group,
                  one multicast each way (option `groups`)
ring              reduce-scatter and all-gather on a folded ring (cost only)

    reduce and multicast   T = T_reduce + o + B + hop (P - 1) + 2 T_R + 1
    k_tree                 T = T_tree + max(o + B + hop low, 2 (o + B) + hop high) + 2 T_R + 1
    ring                   T = task start + 2 (P - 1) (words(ceil(n/P)) + 2 hop + 2 T_R + 1 + o_loaded)

`low` and `high` are the distances from the root to the ends; the low side is sent first.

Source: arXiv 2404.15888, WaferLLM; calibration 1.2, 1.4.  Band: 1 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import CODE_BYTES, bytes_of, ceil_div, check_tiling, option, words
from wse_sim.kernels.line_reduce import tree_cost, tree_of
from wse_sim.kernels.lines import Line, Step, emit_reduce, new_builder, route_reduce
from wse_sim.kernels.mesh import best_groups
from wse_sim.kernels.trees import LineTree, k_tree


class Allreduce(Family):
    """The family of all-reduces along a line."""

    name = "allreduce"
    dims = ("words",)
    mappings = ("grid",)

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """The vector and code."""
        dtype = asked(how, dtype="fp32").dtype
        check_tiling(self.name, tiling, self.mappings)
        return Footprint(activations_bytes=1.0 * dims["words"] * bytes_of(dtype), code_bytes=CODE_BYTES)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """The tree up and the multicast down, or the ring."""
        _, dtype, attrs = asked(how, dtype="fp32")
        check_tiling(self.name, tiling, self.mappings)
        n, cores = dims["words"], int(tiling.cols)
        if tiling.algorithm == "ring":
            return 2.0 * ring_half(n, cores, wafer, dtype) + Cost(startup=wafer.task_start_cycles)
        tree = _tree(n, tiling, wafer, dtype, attrs)
        up = tree_cost(tree, n, wafer, dtype)
        return up + multicast_back(n, tree, wafer, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """Every core holds x and ends with the sum of its row."""
        if tiling.algorithm == "ring":
            raise KernelError("allreduce 'ring' has no fabric program; use k_tree or a tree algorithm")
        dtype, n = str(options.get("dtype", "fp32")), int(dims["words"])
        rows, cols = int(tiling.rows), int(tiling.cols)
        tree = _tree(n, tiling, wafer, dtype, options.get("attrs") or {})
        b = new_builder(rows, cols, wafer)
        x = b.buffer("x", n, dtype)
        place_allreduce(Line(b, vertical=False), tree, x, dtype, 0)
        values = np.random.default_rng(int(options.get("seed", 0))).integers(-4, 5, (rows, cols, n))
        total = np.broadcast_to(values.sum(axis=1, keepdims=True), values.shape)
        return Case(b.build(), b.config, {"x": values.astype(np.float32)}, {"x": total.astype(np.float32)})


def ring_half(n: Any, cores: int, wafer: Wafer, dtype: str) -> Cost:
    """Reduce-scatter (or all-gather) on a ring folded so that neighbours are at most two hops apart."""
    piece = words(ceil_div(n, cores), dtype) * wafer.wavelet_cycles
    steps = cores - 1
    return Cost(
        fabric=1.0 * steps * piece,
        idle=steps * (2 * wafer.hop_cycles + 2 * wafer.ramp_cycles + 1),
        startup=steps * wafer.vector_start_loaded_cycles,
    )


def multicast_back(n: Any, tree: LineTree, wafer: Wafer, dtype: str) -> Cost:
    """Result from the root to both ends, one way after the other."""
    b = words(n, dtype) * wafer.wavelet_cycles
    if tree.cores == 1:
        return Cost()
    low, high = tree.root, tree.cores - 1 - tree.root
    o, hop = wafer.vector_start_cycles, wafer.hop_cycles
    first, second = (o + b) * (low > 0), (o + b) * (high > 0)
    ends = np.maximum((first + low * hop) * (low > 0), (first + second + high * hop) * (high > 0))
    starts = o * ((low > 0) + (high > 0))
    sent = b * ((low > 0) + (high > 0))
    return Cost(
        fabric=1.0 * sent,
        startup=starts,
        idle=np.maximum(0.0, ends - starts - sent) + 2 * wafer.ramp_cycles + 1,
    )


def _tree(n: Any, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Mapping[str, Any]) -> LineTree:
    if tiling.algorithm != "k_tree":
        return tree_of(n, tiling, wafer, dtype, attrs)
    groups = int(option(tiling, attrs, "groups", 0)) or best_groups(int(tiling.cols))
    if groups > tiling.cols:
        raise KernelError(
            f"allreduce: {groups} groups on {tiling.cols} cores; use at most one group per core"
        )
    return k_tree(int(tiling.cols), groups)


def place_allreduce(
    line: Line, tree: LineTree, x: Any, dtype: str, first_color: int, before: Any = None
) -> int:
    """Routes, classes and places of an all-reduce on the buffer x; `before(k)` writes what comes first.

    Returns the number of colors used.
    """
    from wse_sim.fabric.builder import fabric_in, fabric_out

    b, root, cores = line.builder, tree.root, tree.cores
    steps, used = route_reduce(line, tree, first_color)
    back = {-1: first_color + used, 1: first_color + used + 1}
    for side, low, high in ((-1, 0, root), (1, root, cores - 1)):
        if low < high:
            _route_one_way(line, root, side, back[side], high if side > 0 else low)
    classes: dict[Any, Any] = {}
    for v, step in enumerate(steps):
        side = (v > root) - (v < root)
        key: tuple[Step, int] = (step, side)
        if key not in classes:
            classes[key] = k = b.core_class(f"allreduce {len(classes)}")
            start = "none"
            if before is None:
                k.busy(b.config.task_start_cycles)
            else:
                before(k)
                start = "code"  # the call pays L, its first instruction o
            emit_reduce(k, step, x, dtype, start)
            if side:
                k.mov(x.dsd(), fabric_in(back[side]), dtype=dtype)
            else:
                for way, exists in ((-1, root > 0), (1, root < cores - 1)):
                    if exists:
                        k.mov(fabric_out(back[way]), x.dsd(), dtype=dtype)
        b.place(classes[key], line.place(v))
    return used + 2


def _route_one_way(line: Line, root: int, side: int, color: int, end: int) -> None:
    """Multicast from the root to the end of one side."""
    outward, inward = line.toward(side), line.toward(-side)
    line.builder.route(color, line.place(root), rx="R", tx=outward)
    for v in range(root + side, end + side, side):
        line.builder.route(color, line.place(v), rx=inward, tx="R" if v == end else "R" + outward)


class RingHalf(Family):
    """Reduce-scatter or all-gather along a row: half of a ring all-reduce (cost only)."""

    dims = ("words",)
    mappings = ("grid",)

    def __init__(self, name: str) -> None:
        self.name = name

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """The whole vector and code."""
        dtype = asked(how, dtype="fp32").dtype
        return Footprint(activations_bytes=1.0 * dims["words"] * bytes_of(dtype), code_bytes=CODE_BYTES)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """P - 1 steps of one piece each on a folded ring."""
        dtype = asked(how, dtype="fp32").dtype
        check_tiling(self.name, tiling, self.mappings)
        half = ring_half(dims["words"], int(tiling.cols), wafer, dtype)
        return half + Cost(startup=wafer.task_start_cycles)


FAMILY = register(Allreduce())
REDUCE_SCATTER = register(RingHalf("reduce_scatter"))
ALL_GATHER = register(RingHalf("all_gather"))
