"""Report of a run: a profile by source line, maps of the cores, and one self-contained HTML page.

Files: ``profile.json`` (cycles per source line and core class), ``profile.txt`` (cycles per line, summed over
the classes), ``compute.png``, ``stalls.png``, ``links.png``, ``memory.txt`` and ``memory.json`` (the memory
map), and ``report.html`` with all of them; with the sanitizer also ``findings.json``, and after a failed run
``ended.txt``.
"""

from __future__ import annotations

import base64
import html
import io
import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.atomic_files import together
from wse_sim.csl.host.memory import memory_map, memory_text
from wse_sim.csl.host.record import Record
from wse_sim.csl.host.sanitized import findings_text, is_asked
from wse_sim.fabric.vm.findings import Finding
from wse_sim.picture_text import plain_text

MOST_LINES = 60
FOLDER_VARIABLE = "WSE_SIM_CSL_REPORT_DIR"
"""Environment variable with the folder of the report of every stopped run."""


def report_where_asked(record: Record, findings: Sequence[Finding] = (), ended: str = "") -> None:
    """Write the report of a run to the folder that the environment names, if any."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        write_report(record, Path(folder), findings, ended)


def write_report(record: Record, folder: Path, findings: Sequence[Finding] = (), ended: str = "") -> None:
    """Write the report of a run into `folder`; ``ended`` is the reason for a failed run."""
    rows = record.session.profile()
    for row in rows:
        row["text"] = _source_line(row["file"], row["line"])
    lines, maps = by_line(rows), draw_maps(record)
    with together(folder) as part:
        (part / "profile.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (part / "profile.txt").write_text(profile_text(lines), encoding="utf-8")
        for name, content in maps.items():
            (part / f"{name}.png").write_bytes(content)
        memory = memory_map(record.program.image)
        (part / "memory.txt").write_text(memory_text(memory) + "\n", encoding="utf-8")
        (part / "memory.json").write_text(
            json.dumps([row.as_dict() for row in memory], indent=1) + "\n", encoding="utf-8"
        )
        texts = {"How it ended": ended}
        if is_asked():
            (part / "findings.json").write_text(
                json.dumps([f.as_dict() for f in findings], indent=1) + "\n", encoding="utf-8"
            )
            texts["What the sanitizer found"] = findings_text(list(findings))
        if ended:
            (part / "ended.txt").write_text(ended + "\n", encoding="utf-8")
        texts["Memory"] = memory_text(memory)
        (part / "report.html").write_text(page(record, lines, maps, texts), encoding="utf-8")


def by_line(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum the profile's cycles and executions over the code classes, and return one row per source line, most
    cycles first."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in rows:
        kept = found.setdefault(
            (row["file"], row["line"], row["function"]), {**row, "cycles": 0, "executions": 0, "classes": 0}
        )
        kept["cycles"] += row["cycles"]
        kept["executions"] += row["executions"]
        kept["classes"] += 1
    for row in found.values():
        row["class"] = row["class"] if row["classes"] == 1 else f"{row['classes']} classes"
    return sorted(found.values(), key=lambda row: (-row["cycles"], row["file"], row["line"]))


@lru_cache(maxsize=256)
def _lines_of(file: str) -> tuple[str, ...]:
    path = Path(file)
    if not os.path.isfile(path):
        path = Path(__file__).parent.parent / "lib" / f"{file.removeprefix('<').removesuffix('>')}.csl"
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        return ()


def _source_line(file: str, line: int) -> str:
    lines = _lines_of(file)
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def profile_text(rows: list[dict[str, Any]]) -> str:
    """Format a profile as lines for a terminal: fraction of the cycles, cycles, executions, place and
    source."""
    total = sum(row["cycles"] for row in rows) or 1
    out = [f"{'fraction':>8} {'cycles':>12} {'runs':>9}  place and source"]
    for row in rows[:MOST_LINES]:
        place = f"{Path(row['file']).name}:{row['line']} ({row['function']}, {row['class']})"
        out.append(f"{row['cycles'] / total:>8.1%} {row['cycles']:>12,} {row['executions']:>9,}  {place}")
        out.append(f"{'':>33}{row['text']}")
    return "\n".join(out) + "\n"


@plain_text
def draw_maps(record: Record) -> dict[str, bytes]:
    """Draw maps of the cores as PNG data: percentage of cycles busy, percentage waiting, and words on the
    busiest link."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    counters = record.session.counters()
    cycles = _at_work(record)
    layers = {
        "compute": (100 * counters["busy"] / cycles, "busy, % of the cycles at work"),
        "stalls": (
            100 * (counters["stalled_in"] + counters["stalled_out"]) / cycles,
            "waiting for queues, % of the cycles at work",
        ),
        "links": (counters["links"].max(axis=2), "words on the busiest link"),
    }
    found = {}
    for name, (values, label) in layers.items():
        rows, cols = values.shape
        size = 5.0
        figure, axes = plt.subplots(figsize=(size + 1.4, max(1.6, min(9.0, size * rows / cols + 1.0))))
        picture = axes.imshow(
            values,
            cmap="viridis",
            aspect="equal" if max(rows, cols) < 20 * min(rows, cols) else "auto",
            vmin=0,
            vmax=values.max(initial=0) or 1,  # with zeros only, the color bar would include negative numbers
        )
        figure.colorbar(picture, ax=axes, label=label, shrink=0.85)
        axes.set(xlabel="column", ylabel="row")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=110, bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)
        found[name] = buffer.getvalue()
    return found


