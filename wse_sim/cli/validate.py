"""``wse-sim validate``: predictions against published measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from wse_sim.cli.certainty import Certainty, unused_bounds
from wse_sim.cli.common import Screen, print_json, progress, say_without_effect
from wse_sim.declared import command
from wse_sim.errors import WseError
from wse_sim.files import is_folder
from wse_sim.options import Declared, Timing, Whole, option


class ValidateCommand(Declared):
    """What a validation asks for."""

    data: Path | None = option(None, "A suite of measurements (YAML); default: all that ship.")
    timing: Timing = option("model", "model (formulas) or fabric (programs run).")
    workers: Whole = option(1, "Processes that predict the points.", unit="processes", ge=1, le=1024)
    sources: Path | None = option(None, "Folder with checkouts of published programs in CSL.")
    out: Path | None = option(None, "Folder for validation.png and validation.json.", writes="folder")


@command
def validate_command(options: ValidateCommand, screen: Screen, certainty: Certainty) -> None:
    """Predict every point of a suite; prints the error of each and the mean per subject."""
    from wse_sim.validation.picture import draw
    from wse_sim.validation.run import validate
    from wse_sim.validation.suite import load_suite

    out = options.out
    say_without_effect(unused_bounds(certainty), screen.strict)
    if options.sources is not None and not is_folder(options.sources, "sources", WseError):
        raise WseError(
            f"sources {options.sources} is no folder; give the folder around the published programs"
        )
    suite = load_suite(options.data)
    workers = max(options.workers, certainty.interval_workers)
    with progress(screen.quiet) as say:
        answer = validate(
            suite,
            timing=options.timing,
            progress=say,
            percent=certainty.interval,
            workers=workers,
            sources=options.sources,
        )
    if out is not None:
        (out / "validation.json").write_text(json.dumps(answer.as_dict(), indent=2) + "\n", encoding="utf-8")
        draw(answer, out / "validation.png")
    if screen.as_json:
        print_json(answer.as_dict())
    else:
        print(answer.table())
    if out is not None and not screen.quiet:
        print(f"wrote {out / 'validation.png'}\nwrote {out / 'validation.json'}", file=sys.stderr)
