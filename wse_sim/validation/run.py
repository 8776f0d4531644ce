"""Validation: predicts every point of a suite, with errors per point and per subject.

error = predicted / measured - 1; the mean absolute percentage error counts points with ``gate: true``
that were run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from wse_sim.uncertainty.interval import Interval
from wse_sim.uncertainty.processes import in_processes
from wse_sim.validation.intervals import point_interval
from wse_sim.validation.predict import Prediction, predict
from wse_sim.validation.suite import Point, Suite
from wse_sim.whole.over_plain import FamilyProof, mean_of

SPLIT = {"fitted": "constants fitted to them", "predicted": "predicted"}
SHOWN = 0.0005  # of the time: shorter families are in the file alone


@dataclass(frozen=True)
class Row:
    """A point with its prediction."""

    point: Point
    prediction: Prediction
    interval: Interval | None = None

    @property
    def is_inside(self) -> bool | None:
        """Whether the interval contains the measurement; None if either is missing."""
        if self.interval is None or self.point.measured is None:
            return None
        return self.interval.holds(self.point.measured)

    @property
    def error(self) -> float | None:
        """Relative error, or None without a prediction or a measurement."""
        if self.prediction.predicted is None or self.point.measured is None:
            return None
        return self.prediction.predicted / self.point.measured - 1.0

    def as_dict(self) -> dict[str, object]:
        """Return the row as JSON data."""
        return {
            "id": self.point.id,
            "subject": self.point.subject,
            "system": self.point.system,
            "measured": self.point.measured,
            "predicted": self.prediction.predicted,
            "unit": self.point.unit,
            "error": self.error,
            "gate": self.point.gate,
            "fitted": self.point.fitted,
            "binding": self.prediction.binding,
            "reason": self.prediction.reason,
            "low": None if self.interval is None else self.interval.low,
            "high": None if self.interval is None else self.interval.high,
            "inside": self.is_inside,
            "source": self.point.source,
            "evidence": self.point.evidence,
        }


@dataclass(frozen=True)
class Validation:
    """All rows of a suite."""

    rows: tuple[Row, ...]

    def mape(self) -> dict[str, float]:
        """Return the mean absolute percentage error per subject (and of ``kernel``), and in ``total``."""
        groups: dict[str, list[float]] = {}
        for row in self.rows:
            if row.point.gate and row.error is not None:
                kind = row.point.subject.partition(".")[0]
                for name in {row.point.subject, kind, "total"}:
                    groups.setdefault(name, []).append(abs(row.error) * 100)
        return {name: sum(values) / len(values) for name, values in sorted(groups.items())}

    def split(self) -> dict[str, tuple[float, int]]:
        """Return mean absolute percentage error and number of counted points: those that constants were fitted to, and
        the others.
        """
        groups: dict[str, list[float]] = {"fitted": [], "predicted": []}
        for row in self.rows:
            if row.point.gate and row.error is not None:
                groups["fitted" if row.point.fitted else "predicted"].append(100 * abs(row.error))
        return {name: (sum(errors) / len(errors), len(errors)) for name, errors in groups.items() if errors}

    def coverage(self) -> dict[str, tuple[int, int, float]]:
        """Return, per subject: points inside their interval, points, median half-width."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.interval is not None and row.is_inside is not None:
                groups.setdefault(row.point.subject, []).append(row)
        return {
            subject: (
                sum(bool(row.is_inside) for row in rows),
                len(rows),
                median(row.interval.half_width for row in rows if row.interval is not None),
            )
            for subject, rows in sorted(groups.items())
        }

    def order(self) -> tuple[int, int]:
        """Return the pairs of points that state the same run on both generations: how many are predicted in the
        measured order, and how many there are.
        """
        runs: dict[str, dict[str, Row]] = {}
        for row in self.rows:
            if row.point.gate and row.error is not None:
                stated = {"subject": row.point.subject, "quantity": row.point.quantity, **row.point.params}
                runs.setdefault(json.dumps(stated, sort_keys=True), {})[row.point.system] = row
        right = count = 0
        for pair in runs.values():
            if {"wse2", "wse3"} <= pair.keys():
                measured, predicted = (
                    [value(pair[system]) for system in ("wse2", "wse3")] for value in (_measured, _predicted)
                )
                count += 1
                right += (measured[0] < measured[1]) == (predicted[0] < predicted[1])
        return right, count

    def composed(self) -> dict[str, tuple[FamilyProof, ...]]:
        """Return, per mode and family, the mean over the models that were run: the fraction of the time whose prices
        were composed on the fabric.
        """
        plans: dict[str, list[tuple[FamilyProof, ...]]] = {}
        for row in self.rows:
            if row.prediction.families:
                plans.setdefault(row.prediction.mode, []).append(row.prediction.families)
        return {mode: mean_of(found) for mode, found in sorted(plans.items())}

    def as_dict(self) -> dict[str, object]:
        """Return everything as JSON data."""
        return {
            "composed": {mode: [asdict(row) for row in rows] for mode, rows in self.composed().items()},
            "order": dict(zip(("right", "pairs"), self.order(), strict=True)),
            "coverage": {
                subject: {"inside": inside, "points": count, "median_half_width": width}
                for subject, (inside, count, width) in self.coverage().items()
            },
            "points": [row.as_dict() for row in self.rows],
            "mape": {"total": None, **self.mape()},
            "split": {name: {"mape": mean, "points": count} for name, (mean, count) in self.split().items()},
            "units": {"error": "predicted / measured - 1", "mape": "%"},
        }

    def table(self) -> str:
        """Return rows and means as text."""
        width = max([24, *(len(row.point.id) for row in self.rows)])
        units = max([4, *(len(row.point.unit) for row in self.rows)])
        lines = [
            f"{'point':<{width}} {'measured':>12} {'predicted':>12} {'unit':<{units}} {'error':>8}  binding"
        ]
        for row in self.rows:
            error = "" if row.error is None else f"{100 * row.error:+.1f} %"
            measured = "" if row.point.measured is None else f"{row.point.measured:,.6g}"
            predicted = "not run" if row.prediction.predicted is None else f"{row.prediction.predicted:,.6g}"
            tail = row.prediction.binding if row.error is not None else row.prediction.reason
            gate = "" if row.point.gate else "  (not counted)"
            bounds = ""
            if row.interval is not None:
                place = "inside" if row.is_inside else "OUTSIDE"
                bounds = f"  {row.interval.low:,.6g} to {row.interval.high:,.6g} {place}"
            lines.append(
                f"{row.point.id:<{width}} {measured:>12} {predicted:>12} {row.point.unit:<{units}} {error:>8}{bounds}  {tail}{gate}"
            )
        lines.append("")
        for subject, (inside, count, half) in self.coverage().items():
            lines.append(
                f"coverage  {subject:<24} {inside} of {count} inside, median half-width {100 * half:.1f} %"
            )
        counts: dict[str, int] = {}
        for row in self.rows:
            if row.point.gate and row.error is not None:
                for name in {row.point.subject, row.point.subject.partition(".")[0], "total"}:
                    counts[name] = counts.get(name, 0) + 1
        lines += [
            f"mean absolute error  {name:<24} {value:6.2f} %  {_points(counts.get(name, 0))}"
            for name, value in self.mape().items()
        ]
        lines += [
            f"mean absolute error  {SPLIT[name]:<24} {mean:6.2f} %  {_points(count)}"
            for name, (mean, count) in self.split().items()
        ]
        errors = [abs(row.error) for row in self.rows if row.point.gate and row.error is not None]
        if errors:
            near = sum(error <= 0.2 for error in errors)
            lines.append(f"median error {100 * median(errors):.1f} %, {near} of {len(errors)} within 20 %")
        if {"wse2", "wse3"} <= {row.point.system for row in self.rows}:
            right, count = self.order()
            lines.append(
                f"order of WSE-2 and WSE-3: {right} of {count} pairs right"
                if count
                else "order of WSE-2 and WSE-3: no run of this suite is measured on both"
            )
        for mode, rows in self.composed().items():
            whole = sum(row.composed_fraction for row in rows)
            lines += [
                "",
                f"{100 * whole:.0f} % of the time of {mode.replace('-', ' ')} rests on prices composed on the fabric:",
            ]
            lines += [
                f"  {row.family:<14} {row.fraction:6.1%} of the time, {row.composed_fraction:6.1%} composed, {_laid(row)}"
                for row in rows
                if row.fraction >= SHOWN
            ]
        return "\n".join(lines)


