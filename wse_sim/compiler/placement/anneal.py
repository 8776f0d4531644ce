"""Simulated annealing over slicing trees with shape curves and the level as a move.

    energy = time_weight * T + wire_weight * wire + lambda * overflow

``overflow`` is how far the tree is wider than the fabric.  The temperature falls geometrically with
the fraction of the work done; work is counted in deterministic units (curve additions, transpositions,
cells), not in seconds, so that a seed gives the same result on any machine.
"""

# mypy: disable-error-code="arg-type,return-value,assignment"
# numba types these, and NumPy's integer stubs are not int
from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from wse_sim.compiler.placement.curves import CurveBank
from wse_sim.compiler.placement.layouts import layout_kernel, turn_kernel
from wse_sim.compiler.placement.moves import draw_below, draw_bits, propose, put, undo
from wse_sim.compiler.placement.problem import PlacementProblem
from wse_sim.compiler.placement.slicing import (
    mark_changed,
    realise_changes,
    rebuild,
    root_width,
    update_node,
    wire_between,
    wire_of,
)
from wse_sim.jit import kernel

LEVEL_EVERY = 1000  # moves between two tries of another level
HEIGHT_EVERY = 150  # moves between two tries of another height of the whole tree
CHECK_EVERY = 500_000  # work units between two looks at the clock, about 0.04 s
HOPELESS = 0.75  # a single move does not cut the wire by more than a quarter: skip its geometry


@kernel
def anneal_kernel(
    n: int,
    fabric_w: int,
    fabric_h: int,
    tree: np.ndarray,
    best_tree: np.ndarray,
    state: np.ndarray,
    levels: np.ndarray,
    curve_of: np.ndarray,
    pool: np.ndarray,
    base: int,
    ea: np.ndarray,
    eb: np.ndarray,
    ew: np.ndarray,
    adj_ptr: np.ndarray,
    adj: np.ndarray,
    rng: np.ndarray,
    params: np.ndarray,
    budget: int,
) -> None:
    """Anneal until `budget` work units are used.

    `state` (6,) float64: level index, best cost, best level index, work done, work in total, and the
    moves made before.  `params` (6,): weights of time and wire, temperature at the
    start and at the end, lambda at the start and at the end.
    """
    big_n = 2 * n - 1
    cur = np.zeros(big_n, dtype=np.int64)
    turned = np.zeros(2 * big_n, dtype=np.int8)
    stamp = np.zeros(big_n, dtype=np.int64)
    touched = np.zeros(4 * big_n, dtype=np.int64)
    order = np.zeros(big_n + 2, dtype=np.int64)
    stack = np.zeros(big_n + 2, dtype=np.int64)
    cell = np.zeros((big_n, 5), dtype=np.int32)
    fresh = np.zeros((big_n, 5), dtype=np.int32)
    centre = np.zeros((n, 2), dtype=np.int32)
    held_cell, held_centre = cell.copy(), centre.copy()
    changed = np.zeros(big_n, dtype=np.int64)
    moved = np.zeros(big_n, dtype=np.int64)
    log = np.zeros((4096, 2), dtype=np.int64)
    work = np.zeros(4, dtype=np.int64)
    work[1] = 1
    level = int(state[0])
    leaf = curve_of[level].copy()
    rebuild(n, tree, pool, leaf, base, cur, turned, stamp, touched, order, stack, work)
    work[2] = 0
    width = root_width(n, tree, pool, leaf, base, cur, turned, work)
    wt, wl = params[0], params[1]
    wire = 1e30
    over = float(max(0, width - fabric_w))
    placed = False
    if width < pool.shape[1]:
        changed[:] = work[1]
        realise_changes(
            n, tree, pool, leaf, base, cur, turned, cell, fresh, centre, changed, work[1], moved, stack, work
        )
        held_cell[:] = cell
        held_centre[:] = centre
        placed = True
        wire = wire_between(centre, ea, eb, ew)
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
        first, second = np.int64(-1), np.int64(-1)
        everything = False
        if moves % LEVEL_EVERY == 0 and levels.shape[0] > 1:
            step = 1 + draw_below(rng, 3)
            new_level = level + (step if draw_below(rng, 2) else -step)
            if new_level < 0 or new_level >= levels.shape[0]:
                continue
            leaf[:] = curve_of[new_level]
            everything = True
        elif moves % HEIGHT_EVERY == 0 or n == 1:
            height = tree[4 * big_n + 1]
            reach = max(1, fabric_h >> (1 + draw_below(rng, 8)))
            height = height + draw_below(rng, 2 * reach + 1) - reach
            put(tree, 4 * big_n + 1, min(max(height, 1), fabric_h), log)
        else:
            first, second = propose(n, tree, adj_ptr, adj, rng, stack, log)
            if first == -2:
                continue
        if everything:
            rebuild(n, tree, pool, leaf, base, cur, turned, stamp, touched, order, stack, work)
        elif first >= 0 or second >= 0:
            mark = second if second >= 0 else first
            if second >= 0 and first >= 0:
                # nodes above `second` are marked negative so that the path of `first` stops there
                node = second
                while node >= 0:
                    stamp[node] = -work[1]
                    node = np.int64(tree[2 * big_n + node])
                node = first
                while node >= 0 and stamp[node] != -work[1]:
                    update_node(node, n, tree, pool, leaf, base, cur, turned, stamp, touched, work)
                    node = np.int64(tree[2 * big_n + node])
            node = mark
            while node >= 0:
                update_node(node, n, tree, pool, leaf, base, cur, turned, stamp, touched, work)
                node = np.int64(tree[2 * big_n + node])
        width = root_width(n, tree, pool, leaf, base, cur, turned, work)
        limit = wt * levels[level] + wl * wire + lam * over
        uniform = (draw_bits(rng) + 1) / 2147483649.0
        limit -= temperature * np.log(uniform)
        new_over = float(max(0, width - fabric_w))
        fixed = wt * levels[new_level] + lam * new_over
        accept = False
        new_wire = 0.0
        if width < pool.shape[1] and fixed + HOPELESS * wl * wire <= limit:
            if everything or not placed:
                changed[:] = work[1]
            else:
                mark_changed(tree, big_n, log, changed, work[1])
            count = realise_changes(
                n,
                tree,
                pool,
                leaf,
                base,
                cur,
                turned,
                cell,
                fresh,
                centre,
                changed,
                work[1],
                moved,
                stack,
                work,
            )
            new_wire = wire_between(centre, ea, eb, ew)
            work[0] += (2 * count + ea.shape[0]) // 8
            accept = fixed + wl * new_wire <= limit
            for i in range(count):
                node = moved[i]
                if accept:
                    held_cell[node] = cell[node]
                else:
                    cell[node] = held_cell[node]
                if node < n:
                    if accept:
                        held_centre[node] = centre[node]
                    else:
                        centre[node] = held_centre[node]
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
                cur[touched[i]] = 1 - cur[touched[i]]
            if everything:
                leaf[:] = curve_of[level]
    state[0] = level
    state[3] += work[0]
    state[5] = moves


