"""The inner loops of the shelf placer: which stages fit into a shelf, and which shelves take the fewest rows.

Symbols are those of :mod:`wse_sim.compiler.shelves`. The running direction of a shelf is eastward (0) or
westward (1); columns count from the side at which it begins.
"""

# mypy: disable-error-code="assignment"
# numba infers these types; in the stubs of NumPy its integers are not int
from __future__ import annotations

import numpy as np

from wse_sim.jit import helper_kernel, kernel

NEVER = 1 << 40  # a size larger than any fabric
FAR_DOUBLINGS = 3
FAR = 1 << FAR_DOUBLINGS  # narrow columns that the search for the end of a shelf takes at once


@kernel
def free_columns(
    dead: np.ndarray, top: int, height: int, direction: int, cols: int, spare: int
) -> tuple[np.ndarray, int]:
    """Return the number of free columns from each column on, in running direction (limit + 1,), and the
    limit.

    The limit is the number of columns that the shelf may use: `cols`, plus a spare column for each blocked
    one while there are any. `dead` (rows + 1, columns of the fabric) counts the dead cores north of each row;
    it is empty if there are none.
    """
    limit = cols
    if dead.shape[0] > 0:
        blocked = 0
        for x in range(cols):
            if dead[top + height, x] > dead[top, x]:
                blocked += 1
        limit = cols + min(blocked, spare)
    free = np.zeros(limit + 1, np.int64)
    for at in range(limit - 1, -1, -1):
        x = at if direction == 0 else limit - 1 - at
        is_blocked = dead.shape[0] > 0 and dead[top + height, x] > dead[top, x]
        free[at] = 0 if is_blocked else free[at + 1] + 1
    return free, limit


@helper_kernel
def _next_fit(free: np.ndarray, at: int, need: int) -> int:
    """Return the first column from `at` on that begins `need` free ones, or a column beyond the last."""
    limit = free.shape[0] - 1
    while at < limit and free[at] < need:
        at += max(free[at], 1)
    return at


@kernel
def shelf_spots(cores: np.ndarray, top: int, height: int, direction: int, limit: int) -> np.ndarray:
    """Return the dead cores of a shelf (n, 2) as column in running direction and row in the shelf, sorted by
    column.

    `cores` (m, 2) are row in the band and column on the fabric, sorted by column.
    """
    out = np.empty(cores.shape, np.int64)
    n = 0
    for k in range(cores.shape[0]):
        i = k if direction == 0 else cores.shape[0] - 1 - k
        row, col = cores[i, 0] - top, cores[i, 1]
        at = col if direction == 0 else limit - 1 - col
        if 0 <= row < height and 0 <= at < limit:
            out[n, 0], out[n, 1] = at, row
            n += 1
    return out[:n]


@kernel
def _beside(
    widths: np.ndarray, heights: np.ndarray, spots: np.ndarray, height: int, at: int, limit: int
) -> tuple[int, int, int, int, int]:
    """Find a lower place for a stage, above or below the dead cores that block it in a shelf of `height`.

    `widths` (heights,) are the least columns of the stage. Returns the first column after the stage (NEVER if
    there is no such place), the index of its height and its first row, and then the first row and the number
    of rows of the second-largest gap.
    """
    edges = np.empty(spots.shape[0] + 2, np.int64)  # rows that end gaps
    edges[0], edges[1] = -1, height
    n = 2
    for k in range(spots.shape[0]):
        if spots[k, 0] < at:
            continue
        i = n
        while edges[i - 1] > spots[k, 1]:
            edges[i] = edges[i - 1]
            i -= 1
        edges[i] = spots[k, 1]
        n += 1
        gap, row, gap_2, row_2 = 0, 0, 0, 0
        for i in range(n - 1):
            rows = edges[i + 1] - edges[i] - 1
            if rows > gap:
                gap_2, row_2 = gap, row
                gap, row = rows, edges[i] + 1
            elif rows > gap_2:
                gap_2, row_2 = rows, edges[i] + 1
        index = np.searchsorted(heights, gap, side="right") - 1
        if index < 0:
            break
        end = at + widths[index]
        following = spots[k + 1, 0] if k + 1 < spots.shape[0] else limit
        if end <= following and end <= limit:
            return end, int(index), row, row_2, gap_2
    return NEVER, 0, 0, 0, 0


