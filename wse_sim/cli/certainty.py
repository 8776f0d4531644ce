"""``--interval``, the uncertainty of printed numbers; and ``wse-sim sensitivity``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from wse_sim.atomic_files import together
from wse_sim.cli.common import (
    Screen,
    all_but,
    print_json,
    progress,
    say_without_effect,
    unused,
    without_effect,
)
from wse_sim.declarations import command
from wse_sim.errors import WseError
from wse_sim.options import Declared, Real, RunOptions, Whole, option

if TYPE_CHECKING:
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.engine.result import Result
    from wse_sim.uncertainty import Interval
    from wse_sim.uncertainty.sensitivity import Effect

UNITS = {
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_user": "tokens/s per user",
    "prefill_tokens_per_s": "tokens/s of prompts",
    "time_to_first_token_s": "s to the first token",
    "step_s": "s a step",
    "system_power_w": "W a system",
    "sample_joules": "J a sample",
    "step_joules": "J a step",
    "token_joules": "J a token",
}


Chosen = TypeVar("Chosen", bound=RunOptions)


class Certainty(Declared):
    """Whether and how to print numbers with their bounds."""

    interval: Real | None = option(
        None, "Print an interval that contains the true value with this probability.", unit="%", ge=50, le=99
    )
    interval_workers: Whole = option(1, "Processes that evaluate the draws.", unit="processes", ge=1, le=1024)
    interval_replans: bool = option(False, "Recompile at every draw of the constants (slow).")

    def asked(self, options: Chosen) -> Chosen:
        """Return the options of a run with these; runs and comparisons then carry their bounds."""
        names = ("interval", "interval_workers", "interval_replans")
        return options.replace(**{name: getattr(self, name) for name in names})


def unused_bounds(certainty: Certainty) -> list[str]:
    """Return the options of the bounds that have no effect because no bounds are requested."""
    if certainty.interval is not None:
        return []
    return unused(certainty, ("interval_workers", "interval_replans"), "without --interval")


def intervals_of(result: Result | Infeasible, certainty: Certainty) -> dict[str, Interval]:
    """Return the intervals of a result that is feasible, if they are requested."""
    if certainty.interval is None:
        return {}
    from wse_sim.engine.result import Result
    from wse_sim.uncertainty import result_intervals

    if not isinstance(result, Result):
        return {}
    if result.intervals:
        return dict(result.intervals)
    return result_intervals(result, certainty.interval, workers=certainty.interval_workers)


def as_data(intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """Return intervals as JSON data, by name."""
    return {name: interval.as_dict() for name, interval in intervals.items()}


def lines(intervals: Mapping[str, Interval]) -> str:
    """Return one line per interval."""
    return "\n".join(f"  {interval.text(UNITS.get(name, name))}" for name, interval in intervals.items())


class SensitivityCommand(RunOptions):
    """Options of a run, and those that only the sensitivity command has."""

    out: Path | None = option(None, "Folder for sensitivity.png and sensitivity.json.", writes="folder")
    kernel: bool = option(False, "MODEL is the name of a kernel.")


@command
def sensitivity_command(
    model: Annotated[str, typer.Argument(help="As for run; with --kernel the name of a kernel.")],
    options: SensitivityCommand,
    screen: Screen,
    param: Annotated[
        list[str] | None, typer.Option("--param", help="Kernel parameter as key=value; may be repeated.")
    ] = None,
) -> None:
    """Show which constants affect the rate of a model or the cycles of a kernel most, and which of them are
    assumed."""
    import json

    from wse_sim.uncertainty import sensitivity as module

    if options.kernel:
        idle = unused(options, all_but(SensitivityCommand, "wafer", "out", "kernel"), "with --kernel")
    else:
        idle = [
            *without_effect(model, options),
            *(["--param has no effect without --kernel"] if param else []),
        ]
        idle += unused(
            options,
            ("timing", "jitter", "skew", "checkpoint_steps"),
            "here: the plan is priced, not simulated",
        )
    say_without_effect(idle, screen.strict)
    with progress(screen.quiet) as say:
        say("price")
        answer = _effects(model, options, param)
    if not isinstance(answer, tuple):
        print(answer.message)
        raise typer.Exit(1)
    figure, effects = answer
    if options.out is not None:
        text = json.dumps([effect.as_dict() for effect in effects], indent=2)
        with together(options.out) as part:
            module.draw(effects, figure, part / "sensitivity.png")
            (part / "sensitivity.json").write_text(text + "\n", encoding="utf-8")
    if screen.as_json:
        print_json({"figure": figure, "effects": [effect.as_dict() for effect in effects]})
    else:
        print(module.table(effects, figure))


def _effects(
    model: str, options: SensitivityCommand, param: list[str] | None
) -> tuple[str, Sequence[Effect]] | Infeasible:
    """Return the name of the figure and the effects on it; for the mode "auto" of the faster mode."""
    from wse_sim import api
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.hardware import load_cluster, load_wafer
    from wse_sim.modes import competing, mode_of
    from wse_sim.uncertainty import spread
    from wse_sim.uncertainty.sensitivity import sensitivity

    if options.kernel:
        wafer = load_wafer(options.wafer)
        evaluate = spread.kernel_figures(model, read_parameters(param, None, None))
        return "cycles", sensitivity(evaluate, wafer, load_cluster(), "cycles")
    graph = api.read(model, options)
    names = [mode.name for mode in competing()] if options.mode == api.AUTO else [None]
    answers = [api.plan_of(graph, options, name) for name in names]
    plans = [plan for plan in answers if not isinstance(plan, Infeasible)]
    if not plans:
        return next(answer for answer in reversed(answers) if isinstance(answer, Infeasible))
    plan = max(plans, key=lambda plan: mode_of(plan).quick_figures(plan)["samples_per_s"])
    figure = f"samples/s ({mode_of(plan).name})"
    return figure, sensitivity(spread.plan_figures(plan), plan.wafer, plan.cluster, "samples_per_s")


def read_parameters(param: list[str] | None, rows: int | None, cols: int | None) -> dict[str, Any]:
    """Return the parameters of a kernel from `--param key=value`, `--rows` and `--cols`."""
    given: dict[str, Any] = {}
    for item in param or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise WseError(f"--param {item} is not a pair; write key=value")
        if key.strip() in given:
            raise WseError(f"--param {key.strip()} is given twice; give one value")
        given[key.strip()] = value.strip()
    if rows is not None:
        given["rows"] = rows
    if cols is not None:
        given["cols"] = cols
    return given
