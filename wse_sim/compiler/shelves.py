"""The quick placer: shelves across the wafer, filled in dataflow order like a snake.

Symbols: T pace (cycles per sample of the slowest stage), H height of a shelf, F(i) least rows that hold
the stages from i on.

A stage spans the height of its shelf and takes the least columns w(H, T) that keep the pace; small
stages are stacked in shared narrow columns of their shelf.  The heights are chosen by dynamic
programming, ``F(i) = min over H of H + F(next(i, H))`` with next(i, H) the first stage that no longer
fits into a shelf of height H that starts with i; the pace is the least T with ``F(0) <= rows``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from wse_sim.compiler.pricing import geometric
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.hardware import Wafer
from wse_sim.jit import kernel

SMALL_COLS = 6  # stages narrower than this in a full shelf are stacked in columns of this width
LOWEST_SHELF = 12
NEVER = 1 << 40  # wider and higher than any fabric
PACE_STEP = 1.004  # the bisection over the pace stops within 0.4 %


@dataclass(frozen=True)
class Box:
    """A placed stage: its rectangle, and how many of its columns compute."""

    row: int
    col: int
    rows: int
    cols: int
    compute_rows: int
    compute_cols: int


def compute_cols(cols: np.ndarray | int, share: float) -> np.ndarray:
    """Columns of a region that compute if a `share` of its cores does not; at least one."""
    return np.maximum(1, np.floor(np.asarray(cols) * (1 - share) + 1e-9)).astype(np.int64)


@dataclass
class _Column:
    """A narrow column of a shelf in which small stages are stacked."""

    col: int
    used: int = 0


@dataclass
class _Shelf:
    """A filled shelf: boxes as (stage, row offset, col, rows, cols)."""

    height: int
    items: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    end: int = 0  # first stage that is not in it


class ShelfPlacer:
    """Places the stages of a sizer at a given pace, or says that they do not fit."""

    def __init__(self, sizer: Sizer) -> None:
        self.sizer = sizer
        self.wafer = sizer.wafer
        self.share = sizer.wafer.transmission_core_share
        self.widths = geometric(self.wafer.program_cols, 1.01)
        self.small_rows = geometric(self.wafer.program_rows, 1.02)
        self._priced: dict[object, tuple[np.ndarray, np.ndarray]] = {}
        kinds: dict[object, int] = {}
        self.kind_of = [kinds.setdefault(self._kind(group), len(kinds)) for group in sizer.groups]
        self.kinds = [sizer.groups[self.kind_of.index(kind)] for kind in range(len(kinds))]
        self._wide: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._narrow = [
            self._needs(g, self.small_rows, np.full(self.small_rows.shape, SMALL_COLS)) for g in self.kinds
        ]
        self.bands = _bands(self.wafer.program_rows, _avoid_rows(self.wafer))

    def _kind(self, group: Group) -> object:
        return (tuple(k.signature for k in group.kernels), self.sizer.activation_bytes(group))

    def _needs(self, group: Group, rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(time, memory per core) of regions rows x cols."""
        key = (
            tuple(k.signature for k in group.kernels),
            int(rows[0]),
            int(rows[-1]),
            int(cols[0]),
            int(cols[-1]),
        )
        priced = self._priced.get(key)
        if priced is None:
            inner = compute_cols(cols, self.share)
            forward, backward = self.sizer.stage_cost(group, rows, inner)
            print_ = self.sizer.prices.footprint(group.forward, rows, inner, "stationary")
            memory = np.broadcast_to(np.asarray(print_.total_bytes, float), rows.shape)
            time = np.broadcast_to(np.asarray(forward.total + backward.total, float), rows.shape)
            priced = self._priced[key] = (time, memory)
        return priced[0], priced[1] + self.sizer.activation_bytes(group) / (rows * cols)

    def _least(self, sizes: np.ndarray, needs: tuple[np.ndarray, np.ndarray], pace: float) -> int | None:
        good = np.flatnonzero((needs[0] <= pace) & (needs[1] <= self.wafer.sram_usable_bytes))
        return int(sizes[good[0]]) if good.size else None

    def _width(self, kind: int, height: int, pace: float) -> int | None:
        """Least columns of a region of `height` rows that keeps the pace within SRAM."""
        needs = self._wide.get((kind, height))
        if needs is None:
            needs = self._needs(self.kinds[kind], np.full(self.widths.shape, height), self.widths)
            self._wide[kind, height] = needs
        return self._least(self.widths, needs, pace)

    def place(self, pace: float) -> list[Box] | None:
        """Boxes of all stages at the pace, or None."""
        kinds = np.array(self.kind_of, np.int64)
        narrow = np.array([self._least(self.small_rows, n, pace) or NEVER for n in self._narrow], np.int64)
        cols = self.wafer.program_cols
        start = 0
        shelves: list[tuple[int, _Shelf]] = []
        for top, rows in self.bands:
            heights = np.array([h for h in geometric(rows, 1.04) if h >= min(LOWEST_SHELF, rows)], np.int64)
            widths = np.array(
                [[self._width(k, int(h), pace) or NEVER for h in heights] for k in range(len(self.kinds))],
                np.int64,
            )
            least, height_of, before = best_shelves(kinds, widths, narrow, heights, start, rows, cols)
            end, chain = int(np.flatnonzero(least <= rows)[-1]), []
            while end != start:
                chain.append((int(before[end]), int(height_of[end])))
                end = int(before[end])
            for first, index in reversed(chain):
                filled = self._fill(first, int(heights[index]), widths[:, index], narrow)
                shelves.append((top, filled))
                top += filled.height
                start = filled.end
        return self._boxes(shelves) if start == len(kinds) else None

    def _fill(self, start: int, height: int, widths: np.ndarray, narrow: np.ndarray) -> _Shelf:
        """The shelf that :func:`shelf_end` counts, with its boxes."""
        shelf = _Shelf(height, end=start)
        columns: list[_Column] = []
        col = 0
        for index in range(start, len(self.kind_of)):
            kind = self.kind_of[index]
            small, wide = int(narrow[kind]), int(widths[kind])
            if small <= height // 2:
                column = columns[-1] if columns and columns[-1].used + small <= height else None
                if column is None:
                    if col + SMALL_COLS > self.wafer.program_cols:
                        break
                    column = _Column(col)
                    columns.append(column)
                    col += SMALL_COLS
                shelf.items.append((index, column.used, column.col, small, SMALL_COLS))
                column.used += small
            else:
                if col + wide > self.wafer.program_cols:
                    break
                shelf.items.append((index, 0, col, height, wide))
                col += wide
            shelf.end = index + 1
        return shelf

    def _boxes(self, shelves: list[tuple[int, _Shelf]]) -> list[Box]:
        """Boxes by stage; every second shelf runs from east to west."""
        boxes: dict[int, Box] = {}
        for number, (top, filled) in enumerate(shelves):
            for index, down, col, rows, cols in filled.items:
                west = self.wafer.program_cols - col - cols if number % 2 else col
                boxes[index] = Box(top + down, west, rows, cols, rows, int(compute_cols(cols, self.share)))
        return [boxes[index] for index in range(len(self.kind_of))]


