"""Tables of the least width with which a stage keeps a pace at each height of a shelf, computed lazily.

A stage that keeps a pace on A cores is about A / h columns wide at height h. So a search needs only the
heights and widths near and below that hyperbola. The heights are divided into strips. Each strip of a stage
is computed from narrow to wide, step by step, until all its heights keep the requested paces.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.shelf_table_kernels import add_widths, least_widths_of
from wse_sim.compiler.sizing import Group, ShapePrices, Shapes, Sizer

STRIPS = 4
LADDER = (0.2, 0.4, 0.65, 1.0)  # fractions of the widths: the ends of the steps

Tiles = dict[tuple[int, int, int], ShapePrices]
"""Prices by kind, strip and step."""


class ShelfTable:
    """Least times of the kinds of stages on regions of `heights` (h,) x `widths` (w,).

    `inner` (w,) are the compute columns of these widths. `kinds` are the stages, None for one that is not in
    the table. `tiles` are prices shared with tables of other update weights.
    """

    def __init__(
        self,
        sizer: Sizer,
        kinds: Sequence[Group | None],
        heights: NDArray[np.int64],
        widths: NDArray[np.int64],
        inner: NDArray[np.int64],
        tiles: Tiles,
    ) -> None:
        self.heights = heights
        self._sizer, self._kinds, self._tiles = sizer, kinds, tiles
        self._widths, self._inner = widths, inner
        self._ends = np.unique([max(1, round(part * widths.size)) for part in LADDER])
        self._first = np.linspace(0, heights.size, STRIPS + 1).astype(np.int64)
        self.forget()

    def forget(self) -> None:
        """Release the memory of the times; the prices, which cost more to compute, are kept."""
        kinds = self._kinds
        self._known = np.zeros((len(kinds), STRIPS), np.int64)
        self._kept = np.full((len(kinds), STRIPS), inf)  # the pace that all heights of a strip keep so far
        asked = (np.diff(self._first) > 0) & (self._widths.size > 0)  # on a low wafer some strips are empty
        self._open = np.array([asked & (kind is not None) for kind in kinds])
        # The operating system allocates only the pages that are written.
        self._times = np.zeros(len(kinds) * self.heights.size * self._widths.size)

    def least_widths(self, paces: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the least columns (kinds, heights) with which the kinds keep their paces (kinds,), or
        NEVER.
        """
        while (short := self._open & ((self._known == 0) | (self._kept > paces[:, None]))).any():
            for kind, strip in np.argwhere(short).tolist():
                self._widen(kind, strip)
        return least_widths_of(self._times, self._known, self._first, self._widths, paces)

    def priced(self, kind: int, rows: int, cols: int) -> tuple[float, ...] | None:
        """Return the prices of a region of `rows` x `cols` cores if they have been computed, else None."""
        row, col = int(np.searchsorted(self.heights, rows)), int(np.searchsorted(self._widths, cols))
        if row == self.heights.size or col == self._widths.size:
            return None
        if self.heights[row] != rows or self._widths[col] != cols:
            return None
        strip = int(np.searchsorted(self._first, row, side="right")) - 1
        step = int(np.searchsorted(self._ends, col, side="right"))
        tile = self._tiles.get((kind, strip, step))
        if tile is None:
            return None
        begin = int(self._ends[step - 1]) if step else 0
        return tile.at((row - int(self._first[strip])) * (int(self._ends[step]) - begin) + col - begin)

    def _widen(self, kind: int, strip: int) -> None:
        """Compute one more step of widths of a strip."""
        known, (first, last) = int(self._known[kind, strip]), self._first[strip : strip + 2].tolist()
        step = int(np.searchsorted(self._ends, known, side="right"))
        end = int(self._ends[step])
        start, rows = (kind * self.heights.size + first) * self._widths.size, last - first
        before = self._times[start : start + rows * known].reshape(rows, known).copy()
        whole = self._times[start : start + rows * end].reshape(rows, end)
        whole[:, :known] = before
        group = self._kinds[kind]
        assert group is not None  # only open kinds are widened
        prices = self._prices(group, (kind, strip, step), slice(first, last), slice(known, end))
        add_widths(
            *(whole, known, self._sizer.times(prices), np.ascontiguousarray(prices.memory)),
            *(float(self._sizer.held_bytes(group)), self.heights[first:last], self._widths[known:end]),
            float(self._sizer.wafer.sram_usable_bytes),
        )
        self._known[kind, strip] = end
        self._kept[kind, strip] = whole[:, -1].max(initial=0.0)
        self._open[kind, strip] = end < self._widths.size

    def _prices(self, group: Group, key: tuple[int, int, int], rows: slice, cols: slice) -> ShapePrices:
        """Return the prices of a stage on regions of some heights and widths, kept by kind, strip and step."""
        if key not in self._tiles:
            shapes = Shapes.grid(self.heights[rows], self._inner[cols])
            self._tiles[key] = self._sizer.shape_prices(group, shapes)
        return self._tiles[key]


def times_held(
    sizer: Sizer, group: Group, prices: ShapePrices, cores: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the times (n,) of a stage on regions of `cores` (n,) cores, infinite if it does not fit
    in SRAM.
    """
    memory = prices.memory + sizer.held_bytes(group) / cores
    return np.where(memory <= sizer.wafer.sram_usable_bytes, sizer.times(prices), np.inf)
