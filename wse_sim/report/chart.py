"""Line charts as SVG inside a page. They use the page's colors, for light, dark and print; a script adds
tooltips."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

from wse_sim.report.text import number

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 14, 40
MOST_POINTS = 400
LOG_SPAN = 20.0  # ratio of values from which on a logarithmic axis is used
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ChartLine:
    """One line: its values, its name, and the index of its color on the page."""

    name: str
    x: Sequence[float] | Floats
    y: Sequence[float] | Floats
    color: int = 0
    is_area: bool = False
    has_dots: bool = False


@dataclass(frozen=True)
class ChartMark:
    """A labelled point, or a line across the chart if one of the coordinates is missing."""

    text: str
    x: float | None = None
    y: float | None = None
    is_goal: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes; with `log_x` None, a large range of values gets a logarithmic axis."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[ChartLine]
    marks: Sequence[ChartMark] = ()
    hint: str = ""
    log_x: bool | None = False
    log_y: bool | None = False
    top: float | None = None  # of the y axis
    percent_y: bool = False
    names: Sequence[str] = field(default_factory=tuple)  # of the points, for the hover

    def svg(self) -> str:
        """Return the chart as an SVG element."""
        xs, ys = (
            np.concatenate([np.asarray(getattr(line, axis), float) for line in self.lines]) for axis in "xy"
        )
        xs = np.append(xs, [m.x for m in self.marks if m.x is not None])
        ys = np.append(ys, [m.y for m in self.marks if m.y is not None])
        across = _axis(xs, LEFT, WIDTH - RIGHT, self.log_x, None)
        up = _axis(ys, HEIGHT - BOTTOM, TOP, self.log_y, self.top)
        shown = (lambda value: f"{100 * value:g} %") if self.percent_y else number
        parts = [*_grid(across, up, shown), *(_line(line, across, up) for line in self.lines)]
        parts += [_mark(mark, across, up) for mark in self.marks]
        parts += [
            f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 6}" text-anchor="middle">{escape(self.x_label)}</text>',
            f'<text class="label" transform="translate(12 {(TOP + HEIGHT - BOTTOM) / 2:g}) rotate(-90)" text-anchor="middle">{escape(self.y_label)}</text>',
            '<g class="cursor" hidden></g>',
        ]
        hover = escape(json.dumps(self._hover(across, up), separators=(",", ":")), quote=True)
        title = escape(self.title, quote=True)
        return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" data-hover="{hover}">{"".join(parts)}</svg>'

    @property
    def legend(self) -> list[tuple[int, str]]:
        """Return the color and name of each line, if there are several."""
        return [(line.color, line.name) for line in self.lines] if len(self.lines) > 1 else []

    def _hover(self, across: ChartScale, up: ChartScale) -> dict[str, object]:
        """Return pixels and values of all points, for the tooltip script."""
        out = []
        for line in self.lines:
            x, y = _thin(np.asarray(line.x, float), np.asarray(line.y, float))
            percent = [f"{100 * v:.3g} %" for v in y] if self.percent_y else [number(float(v)) for v in y]
            rows = [[across.at(float(a)), up.at(float(b))] for a, b in zip(x, y, strict=True)]
            values = [[number(float(a)), b] for a, b in zip(x, percent, strict=True)]
            out.append({"name": line.name, "color": line.color, "at": rows, "values": values})
        return {"x": self.x_label, "lines": out, "names": list(self.names)}


@dataclass(frozen=True)
class ChartScale:
    """A scale: maps values to positions in the picture, and chooses the ticks."""

    at: Callable[[float], float]
    ticks: Sequence[float]


def _axis(values: Floats, start: float, end: float, log: bool | None, top: float | None) -> ChartScale:
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    positive = values[values > 0]
    if log is None:
        log = bool(len(positive) == len(values) and low > 0 and high > LOG_SPAN * low)
    if log and len(positive):
        a, b = math.log(float(positive.min())), math.log(high)
        pad = 0.03 * (b - a) or 0.1
        a, b = a - pad, b + pad
        ticks = _log_ticks(math.exp(a), math.exp(b))
        return ChartScale(
            lambda value: _round(start + (math.log(max(value, math.exp(a))) - a) / (b - a) * (end - start)),
            ticks,
        )
    low = min(0.0, low) if low < 0.5 * high or low <= 0 else low - 0.05 * (high - low)
    high = top if top is not None else high + 0.05 * (high - low) if high > low else low + 1.0
    return ChartScale(
        lambda value: _round(start + (value - low) / (high - low) * (end - start)), _ticks(low, high)
    )


def _round(pixel: float) -> float:
    return round(pixel, 1)


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 6
    power = 10 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * k, 12) for k in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        found = [k * 10.0**p for p in decades for k in steps if low <= k * 10.0**p <= high]
        if len(found) >= 4:
            break
    return found[:: max(1, len(found) // 6)] if len(found) > 8 else found


def _grid(across: ChartScale, up: ChartScale, shown: Callable[[float], str]) -> list[str]:
    floor, parts = HEIGHT - BOTTOM, []
    for value in up.ticks:
        y = up.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">{shown(value)}</text>'
        )
    for value in across.ticks:
        x = across.at(value)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{floor}"/>')
        parts.append(
            f'<text class="tick" x="{x}" y="{floor + 14}" text-anchor="middle">{number(value)}</text>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    return parts


def _line(line: ChartLine, across: ChartScale, up: ChartScale) -> str:
    x, y = _thin(np.asarray(line.x, float), np.asarray(line.y, float))
    points = [(across.at(float(a)), up.at(float(b))) for a, b in zip(x, y, strict=True)]
    text = " ".join(f"{a:g},{b:g}" for a, b in points)
    found = ""
    if line.is_area and points:
        floor = HEIGHT - BOTTOM
        found += f'<polygon class="area c{line.color}" points="{points[0][0]:g},{floor} {text} {points[-1][0]:g},{floor}"/>'
    found += f'<polyline class="line c{line.color}" points="{text}"/>'
    if line.has_dots:
        found += "".join(
            f'<circle class="dot c{line.color}" cx="{a:g}" cy="{b:g}" r="3"/>' for a, b in points
        )
    return found


def _mark(mark: ChartMark, across: ChartScale, up: ChartScale) -> str:
    kind, text = "goal" if mark.is_goal else "mark", escape(mark.text)
    if mark.x is not None and mark.y is not None:
        x, y = across.at(mark.x), up.at(mark.y)
        is_left = x > (LEFT + WIDTH) / 2
        place = (
            f'x="{x + (-7 if is_left else 7):g}" y="{y + 12:g}" text-anchor="{"end" if is_left else "start"}"'
        )
        return f'<circle class="{kind}" cx="{x}" cy="{y}" r="3.2"/><text class="{kind}" {place}>{text}</text>'
    if mark.x is not None:
        x = across.at(mark.x)
        is_left = x > (LEFT + WIDTH) / 2
        place = f'x="{x + (-5 if is_left else 5):g}" y="{HEIGHT - BOTTOM - 7}" text-anchor="{"end" if is_left else "start"}"'
        return f'<line class="{kind}" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/><text class="{kind}" {place}>{text}</text>'
    y = up.at(mark.y or 0.0)
    return f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/><text class="{kind}" x="{WIDTH - RIGHT - 4}" y="{y - 5:g}" text-anchor="end">{text}</text>'


def _thin(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Reduce a curve to a few hundred points; each is the maximum of its bin, so that no peak is lost."""
    if len(x) <= MOST_POINTS:
        return x, y
    ends = np.linspace(0, len(x), MOST_POINTS + 1).astype(int)
    kept = [a + int(np.argmax(y[a:b])) for a, b in itertools.pairwise(ends) if b > a]
    return x[kept], y[kept]