def _points(count: int) -> str:
    return f"{count:>4} point{'s' * (count != 1)}"


def _laid(row: FamilyProof) -> str:
    if row.laid_over_plain is None:
        return "no program is composed"
    return f"laid over plain {row.laid_over_plain:.2f}"


def _measured(row: Row) -> float:
    return float(row.point.measured or 0.0)


def _predicted(row: Row) -> float:
    return float(row.prediction.predicted or 0.0)


def validate(
    suite: Suite,
    *,
    timing: str = "model",
    progress: Callable[[str], None] = lambda text: None,
    percent: float | None = None,
    workers: int = 1,
    sources: Path | None = None,
) -> Validation:
    """Predict every point of `suite`, on `workers` processes; a point that cannot be run is a row with the reason.

    `sources` is the folder of published programs in CSL.  With `percent` every prediction has an interval that holds the true value with that probability.
    """
    points = suite.points

    def row(number: int) -> Row:
        point = points[number]
        found, interval = predict(point, timing, sources=sources), None
        if percent is not None and found.predicted is not None:
            interval = point_interval(point, found.predicted, percent)
        return Row(point, found, interval)

    rows = []
    progress(f"predict {points[0].id if points else 'nothing'}")
    for number, found in enumerate(in_processes(row, len(points), workers), start=1):
        rows.append(found)
        if number < len(points):
            progress(f"predict {points[number].id}")
    return Validation(tuple(rows))
