"""Measures the coverage of intervals over the shipped suites, with each point left out together with its group.

    python -m benchmarks.coverage [--json] [--rows FILE] [--write]

1. every point is predicted, and priced again at draws of the constants (--rows keeps that work in a file);
   constants that were fitted are fitted again without the group of the point, which then is predicted with them
   (benchmarks/fits.py);
2. for a subject and a group, the own error is the least number with which nine tenths of the subject's points of
   other groups are in their intervals; the points of the group are judged with it;
3. what ships (--write: benchmarks/validation/own_error.yaml, and the table of docs/validation.md) is the largest own error over the groups left out.

A group is a model family for whole models.  For kernels it is the size that a prediction reaches out over: of the grid,
for shifts the distance, for products of matrices the tile of a core (a step takes the same time on every grid).  The archive of runs on grids is one source, so leaving it out whole would leave nothing.
Subjects with fewer than LEAST points are judged with all points of their kind in other groups; where fewer than LEAST
are left without the group, the larger of both counts.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import measurements
from benchmarks.fits import FITS, Figure, changed, fitted
from wse_sim.validation.suite import Point

LEAST = 8
FRACTION = 0.9
FILE = Path(__file__).parent / "validation" / "own_error.yaml"
FLOOR = 0.01  # no subject claims to be better than the spread between two runs

Row = Mapping[
    str, Any
]  # id, subject, group, error = ln(measured / predicted), low, high in logarithms, shipped = error with the constants that ship


def group_of(subject: str, params: Mapping[str, Any], system: str) -> str:
    """The group with which a point is left out."""
    model = params.get("model")
    if isinstance(model, Mapping):
        return f"{model.get('family')} {model.get('layers')} x {model.get('hidden')}"
    if "distance" in params:
        return f"{system} distance {params['distance']}"
    rows, cols = params.get("rows", params.get("cores", "")), params.get("cols", "")
    if subject == "kernel.gemm" and rows and cols:
        tile = (
            -(-int(params["m"]) // rows),
            -(-int(params["k"]) // max(rows, cols)),
            -(-int(params["n"]) // cols),
        )
        return f"{system} tile {' x '.join(map(str, tile))}"
    return f"{system} {rows}"


def rows(samples: int) -> list[dict[str, Any]]:
    """Return errors, with the group left out, and log quantiles of the draws for every point that runs."""
    import numpy as np

    from wse_sim.validation.intervals import point_figure, point_ratios
    from wse_sim.validation.predict import predict
    from wse_sim.validation.suite import load_suite

    out, points, figures = [], [], {}
    for point in load_suite().points:
        found = predict(point).predicted
        if not found or not point.measured:
            continue
        points.append(point)
        figures[point.id] = point_figure(point, found)
        ratios = point_ratios(point, samples, figures[point.id])
        low, high = np.quantile(np.log(ratios), (0.05, 0.95))
        out.append(
            {
                "id": point.id,
                "subject": point.subject,
                "group": group_of(point.subject, point.params, point.system),
                "error": math.log(point.measured / found),
                "shipped": math.log(point.measured / found),
                "low": float(min(low, 0.0)),
                "high": float(max(high, 0.0)),
            }
        )
        print(f"priced {point.id}", file=sys.stderr)
    moved = left_out(points, figures)
    return [
        row | {"error": moved.get((point.id, point.measured), row["error"])}
        for row, point in zip(out, points, strict=True)
    ]


def left_out(points: Sequence[Point], figures: Mapping[str, Figure]) -> dict[tuple[str, float | None], float]:
    """Return the errors of the points whose constants were fitted, with these fitted again without the group of the
    point.

    By name and measurement: two runs may have one name.
    """
    from wse_sim.hardware import load_cluster
    from wse_sim.uncertainty.draws import DrawnMachine
    from wse_sim.validation.predict import wafer_of

    errors = {}
    for fit in FITS:
        mine = {p.id: group_of(p.subject, p.params, p.system) for p in points if fit.prices(p)}
        for group in sorted(set(mine.values())):
            others = [p for p in points if p.id in mine and fit.takes(p) and mine[p.id] != group]
            factors = fitted(fit, others, figures).factors
            for point in points:
                if mine.get(point.id) == group:
                    machine = changed(DrawnMachine(wafer_of(point), load_cluster()), fit.constants, factors)
                    errors[point.id, point.measured] = math.log(
                        (point.measured or math.nan) / figures[point.id](machine)
                    )
            print(f"{fit.name} without {group}: {factors.round(3)}", file=sys.stderr)
    return errors


def needed(row: Row) -> float:
    """Return the least own error with which the measurement is inside."""
    edge = row["high"] if row["error"] > 0 else row["low"]
    return math.sqrt(max(0.0, row["error"] ** 2 - edge**2))


def own_error(points: Sequence[Row]) -> float:
    """Return the least own error with which nine tenths of the points, and the next one, may be expected inside.

    Of n points and one more that is like them, the k-th largest of n holds the new one with k / (n + 1).  Fewer than nine
    points have no such k: there the new error is one of a normal distribution whose spread s is known from n errors
    only, so t(n) s sqrt(1 + 1 / n) holds it (t: Student's 95 % quantile), and nothing is taken off for the constants.
    """
    if not points:
        return FLOOR
    count, place = len(points), math.ceil(FRACTION * (len(points) + 1))
    if place > count:
        from scipy.stats import t

        spread = math.sqrt(sum(row["error"] ** 2 for row in points) / count)
        return max(FLOOR, float(t.ppf((1 + FRACTION) / 2, count)) * spread * math.sqrt(1 + 1 / count))
    return max(FLOOR, sorted(needed(row) for row in points)[place - 1])


def judged_by(mine: Sequence[Row], kind: Sequence[Row], group: str) -> float:
    """Return the own error of a subject without a group; where fewer than LEAST points are left, at least that of its
    kind.
    """
    left = [row for row in mine if row["group"] != group]
    around = own_error([row for row in kind if row["group"] != group])
    if len(mine) < LEAST:
        return around
    return own_error(left) if len(left) >= LEAST else max(own_error(left), around)


def half_width(row: Row, own: float) -> float:
    """Half of the relative width."""
    up, down = math.exp(math.hypot(row["high"], own)), math.exp(-math.hypot(row["low"], own))
    return (up - down) / 2


def answer(points: Sequence[Row]) -> dict[str, Any]:
    """Return coverage per subject, and the own errors that ship."""
    subjects = sorted({row["subject"] for row in points})
    table: dict[str, Any] = {}
    ships: dict[str, float] = {}
    for subject in subjects:
        mine = [row for row in points if row["subject"] == subject]
        kind = [row for row in points if row["subject"].partition(".")[0] == subject.partition(".")[0]]
        inside, widths, owns = 0, [], []
        for row in mine:
            own = judged_by(mine, kind, row["group"])
            inside += needed(row) <= own
            widths.append(half_width(row, own))
            owns.append(own)
        table[subject] = {
            "points": len(mine),
            "inside": inside,
            "coverage": inside / len(mine),
            "median_half_width": median(widths),
        }
        ships[subject] = max(owns)
    for name in ("kernel", "model"):
        # A subject without points is known at best as well as the worst of its kind.
        known = [value for subject, value in ships.items() if subject.startswith(f"{name}.")]
        ships[name] = max([own_error([row for row in points if row["subject"].startswith(name)]), *known])
    return {"subjects": table, "half_width_90": ships}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=Path, help="read priced points from this file, or keep them there")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.rows is not None and options.rows.exists():
        points = json.loads(options.rows.read_text(encoding="utf-8"))
    else:
        points = rows(options.samples)
        if options.rows is not None:
            options.rows.write_text(json.dumps(points), encoding="utf-8")
    found = answer(points)
    if options.write:
        head = FILE.read_text(encoding="utf-8").partition("half_width_90:")[0]
        lines = [f"  {name}: {value:.3f}" for name, value in sorted(found["half_width_90"].items())]
        FILE.write_text("\n".join([f"{head}half_width_90:", *lines, ""]), encoding="utf-8")
        names = ("points", "inside", "median_half_width")
        table = {key: {name: row[name] for name in names} for key, row in found["subjects"].items()}
        measurements.keep("intervals", table, f"{options.samples} draws a point")
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for subject, row in found["subjects"].items():
        print(
            f"{subject:<24} {row['inside']} of {row['points']} inside ({row['coverage']:.0%}), "
            f"median half-width {row['median_half_width']:.1%}"
        )
    print("own error (90 %):", ", ".join(f"{k} {v:.1%}" for k, v in sorted(found["half_width_90"].items())))


if __name__ == "__main__":
    main()
