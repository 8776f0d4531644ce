"""``wse-sim validate``: predictions against published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wse_sim.cli.common import JsonOption, QuietOption
from wse_sim.errors import WseError


def validate_command(
    data: Annotated[Path | None, typer.Option("--data", help="A suite of measurements (YAML).")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for validation.png.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict every point of a suite and print the errors."""
    raise WseError("validation is not installed")
