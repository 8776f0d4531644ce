"""Treemap of a step's time if kernels use all cores one after the other: the area of a kernel's rectangle is
its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from wse_sim.report.text import percent, seconds, shorten
from wse_sim.report.views import KernelGroup

WIDTH, HEIGHT = 1240.0, 420.0
LEAST_FRACTION = 0.004  # smaller kernels share one rectangle
COLORS = ("#3f3f46", "#3b518b", "#2c718e", "#21908d", "#27ad81", "#5cc863", "#aadc32")
"""From never busy to always busy."""


@dataclass(frozen=True)
class TreemapCell:
    """A rectangle of the map: the time of a kernel, of the small ones together, or between kernels."""

    name: str
    time_s: float
    busy_s: float
    runs: int
    fraction: float  # of the step

    @property
    def busy(self) -> float:
        """Fraction of its time in which cores are busy."""
        return self.busy_s / self.time_s if self.time_s else 0.0

    @property
    def color(self) -> str:
        """The shade for the fraction in which it is busy."""
        return COLORS[min(len(COLORS) - 1, int(self.busy * len(COLORS)))]

    @property
    def ink(self) -> str:
        """A color of text that can be read on it."""
        return "#18181b" if self.busy > 0.56 else "#ffffff"


def cells(groups: Sequence[KernelGroup], step_s: float) -> list[TreemapCell]:
    """Return the rectangles, the largest first.

    Kernels below 0.4 % of the time are one rectangle "others", and what the kernels leave of `step_s` is "between kernels".
    """
    total = max(step_s, sum(group.total_s for group in groups))
    if not total:
        return []
    rest = [g for g in groups if g.total_s < LEAST_FRACTION * total]
    rows = [(g.name, g.total_s, g.busy_s, g.runs) for g in groups if g.total_s >= LEAST_FRACTION * total]
    if rest:
        sums = [sum(g.total_s for g in rest), sum(g.busy_s for g in rest)]
        rows.append((f"{len(rest)} others", sums[0], sums[1], sum(g.runs for g in rest)))
    between_s = total - sum(row[1] for row in rows)
    if between_s > LEAST_FRACTION * total:
        rows.append(("between kernels", between_s, 0.0, 1))
    return sorted((TreemapCell(*row, row[1] / total) for row in rows), key=lambda cell: -cell.time_s)


def treemap(groups: Sequence[KernelGroup], step_s: float) -> str:
    """Return the kernels of a step as SVG: area is time, color the fraction of it in which cores are busy.

    A rectangle tells its numbers under the pointer.
    """
    found = cells(groups, step_s)
    if not found:
        return ""
    places = squarified([cell.time_s for cell in found], WIDTH, HEIGHT)
    shapes = [_shape(place, cell) for place, cell in zip(places, found, strict=True)]
    return (
        f"<svg viewBox='0 0 {WIDTH:.0f} {HEIGHT:.0f}' role='img' aria-label='time of the step by kernel' "
        f"style='width:100%;height:auto;font:12px system-ui,sans-serif'>{''.join(shapes)}</svg>"
    )


def _shape(place: tuple[float, float, float, float], cell: TreemapCell) -> str:
    x, y, width, height = place
    tip = (
        f"{cell.name}\n{seconds(cell.time_s)}, {percent(cell.fraction)} of the step\n"
        f"busy {percent(cell.busy)} of it\n{cell.runs} runs per step"
    )
    text = ""
    letters = int((width - 10) / 7)
    if letters >= 6 and height >= 16:
        label = escape(shorten(cell.name, letters))
        text = f"<text x='{x + 5:.1f}' y='{y + 15:.1f}' fill='{cell.ink}'>{label}"
        if height >= 32:
            text += f"<tspan x='{x + 5:.1f}' dy='15'>{percent(cell.fraction)}</tspan>"
        text += "</text>"
    return (
        f"<g><title>{escape(tip)}</title><rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' "
        f"fill='{cell.color}' stroke='#fff' stroke-width='1'/>{text}</g>"
    )


def squarified(
    sizes: Sequence[float], width: float, height: float
) -> list[tuple[float, float, float, float]]:
    """Return rectangles (x, y, width, height) that fill width x height with areas proportional to `sizes`, nearly
    square.

    The algorithm of Bruls, Huizing and van Wijk, "Squarified treemaps" (2000); `sizes` are positive and fall.
    """
    scale = width * height / sum(sizes)
    areas = [size * scale for size in sizes]
    places: list[tuple[float, float, float, float]] = []
    x = y = 0.0
    start = 0
    while start < len(areas):
        side = min(width - x, height - y)
        end = start + 1
        while end < len(areas) and _worst(areas[start : end + 1], side) <= _worst(areas[start:end], side):
            end += 1
        row = areas[start:end]
        depth = sum(row) / side if side else 0.0
        along = 0.0
        for area in row:
            length = area / depth if depth else 0.0
            if width - x >= height - y:  # a column on the left
                places.append((x, y + along, depth, length))
            else:  # a row on top
                places.append((x + along, y, length, depth))
            along += length
        if width - x >= height - y:
            x += depth
        else:
            y += depth
        start = end
    return places


def _worst(row: Sequence[float], side: float) -> float:
    """Return the largest ratio of sides in a row of areas along `side`."""
    total = sum(row)
    return max(max(side**2 * area / total**2, total**2 / (side**2 * area)) for area in row)
