"""Computes the leave-one-out error of the training points: ``python -m benchmarks.leave_one_out [--data FILE]``.

Four fitted numbers of the wafer take part: the launch floor t_k, the cost e of a transcendental element,
the part 1 - eta that the efficiency of pipelines lacks to one, the gap s between triggered multiply-accumulates.  For each point:

1. every number is refitted without that point: least sum of squared logarithmic errors of the others;
2. the point is simulated with the refitted numbers and its error noted.

The refit searches tables: each number is varied alone on both sides of its configured value and every
point simulated; the logarithm of a rate is taken as the sum of what the numbers change one by one.  The
error printed is that of a real run, not of the table.

The worker rate of the host has one point behind it.  Without that point nothing is left to fit it to, so
the point is listed but not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import measurements
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.modes import resting
from wse_sim.validation.predict import Prediction, predict
from wse_sim.validation.suite import Point, load_suite

# Factors on the configured value, of the efficiency on what it lacks to one; s is configured as 0, so it is varied by cycles.
FACTORS = (0.8, 0.9, 1.0, 1.1, 1.25)
FITTED: Mapping[str, Sequence[float]] = {
    "launch_floor_s": FACTORS,
    "special_element_cycles": FACTORS,
    "pipeline_efficiency": FACTORS,
    "triggered_start_cycles": (0.0, 0.25, 0.5, 1.0),
}
ADDED = "triggered_start_cycles"
LACKING = "pipeline_efficiency"
STEPS = 25  # of the search along each number
SUITE = Path(__file__).parent / "validation" / "suite.yaml"


def changed(wafer: Wafer, numbers: Mapping[str, float]) -> Wafer:
    """Return the wafer with its fitted numbers scaled (s: increased; eta: what it lacks to one scaled)."""
    values = {name: _changed(name, getattr(wafer, name), number) for name, number in numbers.items()}
    return wafer.derive(**values)


def _changed(name: str, value: float, number: float) -> float:
    if name == LACKING:
        return 1 - (1 - value) * number
    return value + number if name == ADDED else value * number


def run(point: Point, numbers: Mapping[str, float]) -> Prediction:
    """Simulate a point with other numbers."""
    return predict(point, change=lambda wafer: changed(wafer, numbers))


def neutral() -> dict[str, float]:
    """Return the numbers that change nothing."""
    return {name: 0.0 if name == ADDED else 1.0 for name in FITTED}


def tables(points: Sequence[Point]) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return (log rate, log ratio by number): arrays (points,) and (points, values)."""
    base = np.zeros(len(points))
    change = {name: np.zeros((len(points), len(values))) for name, values in FITTED.items()}
    for i, point in enumerate(points):
        base[i] = math.log(run(point, {}).predicted or math.nan)
        for name, values in FITTED.items():
            if name == "launch_floor_s" and str(point.params.get("mode")) == resting().name:
                continue  # a pipeline launches nothing
            for j, value in enumerate(values):
                if value != neutral()[name]:
                    found = run(point, {name: value}).predicted
                    change[name][i, j] = math.log(found or math.nan) - base[i]
        print(f"table of {point.id}: {math.exp(base[i]):.6g}", file=sys.stderr)
    return base, change


def refit(
    keep: Sequence[int],
    log_error: NDArray[np.float64],
    change: Mapping[str, NDArray[np.float64]],
) -> dict[str, float]:
    """Return the numbers of least squared logarithmic error over the points `keep`."""
    names = list(FITTED)
    axes = [np.linspace(min(FITTED[n]), max(FITTED[n]), STEPS) for n in names]
    total = np.zeros((STEPS,) * len(names))
    for i in keep:
        error = np.full((1,) * len(names), log_error[i])
        for axis, name in enumerate(names):
            moved = np.interp(axes[axis], FITTED[name], change[name][i])
            shape = [1] * len(names)
            shape[axis] = STEPS
            error = error + moved.reshape(shape)
        total += error**2
    best = np.unravel_index(int(np.argmin(total)), total.shape)
    return {name: float(axes[axis][best[axis]]) for axis, name in enumerate(names)}


def counted_points(suite: Path = SUITE) -> list[Point]:
    """Return the training points that were measured and are counted."""
    return [p for p in load_suite(suite).points if p.subject == "model.training" and p.gate and p.measured]


def leave_one_out(suite: Path = SUITE) -> dict[str, Any]:
    """Leave every counted training point out once; return errors, refitted numbers, and their means."""
    training = counted_points(suite)
    bindings = {p.id: run(p, {}) for p in training}
    points = [p for p in training if bindings[p.id].binding != "input_workers" and bindings[p.id].predicted]
    base, change = tables(points)
    log_error = base - np.log([p.measured or math.nan for p in points])
    everything = list(range(len(points)))
    rows: list[dict[str, Any]] = []
    for i, point in enumerate(points):
        numbers = refit([j for j in everything if j != i], log_error, change)
        found = run(point, numbers)
        rows.append(
            {
                "id": point.id,
                "measured": point.measured,
                "error": math.expm1(log_error[i]),
                "error_left_out": (found.predicted or math.nan) / (point.measured or math.nan) - 1.0,
                "refit": numbers,
            }
        )
        print(f"{point.id}: {rows[-1]}", file=sys.stderr)
    counted = list(rows)
    for p in training:
        if p not in points:
            why = bindings[p.id].reason or "its own point fits the worker rate"
            rows.append({"id": p.id, "measured": p.measured, "not_counted": why})
    return {
        "points": rows,
        "fitted_to_all": refit(everything, log_error, change),
        "mean_absolute_error": float(np.mean([abs(row["error"]) for row in counted])),
        "mean_absolute_error_left_out": float(np.mean([abs(row["error_left_out"]) for row in counted])),
        "numbers": "factors on the configured value; pipeline_efficiency: on what it lacks to 1; triggered_start_cycles: cycles added",
    }


def main() -> None:
    """Print the errors as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=SUITE)
    parser.add_argument(
        "--keep", action="store_true", help="put the refit to all points into docs/measured.json"
    )
    options = parser.parse_args()
    found = leave_one_out(options.data)
    print(json.dumps(found, indent=2))
    if options.keep:
        refit_wafer = changed(load_wafer("wse2"), found["fitted_to_all"])
        values = {name: float(getattr(refit_wafer, name)) for name in FITTED}
        measurements.keep("fitted", values, "refit to all counted training points")


if __name__ == "__main__":
    main()
