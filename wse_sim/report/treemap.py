"""Treemap of a step's time if kernels use all cores one after the other: the area of a kernel's rectangle is
its time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from wse_sim.report.text import percent, seconds, shorten
from wse_sim.report.views import KernelGroup

WIDTH, HEIGHT = 1240.0, 420.0
LEAST_FRACTION = 0.004  # smaller kernels share one rectangle
COLORS = ("#3f3f46", "#3b518b", "#2c718e", "#21908d", "#27ad81", "#5cc863", "#aadc32")
"""From never busy to always busy."""


def treemap(groups: Sequence[KernelGroup], step_s: float) -> str:
    """The kernels of a step as SVG: area is time, color the fraction of it in which cores are busy.

    A rectangle tells its numbers under the pointer; kernels below 0.4 % of the time are one rectangle "others", and what
    the kernels leave of `step_s` is "between kernels".
    """
    total = max(step_s, sum(group.total_s for group in groups))
    if not total:
        return ""
    large = sorted((g for g in groups if g.total_s >= LEAST_FRACTION * total), key=lambda g: -g.total_s)
    cells = [(g.total_s, g.busy_s, g.name, g.runs) for g in large]
    rest = [g for g in groups if g.total_s < LEAST_FRACTION * total]
    if rest:
        cells.append(
            (
                sum(g.total_s for g in rest),
                sum(g.busy_s for g in rest),
                f"{len(rest)} others",
                sum(g.runs for g in rest),
            )
        )
    between_s = total - sum(cell[0] for cell in cells)
    if between_s > LEAST_FRACTION * total:
        cells.append((between_s, 0.0, "between kernels", 1))
    cells.sort(key=lambda cell: -cell[0])
    places = squarified([cell[0] for cell in cells], WIDTH, HEIGHT)
    shapes = [_cell(place, cell, total) for place, cell in zip(places, cells, strict=True)]
    return (
        f"<svg viewBox='0 0 {WIDTH:.0f} {HEIGHT:.0f}' role='img' aria-label='time of the step by kernel' "
        f"style='width:100%;height:auto;font:12px system-ui,sans-serif'>{''.join(shapes)}</svg>"
    )


def _cell(place: tuple[float, float, float, float], cell: tuple[float, float, str, int], total: float) -> str:
    x, y, width, height = place
    time_s, busy_s, name, runs = cell
    busy = busy_s / time_s if time_s else 0.0
    color = COLORS[min(len(COLORS) - 1, int(busy * len(COLORS)))]
    tip = f"{name}\n{seconds(time_s)}, {percent(time_s / total)} of the step\nbusy {percent(busy)} of it\n{runs} runs per step"
    text = ""
    letters = int((width - 10) / 7)
    if letters >= 6 and height >= 16:
        ink = "#18181b" if busy > 0.7 else "#fff"
        label = escape(shorten(name, letters))
        text = f"<text x='{x + 5:.1f}' y='{y + 15:.1f}' fill='{ink}'>{label}"
        if height >= 32:
            text += f"<tspan x='{x + 5:.1f}' dy='15'>{percent(time_s / total)}</tspan>"
        text += "</text>"
    return (
        f"<g><title>{escape(tip)}</title><rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' "
        f"fill='{color}' stroke='#fff' stroke-width='1'/>{text}</g>"
    )


def squarified(
    sizes: Sequence[float], width: float, height: float
) -> list[tuple[float, float, float, float]]:
    """Rectangles (x, y, width, height) that fill width x height with areas proportional to `sizes`, nearly square.

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
    """Largest ratio of sides in a row of areas along `side`."""
    total = sum(row)
    return max(max(side**2 * area / total**2, total**2 / (side**2 * area)) for area in row)
