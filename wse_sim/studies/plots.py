"""Pictures of a study: lines with intervals, a map of two parameters, all axes, the Pareto front, a tornado.

One file: a list of pictures, each one function.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import WseError
from wse_sim.studies.data import RowValues, Shown, better
from wse_sim.studies.evaluate import DONE
from wse_sim.studies.labels import label, short
from wse_sim.studies.pareto import front
from wse_sim.studies.pareto import shown as text_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

MOST_LINES = 8
MOST_CELLS = 60  # per side of a map
DPI = 130
SIZE = "parameters"  # the output that puts models in order
COLORS = ("#1d4ed8", "#d9622b", "#2a9d8f", "#7c3aed", "#b5a21a", "#be185d", "#0e7490", "#52525b")


@dataclass(frozen=True)
class Axes:
    """Axes of a picture; "" leaves the choice to the study."""

    x: str = ""
    y: str = ""
    by: str = ""
    objectives: str = ""


def draw_all(study: Shown, folder: Path, axes: Axes | None = None) -> list[Path]:
    """Draw all pictures for which the study has parameters."""
    axes = axes or Axes()
    _check(study, axes)
    pictures: dict[str, Callable[[Shown, Axes, Any], bool]] = {
        "lines": lines, "map": heat_map, "axes": all_axes, "pareto": pareto, "tornado": tornado,
    }  # fmt: skip
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.text import Text

    found = []
    for name, draw in pictures.items():
        figure = plt.figure(figsize=(9.5, 5.6), layout="constrained")
        if draw(study, axes, figure):
            path = folder / f"{name}.png"
            for text in figure.findobj(
                Text
            ):  # names are no formulas; ticks of logarithmic axes get their texts later
                if text.get_text():
                    text.set_parse_math(False)
            figure.savefig(path, dpi=DPI)
            found.append(path)
        plt.close(figure)
    return found


def _check(study: Shown, axes: Axes) -> None:
    known = list(
        dict.fromkeys([*study.varied, *study.outputs, *(n for row in study.rows for n in row["outputs"])])
    )
    for option, name in (("--x", axes.x), ("--y", axes.y), ("--by", axes.by)):
        if name and name not in known:
            raise WseError(
                f"{option} {name} is neither varied nor an output here; use one of {', '.join(known[:20])}"
            )


LEAST_GAP = 0.02
"""Least fraction by which lines must differ on each side of a point to count as crossing there."""


def _numeric(study: Shown) -> list[str]:
    return [name for name in study.varied if study.is_numeric(name)]


def _is_log(values: NDArray[np.float64]) -> bool:
    """Return whether values are positive and span more than a factor of 8, so that a log axis shows them
    better."""
    seen = values[np.isfinite(values)]
    return len(seen) > 1 and bool(seen.min() > 0 and seen.max() / seen.min() > 8)


def lines(study: Shown, axes: Axes, figure: Figure) -> bool:
    """Draw the first output over a parameter, one line per value of another, with intervals; best over all
    others."""
    numeric, y = _numeric(study), axes.y or study.outputs[0]
    if not (axes.x or numeric or "model" in study.varied) or not study.done:
        return False
    if not numeric and not axes.x:  # models are told apart by their size
        numeric = [SIZE]
    x = axes.x or max(numeric, key=lambda name: len(set(study.column(study.rows, name).tolist())))
    others = [name for name in study.varied if name != x]
    by = axes.by or (
        min(others, key=lambda n: len({repr(study.value(r, n)) for r in study.rows})) if others else ""
    )
    plot = figure.subplots()
    found: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    groups: dict[str, list[RowValues]] = {}
    for row in sorted(study.rows, key=lambda row: row["status"] != DONE):
        groups.setdefault(text_of(study.value(row, by)) if by else "", []).append(row)
    misses: list[tuple[str, str, list[float]]] = []
    left_out = len(groups) - MOST_LINES
    for color, (name, rows) in zip(COLORS, list(groups.items())[:MOST_LINES], strict=False):
        best = _best_per_x(study, [row for row in rows if row["status"] == DONE], x, y)
        reached = {study.value(row, x) for row in best}
        missed = {v for row in rows if (v := study.value(row, x)) is not None and v not in reached}
        misses.append(("" if best else f"{by} {name}", color, sorted(missed)))
        if not best:
            continue
        xs, ys = study.column(best, x), study.column(best, y)
        bounds = np.array([[row["low"].get(y, np.nan), row["high"].get(y, np.nan)] for row in best], float)
        hides = any(np.array_equal(xs, x_of) and np.array_equal(ys, y_of) for x_of, y_of in found.values())
        dash = "--" if hides else "-"  # of two equal lines, both colors show
        plot.plot(xs, ys, dash, marker="o", markersize=4, color=color, label=f"{by} {name}" if by else None)
        found[f"{by} {name}"] = (xs, ys)
        plot.fill_between(xs, bounds[:, 0], bounds[:, 1], color=color, alpha=0.13, linewidth=0)
    if len(groups) == 2 and len(found) == 2:
        for place in crossings(*found.values(), least=LEAST_GAP):
            plot.axvline(
                place,
                color="#71717a",
                linestyle="--",
                linewidth=1,
                label=f"cross at {text_of(float(f'{place:.3g}'))}",
            )
    _mark_misfits(plot, misses)
    _dress(plot, study, x, y)
    if plot.get_legend_handles_labels()[1]:
        plot.legend(fontsize=8, title=f"and {left_out} more" if left_out > 0 else None)
    rest = [name for name in others if name != by and not (x == SIZE and name == "model")]
    hint = f"; the best over {', '.join(rest)}" if rest else ""
    has_bounds = any(y in row["low"] for row in study.done)
    model = study.spec.fixed.get("model")
    plot.set_title(
        f"{f'{model}: ' if model else ''}{short(y)} over {x}{hint}{' (bands: 90 %)' if has_bounds else ''}",
        fontsize=10,
    )
    return True


def crossings(
    one: tuple[NDArray[np.float64], NDArray[np.float64]],
    two: tuple[NDArray[np.float64], NDArray[np.float64]],
    *,
    least: float = 0.0,
) -> list[float]:
    """Return the points at which two lines cross, between common x values: in logarithms if all are positive, else linear.

    Lines that differ by less than the fraction `least` on a whole side of the crossing count as equal, not as crossing.
    """
    shared = sorted(set(one[0].tolist()) & set(two[0].tolist()))
    if len(shared) < 2:
        return []
    lines_y = [
        np.array([dict(zip(xs.tolist(), ys.tolist(), strict=True))[x] for x in shared])
        for xs, ys in (one, two)
    ]
    x, (a, b) = np.array(shared), lines_y
    is_log = bool((x > 0).all() and (a > 0).all() and (b > 0).all())
    gap, place = (np.log(a / b), np.log(x)) if is_log else (a - b, x)
    found = []
    relative = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    for i in np.flatnonzero(gap[:-1] * gap[1:] < 0):
        if min(relative[: i + 1].max(), relative[i + 1 :].max()) < least:
            continue
        at = place[i] + (place[i + 1] - place[i]) * gap[i] / (gap[i] - gap[i + 1])
        found.append(float(np.exp(at) if is_log else at))
    return found


def _best_per_x(study: Shown, rows: Sequence[RowValues], x: str, y: str) -> list[RowValues]:
    sign = -1.0 if better(y) == "minimize" else 1.0
    best: dict[float, RowValues] = {}
    for row in rows:
        value, place = study.value(row, y), study.value(row, x)
        if value is None or place is None:
            continue
        if place not in best or sign * value > sign * study.value(best[place], y):
            best[place] = row
    return [best[place] for place in sorted(best)]


def _mark_misfits(plot: Plot, misses: Sequence[tuple[str, str, list[float]]]) -> None:
    """Mark missing results at the bottom of the plot: name of a line without any result or "", color,
    positions."""
    is_named = False
    for height, (name, color, places) in enumerate(misses):
        if not places and not name:
            continue
        text = f"{name}: no result" if name else None if is_named else "no result"
        is_named |= not name
        plot.plot(
            places, np.full(len(places), 0.012 + 0.022 * height), "x", color=color, markersize=5, clip_on=False,
            transform=plot.get_xaxis_transform(), label=text, zorder=5,
        )  # fmt: skip


def _dress(plot: Plot, study: Shown, x: str, y: str) -> None:
    rows = study.done
    if _is_log(study.column(study.rows, x)):
        plot.set_xscale("log")
        places = [place for place in _places(study, x) if place is not None]
        if _are_apart(np.log(np.array(places, float))):
            plot.set_xticks(places, [text_of(place) for place in places])
            plot.set_xticks([], minor=True)
    elif study.is_numeric(x):
        places = [place for place in _places(study, x) if place is not None]
        if _are_apart(np.array(places, float)):
            plot.set_xticks(places, [text_of(place) for place in places])
    values = study.column(rows, y)
    if _is_log(values):
        plot.set_yscale("log")
    elif np.nanmin(values) >= 0:
        high = [row["high"].get(y, 0.0) for row in rows]
        plot.set_ylim(0, 1.06 * max(float(np.nanmax(values)), *high) or 1.0)
        plot.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    plot.set_xlabel(label(x))
    plot.set_ylabel(label(y))
    plot.grid(visible=True, alpha=0.25)


def _are_apart(places: NDArray[np.float64]) -> bool:
    """Return whether ascending positions are far enough apart for one text each."""
    return len(places) > 1 and bool(np.diff(places).min() > 0.07 * (places[-1] - places[0]))


def heat_map(study: Shown, axes: Axes, figure: Figure) -> bool:
    """Draw an output over two parameters; each cell has the best value over the others."""
    if len(study.varied) < 2 or not study.done:
        return False
    ordered = sorted(study.varied, key=lambda n: -len({repr(study.value(r, n)) for r in study.rows}))
    x = axes.x or ordered[0]
    second = axes.by if axes.by and axes.by != x else next(name for name in ordered if name != x)
    y = axes.y or study.outputs[0]
    sides = [_places(study, name) for name in (x, second)]
    if any(len(side) > MOST_CELLS for side in sides) or len(study.rows) < 0.3 * len(sides[0]) * len(sides[1]):
        return False  # samples fill no grid
    sign = -1.0 if better(y) == "minimize" else 1.0
    grid = np.full((len(sides[1]), len(sides[0])), np.nan)
    for row in study.done:
        value = study.value(row, y)
        if value is None:
            continue
        place = sides[1].index(study.value(row, second)), sides[0].index(study.value(row, x))
        if not sign * value <= sign * grid[place]:
            grid[place] = value
    plot = figure.subplots()
    plot.set_facecolor("#e4e4e7")
    picture = plot.pcolormesh(grid, cmap="viridis" if sign > 0 else "viridis_r")
    figure.colorbar(picture, ax=plot, label=label(y))
    if grid.size <= 150:
        _write_cells(plot, grid, picture)
    for axis, side in ((plot.xaxis, sides[0]), (plot.yaxis, sides[1])):
        step = max(1, len(side) // 12)
        axis.set_ticks(np.arange(0, len(side), step) + 0.5, [text_of(v) for v in side[::step]])
    plot.tick_params(axis="x", rotation=30 if len(sides[0]) > 5 else 0)
    plot.set_xlabel(label(x))
    plot.set_ylabel(label(second))
    rest = [name for name in study.varied if name not in (x, second)]
    hint = f"; the best over {', '.join(rest)}" if rest else ""
    plot.set_title(f"{short(y)}{hint} (grey: no result)", fontsize=10)
    return True


def _write_cells(plot: Plot, grid: NDArray[np.float64], picture: QuadMesh) -> None:
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            red, green, blue, _ = picture.to_rgba(np.asarray(value))
            ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
            plot.text(
                j + 0.5, i + 0.5, text_of(float(value), 3), ha="center", va="center", fontsize=7, color=ink
            )


def _places(study: Shown, name: str) -> list[Any]:
    seen = list(dict.fromkeys(study.value(row, name) for row in study.rows))
    if not study.is_numeric(name):
        return seen
    return sorted((v for v in seen if v is not None), key=float) + [None] * (None in seen)


def all_axes(study: Shown, axes: Axes, figure: Figure) -> bool:
    """Draw parallel coordinates: each row is a line through all parameters and outputs, colored by the first
    output."""
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    rows, y = study.done, axes.y or study.outputs[0]
    names = [*study.varied, *(name for name in study.outputs if any(r["outputs"].get(name) for r in rows))]
    if len(names) < 3 or len(rows) < 2:
        return False
    plot = figure.subplots()
    columns = [_scaled(study, rows, name) for name in names]
    points = np.array([column[0] for column in columns]).T
    shade, _ = _scaled(study, rows, y)
    order = np.argsort(shade if better(y) == "maximize" else -shade)
    segments = [np.column_stack([np.arange(len(names)), points[i]]) for i in order]
    colors = colormaps["viridis"](shade[order])
    alpha = float(np.clip(60 / len(rows), 0.08, 0.8))
    plot.add_collection(LineCollection(segments, colors=colors, alpha=alpha, linewidths=1.2))
    for place, (_, ticks) in enumerate(columns):
        plot.axvline(place, color="#52525b", linewidth=0.8)
        for height, text in ticks:
            plot.text(place + 0.02, height, text, fontsize=7, va="center")
    plot.set_xlim(-0.1, len(names) - 0.6)
    plot.set_ylim(-0.05, 1.05)
    plot.set_yticks([])
    plot.set_xticks(
        range(len(names)), [textwrap.fill(name.replace("_", " "), 16) for name in names], fontsize=8
    )
    plot.set_title(f"every run with a result; color: {short(y)}", fontsize=10)
    for side in plot.spines.values():
        side.set_visible(False)
    return True


def _scaled(
    study: Shown, rows: Sequence[RowValues], name: str
) -> tuple[NDArray[np.float64], list[tuple[float, str]]]:
    """Return values scaled to 0 to 1 (logarithmic if the span is large), and ticks; texts are equidistant."""
    if not study.is_numeric(name):
        places = _places(study, name)
        span = max(1, len(places) - 1)
        found = np.array([places.index(study.value(row, name)) / span for row in rows])
        return found, [(i / span, text_of(value)) for i, value in enumerate(places[:12])]
    values = study.column(rows, name)
    is_log = _is_log(values)
    scaled = np.log(values) if is_log else values
    low, high = float(np.nanmin(scaled)), float(np.nanmax(scaled))
    width = high - low or 1.0
    ticks = (
        [(fraction, low + fraction * (high - low)) for fraction in (0.0, 0.5, 1.0)]
        if high > low
        else [(0.0, low)]
    )
    marks = [
        (fraction, text_of(float(f"{np.exp(level) if is_log else level:.4g}"))) for fraction, level in ticks
    ]
    return np.nan_to_num((scaled - low) / width), marks


def pareto(study: Shown, axes: Axes, figure: Figure) -> bool:
    """Draw two objectives, their Pareto front, and the recommended point with the reason."""
    objectives = study.objectives(axes.objectives)
    if len(objectives) < 2:
        return False
    (x, _), (y, _) = list(objectives.items())[:2]
    rows, best, chosen = study.pareto(objectives)
    if len(rows) < 2 or chosen is None:
        return False
    plot = figure.subplots()
    xs, ys = study.column(rows, x), study.column(rows, y)
    plot.plot(xs, ys, "o", color="#a1a1aa", markersize=4, label="runs")
    if axes.by:
        _fronts_by(study, axes.by, rows, objectives, plot)
    order = sorted(best, key=lambda i: xs[i])
    if len(objectives) == 2:
        plot.step(
            xs[order], ys[order], where=_corner(objectives[x], objectives[y]), color=COLORS[0], alpha=0.5
        )
    plot.plot(xs[order], ys[order], "o", color=COLORS[0], markersize=6, label="Pareto front")
    plot.plot(xs[chosen.index], ys[chosen.index], "*", color=COLORS[1], markersize=18, label="recommended")
    for axis, values, name in (("x", xs, x), ("y", ys, y)):
        if _is_log(values):
            (plot.set_xscale if axis == "x" else plot.set_yscale)("log")
            _plain_ticks(plot.xaxis if axis == "x" else plot.yaxis)
        (plot.set_xlabel if axis == "x" else plot.set_ylabel)(f"{label(name)}: {objectives[name]}")
    plot.grid(visible=True, alpha=0.25)
    plot.legend(fontsize=8)
    figure.supxlabel(textwrap.fill(chosen.why, 125), fontsize=8)
    return True


def _plain_ticks(axis: Any) -> None:
    """Show numbers instead of powers of ten on axes of at most three decades."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    if high < 1000 * low and high < 1e5:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _fronts_by(study: Shown, by: str, rows: list[RowValues], objectives: dict[str, str], plot: Any) -> None:
    """Draw the Pareto front for each value of a parameter."""
    (x, way), (y, other) = list(objectives.items())[:2]
    for number, value in enumerate(dict.fromkeys(repr(study.value(row, by)) for row in rows)):
        own = [row for row in rows if repr(study.value(row, by)) == value]
        points = np.array([study.column(own, x), study.column(own, y)]).T
        kept = points[front(points, (way, other))]
        kept = kept[np.argsort(kept[:, 0])]
        color = COLORS[(number + 2) % len(COLORS)]
        plot.step(
            *kept.T,
            "o-",
            where=_corner(way, other),
            color=color,
            alpha=0.7,
            markersize=5,
            label=value.strip("'"),
        )


