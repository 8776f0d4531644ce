"""Refits the fitted constants: values, 90 % ranges and correlations from the covariance of the fit.

    python -m benchmarks.fits [--only FIT]

Symbols: p points, x constants, y(x) what is predicted, m what was measured, s spread of a subject (root mean square of
its errors)::

    least       sum_p (ln(y_p(x) / m_p) / s_p)^2 + sum_k (ln(x_k / x0_k) / WEAK)^2
    covariance  (J' J)^-1 max(1, least / (p - k))

The second sum keeps a constant that the points do not tie where it is; WEAK is so wide that others do not feel it.  A fit
whose group is left out is the same without the points of the group (`python -m benchmarks.coverage`).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.hardware import load_cluster
from wse_sim.uncertainty.draws import DrawnMachine
from wse_sim.validation.intervals import point_figure
from wse_sim.validation.predict import wafer_of
from wse_sim.validation.refit import Figure, solve
from wse_sim.validation.suite import Point, load_suite

WEAK = 0.25


@dataclass(frozen=True)
class Fit:
    """Constants of wafers that were fitted together, and the spread of the errors of each subject they were fitted to."""

    name: str
    constants: tuple[str, ...]
    spread: Mapping[str, float]
    system: str = ""  # "": of all systems

    def takes(self, point: Point) -> bool:
        """Return whether the constants were fitted to this point: of whole models to those that are counted."""
        return self.prices(point) and (point.gate or not point.subject.startswith("model."))

    def prices(self, point: Point) -> bool:
        """Return whether a point is of the kind that the constants were fitted to."""
        known = point.subject in self.spread and (not self.system or point.system == self.system)
        return known and bool(point.measured)


FITS = (
    Fit(
        "grids of a CS-3",
        ("vector_start_cycles", "loop_cycles", "map_element_cycles", "map_vector_cycles", "step_cycles", "die_crossing_cycles"),
        {"kernel.gemv": 0.006, "kernel.gemm": 0.015, "kernel.shift": 0.03},
        "wse3",
    ),
    Fit(
        "grids of a CS-2",
        ("map_element_cycles", "loop_cycles", "step_cycles", "exp_cycles", "tree_root_streams", "tree_handovers"),
        {"model.prefill": 0.002, "model.decode": 0.006},
        "wse2",
    ),
    Fit(
        "stencil of a CS-2",
        ("stencil_neighbour_wait_cycles", "stencil_first_block_wait_cycles"),
        {"kernel.stencil25": 0.005},
        "wse2",
    ),
    Fit(
        "training",
        ("launch_floor_s", "special_element_cycles", "pipeline_efficiency"),
        {"model.training": 0.04},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Factors on the stated constants, and the covariance of their logarithms."""

    factors: NDArray[np.float64]
    covariance: NDArray[np.float64]


def changed(machine: DrawnMachine, constants: Sequence[str], factors: Sequence[float]) -> DrawnMachine:
    """Return the machine with constants of its wafer multiplied."""
    pairs = zip(constants, factors, strict=True)
    values = {name: getattr(machine.wafer, name) * factor for name, factor in pairs}
    return DrawnMachine(machine.wafer.model_copy(update=values), machine.cluster)


def fitted(fit: Fit, points: Sequence[Point], figures: Mapping[str, Figure]) -> Outcome:
    """Fit the constants to `points`; `figures` predict a point, by its id, on a machine."""
    machines = [DrawnMachine(wafer_of(point), load_cluster()) for point in points]
    spread = np.array([fit.spread[point.subject] for point in points])

    def errors(logs: NDArray[np.float64]) -> list[float]:
        factors = np.exp(logs)
        return [
            math.log(
                figures[point.id](changed(machine, fit.constants, factors)) / (point.measured or math.nan)
            )
            for point, machine in zip(points, machines, strict=True)
        ]

    found = solve(errors, len(fit.constants), spread=spread, hold=1.0 / WEAK)
    scatter = 2 * found.cost / max(1, len(points) - len(fit.constants))
    return Outcome(np.exp(found.x), found.covariance * max(1.0, scatter))


def statement(fit: Fit, points: Sequence[Point], outcome: Outcome) -> dict[str, object]:
    """Values, ranges and correlations as a wafer's file states them."""
    wafer = wafer_of(points[0])
    sigma = np.sqrt(np.diag(outcome.covariance))
    correlation = outcome.covariance / np.outer(sigma, sigma)
    rows = {}
    for k, name in enumerate(fit.constants):
        value = getattr(wafer, name) * outcome.factors[k]
        ends = value * np.exp(np.array([-1, 1]) * 1.645 * sigma[k])
        rows[name] = {
            "stated": getattr(wafer, name),
            "fitted": float(value),
            "range": [float(end) for end in ends],
        }
    pairs = {
        f"{a} {b}": round(float(correlation[i, j]), 2)
        for i, a in enumerate(fit.constants)
        for j, b in enumerate(fit.constants)
        if i < j and abs(correlation[i, j]) > 0.2
    }
    return {"points": len(points), "constants": rows, "correlations": pairs}


def answer(fits: Sequence[Fit] = FITS) -> dict[str, object]:
    """Return all fits."""
    found: dict[str, object] = {}
    for fit in fits:
        points = [point for point in load_suite().points if fit.takes(point)]
        figures = {point.id: point_figure(point) for point in points}
        found[fit.name] = statement(fit, points, fitted(fit, points, figures))
    return found


def main() -> None:
    """Print the fits as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=[fit.name for fit in FITS], help="one fit")
    chosen = parser.parse_args().only
    print(json.dumps(answer([fit for fit in FITS if chosen in (None, fit.name)]), indent=2))


if __name__ == "__main__":
    main()
