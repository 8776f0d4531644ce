"""Tree reductions along a line of cores: their time, and the fabric program that all of them share.

A tree defines for every core which cores send to it, and in which order. A core adds each incoming stream to
its own B words: all streams except the last into memory, and the last one while it forwards the sum to its
parent (it receives, adds and sends one word per cycle). The root adds all streams into memory.

Symbols: P cores, B wavelets, hop = hop_cycles, T_H = handover_cycles (2 ramps and the core between them), o =
vector_start_cycles, x(a, b) = extra cycles of die edges between two rows (only for lines along a column).
With e(v) the cycle in which core v emits its first word (0 for a leaf), children c_0, c_1, ... and
d the distance in cores::

    arrive(c)  = e(c) + d hop + x(v, c) + T_H
    free_0     = 0,    free_i = max(free_(i-1), arrive(c_(i-1))) + B + o        (i > 0)
    e(v)       = max(free_last, arrive(c_last))
    T          = task start + max(free_last, arrive(c_last)) + B                (at the root)

Chain, star, binary tree, two-phase and generated trees are special cases; for the published two-phase rows
the recursion is ``2B + (hop + 5)(S - 1) + (G - 2)(S hop + 5) + 77``: the leader of the farthest group has
only one stream, so it never stores its sum.

Colors: the streams into one core from one side share a color.  A nearer child sends first and its last
word advances its own router from "inject" to "pass", so the next stream crosses it.  Intervals
[parent, farthest child] that touch get different colors.

Source: calibration 1.2, exact on five published rows; arXiv 2404.15888 for the algorithms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import words
from wse_sim.kernels.contract.family import Cost, Size

MAX_GENERATED_DEPTH = 48  # deeper trees than this are chains in effect


@dataclass(frozen=True)
class LineTree:
    """Tree on a line of cores; `children[v]` are the positions that send to core v, in the order of
    receiving."""

    children: tuple[tuple[int, ...], ...]
    root: int = 0
    group: int = 0  # size of the groups of a two-phase tree

    @property
    def cores(self) -> int:
        """Cores on the line."""
        return len(self.children)

    def parents(self) -> list[int]:
        """Parent of each core, -1 for the root."""
        parent = [-1] * self.cores
        for v, kids in enumerate(self.children):
            for c in kids:
                parent[c] = v
        return parent


def chain(cores: int) -> LineTree:
    """Return a chain: each core receives from its right neighbour."""
    return LineTree(tuple((v + 1,) if v + 1 < cores else () for v in range(cores)))


def star(cores: int) -> LineTree:
    """Return a star: the root receives from all cores, nearest first."""
    return LineTree((tuple(range(1, cores)), *(() for _ in range(cores - 1))))


def binary(cores: int) -> LineTree:
    """Return a binary tree: in round j, odd multiples of 2^j send to the multiple below."""
    kids: list[list[int]] = [[] for _ in range(cores)]
    step = 1
    while step < cores:
        for v in range(0, cores - step, 2 * step):
            kids[v].append(v + step)
        step *= 2
    return LineTree(tuple(tuple(k) for k in kids))


def two_phase(cores: int, group: int) -> LineTree:
    """Return a two-phase tree: chains inside groups of `group` cores, then a chain over the group leaders."""
    kids: list[list[int]] = [[] for _ in range(cores)]
    for v in range(cores):
        if v + 1 < cores and (v + 1) % group:
            kids[v].append(v + 1)
        if v % group == 0 and v + group < cores:
            kids[v].append(v + group)
    return LineTree(tuple(tuple(k) for k in kids), group=group)


def k_tree(cores: int, groups: int, stream_order: str = "by_side") -> LineTree:
    """Return a K-tree: the root of each group is in its middle; the roots chain from both sides to the middle
    group's.

    `stream_order`: a root receives its streams "by_side" (lower half, upper half, lower roots, upper roots),
    or "by_arrival" (fewest handovers first).
    """
    size = max(1, cores // groups)
    leaders = [min(g * size + size // 2, cores - 1) for g in range(groups)]
    middle = groups // 2
    kids: list[list[int]] = [[] for _ in range(cores)]
    for g, leader in enumerate(leaders):
        first, last = g * size, (g + 1) * size if g + 1 < groups else cores
        for v in range(first, last):
            if v < leader:
                kids[v + 1].append(v)
            elif v > leader:
                kids[v - 1].append(v)
    for g, leader in enumerate(leaders):
        if g != middle:
            kids[leaders[g + 1 if g < middle else g - 1]].append(leader)
    tree = LineTree(tuple(tuple(k) for k in kids), leaders[middle])
    return _by_arrival(tree) if stream_order == "by_arrival" else tree


def _by_arrival(tree: LineTree) -> LineTree:
    """Return the same tree with the children of every core sorted by arrival: fewest handovers, then fewest
    hops below."""
    behind: dict[int, tuple[int, int]] = {}
    order: dict[int, tuple[int, ...]] = {}
    for v in _post_order(tree):
        way = {c: (behind[c][0] + 1, behind[c][1] + abs(c - v)) for c in tree.children[v]}
        order[v] = tuple(sorted(tree.children[v], key=lambda c, way=way: way[c]))  # type: ignore[misc]
        behind[v] = max(way.values(), default=(0, 0))
    return LineTree(tuple(order[v] for v in range(tree.cores)), tree.root, tree.group)


@lru_cache(maxsize=64)
def _generated_table(cores: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the least wavelet-hops (depth, r) to reduce r cores, and the size of the last child's
    subtree."""
    best = np.full((depth + 1, cores + 1), np.inf)
    split = np.zeros((depth + 1, cores + 1), np.int64)
    best[:, 1] = 0.0
    hops = np.arange(cores + 1, dtype=float)
    for d in range(1, depth + 1):
        row, shallower = best[d], best[d - 1]
        for r in range(2, cores + 1):
            # last child: the s rightmost cores, r - s hops away
            total = shallower[1:r] + row[r - 1 : 0 : -1] + hops[r - 1 : 0 : -1]
            s = int(np.argmin(total))
            row[r], split[d, r] = total[s], s + 1
    return best, split


