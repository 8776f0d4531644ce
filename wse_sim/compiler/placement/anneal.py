"""Simulated annealing over slicing trees with shape curves, in which a move may also change the level.

    energy = time_weight * T + wire_weight * wire + lambda * overflow

``overflow`` is the number of columns by which the tree is wider than the fabric. The temperature decreases
geometrically with the fraction of the work done. Work is counted in deterministic units (curve additions,
transpositions, cells) and not in seconds, so that a seed gives the same result on any machine.
"""

# mypy: disable-error-code="arg-type,return-value,assignment"
# numba infers these types; in the stubs of NumPy its integers are not int
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wse_sim.compiler.placement.curves import CurveBank
from wse_sim.compiler.placement.layouts import layout_kernel, turn_kernel
from wse_sim.compiler.placement.moves import draw_below, draw_bits, propose, put, undo
from wse_sim.compiler.placement.problem import PlacementProblem
from wse_sim.compiler.placement.slicing import (
    Cells,
    Slicing,
    mark_changed,
    new_slicing,
    realise_changes,
    rebuild,
    root_width,
    update_node,
    wire_between,
    wire_of,
)
from wse_sim.jit import helper_kernel, kernel

LEVEL_EVERY = 1000  # moves between two attempts to change the level
HEIGHT_EVERY = 150  # moves between two attempts to change the height of the whole tree
CHECK_EVERY = 500_000  # work units between two checks of the clock, about 0.04 s
HOPELESS = 0.75  # moves that would have to cut the wire by over a quarter are rejected without a layout


class Annealing(NamedTuple):
    """The constant inputs of one annealing: the fabric, levels with their curves, edges, neighbours and
    parameters.

    ``levels`` (L,) are times, ``curve_of`` (L, n) the curve of every block at each of them. ``ea``, ``eb``,
    ``ew`` (E,) are the ends and weights of edges. ``adj_ptr`` and ``adj`` are the neighbours of every block
    in compressed rows. ``params`` (6,) are the weights of time and wire, the temperature at the start and at
    the end, and lambda at the start and at the end.
    """

    fabric_w: int
    fabric_h: int
    levels: np.ndarray
    curve_of: np.ndarray
    ea: np.ndarray
    eb: np.ndarray
    ew: np.ndarray
    adj_ptr: np.ndarray
    adj: np.ndarray
    params: np.ndarray


def new_cells(n: int) -> Cells:
    """Return the cells of a tree of `n` blocks that is not laid out yet."""
    big_n = 2 * n - 1
    return Cells(
        np.zeros((big_n, 5), dtype=np.int32),
        np.zeros((n, 2), dtype=np.int32),
        np.zeros((big_n, 5), dtype=np.int32),
        np.zeros(big_n, dtype=np.int64),
        np.zeros(big_n, dtype=np.int64),
    )


@helper_kernel
def draw_level(level: int, count: int, rng: np.ndarray) -> int:
    """Return a random level index one to three steps from `level`, possibly outside the `count` levels."""
    step = 1 + draw_below(rng, 3)
    return level + (step if draw_below(rng, 2) else -step)


@helper_kernel
def move_height(s: Slicing, fabric_h: int, rng: np.ndarray, log: np.ndarray) -> None:
    """Change the height that the root may use by a random number of rows of any magnitude."""
    at = 4 * (2 * s.n - 1) + 1
    reach = max(1, fabric_h >> (1 + draw_below(rng, 8)))
    height = s.tree[at] + draw_below(rng, 2 * reach + 1) - reach
    put(s.tree, at, min(max(height, 1), fabric_h), log)


@helper_kernel
def update_paths(s: Slicing, first: int, second: int) -> None:
    """Recompute the curves from two nodes up to the root; -1 represents no node."""
    parent = 2 * (2 * s.n - 1)
    if second >= 0 and first >= 0:
        # nodes above `second` are marked negative so that the path of `first` stops there
        node = second
        while node >= 0:
            s.stamp[node] = -s.work[1]
            node = np.int64(s.tree[parent + node])
        node = first
        while node >= 0 and s.stamp[node] != -s.work[1]:
            update_node(node, s)
            node = np.int64(s.tree[parent + node])
    node = second if second >= 0 else first
    while node >= 0:
        update_node(node, s)
        node = np.int64(s.tree[parent + node])


@helper_kernel
def settle_cells(s: Slicing, c: Cells, held: Cells, count: int, accept: bool) -> None:
    """Copy the `count` cells that a move changed to `held` if it is accepted, otherwise restore them from
    there.
    """
    kept, into = (c, held) if accept else (held, c)
    for i in range(count):
        node = c.moved[i]
        for k in range(5):
            into.cell[node, k] = kept.cell[node, k]
        if node < s.n:
            for k in range(2):
                into.centre[node, k] = kept.centre[node, k]


