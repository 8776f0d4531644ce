"""``wse-sim run``, ``compare`` and ``report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wse_sim.cli.common import (
    CacheOption,
    ClusterOption,
    JsonOption,
    QuietOption,
    WaferOption,
    console,
    one_of,
    print_json,
    progress,
)
from wse_sim.cli.outputs import TraceChoice, draw_all, say_where, trace_choice, write_all
from wse_sim.errors import WseError

if TYPE_CHECKING:
    from wse_sim.api import RunOptions, Timed
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.engine.result import Result

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A name (wse-sim show models), a YAML file, package.module:factory, a .pt2 file, or hf:PATH/config.json."
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for results, pictures and the report.")]
PhaseOption = Annotated[str, typer.Option("--phase", help="training or inference.")]
BatchOption = Annotated[int, typer.Option("--batch", help="Samples per step, over all systems.")]
SeqOption = Annotated[int | None, typer.Option("--seq", help="Sequence length (default: the model's).")]
SystemsOption = Annotated[int, typer.Option("--systems", help="Wafers that share the batch.")]
MicroOption = Annotated[
    int | None, typer.Option("--micro-batch", help="Samples per pass (weight streaming).")
]
LanesOption = Annotated[int | None, typer.Option("--lanes", help="Copies of a layer inside the wafer.")]
RecomputeOption = Annotated[
    str | None, typer.Option("--recompute", help="none or full; default: what SRAM asks for.")
]
DensityOption = Annotated[
    float, typer.Option("--density", help="Share of non-zero weights (weight streaming).")
]
OptimizerOption = Annotated[str, typer.Option("--optimizer", help="sgd, momentum or adamw.")]
PrecisionOption = Annotated[str, typer.Option("--precision", help="mixed, fp16, bf16, cbfloat16 or fp32.")]


TimingOption = Annotated[
    str, typer.Option("--timing", help="model (formulas), fabric (programs that ran), or both, explained.")
]
JitterOption = Annotated[
    float, typer.Option("--jitter", help="Relative spread of an input worker's time per sample (0 to 1).")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the jitter's draws.")]
CheckpointOption = Annotated[
    int | None, typer.Option("--checkpoint-steps", help="Write the state once in so many steps (training).")
]
StorageOption = Annotated[
    float, typer.Option("--checkpoint-gbytes-per-s", help="Storage behind checkpoints, GB/s.")
]
TraceOption = Annotated[str, typer.Option("--trace", help="Timeline in --out: perfetto, chrome or none.")]
CyclesOption = Annotated[str | None, typer.Option("--trace-cycles", help="Window A:B of the timeline.")]
RegionsOption = Annotated[
    str | None, typer.Option("--trace-regions", help="Regions of the timeline, patterns with commas between.")
]
HtaOption = Annotated[Path | None, typer.Option("--hta", help="Folder for Holistic Trace Analysis files.")]


def _options(**given: Any) -> RunOptions:
    from wse_sim.api import RunOptions
    from wse_sim.engine.checkpoint import Checkpoints
    from wse_sim.modes.weight_streaming.steps import StreamingChoice

    steps, rate = given.pop("checkpoint_steps", None), given.pop("storage", None)
    if steps is not None:
        given["checkpoints"] = Checkpoints(steps, 1e9 * rate)
    streaming = StreamingChoice(
        micro_batch=given.pop("micro_batch"),
        lanes=given.pop("lanes"),
        recompute=given.pop("recompute"),
        weight_density=given.pop("density"),
    )
    return RunOptions(streaming=streaming, **given)


def run_command(
    model: ModelArgument,
    mode: Annotated[
        str, typer.Option("--mode", help="pipelined, weight-streaming or auto (the faster).")
    ] = "auto",
    phase: PhaseOption = "training",
    batch: BatchOption = 112,
    seq: SeqOption = None,
    wafer: WaferOption = "wse2",
    cluster: ClusterOption = "default",
    systems: SystemsOption = 1,
    micro_batch: MicroOption = None,
    lanes: LanesOption = None,
    recompute: RecomputeOption = None,
    density: DensityOption = 1.0,
    optimizer: OptimizerOption = "adamw",
    precision: PrecisionOption = "mixed",
    timing: TimingOption = "model",
    cache: CacheOption = None,
    jitter: JitterOption = 0.0,
    seed: SeedOption = 0,
    checkpoint_steps: CheckpointOption = None,
    storage: StorageOption = 10.0,
    pins: Annotated[
        Path | None, typer.Option("--pins", help="YAML of placement hints by module path.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what clean-up and rewrite rules did.")
    ] = False,
    out: OutOption = None,
    trace: TraceOption = "perfetto",
    trace_cycles: CyclesOption = None,
    trace_regions: RegionsOption = None,
    hta: HtaOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one model in one mode and say how fast it is and what binds it."""
    from wse_sim import api

    traced = trace_choice(trace, trace_cycles, trace_regions, hta)
    one_of(timing, ("model", "fabric", "both"), "timing")
    options = _options(
        mode=mode, phase=phase, batch=batch, seq=seq, wafer=wafer, cluster=cluster, systems=systems,
        optimizer=optimizer, precision=precision, micro_batch=micro_batch, lanes=lanes, recompute=recompute,
        density=density, cache=cache, jitter=jitter, seed=seed, checkpoint_steps=checkpoint_steps,
        storage=storage,
    )  # fmt: skip
    timed: api.Timed | None = None
    result: Result | Infeasible
    with progress(quiet) as say:
        chosen: Any = model
        if pins is not None:
            from wse_sim.frontend import pin_kernels, read_pins

            chosen = pin_kernels(api.read(model, options), *read_pins(pins))
        if timing == "model":
            result = api.run(chosen, options, progress=say)
        else:
            answer = api.run_both(chosen, options, progress=say)
            if isinstance(answer, api.Timed):
                timed, result = answer, answer.fabric
            else:
                result = answer
        if out is not None:
            say("draw")
            write_all(result, out, traced)
    if explain:
        from wse_sim.frontend import explain as explained

        for line in explained(model, seq=seq, training=phase == "training"):
            print(line, file=sys.stderr)
    _print(result, as_json, timed)
    if timing == "both" and timed is not None and not as_json:
        print("\n" + _both(timed))
    say_where(out, quiet)
    if not result.feasible:
        raise typer.Exit(1)


