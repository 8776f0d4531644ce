"""``wse-sim study``: run many settings from one description, and show the results."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wse_sim.atomic_files import together, whole
from wse_sim.cli.common import Screen, print_json, say_without_effect, unused
from wse_sim.cli.strict_parser import StrictGroup
from wse_sim.declarations import command
from wse_sim.errors import WseError
from wse_sim.files import is_file
from wse_sim.options import Declared, Whole, option
from wse_sim.user_code import code_of

if TYPE_CHECKING:
    from typer._click.core import Context

    from wse_sim.studies.schema import StudySpec
    from wse_sim.studies.store import Store
    from wse_sim.studies.study_plan import Planned

RUN = "run"


class StudyGroup(StrictGroup):
    """``wse-sim study FILE`` is short for ``wse-sim study run FILE``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Interpret the first word as a file unless it names a command."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=StudyGroup,
    help="Many runs from one YAML: wse-sim study STUDY.yaml --out DIR; then plot, export, result.",
    no_args_is_help=True,
)

OutArgument = Annotated[Path, typer.Argument(help="Folder of a study that ran.")]


class StudyCommand(Declared):
    """Options of a study's run."""

    out: Path | None = option(None, "Folder for the store, pictures and the page.", writes="folder")
    store: Path | None = option(None, "Store that several studies share (default: in --out).", writes="file")
    workers: Whole = option(
        2, "Processes of the local cluster; 0 runs in this process.", unit="processes", ge=0, le=1024
    )
    scheduler: str | None = option(None, "Address of a Dask scheduler, such as tcp://host:8786.")
    memory: str = option(
        "auto", "Memory of a local worker, such as 4GB; a worker that exceeds it is stopped."
    )
    dry_run: bool = option(False, "Check the study, count its runs, estimate the time, run nothing.")
    export: Literal["parquet", "csv"] | None = option(
        None, "Also write the rows into a table next to the store."
    )


@app.command(RUN)
@command
def run_command(
    study: Annotated[Path, typer.Argument(help="YAML file of the study.")],
    options: StudyCommand,
    screen: Screen,
) -> None:
    """Run what the store lacks of a study; the same command continues where another was cut off."""
    from wse_sim.studies import runner
    from wse_sim.studies.folder import plain_name
    from wse_sim.studies.schema import read_study, remarks

    spec, name = read_study(study), plain_name(study.stem)
    idle = unused(options, ("scheduler", "memory", "export"), "with --dry-run") if options.dry_run else []
    if options.scheduler is not None and not options.dry_run:
        idle += unused(options, ("workers", "memory"), "with --scheduler, which has its own workers")
    elif not options.workers:
        idle += unused(options, ("memory",), "with --workers 0")
    say_without_effect(idle, screen.strict)
    for remark in remarks(spec) if not screen.quiet else ():
        print(f"wse-sim: {remark}", file=sys.stderr)
    if options.dry_run:
        _dry_run(spec, options, screen)
        return
    if options.out is None:
        raise WseError("a study needs a folder for its rows; give --out DIR, or --dry-run")
    say = ProgressLine(screen.quiet)
    try:
        ran = runner.run_study(
            spec,
            options.out,
            name=name,
            store=options.store,
            workers=options.workers,
            scheduler=options.scheduler,
            memory_limit=options.memory,
            say=say,
            tell=say.stays,
        )
    finally:
        say.end()
    if options.export is not None:
        say.stays(f"wrote {_export(options.out, options.export)}")
    if screen.as_json:
        print_json({"study": name, "out": str(options.out), **ran.__dict__})
    else:
        print(f"{name}: {runner.summary(ran)}")
    if not ran.counts["done"]:
        raise typer.Exit(1)


