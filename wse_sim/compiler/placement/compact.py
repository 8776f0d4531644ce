"""Compaction by linear programs that keep the relative order of rectangles (HiGHS in SciPy).

Along one axis, rectangles with positions ``p_i`` and sizes ``s_i`` that overlap across the axis keep their
order, ``p_j >= p_i + s_i``. The program minimizes ``sum w_e d_e`` with ``d_e >= |c_a - c_b|`` between
centres. Its constraint matrix is that of differences, so with integer breakpoints the vertices are integer:
where the centres of an edge can differ only by half-integers, ``d_e >= 1/2`` is added, which is the integer
hull of the absolute value.
"""

from __future__ import annotations

import time

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from wse_sim.compiler.placement.problem import PlacementProblem, first_illegality, wire_length

DENSE_LIMIT = 250  # most blocks for which every ordered pair is a constraint
NEAREST = 12  # with more blocks, hidden followers are dropped if a block has more followers than this


def _ordered_pairs(
    low: np.ndarray, high: np.ndarray, across_low: np.ndarray, across_high: np.ndarray
) -> np.ndarray:
    """Return the pairs (p, 2) of rectangles that overlap across the axis, the first ending before the second
    starts.
    """
    n = low.size
    pairs: list[np.ndarray] = []
    for i in range(n):
        after = (low >= high[i]) & (across_low < across_high[i]) & (across_high > across_low[i])
        after[i] = False
        found = np.flatnonzero(after)
        if n > DENSE_LIMIT and found.size > NEAREST:
            found = _visible(i, found, low, high, across_low, across_high)
        pairs.append(np.stack([np.full(found.size, i), found], axis=1))
    return np.concatenate(pairs) if pairs else np.zeros((0, 2), dtype=np.int64)


def _visible(
    i: int,
    found: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    across_low: np.ndarray,
    across_high: np.ndarray,
) -> np.ndarray:
    """Return those followers of `i` that are not hidden behind another one; chains of constraints imply the
    others.
    """
    order = found[np.argsort(low[found], kind="stable")]
    kept: list[int] = []
    for j in order.tolist():
        shared_low, shared_high = max(across_low[i], across_low[j]), min(across_high[i], across_high[j])
        hidden = any(
            high[k] <= low[j] and across_low[k] <= shared_low and across_high[k] >= shared_high for k in kept
        )
        if not hidden:
            kept.append(j)
    return np.array(kept, dtype=np.int64)


def _compact_axis(
    position: np.ndarray,
    size: np.ndarray,
    across: np.ndarray,
    across_size: np.ndarray,
    extent: int,
    edges: tuple[np.ndarray, np.ndarray, np.ndarray],
    limit_s: float,
) -> np.ndarray:
    """Return new integer positions (n,) along one axis, or the old ones if the program is not solved."""
    n = position.size
    a, b, weight = edges
    m = a.size
    pairs = _ordered_pairs(position, position + size, across, across + across_size)
    p = len(pairs)
    rows = np.arange(p)
    e = np.arange(m)
    ones_p, ones_m = np.ones(p), np.ones(m)
    half = (size[a] - size[b]) / 2.0
    # p_i - p_j <= -s_i ; +-(p_a - p_b) - d <= -+ half
    matrix = coo_matrix(
        (
            np.concatenate([ones_p, -ones_p, ones_m, -ones_m, -ones_m, -ones_m, ones_m, -ones_m]),
            (
                np.concatenate([rows, rows, p + e, p + e, p + e, p + m + e, p + m + e, p + m + e]),
                np.concatenate([pairs[:, 0], pairs[:, 1], a, b, n + e, a, b, n + e]),
            ),
        ),
        shape=(p + 2 * m, n + m),
    ).tocsr()
    limit = np.concatenate([-size[pairs[:, 0]].astype(float), -half, half])
    least = np.where((size[a] + size[b]) % 2 == 1, 0.5, 0.0)
    lower = np.concatenate([np.zeros(n), least])
    upper = np.concatenate([(extent - size).astype(float), np.full(m, np.inf)])
    cost = np.concatenate([np.zeros(n), weight])
    solved = linprog(  # type: ignore[call-overload]
        cost,
        A_ub=matrix,
        b_ub=limit,
        bounds=np.stack([lower, upper], axis=1),
        method="highs-ds",
        options={"time_limit": limit_s} if np.isfinite(limit_s) else {},
    )
    if solved.x is None or not solved.success:
        return position
    return np.rint(solved.x[:n]).astype(np.int64)


def compact(
    problem: PlacementProblem, rects: np.ndarray, rounds: int = 6, deadline: float = float("inf")
) -> np.ndarray:
    """Move rectangles (n, 4) of x, y, w, h to shorten the wire; sizes and relative order are kept.

    Returns legal rectangles with at most the wire of those given, and the given ones if cores are blocked or
    the problem has no edges. No program starts after `deadline`, in seconds of ``time.monotonic()``.
    """
    edges = problem.edge_arrays()
    rects = np.array(rects, dtype=np.int64)
    if problem.blocked or edges[0].size == 0:
        return rects  # dead cores are not in the linear program
    names = [block.name for block in problem.blocks]
    best = wire_length(problem, *rects.T)
    stuck = 0
    for turn in range(2 * rounds):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        axis = turn % 2
        trial = rects.copy()
        trial[:, axis] = _compact_axis(
            rects[:, axis],
            rects[:, 2 + axis],
            rects[:, 1 - axis],
            rects[:, 3 - axis],
            (problem.width, problem.height)[axis],
            edges,
            left_s,
        )
        wire = wire_length(problem, *trial.T)
        legal = first_illegality(problem.width, problem.height, names, trial) is None
        if legal and wire <= best:
            stuck = 0 if wire < best - 1e-9 else stuck + 1
            best, rects = wire, trial
        else:
            stuck += 1
        if stuck >= 2:
            break
    return rects
