"""The compiled search for shelves against one that follows every stage of every shelf."""

from __future__ import annotations

import numpy as np
import pytest

from tests.generated import seeds
from wse_sim.compiler.shelf_kernels import NEVER, best_shelves, free_columns, shelf_end
from wse_sim.compiler.shelf_stack_kernels import best_stacked_shelves, fill_stacked_shelf

NO_DEAD, NO_CORES, NO_BOXES = (np.zeros(shape, np.int64) for shape in ((0, 0), (0, 2), (0, 4)))
Arrays = tuple[np.ndarray, np.ndarray]


def followed(table: tuple[np.ndarray, ...], start: int, direction: int, rows: int, cols: int) -> Arrays:
    """Return :func:`best_shelves` without dead cores; every end is that of :func:`shelf_end`, stage by stage."""
    kinds, *_, heights = table
    least = np.full((len(kinds) + 1, 2), NEVER, np.int64)
    trace = np.zeros((len(kinds) + 1, 2, 2), np.int64)
    least[start, direction] = 0
    for i in range(start, len(kinds)):
        for j, height in enumerate(heights):
            free, _ = free_columns(NO_DEAD, 0, height, 0, cols, 0)
            end = shelf_end(*table, j, i, free, NO_CORES, NO_BOXES)
            for d in range(2):
                total = least[i, d] + height
                if end > i and total <= rows and total < least[end, 1 - d]:
                    least[end, 1 - d], trace[end, 1 - d] = total, (i, j)
    return least, trace


@pytest.mark.parametrize("seed", seeds(0, 40))
def test_random_stages(seed: int) -> None:
    """Replicas, stages that fit no shelf or no narrow column, short and endless reach, later starts: equal in all."""
    draw = np.random.default_rng(seed)
    kinds = np.tile(draw.integers(0, 6, draw.integers(1, 60)), draw.integers(1, 4))
    heights = np.unique(draw.integers(1, 60, draw.integers(1, 12)))
    thin, cols = int(draw.integers(1, 6)), int(draw.integers(5, 120))
    cores = draw.integers(1, 400, 6)
    widths = -(-cores[:, None] // heights) * draw.integers(1, 3, (6, len(heights)))
    widths[draw.random(widths.shape) < 0.05] = NEVER
    narrow = np.where(draw.random(6) < 0.1, NEVER, -(-cores // thin))
    reach = int(draw.choice([NEVER, 5, 12, 1, thin]))
    table = kinds, widths, narrow, np.array([thin, reach]), heights
    how = int(draw.integers(len(kinds))) // 3, int(draw.integers(2)), int(draw.choice([30, 80, 200, NEVER]))
    found = best_shelves(*table, *how, cols, 0, NO_DEAD, NO_CORES)
    for one, other in zip(found, followed(table, *how, cols), strict=True):
        np.testing.assert_array_equal(one, other)


def stacked(draw: np.random.Generator) -> tuple[tuple[np.ndarray, ...], int]:
    """Return random stages for stacks of several widths, as :func:`best_stacked_shelves` takes them, and columns."""
    kinds = draw.integers(0, 6, draw.integers(1, 50))
    heights = np.unique(draw.integers(1, 60, draw.integers(1, 12)))
    cols, cores = int(draw.integers(5, 120)), draw.integers(1, 400, 6)
    widths = -(-cores[:, None] // heights) * draw.integers(1, 3, (6, len(heights)))
    widths[draw.random(widths.shape) < 0.05] = NEVER
    thins = np.unique(draw.integers(1, 30, draw.integers(1, 5)))
    stacks = np.array([(thin, part) for thin in thins for part in (2, 1)])
    narrow = -(-cores[:, None] // stacks[:, 0]) * draw.integers(1, 3, (6, 1))
    narrow[draw.random(narrow.shape) < 0.1] = NEVER
    return (kinds, widths, narrow, stacks, NEVER, heights), cols


@pytest.mark.parametrize("seed", seeds(0, 40))
def test_more_widths_of_stacks_need_no_more_rows(seed: int) -> None:
    """Each width is one more choice, and no stack at all is one: with none, stages stand next to each other."""
    (kinds, widths, narrow, stacks, reach, heights), cols = stacked(np.random.default_rng(seed))
    no_stack = np.full(6, NEVER), np.array([1, NEVER])
    before, _ = best_shelves(kinds, widths, *no_stack, heights, 0, 0, 500, cols, 0, NO_DEAD, NO_CORES)
    before = before.min(axis=1)[-1]
    for many in range(1, len(stacks) + 1):
        table = kinds, widths, narrow[:, :many], stacks[:many], reach, heights
        least = best_stacked_shelves(*table, 0, 0, 500, cols)[0].min(axis=1)[-1]
        assert least <= before
        before = least


@pytest.mark.parametrize("seed", seeds(0, 40))
def test_shelves_with_stacks_are_legal(seed: int) -> None:
    """Stages are apart from each other, within their shelf, and have one of their sizes; shelves hold all stages in order."""
    table, cols = stacked(np.random.default_rng(seed))
    kinds, widths, narrow, stacks, _, heights = table
    least, trace = best_stacked_shelves(*table, 0, 0, 500, cols)
    at, way = len(kinds), int(np.argmin(least[-1]))
    if least[at, way] > 500:
        return
    rows = 0
    while at:
        (start, index), boxes = trace[at, way].tolist(), np.zeros((len(kinds), 4), np.int64)
        assert fill_stacked_shelf(*table, index, start, cols, boxes) == at
        used = np.zeros((heights[index], cols), np.int64)
        for kind, (row, col, high, wide) in zip(kinds[start:at], boxes[start:at].tolist(), strict=True):
            assert row + high <= heights[index]
            assert col + wide <= cols
            sizes = {(narrow[kind, k], stacks[k, 0]) for k in range(len(stacks))}
            assert (high, wide) in sizes | {(heights[index], widths[kind, index])}
            used[row : row + high, col : col + wide] += 1
        assert used.max() == 1
        rows, at, way = rows + heights[index], start, 1 - way
    assert rows == least[-1].min()