@lru_cache(maxsize=256)
def generated(cores: int, depth: int) -> LineTree:
    """Return the tree with the fewest wavelet-hops among those with at most `depth` dependent steps."""
    depth = max(1, min(depth, cores - 1, MAX_GENERATED_DEPTH))
    _, split = _generated_table(cores, min(MAX_GENERATED_DEPTH, max(1, cores - 1)))
    kids: list[list[int]] = [[] for _ in range(cores)]
    work = [(0, cores, depth)]
    while work:
        at, size, d = work.pop()
        rest = size
        while rest > 1:
            s = int(split[d, rest])
            rest -= s
            kids[at].append(at + rest)
            work.append((at + rest, s, d - 1))
        kids[at].sort()
    return LineTree(tuple(tuple(k) for k in kids))


def reduce_cycles(tree: LineTree, b: Size, wafer: Wafer, *, vertical: bool = False) -> tuple[Any, int]:
    """Return the cycles after the task start and the streams of the root, for `b` wavelets; `vertical`: along
    a column."""
    hop, ramp, o = wafer.hop_cycles, wafer.handover_cycles, wafer.vector_start_cycles
    b, crossing = np.asarray(b) * wafer.wavelet_cycles, _crossing(wafer, vertical=vertical)
    emit: dict[int, Any] = {}
    for v in _post_order(tree):
        free: NDArray[np.float64] = np.zeros_like(b, dtype=float)
        for i, c in enumerate(tree.children[v]):
            if i:
                free = free + b + o
            free = np.maximum(free, emit[c] + abs(c - v) * hop + crossing(c, v) + ramp)
        emit[v] = free
    return emit[tree.root] + b, len(tree.children[tree.root])


def reduce_cost(tree: LineTree, n: Size, wafer: Wafer, dtype: str, *, vertical: bool = False) -> Cost:
    """Return the cost of a reduction of n elements after the task start, by cause as seen by the root; `vertical`:
    along a column."""
    cycles, streams = reduce_cycles(tree, words(n, dtype), wafer, vertical=vertical)
    received = streams * words(n, dtype) * wafer.wavelet_cycles
    starts = max(0, streams - 1) * wafer.vector_start_cycles
    return Cost(fabric=1.0 * received, startup=starts, idle=np.maximum(0.0, cycles - received - starts))


