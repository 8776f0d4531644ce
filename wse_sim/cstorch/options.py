"""The command line of the runner: options before the script are ours, everything after it is the script's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wse_sim.errors import WseError
from wse_sim.files import claim_folder
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.options import MOST_COUNT, MOST_SEED, MOST_SYSTEMS

CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def script_command(
    script: Annotated[Path, typer.Argument(help="The training script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.")] = None,
    wafer: Annotated[str, typer.Option("--wafer", help="Wafer by name, or a YAML file.")] = "wse2",
    cluster: Annotated[str, typer.Option("--cluster", help="Cluster by name, or a YAML file.")] = "default",
    systems: Annotated[
        int | None,
        typer.Option("--systems", help="Wafers that share the batch (default: what the script says)."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", help="pipelined, weight-streaming or auto (default: what the script says)."),
    ] = None,
    numerics: Annotated[
        str,
        typer.Option(
            "--numerics",
            help="What the CPU computes in: fp32, mixed (the half type), or compiled (fp32 by Inductor).",
        ),
    ] = "fp32",
    measure_input: Annotated[
        bool,
        typer.Option("--measure-input", help="Feed the wafer as fast as the script's own loader really is."),
    ] = False,
    real_workers: Annotated[
        bool, typer.Option("--real-workers", help="Run the input workers as processes.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Folder for the page, maps and traces of the run.")
    ] = None,
    compile_only: Annotated[
        bool, typer.Option("--compile_only", "--compile-only", help="Stop after the plan; execute nothing.")
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate_only", "--validate-only", help="Stop after kernels are matched.")
    ] = False,
    port: Annotated[
        int | None, typer.Option("--port", help="Port for captures (default: a free one).")
    ] = None,
    no_port: Annotated[bool, typer.Option("--no-port", help="Open no port.")] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Print the metrics report at the end.")] = False,
    progress: Annotated[bool, typer.Option("--progress", help="Log rates while the script runs.")] = False,
    log_steps: Annotated[int, typer.Option("--log-steps", help="Steps between lines of --progress.")] = 0,
    jitter: Annotated[float, typer.Option("--jitter", help="Relative spread of step times (0 to 1).")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the jitter's draws.")] = 0,
    check_values: Annotated[
        bool, typer.Option("--check-values", help="Name the first operator with a result that is not finite.")
    ] = False,
    storage: Annotated[
        float, typer.Option("--checkpoint-gbytes-per-s", help="Storage behind checkpoints, GB/s.")
    ] = 10.0,
    async_checkpoints: Annotated[
        bool,
        typer.Option(
            "--async-checkpoints",
            help="Write checkpoints while training goes on; only what does not overlap costs time.",
        ),
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of a fault.")
    ] = False,
) -> None:
    """Run a training script on the simulated wafer: it trains on the CPU and says what the wafer would do."""
    from wse_sim.cstorch import runtime
    from wse_sim.cstorch.runner import run_script
    from wse_sim.modes import competing

    known = [*(each.name for each in competing()), "auto"]
    if mode is not None and mode not in known:
        raise WseError(f"--mode {mode} is unknown; use {', '.join(known[:-1])} or {known[-1]}")
    if numerics not in runtime.NUMERICS:
        raise WseError(f"--numerics {numerics} is unknown; use {', '.join(runtime.NUMERICS)}")
    if check_values and numerics == "compiled":
        raise WseError(
            "--check-values needs single operators and --numerics compiled has none; use fp32 or mixed"
        )
    if systems is not None and systems < 1:
        raise WseError(f"--systems {systems} is impossible; ask for at least one")
    if systems is not None and systems > MOST_SYSTEMS:
        raise WseError(f"--systems {systems} is too large; give 1 to {MOST_SYSTEMS:,}")
    if port is not None and not 0 < port < 65536:
        raise WseError(f"--port {port} is no port; give 1 to 65535")
    if not 0 <= log_steps <= MOST_COUNT:
        raise WseError(f"--log-steps {log_steps} is out of range; give 0 to {MOST_COUNT:,}")
    if not 0 <= seed <= MOST_SEED:
        raise WseError(f"--seed {seed} is out of range; give 0 to {MOST_SEED:,}")
    if not 0 <= jitter <= 1:
        raise WseError(f"--jitter {jitter} is impossible; give a fraction from 0 to 1")
    if not 0 < storage <= 1e9:
        raise WseError(f"--checkpoint-gbytes-per-s {storage} is impossible; give a rate above 0, up to 1e9")
    load_wafer(wafer)
    load_cluster(cluster)
    if report is not None:
        claim_folder(report, "--report")
    options = runtime.options()
    options.wafer, options.cluster, options.systems, options.mode = wafer, cluster, systems, mode
    options.numerics, options.measure_input, options.real_workers = numerics, measure_input, real_workers
    options.report, options.compile_only, options.validate_only = report, compile_only, validate_only
    options.port, options.no_port, options.metrics = port, no_port, metrics
    options.progress, options.log_steps, options.jitter, options.seed = progress, log_steps, jitter, seed
    options.check_values, options.storage_bytes_per_s = check_values, 1e9 * storage
    options.async_checkpoints = async_checkpoints
    raise typer.Exit(run_script(str(script), list(arguments or []), show_traceback))
