"""``wse-sim generate``: speed and capacity of generation with a decoder model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wse_sim.atomic_files import together
from wse_sim.cli.certainty import Certainty, as_data, intervals_of, lines, unused_bounds
from wse_sim.cli.common import Screen, print_json, progress, say_without_effect, unused
from wse_sim.declarations import command
from wse_sim.options import BothTimings, CacheOption, GenerationChoice, GenerationOptions, option
from wse_sim.report.text import number

if TYPE_CHECKING:
    from wse_sim.api import Timed
    from wse_sim.engine.result import Result


class GenerateCommand(GenerationOptions):
    """Options of generation, and those that only its command has."""

    timing: BothTimings = "model"
    cache: CacheOption = None
    out: Path | None = option(None, "Folder for results, pictures and the report.", writes="folder")
    trace: Literal["perfetto", "chrome", "none"] = option("perfetto", "Timeline in --out.")


@command
def generate_command(
    model: Annotated[str, typer.Argument(help="A decoder with causal attention, as for run.")],
    options: GenerateCommand,
    screen: Screen,
    certainty: Certainty,
) -> None:
    """Simulate generation: tokens per second, time to the first token, and the context that fits."""
    from wse_sim import api
    from wse_sim.cli.outputs import TraceChoice, say_where, write_all
    from wse_sim.modes.generation import Generation
    from wse_sim.report import tables

    idle = unused_bounds(certainty)
    idle += unused(options, ("trace",), "without --out") if options.out is None else []
    idle += unused(options, ("cache",), "with --timing model") if options.timing == "model" else []
    say_without_effect(idle, screen.strict)
    chosen = api.RunOptions(
        mode=Generation.name, phase="inference", batch=options.batch, seq=options.context, wafer=options.wafer,
        cluster=options.cluster, clock=options.clock, systems=options.systems, cache=options.cache,
        mode_options={
            name: getattr(options, name) for name in GenerationChoice.model_fields if name != "batch"
        },
    )  # fmt: skip
    chosen = certainty.asked(chosen)
    timed: api.Timed | None = None
    with progress(screen.quiet) as say:
        if options.timing == "model":
            result = api.run(model, chosen, progress=say)
        else:
            answer = api.run_both(model, chosen, progress=say)
            timed = answer if isinstance(answer, api.Timed) else None
            result = answer.fabric if isinstance(answer, api.Timed) else answer
        if options.out is not None:
            say("draw pictures")
            with together(options.out) as part:
                write_all(result, part, TraceChoice(options.trace))
    intervals = intervals_of(result, certainty)
    if screen.as_json:
        data = tables.as_json(result) | ({"intervals": as_data(intervals)} if intervals else {})
        if timed is not None:
            data["timing"] = {"model": dict(timed.model.figures), **timed.report.as_json()}
        print_json(data)
    else:
        print(result.message if isinstance(result, api.Infeasible) else _text(result))
        if intervals:
            print(lines(intervals))
        if options.timing == "both" and timed is not None:
            print("\n" + _both(timed))
    say_where(options.out, screen.quiet)
    if not result.feasible:
        raise typer.Exit(1)


def _both(timed: Timed) -> str:
    """Decode and prefill rates by formulas and by programs, and where they differ."""
    lines = []
    for name, key in (("decode", "tokens_per_s_per_user"), ("prefill", "prefill_tokens_per_s")):
        model, fabric = timed.model.figures[key], timed.fabric.figures[key]
        change = f"{100 * (fabric / model - 1):+.2f} %"
        lines.append(
            f"{name}: by formulas {number(model)} tokens/s, by programs {number(fabric)} tokens/s ({change})"
        )
    return "\n".join([*lines, "", timed.report.text()])


def _text(result: Result) -> str:
    """Return the main figures of a generation, as text."""
    found, seq = result.figures, result.plan.graph.facts.get("seq", 0)
    rows = [
        ("decode per user", f"{number(found['tokens_per_s_per_user'])} tokens/s"),
        ("decode in total", f"{number(found['tokens_per_s'])} tokens/s for {result.batch} requests"),
        ("bound by", result.binding),
        ("time to first token", f"{number(1e3 * found['time_to_first_token_s'])} ms"),
        ("prefill", f"{number(found['prefill_tokens_per_s'])} tokens/s in a stream of prompts"),
        *result.facts,
    ]
    head = f"{result.model} on {result.systems} x {result.plan.wafer.name}, context {seq:,}, batch {result.batch}"
    lines = [head, *(f"  {name:<20} {text}" for name, text in rows)]
    return "\n".join([*lines, *(f"  note: {note}" for note in dict.fromkeys(result.notes))])