_STYLE = Path(__file__).parents[2] / "report" / "templates" / "report.css"
"""Style sheet of this package's reports, in light and dark mode."""
_OWN_STYLE = """
.tiles { grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); }
figure { display: inline-block; margin: 0 16px 12px 0; width: min(100%, 400px); vertical-align: top; }
figure img { width: 100%; background: #fff; border-radius: 6px; }
.profile td:nth-child(-n+4), .profile th:nth-child(-n+4) { text-align: right; white-space: nowrap; }
.profile td:last-child { width: 100%; }
.profile .bar i { background: var(--busy); }
.profile code { white-space: pre-wrap; }
.place { color: var(--soft); }
pre { overflow-x: auto; font-size: 13px; }
@media (max-width: 600px) {
  .profile td:nth-child(2), .profile th:nth-child(2), .profile td:nth-child(4), .profile th:nth-child(4) { display: none; }
  .profile th { white-space: normal; overflow-wrap: normal; }
  .profile td:last-child { min-width: 190px; }
}
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head><body>
<header><h1>{title}</h1><p>{summary}</p><nav>{links}</nav></header>
<main>
<section class="tiles">{tiles}</section>
<section id="lines"><h2>Where the cycles go, by source line</h2>
<div class="across"><table class="plain profile"><thead><tr><th>fraction</th><th></th><th>cycles, all cores</th><th>runs</th><th>source</th></tr></thead>
<tbody>{rows}</tbody></table></div></section>
{sections}
</main></body></html>
"""
_CAPTIONS = {
    "compute": "Fraction of the cycles at work in which each core issues instructions",
    "stalls": "Fraction of the cycles at work in which each core waits for a queue",
    "links": "Words on the busiest link of each core",
}


def page(record: Record, rows: list[dict[str, Any]], maps: dict[str, bytes], texts: Mapping[str, str]) -> str:
    """Return the report as one HTML page without references to other files.

    ``texts`` contains further sections by title; empty ones are left out.
    """
    total = sum(row["cycles"] for row in rows) or 1
    body = []
    for row in rows[:MOST_LINES]:
        fraction = row["cycles"] / total
        place = html.escape(f"{Path(row['file']).name}:{row['line']}, {row['function']} ({row['class']})")
        body.append(
            f"<tr><td>{100 * fraction:.1f} %</td><td><span class='bar'><i style='width:{max(1, round(100 * fraction))}%'></i></span></td>"
            f"<td>{row['cycles']:,}</td><td>{row['executions']:,}</td>"
            f"<td><code>{html.escape(row['text'])}</code><br><span class='place'>{place}</span></td></tr>"
        )
    image = record.program.image
    title = html.escape(f"{record.folder.resolve().parent.name}: a run of its program")
    parts = {"Cores": _figures(maps)} if image.rows * image.cols > 1 else {}
    parts |= {name: f"<pre>{html.escape(text)}</pre>" for name, text in texts.items() if text}
    sections = [
        f'<section id="part{number}"><h2>{html.escape(name)}</h2>\n{content}</section>'
        for number, (name, content) in enumerate(parts.items())
    ]
    links = ["<a href='#lines'>By source line</a>"]
    links += [f"<a href='#part{number}'>{html.escape(name)}</a>" for number, name in enumerate(parts)]
    return _PAGE.format(
        title=title,
        style=_STYLE.read_text(encoding="utf-8") + _OWN_STYLE,
        summary=f"{image.cols} x {image.rows} cores of {image.arch}; {record.seconds:.1f} s of simulation",
        links="".join(links),
        tiles="".join(
            f'<div class="tile"><span class="value">{value}</span><span class="name">{name}</span></div>'
            for name, value in _tiles(record)
        ),
        rows="\n".join(body),
        sections="\n".join(sections),
    )


def _at_work(record: Record) -> int:
    """Return the cycles of a run without those in which only the host was active.

    Host copies take thousands of times as long as small programs.
    """
    return max(1, record.session.cycle - record.session.quiet_cycles)


def _tiles(record: Record) -> list[tuple[str, str]]:
    """Return the key figures at the top of the page as (label, text)."""
    counters, cycles = record.session.counters(), _at_work(record)
    waiting = counters["stalled_in"] + counters["stalled_out"]
    return [
        ("cycles, host copies included", f"{record.session.cycle:,}"),
        ("cycles in which a core or a word was at work", f"{cycles:,}"),
        ("instructions", f"{int(counters['opcodes'].sum()):,}"),
        ("busy, mean over the cores", f"{100 * float(np.mean(counters['busy'])) / cycles:.1f} %"),
        ("waiting for queues, mean", f"{100 * float(np.mean(waiting)) / cycles:.1f} %"),
        ("words on the busiest link", f"{int(counters['links'].max(initial=0)):,}"),
    ]


def _figures(maps: Mapping[str, bytes]) -> str:
    return "\n".join(
        f"<figure><img alt='{_CAPTIONS.get(name, name)}' src='data:image/png;base64,{base64.b64encode(content).decode()}'>"
        f"<figcaption class='hint'>{_CAPTIONS.get(name, name)}</figcaption></figure>"
        for name, content in maps.items()
    )
