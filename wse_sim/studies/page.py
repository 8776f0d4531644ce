"""One self-contained page of a study: charts to choose, filters, every run with its configuration.

The page contains all rows as JSON, and a script that draws on a canvas, because a study has more points than
a document should have elements.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wse_sim.report.pages import as_json, parts_of, templates
from wse_sim.studies.data import Shown, better
from wse_sim.studies.labels import label, short
from wse_sim.studies.pareto import shown as text_of
from wse_sim.studies.plots import Axes, effects

MOST_ROWS = 50_000
REPORTS = "runs"  # folder of full results, one per number


def write_page(study: Shown, folder: Path, axes: Axes | None = None) -> Path:
    """Write ``study.html``.

    Raises
    ------
    WseError
        If jinja2 is not installed.
    """
    path = folder / "study.html"
    path.write_text(render(study, folder, axes or Axes()), encoding="utf-8")
    return path


def render(study: Shown, folder: Path, axes: Axes) -> str:
    """Return the page as text."""
    environment = templates("wse_sim.studies", "the page of a study")
    objectives = study.objectives(axes.objectives)
    rows, best, chosen = study.pareto(objectives)
    front = [rows[i]["number"] for i in best]
    data = payload(study, folder, axes)
    data["front"], data["objectives"] = front, list(objectives)
    data["chosen"] = None if chosen is None else rows[chosen.index]["number"]
    return environment.get_template("study.html.j2").render(
        name=study.name,
        about=study.spec.about,
        tiles=_tiles(study),
        chosen=None if chosen is None else chosen.why,
        objectives=objectives,
        short=short,
        misfits=_misfits(study),
        effects=effects(study, study.outputs[0]),
        output=short(study.outputs[0]),
        fixed=sorted((key, _text(value)) for key, value in study.spec.fixed.items()),
        style=parts_of("wse_sim.report", "report.css") + parts_of("wse_sim.studies", "study.css"),
        script=parts_of("wse_sim.studies", "study.js"),
        data=as_json(data),
    )


def payload(study: Shown, folder: Path, axes: Axes) -> dict[str, Any]:
    """Return the data for the page's script; values by column, in the order of `columns`."""
    outputs = _outputs(study)
    rows = study.rows[:MOST_ROWS]
    columns: list[dict[str, Any]] = [
        {
            "name": name,
            "label": label(name),
            "kind": "output" if name in outputs else "parameter",
            "numeric": study.is_numeric(name),
            "better": better(name) if name in outputs else "",
        }
        for name in (*study.varied, *outputs)
    ]
    bounded = [name for name in outputs if any(name in row["low"] for row in rows)]
    numeric = [name for name in study.varied if study.is_numeric(name)]
    return {
        "columns": columns,
        "rows": [
            {
                "n": row["number"],
                "v": [_plain(study.value(row, column["name"])) for column in columns],
                "b": {name: [row["low"][name], row["high"][name]] for name in bounded if name in row["low"]},
                "s": row["status"],
                "m": row["mode"],
                "w": row["binding"],
                "t": row["message"],
            }
            for row in rows
        ],
        "fixed": {key: _text(value) for key, value in study.spec.fixed.items()},
        "x": axes.x
        or (max(numeric, key=lambda n: len({repr(study.value(r, n)) for r in rows})) if numeric else ""),
        "y": axes.y or study.outputs[0],
        "by": axes.by,
        "shown": list(study.outputs),
        "left_out": max(0, len(study.rows) - MOST_ROWS),
        "reports": {row["number"]: path for row in rows if (path := _report(folder, row["number"]))},
    }


def _outputs(study: Shown) -> list[str]:
    """Return the requested outputs, then every other output that some row has."""
    found = dict.fromkeys(study.outputs)
    for row in study.rows:
        found |= dict.fromkeys(name for name in row["outputs"] if not name.startswith("bindings."))
    return [name for name in found if any(row["outputs"].get(name) is not None for row in study.rows)]


def _report(folder: Path, number: int) -> str:
    path = Path(REPORTS) / str(number) / "report.html"
    return path.as_posix() if (folder / path).is_file() else ""


def _plain(value: object) -> str | int | float | None:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return value if isinstance(value, int | str | None) else _text(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _tiles(study: Shown) -> list[tuple[str, str]]:
    done, output = study.done, study.outputs[0]
    found = [
        ("runs", f"{len(study.rows):,}"),
        ("with a result", f"{len(done):,}"),
        ("parameters varied", f"{len(study.varied)}"),
    ]
    values = [row["outputs"][output] for row in done if row["outputs"].get(output) is not None]
    if values:
        best = min(values) if better(output) == "minimize" else max(values)
        found.append((f"best of {short(output)}", text_of(best)))
    return [*found, ("worker seconds", text_of(sum(row["seconds"] for row in study.rows), 3))]


def _misfits(study: Shown) -> list[tuple[str, int, str]]:
    """Return the causes of missing results: binding resource or status, number of rows, and an example
    message."""
    found: dict[str, list[str]] = {}
    for row in study.rows:
        if row["status"] != "done":
            found.setdefault(row["binding"] or row["status"], []).append(row["message"])
    return sorted(((word, len(texts), texts[0]) for word, texts in found.items()), key=lambda item: -item[1])