@kernel
def shelf_end(
    kinds: np.ndarray,
    widths: np.ndarray,
    narrow: np.ndarray,
    stacks: np.ndarray,
    heights: np.ndarray,
    column: int,
    start: int,
    free: np.ndarray,
    spots: np.ndarray,
    boxes: np.ndarray,
) -> int:
    """Return the first stage that does not fit into a shelf of height ``heights[column]`` that starts with
    `start`.

    `widths` (kinds, heights) int64 are the least columns, `narrow` (kinds,) int64 the least rows in a narrow
    column, and `stacks` (2,) int64 are the columns and the reach of narrow columns. `free` and `spots` are
    those of :func:`free_columns` and :func:`shelf_spots`. Unless `boxes` (stages, 4) is empty, it receives
    the row in the shelf, the column in running direction, the rows and the columns of each stage.

    A stage that is blocked by a dead core moves on to free columns or takes the rows on one side of that
    core, whichever ends first. The rows on the other side are a pocket for the next stages.
    """
    limit, height = free.shape[0] - 1, heights[column]
    thin, reach = stacks[0], stacks[1]
    col, used, small_col = 0, height + 1, 0
    pocket_row, pocket, pocket_col, pocket_end = 0, -1, 0, 0  # `pocket`: index of its height
    for index in range(start, kinds.shape[0]):
        if pocket >= 0 and pocket_col + widths[kinds[index], pocket] <= pocket_end:
            if boxes.shape[0] > 0:
                boxes[index, 0], boxes[index, 1] = pocket_row, pocket_col
                boxes[index, 2], boxes[index, 3] = heights[pocket], widths[kinds[index], pocket]
            pocket_col += widths[kinds[index], pocket]
            continue
        small = narrow[kinds[index]]
        if small <= height // 2:
            if used + small > height or col - small_col > reach:
                small_col = _next_fit(free, col, thin)
                if small_col + thin > limit:
                    return index
                col = small_col + thin
                used = 0
            if boxes.shape[0] > 0:
                boxes[index, 0], boxes[index, 1] = used, small_col
                boxes[index, 2], boxes[index, 3] = small, thin
            used += small
        else:
            wide = widths[kinds[index], column]
            at = _next_fit(free, col, wide)
            if at > col:
                end, lower, row, pocket_row_2, pocket_2 = _beside(
                    widths[kinds[index]], heights, spots, height, col, limit
                )
                if end <= limit and end < at + wide:
                    if boxes.shape[0] > 0:
                        boxes[index, 0], boxes[index, 1] = row, col
                        boxes[index, 2], boxes[index, 3] = heights[lower], end - col
                    pocket = np.searchsorted(heights, pocket_2, side="right") - 1
                    pocket_row, pocket_col, pocket_end = pocket_row_2, col, end
                    col = end
                    continue
            if at + wide > limit:
                return index
            if boxes.shape[0] > 0:
                boxes[index, 0], boxes[index, 1] = 0, at
                boxes[index, 2], boxes[index, 3] = height, wide
            col = at + wide
    return int(kinds.shape[0])


@helper_kernel
def _columns_of(
    small_rows: np.ndarray,
    wide: np.ndarray,
    height: int,
    thin: int,
    reach: int,
    before: np.ndarray,
    following: np.ndarray,
) -> None:
    """Fill in how far narrow columns reach in a shelf of `height` without dead cores.

    `small_rows` (n,) are the least rows of the stages in a narrow column, `wide` (n,) their least columns at the
    height. Stages with at most half the rows of the shelf are stacked in narrow columns. `before` [i] receives the
    columns of the stages before i that are not stacked. `following` (3, n + 1) receives the first stacked stage from
    stage i on, and the ones that begin the next narrow column and the column :data:`FAR` columns on if i begins one;
    n if there is none.
    """
    count, half = small_rows.shape[0], height // 2
    before[0] = 0
    for index in range(count):
        before[index + 1] = before[index] + (0 if small_rows[index] <= half else wide[index])
    following[:, count] = count
    for index in range(count - 1, -1, -1):
        following[0, index] = index if small_rows[index] <= half else following[0, index + 1]
    index, used = following[0, 0], 0  # rows of the stages from `first` to `index` - 1 in one column
    first = index
    while first < count:
        while index < count and (
            index == first
            or (used + small_rows[index] <= height and thin + before[index] - before[first] <= reach)
        ):
            used += small_rows[index]
            index = following[0, index + 1]
        following[1, first] = following[2, first] = index
        used -= small_rows[first]
        first = following[0, first + 1]
    for _ in range(FAR_DOUBLINGS):
        first = following[0, 0]
        while first < count:  # what follows a later stage is not doubled yet
            following[2, first] = following[2, following[2, first]]
            first = following[0, first + 1]


@helper_kernel
def first_beyond(before: np.ndarray, start: int, end: int, columns: int) -> int:
    """Return the first stage from `start` on, before `end`, with which the stages from `start` on take more than
    `columns`; `before` as in :func:`_columns_of`."""
    while start < end:
        middle = (start + end) // 2
        if before[middle + 1] > columns:
            end = middle
        else:
            start = middle + 1
    return start


@helper_kernel
def _whole_shelf_end(before: np.ndarray, following: np.ndarray, thin: int, start: int, cols: int) -> int:
    """Return :func:`shelf_end` for a shelf without dead cores, from the results of :func:`_columns_of`."""
    count = before.shape[0] - 1
    at, free = following[0, start], cols + before[start]  # `free`: what `before` may reach
    if before[at] > free:
        return first_beyond(before, start, at, free)
    while at < count:
        far = following[2, at]
        if far < count and before[far] <= free - FAR * thin:
            at, free = far, free - FAR * thin
            continue
        free -= thin
        if before[at] > free:
            return at
        end = following[1, at]
        if before[end] > free:
            return first_beyond(before, at, end, free)
        at = end
    return count


