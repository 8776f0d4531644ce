"""Dead rows and cores: the remaining part of a wafer, and the cost of a repair by spare columns.

Two strategies for a dead core (``defect_repair`` of the wafer):

    avoid    no region covers it; spare rows and columns outside the program rectangle replace it.
    shift    its row is shifted: the cores east of it move by one column, up to the spare columns of the
             fabric, over redundant links [assumed: vendors state that spare cores and links hide defects,
             but not how]. Regions are then rectangles of logical columns.

Symbols of a shift: s(r, x) is the number of dead cores that row r skips before logical column x. Extra hops::

    along a row, from x to x + 1      s(r, x + 1) - s(r, x)
    along a column, from r to r + 1   |s(r + 1, x) - s(r, x)|

Extra hops delay words. Redundant links carry these words, so they use no bandwidth [assumed]. A kernel on the
whole wafer has no region that could avoid a dead core: words pass over the rows and columns with dead cores
[assumed]. Spare rows and columns replace these as far as possible, and the rectangle shrinks by the rest
(:func:`whole_rectangle`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.nets import Point
from wse_sim.compiler.plan import Infeasible, Region
from wse_sim.hardware import Wafer

SHIFT = "shift"


def usable_bands(wafer: Wafer) -> list[tuple[int, int]]:
    """Return the bands of contiguous living rows as (first row, number of rows).

    Each dead row adds a spare row of the fabric while one is left.
    """
    dead = sorted(set(wafer.dead_rows))
    rows = wafer.program_rows
    for _ in range(wafer.rows - wafer.program_rows):
        if rows - sum(r < rows for r in dead) < wafer.program_rows:
            rows += 1
    edges = [-1, *(r for r in dead if r < rows), rows]
    return [(a + 1, b - a - 1) for a, b in pairwise(edges) if b - a > 1]


def without_dead_rows(wafer: Wafer) -> Wafer:
    """Return the wafer with every row that contains a dead core marked as dead, and no single dead cores."""
    rows = {*wafer.dead_rows, *(row for row, _ in wafer.dead_cores)}
    return wafer.model_copy(update={"dead_rows": tuple(sorted(rows)), "dead_cores": ()})


def usable_cores(wafer: Wafer) -> int:
    """Return the number of living cores of the program rectangle, spare ones included that replace
    dead ones.
    """
    rows = sum(rows for _, rows in usable_bands(wafer))
    dead: dict[int, int] = {}
    for row, _ in set(wafer.dead_cores):
        if row not in wafer.dead_rows:
            dead[row] = dead.get(row, 0) + 1
    spare = wafer.cols - wafer.program_cols
    lost = sum(max(0, count - spare) for count in dead.values())
    return rows * wafer.program_cols - lost


def dead_counts(wafer: Wafer, top: int, rows: int) -> NDArray[np.int64]:
    """Return the number of dead cores north of each row of a band, per column: (rows + 1, cols).

    The array is empty if the band has no dead cores.
    """
    mine = [(r - top, c) for r, c in wafer.dead_cores if top <= r < top + rows]
    if not mine:
        return np.zeros((0, 0), np.int64)
    dead = np.zeros((rows + 1, wafer.cols), np.int64)
    for r, c in set(mine):
        dead[r + 1, c] = 1
    return np.cumsum(dead, axis=0)


def dead_list(wafer: Wafer, top: int, rows: int) -> NDArray[np.int64]:
    """Return the dead cores of a band (n, 2) as row in the band and column, sorted by column."""
    mine = sorted({(c, r - top) for r, c in wafer.dead_cores if top <= r < top + rows})
    return np.array([(r, c) for c, r in mine], np.int64).reshape(-1, 2)


@dataclass(frozen=True)
class Repair:
    """The shifted rows of a wafer: the wafer that the compiler sees, and the extra hops of routes."""

    wafer: Wafer  # without the repaired cores among its dead ones
    repaired: int  # number of repaired dead cores
    shift: NDArray[np.int16]  # s (rows, program columns)

    def extra_hops(self, route: Sequence[Point]) -> int:
        """Return the extra hops of the middle line along a path of corners."""
        if not self.repaired:
            return 0
        return sum(self._between(a, b) for a, b in pairwise(route))

    def fill_hops(self, region: Region) -> int:
        """Return the most extra hops of a route across a region, along one of its rows and then one of its
        columns.
        """
        if not self.repaired:
            return 0
        part = self.shift[region.row : region.row + region.rows, region.col : region.col + region.cols]
        along = int((part[:, -1] - part[:, 0]).max(initial=0))
        down = np.abs(np.diff(part, axis=0)).sum(axis=0)
        return along + int(down.max(initial=0))

    def _between(self, a: Point, b: Point) -> int:
        """Return the extra hops on the straight line between two cores."""
        last = self.shift.shape[1] - 1  # the I/O columns beyond it shift as the last column does
        (r0, r1), (c0, c1) = sorted((a[0], b[0])), sorted((min(a[1], last), min(b[1], last)))
        line = self.shift[r0 : r1 + 1, c0] if r0 != r1 else self.shift[r0, c0 : c1 + 1]
        return int(np.abs(np.diff(line)).sum())


def repair(wafer: Wafer) -> Repair:
    """Return the repair of a wafer: rows with dead cores are shifted, and these cores no longer count as
    dead.

    Rows that are dead or have more dead cores than the fabric has spare columns keep their dead cores, which
    regions then avoid. Nothing is shifted unless ``defect_repair`` of the wafer is "shift".
    """
    shift = np.zeros((wafer.rows, wafer.program_cols), np.int16)
    if wafer.defect_repair != SHIFT or not wafer.dead_cores:
        return Repair(wafer, 0, shift)
    spare = wafer.cols - wafer.program_cols
    dead: dict[int, set[int]] = {}
    for row, col in wafer.dead_cores:
        dead.setdefault(row, set()).add(col)
    kept, repaired = [], 0
    for row, cols in sorted(dead.items()):
        if len(cols) > spare or row in wafer.dead_rows:
            kept += [(row, col) for col in sorted(cols)]
            continue
        repaired += len(cols)
        alive = np.setdiff1d(np.arange(wafer.cols), list(cols))[: wafer.program_cols]
        shift[row] = alive - np.arange(wafer.program_cols)
    return Repair(wafer.model_copy(update={"dead_cores": tuple(kept)}), repaired, shift)


def whole_rectangle(wafer: Wafer) -> tuple[Wafer, str]:
    """Return the wafer with the program rectangle that is left for kernels on the whole wafer, and one
    sentence on the cost of its dead cores.

    The rectangle may be empty, with zero rows or columns. The sentence is empty for a wafer without defects.
    A second call does not change the wafer again.
    """
    if not wafer.dead_rows and not wafer.dead_cores:
        return wafer, ""
    left = repair(wafer).wafer
    rows = {row for row in left.dead_rows if row < wafer.rows}
    spare_rows, spare_cols = wafer.rows - wafer.program_rows, wafer.cols - wafer.program_cols
    cols: set[int] = set()
    dead = {(r, c) for r, c in left.dead_cores if r not in rows and r < wafer.rows and c < wafer.cols}
    while dead:  # drop the row or column with the most dead cores; of equal ones, a spare one first
        row, in_row = min(Counter(r for r, _ in dead).items(), key=lambda one: (-one[1], one[0]))
        col, in_col = min(Counter(c for _, c in dead).items(), key=lambda one: (-one[1], one[0]))
        for_row = in_row, len(rows) < spare_rows, -wafer.program_cols
        for_col = in_col, len(cols) < spare_cols, -wafer.program_rows
        (rows if for_row > for_col else cols).add(row if for_row > for_col else col)
        dead = {(r, c) for r, c in dead if r not in rows and c not in cols}
    size = min(wafer.program_rows, wafer.rows - len(rows)), min(wafer.program_cols, wafer.cols - len(cols))
    lost = 1 - size[0] * size[1] / max(1, wafer.program_cores)
    text = (
        f"{len(set(wafer.dead_rows))} dead rows and {len(set(wafer.dead_cores))} dead cores: words pass over "
        f"{len(rows)} rows and {len(cols)} columns (assumed), kernels use {size[0]} x {size[1]} cores "
        f"({100 * lost:.2f} % fewer, {spare_rows} rows and {spare_cols} columns are spare)"
    )
    return wafer.model_copy(update={"program_rows": size[0], "program_cols": size[1]}), text


def no_rectangle(mode: str, model: str, wafer: Wafer) -> Infeasible:
    """Return the answer for a wafer whose dead cores leave no row or no column to kernels on the whole
    wafer.
    """
    return Infeasible(
        mode=mode,
        model=model,
        binding="cores",
        need=1.0,
        limit=0.0,
        unit="rows and columns without a dead core",
        where=f"wafer {wafer.name}",
        remedy="remove some of dead_rows and dead_cores, or use the pipelined mode",
    )
