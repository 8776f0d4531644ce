"""The quick placer: shelves of equal height across the wafer, filled in dataflow order like a snake.

A stage spans the height of its shelf and takes the least width that keeps the pace; stages that need
less than one column of the shelf are stacked on each other in shared columns.  The pace is raised until
everything fits; the number of shelves is chosen by the pace reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from wse_sim.compiler.pricing import geometric
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.hardware import Wafer

SMALL_COLS = 6  # stages narrower than this in a full shelf are stacked in shared columns


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
    """Columns of a region that compute, at least one."""
    return np.maximum(1, np.floor(np.asarray(cols) * (1 - share) + 1e-9)).astype(np.int64)


class ShelfPlacer:
    """Places the stages of a sizer at a given pace, or says that they do not fit."""

    def __init__(self, sizer: Sizer, avoid_rows: tuple[int, ...] = ()) -> None:
        self.sizer = sizer
        self.wafer = sizer.wafer
        self.share = sizer.wafer.transmission_core_share
        self.widths = geometric(self.wafer.program_cols, 1.01)
        self._time: dict[object, np.ndarray] = {}
        self.bands = _bands(self.wafer.program_rows, avoid_rows)

    def _key(self, group: Group) -> object:
        return (tuple(k.signature for k in group.kernels), self.sizer.activation_bytes(group))

    def _needs(self, group: Group, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """(time, memory per core) over all widths for a region of `rows` rows."""
        key = (self._key(group), rows)
        found = self._time.get(key)
        if found is None:
            cols = compute_cols(self.widths, self.share)
            height = np.full(cols.shape, rows)
            forward, backward = self.sizer.stage_cost(group, height, cols)
            print_ = self.sizer.prices.footprint(group.forward, height, cols, "stationary")
            memory = np.asarray(print_.total_bytes, float) + self.sizer.activation_bytes(group) / (
                rows * self.widths
            )
            found = np.stack(
                [np.broadcast_to(np.asarray(forward.total + backward.total, float), cols.shape), memory]
            )
            self._time[key] = found
        return found[0], found[1]

    def width(self, group: Group, rows: int, pace: float) -> int | None:
        """Least columns of a region of `rows` rows that keeps the pace within SRAM."""
        time, memory = self._needs(group, rows)
        good = np.flatnonzero((time <= pace) & (memory <= self.wafer.sram_usable_bytes))
        return int(self.widths[good[0]]) if good.size else None

    def place(self, pace: float, shelves: int) -> list[Box] | None:
        """Boxes of all stages with `shelves` shelves, or None."""
        bands = _split(self.bands, shelves)
        boxes: dict[str, Box] = {}
        pending = list(self.sizer.groups)
        for index, (top, height) in enumerate(bands):
            placed = self._fill(pending, top, height, pace)
            row_boxes = _mirrored(placed, self.wafer.program_cols) if index % 2 else placed
            boxes.update(row_boxes)
            pending = pending[len(placed) :]
            if not pending:
                return [boxes[group.name] for group in self.sizer.groups]
        return None

    def _fill(self, pending: list[Group], top: int, height: int, pace: float) -> dict[str, Box]:
        """Stages from the head of `pending` that fit into one shelf."""
        out: dict[str, Box] = {}
        col, index = 0, 0
        while index < len(pending):
            wide = self.width(pending[index], height, pace)
            if wide is None or wide >= SMALL_COLS:
                if wide is None or col + wide > self.wafer.program_cols:
                    break
                out[pending[index].name] = self._box(top, col, height, wide)
                col, index = col + wide, index + 1
                continue
            stacked = self._stack(pending, index, height, pace)
            if col + stacked[0] > self.wafer.program_cols:
                break
            row = top
            for group, rows in stacked[1]:
                out[group.name] = self._box(row, col, rows, stacked[0])
                row += rows
            col, index = col + stacked[0], index + len(stacked[1])
        return out

    def _stack(
        self, pending: list[Group], start: int, height: int, pace: float
    ) -> tuple[int, list[tuple[Group, int]]]:
        """Stages from `start` stacked in shared columns: (columns, [(stage, rows)])."""
        best: tuple[float, int, list[tuple[Group, int]]] | None = None
        for cols in (SMALL_COLS, 2 * SMALL_COLS, 4 * SMALL_COLS):
            if cols > self.wafer.program_cols:
                break
            column: list[tuple[Group, int]] = []
            used = 0
            for group in pending[start:]:
                rows = self._rows(group, cols, height - used, pace)
                if rows is None:
                    break
                column.append((group, rows))
                used += rows
            if column:
                waste = 1.0 - used / height if start + len(column) < len(pending) else 0.0
                if best is None or waste < best[0] - 0.02:
                    best = (waste, cols, column)
        if best is None:
            return SMALL_COLS, [(pending[start], height)]
        return best[1], best[2]

    def _rows(self, group: Group, cols: int, limit: int, pace: float) -> int | None:
        """Least rows of a region of `cols` columns that keeps the pace within SRAM, up to `limit`."""
        if limit < 1:
            return None
        key = (self._key(group), "cols", cols)
        found = self._time.get(key)
        heights = geometric(self.wafer.program_rows, 1.03)
        if found is None:
            wide = np.full(heights.shape, int(compute_cols(cols, self.share)))
            forward, backward = self.sizer.stage_cost(group, heights, wide)
            print_ = self.sizer.prices.footprint(group.forward, heights, wide, "stationary")
            memory = np.asarray(print_.total_bytes, float) + self.sizer.activation_bytes(group) / (
                heights * cols
            )
            found = np.stack(
                [np.broadcast_to(np.asarray(forward.total + backward.total, float), heights.shape), memory]
            )
            self._time[key] = found
        good = np.flatnonzero(
            (found[0] <= pace) & (found[1] <= self.wafer.sram_usable_bytes) & (heights <= limit)
        )
        return int(heights[good[0]]) if good.size else None

    def _box(self, row: int, col: int, rows: int, cols: int) -> Box:
        return Box(row, col, rows, cols, rows, int(compute_cols(cols, self.share)))


def _bands(rows: int, avoid: tuple[int, ...]) -> list[tuple[int, int]]:
    """Runs of usable rows: (first row, rows)."""
    edges = [-1, *sorted(r for r in set(avoid) if 0 <= r < rows), rows]
    return [(a + 1, b - a - 1) for a, b in pairwise(edges) if b - a > 1]


def _split(bands: list[tuple[int, int]], shelves: int) -> list[tuple[int, int]]:
    """Cut the bands into about `shelves` shelves of about equal height."""
    total = sum(height for _, height in bands)
    out = []
    for top, height in bands:
        count = max(1, round(shelves * height / total))
        cuts = [top + height * i // count for i in range(count + 1)]
        out += [(a, b - a) for a, b in pairwise(cuts) if b > a]
    return out


def _mirrored(boxes: dict[str, Box], cols: int) -> dict[str, Box]:
    """Boxes of a shelf that is filled from east to west."""
    return {
        name: Box(b.row, cols - b.col - b.cols, b.rows, b.cols, b.compute_rows, b.compute_cols)
        for name, b in boxes.items()
    }


def place_shelves(sizer: Sizer) -> tuple[float, list[Box]] | None:
    """Best pace reached over numbers of shelves, with the boxes; None if nothing fits at any pace."""
    wafer = sizer.wafer
    placer = ShelfPlacer(sizer, _avoid_rows(wafer))
    ideal = sizer.pace_for(wafer.program_cores * (1 - wafer.transmission_core_share))
    if ideal is None:
        return None
    best: tuple[float, list[Box]] | None = None
    for shelves in _shelf_counts(wafer.program_rows, len(sizer.groups)):
        limit = best[0] if best else ideal * 64
        found = _least_pace(placer, shelves, ideal, limit)
        if found and (best is None or found[0] < best[0]):
            best = found
    return best


def _avoid_rows(wafer: Wafer) -> tuple[int, ...]:
    """Rows that regions leave out: dead rows, and rows of dead cores."""
    return tuple(sorted({*wafer.dead_rows, *(row for row, _ in wafer.dead_cores)}))


def _shelf_counts(rows: int, stages: int) -> list[int]:
    most = max(1, min(rows, stages, 48))
    return sorted(set(np.unique(np.round(np.geomspace(1, most, 18)).astype(int)).tolist()))


def _least_pace(placer: ShelfPlacer, shelves: int, low: float, high: float) -> tuple[float, list[Box]] | None:
    """Bisect the pace between `low` (ideal) and `high` for one number of shelves."""
    boxes = placer.place(high, shelves)
    if boxes is None:
        return None
    best = (high, boxes)
    while high / low > 1.002:
        middle = (low * high) ** 0.5
        boxes = placer.place(middle, shelves)
        if boxes is None:
            low = middle
        else:
            high, best = middle, (middle, boxes)
    return best
