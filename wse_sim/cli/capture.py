"""``wse-sim capture``: observes a training run from another terminal, without a change of its script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wse_sim.declarations import command
from wse_sim.errors import WseError
from wse_sim.files import claim_file, claim_folder
from wse_sim.options import Declared, option

if TYPE_CHECKING:
    from wse_sim.cstorch.monitor.client import Entry


class CaptureCommand(Declared):
    """Options of capturing, and of the other requests to a live run."""

    steps: int | None = option(None, "Whole steps to capture (default: 1).")
    seconds: float | None = option(None, "Stop at the first step boundary after this many seconds.")
    out: Path = option(
        Path("capture.pftrace"), "The trace: Perfetto, or Chrome JSON if it ends in .json or .json.gz."
    )
    hta: Path | None = option(None, "Folder for Holistic Trace Analysis files.")
    regions: str | None = option(None, "Comma-separated patterns of region names.")
    page: Path | None = option(None, "Folder for the HTML page of the current compile.")
    heatmap: Path | None = option(None, "File for the map of busy cores.")
    listed: bool = option(False, "List the live runs and exit.", flag="--list")
    status: bool = option(False, "Show the run's status and exit.")
    metrics: bool = option(False, "Show the run's metrics report and exit.")
    stop: bool = option(False, "Ask the run to stop after its current step, and exit.")

    @property
    def only_looks(self) -> bool:
        """True if the command captures no trace."""
        return self.status or self.metrics or self.stop


@command
def capture_command(
    options: CaptureCommand,
    port: Annotated[
        int | None, typer.Argument(help="Port of the run; not needed if only one is live.")
    ] = None,
) -> None:
    """Capture the next whole steps of a running script: wafer tracks and client tracks, as a trace."""
    from wse_sim.cstorch.monitor import client, timeline

    if options.listed:
        runs = client.live()
        for entry in runs:
            typer.echo(f"port {entry.port}  pid {entry.pid}  {entry.script}  {entry.folder}")
        if not runs:
            typer.echo("no live run")
        return
    steps, seconds = options.steps, options.seconds
    if steps is not None and not 1 <= steps <= 10**9:
        raise WseError(f"--steps {steps} is out of range; give 1 to 1,000,000,000")
    if seconds is not None and not 0 < seconds <= 10**7:
        raise WseError(f"--seconds {seconds} is invalid; give a time above 0 and up to 10,000,000 s")
    if not options.only_looks:
        _claim(options)
    entry = client.find(port)
    if options.only_looks:
        _look(entry, options)
        return
    chosen = tuple(part.strip() for part in (options.regions or "").split(",") if part.strip())
    data = client.captured(entry, steps if steps is not None or seconds is not None else 1, seconds, chosen)
    typer.echo(_summary(data, timeline.write(data, options.out)))
    if options.hta is not None:
        files = timeline.write_hta(data, options.hta)
        typer.echo(f"{len(files)} files for Holistic Trace Analysis in {options.hta}")
    if options.page is not None or options.heatmap is not None:
        _draw(entry, options.page, options.heatmap)


def _claim(options: CaptureCommand) -> None:
    """Claim all output files before anything is requested from the run."""
    claim_file(options.out)
    for folder, name in ((options.hta, "--hta"), (options.page, "--page")):
        if folder is not None:
            claim_folder(folder, name)
    if options.heatmap is not None:
        claim_file(options.heatmap, "--heatmap")


def _look(entry: Entry, options: CaptureCommand) -> None:
    from wse_sim.cstorch.monitor import client

    if options.status:
        for key, value in client.ask(entry, "/status").items():
            typer.echo(f"{key:<14} {value}")
    if options.metrics:
        typer.echo(client.ask(entry, "/metrics"), nl=False)
    if options.stop:
        client.ask(entry, "/stop", {})
        typer.echo("the run ends after its current step")


def _draw(entry: Entry, page: Path | None, heatmap: Path | None) -> None:
    """Draw pages and maps of the current compile in this process; the run only saves its result."""
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
    short = "; the run ended before the others" if data["cut_short"] else ""
    return (
        f"steps {numbers[0]} to {numbers[-1]}: wafer {wafer:.6g} s, client {client_s:.6g} s, in {path}{short}"
    )
