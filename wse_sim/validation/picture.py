"""Draws ``validation.png``: predicted against measured, and the error of every point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wse_sim.picture_text import plain_text
from wse_sim.validation.run import Row, Validation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = 0.10
ROW_INCHES, LEAST_INCHES = 0.19, 5.5


@plain_text
def draw(validation: Validation, path: Path) -> None:
    """Draw two panels: predicted against measured, log-log, with 10 % bands; and the error of every point."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = validation.rows
    height = max(LEAST_INCHES, 1.2 + ROW_INCHES * len(rows))
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, height), width_ratios=(1, 1.15), layout="constrained"
    )
    subjects = sorted({row.point.subject for row in rows})
    colors = {name: plt.get_cmap("tab20")(2 * i % 20 + i // 10) for i, name in enumerate(subjects)}
    _scatter(left, rows, colors)
    _errors(right, rows, colors)
    means = validation.mape()
    total = f"{means['total']:.2f} %" if "total" in means else "no point counted"
    figure.suptitle(f"Predicted against measured; mean absolute error {total}")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _scatter(axes: Axes, rows: Sequence[Row], colors: dict[str, Any]) -> None:
    drawn = [row for row in rows if row.error is not None and row.prediction.predicted]
    for subject, color in colors.items():
        mine = [row for row in drawn if row.point.subject == subject]
        if mine:
            axes.loglog(
                [row.point.measured for row in mine],
                [row.prediction.predicted for row in mine],
                "o",
                color=color,
                label=f"{subject} ({len(mine)})",
                markersize=6,
                markeredgecolor="black",
                markeredgewidth=0.4,
            )
    if drawn:
        values = [row.point.measured or 1.0 for row in drawn]
        line = np.array([min(values) / 2, max(values) * 2])
        axes.plot(line, line, color="black", linewidth=0.8, zorder=0)
        axes.fill_between(
            line, line * (1 - BAND), line * (1 + BAND), color="gray", alpha=0.3, label="10 %", zorder=0
        )
    axes.set_xlabel("measured, in the unit of the point")
    axes.set_ylabel("predicted, in the same unit")
    axes.grid(visible=True, which="major", alpha=0.25)
    if drawn:
        axes.legend(fontsize=9, loc="upper left")


def _errors(axes: Axes, rows: Sequence[Row], colors: dict[str, Any]) -> None:
    places = range(len(rows))
    errors = [100 * row.error if row.error is not None else 0.0 for row in rows]
    axes.barh(places, errors, color=[colors[row.point.subject] for row in rows], height=0.75)
    edge = max([1.25 * 100 * BAND, *(1.3 * abs(error) for error in errors)])
    for place, row, error in zip(places, rows, errors, strict=True):
        counted = "" if row.point.gate else ", not counted"
        text = "not run" if row.error is None else f"{error:+.1f}{counted}"
        gap = -0.01 * edge if error < 0 else 0.01 * edge
        axes.text(
            error + gap,
            place,
            text,
            fontsize=7,
            va="center",
            ha="right" if error < 0 else "left",
            color="gray" if row.error is None or not row.point.gate else "black",
        )
    axes.set_yticks(places, [row.point.id for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(-edge, edge)
    axes.axvline(0, color="black", linewidth=0.8)
    for side in (-100 * BAND, 100 * BAND):
        axes.axvline(side, color="gray", linewidth=0.8, linestyle="--")
    axes.set_xlabel("error (%), dashed lines at 10 %")