def _corner(x: str, y: str) -> Literal["pre", "post"]:
    """Return the step style of the Pareto front, so that a step between two points shows only attainable values."""
    return "post" if (x == "minimize") else "pre"


@dataclass(frozen=True)
class ParameterEffect:
    """Effect of a parameter on an output: the mean output at each value, relative to the overall mean."""

    name: str
    low: float
    high: float
    at_low: str
    at_high: str

    @property
    def reach(self) -> float:
        """Difference of the highest and the lowest mean."""
        return self.high - self.low


def effects(study: Shown, output: str) -> list[ParameterEffect]:
    """Return the main effects of all parameters, largest first: means over all others, with at most ten
    bins."""
    rows = [row for row in study.done if row["outputs"].get(output) is not None]
    values = np.array([row["outputs"][output] for row in rows])
    found: list[ParameterEffect] = []
    for name in study.varied if rows else ():
        groups: dict[Any, list[float]] = {}
        places = _places(study, name)
        column = [study.value(row, name) for row in rows]
        if len(places) > 10 and study.is_numeric(name):
            edges = np.quantile(study.column(rows, name), np.linspace(0, 1, 11)[1:-1])
            column = [f"about {text_of(float(np.median(_part(study.column(rows, name), edges, k))))}" for k in
                      np.searchsorted(edges, study.column(rows, name))]  # fmt: skip
        for key, value in zip(column, values, strict=True):
            groups.setdefault(text_of(key), []).append(value)
        means = {key: float(np.mean(part)) / float(values.mean()) - 1 for key, part in groups.items()}
        least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        found.append(ParameterEffect(name, means[least], means[most], least, most))
    return sorted(found, key=lambda effect: -effect.reach)


