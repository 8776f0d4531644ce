"""Levels and shape curves of a placement problem, and the area bound.

The curve of a block at level ``T`` gives its least width within each height, ``(S,)`` int16, with ``CAP``
where no shape fits. The transposed curve gives its least height within each width.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from wse_sim.compiler.placement.problem import Front, PlacementProblem, ShapeFamily
from wse_sim.errors import PlacementError

CAP = 16000  # twice the cap still fits int16, so adding two curves cannot wrap
LEVEL_STEP = 1e-7  # relative step to just below a level, far above rounding


def families(problem: PlacementProblem) -> tuple[list[ShapeFamily], np.ndarray]:
    """Return the distinct shape families, and the index (n,) int32 of each block's family."""
    index: dict[object, int] = {}
    kinds: list[ShapeFamily] = []
    of = np.zeros(len(problem.blocks), dtype=np.int32)
    for i, block in enumerate(problem.blocks):
        key = block.shapes.key()
        if key not in index:
            index[key] = len(kinds)
            kinds.append(block.shapes)
        of[i] = index[key]
    return kinds, of


def fitting(problem: PlacementProblem, front: Front) -> np.ndarray:
    """Return a mask (m,) of the shapes of `front` that fit on the fabric in an allowed orientation."""
    upright = (front.widths <= problem.width) & (front.heights <= problem.height)
    if not problem.rotate:
        return upright
    return upright | ((front.widths <= problem.height) & (front.heights <= problem.width))


def _least_areas(problem: PlacementProblem, kinds: list[ShapeFamily], level: float) -> np.ndarray:
    """Return the area (f,) of the smallest fitting shape of each family at `level`, infinite if none fits."""
    areas = np.full(len(kinds), np.inf)
    for f, shapes in enumerate(kinds):
        front = shapes.front(level)
        keep = fitting(problem, front)
        if keep.any():
            areas[f] = float((front.widths * front.heights)[keep].min())
    return areas


def free_area(problem: PlacementProblem) -> int:
    """Return the number of cores of the fabric that are not blocked."""
    return problem.width * problem.height - int(blocked_map(problem).sum())


def blocked_map(problem: PlacementProblem) -> np.ndarray:
    """Return a map (height, width) bool of the dead cores."""
    dead = np.zeros((problem.height, problem.width), dtype=bool)
    for x, y, w, h in problem.blocked:
        dead[y : y + h, x : x + w] = True
    return dead


BOUND_S = 20.0
"""Seconds that the computation of a result's lower bound may take."""


def check_time(problem: PlacementProblem, last: float) -> None:
    """Check that time `last` (of ``time.monotonic``) has not passed, as long as there is no placement.

    Raises
    ------
    PlacementError
        If it has passed.
    """
    if time.monotonic() > last:
        raise PlacementError(
            f"{len(problem.blocks):,} blocks on {problem.width} x {problem.height} cores are not placed within the time "
            "limit; give more by --time-limit"
        )


def area_bound(problem: PlacementProblem, last: float = math.inf) -> float:
    """Return the least T at which every block fits and the smallest areas sum to at most the free cores.

    Raises
    ------
    PlacementError
        If there is no such T, or it is not found by time `last` (of ``time.monotonic``).
    """
    kinds, of = families(problem)
    counts = np.bincount(of, minlength=len(kinds))
    room = free_area(problem)

    def fits(level: float) -> bool:
        total = 0.0
        for shapes, count in zip(kinds, counts.tolist(), strict=True):
            check_time(problem, last)
            total += count * float(_least_areas(problem, [shapes], level)[0])
            if total > room:
                return False
        return True

    def in_use(level: float) -> float:
        return max(_slowest(problem, shapes.front(level)) for shapes in kinds)

    high = 1.0
    while not fits(high):
        high *= 4.0
        if high > 1e30:
            areas = _least_areas(problem, kinds, high)
            if np.isfinite(areas).all():
                need = float(areas @ counts)
                raise PlacementError(
                    f"the kernels need at least {need:.0f} cores but the fabric has {room}; use fewer kernels"
                )
            lost = problem.blocks[int(np.flatnonzero(np.isinf(areas)[of])[0])].name
            raise PlacementError(
                f"kernel {lost!r} has no shape within the fabric {problem.width} x {problem.height} and its "
                "memory limit; use a larger fabric"
            )
    # every bound is a time that some block takes: `high` is lowered to the largest one in use; in a narrow
    # bracket, the level just below it decides
    low = 0.0
    high = min(high, in_use(high))
    while high * (1 - LEVEL_STEP) > low:
        narrow = high - low < 1e-4 * high
        level = high * (1 - LEVEL_STEP) if narrow else 0.5 * (low + high)
        if fits(level):
            high = min(level, in_use(level))
        elif narrow:
            break
        else:
            low = level
    return high


