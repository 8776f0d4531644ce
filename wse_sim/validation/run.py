"""Validation: every point of a suite predicted, with errors per point and per subject.

error = predicted / measured - 1; the mean absolute percentage error counts points with ``gate: true``
that were run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wse_sim.validation.predict import Prediction, predict
from wse_sim.validation.suite import Point, Suite


@dataclass(frozen=True)
class Row:
    """A point with its prediction."""

    point: Point
    prediction: Prediction

    @property
    def error(self) -> float | None:
        """Relative error, or None where nothing was predicted."""
        if self.prediction.predicted is None:
            return None
        return self.prediction.predicted / self.point.measured - 1.0

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON data."""
        return {
            "id": self.point.id,
            "subject": self.point.subject,
            "system": self.point.system,
            "measured": self.point.measured,
            "predicted": self.prediction.predicted,
            "unit": self.point.unit,
            "error": self.error,
            "gate": self.point.gate,
            "binding": self.prediction.binding,
            "reason": self.prediction.reason,
            "source": self.point.source,
        }


@dataclass(frozen=True)
class Validation:
    """All rows of a suite."""

    rows: tuple[Row, ...]

    def mape(self) -> dict[str, float]:
        """Mean absolute percentage error per subject (and of ``kernel``), and in ``total``."""
        groups: dict[str, list[float]] = {}
        for row in self.rows:
            if row.point.gate and row.error is not None:
                kind = row.point.subject.partition(".")[0]
                for name in {row.point.subject, kind, "total"}:
                    groups.setdefault(name, []).append(abs(row.error) * 100)
        return {name: sum(values) / len(values) for name, values in sorted(groups.items())}

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON data."""
        return {"points": [row.as_dict() for row in self.rows], "mape": self.mape()}

    def table(self) -> str:
        """Rows and means as text of 100 columns at most."""
        lines = [f"{'point':<28} {'measured':>12} {'predicted':>12} {'error':>8}  binding"]
        for row in self.rows:
            error = "" if row.error is None else f"{row.error:+.1%}"
            predicted = "not run" if row.prediction.predicted is None else f"{row.prediction.predicted:,.6g}"
            tail = row.prediction.binding if row.error is not None else row.prediction.reason
            gate = "" if row.point.gate else "  (not counted)"
            lines.append(
                f"{row.point.id:<28} {row.point.measured:>12,.6g} {predicted:>12} {error:>8}  {tail}{gate}"
            )
        lines.append("")
        lines += [f"mean absolute error  {name:<24} {value:6.2f} %" for name, value in self.mape().items()]
        return "\n".join(lines)


def validate(
    suite: Suite, *, timing: str = "model", progress: Callable[[str], None] = lambda text: None
) -> Validation:
    """Predict every point of `suite`."""
    return Validation(tuple(_rows(suite.points, timing, progress)))


def _rows(points: Iterable[Point], timing: str, progress: Callable[[str], None]) -> Iterable[Row]:
    for point in points:
        progress(f"predict {point.id}")
        yield Row(point, predict(point, timing))


def draw(validation: Validation, path: Path) -> None:
    """Predicted against measured, each divided by its own scale is not needed: log-log with 10 % bands."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.5), width_ratios=(1, 1.1), layout="constrained")
    drawn = [row for row in validation.rows if row.prediction.predicted is not None]
    subjects = sorted({row.point.subject for row in drawn})
    colors = plt.get_cmap("tab10")
    for index, subject in enumerate(subjects):
        rows = [row for row in drawn if row.point.subject == subject]
        left.loglog(
            [row.point.measured for row in rows],
            [row.prediction.predicted for row in rows],
            "o",
            color=colors(index % 10),
            label=subject,
            markersize=5,
        )
    if drawn:
        values = [row.point.measured for row in drawn]
        line = np.array([min(values) / 2, max(values) * 2])
        left.plot(line, line, color="black", linewidth=1)
        left.fill_between(line, line * 0.9, line * 1.1, color="gray", alpha=0.25, label="10 %")
    left.set_xlabel("measured (unit of the point)")
    left.set_ylabel("predicted (unit of the point)")
    left.legend(fontsize=7)
    labels = [row.point.id for row in drawn]
    errors = [100 * (row.error or 0.0) for row in drawn]
    bar_colors = [colors(subjects.index(row.point.subject) % 10) for row in drawn]
    right.barh(range(len(drawn)), errors, color=bar_colors)
    right.set_yticks(range(len(drawn)), labels, fontsize=6)
    right.invert_yaxis()
    right.axvline(0, color="black", linewidth=1)
    for edge in (-10, 10):
        right.axvline(edge, color="gray", linewidth=1, linestyle="--")
    right.set_xlabel("error (%), dashed at 10 %")
    figure.savefig(path, dpi=130)
    plt.close(figure)
