"""Last phase of the portfolio: local windows over the best placement, solved side by side."""

from __future__ import annotations

import time

import numpy as np

from wse_sim.compiler.placement import windows
from wse_sim.compiler.placement.crew import WindowTask
from wse_sim.compiler.placement.search import TreeSearch

WINDOW_SIZES = (5, 6, 7)  # blocks; the price of a window grows by about 3 with each
WINDOW_BATCH = 4  # windows solved side by side, whatever the number of processes
WINDOW_SECONDS = 4.0  # most for one window, by the solver's deterministic clock


def polish(search: TreeSearch, rng: np.random.Generator) -> None:
    """Local windows over the best placement, larger ones once none of a size helps."""
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
    """Windows without a block in common around the first of `waiting`, and those still waiting."""
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
