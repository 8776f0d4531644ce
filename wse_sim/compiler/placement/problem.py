"""The placement problem and its result, common to all algorithms.

Symbols: ``n`` blocks; a fabric of ``W x H`` cores (width = columns, height = rows); x is a column and y a
row, counted from the north-west corner; the level ``T`` is the largest time that any block may take. For a
level ``T``, a block offers its Pareto set of (width, height); a larger ``T`` never makes a block larger.

    cost = time_weight * max_time + wire_weight * sum over edges of weight * (|dx| + |dy|)

where ``dx, dy`` are distances between the exact centres of the rectangles (half-integers occur).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from wse_sim.errors import ConfigError, PlacementError


@dataclass(frozen=True)
class Front:
    """Pareto set of shapes that are not rotated: ``widths`` and ``heights`` (m,) in cores, ``times`` (m,)."""

    widths: np.ndarray
    heights: np.ndarray
    times: np.ndarray


class ShapeFamily(Protocol):
    """The shapes of one block as a function of the level."""

    def front(self, level: float) -> Front:
        """Return the Pareto set of the shapes with time <= `level`; empty if there are none."""
        ...

    def key(self) -> Hashable:
        """Return a key; blocks with equal keys have equal shapes and share their curves."""
        ...


class ListedShapes:
    """Shapes given as a list of (rows, cols, time) alternatives.

    Raises
    ------
    ConfigError
        If there are no alternatives, or one has less than one row or column or an infinite time.
    """

    def __init__(self, alternatives: list[tuple[int, int, float]]) -> None:
        if not alternatives:
            raise ConfigError("a block has 0 shape alternatives; give at least one (rows, cols, time)")
        for rows, cols, time in alternatives:
            if rows < 1 or cols < 1 or not np.isfinite(time):
                raise ConfigError(
                    f"the alternative (rows {rows}, cols {cols}, time {time}) is not a shape; "
                    "give rows and cols >= 1 and a finite time"
                )
        self._key = tuple(sorted((int(r), int(c), float(t)) for r, c, t in alternatives))
        table = np.array(self._key, dtype=np.float64)
        self._heights = table[:, 0].astype(np.int64)
        self._widths = table[:, 1].astype(np.int64)
        self._times = table[:, 2]

    def key(self) -> Hashable:
        """Return the sorted alternatives."""
        return self._key

    def front(self, level: float) -> Front:
        """Return the Pareto set of the alternatives with time <= `level`."""
        keep = self._times <= level
        heights, widths, times = self._heights[keep], self._widths[keep], self._times[keep]
        order = np.lexsort((times, widths, heights))
        heights, widths, times = heights[order], widths[order], times[order]
        if heights.size:
            before = np.concatenate(([np.iinfo(np.int64).max], np.minimum.accumulate(widths)[:-1]))
            best = widths < before
            heights, widths, times = heights[best], widths[best], times[best]
        return Front(widths, heights, times)


@dataclass(frozen=True)
class Block:
    """One rectangle to place: its name and its shapes."""

    name: str
    shapes: ShapeFamily


@dataclass(frozen=True)
class PlacementProblem:
    """A placement problem: rectangles, the fabric, the edges between rectangles and the weights of the cost.

    ``edges`` are (source, destination, weight) by block index. ``blocked`` are dead rectangles (x, y, width,
    height) that no block may touch. With ``rotate``, blocks may be rotated by 90 degrees.

    Raises
    ------
    ConfigError
        If a side of the fabric is not in 1..8000, there are no blocks, an edge names an unknown block, a
        blocked rectangle exceeds the fabric, or a weight is negative.
    """

    width: int
    height: int
    blocks: tuple[Block, ...]
    edges: tuple[tuple[int, int, float], ...] = ()
    time_weight: float = 1.0
    wire_weight: float = 1.0
    rotate: bool = True
    blocked: tuple[tuple[int, int, int, int], ...] = ()

    def __post_init__(self) -> None:
        """Check the sizes, edges, blocked rectangles and weights."""
        if not 1 <= self.width <= 8000 or not 1 <= self.height <= 8000:
            raise ConfigError(
                f"the fabric is {self.width} x {self.height} cores; placers take 1 to 8000 on each side"
            )
        if not self.blocks:
            raise ConfigError("the placement problem has 0 blocks; give at least one")
        n = len(self.blocks)
        for a, b, _weight in self.edges:
            if not (0 <= a < n and 0 <= b < n):
                raise ConfigError(f"the edge ({a}, {b}) names a block outside 0..{n - 1}; correct its ends")
        for x, y, w, h in self.blocked:
            if w < 1 or h < 1 or x < 0 or y < 0 or x + w > self.width or y + h > self.height:
                raise ConfigError(
                    f"the blocked rectangle ({x}, {y}, {w}, {h}) is not inside the fabric "
                    f"{self.width} x {self.height}; clip it to the fabric"
                )
        if min(self.time_weight, self.wire_weight) < 0:
            raise ConfigError(
                f"the weights (time {self.time_weight}, wire {self.wire_weight}) must be >= 0; "
                "give weights of at least 0"
            )

    def edge_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the edges as sources (e,) and destinations (e,) int32 and weights (e,) float64, without self
        edges.
        """
        kept = [(a, b, w) for a, b, w in self.edges if a != b]
        return (
            np.array([e[0] for e in kept], dtype=np.int32),
            np.array([e[1] for e in kept], dtype=np.int32),
            np.array([e[2] for e in kept], dtype=np.float64),
        )


