"""Validation: every point of a suite predicted, with errors per point and per subject.

error = predicted / measured - 1; the mean absolute percentage error counts points with ``gate: true``
that were run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
        if self.prediction.predicted is None or self.point.measured is None:
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
        return {
            "points": [row.as_dict() for row in self.rows],
            "mape": {"total": None, **self.mape()},
            "units": {"error": "predicted / measured - 1", "mape": "%"},
        }

    def table(self) -> str:
        """Rows and means as text."""
        width = max([24, *(len(row.point.id) for row in self.rows)])
        lines = [f"{'point':<{width}} {'measured':>12} {'predicted':>12} {'error':>8}  binding"]
        for row in self.rows:
            error = "" if row.error is None else f"{row.error:+.1%}"
            measured = "" if row.point.measured is None else f"{row.point.measured:,.6g}"
            predicted = "not run" if row.prediction.predicted is None else f"{row.prediction.predicted:,.6g}"
            tail = row.prediction.binding if row.error is not None else row.prediction.reason
            gate = "" if row.point.gate else "  (not counted)"
            lines.append(f"{row.point.id:<{width}} {measured:>12} {predicted:>12} {error:>8}  {tail}{gate}")
        lines.append("")
        lines += [f"mean absolute error  {name:<24} {value:6.2f} %" for name, value in self.mape().items()]
        return "\n".join(lines)


def validate(
    suite: Suite, *, timing: str = "model", progress: Callable[[str], None] = lambda text: None
) -> Validation:
    """Predict every point of `suite`; a point that cannot be run is a row with the reason."""
    return Validation(tuple(_rows(suite.points, timing, progress)))


def _rows(points: Iterable[Point], timing: str, progress: Callable[[str], None]) -> Iterable[Row]:
    for point in points:
        progress(f"predict {point.id}")
        yield Row(point, predict(point, timing))
