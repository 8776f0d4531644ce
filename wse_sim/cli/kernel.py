"""``wse-sim kernel``: one kernel, by formula and wavelet by wavelet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wse_sim.cli.common import JsonOption, QuietOption, WaferOption
from wse_sim.errors import WseError


def kernel_command(
    name: Annotated[str, typer.Argument(help="The kernel (wse-sim show kernels).")],
    param: Annotated[list[str] | None, typer.Option("--param", help="key=value, repeated.")] = None,
    wafer: WaferOption = "wse2",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for pictures and traces.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one kernel on the simulated fabric."""
    raise WseError(f"kernel '{name}' cannot be run yet; its programs are not installed")