def make_pool(bank: CurveBank, n: int) -> tuple[np.ndarray, int]:
    """Pool of rows for a tree of `n` leaves and the first row after the leaves' curves."""
    base = 2 * bank.curves.shape[0]
    pool = np.full((base + 8 * n, bank.span), 1 << 13, dtype=np.int16)
    pool[:base] = bank.curves.reshape(base, bank.span)
    return pool, base


def adjacency(n: int, ea: np.ndarray, eb: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours of every block in compressed rows: pointers (n + 1,), neighbours (2e,)."""
    source = np.concatenate([ea, eb])
    other = np.concatenate([eb, ea])
    order = np.argsort(source, kind="stable")
    pointer = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=n))))
    return pointer.astype(np.int64), other[order].astype(np.int64)


@dataclass
class AnnealResult:
    """Best tree found: its flat array, level index into the bank, cost; the moves, work units and seconds
    used.

    ``cut`` tells that the time limit shortened the schedule.
    """

    tree: np.ndarray
    level: int
    cost: float
    moves: int
    work: float
    seconds: float
    cut: bool


class Annealer:
    """Annealing of one problem on one bank of curves."""

    def __init__(self, problem: PlacementProblem, bank: CurveBank) -> None:
        self.problem = problem
        self.bank = bank
        self.n = len(problem.blocks)
        self.ea, self.eb, self.ew = problem.edge_arrays()
        self.adj_ptr, self.adj = adjacency(self.n, self.ea, self.eb)
        self.pool, self.base = make_pool(bank, self.n)

    def layout(self, tree: np.ndarray, level: int) -> tuple[np.ndarray, int]:
        """Rectangles (n, 4) and total width of a tree at level index `level`."""
        cell = np.zeros((2 * self.n - 1, 4), dtype=np.int32)
        width = layout_kernel(self.n, tree, self.bank.curve_of[level], self.pool, self.base, cell)
        return cell[: self.n].astype(np.int64), int(width)

    def cost(self, tree: np.ndarray, level: int) -> float:
        """Cost of a tree at a level, inf where it is wider than the fabric."""
        rects, width = self.layout(tree, level)
        if width > self.problem.width:
            return float("inf")
        wire = wire_of(rects.astype(np.int32), self.ea, self.eb, self.ew)
        return self.problem.time_weight * float(self.bank.levels[level]) + self.problem.wire_weight * wire

    def turn_groups(
        self, tree: np.ndarray, level: int, spine: np.ndarray, group: np.ndarray, kinds: np.ndarray
    ) -> float:
        """Rotate the groups of a peeled tree in place for the least wire; return the cost or inf."""
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
        """Anneal for `work` units from `tree`, or fewer where they would end after `deadline`.

        `deadline` is in seconds of ``time.monotonic()``.  In the second half of the time left the
        schedule is shortened to what can still be done, so that the cooling ends by then.
        """
        tree = tree.copy()
        best = tree.copy()
        state = np.array([level, self.cost(tree, level), level, 0.0, float(max(work, 1)), 0.0])
        rng = np.array([(seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % (1 << 64) | 1], dtype=np.uint64)
        params = np.array([self.problem.time_weight, self.problem.wire_weight, *temperatures, *lambdas])
        for _ in range(16):  # neighbouring seeds start from related states: mix them first
            draw_bits(rng)
        cut = False
        started = time.monotonic()
        while state[3] < state[4]:
            anneal_kernel(
                self.n,
                self.problem.width,
                self.problem.height,
                tree,
                best,
                state,
                self.bank.levels,
                self.bank.curve_of,
                self.pool,
                self.base,
                self.ea,
                self.eb,
                self.ew,
                self.adj_ptr,
                self.adj,
                rng,
                params,
                int(min(CHECK_EVERY, state[4] - state[3])),
            )
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