@dataclass(frozen=True)
class Placement:
    """Rectangles on the fabric: arrays (n,) int64 in cores, north-west corner and size.

    ``rotated`` states which rectangles have a shape rotated by 90 degrees. ``level`` is the chosen T,
    ``max_time`` the time of the slowest block.
    """

    x: np.ndarray
    y: np.ndarray
    width: np.ndarray
    height: np.ndarray
    rotated: np.ndarray
    level: float
    max_time: float
    wire_l1: float
    cost: float
    notes: tuple[str, ...] = field(default=())

    @property
    def area_cores(self) -> int:
        """Number of cores inside the rectangles."""
        return int(np.sum(self.width * self.height))


Progress = Callable[[str, float], None]


def wire_length(
    problem: PlacementProblem, x: np.ndarray, y: np.ndarray, w: np.ndarray, h: np.ndarray
) -> float:
    """Return the weighted L1 distance between centres, for corners `x`, `y` and sizes `w`, `h`, each (n,)."""
    a, b, weight = problem.edge_arrays()
    if a.size == 0:
        return 0.0
    cx, cy = 2 * x + w, 2 * y + h
    return float(np.sum(weight * (np.abs(cx[a] - cx[b]) + np.abs(cy[a] - cy[b]))) / 2.0)


def first_illegality(
    width: int,
    height: int,
    names: list[str],
    rects: np.ndarray,
    blocked: tuple[tuple[int, int, int, int], ...] = (),
) -> str | None:
    """Return a sentence on the first illegal rectangle, or None if all are legal.

    `rects` (n, 4) are x, y, w, h. A rectangle is illegal if it exceeds the fabric, covers a dead core or
    overlaps another one.
    """
    for name, (x, y, w, h) in zip(names, rects.tolist(), strict=True):
        if x < 0 or y < 0 or x + w > width or y + h > height:
            return (
                f"kernel {name!r} covers x {x}..{x + w}, y {y}..{y + h} but the fabric is "
                f"{width} x {height}; move it inside"
            )
        for bx, by, bw, bh in blocked:
            if x < bx + bw and bx < x + w and y < by + bh and by < y + h:
                return f"kernel {name!r} covers the dead cores x {bx}..{bx + bw}, y {by}..{by + bh}; move it off them"
    x0, y0 = rects[:, 0], rects[:, 1]
    x1, y1 = x0 + rects[:, 2], y0 + rects[:, 3]
    for i in range(len(names) - 1):
        rest = slice(i + 1, None)
        hit = (x0[i] < x1[rest]) & (x0[rest] < x1[i]) & (y0[i] < y1[rest]) & (y0[rest] < y1[i])
        if hit.any():
            j = i + 1 + int(np.argmax(hit))
            return f"kernels {names[i]!r} and {names[j]!r} overlap; move one of them"
    return None


def finish(
    problem: PlacementProblem, rects: np.ndarray, level: float, notes: tuple[str, ...] = ()
) -> Placement:
    """Return the placement of `rects` (n, 4) of x, y, w, h whose shapes obey `level`.

    The time of a block is that of the fastest shape that fits in its rectangle, so the reported time may be
    below the level.

    Raises
    ------
    PlacementError
        If a rectangle is illegal or too small for every shape of its block.
    """
    rects = np.asarray(rects, dtype=np.int64)
    wrong = first_illegality(
        problem.width, problem.height, [b.name for b in problem.blocks], rects, problem.blocked
    )
    if wrong is not None:
        raise PlacementError(wrong)
    rotated = np.zeros(len(rects), dtype=bool)
    worst = -np.inf
    for i, block in enumerate(problem.blocks):
        w, h = int(rects[i, 2]), int(rects[i, 3])
        front = block.shapes.front(level)
        upright = front.times[(front.widths <= w) & (front.heights <= h)]
        turned = front.times[(front.widths <= h) & (front.heights <= w)] if problem.rotate else upright[:0]
        t_up = float(upright.min()) if upright.size else np.inf
        t_turned = float(turned.min()) if turned.size else np.inf
        if not np.isfinite(min(t_up, t_turned)):
            raise PlacementError(
                f"block {block.name!r} has no shape within {w} x {h} at time {level:g}; give it more cores"
            )
        rotated[i] = t_turned < t_up
        worst = max(worst, min(t_up, t_turned))
    x, y, w_all, h_all = rects.T.copy()
    wire = wire_length(problem, x, y, w_all, h_all)
    cost = problem.time_weight * worst + problem.wire_weight * wire
    return Placement(x, y, w_all, h_all, rotated, level, worst, wire, cost, notes)
