"""Files that a run writes to its folder: the result, summaries, pictures, the page, the trace."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wse_sim.atomic_files import together
from wse_sim.cli.common import unused
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import WseError
from wse_sim.options import Declared, option
from wse_sim.units import counted

if TYPE_CHECKING:
    from wse_sim.report.fabric_counters import MeasuredCounters


@dataclass(frozen=True)
class TraceChoice:
    """Which timeline files to write, and which part of the timeline."""

    kind: str = "perfetto"  # perfetto, chrome or none
    cycles: tuple[int, int] | None = None
    regions: tuple[str, ...] = ()
    hta: Path | None = None


class TraceOptions(Declared):
    """Options of the timeline files that a command writes."""

    trace: Literal["perfetto", "chrome", "none"] = option(
        "perfetto", "Timeline in --out: perfetto, chrome or none."
    )
    trace_cycles: str | None = option(None, "Window A:B of the timeline.")
    trace_regions: str | None = option(None, "Regions of the timeline, as comma-separated patterns.")
    hta: Path | None = option(None, "Folder for Holistic Trace Analysis files.", writes="folder")

    def choice(self) -> TraceChoice:
        """Return the choice, read.

        Raises
        ------
        WseError
            If the window is not A:B.
        """
        window = None
        if self.trace_cycles is not None:
            start, _, end = self.trace_cycles.partition(":")
            first, last = counted(start), counted(end)
            if first is None or last is None or first >= last:
                raise WseError(
                    f"--trace-cycles {self.trace_cycles} is not a window; give A:B in cycles with A < B"
                )
            window = (first, last)
        names = tuple(part.strip() for part in (self.trace_regions or "").split(",") if part.strip())
        return TraceChoice(self.trace, window, names, self.hta)


def unused_trace(trace: TraceOptions, out: Path | None) -> list[str]:
    """Return the options of the timeline that have no effect because no folder or no timeline is written."""
    if out is None:
        return unused(trace, [option.name for option in TraceOptions.options()], "without --out")
    if trace.trace == "none":
        return unused(trace, ("trace_cycles", "trace_regions"), "with --trace none")
    return []


def write_all(
    result: Result | Infeasible, out: Path, trace: TraceChoice, measured: MeasuredCounters | None = None
) -> None:
    """Save the result and everything that is drawn from it; `measured` has the counters of a fabric run, if there was
    one.

    Call it inside :func:`wse_sim.atomic_files.together`: what is here is whole if all of it is.
    """
    from wse_sim.report import tables
    from wse_sim.serialize import save

    out.mkdir(parents=True, exist_ok=True)
    save(result, out, "result")
    write_json(out / "summary.json", tables.as_json(result))
    (out / "summary.txt").write_text(tables.summary_text(result) + "\n", encoding="utf-8")
    draw_all(result, out, trace, measured)


def write_json(path: Path, data: object) -> None:
    """Write plain data to a file."""
    path.write_text(json.dumps(data, indent=2, default=float) + "\n", encoding="utf-8")


def draw_all(
    result: Result | Infeasible, out: Path, trace: TraceChoice, measured: MeasuredCounters | None = None
) -> None:
    """Draw the pictures, the page and the trace of a result."""
    from wse_sim.report import heatmap, html

    html.write_report(result, out, measured=measured)
    if not isinstance(result, Result):
        return
    heatmap.draw_compute(result, out)
    heatmap.draw_links(result, path=out / "heatmap_links.png")
    if trace.kind != "none":
        from wse_sim.report.trace import write_trace

        name = "timeline.pftrace" if trace.kind == "perfetto" else "timeline.json"
        lines = write_trace(result, out / name, trace.cycles, trace.regions or None)
        if lines.left_out:
            print(f"{name}: left out {lines.left_out}", file=sys.stderr)
    if trace.hta is not None:
        from wse_sim.report.hta import write_hta

        with together(trace.hta) as part:
            write_hta(result, part)


def say_where(out: Path | None, quiet: bool) -> None:
    """Name the files written, on standard error."""
    if out is None or quiet:
        return
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        print(f"wrote {path}", file=sys.stderr)