@helper_kernel
def period_of(kinds: np.ndarray) -> int:
    """Return the least number of stages after which the kinds of stages repeat, to the end."""
    count = kinds.shape[0]
    for period in range(1, count):
        index = 0
        while index + period < count and kinds[index] == kinds[index + period]:
            index += 1
        if index + period == count:
            return period
    return count


@kernel
def _shelf_lengths(
    kinds: np.ndarray,
    widths: np.ndarray,
    narrow: np.ndarray,
    stacks: np.ndarray,
    heights: np.ndarray,
    start: int,
    rows: int,
    cols: int,
) -> np.ndarray:
    """Return the number of stages in a shelf without dead cores, int32 (period, heights) by first stage and height.

    The first of the stages is `start`; those behind the first period are not needed. Shelves that cannot be within
    `rows`, because the stages before them take too many cores, are left out.
    """
    count, thin = kinds.shape[0], stacks[0]
    small_rows, wide = np.empty(count, np.int64), np.empty(count, np.int64)
    above = np.zeros(count + 1, np.int64)  # rows that the stages before a stage take at least
    cores = 0
    for index in range(count):
        small_rows[index] = narrow[kinds[index]]
        fewest = min(small_rows[index], NEVER) * thin
        for j in range(heights.shape[0]):
            fewest = min(fewest, heights[j] * widths[kinds[index], j])
        cores += min(fewest, NEVER) if index >= start else 0
        above[index + 1] = cores // cols
    period = min(period_of(kinds), count - start)
    lengths = np.zeros((period, heights.shape[0]), np.int32)
    before, following = np.empty(count + 1, np.int64), np.empty((3, count + 1), np.int64)
    for j in range(heights.shape[0]):
        for index in range(count):
            wide[index] = widths[kinds[index], j]
        _columns_of(small_rows, wide, heights[j], thin, stacks[1], before, following)
        for n in range(period):
            if above[start + n] + heights[j] > rows:
                break
            lengths[n, j] = _whole_shelf_end(before, following, thin, start + n, cols) - start - n
    return lengths


@kernel
def _best_whole_shelves(
    kinds: np.ndarray,
    widths: np.ndarray,
    narrow: np.ndarray,
    stacks: np.ndarray,
    heights: np.ndarray,
    start: int,
    direction: int,
    rows: int,
    cols: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return :func:`best_shelves` for a wafer without dead cores.

    There the stages in a shelf do not depend on its direction, and replicas repeat: a shelf that starts with a
    stage of a later replica ends as many stages further as that of the first replica.
    """
    count = kinds.shape[0]
    least = np.full((count + 1, 2), NEVER, np.int64)
    trace = np.zeros((count + 1, 2, 2), np.int64)
    least[start, direction] = 0
    lengths = _shelf_lengths(kinds, widths, narrow, stacks, heights, start, rows, cols)
    period = lengths.shape[0]
    for i in range(start, count):
        lowest = min(least[i, 0], least[i, 1])
        for j in range(heights.shape[0]):
            if lowest + heights[j] > rows:
                break
            end = min(i + lengths[(i - start) % period, j], count)
            if end == i:
                continue
            for d in range(2):
                total = least[i, d] + heights[j]
                if total <= rows and total < least[end, 1 - d]:
                    least[end, 1 - d] = total
                    trace[end, 1 - d, 0] = i
                    trace[end, 1 - d, 1] = j
    return least, trace


@kernel
def best_shelves(
    kinds: np.ndarray,
    widths: np.ndarray,
    narrow: np.ndarray,
    stacks: np.ndarray,
    heights: np.ndarray,
    start: int,
    direction: int,
    rows: int,
    cols: int,
    spare: int,
    dead: np.ndarray,
    cores: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the least rows with the stages from `start` to i - 1, (n + 1, 2) by i and direction of the next shelf.

    Also returns the last shelf of each of these solutions, (n + 1, 2, 2): its first stage and the index of
    its height.
    """
    if dead.shape[0] == 0:
        return _best_whole_shelves(kinds, widths, narrow, stacks, heights, start, direction, rows, cols)
    count = kinds.shape[0]
    least = np.full((count + 1, 2), NEVER, np.int64)
    trace = np.zeros((count + 1, 2, 2), np.int64)
    least[start, direction] = 0
    no_boxes = np.zeros((0, 4), np.int64)
    for i in range(start, count):
        for d in range(2):
            if least[i, d] > rows:
                continue
            for j in range(heights.shape[0]):
                total = least[i, d] + heights[j]
                if total > rows:
                    break
                free, limit = free_columns(dead, least[i, d], heights[j], d, cols, spare)
                spots = shelf_spots(cores, least[i, d], heights[j], d, limit)
                end = shelf_end(kinds, widths, narrow, stacks, heights, j, i, free, spots, no_boxes)
                if end > i and total < least[end, 1 - d]:
                    least[end, 1 - d] = total
                    trace[end, 1 - d, 0] = i
                    trace[end, 1 - d, 1] = j
    return least, trace
