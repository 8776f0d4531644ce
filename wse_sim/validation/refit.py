"""Refits fitted constants to given points, within their ranges.

Symbols: p points with predictions y and measurements m; z normal scores of the constants, 0 where they are stated and
+-1.645 at the ends of their ranges (:mod:`wse_sim.uncertainty.draws`)::

    least    sum_p ln(y_p(z) / m_p)^2 + (HOLD z_k)^2         |z_k| <= 1.645

The second sum keeps a constant where it is unless it explains errors; at an end of its range it weighs as much as an error
of 1.645 HOLD of one point.  Two sorts of constants are left alone: those whose range moves no point by LEAST, and those that
the points do not distinguish from others.  For these J is the change of ln(y) a score, from one end of a range to the
other, and s the scatter of the points around the best straight line, at least NOISE::

    d_k = s sqrt(((J' J + HOLD^2)^-1)_kk)        the score of constant k is known within d_k

While some d_k is above 1, which is what is known of a constant without any point, the constant with the largest is dropped.
The plan of a point stays as it is.  Points of a CSL program take no part: their constants are prices of
instructions, which are no fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from wse_sim.files import Values
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.hardware.constants import Evidence
from wse_sim.uncertainty.draws import Z95, DrawnMachine, Ranged, changed, ranged
from wse_sim.validation.intervals import point_figure
from wse_sim.validation.predict import wafer_of
from wse_sim.validation.suite import Point

FITTED = (
    "launch_floor_s", "special_element_cycles", "pipeline_efficiency", "triggered_start_cycles",
    "vector_start_cycles", "loop_cycles", "map_element_cycles", "map_vector_cycles", "step_cycles", "exp_cycles",
    "die_crossing_cycles", "memoryx_bytes_per_s", "worker_samples_per_s",
    "stencil_neighbour_wait_cycles", "stencil_first_block_wait_cycles",
)  # fmt: skip
"""Constants that were fitted to published points (docs/fits.md), without integers, which have no small moves."""
TIED = {"memoryx_bytes_per_s": "swarmx_bytes_per_s"}
"""Constants of one line: the second has the value of the first."""
HOLD = 0.001
LEAST = 0.002
NOISE = 0.005  # between two runs of one setting
MOVED = 1e-4  # of a range: less is no move
STEP = 0.05  # in scores, of finite differences
NEAR_END = 0.999
MOST_LEFT_OUT = 24  # points for which each is left out once
LOST = 5.0  # error in logarithms of a point that no longer fits

Figure = Callable[[DrawnMachine], float]
Errors = Callable[[NDArray[np.float64]], Sequence[float]]


@dataclass(frozen=True)
class Optimum:
    """The position of the least sum of squares, and the covariance of its numbers, in units of the residuals."""

    x: NDArray[np.float64]
    covariance: NDArray[np.float64]
    cost: float


def solve(
    errors: Errors,
    count: int,
    *,
    spread: float | NDArray[np.float64],
    hold: float,
    bound: float = math.inf,
    step: float = 0.0,
) -> Optimum:
    """Return the `count` numbers x with the least ``sum (errors(x) / spread)^2 + sum (hold x)^2``, each within
    +-`bound`.

    `step` is that of finite differences; 0: of a thousandth of x.
    """

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([np.array(errors(x)) / spread, hold * x])

    def slopes(x: NDArray[np.float64]) -> NDArray[np.float64]:
        here, columns = residuals(x), []
        for k in range(count):
            other = x.copy()
            other[k] += step if x[k] + step <= bound else -step
            columns.append((residuals(other) - here) / (other[k] - x[k]))
        return np.stack(columns, axis=1)

    how: Values = {"jac": slopes, "bounds": (-bound, bound)} if step else {"diff_step": 1e-3}
    found = least_squares(residuals, np.zeros(count), **how)
    return Optimum(found.x, np.linalg.inv(found.jac.T @ found.jac), float(found.cost))


@dataclass(frozen=True)
class Move:
    """The fitted value of one constant; `reach` is the effect of its range on the most sensitive point."""

    constant: Ranged
    value: float
    score: float
    reach: float

    @property
    def is_at_end(self) -> bool:
        """Whether it stopped at an end of its range."""
        return abs(self.score) >= NEAR_END * Z95

    @property
    def is_moved(self) -> bool:
        """Whether the fitted value differs from the stated one."""
        low, high = self.constant.stated.range or (0.0, 0.0)
        return abs(self.value - float(self.constant.stated.value)) > MOVED * (high - low)  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        stated = self.constant.stated
        return {
            "name": self.constant.name, "of": self.constant.owner, "stated": stated.value, "refitted": self.value, "unit": stated.unit,
            "range": stated.range, "at_end": self.is_at_end, "reach": self.reach,
        }  # fmt: skip


@dataclass(frozen=True)
class RefitRow:
    """Relative errors of a point: with the stated constants, the refitted ones, and those refitted without it."""

    id: str
    before: float
    after: float
    left_out: float | None


@dataclass(frozen=True)
class Refit:
    """The refit of one wafer with one cluster."""

    system: str
    cluster: str
    moves: tuple[Move, ...]
    alone: tuple[str, ...]
    confused: tuple[str, ...]
    rows: tuple[RefitRow, ...]
    evidence: str
    sources: tuple[str, ...]

    @property
    def is_short(self) -> bool:
        """Whether there are fewer points than constants that move them."""
        return len(self.rows) < self.count

    @property
    def count(self) -> int:
        """Constants that move the points; those that are tied count once."""
        return len([m for m in self.moves if m.constant.name not in TIED.values()]) + len(self.confused)

    def rms(self, kind: str) -> float | None:
        """Root mean square of the relative errors `before`, `after` or `left_out`."""
        errors = [e for row in self.rows if (e := getattr(row, kind)) is not None]
        return math.sqrt(sum(e * e for e in errors) / len(errors)) if errors else None

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {
            "system": self.system,
            "cluster": self.cluster,
            "constants": [move.as_dict() for move in self.moves],
            "left_alone": list(self.alone),
            "not_told_apart": list(self.confused),
            "fewer_points_than_constants": self.is_short,
            "points": [dict(row.__dict__) for row in self.rows],
            "rms_error": {kind: self.rms(kind) for kind in ("before", "after", "left_out")},
        }

    def table(self) -> str:
        """Return the refit as a text table."""
        lines = [f"refit of {self.system} with cluster {self.cluster} to {len(self.rows)} points:"]
        if not self.moves:
            lines.append("these points determine no constant: nothing moves")
        else:
            lines.append(f"{'constant':<30} {'stated':>11} {'refitted':>11} {'change':>8}  range")
        for move in self.moves:
            stated = move.constant.stated
            value, (low, high) = float(stated.value), stated.range or (0.0, 0.0)  # type: ignore[arg-type]
            change = f"{100 * (move.value / value - 1.0):+.1f} %" if value else f"{move.value - value:+.3g}"
            end = "  AT ITS END" if move.is_at_end else ""
            lines.append(
                f"{move.constant.name:<30} {value:>11.5g} {move.value:>11.5g} {change:>8}  {low:.5g} to {high:.5g} {stated.unit}{end}"
            )
        if self.confused:
            lines.append(
                f"not distinguished from others by these points, unchanged: {', '.join(self.confused)}"
            )
        if self.alone:
            lines.append(f"not determined by these points, unchanged: {', '.join(self.alone)}")
        if self.is_short:
            lines.append(
                f"fewer points ({len(self.rows)}) than constants that move them ({self.count}): add runs that differ"
            )
        lines += ["", f"{'point':<32} {'before':>8} {'after':>8} {'left out':>9}"]
        for row in self.rows:
            left = "" if row.left_out is None else f"{100 * row.left_out:+.1f} %"
            lines.append(f"{row.id:<32} {row.before:>+8.1%} {row.after:>+8.1%} {left:>9}")
        rms = {kind: self.rms(kind) for kind in ("before", "after", "left_out")}
        shown = ", ".join(
            f"{kind.replace('_', ' ')} {100 * value:.1f} %"
            for kind, value in rms.items()
            if value is not None
        )
        lines.append(f"rms error: {shown}")
        left_out, before = rms["left_out"], rms["before"]
        if left_out is not None and before is not None and left_out > before:
            lines.append(
                "left-out points are predicted worse than with the stated constants: the change does not carry over to other runs"
            )
        return "\n".join(lines)


def refit(points: Sequence[Point], say: Callable[[str], None] = lambda text: None) -> tuple[Refit, ...]:
    """Refit the constants of each wafer and cluster to its points that are measured and counted.

    Raises
    ------
    WseError
        If a point cannot be run.
    """
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if point.measured and point.gate and point.subject != "csl.program":
            groups.setdefault((point.system, str(point.params.get("cluster", "default"))), []).append(point)
    return tuple(_refit(system, cluster, mine, say) for (system, cluster), mine in groups.items())


class _Problem:
    """The points of one machine, and their errors at scores of the constants."""

    def __init__(self, system: str, cluster: str, points: Sequence[Point]) -> None:
        self.points = points
        wafer, around = load_wafer(system), load_cluster(cluster)
        known = {c.name: c for c in ranged(wafer, around)}
        self.constants = [c for c in known.values() if c.name in FITTED]
        self.tied = {name: known[other] for name, other in TIED.items() if name in known and other in known}
        self.machines = [DrawnMachine(wafer_of(point), around) for point in points]
        self.figures: list[Figure] = [point_figure(point) for point in points]

    def error(self, number: int, constants: Sequence[Ranged], scores: Sequence[float]) -> float:
        """Return ln(predicted / measured) of a point."""
        at = self.machines[number]
        values = [
            (c.owner, name, value_at(c, score))
            for c, score in zip(constants, scores, strict=True)
            for name in (c.name, TIED.get(c.name))
            if name is not None
        ]
        predicted = self.figures[number](changed(at.wafer, at.cluster, values))
        return math.log(predicted / (self.points[number].measured or math.nan)) if predicted > 0 else LOST

    def slopes(self, constant: Ranged) -> NDArray[np.float64]:
        """Return (points,) change of ln(predicted) a score, from one end of the range to the other."""
        ends = [[self.error(i, [constant], [z]) for z in (-Z95, Z95)] for i in range(len(self.points))]
        return np.array([(high - low) / (2 * Z95) for low, high in ends])

    def best(self, constants: Sequence[Ranged], numbers: Sequence[int]) -> list[float]:
        """Return the scores that fit the given points best."""
        if not constants:
            return []

        def errors(scores: NDArray[np.float64]) -> list[float]:
            return [self.error(i, constants, scores.tolist()) for i in numbers]

        found = solve(errors, len(constants), spread=1.0, hold=HOLD, bound=Z95, step=STEP)
        return [float(score) for score in found.x]


def told_apart(slopes: Mapping[str, NDArray[np.float64]], errors: NDArray[np.float64]) -> list[str]:
    """Return the constants whose scores the points tell, each together with the others; `slopes`: (points,) by name,
    `errors`: (points,).
    """
    names = list(slopes)
    while names:
        matrix = np.stack([slopes[name] for name in names], axis=1)
        inverse = np.linalg.inv(matrix.T @ matrix + HOLD**2 * np.eye(len(names)))
        rest = errors - matrix @ (inverse @ (matrix.T @ errors))
        scatter = max(NOISE, math.sqrt(float(rest @ rest) / max(1, len(errors) - len(names))))
        known = scatter * np.sqrt(np.diag(inverse))
        if known.max() <= 1.0:
            break
        names.pop(int(known.argmax()))
    return names


def value_at(constant: Ranged, score: float) -> float:
    """Return the value of a constant at a score, not rounded."""
    low, high = constant.stated.range or (0.0, 0.0)
    value = float(constant.stated.value)  # type: ignore[arg-type]
    fraction, end = min(abs(score) / Z95, 1.0), high if score > 0 else low
    return value * (end / value) ** fraction if min(value, end) > 0 else value + (end - value) * fraction


def _refit(system: str, cluster: str, points: Sequence[Point], say: Callable[[str], None]) -> Refit:
    say(f"refit {system}: how far each constant moves the points")
    problem = _Problem(system, cluster, points)
    slopes = {constant.name: problem.slopes(constant) for constant in problem.constants}
    reaches = {name: float(2 * Z95 * np.abs(slope).max()) for name, slope in slopes.items()}
    errors = np.array([problem.error(i, [], []) for i in range(len(points))])
    sensitive = {name: slope for name, slope in slopes.items() if reaches[name] >= LEAST}
    told = told_apart(sensitive, errors)
    constants = [c for c in problem.constants if c.name in told]
    everything = range(len(points))
    say(f"refit {system}: {len(constants)} constants to {len(points)} points")
    scores = problem.best(constants, everything)
    rows = []
    for i, point in enumerate(points):
        left_out = None
        if 3 <= len(points) <= MOST_LEFT_OUT and constants:
            say(f"refit {system} without {point.id}")
            others = problem.best(constants, [j for j in everything if j != i])
            left_out = math.expm1(problem.error(i, constants, others))
        after = problem.error(i, constants, scores)
        rows.append(RefitRow(point.id, math.expm1(errors[i]), math.expm1(after), left_out))
    moves = [
        Move(one, value_at(c, z), z, reaches[c.name])
        for c, z in zip(constants, scores, strict=True)
        for one in (c, problem.tied.get(c.name))
        if one is not None
    ]
    evidence = {str(point.evidence).partition(",")[0] for point in points}
    kind = evidence.pop() if len(evidence) == 1 else ""
    return Refit(
        system,
        cluster,
        tuple(sorted(moves, key=lambda move: -move.reach)),
        tuple(name for name in slopes if name not in sensitive),
        tuple(name for name in sensitive if name not in told),
        tuple(rows),
        kind if kind in get_args(Evidence) else "assumed",
        tuple(point.id for point in points),
    )


def write_refits(refits: Sequence[Refit], folder: Path, place: Path | None = None) -> list[Path]:
    """Write wafers and clusters with the constants that moved; shipped files remain unchanged.

    `place` is the final folder of the files, if that is not `folder`.
    """
    written = []
    for found in refits:
        for owner, base in (("wafer", found.system), ("cluster", found.cluster)):
            moves = [move for move in found.moves if move.constant.owner == owner and move.is_moved]
            if not moves:
                continue
            name = _name(owner, base, found.system)
            path = folder / f"{owner}-{name}.yaml"
            if ((place or folder) / path.name).resolve() == Path(
                base
            ).resolve():  # a refit of a refit, into the same folder
                name = f"{name}-again"
                path = folder / f"{owner}-{name}.yaml"
            path.write_text(_file(found, name, base, moves), encoding="utf-8")
            written.append(path)
    return written


def _name(owner: str, base: str, system: str) -> str:
    """Return the name of a refitted file: the base's name with "mine" added once; a cluster's name also includes the
    wafer.
    """
    short = Path(base).stem.removeprefix(f"{owner}-")
    if "-mine" in short:
        return short
    return f"{short}-mine" if owner == "wafer" else f"{short}-mine-{Path(system).stem}"


def _file(found: Refit, name: str, base: str, moves: Sequence[Move]) -> str:
    """Return the text of a wafer's or cluster's file with the fitted constants."""
    count = len(found.rows)
    constants: Mapping[str, dict[str, object]] = {
        move.constant.name: {
            "value": float(f"{move.value:.6g}"),
            "unit": move.constant.stated.unit,
            "range": [float(end) for end in move.constant.stated.range or ()],
            "because": move.constant.stated.because,
            "source": f"refitted to {count} runs ({', '.join(found.sources[:6])}{', ...' if count > 6 else ''}) by wse-sim validate --refit; "
            f"{float(move.constant.stated.value):g} before: {move.constant.stated.source}",  # type: ignore[arg-type]
            "evidence": found.evidence,
            "acts": move.constant.stated.acts,
        }
        for move in moves
    }
    near = base if not base.endswith((".yaml", ".yml")) else str(Path(base).resolve())
    before, after = (found.rms(kind) or 0.0 for kind in ("before", "after"))
    left = found.rms("left_out")
    said = f"rms error {100 * before:.1f} % before, {100 * after:.1f} % after" + (
        f", {100 * left:.1f} % left out" if left is not None else ""
    )
    head = f"# Written by wse-sim validate --refit from {count} runs: {said}.\n"
    return head + yaml.safe_dump(
        {"name": name, "base": near, "constants": constants}, sort_keys=False, width=140
    )