@kernel
def anneal_kernel(
    s: Slicing,
    c: Cells,
    held: Cells,
    search: Annealing,
    best_tree: np.ndarray,
    state: np.ndarray,
    rng: np.ndarray,
    budget: int,
) -> None:
    """Anneal the tree of `s` until `budget` work units are used; the best tree is written to `best_tree`.

    `state` (6,) float64 holds the level index, the best cost, the best level index, the work done, the total
    work and the number of moves made so far. `held` are the cells of the tree that was accepted last.
    """
    tree, pool, work, levels, params = s.tree, s.pool, s.work, search.levels, search.params
    log = np.zeros((4096, 2), dtype=np.int64)
    work[2] = 0
    level = int(state[0])
    wt, wl = params[0], params[1]
    wire = 1e30
    width = root_width(s)
    over = float(max(0, width - search.fabric_w))
    placed = False
    if width < pool.shape[1]:
        c.changed[:] = work[1]
        realise_changes(s, c)
        held.cell[:] = c.cell
        held.centre[:] = c.centre
        placed = True
        wire = wire_between(c.centre, search.ea, search.eb, search.ew)
        if over == 0.0 and wt * levels[level] + wl * wire < state[1]:
            state[1] = wt * levels[level] + wl * wire
            state[2] = level
            best_tree[:] = tree
    temperature, lam = params[2], params[4]
    moves = np.int64(state[5])
    refresh = 0
    while work[0] < budget:
        if refresh == 0:
            refresh = 64
            fraction = min(1.0, (state[3] + work[0]) / state[4])
            temperature = params[2] * (params[3] / params[2]) ** fraction
            lam = params[4] * (params[5] / params[4]) ** fraction
        refresh -= 1
        moves += 1
        work[1] += 1
        work[2] = 0
        work[0] += 2
        new_level = level
        everything = moves % LEVEL_EVERY == 0 and levels.shape[0] > 1
        if everything:
            new_level = draw_level(level, levels.shape[0], rng)
            if new_level < 0 or new_level >= levels.shape[0]:
                continue
            s.leaf[:] = search.curve_of[new_level]
            rebuild(s)
        elif moves % HEIGHT_EVERY == 0 or s.n == 1:
            move_height(s, search.fabric_h, rng, log)
        else:
            first, second = propose(s.n, tree, search.adj_ptr, search.adj, rng, s.stack, log)
            if first == -2:
                continue
            update_paths(s, first, second)
        width = root_width(s)
        limit = wt * levels[level] + wl * wire + lam * over
        uniform = (draw_bits(rng) + 1) / 2147483649.0
        limit -= temperature * np.log(uniform)
        new_over = float(max(0, width - search.fabric_w))
        fixed = wt * levels[new_level] + lam * new_over
        accept = False
        new_wire = 0.0
        if width < pool.shape[1] and fixed + HOPELESS * wl * wire <= limit:
            if everything or not placed:
                c.changed[:] = work[1]
            else:
                mark_changed(tree, 2 * s.n - 1, log, c.changed, work[1])
            count = realise_changes(s, c)
            new_wire = wire_between(c.centre, search.ea, search.eb, search.ew)
            work[0] += (2 * count + search.ea.shape[0]) // 8
            accept = fixed + wl * new_wire <= limit
            settle_cells(s, c, held, count, accept)
            placed = placed or accept
        if accept:
            log[0, 0] = 0
            level, wire, over = new_level, new_wire, new_over
            if over == 0.0 and wt * levels[level] + wl * wire < state[1] - 1e-9:
                state[1] = wt * levels[level] + wl * wire
                state[2] = level
                best_tree[:] = tree
        else:
            undo(tree, log)
            for i in range(work[2]):
                s.cur[s.touched[i]] = 1 - s.cur[s.touched[i]]
            if everything:
                s.leaf[:] = search.curve_of[level]
    state[0] = level
    state[3] += work[0]
    state[5] = moves


def make_pool(bank: CurveBank, n: int) -> tuple[np.ndarray, int]:
    """Return an array for the curves of a tree of `n` leaves, filled with the leaves' curves, and its first
    free row.
    """
    base = 2 * bank.curves.shape[0]
    pool = np.full((base + 8 * n, bank.span), 1 << 13, dtype=np.int16)
    pool[:base] = bank.curves.reshape(base, bank.span)
    return pool, base


