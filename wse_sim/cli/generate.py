"""``wse-sim generate``: speed and capacity of generation with a decoder model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from wse_sim.cli.common import Screen, print_json, progress
from wse_sim.cli.declared import command
from wse_sim.options import BOTH_HELP, CACHE_HELP, GenerationOptions, Timings, option


class GenerateCommand(GenerationOptions):
    """The options of generation, and what only its command has."""

    timing: Timings = option("model", BOTH_HELP)
    cache: Path | str | None = option(None, CACHE_HELP)


@command
def generate_command(
    model: Annotated[str, typer.Argument(help="A decoder with a gated feed-forward network: name or YAML.")],
    options: GenerateCommand,
    screen: Screen,
) -> None:
    """Tokens per second, time to first token, and the context that fits."""
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.modes.generation.steps import generate
    from wse_sim.timing.layers import generate_both

    extra: dict[str, Any] = {}
    details = ""
    if options.timing == "model":
        answer = generate(model, options)
    else:
        with progress(screen.quiet) as say:
            timed = generate_both(model, options, cache=options.cache, progress=say)
        if isinstance(timed, Infeasible):
            answer = timed
        else:
            answer, details = timed.fabric, _both(timed)
            rates = {"model_tokens_per_s_per_user": timed.model.tokens_per_s_per_user}
            reports = {name: report.as_json() for name, report in timed.reports.items()}
            extra["timing"] = {**rates, **reports}
    misfit = isinstance(answer, Infeasible)
    if screen.as_json:
        print_json({**asdict(answer), **({"feasible": False} if misfit else extra)})
    else:
        print(answer.message if isinstance(answer, Infeasible) else _text(answer))
        if options.timing == "both" and details:
            print("\n" + details)
    if misfit:
        raise typer.Exit(1)


def _both(timed: Any) -> str:
    """Decode and prefill rates by formulas and by programs, and where they differ."""
    keys = {"decode": "tokens_per_s_per_user", "prefill": "prefill_tokens_per_s"}
    lines = []
    for name, report in timed.reports.items():
        model, fabric = getattr(timed.model, keys[name]), getattr(timed.fabric, keys[name])
        change = f"{fabric / model - 1:+.2%}"
        lines.append(
            f"{name}: by formulas {model:,.5g} tokens/s, by programs {fabric:,.5g} tokens/s ({change})"
        )
        lines += [report.text(), ""]
    return "\n".join(lines).rstrip("\n")


def _text(a: Any) -> str:
    memory = a.memory
    rows = [
        ("regions", f"{a.regions} of {a.grid} x {a.grid} cores, {a.layers_per_region} layers each"),
        ("decode per user", f"{a.tokens_per_s_per_user:,.5g} tokens/s"),
        ("decode in total", f"{a.tokens_per_s:,.5g} tokens/s for {a.batch} requests"),
        ("bound by", a.binding),
        (
            "time to first token",
            f"{1e3 * a.time_to_first_token_s:,.4g} ms for a prompt of {a.prompt:,} tokens",
        ),
        ("prefill", f"{a.prefill_tokens_per_s:,.5g} tokens/s in a stream of prompts"),
        ("longest context", f"{a.max_context:,} tokens per request in these regions"),
        ("", f"{a.max_context_wafer:,} tokens if every core held cache"),
        ("cache", f"{a.cache_bytes_per_token / 1e3:,.4g} kB per token"),
        (
            "memory of a core",
            f"{memory.total_bytes / 1e3:.1f} of {a.memory_limit_bytes / 1e3:.1f} kB: weights "
            f"{memory.weights_bytes / 1e3:.1f}, cache {memory.activations_bytes / 1e3:.1f}, buffers "
            f"{memory.buffers_bytes / 1e3:.1f}, code {memory.code_bytes / 1e3:.1f}",
        ),
    ]
    head = f"{a.model} on {a.systems} x {a.wafer}, context {a.context:,}, batch {a.batch}"
    lines = [head, *(f"  {name:<20} {text}" for name, text in rows)]
    return "\n".join([*lines, *(f"  note: {note}" for note in a.notes)])