def _part(values: NDArray[np.float64], edges: NDArray[np.float64], part: int) -> NDArray[np.float64]:
    return values[np.searchsorted(edges, values) == part]


def tornado(study: Shown, axes: Axes, figure: Figure) -> bool:
    """Draw which parameters move the first output most, as a tornado chart."""
    y = axes.y or study.outputs[0]
    found = effects(study, y)[:16][::-1]
    if not found or not any(effect.reach for effect in found):
        return False
    plot = figure.subplots()
    span = max(effect.reach for effect in found)
    for place, effect in enumerate(found):
        plot.barh(place, 100 * effect.low, color=COLORS[1], height=0.62)
        plot.barh(place, 100 * effect.high, color=COLORS[0], height=0.62)
        for end, text, side in ((effect.low, effect.at_low, "right"), (effect.high, effect.at_high, "left")):
            shift = (-1 if side == "right" else 1) * span
            plot.text(100 * end + shift, place, text, ha=side, va="center", fontsize=8)
    plot.set_yticks(range(len(found)), [effect.name for effect in found], fontsize=9)
    plot.axvline(0, color="black", linewidth=0.8)
    plot.margins(x=0.18)
    plot.set_xlabel(
        f"mean {short(y)} at the least and the best value of a parameter, against the mean of all runs (%)"
    )
    plot.set_title("What moves it: averaged over all other parameters", fontsize=10)
    return True