def adjacency(n: int, ea: np.ndarray, eb: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the neighbours of every block in compressed rows: pointers (n + 1,) and neighbours (2e,)."""
    source = np.concatenate([ea, eb])
    other = np.concatenate([eb, ea])
    order = np.argsort(source, kind="stable")
    pointer = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=n))))
    return pointer.astype(np.int64), other[order].astype(np.int64)


@dataclass
class AnnealResult:
    """The best tree found as a flat array, with its level index in the bank and its cost, and the effort
    spent.

    ``cut`` states whether the time limit shortened the schedule.
    """

    tree: np.ndarray
    level: int
    cost: float
    moves: int
    work: float
    seconds: float
    cut: bool


class Annealer:
    """Annealing of one placement problem with one bank of curves."""

    def __init__(self, problem: PlacementProblem, bank: CurveBank) -> None:
        self.problem = problem
        self.bank = bank
        self.n = len(problem.blocks)
        self.ea, self.eb, self.ew = problem.edge_arrays()
        self.adj_ptr, self.adj = adjacency(self.n, self.ea, self.eb)
        self.pool, self.base = make_pool(bank, self.n)

    def layout(self, tree: np.ndarray, level: int) -> tuple[np.ndarray, int]:
        """Return the rectangles (n, 4) and the total width of a tree at level index `level`."""
        cell = np.zeros((2 * self.n - 1, 4), dtype=np.int32)
        width = layout_kernel(self.n, tree, self.bank.curve_of[level], self.pool, self.base, cell)
        return cell[: self.n].astype(np.int64), int(width)

    def cost(self, tree: np.ndarray, level: int) -> float:
        """Return the cost of a tree at level index `level`, infinite if it is wider than the fabric."""
        rects, width = self.layout(tree, level)
        if width > self.problem.width:
            return float("inf")
        wire = wire_of(rects.astype(np.int32), self.ea, self.eb, self.ew)
        return self.problem.time_weight * float(self.bank.levels[level]) + self.problem.wire_weight * wire

    def turn_groups(
        self, tree: np.ndarray, level: int, spine: np.ndarray, group: np.ndarray, kinds: np.ndarray
    ) -> float:
        """Choose the sides and directions of a peeled tree's groups in place for the least wire; return the
        cost.

        The cost is infinite if the tree is wider than the fabric.
        """
        wire = turn_kernel(
            self.n,
            tree,
            self.bank.curve_of[level],
            self.pool,
            self.base,
            self.problem.width,
            spine,
            group,
            kinds,
            self.ea,
            self.eb,
            self.ew,
        )
        return self.problem.time_weight * float(self.bank.levels[level]) + self.problem.wire_weight * wire

    def run(
        self,
        tree: np.ndarray,
        level: int,
        *,
        seed: int,
        work: int,
        temperatures: tuple[float, float],
        lambdas: tuple[float, float],
        deadline: float = float("inf"),
    ) -> AnnealResult:
        """Anneal from `tree` for `work` units, or fewer if they would end after `deadline`.

        `temperatures` and `lambdas` are (start, end). `deadline` is in seconds of ``time.monotonic()``. After
        half of the time until then, the schedule is shortened to the work that can still be done, so that the
        cooling ends by the deadline.
        """
        tree = tree.copy()
        best = tree.copy()
        state = np.array([level, self.cost(tree, level), level, 0.0, float(max(work, 1)), 0.0])
        rng = np.array([(seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % (1 << 64) | 1], dtype=np.uint64)
        params = np.array([self.problem.time_weight, self.problem.wire_weight, *temperatures, *lambdas])
        search = Annealing(
            self.problem.width,
            self.problem.height,
            self.bank.levels,
            self.bank.curve_of,
            self.ea,
            self.eb,
            self.ew,
            self.adj_ptr,
            self.adj,
            params,
        )
        for _ in range(16):  # consecutive seeds start from related states: mix them first
            draw_bits(rng)
        cut = False
        started = time.monotonic()
        while state[3] < state[4]:
            leaf = self.bank.curve_of[int(state[0])].copy()
            s = new_slicing(self.n, tree, self.pool, leaf, self.base)
            cells = new_cells(self.n)
            held = cells._replace(cell=cells.cell.copy(), centre=cells.centre.copy())
            budget = int(min(CHECK_EVERY, state[4] - state[3]))
            anneal_kernel(s, cells, held, search, best, state, rng, budget)
            now = time.monotonic()
            if now - started > 0.5 * (deadline - started):
                able = state[3] * (deadline - started) / (now - started)
                cut |= able < state[4]
                state[4] = max(min(able, state[4]), state[3])
        return AnnealResult(
            best,
            int(state[2]),
            float(state[1]),
            int(state[5]),
            float(state[3]),
            time.monotonic() - started,
            cut,
        )
