"""Placement of the pipeline's stages by any placer.

All placers return rectangles for all stages of all replicas. The objective is one of:

    throughput     the slowest stage as fast as possible, then short streams
    delta-t+wire   slowest time (cycles) + sum over streams of |dx| + |dy| (cores): the contest's cost
    latency        the sum of the stages' times as small as possible (decoding, single samples)

A placer of rectangles works on the Pareto set of (cols, rows) of every stage.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from wse_sim.compiler.compute_columns import ComputeColumns
from wse_sim.compiler.objectives import DELTA_T_WIRE, LATENCY, OBJECTIVES, SHELVES, THROUGHPUT
from wse_sim.compiler.pins import pinned_size
from wse_sim.compiler.placement.curves import time_first
from wse_sim.compiler.placement.problem import Block, Front, Placement, PlacementProblem, Progress
from wse_sim.compiler.placers import StagePlacer, placer_named, rectangle_placer
from wse_sim.compiler.pricing import geometric
from wse_sim.compiler.shelves import Box, compute_cores, region_widths
from wse_sim.compiler.sizing import Group, Shapes, Sizer
from wse_sim.errors import ConfigError, PlacementError
from wse_sim.hardware import Wafer

DEFAULT_LIMIT_S = 20.0


class StageShapes:
    """The shapes of a stage for placers of rectangles: regions (cols, rows) that keep a pace within SRAM.

    Times are divided by `target`, the stage's fraction of the level; 1 gives all stages the same time.
    """

    def __init__(self, sizer: Sizer, group: Group, target: float = 1.0) -> None:
        wafer = sizer.wafer
        pin = pinned_size(group.forward)
        self._rows = geometric(wafer.program_rows, 1.03) if pin is None else np.array([pin[0]])
        self._cols = region_widths(wafer, 1.03) if pin is None else np.array([pin[1]])
        inner = sizer.columns.of(self._cols)
        prices = sizer.shape_prices(group, Shapes.grid(self._rows, inner))
        cores = np.outer(self._rows, self._cols)
        memory = prices.memory.reshape(cores.shape) + sizer.held_bytes(group) / cores
        time = sizer.times(prices).reshape(cores.shape) / target
        self._time = np.where(memory <= wafer.sram_usable_bytes, time, np.inf)  # (rows, cols)
        self._key: Hashable = (sizer.kind(group), target)

    def key(self) -> Hashable:
        """Return a key that is equal for stages with equal kernels, activations and targets."""
        return self._key

    def front(self, level: float) -> Front:
        """Return the Pareto set of regions whose time is at most `level`: the least columns for each number
        of rows.
        """
        keeps = self._time <= level
        first = keeps.argmax(axis=1)  # least columns that keep the level, per number of rows
        held = np.flatnonzero(keeps[np.arange(len(first)), first])
        rows, cols, time = self._rows[held], self._cols[first[held]], self._time[held, first[held]]
        if rows.size:
            before = np.concatenate(([np.iinfo(np.int64).max], np.minimum.accumulate(cols)[:-1]))
            best = cols < before
            rows, cols, time = rows[best], cols[best], time[best]
        return Front(cols, rows, time)


def placement_problem(sizer: Sizer, targets: np.ndarray | None = None) -> PlacementProblem:
    """Return the stages of all replicas as a placement problem.

    The problem does not rotate blocks, because the shapes of a stage include both orientations. `targets`
    (groups,) are cycles whose proportions the stages' times keep; without them all stages get equal times.
    """
    wafer = sizer.wafer
    known: dict[Hashable, StageShapes] = {}
    blocks = []
    for position, group in enumerate(sizer.copies):
        target = 1.0 if targets is None else float(targets[position % len(sizer.groups)])
        key = (sizer.kind(group), target)
        if key not in known:
            known[key] = StageShapes(sizer, group, target)
        blocks.append(Block(f"{group.name}@{position // len(sizer.groups)}", known[key]))
    return PlacementProblem(
        width=wafer.program_cols,
        height=wafer.program_rows,
        blocks=tuple(blocks),
        edges=tuple((a, b, 1.0) for a, b in sizer.copy_edges),
        rotate=False,
        blocked=_blocked(wafer),
    )


def _blocked(wafer: Wafer) -> tuple[tuple[int, int, int, int], ...]:
    """Return the dead rows and cores within the program rectangle as rectangles (x, y, width, height)."""
    rows, cols = wafer.program_rows, wafer.program_cols
    dead_rows = [(0, r, cols, 1) for r in sorted(set(wafer.dead_rows)) if r < rows]
    dead = [(c, r, 1, 1) for r, c in wafer.dead_cores if r < rows and c < cols]
    return (*dead_rows, *dead)


def boxes_of(placement: Placement, columns: ComputeColumns) -> list[Box]:
    """Return a placement as boxes of stages."""
    return [
        Box(int(y), int(x), int(h), int(w), int(h), int(columns.of(int(w))))
        for x, y, w, h in zip(placement.x, placement.y, placement.width, placement.height, strict=True)
    ]


def place_stages(
    sizer: Sizer,
    placer: str = SHELVES,
    *,
    objective: str = THROUGHPUT,
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> tuple[float, list[Box]] | None:
    """Return the slowest time (cycles per sample) and the boxes of all stages of all replicas; None if they
    do not fit.

    Parameters
    ----------
    placer
        A name of :func:`wse_sim.compiler.placers.placer_names`, or ``package.module:NAME``.
    objective
        One of :data:`wse_sim.compiler.objectives.OBJECTIVES`.
    seed, time_limit_s
        Seed and time limit in seconds of placers that search; equal seeds and limits give equal boxes.
    progress
        Function that placers that search call with the name of a phase and the cost of a better placement.

    Raises
    ------
    ConfigError
        If the placer or the objective is unknown.
    """
    return next(
        placements(
            sizer, placer, objective=objective, seed=seed, time_limit_s=time_limit_s, progress=progress
        ),
        None,
    )


def placements(
    sizer: Sizer,
    placer: str = SHELVES,
    *,
    objective: str = THROUGHPUT,
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[float, list[Box]]]:
    """Yield placements as those of :func:`place_stages`, the best first, then others that are easier to
    route.

    Only placers of stages yield more than one: the others have small stages in shorter stacks, closer to the
    stages that they exchange data with. For the objective "latency" they also yield one for each of several
    numbers of cores, not sorted.

    Raises
    ------
    ConfigError
        If the placer or the objective is unknown.
    """
    if objective not in OBJECTIVES:
        raise ConfigError(f"there is no objective {objective!r}; use one of {', '.join(OBJECTIVES)}")
    chosen = placer_named(placer)
    if isinstance(chosen, StagePlacer):
        yield from chosen.placements(sizer, objective)
        return
    library = rectangle_placer(placer)
    targets = None
    if objective == LATENCY:
        targets = sizer.latency_targets(compute_cores(sizer))
        if targets is None:
            return
    problem = placement_problem(sizer, targets)
    if objective != DELTA_T_WIRE:
        problem = time_first(problem)
    limit = next(s for s in (time_limit_s, library.limit_s, DEFAULT_LIMIT_S) if s is not None)
    try:
        placement = library.place(problem, seed=seed, time_limit_s=limit, progress=progress)
    except PlacementError:
        return
    boxes = boxes_of(placement, sizer.columns)
    scale = 1.0 if targets is None else float(targets.max())
    yield placement.max_time * scale, boxes
