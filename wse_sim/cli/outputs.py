"""What a run leaves in its folder: the result, summaries, pictures, the page, the trace."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import WseError


@dataclass(frozen=True)
class TraceChoice:
    """Which timeline files to write and how much of it."""

    kind: str = "perfetto"  # perfetto, chrome or none
    cycles: tuple[int, int] | None = None
    regions: tuple[str, ...] = ()
    hta: Path | None = None


def trace_choice(kind: str, cycles: str | None, regions: str | None, hta: Path | None) -> TraceChoice:
    """Read the options of the command line.

    Raises
    ------
    WseError
        If the kind is unknown or the window is not A:B.
    """
    if kind not in ("perfetto", "chrome", "none"):
        raise WseError(f"--trace {kind} is unknown; use perfetto, chrome or none")
    window = None
    if cycles is not None:
        first, colon, last = cycles.partition(":")
        if not (colon and first.isdigit() and last.isdigit()) or int(first) >= int(last):
            raise WseError(f"--trace-cycles {cycles} is no window; give A:B in cycles with A < B")
        window = (int(first), int(last))
    names = tuple(part.strip() for part in regions.split(",") if part.strip()) if regions else ()
    return TraceChoice(kind, window, names, hta)


def write_all(result: Result | Infeasible, out: Path, trace: TraceChoice) -> None:
    """Save the result and everything that is drawn from it."""
    from wse_sim.report import tables
    from wse_sim.serialize import save

    out.mkdir(parents=True, exist_ok=True)
    save(result, out, "result")
    (out / "summary.json").write_text(
        json.dumps(tables.as_json(result), indent=2, default=float) + "\n", encoding="utf-8"
    )
    (out / "summary.txt").write_text(tables.summary_text(result) + "\n", encoding="utf-8")
    draw_all(result, out, trace)


def draw_all(result: Result | Infeasible, out: Path, trace: TraceChoice) -> None:
    """Pictures, the page and the trace of a result."""
    from wse_sim.report import heatmap, html

    html.write_report(result, out)
    if not isinstance(result, Result):
        return
    heatmap.draw_map(result, "busy", path=out / "heatmap_compute.png")
    heatmap.draw_links(result, path=out / "heatmap_links.png")
    if trace.kind != "none":
        from wse_sim.report.trace import write_trace

        name = "timeline.pftrace" if trace.kind == "perfetto" else "timeline.json"
        lines = write_trace(result, out / name, trace.cycles, trace.regions or None)
        if lines.left_out:
            print(f"{name}: left out {lines.left_out}", file=sys.stderr)
    if trace.hta is not None:
        from wse_sim.report.hta import write_hta

        write_hta(result, trace.hta)


def say_where(out: Path | None, quiet: bool) -> None:
    """Name the files written, on standard error."""
    if out is None or quiet:
        return
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        print(f"wrote {path}", file=sys.stderr)
