"""The default placer: shelves across the wafer, filled in dataflow order like a snake.

Symbols: T is the pace (cycles per sample of the slowest stage), H the height of a shelf, F(i, d) the fewest
rows that hold the stages before i if the next shelf runs in direction d (0 eastward, 1 westward).

A stage spans the height of its shelf and takes the fewest columns w(H, T) that keep the pace. Small stages
are stacked in shared narrow columns of their shelf. If that wastes cores, since some stages need high regions and others
low ones, stacks of many widths are tried (:mod:`wse_sim.compiler.shelf_stack_kernels`). The heights are chosen by dynamic programming,
``F(next(i, H), 1 - d) = min over H of F(i, d) + H``, where next(i, H) is the first stage that does not fit
into a shelf of height H that starts with i. The pace is the smallest T with ``F(n, .) <= rows``.

Dead rows split the wafer into bands of rows. Dead cores either count as dead rows or block their columns
within their shelf, whichever gives the better pace. In a blocked column a stage may take the rows on one side
of the dead core, and other stages those on the other side. The fabric is larger than the program rectangle:
its spare rows and columns replace dead rows and blocked columns until they are used up.

This is one file, because the dynamic program and its compiled loops use the same tables.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.compute_columns import ComputeColumns
from wse_sim.compiler.defects import dead_counts, dead_list, usable_bands, usable_cores, without_dead_rows
from wse_sim.compiler.objectives import DELTA_T_WIRE, LATENCY
from wse_sim.compiler.pins import pinned_size
from wse_sim.compiler.pricing import geometric
from wse_sim.compiler.rounds import trains_in_rounds
from wse_sim.compiler.shelf_kernels import (
    NEVER,
    best_shelves,
    free_columns,
    shelf_end,
    shelf_spots,
)
from wse_sim.compiler.shelf_stack_kernels import best_stacked_shelves, fill_stacked_shelf
from wse_sim.compiler.shelf_table_kernels import least_sizes_of
from wse_sim.compiler.shelf_tables import ShelfTable, Tiles, times_held
from wse_sim.compiler.sizing import Group, Shapes, Sizer
from wse_sim.hardware import Wafer

LOWEST_SHELF = 12
HEIGHT_STEP = 1.01  # ratio between the heights of shelves that are tried
PACE_STEP = 1.001  # the bisection over the pace stops within 0.1 %
NO_DEAD, NO_CORES = np.zeros((0, 0), np.int64), np.zeros((0, 2), np.int64)


LATENCY_FRACTIONS = (1.0, 0.5, 0.25, 0.1)  # fractions of the cores, tried for the shortest latency
WIRE_LEVELS = 12  # number of paces, from the least on, that the shelves try for less wire
WIRE_STEP = 1.02


@dataclass(frozen=True)
class Stacks:
    """How small stages of a shelf are stacked: in stacks of `widths` columns, each of one of them.

    A stack takes the small stages among the next `reach` columns of its shelf. A long reach leaves
    fewer cores unused; a short one keeps streams short.
    """

    widths: tuple[int, ...]
    reach: int


STACKS = (Stacks((7,), NEVER), Stacks((3,), 150), Stacks((3,), 60))
"""Variants of stacking in narrow columns, the densest first; later ones have fewer parallel streams."""
LEAST_STACK, WIDTH_STEP = 3, 1.1  # columns of the narrowest stack, and the ratio between the widths of stacks
TRAINED_STEP = 1.05  # the same for programs that train, whose exact numbers of links suit fewer widths
WIDEST = (
    1 / 2,
    1 / 16,
)  # of the columns of the wafer: the widest stack; narrow ones have fewer parallel streams
PARTS = (2, 1)  # stacks take the stages with at most this part of the rows of their shelf
PACKED = 1.01  # times the area bound: a placement in narrow stacks that wastes few cores
MOST_STACKED = 1000  # stages that are placed in wide stacks; a search takes seconds for more


Sizes = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Least columns (kinds, heights) in shelves, least rows (kinds, widths) in stacks, and the heights of the shelves."""