def last_level(problem: PlacementProblem) -> float:
    """Return the level above which no block becomes smaller, because memory or the smallest tiling sets its
    shapes.
    """
    kinds, _ = families(problem)
    return max(_slowest(problem, shapes.front(1e30)) for shapes in kinds)


def _slowest(problem: PlacementProblem, front: Front) -> float:
    """Return the longest time of the shapes of a front that fit on the fabric; 0 if none fits."""
    keep = fitting(problem, front)
    return float(front.times[keep].max()) if keep.any() else 0.0


def breakpoints(
    problem: PlacementProblem, shapes: ShapeFamily, low: float, high: float, most: int
) -> list[float]:
    """Return at most `most` times in [low, high] at which a family's front changes, in descending order.

    If `most` is small for the range, some are skipped, so that they cover all of it.
    """
    found: list[float] = []
    level = high
    least_gap = (high / low) ** (1.0 / most) if low > 0 else 1.0
    while level >= low and len(found) < most:
        time = _slowest(problem, shapes.front(level))
        if time < low:
            break
        found.append(time)
        level = min(time * (1 - LEVEL_STEP), time / least_gap if least_gap > 1.01 else time)
    return found


@dataclass(frozen=True)
class CurveBank:
    """The curves of all blocks at all levels.

    ``levels`` (L,) are ascending. ``curve_of`` (L, n) int32 are indices into ``curves`` (u, 2, S) int16,
    where ``[:, 0]`` is the least width within each height and ``[:, 1]`` the least height within each width.
    """

    levels: np.ndarray
    curve_of: np.ndarray
    curves: np.ndarray
    span: int


def curve_span(problem: PlacementProblem) -> int:
    """Return the entries per curve: the longer side plus at least a tenth, so that overflow can be
    measured.
    """
    return (int(max(problem.width, problem.height) * 1.1) // 64 + 1) * 64


def build_curves(problem: PlacementProblem, levels: np.ndarray) -> CurveBank:
    """Return the curves of all blocks at `levels` (L,), which are ascending; equal curves are stored once."""
    kinds, of = families(problem)
    span = curve_span(problem)
    index: dict[bytes, int] = {}
    table: list[np.ndarray] = []
    rows = np.zeros((len(levels), len(kinds)), dtype=np.int32)
    for f, shapes in enumerate(kinds):
        last: bytes | None = None
        for row, level in enumerate(levels):
            front = shapes.front(float(level))
            key = front.widths.tobytes() + b"|" + front.heights.tobytes()
            if key != last:
                pair = _curve_pair(problem, front, span)
                data = pair.tobytes()
                if data not in index:
                    index[data] = len(table)
                    table.append(pair)
                at = index[data]
                last = key
            rows[row, f] = at
    return CurveBank(
        np.asarray(levels, dtype=np.float64), np.ascontiguousarray(rows[:, of]), np.stack(table), span
    )


def _curve_pair(problem: PlacementProblem, front: Front, span: int) -> np.ndarray:
    """Return the least width within each height and the least height within each width, (2, span) int16."""
    widths, heights = front.widths, front.heights
    if problem.rotate:
        widths, heights = np.concatenate([widths, heights]), np.concatenate([heights, widths])
    keep = (widths < span) & (heights < span)
    widths, heights = widths[keep], heights[keep]
    pair = np.full((2, span), CAP, dtype=np.int64)
    np.minimum.at(pair[0], heights, widths)
    np.minimum.at(pair[1], widths, heights)
    return np.minimum.accumulate(pair, axis=1).astype(np.int16)


def level_grid(problem: PlacementProblem, low: float, high: float, most: int) -> np.ndarray:
    """Return about `most` levels in [low, high], ascending, at which some curve changes; `high` if there are
    none.
    """
    kinds, _ = families(problem)
    per_family = max(4, 4 * most // max(1, len(kinds))) if len(kinds) > 16 else most
    found: set[float] = set()
    for shapes in kinds:
        found.update(breakpoints(problem, shapes, low, high, max(per_family, 8)))
    levels = np.array(sorted(found))
    if levels.size == 0:
        return np.array([high])
    if levels.size > most:
        wanted = np.geomspace(levels[0], levels[-1], most)
        levels = np.unique(levels[np.searchsorted(levels, wanted * (1 - 1e-12)).clip(0, levels.size - 1)])
    return levels


def time_first(problem: PlacementProblem, fraction: float = 1e-3) -> PlacementProblem:
    """Return the problem with weights that make wire worth at most about `fraction` of the time at the area
    bound.

    The reference is the wire of a placement in which every edge crosses half the fabric, so the exchange rate
    does not depend on the number of edges.
    """
    total = sum(abs(weight) for _a, _b, weight in problem.edges)
    reach = max(total * (problem.width + problem.height) / 2.0, 1.0)
    return replace(problem, time_weight=1.0, wire_weight=fraction * area_bound(problem) / reach)