class ProgressLine:
    """Progress on one line of a terminal; in a pipe, a line at intervals."""

    EVERY_S = 10.0

    def __init__(self, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._last = time.monotonic()
        self._open = False

    def __call__(self, text: str) -> None:
        """Show progress, over the previous progress on a terminal."""
        if self._is_quiet:
            return
        if self._is_terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif time.monotonic() - self._last > self.EVERY_S:
            self._last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def stays(self, text: str) -> None:
        """Print a line that stays visible."""
        self.end()
        if not self._is_quiet:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Close the line of progress."""
        if self._open:
            print(file=sys.stderr)
            self._open = False


def _dry_run(spec: StudySpec, options: StudyCommand, screen: Screen) -> None:
    """Print the number of runs and of captures, what the store has, and an estimate of the time."""
    from wse_sim.studies.store import FILE, Store
    from wse_sim.studies.study_plan import estimate_s, planned_sweep

    store_path = options.store or (options.out / FILE if options.out is not None else None)
    there: Store | None = (
        Store(store_path) if store_path is not None and is_file(store_path, "store") else None
    )
    planned: Planned = planned_sweep(spec) if spec.mode == "sweep" else _first_trial(spec)
    known = there.finished(planned.requests) if there is not None else set()
    missing = [key for key in planned.requests if key not in known]
    seconds = estimate_s(planned, missing, there, options.workers)
    if spec.search is not None:
        seconds *= spec.search.trials
    data: dict[str, Any] = {
        "runs": spec.search.trials if spec.search is not None else len(planned.numbered),
        "distinct": len(planned.requests),
        "graphs": planned.graphs,
        "in_store": len(known),
        "faults": list(planned.faults.values()),
        "seconds": seconds,
        "workers": options.workers,
    }
    if there is not None:
        there.close()
    if screen.as_json:
        print_json(data)
        return
    kind = "trials" if spec.search is not None else "runs"
    print(
        f"{data['runs']:,} {kind} of {data['graphs']:,} captured models; {data['in_store']:,} are in the store"
    )
    print(f"about {_about(seconds)} on {max(1, options.workers)} workers; nothing was run")
    for text in data["faults"][:5]:
        print(f"will be a row without a result: {text}")
    if len(data["faults"]) > 5:
        print(f"and {len(data['faults']) - 5:,} more such rows")


def _first_trial(spec: StudySpec) -> Planned:
    from wse_sim.studies.search import corner
    from wse_sim.studies.study_plan import plan

    return plan(spec, [corner(spec)])


def _about(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def _export(out: Path, kind: str) -> Path:
    """Write all rows of a study as one table."""
    from wse_sim.files import claim_file, csv_cell
    from wse_sim.studies.folder import Folder
    from wse_sim.studies.store import Store

    folder, study, name = Folder.opened(out)
    path = claim_file(out / f"{name}.{kind}", "--export")
    with Store(folder.store, readonly=True) as store:
        frame = store.frame(study)
    if kind == "csv":
        frame = frame.rename(columns=csv_cell).map(csv_cell)
        with whole(path) as part:
            frame.to_csv(part, index=False)
        return path
    try:
        with whole(path) as part:
            frame.to_parquet(part, index=False)
    except ImportError:
        raise WseError(
            "parquet needs pyarrow, which is not installed; pip install 'wse-sim[study]'"
        ) from None
    return path


@app.command("export")
def export_command(
    folder: OutArgument,
    kind: Annotated[str, typer.Option("--format", help="parquet or csv.")] = "parquet",
) -> None:
    """Write the rows of a study as one table."""
    from wse_sim.cli.common import one_of

    print(f"wrote {_export(folder, one_of(kind, ('parquet', 'csv'), 'format'))}")


@app.command("parameters")
def parameters_command(
    words: Annotated[str, typer.Argument(help="Only those whose name contains this.")] = "",
) -> None:
    """List the parameters that a study can vary, and the outputs that it can request."""
    from wse_sim.studies.parameters import parameters
    from wse_sim.studies.quantities import OUTPUTS, UNITS

    for one in parameters().values():
        if words in one.name:
            unit = f" [{one.unit}]" if one.unit else ""
            print(f"{one.name:<36} {one.kind.__name__:<6}{unit} {one.help}".rstrip())
    print("\noutputs:")
    for name in OUTPUTS:
        if words in name:
            print(f"{name:<36} {UNITS.get(name, '')}".rstrip())


class PlotCommand(Declared):
    """Options of a study's picture."""

    x: str = option("", "Parameter or output on the x axis (default: the one with most values).")
    y: str = option("", "Output on the y axis (default: the study's first).")
    by: str = option("", "Parameter shown by line color, and on the y axis of a map.")
    objectives: str = option(
        "", "Objectives of the Pareto front: OUTPUT:max,OUTPUT:min (default: the search's, or two outputs)."
    )


def _idle_axes(options: PlotCommand, pictures: set[str]) -> list[str]:
    """Return the options of a picture that this study does not have."""
    found = []
    if not pictures & {"lines", "map", "axes"}:
        found += unused(options, ("x", "y", "by"), "on this study: it has no picture with axes")
    if "pareto" not in pictures:
        found += unused(options, ("objectives",), "on this study: it has no Pareto front")
    return found


@app.command("plot")
@command
def plot_command(folder: OutArgument, options: PlotCommand, screen: Screen) -> None:
    """Draw the pictures and the page of a completed study."""
    from wse_sim.studies.data import shown
    from wse_sim.studies.folder import Folder
    from wse_sim.studies.page import write_page
    from wse_sim.studies.plots import Axes, draw_all
    from wse_sim.studies.store import Store

    opened, number, name = Folder.opened(folder)
    with Store(opened.store, readonly=True) as store:
        study = shown(store, number, name)
    axes = Axes(options.x, options.y, options.by, options.objectives)
    with together(folder) as part:
        drawn = [*draw_all(study, part, axes), write_page(study, part, axes)]
    pictures = [folder / path.name for path in drawn[:-1]]
    say_without_effect(_idle_axes(options, {path.stem for path in pictures}), screen.strict)
    written = [folder / path.name for path in drawn]
    _, _, chosen = study.pareto(study.objectives(options.objectives))
    if screen.as_json:
        print_json(
            {"wrote": [str(path) for path in written], "chosen": None if chosen is None else chosen.why}
        )
        return
    for path in written:
        print(f"wrote {path}")
    if chosen is not None:
        print(chosen.why)


@app.command("result")
def result_command(
    folder: OutArgument,
    number: Annotated[int, typer.Argument(help="Number of the run, as the page and the tables give it.")],
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code", help="Run the Python (FILE.py:NAME, package.module:NAME) that the store names."
        ),
    ] = False,
) -> None:
    """Run one setting of a study again and write its result, files, pictures and report to the study's folder."""
    from wse_sim import api
    from wse_sim.cli.outputs import TraceChoice, write_all
    from wse_sim.studies.folder import Folder
    from wse_sim.studies.page import REPORTS
    from wse_sim.studies.schema import study_from
    from wse_sim.studies.settings import Resolver
    from wse_sim.studies.store import Store

    opened, study, name = Folder.opened(folder)
    with Store(opened.store, readonly=True) as store:
        row = next((row for row in store.rows(study) if row["number"] == number), None)
        stated = store.spec_of(study)
    if row is None:
        raise WseError(f"study {name} has no run {number}; its page and its tables list the numbers")
    code = code_of(row["parameters"]) + code_of(stated.get("fixed") or {})
    if code and not run_code:
        raise WseError(
            f"run {number} of study {name} needs Python that the store names ({', '.join(code)[:200]}); "
            "read that file, then give --run-code"
        )
    request = Resolver(study_from(stated, name)).request(row["parameters"])
    result = api.run(request.model, request.options)
    out = folder / REPORTS / str(number)
    with together(out) as part:
        write_all(result, part, TraceChoice())
    print(f"wrote {out}")
    if not result.feasible:
        print(result.message if isinstance(result, api.Infeasible) else "")
        raise typer.Exit(1)
