"""Shelf dynamic program in dataflow order that avoids dead cores: always legal, and fast.

``best[i, d]`` is the least height that the first ``i`` blocks use if the next shelf runs in direction ``d``
(shelves alternate, like a snake). A transition opens a shelf of height ``s`` at that height, or at one of the
next rows where dead cores begin or end. It fills the shelf with the blocks ``i..j-1``. Each one is as narrow
as ``s`` allows and moves past columns that contain a dead core inside the shelf. The level is bisected; then
some higher levels are tried for less wire. The same is done for the transposed fabric and for the reversed
order.
"""

# mypy: disable-error-code="arg-type,return-value,assignment"
# numba infers these types; in the stubs of NumPy its integers are not int
from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from wse_sim.compiler.placement.compact import compact
from wse_sim.compiler.placement.curves import area_bound, blocked_map, build_curves, check_time
from wse_sim.compiler.placement.peel import dataflow_orders
from wse_sim.compiler.placement.problem import Placement, PlacementProblem, Progress, finish, wire_length
from wse_sim.errors import PlacementError
from wse_sim.jit import kernel

MOST_STARTS = 3
FIRST_S = 20.0
"""Seconds beyond the limit in which a first placement must be found.

With fewer, small problems would be refused on busy machines.
"""


@kernel
def shelf_kernel(
    width: int,
    height: int,
    curves: np.ndarray,
    dead: np.ndarray,
    events: np.ndarray,
    heights: np.ndarray,
    best: np.ndarray,
    trace: np.ndarray,
) -> None:
    """Fill ``best`` (n + 1, 2), and ``trace`` (n + 1, 2, 3) with the blocks before the last shelf, its start
    and height.

    `curves` (n, S) are least widths within each height, `dead` (height + 1, width) the number of dead cores
    before each row, `events` the rows at which dead cores begin or end, `heights` the shelf heights to try.
    """
    n = curves.shape[0]
    best[:] = height + 1
    best[0, 0] = 0
    has_dead = dead[height].max() > 0
    free = np.arange(width, -1, -1)  # for shelves without dead cores; otherwise it is computed per shelf
    for i in range(n):
        for d in range(2):
            floor = best[i, d]
            if floor >= height:
                continue
            tries = 0
            for v in range(-1, events.shape[0]):
                start = floor if v < 0 else events[v]
                if v >= 0 and start <= floor:
                    continue
                tries += 1
                if tries > MOST_STARTS + 1:
                    break
                for q in range(heights.shape[0]):
                    s = heights[q]
                    if start + s > height:
                        break
                    # free[x] = columns from x on, in running direction, without a dead core
                    if has_dead:
                        for at in range(width - 1, -1, -1):
                            x = at if d == 0 else width - 1 - at
                            blocked = dead[start + s, x] > dead[start, x]
                            free[at] = 0 if blocked else free[at + 1] + 1
                    at = 0
                    for k in range(i, n):
                        need = curves[k, s]
                        while at < width and free[at] < need:
                            at += free[at] if free[at] > 0 else 1
                        if at + need > width:
                            break
                        at += need
                        if start + s < best[k + 1, 1 - d]:
                            best[k + 1, 1 - d] = start + s
                            trace[k + 1, 1 - d, 0] = i
                            trace[k + 1, 1 - d, 1] = start
                            trace[k + 1, 1 - d, 2] = s


@dataclass(frozen=True)
class _View:
    """The fabric, as it is or transposed, with one order of the blocks."""

    width: int
    height: int
    dead: np.ndarray
    order: np.ndarray
    transposed: bool