@kernel
def shelf_end(
    kinds: np.ndarray, widths: np.ndarray, narrow: np.ndarray, height: int, column: int, start: int, cols: int
) -> int:
    """First stage that does not fit into a shelf of `height` that starts with `start`.

    `widths` (kinds, heights) int64 least columns, `column` the index of `height`; `narrow` (kinds,) int64
    least rows in a narrow column.
    """
    col, used = 0, height + 1
    for index in range(start, kinds.shape[0]):
        small = narrow[kinds[index]]
        if small <= height // 2:
            if used + small > height:
                if col + SMALL_COLS > cols:
                    return index
                col += SMALL_COLS
                used = 0
            used += small
        else:
            wide = widths[kinds[index], column]
            if col + wide > cols:
                return index
            col += wide
    return int(kinds.shape[0])


@kernel
def best_shelves(
    kinds: np.ndarray,
    widths: np.ndarray,
    narrow: np.ndarray,
    heights: np.ndarray,
    start: int,
    rows: int,
    cols: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least rows (n + 1,) that hold the stages start..i-1, with the last shelf's height index and first stage."""
    count = kinds.shape[0]
    least = np.full(count + 1, NEVER, np.int64)
    height_of = np.zeros(count + 1, np.int64)
    before = np.zeros(count + 1, np.int64)
    least[start] = 0
    for i in range(start, count):
        if least[i] > rows:
            continue
        for j in range(heights.shape[0]):
            total = least[i] + heights[j]
            if total > rows:
                break
            end = shelf_end(kinds, widths, narrow, heights[j], j, i, cols)
            if end > i and total < least[end]:
                least[end] = total
                height_of[end] = j
                before[end] = i
    return least, height_of, before


def _bands(rows: int, avoid: tuple[int, ...]) -> list[tuple[int, int]]:
    """Runs of usable rows: (first row, rows)."""
    edges = [-1, *sorted(r for r in set(avoid) if 0 <= r < rows), rows]
    return [(a + 1, b - a - 1) for a, b in pairwise(edges) if b - a > 1]


def _avoid_rows(wafer: Wafer) -> tuple[int, ...]:
    """Rows that regions leave out: dead rows, and rows of dead cores."""
    return tuple(sorted({*wafer.dead_rows, *(row for row, _ in wafer.dead_cores)}))


def place_shelves(sizer: Sizer) -> tuple[float, list[Box]] | None:
    """Least pace at which the shelves hold all stages, with the boxes; None if nothing fits at any pace."""
    wafer = sizer.wafer
    ideal = sizer.pace_for(wafer.program_cores * (1 - wafer.transmission_core_share))
    if ideal is None:
        return None
    placer = ShelfPlacer(sizer)
    high, boxes = ideal, placer.place(ideal)
    while boxes is None and high < ideal * 1e4:
        high *= 1.15
        boxes = placer.place(high)
    if boxes is None:
        return None
    low, best = max(ideal, high / 1.15), (high, boxes)
    while high / low > PACE_STEP:
        middle = (low * high) ** 0.5
        boxes = placer.place(middle)
        if boxes is None:
            low = middle
        else:
            high, best = middle, (middle, boxes)
    return best
