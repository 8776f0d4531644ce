"""The inner loops of the shelf placer for stacks of several widths, on wafers without dead cores.

Symbols are those of :mod:`wse_sim.compiler.shelves`. A shelf of height H is filled with columns: a stage over the
whole height, or a stack of stages of one width. While a stack has free rows, stages that are too high for it take
other columns next to it. With c(k) the fewest columns of a shelf that starts with stage i and holds the stages
before k, none of its stacks open,

    c(k + 1) = min  c(k) + w(k, H)                       stage k over the whole height
    c(m)     = min  c(k) + W + sum of w(., H)            a stack of width W from stage k on, full before stage m

and the shelf ends at the last stage that some choice holds within its columns.
"""

# mypy: disable-error-code="assignment"
# numba infers these types; in the stubs of NumPy its integers are not int
from __future__ import annotations

import numpy as np

from wse_sim.compiler.shelf_kernels import NEVER, first_beyond, period_of
from wse_sim.jit import kernel


@kernel
def _stacks_of(
    cores: np.ndarray,
    rows_of: np.ndarray,
    wide: np.ndarray,
    height: int,
    most: int,
    thin: int,
    reach: int,
    before: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Fill in how far a stack of `thin` columns reaches in a shelf of `height` from each stage on.

    `rows_of` (n,) are the least rows of the stages in the stack, which takes those of at most `most` rows, `wide` (n,) their least columns at the height.
    `before` (n + 1,) receives the columns of the stages before i that are too high for stacks, `ends` (n,) the
    first stage for which a stack that begins with stage i has no rows, and i if stage i is too high for one, or if the
    stages need less than three quarters of its cores; `cores` (n,) are the fewest that each can take.
    """
    count = rows_of.shape[0]
    before[0] = 0
    for index in range(count):
        before[index + 1] = before[index] + (0 if rows_of[index] <= most else wide[index])
    index, used, area = 0, 0, 0  # rows of the stages from `first` to `index` - 1
    for first in range(count):
        if rows_of[first] > most:
            ends[first] = first
            continue
        if index <= first:
            index, used, area = first, 0, 0
        while index < count:
            rows = rows_of[index] if rows_of[index] <= most else 0
            if (
                index > first
                and rows
                and (used + rows > height or thin + before[index] - before[first] > reach)
            ):
                break
            used += rows
            area += cores[index] if rows else 0
            index += 1
        ends[first] = index if 4 * area >= 3 * thin * height else first  # with few free rows
        used -= rows_of[first]
        area -= cores[first]


@kernel
def _is_behind(least: np.ndarray, index: int, last: int, value: int) -> bool:
    """Return whether one of the places behind `index`, up to `last`, has at most `value`: more stages in no more space."""
    later = index + 1
    while later <= last and least[later] > value:
        later += 1
    return later <= last


@kernel
def _fill(
    start: int,
    cols: int,
    wide: np.ndarray,
    stacks: np.ndarray,
    before: np.ndarray,
    ends: np.ndarray,
    least: np.ndarray,
    trace: np.ndarray,
) -> int:
    """Return the first stage that does not fit into a shelf of `cols` columns that starts with `start`.

    `wide`, `before` (s, n + 1) and `ends` (s, n) are those of :func:`_stacks_of` for each kind of stack in `stacks`
    (s, 2). `least` (n + 1,) is NEVER in every place, before and after. `trace` (n + 1, 2) receives the stage
    before which no stack was open last, and the index of the stack that it begins, -1 for none.
    """
    count = wide.shape[0]
    least[start] = 0
    best, top = start, start
    for k in range(start, count):
        used = least[k]
        least[k] = NEVER
        if k > top:
            break
        if used >= cols or _is_behind(least, k, top, used):
            continue
        free = cols - used
        if wide[k] <= free and used + wide[k] < least[k + 1]:
            least[k + 1] = used + wide[k]
            trace[k + 1, 0], trace[k + 1, 1] = k, -1
            top, best = max(top, k + 1), max(best, k + 1)
        for w in range(stacks.shape[0]):
            end, left = ends[w, k], free - stacks[w, 0]
            if end == k or left < 0:
                continue
            if before[w, end] - before[w, k] > left:
                end = first_beyond(before[w], k, end, before[w, k] + left)
                if end > best:  # a shelf that ends inside this stack
                    best = end
                    trace[end, 0], trace[end, 1] = k, w
                continue
            taken = used + stacks[w, 0] + before[w, end] - before[w, k]
            if taken < least[end]:
                least[end] = taken
                trace[end, 0], trace[end, 1] = k, w
                top, best = max(top, end), max(best, end)
    for k in range(start, top + 1):
        least[k] = NEVER
    return best


@kernel
def best_stacked_shelves(
    kinds: np.ndarray,
    widths: np.ndarray,
    narrow: np.ndarray,
    stacks: np.ndarray,
    reach: int,
    heights: np.ndarray,
    start: int,
    direction: int,
    rows: int,
    cols: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return :func:`wse_sim.compiler.shelf_kernels.best_shelves` for stacks of several widths.

    `stacks` (s, 2) int64 are kinds of stacks: their columns W, and p, where stages with at most H / p rows are stacked.
    `narrow` (kinds, s) int64 are the least rows of stages in these columns. Shelves that leave too few rows for the cores
    that later stages take at least are not continued.
    """
    count, many, tall = kinds.shape[0], stacks.shape[0], heights.shape[0]
    cores = _least_cores(kinds, widths, narrow, stacks, heights)
    below, summed = np.zeros(count + 1, np.int64), 0  # rows that the stages from each stage on take at least
    for index in range(count - 1, -1, -1):
        summed += cores[index]
        below[index] = -(-summed // cols)
    wide, rows_of = np.empty((tall, count), np.int64), np.empty(count, np.int64)
    before, ends = np.empty((tall, many, count + 1), np.int32), np.empty((tall, many, count), np.int32)
    for j in range(tall):
        _next_to_stacks(
            kinds,
            widths,
            narrow,
            stacks,
            reach,
            heights[j],
            j,
            cols,
            cores,
            wide[j],
            rows_of,
            before[j],
            ends[j],
        )
    period = min(period_of(kinds), count - start)
    lengths = np.full((period, tall), -1, np.int32)
    fewest, last = np.full(count + 1, NEVER, np.int64), np.empty((count + 1, 2), np.int64)
    least = np.full((count + 1, 2), NEVER, np.int64)
    trace = np.zeros((count + 1, 2, 2), np.int64)
    least[start, direction] = 0
    lower = np.full(count + 1, NEVER, np.int64)  # of both directions
    lower[start] = 0
    for i in range(start, count):
        lowest = lower[i]
        if lowest + below[i] > rows or _is_behind(lower, i, count, lowest):
            continue
        n = (i - start) % period
        for j in range(tall):
            if lowest + heights[j] > rows:
                break
            if lengths[n, j] < 0:
                lengths[n, j] = _fill(i, cols, wide[j], stacks, before[j], ends[j], fewest, last) - i
            end = min(i + lengths[n, j], count)
            if end == i:
                continue
            for d in range(2):
                total = least[i, d] + heights[j]
                if total <= rows and total < least[end, 1 - d]:
                    least[end, 1 - d] = total
                    trace[end, 1 - d, 0] = i
                    trace[end, 1 - d, 1] = j
                    lower[end] = min(lower[end], total)
    return least, trace


@kernel
def _least_cores(
    kinds: np.ndarray, widths: np.ndarray, narrow: np.ndarray, stacks: np.ndarray, heights: np.ndarray
) -> np.ndarray:
    """Return the fewest cores (n,) that each stage takes in a stack or over a whole shelf."""
    least = np.full(widths.shape[0], NEVER, np.int64)
    for kind in range(widths.shape[0]):
        for w in range(stacks.shape[0]):
            least[kind] = min(least[kind], narrow[kind, w] * stacks[w, 0])
        for j in range(heights.shape[0]):
            least[kind] = min(least[kind], heights[j] * widths[kind, j])
    return least[kinds]


@kernel
def _next_to_stacks(
    kinds: np.ndarray,
    widths: np.ndarray,
    narrow: np.ndarray,
    stacks: np.ndarray,
    reach: int,
    height: int,
    column: int,
    cols: int,
    cores: np.ndarray,
    wide: np.ndarray,
    rows_of: np.ndarray,
    before: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Fill in `wide`, `before` and `ends` for all stages and kinds of stacks in a shelf of ``heights[column]``.

    A stage without a width within `cols` counts as one column wider.
    """
    for index in range(kinds.shape[0]):
        wide[index] = min(widths[kinds[index], column], cols + 1)
    for w in range(stacks.shape[0]):
        for index in range(kinds.shape[0]):
            rows_of[index] = narrow[kinds[index], w]
        _stacks_of(
            cores, rows_of, wide, height, height // stacks[w, 1], stacks[w, 0], reach, before[w], ends[w]
        )


@kernel
def fill_stacked_shelf(
    kinds: np.ndarray,
    widths: np.ndarray,
    narrow: np.ndarray,
    stacks: np.ndarray,
    reach: int,
    heights: np.ndarray,
    column: int,
    start: int,
    cols: int,
    boxes: np.ndarray,
) -> int:
    """Place the stages of a shelf of height ``heights[column]`` that starts with `start`; return the first stage behind it.

    `boxes` (stages, 4) receives the row in the shelf, the column in running direction, the rows and the columns of each
    stage.
    """
    count, many, height = kinds.shape[0], stacks.shape[0], heights[column]
    wide, rows_of = np.empty(count, np.int64), np.empty(count, np.int64)
    before, ends = np.empty((many, count + 1), np.int32), np.empty((many, count), np.int32)
    least, trace = np.full(count + 1, NEVER, np.int64), np.empty((count + 1, 2), np.int64)
    cores = _least_cores(kinds, widths, narrow, stacks, heights)
    _next_to_stacks(
        kinds, widths, narrow, stacks, reach, height, column, cols, cores, wide, rows_of, before, ends
    )
    last = _fill(start, cols, wide, stacks, before, ends, least, trace)
    begins = np.full(count + 1, -2, np.int64)  # the stack that a stage begins, -1 without one
    at = last
    while at > start:
        begins[trace[at, 0]] = trace[at, 1]
        at = trace[at, 0]
    col, stack_col, used, w = 0, 0, 0, -1
    for index in range(start, last):
        if begins[index] > -2:
            w, stack_col, used = begins[index], col, 0
            col += stacks[w, 0] if w >= 0 else 0
        rows = narrow[kinds[index], w] if w >= 0 else NEVER
        if rows <= height // stacks[w, 1]:
            boxes[index, 0], boxes[index, 1], boxes[index, 2], boxes[index, 3] = (
                used,
                stack_col,
                rows,
                stacks[w, 0],
            )
            used += rows
        else:
            boxes[index, 0], boxes[index, 1], boxes[index, 2], boxes[index, 3] = 0, col, height, wide[index]
            col += wide[index]
    return last