def _both(timed: Timed) -> str:
    """Both rates, their difference, and where it comes from."""
    model, fabric = timed.model.samples_per_s, timed.fabric.samples_per_s
    head = (
        f"by formulas {model:,.6g} samples/s, by programs {fabric:,.6g} samples/s ({fabric / model - 1:+.2%})"
    )
    return f"{head}\n\n{timed.report.text()}"


def compare_command(
    model: Annotated[str | None, typer.Argument(help="As for run; not with --sweep-size.")] = None,
    sweep_size: Annotated[
        str | None, typer.Option("--sweep-size", help="A series of model sizes: gpt.")
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option("--baselines", help="Published TPU and GPU runs beside: MODEL is gpt2-series or all."),
    ] = False,
    workers: Annotated[int, typer.Option("--workers", help="Processes of a sweep.")] = 2,
    phase: PhaseOption = "training",
    batch: BatchOption = 112,
    seq: SeqOption = None,
    wafer: WaferOption = "wse2",
    cluster: ClusterOption = "default",
    systems: SystemsOption = 1,
    micro_batch: MicroOption = None,
    lanes: LanesOption = None,
    recompute: RecomputeOption = None,
    density: DensityOption = 1.0,
    optimizer: OptimizerOption = "adamw",
    precision: PrecisionOption = "mixed",
    timing: Annotated[
        str, typer.Option("--timing", help="model (formulas) or fabric (programs that ran).")
    ] = "model",
    cache: CacheOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run both modes side by side; a mode that does not fit is a row that says what binds."""
    from wse_sim import api
    from wse_sim.report import tables

    if sweep_size is not None:
        chosen = {"phase": phase, "seq": seq, "batch": batch, "wafer": wafer, "cluster": cluster, "systems": systems,
                  "optimizer": optimizer, "precision": precision}  # fmt: skip
        _sweep(sweep_size, workers, chosen, out, as_json, quiet)
        return
    if baselines:
        _baselines(model or "gpt2-series", wafer, cluster, as_json, quiet)
        return
    if model is None:
        raise WseError("no model is named; give a model, or --sweep-size gpt")
    options = _options(
        phase=phase, batch=batch, seq=seq, wafer=wafer, cluster=cluster, systems=systems,
        optimizer=optimizer, precision=precision, micro_batch=micro_batch, lanes=lanes, recompute=recompute,
        density=density, timing=timing, cache=cache,
    )  # fmt: skip
    with progress(quiet) as say:
        rows = api.compare(model, options, progress=say)
        if out is not None:
            say("draw")
            for row in rows:
                write_all(row, out / row.mode, TraceChoice())
    if as_json:
        print_json({"model": rows[0].model, "rows": [tables.as_json(row) for row in rows]})
    else:
        console().print(tables.comparison(rows))
    say_where(out, quiet)
    if not any(row.feasible for row in rows):
        raise typer.Exit(1)


def _baselines(series: str, wafer: str, cluster: str, as_json: bool, quiet: bool) -> None:
    from wse_sim import baselines

    with progress(quiet) as say:
        rows = baselines.compare_baselines(series, wafer=wafer, cluster=cluster, progress=say)
    if as_json:
        print_json({"series": series, "rows": baselines.as_dicts(rows)})
    else:
        print(baselines.table(rows))


def _sweep(
    series: str, workers: int, options: dict[str, Any], out: Path | None, as_json: bool, quiet: bool
) -> None:
    from dataclasses import asdict

    from wse_sim import sweep as sweeps

    with progress(quiet) as say:
        answer = sweeps.sweep_sizes(series, workers=workers, progress=say, **options)
    largest = answer.largest_pipelined
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        answer.write_csv(out / "compare.csv")
        sweeps.draw(answer, out / "compare.png")
    if as_json:
        print_json(
            {
                "rows": [asdict(row) for row in answer.rows],
                "largest_pipelined": None if largest is None else largest.model,
                "crossover_parameters": answer.crossover_parameters,
            }
        )
    else:
        print(f"{'model':<12} {'parameters':>18} {'mode':<17} {'samples/s':>11} {'MFU':>7}  binding")
        for row in answer.rows:
            rate = f"{row.samples_per_s:,.4g}" if row.feasible else "no fit"
            print(
                f"{row.model:<12} {row.parameters:>18,} {row.mode:<17} {rate:>11} {row.mfu:>7.1%}  {row.binding}"
            )
        print(f"largest model that fits pipelined: {largest.model if largest else 'none'}")
        cross = answer.crossover_parameters
        print(f"weight streaming is ahead from: {f'{cross:,} parameters' if cross else 'never'}")
    say_where(out, quiet)


def report_command(
    folder: Annotated[Path, typer.Argument(help="A folder that run --out wrote.")],
    trace: TraceOption = "perfetto",
    trace_cycles: CyclesOption = None,
    trace_regions: RegionsOption = None,
    hta: HtaOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write the pictures, the trace and the one-page HTML report of a saved result again."""
    from wse_sim.modes import load_result

    result = load_result(folder)
    with progress(quiet) as say:
        say("draw")
        draw_all(result, folder, trace_choice(trace, trace_cycles, trace_regions, hta))
    say_where(folder, quiet)


def _print(result: Result | Infeasible, as_json: bool, timed: Timed | None = None) -> None:
    from wse_sim.report import tables

    if not as_json:
        console().print(tables.summary(result))
        return
    data = tables.as_json(result)
    if timed is not None:
        data["timing"] = {"model_samples_per_s": timed.model.samples_per_s, **timed.report.as_json()}
    print_json(data)
