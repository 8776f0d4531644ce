"""Two results as one self-contained page: rates, settings, and bars of both for resources, links and kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from wse_sim.atomic_files import write_whole
from wse_sim.report.difference import Change, Difference
from wse_sim.report.pages import parts_of, templates
from wse_sim.report.text import number, seconds, si

FILE = "difference.html"
MOST_ROWS = 40


def write_difference(found: Difference, folder: Path) -> Path:
    """Write ``difference.html`` into a folder; returns its path.

    Raises
    ------
    WseError
        If jinja2 is not installed, or the file cannot be written.
    """
    path = folder / FILE
    write_whole(path, render(found))
    return path


def render(found: Difference) -> str:
    """Return the page as text."""
    return (
        templates("wse_sim.report", "the page of a difference")
        .get_template("difference.html.j2")
        .render(
            found=found,
            tiles=_tiles(found),
            parts=[
                ("Resource alone, per sample", _bars(found.resources, seconds)),
                ("Wavelets per sample, by direction", _bars(found.links, lambda value: si(value, ""))),
                ("Busy core-seconds per sample, by kernel", _bars(found.kernels, seconds)),
            ],
            style=parts_of("wse_sim.report", "report.css"),
        )
    )


def _tiles(found: Difference) -> list[tuple[str, str, str]]:
    one, two = found.before, found.after
    return [
        ("samples/s", number(one.samples_per_s), number(two.samples_per_s)),
        ("time of a step", seconds(one.step_s), seconds(two.step_s)),
        ("bottleneck", one.binding, two.binding),
        ("mode", one.mode, two.mode),
    ]


def _bars(changes: Sequence[Change], unit: Callable[[float], str]) -> list[dict[str, object]]:
    """Return rows with both values, bar widths in percent of the largest, and the change; equal rows are left
    out."""
    shown = [change for change in changes[:MOST_ROWS] if change.size]
    most = max((max(change.before or 0.0, change.after or 0.0) for change in shown), default=0.0) or 1.0
    return [
        {
            "name": change.name,
            "first": "-" if change.before is None else unit(change.before),
            "second": "-" if change.after is None else unit(change.after),
            "widths": [100 * (value or 0.0) / most for value in (change.before, change.after)],
            "change": f"{'+' if change.size >= 0 else '-'}{unit(abs(change.size))}",
            "ratio": change.ratio,
        }
        for change in shown
    ]
