"""``wse-sim validate``: predictions against published measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wse_sim.cli.common import JsonOption, QuietOption, one_of, print_json, progress


def validate_command(
    data: Annotated[
        Path | None, typer.Option("--data", help="A suite of measurements (YAML); default: shipped.")
    ] = None,
    timing: Annotated[
        str, typer.Option("--timing", help="model (formulas) or fabric (programs run).")
    ] = "model",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for validation.png and validation.json.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict every point of a suite; prints the error of each and the mean per subject."""
    from wse_sim.validation.picture import draw
    from wse_sim.validation.run import validate
    from wse_sim.validation.suite import load_suite

    one_of(timing, ("model", "fabric"), "timing")
    suite = load_suite(data)
    with progress(quiet) as say:
        answer = validate(suite, timing=timing, progress=say)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "validation.json").write_text(json.dumps(answer.as_dict(), indent=2) + "\n", encoding="utf-8")
        draw(answer, out / "validation.png")
    if as_json:
        print_json(answer.as_dict())
    else:
        print(answer.table())
    if out is not None and not quiet:
        print(f"wrote {out / 'validation.png'}\nwrote {out / 'validation.json'}", file=sys.stderr)
