"""The command line of the runner: options before the script belong to the runner, everything after it to the script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wse_sim.cstorch.runner_options import RunnerOptions
from wse_sim.declarations import command
from wse_sim.errors import WseError
from wse_sim.hardware import load_cluster, load_wafer

CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}


@command
def script_command(
    script: Annotated[Path, typer.Argument(help="The training script.")],
    options: RunnerOptions,
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.")] = None,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of a fault.")
    ] = False,
) -> None:
    """Run a training script on the simulated wafer: it trains on the CPU and states what the wafer would do."""
    from wse_sim.cstorch import faults, runtime
    from wse_sim.cstorch.runner import run_script
    from wse_sim.modes import competing

    known = [*(each.name for each in competing()), "auto"]
    if options.mode is not None and options.mode not in known:
        raise WseError(f"--mode {options.mode} is unknown; use {', '.join(known[:-1])} or {known[-1]}")
    if options.check_values and options.numerics == "compiled":
        raise WseError(
            "--check-values needs single operators and --numerics compiled has none; use fp32 or mixed"
        )
    load_wafer(options.wafer)
    load_cluster(options.cluster)
    runtime.run().options, faults.strict = options, options.strict
    raise typer.Exit(run_script(str(script), list(arguments or []), show_traceback))
