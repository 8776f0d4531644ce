"""Picture of placed plans: regions shaded by their order in the dataflow, streams as lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wse_sim.picture_text import plain_text

if TYPE_CHECKING:
    from wse_sim.modes.pipelined.plan import PipelinedPlan


@plain_text
def draw_plans(plans: Sequence[PipelinedPlan], titles: Sequence[str], path: str | Path) -> None:
    """Draw one panel per plan: regions shaded by their order in the dataflow, streams as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(4.6 * len(plans) + 0.9, 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, len(plans), squeeze=False, sharey=True)
    for axes, plan, title in zip(grid[0], plans, titles, strict=True):
        areas = [stage.region for stage in plan.stages]
        patches = PatchCollection(
            [Rectangle((a.col, a.row), a.cols, a.rows) for a in areas], edgecolor="black", linewidths=0.4
        )
        patches.set_array(np.linspace(0.0, 1.0, len(areas)))
        patches.set_cmap("viridis")
        patches.set_alpha(0.65)
        axes.add_collection(patches)
        lines = [[(col, row) for row, col in stream.route] for stream in (*plan.streams, *plan.host_streams)]
        axes.add_collection(LineCollection(lines, colors="crimson", linewidths=0.5, alpha=0.8))
        dead = [(col, row) for row, col in plan.wafer.dead_cores]
        if dead:
            axes.scatter(*zip(*dead, strict=True), s=4, color="black", marker="s")
        for row in plan.wafer.dead_rows:
            axes.axhline(row + 0.5, color="black", linewidth=0.8)
        axes.set_xlim(0, plan.wafer.cols)
        axes.set_ylim(plan.wafer.rows, 0)
        axes.set_aspect("equal")
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("column (cores)")
    grid[0][0].set_ylabel("row (cores)")
    bar = figure.colorbar(patches, ax=grid[0].tolist(), shrink=0.7, pad=0.01)
    bar.set_label("order in the dataflow (0 first, 1 last stage); red: streams", fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