@dataclass(frozen=True)
class Box:
    """A placed stage: its rectangle, and the rows and columns of it that compute."""

    row: int
    col: int
    rows: int
    cols: int
    compute_rows: int
    compute_cols: int


def with_columns(boxes: Sequence[Box], columns: ComputeColumns) -> tuple[list[Box], list[Box]]:
    """Return the boxes twice, with at most as many columns computing as `columns` says.

    In the first list compute columns are reduced to that number if they exceed it; in the second they are set
    to it.
    """
    most = columns.of([box.cols for box in boxes]).tolist()
    few = [
        replace(box, compute_cols=cols) if box.compute_cols > cols else box
        for box, cols in zip(boxes, most, strict=True)
    ]
    return few, [
        replace(box, compute_cols=cols) if box.compute_cols != cols else box
        for box, cols in zip(boxes, most, strict=True)
    ]


def region_widths(wafer: Wafer, step: float) -> NDArray[np.int64]:
    """Return candidate widths of regions, each at most about `step` times the one before.

    A region of one column has no cores set aside, so the least width is 2 if the efficiency is below 1: in a
    whole-fabric plan, streams enter at cores that are set aside.
    """
    widths = geometric(wafer.program_cols, step)
    least = 2 if wafer.pipeline_efficiency < 1 else 1
    return widths[widths >= min(least, wafer.program_cols)]


