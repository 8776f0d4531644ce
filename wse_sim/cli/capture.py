"""``wse-sim capture``: look at a training run from another terminal, without a change of its script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wse_sim.errors import WseError
from wse_sim.files import claim_file, claim_folder

if TYPE_CHECKING:
    from wse_sim.cstorch.monitor.client import Entry


def capture_command(
    port: Annotated[
        int | None, typer.Argument(help="Port of the run; not needed if only one is live.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Whole steps to capture (default: 1).")] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="End at the first step boundary after so long.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="The trace: Perfetto, or Chrome JSON if it ends in .json or .json.gz."),
    ] = Path("capture.pftrace"),
    hta: Annotated[
        Path | None, typer.Option("--hta", help="Folder for Holistic Trace Analysis files.")
    ] = None,
    regions: Annotated[
        str | None, typer.Option("--regions", help="Patterns of regions, with commas between.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Folder for the page of the present compile.")
    ] = None,
    heatmap: Annotated[Path | None, typer.Option("--heatmap", help="File for the map of busy cores.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the live runs and end.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show what the run is doing and end.")] = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Show the run's metrics report and end.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Ask the run to end after its present step, and end.")
    ] = False,
) -> None:
    """Capture the next whole steps of a running script: wafer tracks and client tracks, as a trace."""
    from wse_sim.cstorch.monitor import client, timeline

    if listed:
        runs = client.live()
        for entry in runs:
            typer.echo(f"port {entry.port}  pid {entry.pid}  {entry.script}  {entry.folder}")
        if not runs:
            typer.echo("no live run")
        return
    if steps is not None and not 1 <= steps <= 10**9:
        raise WseError(f"--steps {steps} is impossible; ask for 1 to 1,000,000,000")
    if seconds is not None and not 0 < seconds <= 10**7:
        raise WseError(f"--seconds {seconds} is impossible; give a time above 0 and up to 10,000,000 s")
    _claim(out, hta, page, heatmap, not (status or metrics or stop))
    entry = client.find(port)
    if status or metrics or stop:
        _look(entry, status, metrics, stop)
        return
    chosen = tuple(part.strip() for part in (regions or "").split(",") if part.strip())
    data = client.captured(entry, steps if steps is not None or seconds is not None else 1, seconds, chosen)
    typer.echo(_summary(data, timeline.write(data, out)))
    if hta is not None:
        files = timeline.write_hta(data, hta)
        typer.echo(f"{len(files)} files for Holistic Trace Analysis in {hta}")
    if page is not None or heatmap is not None:
        _draw(entry, page, heatmap)


def _claim(out: Path, hta: Path | None, page: Path | None, heatmap: Path | None, captures: bool) -> None:
    """Claim all that will be written, before the run is asked for anything."""
    if captures:
        claim_file(out)
        for folder, option in ((hta, "--hta"), (page, "--page")):
            if folder is not None:
                claim_folder(folder, option)
        if heatmap is not None:
            claim_file(heatmap, "--heatmap")


def _look(entry: Entry, status: bool, metrics: bool, stop: bool) -> None:
    from wse_sim.cstorch.monitor import client

    if status:
        for key, value in client.ask(entry, "/status").items():
            typer.echo(f"{key:<14} {value}")
    if metrics:
        typer.echo(client.ask(entry, "/metrics"), nl=False)
    if stop:
        client.ask(entry, "/stop", {})
        typer.echo("the run ends after its present step")


def _draw(entry: Entry, page: Path | None, heatmap: Path | None) -> None:
    """Pages and maps of the present compile, drawn here: the run only saves its result."""
    from wse_sim.cstorch.monitor import client
    from wse_sim.engine.result import Result
    from wse_sim.modes import load_result
    from wse_sim.report import heatmap as maps
    from wse_sim.report import html

    folder = Path(client.ask(entry, "/save", {}, 120.0)["folder"])
    result = load_result(folder)
    if not isinstance(result, Result):
        raise WseError(f"{folder} holds no result of a step; capture again while the run trains")
    if page is not None:
        page.mkdir(parents=True, exist_ok=True)
        html.write_report(result, page)
        typer.echo(f"page in {page}")
    if heatmap is not None:
        maps.draw_map(result, "busy", path=heatmap)
        typer.echo(f"map in {heatmap}")


def _summary(data: dict[str, list[list[float]]], path: Path) -> str:
    numbers = [int(row[0]) for row in data["steps"]]
    wafer = sum(row[4] for row in data["steps"] if row[4] is not None)
    client_s = sum(row[2] for row in data["steps"])
    short = "; the run ended before the rest" if data["cut_short"] else ""
    return (
        f"steps {numbers[0]} to {numbers[-1]}: wafer {wafer:.6g} s, client {client_s:.6g} s, in {path}{short}"
    )
