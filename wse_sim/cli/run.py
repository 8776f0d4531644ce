"""``wse-sim run``, ``compare`` and ``report``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wse_sim.atomic_files import together
from wse_sim.cli.certainty import Certainty, as_data, intervals_of, lines, unused_bounds
from wse_sim.cli.common import (
    Screen,
    all_but,
    console,
    print_json,
    progress,
    say_without_effect,
    unused,
    without_effect,
)
from wse_sim.cli.outputs import (
    TraceChoice,
    TraceOptions,
    draw_all,
    say_where,
    unused_trace,
    write_all,
    write_json,
)
from wse_sim.declarations import Without, command
from wse_sim.errors import WseError
from wse_sim.files import claim_folder
from wse_sim.hardware import load_wafer
from wse_sim.options import BothTimings, RunOptions, option

if TYPE_CHECKING:
    from wse_sim.api import Timed
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.engine.result import Result
    from wse_sim.graph import KernelGraph
    from wse_sim.modes.pipelined.plan import PipelinedPlan
    from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
    from wse_sim.report.fabric_counters import MeasuredCounters
    from wse_sim.uncertainty import Interval
    from wse_sim.whole import Compared, ComparedStreaming, ComparedTraining
    from wse_sim.whole.random_values import Made
    from wse_sim.whole.values import CheckedValues

    OnFabric = Compared | ComparedTraining | ComparedStreaming

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A name (wse-sim show models), a YAML file, package.module:factory or FILE.py:factory, a .pt2 file, or hf:PATH/config.json."
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for results, pictures and the report.")]


class RunCommand(RunOptions):
    """Options of a run, and those that only its command has."""

    timing: BothTimings = "model"  # type: ignore[assignment]  # one more choice
    pins: Path | None = option(None, "YAML of placement hints by module path.")
    explain: bool = option(False, "Print what clean-up and rewrite rules did.")
    of_mode: str | None = option(
        None,
        "Options of --mode alone, as NAME=VALUE,...: replicas=2,placer=peel ('One mode alone' in docs/options.md).",
        flag="--mode-options",
    )
    whole_fabric: bool = option(
        False,
        "Also step the whole model on the fabric (small wafers; weight streaming: dense layers).",
    )
    check_values: bool = option(
        False,
        "Compare every value of a random batch (--seed) on the whole fabric with PyTorch; MODEL must be a factory.",
    )


class CompareCommand(RunOptions):
    """Options of a run, and those that only a comparison has."""

    baselines: bool = option(False, "Also show published TPU and GPU runs: MODEL is gpt2-series or all.")


@command
def run_command(
    model: ModelArgument,
    options: RunCommand,
    trace: TraceOptions,
    screen: Screen,
    certainty: Certainty,
    out: OutOption = None,
) -> None:
    """Run one model in one mode; print its rate and the resource that limits it."""
    from wse_sim import api

    traced = trace.choice()
    idle = [*without_effect(model, options), *unused_trace(trace, out), *unused_bounds(certainty)]
    say_without_effect(idle, screen.strict)
    if out is not None:
        claim_folder(out)
    timed: api.Timed | None = None
    result: Result | Infeasible
    options = certainty.asked(_with_mode_options(options))
    _check_whole(options)
    made = _checked_module(model, options)
    whole: OnFabric | None = None
    values: CheckedValues | None = None
    with progress(screen.quiet) as say:
        chosen: str | KernelGraph = model
        if options.pins is not None:
            from wse_sim.frontend import pin_kernels, read_pins

            pins = read_pins(options.pins)  # before the model: a fault of theirs costs no capture
            chosen = pin_kernels(api.read(model, options), *pins)
            options = options.replace(train=None, lora=None)  # the graph has them already
        if options.whole_fabric:
            from wse_sim.whole import check_graph, check_streamed_graph, inputs_over_rows

            streamed = options.mode != "pipelined"
            chosen = inputs_over_rows(api.read(chosen, options), streamed=streamed)
            (check_streamed_graph if streamed else check_graph)(chosen)
            options = options.replace(train=None, lora=None)
            if not streamed:
                options = options.replace(mode_options={**options.mode_options, "replicas": 1})
        if options.timing == "model":
            result = api.run(chosen, options, progress=say, trace=out is not None)  # a timeline is only drawn
        else:
            answer = api.run_both(chosen, options, progress=say)
            if isinstance(answer, api.Timed):
                timed, result = answer, answer.fabric
            else:
                result = answer
        if options.whole_fabric and result.feasible:
            say("step the whole model on the fabric")
            whole = _on_fabric(result)
            if made is not None:
                say("compare values with PyTorch")
                values = _values(model, made, result, options.seed)
        if out is not None:
            say("draw pictures")
            with together(out) as part:
                write_all(result, part, traced, _measured(whole))
                if values is not None:
                    write_json(part / "values.json", values.as_json())
    if options.explain:
        from wse_sim.frontend import explain as explained

        for line in explained(model, seq=options.seq, training=options.phase == "training"):
            print(line, file=sys.stderr)
    _print(result, screen.as_json, timed, intervals_of(result, certainty), whole, values)
    if options.timing == "both" and timed is not None and not screen.as_json:
        print("\n" + _both(timed))
    say_where(out, screen.quiet)
    if not result.feasible:
        raise typer.Exit(1)


def _with_mode_options(options: RunCommand) -> RunCommand:
    """Return the options with those of the mode, read and checked before the model is read.

    Raises
    ------
    WseError
        If the text is not NAME=VALUE,..., or the mode is "auto", lacks the option or refuses the value.
    """
    if options.of_mode is None:
        return options
    from wse_sim.api import AUTO
    from wse_sim.files import parse_yaml
    from wse_sim.modes import mode_named, option_names, options_of

    if options.mode == AUTO:
        raise WseError(f"--mode-options {options.of_mode} needs a mode that has them; give --mode")
    found = parse_yaml(
        "{" + re.sub(r"(^|,)\s*(\w+)\s*=", r"\1 \2: ", options.of_mode) + "}", "--mode-options"
    )
    for name, value in found.items():
        if value is None:
            raise WseError(f"--mode-options: '{name}' is not NAME=VALUE; write replicas=2,placer=peel")
    mode = mode_named(options.mode)
    own = [name for name in option_names(mode) if name not in type(options).model_fields]
    for name in found:
        if name not in own:
            raise WseError(
                f"--mode-options: mode {mode.name} has no option '{name}'; it has {', '.join(sorted(own))}"
            )
    options_of(mode, {**found, "batch": options.batch})
    return options.replace(mode_options={**options.mode_options, **found})


def _check_whole(options: RunCommand) -> None:
    """Raise an error, before the model is read, for options that a whole-fabric run does not support."""
    if not options.whole_fabric:
        return
    from wse_sim.modes import resting, streaming

    rests, streams = resting().name, streaming().name
    if options.mode not in (rests, streams):
        raise WseError(
            f"--whole-fabric steps a pipeline or streamed weights, not mode {options.mode}; give --mode {rests} or "
            f"--mode {streams}"
        )
    if options.systems != 1:
        raise WseError(f"--whole-fabric steps one wafer, not {options.systems} systems; give --systems 1")
    if options.phase == "training" and options.optimizer != "sgd":
        raise WseError(f"--whole-fabric updates by sgd, not {options.optimizer}; give --optimizer sgd")
    if options.phase == "training" and options.lora is not None:
        raise WseError(f"--whole-fabric has no adapters, --lora is {options.lora}; leave --lora out")
    from wse_sim.whole import check_outer_rows, check_wafer

    wafer = load_wafer(options.wafer)
    check_wafer(wafer)
    if options.mode == streams:
        check_outer_rows(wafer)


def _checked_module(model: str, options: RunCommand) -> Made | None:
    """Find the module whose values are checked, before anything is read or compiled; None without --check-values."""
    if not options.check_values:
        return None
    if not options.whole_fabric:
        raise WseError("--check-values compares values of the whole fabric with PyTorch; give --whole-fabric")
    if ":" not in model or model.startswith("hf:") or model.endswith((".pt2", ".yaml", ".yml")):
        raise WseError(
            f"--check-values needs a module with weights, and {model} has none; give package.module:factory or "
            "FILE.py:factory"
        )
    from wse_sim.frontend import load_module
    from wse_sim.whole.random_values import check_module

    made = load_module(model)
    check_module(model, made)
    return made


def _plan_of(result: Result | Infeasible) -> PipelinedPlan | WeightStreamingPlan:
    from wse_sim.engine.result import Result
    from wse_sim.modes.base import expect
    from wse_sim.modes.pipelined.plan import PipelinedPlan
    from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan

    plan = expect(result, Result).plan
    return plan if isinstance(plan, WeightStreamingPlan) else expect(plan, PipelinedPlan)


def _values(model: str, made: Made, result: Result | Infeasible, seed: int) -> CheckedValues:
    from wse_sim.whole.random_values import check_random

    return check_random(model, made, _plan_of(result), seed)


def _on_fabric(result: Result | Infeasible) -> OnFabric:
    from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
    from wse_sim.whole import compare_streaming, compare_training, compare_with_engine

    plan = _plan_of(result)
    if isinstance(plan, WeightStreamingPlan):
        return compare_streaming(plan)
    return compare_training(plan) if plan.graph.training else compare_with_engine(plan)


def _measured(whole: OnFabric | None) -> MeasuredCounters | None:
    """Read the counters measured on the fabric, for the page."""
    if whole is None:
        return None
    from wse_sim.whole import measured

    return measured(whole)


def _both(timed: Timed) -> str:
    """Return both rates, their difference, and its causes."""
    model, fabric = timed.model.samples_per_s, timed.fabric.samples_per_s
    head = f"by formulas {model:,.6g} samples/s, by programs {fabric:,.6g} samples/s ({100 * (fabric / model - 1):+.2f} %)"
    return f"{head}\n\n{timed.report.text()}"


@command
def compare_command(
    options: Annotated[CompareCommand, Without("mode")],
    screen: Screen,
    certainty: Certainty,
    model: Annotated[str | None, typer.Argument(help="As for run; a series with --baselines.")] = None,
    out: OutOption = None,
) -> None:
    """Run both modes side by side; a mode that does not fit is a row that states the bottleneck."""
    from wse_sim import api
    from wse_sim.report import tables
    from wse_sim.uncertainty import compare_interval

    if out is not None:
        claim_folder(out)
    if options.baselines:
        kept = all_but(CompareCommand, "wafer", "cluster", "baselines", "mode")
        idle = [
            *unused(options, kept, "with --baselines"),
            *unused(certainty, all_but(Certainty), "with --baselines"),
        ]
        say_without_effect(idle, screen.strict)
        _baselines(model or "gpt2-series", options, screen)
        return
    if model is None:
        raise WseError("no model is named; give a model (for many models use wse-sim study)")
    say_without_effect([*without_effect(model, options), *unused_bounds(certainty)], screen.strict)
    options = certainty.asked(options)
    with progress(screen.quiet) as say:
        rows = api.compare(model, options, progress=say, trace=out is not None)
        if out is not None:
            say("draw pictures")
            with together(out) as part:
                for row in rows:
                    write_all(row, part / row.mode, TraceChoice())
    found = [intervals_of(row, certainty) for row in rows]
    lead = None if certainty.interval is None else compare_interval(rows, certainty.interval)
    if screen.as_json:
        shown = [
            tables.as_json(row) | ({"intervals": as_data(more)} if more else {})
            for row, more in zip(rows, found, strict=True)
        ]
        sure = {} if lead is None else {"faster": lead.faster, "probability": lead.probability}
        print_json({"model": rows[0].model, "rows": shown, **sure})
    else:
        console().print(tables.comparison(rows))
        for row, more in zip(rows, found, strict=True):
            if more:
                print(f"{row.mode}\n{lines(more)}")
        if lead is not None:
            print(
                f"{lead.faster} is faster with a probability of {100 * lead.probability:.0f} %: {lead.ratio.text()} times"
            )
    say_where(out, screen.quiet)
    if not any(row.feasible for row in rows):
        raise typer.Exit(1)


def _baselines(series: str, options: RunOptions, screen: Screen) -> None:
    from wse_sim import baselines

    with progress(screen.quiet) as say:
        rows = baselines.compare_baselines(series, wafer=options.wafer, cluster=options.cluster, progress=say)
    if screen.as_json:
        print_json({"series": series, "rows": baselines.as_dicts(rows)})
    else:
        print(baselines.table(rows))


@command
def report_command(
    folder: Annotated[Path, typer.Argument(help="A folder that run --out wrote.")],
    trace: TraceOptions,
    screen: Annotated[Screen, Without("as_json")],
    other: Annotated[
        Path | None,
        typer.Argument(
            help="A second one: show how it differs from the first; bars of both go into difference.html there."
        ),
    ] = None,
) -> None:
    """Write the pictures, the trace and the one-page HTML report of a saved result again, or compare two results."""
    from wse_sim.engine.result import Result
    from wse_sim.modes import load_result

    result = load_result(folder)
    if other is not None:
        from wse_sim.report.difference import diff
        from wse_sim.report.difference_page import write_difference

        names = [option.name for option in TraceOptions.options()]
        say_without_effect(unused(trace, names, "where two results are compared"), screen.strict)
        found = diff(result, load_result(other))
        print(found.text(), end="")
        page = write_difference(found, other)
        if not screen.quiet:
            print(f"wrote {page}", file=sys.stderr)
        return
    idle = unused_trace(trace, folder)
    if not isinstance(result, Result):
        names = [option.name for option in TraceOptions.options()]
        idle = unused(trace, names, "here: the saved answer is that the model does not fit")
    say_without_effect(idle, screen.strict)
    claim_folder(folder, "the folder")
    with progress(screen.quiet) as say:
        say("draw pictures")
        with together(folder) as part:
            draw_all(result, part, trace.choice())
    say_where(folder, screen.quiet)


def _print(
    result: Result | Infeasible,
    as_json: bool,
    timed: Timed | None = None,
    intervals: Mapping[str, Interval] | None = None,
    whole: OnFabric | None = None,
    values: CheckedValues | None = None,
) -> None:
    from wse_sim.report import tables

    if not as_json:
        console().print(tables.summary(result))
        if intervals:
            print(lines(intervals))
        if whole is not None:
            print(whole.text())
        if values is not None:
            print(values.text())
        return
    data = tables.as_json(result)
    if intervals:
        data["intervals"] = as_data(intervals)
    if timed is not None:
        data["timing"] = {"model_samples_per_s": timed.model.samples_per_s, **timed.report.as_json()}
    if whole is not None:
        data["whole_fabric"] = whole.as_json()
    if values is not None:
        data["values"] = values.as_json()
    print_json(data)
