"""Ways of placing the pipeline's stages: the quick shelves, or a placer of the library.

All ways answer the same question: rectangles for all stages, so that the slowest is as fast as possible,
then with short streams.  A placer of the library works on the Pareto sets of (cols, rows) of every stage.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from wse_sim.compiler.placers.problem import Block, Front, Placement, PlacementProblem, Progress
from wse_sim.compiler.pricing import geometric
from wse_sim.compiler.shelves import Box, compute_cols, place_shelves
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.errors import PlacementError
from wse_sim.hardware import Wafer

SHELVES = "shelves"


class StageShapes:
    """The shapes of a stage for the placers: regions (cols, rows) that keep a pace within SRAM."""

    def __init__(self, sizer: Sizer, group: Group) -> None:
        wafer = sizer.wafer
        rows, cols = (
            a.ravel()
            for a in np.meshgrid(
                geometric(wafer.program_rows, 1.03), geometric(wafer.program_cols, 1.03), indexing="ij"
            )
        )
        inner = compute_cols(cols, wafer.transmission_core_share)
        forward, backward = sizer.stage_cost(group, rows, inner)
        print_ = sizer.prices.footprint(group.forward, rows, inner, "stationary")
        memory = np.asarray(print_.total_bytes, float) + sizer.activation_bytes(group) / (rows * cols)
        fits = np.broadcast_to(memory <= wafer.sram_usable_bytes, rows.shape)
        time = np.broadcast_to(np.asarray(forward.total + backward.total, float), rows.shape)
        self._rows, self._cols, self._time = rows[fits], cols[fits], time[fits]
        self._key: Hashable = (tuple(k.signature for k in group.kernels), sizer.activation_bytes(group))

    def key(self) -> Hashable:
        """Equal for stages of equal kernels and activations."""
        return self._key

    def front(self, level: float) -> Front:
        """Least columns within each number of rows, for times up to `level`."""
        keep = self._time <= level
        rows, cols, time = self._rows[keep], self._cols[keep], self._time[keep]
        order = np.lexsort((time, cols, rows))
        rows, cols, time = rows[order], cols[order], time[order]
        if rows.size:
            before = np.concatenate(([np.iinfo(np.int64).max], np.minimum.accumulate(cols)[:-1]))
            best = cols < before
            rows, cols, time = rows[best], cols[best], time[best]
        return Front(cols, rows, time)


def placement_problem(sizer: Sizer) -> PlacementProblem:
    """The stages as a problem of the placer library; stages are not turned, both ways are in their shapes."""
    wafer = sizer.wafer
    known: dict[Hashable, StageShapes] = {}
    blocks = []
    for group in sizer.groups:
        key = (tuple(k.signature for k in group.kernels), sizer.activation_bytes(group))
        if key not in known:
            known[key] = StageShapes(sizer, group)
        blocks.append(Block(group.name, known[key]))
    index = {group.name: i for i, group in enumerate(sizer.groups)}
    edges = tuple((index[a], index[b], 1.0) for a, b in sizer.edges)
    return PlacementProblem(
        width=wafer.program_cols,
        height=wafer.program_rows,
        blocks=tuple(blocks),
        edges=edges,
        rotate=False,
        blocked=_blocked(wafer),
    )


def _blocked(wafer: Wafer) -> tuple[tuple[int, int, int, int], ...]:
    """Dead rows and cores as rectangles (x, y, width, height); y counts from the south edge."""
    rows, cols = wafer.program_rows, wafer.program_cols
    dead_rows = [(0, rows - 1 - r, cols, 1) for r in sorted(set(wafer.dead_rows)) if r < rows]
    dead = [(c, rows - 1 - r, 1, 1) for r, c in wafer.dead_cores if r < rows and c < cols]
    return (*dead_rows, *dead)


def boxes_of(placement: Placement, wafer: Wafer) -> list[Box]:
    """Boxes with (0, 0) in the north-west."""
    share = wafer.transmission_core_share
    return [
        Box(int(wafer.program_rows - y - h), int(x), int(h), int(w), int(h), int(compute_cols(int(w), share)))
        for x, y, w, h in zip(placement.x, placement.y, placement.width, placement.height, strict=True)
    ]


def place_stages(
    sizer: Sizer,
    placer: str = SHELVES,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> tuple[float, list[Box]] | None:
    """Pace and boxes of all stages, or None if they do not fit.

    `placer` is "shelves", or an effort of the library ("fast", "normal", "best").

    Raises
    ------
    ConfigError
        If the placer is unknown.
    """
    if placer == SHELVES:
        return place_shelves(sizer)
    from wse_sim.compiler.placers.rectangles import place_rectangles

    try:
        placement = place_rectangles(
            placement_problem(sizer), effort=placer, seed=seed, time_limit_s=time_limit_s, progress=progress
        )
    except PlacementError:
        return None
    return placement.max_time, boxes_of(placement, sizer.wafer)
