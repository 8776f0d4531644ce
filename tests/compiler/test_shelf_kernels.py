"""The compiled search for shelves against one that follows every stage of every shelf."""

from __future__ import annotations

import numpy as np
import pytest

from tests.generated import seeds
from wse_sim.compiler.shelf_kernels import NEVER, best_shelves, free_columns, shelf_end

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
