"""``wse-sim validate``: compares predictions with published measurements, or with those of your own machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wse_sim.atomic_files import together
from wse_sim.cli.certainty import Certainty, unused_bounds
from wse_sim.cli.common import Screen, print_json, progress, say_without_effect
from wse_sim.declarations import command
from wse_sim.errors import WseError
from wse_sim.files import is_folder
from wse_sim.options import Declared, Timing, Whole, option
from wse_sim.user_code import code_of

if TYPE_CHECKING:
    from wse_sim.validation.refit import Refit
    from wse_sim.validation.run import Validation
    from wse_sim.validation.suite import Point, Suite


class ValidateCommand(Declared):
    """Options of a validation."""

    data: Path | None = option(None, "A suite of measurements (YAML); default: all that ship.")
    mine: Path | None = option(None, "Folder with logs of your own runs, used instead of the shipped suites.")
    refit: bool = option(False, "Print how far the points would move each fitted constant within its range.")
    timing: Timing = option("model", "model (formulas) or fabric (programs run).")
    workers: Whole = option(1, "Processes that predict the points.", unit="processes", ge=1, le=1024)
    sources: Path | None = option(None, "Folder with checkouts of published programs in CSL.")
    run_code: bool = option(
        False, "Run the Python (FILE.py:NAME, package.module:NAME) that a suite or a run of --mine names."
    )
    out: Path | None = option(
        None,
        "Folder for validation.png and validation.json; with --mine also suite.yaml, with --refit the refitted wafer and cluster.",
        writes="folder",
    )


@command
def validate_command(options: ValidateCommand, screen: Screen, certainty: Certainty) -> None:
    """Predict every point of a suite; prints the error of each and the mean per subject."""
    from wse_sim.validation.picture import draw
    from wse_sim.validation.run import validate

    out = options.out
    say_without_effect(unused_bounds(certainty), screen.strict)
    if options.sources is not None and not is_folder(options.sources, "sources", WseError):
        raise WseError(
            f"sources {options.sources} is not a folder; give the folder that contains the published programs"
        )
    if options.refit and options.mine is None and options.data is None:
        raise WseError("--refit needs points of your own; give --mine FOLDER or --data SUITE")
    suite = _suite(options)
    workers = max(options.workers, certainty.interval_workers)
    refits: Sequence[Refit] = ()
    with progress(screen.quiet) as say:
        answer = validate(
            suite,
            timing=options.timing,
            progress=say,
            percent=certainty.interval,
            workers=workers,
            sources=options.sources,
        )
        if options.refit:
            refits = _refits(answer, say)
    written = []
    if out is not None:
        data = answer.as_dict() | ({"refit": [refit.as_dict() for refit in refits]} if options.refit else {})
        with together(out) as part:
            (part / "validation.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
            draw(answer, part / "validation.png")
            more = _passed_on(suite, refits, options, part)
        written = [
            out / name for name in ("validation.png", "validation.json", *(path.name for path in more))
        ]
    if screen.as_json:
        print_json(
            answer.as_dict() | ({"refit": [refit.as_dict() for refit in refits]} if options.refit else {})
        )
    else:
        print("\n\n".join([answer.table(), *(refit.table() for refit in refits)]))
    if not screen.quiet:
        print("".join(f"wrote {path}\n" for path in written), end="", file=sys.stderr)
    unread = [point for point in suite.points if point.fault] if options.mine is not None else []
    if unread:
        raise WseError(
            f"{len(unread)} of {len(suite.points)} points cannot be read; their rows state why and what to do"
        )


def _suite(options: ValidateCommand) -> Suite:
    """Return the requested points; without --run-code none of them runs Python that its file names."""
    suite = _stated(options)
    if options.run_code:
        return suite
    return suite.model_copy(update={"points": tuple(_without_code(point) for point in suite.points)})


def _without_code(point: Point) -> Point:
    code = [] if point.fault else code_of(point.params)
    if not code:
        return point
    fault = f"{point.id} names Python ({code[0][:200]}); read that file, then give --run-code"
    return point.model_copy(update={"fault": fault, "measured": None})


def _stated(options: ValidateCommand) -> Suite:
    """Return the points as their files state them."""
    from wse_sim.validation.suite import Suite, load_suite
    from wse_sim.validation.user_runs import load_mine

    if options.mine is None:
        return load_suite(options.data)
    mine = load_mine(options.mine, options.out)
    if options.data is None:
        return mine
    return Suite(points=(*load_suite(options.data).points, *mine.points))


def _refits(answer: Validation, say: Callable[[str], None]) -> Sequence[Refit]:
    from wse_sim.validation.refit import refit

    return refit([row.point for row in answer.rows if row.error is not None], say)


def _passed_on(suite: Suite, refits: Sequence[Refit], options: ValidateCommand, folder: Path) -> list[Path]:
    """Write files for others to `folder`: the runs as a suite, the refitted wafers and clusters."""
    from wse_sim.validation.refit import write_refits
    from wse_sim.validation.suite import write_suite

    written = [write_suite(suite, folder / "suite.yaml")] if options.mine is not None else []
    return [*written, *write_refits(refits, folder, options.out)]
