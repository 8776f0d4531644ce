"""Last phase of the portfolio: local windows of the best placement, solved in parallel."""

from __future__ import annotations

import time

import numpy as np

from wse_sim.compiler.placement import windows
from wse_sim.compiler.placement.portfolio_processes import WindowTask
from wse_sim.compiler.placement.search import TreeSearch

WINDOW_SIZES = (5, 6, 7)  # blocks; the cost of a window grows about threefold with each block
WINDOW_BATCH = 4  # windows per batch, whatever the number of processes
WINDOW_SECONDS = 4.0  # limit for one window, by the solver's deterministic clock


def polish(search: TreeSearch, rng: np.random.Generator) -> None:
    """Improve the best placement by local windows, larger ones once none of a size helps."""
    problem, clock = search.problem, search.clock
    edges = windows.Edges.of(problem)
    ends = np.unique(np.concatenate([edges.source, edges.destination]))
    left_s = clock.window_s
    for size in WINDOW_SIZES:
        waiting: list[int] = []
        failed = 0
        while failed < len(ends):
            if left_s <= 0:
                return
            if time.monotonic() > clock.end:
                search.stopped = True
                return
            if len(waiting) < WINDOW_BATCH:
                waiting = rng.permutation(ends).tolist()
            batch, waiting = _window_batch(search, edges, waiting, size, rng, min(WINDOW_SECONDS, left_s))
            outcomes = search.crew.run(batch, search.note)
            left_s -= sum(outcome.work for outcome in outcomes)
            found = [
                (list(t.free), o.rects) for t, o in zip(batch, outcomes, strict=True) if o.rects is not None
            ]
            failed = 0 if found else failed + len(batch)
            if found:
                search.keep(windows.merge(problem, np.array(batch[0].rects), found))
        if size >= len(problem.blocks):
            return


def _window_batch(
    search: TreeSearch,
    edges: windows.Edges,
    waiting: list[int],
    size: int,
    rng: np.random.Generator,
    seconds: float,
) -> tuple[list[WindowTask], list[int]]:
    """Return windows without common blocks around the first of `waiting`, and the blocks that still wait."""
    rects = search.rects
    if rects is None:
        return [], waiting
    flat = tuple(map(tuple, rects.tolist()))
    batch: list[WindowTask] = []
    taken: set[int] = set()
    later = []
    for block in waiting:
        free = () if len(batch) == WINDOW_BATCH else windows.choose_window(rects, edges, block, size, rng)
        if not free or taken.intersection(free):
            later.append(block)
            continue
        taken.update(free)
        batch.append(WindowTask(flat, search.level, tuple(free), seconds, search.clock.end))
    return batch, later