class SnakePlacer:
    """Placer on shelves in snake order that avoids dead cores."""

    def place(
        self,
        problem: PlacementProblem,
        *,
        seed: int = 0,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> Placement:
        """Return the best shelf placement; `seed` is unused, because the search is deterministic.

        Raises
        ------
        PlacementError
            If the blocks do not fit, or no placement is found within `FIRST_S` seconds after the time limit.
        """
        started = time.monotonic()
        end = started + time_limit_s
        last = end + FIRST_S
        bound = area_bound(problem, last)
        views = _views(problem)
        low, high = bound, bound
        found = _best_at(problem, views, high, last)
        while found is None:
            low, high = high, high * 1.25
            if high > 1e6 * bound:
                raise PlacementError(
                    f"{len(problem.blocks)} blocks do not fit between the dead cores of the fabric "
                    f"{problem.width} x {problem.height}; use fewer or smaller blocks"
                )
            found = _best_at(problem, views, high, last)
        while high - low > 2e-3 * high and time.monotonic() < last:
            middle = 0.5 * (low + high)
            trial = _best_at(problem, views, middle)
            if trial is None:
                low = middle
            else:
                high, found = middle, trial
        best_level, (best_cost, best_rects) = high, found
        level = high
        while problem.time_weight * level <= best_cost and level < 64 * high and problem.wire_weight > 0:
            level *= 1.02 if level < 1.3 * high else 1.15
            if time.monotonic() > end:
                break
            trial = _best_at(problem, views, level)
            if trial is not None and trial[0] < best_cost:
                best_level, (best_cost, best_rects) = level, trial
                if progress is not None:
                    progress("snake", best_cost)
        if len(best_rects) <= 400:
            best_rects = compact(problem, best_rects)
        return finish(problem, best_rects, best_level)


def _views(problem: PlacementProblem) -> list[_View]:
    """Return the fabric and its transpose with each dataflow order and its reverse."""
    ea, eb, _ = problem.edge_arrays()
    dead = blocked_map(problem)
    views = []
    for order in dataflow_orders(len(problem.blocks), ea, eb):
        for way in (order, order[::-1].copy()):
            views.append(_View(problem.width, problem.height, dead, way, False))
            views.append(_View(problem.height, problem.width, np.ascontiguousarray(dead.T), way, True))
    return views


def _shelf_heights(height: int) -> np.ndarray:
    """Return every height up to 160, then heights in steps of 1/80: enough to fill the fabric to about a
    percent.
    """
    heights = [1]
    while heights[-1] < height:
        heights.append(min(height, heights[-1] + max(1, heights[-1] // 80)))
    return np.array(heights, dtype=np.int64)


def _best_at(
    problem: PlacementProblem, views: list[_View], level: float, last: float = math.inf
) -> tuple[float, np.ndarray] | None:
    """Return the cost and the rectangles of the best view at `level`, or None if no view fits.

    `last` is that of :func:`area_bound`.
    """
    check_time(problem, last)
    bank = build_curves(problem, np.array([level]))
    pairs = bank.curves[bank.curve_of[0]]
    best: tuple[float, np.ndarray] | None = None
    for view in views:
        if best is None:
            check_time(problem, last)
        elif time.monotonic() > last:
            break
        rects = _place_view(view, pairs)
        if rects is None:
            continue
        cost = problem.time_weight * level + problem.wire_weight * wire_length(problem, *rects.T)
        if best is None or cost < best[0]:
            best = cost, rects
    return best


def _place_view(view: _View, pairs: np.ndarray) -> np.ndarray | None:
    """Return the rectangles (n, 4) of one view in the problem's axes, or None if the blocks do not fit."""
    n = len(view.order)
    own = 1 if view.transposed else 0
    curves = pairs[view.order, own].astype(np.int64)
    other = pairs[view.order, 1 - own].astype(np.int64)
    dead = np.zeros((view.height + 1, view.width), dtype=np.int32)
    np.cumsum(view.dead, axis=0, out=dead[1:])
    rows = view.dead.astype(np.int8)
    events = np.flatnonzero((np.diff(rows, axis=0) != 0).any(axis=1)) + 1
    heights = _shelf_heights(view.height)
    if events.size:  # with dead cores every shelf needs a pass over the columns: try fewer heights
        heights = heights[:: max(1, len(heights) // 120)]
    best = np.zeros((n + 1, 2), dtype=np.int64)
    trace = np.zeros((n + 1, 2, 3), dtype=np.int64)
    shelf_kernel(view.width, view.height, curves, dead, events.astype(np.int64), heights, best, trace)
    d = int(np.argmin(best[n]))
    if best[n, d] > view.height:
        return None
    rects = np.zeros((n, 4), dtype=np.int64)
    j = n
    while j > 0:
        i, start, s = trace[j, d].tolist()
        d = 1 - d
        _fill_shelf(view, rects, i, j, start, s, d, curves, other, dead)
        j = i
    out = np.zeros_like(rects)
    out[view.order] = rects[:, [1, 0, 3, 2]] if view.transposed else rects
    return out


def _fill_shelf(
    view: _View,
    rects: np.ndarray,
    i: int,
    j: int,
    start: int,
    s: int,
    d: int,
    curves: np.ndarray,
    other: np.ndarray,
    dead: np.ndarray,
) -> None:
    """Write the rectangles of blocks i..j-1 in a shelf to `rects`, as the dynamic program placed them."""
    blocked = dead[start + s] > dead[start]
    if d == 1:
        blocked = blocked[::-1]
    at = 0
    for k in range(i, j):
        need = int(curves[k, s])
        while blocked[at : at + need].any():
            at += int(np.flatnonzero(blocked[at : at + need])[-1]) + 1
        x = at if d == 0 else view.width - at - need
        real = int(other[k, need])
        slack = 0 if blocked.any() else (s - real) // 2
        rects[k] = (x, start + slack, need, real)
        at += need