def _crossing(wafer: Wafer, *, vertical: bool) -> Callable[[int, int], int]:
    """Return a function with the cycles for die edges between two positions of a line that starts in the
    first row of a program."""
    edges = wafer.die_edges(wafer.rows) if vertical and wafer.die_crossing_cycles else ()

    def cycles(a: int, b: int) -> int:
        return wafer.die_crossing_cycles * (bisect_right(edges, max(a, b)) - bisect_right(edges, min(a, b)))

    return cycles if edges else lambda a, b: 0


def _post_order(tree: LineTree) -> list[int]:
    order, stack = [], [tree.root]
    while stack:
        v = stack.pop()
        order.append(v)
        stack.extend(tree.children[v])
    return order[::-1]


LINE_ALGORITHMS = ("star", "chain", "tree", "two_phase", "auto")


def candidates(cores: int, algorithm: str, group: int = 0) -> list[LineTree]:
    """Return the trees that an algorithm may use: several if the best one is chosen by cost.

    Raises
    ------
    KernelError
        If the algorithm is unknown or the group size is out of range.
    """
    if cores == 1:
        return [chain(1)]
    simple: dict[str, Callable[[int], LineTree]] = {"chain": chain, "star": star, "tree": binary}
    if algorithm in simple:
        return [simple[algorithm](cores)]
    if algorithm == "two_phase":
        if group < 0 or group > cores:
            raise KernelError(
                f"reduce: group {group} is not in 1..{cores}; use at most the cores of the line"
            )
        groups = [group] if group else sorted({max(1, round(cores**0.5 * f)) for f in (0.25, 0.5, 1, 2, 4)})
        return [two_phase(cores, g) for g in groups if g <= cores]
    if algorithm == "auto":
        shapes = [chain(cores), star(cores), binary(cores), *candidates(cores, "two_phase")]
        depths = sorted({1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48})
        return shapes + [generated(cores, d) for d in depths if d < cores]
    raise KernelError(f"reduce has no algorithm '{algorithm}'; use star, chain, tree, two_phase, auto")


def best_tree(cores: int, algorithm: str, group: int, b: int, wafer: Wafer) -> LineTree:
    """Return the fastest candidate for `b` wavelets."""
    return min(
        candidates(cores, algorithm, group), key=lambda tree: float(np.max(reduce_cycles(tree, b, wafer)[0]))
    )


def stream_colors(tree: LineTree, first: int = 0) -> dict[tuple[int, int], int]:
    """Return a color per (parent, side), side -1 or +1, so that intervals that touch have different
    colors."""
    spans = []
    for v, kids in enumerate(tree.children):
        for side in (-1, 1):
            mine = [c for c in kids if (c > v) == (side > 0)]
            if mine:
                far = max(mine) if side > 0 else min(mine)
                spans.append((min(v, far), max(v, far), v, side))
    used: list[int] = []  # right end of the last interval of each color
    colors = {}
    for low, high, v, side in sorted(spans):
        for i, end in enumerate(used):
            if end < low:
                used[i] = high
                break
        else:
            used.append(high)
            i = len(used) - 1
        colors[v, side] = first + i
    return colors


def multicast_back(n: Size, tree: LineTree, wafer: Wafer, dtype: str, *, vertical: bool = False) -> Cost:
    """Return the cost of sending the result from the root to both ends, one direction after the other."""
    b = words(n, dtype) * wafer.wavelet_cycles
    if tree.cores == 1:
        return Cost()
    low, high = tree.root, tree.cores - 1 - tree.root
    o, hop = wafer.vector_start_cycles, wafer.hop_cycles
    first, second = (o + b) * (low > 0), (o + b) * (high > 0)
    crossing = _crossing(wafer, vertical=vertical)
    to_low = low * hop + crossing(0, tree.root)
    to_high = high * hop + crossing(tree.root, tree.cores - 1)
    ends = np.maximum((first + to_low) * (low > 0), (first + second + to_high) * (high > 0))
    starts = o * ((low > 0) + (high > 0))
    sent = b * ((low > 0) + (high > 0))
    return Cost(
        fabric=1.0 * sent,
        startup=starts,
        idle=np.maximum(0.0, ends - starts - sent) + wafer.handover_cycles,
    )