class ShelfPlacer:
    """Placement of a sizer's stages on shelves at a given pace."""

    def __init__(self, sizer: Sizer, stacks: Stacks = STACKS[0], *, whole_rows: bool = False) -> None:
        self.sizer = sizer
        self.stacks = stacks
        self.wafer = without_dead_rows(sizer.wafer) if whole_rows else sizer.wafer
        self.columns = sizer.columns
        self.widths = region_widths(self.wafer, 1.01)
        self.small_rows = geometric(self.wafer.program_rows, 1.02)
        self._tables: dict[int, ShelfTable] = {}
        kinds: dict[Hashable, int] = {}
        one = [kinds.setdefault(sizer.kind(group), len(kinds)) for group in sizer.groups]
        self.kind_of = np.array(one * sizer.replicas, np.int64)
        self.kinds = [sizer.groups[one.index(kind)] for kind in range(len(kinds))]
        self.pins = [pinned_size(group.forward) for group in self.kinds]
        self._all_kinds = tuple(kinds), tuple(self.pins)
        self._narrow = np.array([stacks.widths[0], stacks.reach], np.int64)
        self._stacks = np.array([(cols, part) for cols in stacks.widths for part in PARTS], np.int64)
        self.stack_cols = np.array(stacks.widths, np.int64)
        in_stacks = self._shapes(self.small_rows, self.stack_cols)
        cores = np.outer(self.small_rows, self.stack_cols)
        self._stacked_prices = [self.sizer.shape_prices(group, in_stacks) for group in self.kinds]
        self._stacked = np.array(
            [
                times_held(sizer, group, prices, cores.ravel()).reshape(cores.shape).T
                if pin is None  # pinned stages never go into stacks
                else np.full(cores.T.shape, np.inf)
                for group, prices, pin in zip(self.kinds, self._stacked_prices, self.pins, strict=True)
            ]
        )  # (kinds, widths, rows)
        self.bands = usable_bands(self.wafer)
        dead = self.wafer.dead_cores
        self.spare = (
            self.wafer.cols - self.wafer.program_cols if dead else 0
        )  # columns instead of blocked ones
        self._dead = [dead_counts(self.wafer, top, rows) for top, rows in self.bands]
        self._cores = [dead_list(self.wafer, top, rows) for top, rows in self.bands]
        self._too_large: list[NDArray[np.int64]] = []  # columns, rows and widths that did not fit last

    def _shapes(self, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> Shapes:
        """Return the compute shapes of all regions of `rows` (h,) x `cols` (w,) cores."""
        return Shapes.grid(rows, self.columns.of(cols))

    def _table(self, limit: int) -> ShelfTable:
        """Return the table of shelves of up to `limit` rows, shared by all placers of these stages."""
        found = self._tables.get(limit)
        if found is None:
            shared, stages = self.sizer.tables, (limit, self._all_kinds)
            key = (*stages, (self.sizer.update_samples, self.sizer.forward_fraction))
            if key not in shared:
                for other, table in shared.items():  # a search uses one of them after the other
                    if isinstance(table, ShelfTable) and other[:-1] == stages:
                        table.forget()
                heights = [h for h in geometric(limit, HEIGHT_STEP) if h >= min(LOWEST_SHELF, limit)]
                shared[key] = ShelfTable(
                    self.sizer,
                    [
                        group if pin is None else None
                        for group, pin in zip(self.kinds, self.pins, strict=True)
                    ],
                    np.array(heights, np.int64),
                    self.widths,
                    self.columns.of(self.widths),
                    cast(Tiles, shared.setdefault(stages, {})),
                )
            found = self._tables[limit] = cast(ShelfTable, shared[key])
        return found

    def priced(self, kind: int, rows: int, cols: int, inner: int) -> tuple[float, ...]:
        """Return the prices of a region with `inner` compute columns, in the order of
        :class:`~wse_sim.compiler.sizing.ShapePrices`.
        """
        if inner != self.columns.of(cols):
            return self.sizer.shape_prices(self.kinds[kind], Shapes.one(rows, inner)).at(0)
        row = int(np.searchsorted(self.small_rows, rows))
        col = int(np.searchsorted(self.stack_cols, cols))
        if (
            row < self.small_rows.size
            and col < self.stack_cols.size
            and self.small_rows[row] == rows
            and self.stack_cols[col] == cols
        ):
            return self._stacked_prices[kind].at(row * self.stack_cols.size + col)
        for _, limit in self.bands:
            found = self._table(limit).priced(kind, rows, cols)
            if found is not None:
                return found
        return self.sizer.shape_prices(self.kinds[kind], Shapes.one(rows, inner)).at(0)

    def _least_widths(self, table: ShelfTable, of_kind: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the least columns (kinds, heights) with which regions of a table's heights keep the paces
        within SRAM.
        """
        out = table.least_widths(of_kind)
        for kind, pin in enumerate(self.pins):
            if pin is not None:
                group, shapes = self.kinds[kind], self._shapes(np.array(pin[:1]), np.array(pin[1:]))
                cores = np.array([pin[0] * pin[1]])
                one = times_held(self.sizer, group, self.sizer.shape_prices(group, shapes), cores)
                held = pin[1] if one[0] <= of_kind[kind] else NEVER
                out[kind] = np.where(table.heights >= pin[0], held, NEVER)
        return out

    def place(self, pace: float | NDArray[np.float64], cols: int | None = None) -> NDArray[np.int64] | None:
        """Return row, column, rows and columns (stages, 4) of all stages at a pace; None if they do not fit.

        `pace` is in cycles per sample, one number for all stages or one per group. With `cols`, only that
        many columns in the west are used. :meth:`boxes` converts the result to boxes.
        """
        of_kind = self._pace_of_kind(pace)
        narrow = self._least_rows(of_kind)
        cols = self.wafer.program_cols if cols is None else cols
        tables = [self._table(rows) for _, rows in self.bands]
        widths_of = [self._least_widths(of_heights, of_kind) for of_heights in tables]
        sizes = [np.array([cols]), narrow, *widths_of]
        if self._too_large and all(map(np.array_equal, sizes, self._too_large)):
            return None  # at a longer pace that makes no stage smaller
        if self._least_area(narrow, tables, widths_of) > sum(rows for _, rows in self.bands) * (
            cols + self.spare
        ):
            return None
        start, direction = 0, 0
        count = len(self.kind_of)
        boxes = np.zeros((count, 4), np.int64)
        for (top, rows), of_heights, widths, dead, cores in zip(
            self.bands, tables, widths_of, self._dead, self._cores, strict=True
        ):
            heights = of_heights.heights
            sizes_of = widths, narrow, heights
            least, trace = self._best_shelves(
                sizes_of, (start, direction, rows, cols), self.spare, dead, cores
            )
            reached = np.flatnonzero(least.min(axis=1) <= rows)
            end = int(reached[-1])
            chain: list[tuple[int, int, int]] = []
            at, way = end, int(np.argmin(least[end]))
            direction = way
            while at != start:
                before, index = (int(v) for v in trace[at, way])
                at, way = before, 1 - way
                chain.append((at, way, index))
            floor = 0
            for first, way, index in reversed(chain):
                height = int(heights[index])
                last, limit = self._fill_shelf(
                    sizes_of, index, first, (floor, way, cols), (dead, cores), boxes
                )
                boxes[first:last, 0] += top + floor
                if way:
                    boxes[first:last, 1] = limit - boxes[first:last, 1] - boxes[first:last, 3]
                floor += height
            start = end
        if start < count:
            self._too_large = sizes
            return None
        for kind, pin in enumerate(self.pins):
            if pin is not None:
                boxes[self.kind_of == kind, 2] = pin[0]
        return boxes

    def _best_shelves(
        self,
        sizes: Sizes,
        where: tuple[int, int, int, int],
        spare: int,
        dead: NDArray[np.int64],
        cores: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return :func:`best_shelves`; `where` are the first stage, the direction, the rows and the columns."""
        widths, narrow, heights = sizes
        if len(self.stacks.widths) > 1:
            return best_stacked_shelves(*self._stacked_table(sizes), *where)
        return best_shelves(
            self.kind_of, widths, narrow[:, 0], self._narrow, heights, *where, spare, dead, cores
        )

    def _stacked_table(
        self, sizes: Sizes
    ) -> tuple[
        NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int, NDArray[np.int64]
    ]:
        """Return the arguments of the functions for stacks of several widths that describe the stages."""
        widths, narrow, heights = sizes
        narrow = np.repeat(narrow, len(PARTS), axis=1)
        return self.kind_of, widths, narrow, self._stacks, self.stacks.reach, heights

    def _fill_shelf(
        self,
        sizes: Sizes,
        index: int,
        first: int,
        where: tuple[int, int, int],
        defects: tuple[NDArray[np.int64], NDArray[np.int64]],
        boxes: NDArray[np.int64],
    ) -> tuple[int, int]:
        """Write the boxes of the stages from `first` on in a shelf, whose columns count in running direction.

        `index` is that of the height of the shelf, `where` are its first row, its direction and its columns. Returns the
        first stage behind the shelf, and the number of columns that it may use.
        """
        (widths, narrow, heights), (floor, way, cols), (dead, cores) = sizes, where, defects
        if len(self.stacks.widths) > 1:
            return fill_stacked_shelf(*self._stacked_table(sizes), index, first, cols, boxes), cols
        height = int(heights[index])
        free, limit = free_columns(dead, floor, height, way, cols, self.spare)
        spots = shelf_spots(cores, floor, height, way, limit)
        table = self.kind_of, widths, narrow[:, 0], self._narrow, heights
        return shelf_end(*table, index, first, free, spots, boxes), limit

    def _least_rows(self, of_kind: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the least rows (kinds, widths) with which stages keep the paces in stacks of each width."""
        many = self.stack_cols.size
        rows = least_sizes_of(
            self._stacked.reshape(-1, self.small_rows.size), self.small_rows, np.repeat(of_kind, many)
        )
        return rows.reshape(-1, many)

    def _least_area(
        self, narrow: NDArray[np.int64], tables: Sequence[ShelfTable], widths_of: Sequence[NDArray[np.int64]]
    ) -> int:
        """Return the cores that all stages take at least, each in a stack or on the best of the shelves."""
        least = (narrow * self.stack_cols).min(axis=1)
        for of_heights, widths in zip(tables, widths_of, strict=True):
            least = np.minimum(least, (of_heights.heights * widths).min(axis=1))
        return int(least[self.kind_of].sum())

    def boxes(self, found: NDArray[np.int64]) -> list[Box]:
        """Convert the result of :meth:`place` to boxes."""
        inner = self.columns.of(found[:, 3]).tolist()
        return [
            Box(row, col, high, wide, high, cols)
            for (row, col, high, wide), cols in zip(found.tolist(), inner, strict=True)
        ]

    def _pace_of_kind(self, pace: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the pace (kinds,) of each kind: the smallest pace of any of its stages."""
        if not isinstance(pace, np.ndarray):
            return np.full(len(self.kinds), float(pace))
        targets = np.full(len(self.kinds), np.inf)
        np.minimum.at(targets, self.kind_of[: len(pace)], pace)
        return targets

    def tightest(self) -> tuple[Group, float] | None:
        """Return the stage that exceeds SRAM most on its best rectangle, with its bytes per core; None if
        every stage fits.
        """
        heights = geometric(self.wafer.program_rows, HEIGHT_STEP)
        shapes, cores = self._shapes(heights, self.widths), np.outer(heights, self.widths).ravel()
        sizer = self.sizer
        needs = [
            (
                group,
                float((sizer.shape_prices(group, shapes).memory + sizer.held_bytes(group) / cores).min()),
            )
            for group in self.kinds
        ]
        group, need = max(needs, key=lambda one: one[1])
        return (group, need) if need > self.wafer.sram_usable_bytes else None

    def rows_needed(self, pace: float) -> float:
        """Return the rows that shelves at `pace` need on a wafer of any height without defects; infinite if a
        stage fits on no shelf.
        """
        of_kind = self._pace_of_kind(pace)
        of_heights = self._table(self.wafer.program_rows)
        heights, widths = of_heights.heights, self._least_widths(of_heights, of_kind)
        sizes = widths, self._least_rows(of_kind), heights
        least, _ = self._best_shelves(sizes, (0, 0, NEVER, self.wafer.program_cols), 0, NO_DEAD, NO_CORES)
        rows = float(least[-1].min())
        return rows if rows < NEVER else float("inf")


def area_bound_cycles(sizer: Sizer) -> float | None:
    """Return the least pace at which the stages' smallest areas, cores set aside included, fit on the living
    cores.

    Returns None if they do not fit at any pace.
    """
    return sizer.pace_for(usable_cores(sizer.wafer) * sizer.wafer.pipeline_efficiency)


def shelf_placers(sizer: Sizer, stacks: Stacks = STACKS[0]) -> list[ShelfPlacer]:
    """Return the shelf placers of a sizer; with dead cores, also one that treats their rows as dead."""
    placers = [ShelfPlacer(sizer, stacks)]
    if sizer.wafer.dead_cores:
        placers.append(ShelfPlacer(sizer, stacks, whole_rows=True))
    return placers


def place_shelves(
    sizer: Sizer,
    targets: NDArray[np.float64] | None = None,
    stacks: Stacks = STACKS[0],
    placers: Sequence[ShelfPlacer] | None = None,
    cols: int | None = None,
    step: float = PACE_STEP,
) -> tuple[float, list[Box]] | None:
    """Return the least pace at which the shelves contain all stages, with the boxes; None if nothing fits.

    With `targets`, cycles (groups,), the stages' times keep these proportions instead of being equal, and the
    returned number is the largest of them. `placers` are those of :func:`shelf_placers`, for callers that
    need several placements. With `cols`, only that many columns are used. The pace is found within the factor
    `step`.
    """
    ideal = area_bound_cycles(sizer) if targets is None else float(targets.max())
    if ideal is None:
        return None
    shape = 1.0 if targets is None else targets / ideal
    placers = shelf_placers(sizer, stacks) if placers is None else placers
    found = [
        best for placer in placers if (best := _least_pace(placer, ideal, shape, cols, step)) is not None
    ]
    return min(found, key=lambda best: best[0], default=None)


def _least_pace(
    placer: ShelfPlacer, ideal: float, shape: float | NDArray[np.float64], cols: int | None, step: float
) -> tuple[float, list[Box]] | None:
    """Return the least pace, within the factor `step`, at which a placer fits all stages, with the boxes; or
    None.

    `shape` is the ratio of the stages' times to the pace.
    """
    high = ideal
    boxes = placer.place(high * shape, cols)
    while boxes is None and high < ideal * 1e4:
        high *= 1.15
        boxes = placer.place(high * shape, cols)
    if boxes is None:
        return None
    low, best = max(ideal, high / 1.15), (high, boxes)
    while high / low > step:
        middle = (low * high) ** 0.5
        boxes = placer.place(middle * shape, cols)
        if boxes is None:
            low = middle
        else:
            high, best = middle, (middle, boxes)
    return best[0], placer.boxes(best[1])


def wire_l1(sizer: Sizer, boxes: list[Box]) -> float:
    """Return the sum over edges of |dx| + |dy| between the middles of boxes, in cores."""
    x = np.array([box.col + box.cols / 2 for box in boxes])
    y = np.array([box.row + box.rows / 2 for box in boxes])
    return float(sum(abs(x[a] - x[b]) + abs(y[a] - y[b]) for a, b in sizer.copy_edges))


def shelf_placements(sizer: Sizer, objective: str) -> Iterator[tuple[float, list[Box]]]:
    """Yield placements of the stages for an objective, the best first, then those in shorter stacks.

    For the objective "latency", placements on several fractions of the cores come before these, not sorted.
    """
    if objective == LATENCY:
        # Large regions take long to fill and distant ones to reach: fewer cores may be faster for one sample.
        for share in LATENCY_FRACTIONS:
            targets = sizer.latency_targets(share * compute_cores(sizer))
            found = place_shelves(sizer, targets) if targets is not None else None
            if found is not None:
                yield found
    narrow = place_shelves(sizer, None, STACKS[0])
    if objective != DELTA_T_WIRE:
        yield from _in_wide_stacks(sizer, np.inf if narrow is None else narrow[0])
    for stacks in STACKS:
        found = narrow if stacks is STACKS[0] else place_shelves(sizer, None, stacks)
        if found is not None:
            yield _shorter_wire(sizer, found, stacks) if objective == DELTA_T_WIRE else found


def _in_wide_stacks(sizer: Sizer, pace: float) -> Iterator[tuple[float, list[Box]]]:
    """Yield placements in stacks of many widths that are faster than `pace`, that of narrow stacks; none if that wastes
    few cores, or on a wafer with dead cores.
    """
    ideal = area_bound_cycles(sizer)
    if ideal is None or pace <= PACKED * ideal:
        return
    if sizer.wafer.dead_cores or len(sizer.copies) > MOST_STACKED:
        return
    step = TRAINED_STEP if trains_in_rounds(sizer.graph) else WIDTH_STEP
    for fraction in WIDEST:
        most = int(fraction * sizer.wafer.program_cols)
        widths = tuple(cols for cols in geometric(max(1, most), step).tolist() if cols >= LEAST_STACK)
        found = place_shelves(sizer, None, Stacks(widths, NEVER)) if len(widths) > 1 else None
        if found is not None and found[0] < pace:
            yield found


def compute_cores(sizer: Sizer) -> float:
    """Return the number of living cores of the wafer that compute."""
    return usable_cores(sizer.wafer) * sizer.wafer.pipeline_efficiency


def _shorter_wire(sizer: Sizer, found: tuple[float, list[Box]], stacks: Stacks) -> tuple[float, list[Box]]:
    """Return the shelves at a longer pace if they save more wire than the pace loses."""
    shelves = ShelfPlacer(sizer, stacks)
    least, boxes = found
    best = (least + wire_l1(sizer, boxes), least, boxes)
    for step in range(1, WIRE_LEVELS):
        pace = least * WIRE_STEP**step
        found_at = shelves.place(pace) if pace < best[0] else None
        if found_at is None:
            continue
        trial = shelves.boxes(found_at)
        if (cost := pace + wire_l1(sizer, trial)) < best[0]:
            best = (cost, pace, trial)
    return best[1:]
