"""Picture of a serving run: latencies of first tokens, tokens and answers, and running and waiting requests
over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wse_sim.picture_text import plain_text
from wse_sim.report.text import seconds
from wse_sim.serving.base import TICK_S
from wse_sim.serving.metrics import request_times
from wse_sim.serving.run import Serving

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 2000  # points of a line; more cannot be seen
TITLES = {"ttft": "first token", "tpot": "time per token", "e2el": "whole answer"}


@plain_text
def draw_serving(
    serving: Serving,
    path: str | Path | None = None,
    *,
    title: str = "",
    goals: Mapping[str, float] | None = None,
) -> Figure:
    """Draw four panels: distributions of three latencies with 50th and 99th percentiles and goals, and
    requests over time."""
    from wse_sim.report.picture import Picture

    figure = Picture(figsize=(9.6, 6.4), dpi=110, layout="constrained")
    panels = figure.subplots(2, 2).flat
    times = request_times(serving.load, serving.served)
    for axes, (name, words) in zip(panels, TITLES.items(), strict=False):
        values = times[name]
        _distribution(axes, np.sort(values[~np.isnan(values)]), words, (goals or {}).get(name))
    _over_time(figure.axes[3], serving)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    if path is not None:
        figure.savefig(path, metadata={"Software": None})
    return figure


def _distribution(axes: Axes, values: NDArray[np.floating], words: str, goal: float | None) -> None:
    if len(values):
        at = np.unique(np.linspace(0, len(values) - 1, MOST_POINTS).astype(int))
        axes.plot(values[at], (at + 1) / len(values), color="C0")
        for percent, style in ((50, ":"), (99, "--")):
            value = float(np.percentile(values, percent))
            axes.axvline(
                value, color="0.5", linestyle=style, linewidth=1, label=f"p{percent}: {seconds(value / 1e3)}"
            )
        if values[0] > 0 and values[-1] > 20 * values[0]:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if goal is not None:
        axes.axvline(goal, color="C3", linewidth=1, label=f"goal: {seconds(goal / 1e3)}")
    axes.set_xlabel(f"{words} (ms)", fontsize=9)
    axes.set_ylabel("fraction of requests", fontsize=9)
    axes.set_ylim(0, 1.02)
    axes.tick_params(labelsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="lower right", frameon=False)


def _over_time(axes: Axes, serving: Serving) -> None:
    served = serving.served
    done = served.completed
    columns = [
        column[done] * TICK_S for column in (served.arrival_ticks, served.admitted_ticks, served.last_ticks)
    ]
    end = max((float(column.max()) for column in columns if len(column)), default=1.0)
    at = np.linspace(0, end, 400)
    arrived, admitted, ended = (np.searchsorted(np.sort(column), at, side="right") for column in columns)
    axes.plot(at, admitted - ended, color="C0", linewidth=1, label="running")
    axes.plot(at, arrived - admitted, color="C1", linewidth=1, label="waiting")
    axes.set_xlabel("time (s)", fontsize=9)
    axes.set_ylabel("requests", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, loc="upper right", frameon=False)
