"""Output of ``wse-sim serve``: the numbers of a run as data and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wse_sim.files import Values
from wse_sim.report.text import number
from wse_sim.serving.options import ServingOptions

if TYPE_CHECKING:
    from wse_sim.service.serving_run import ServiceAnswer


def heading(model: str, options: ServingOptions, answer: ServiceAnswer) -> str:
    """One line with the model, the machine, and the number of replicas and requests."""
    name = options.wafer if isinstance(options.wafer, str) else options.wafer.name
    count = answer.serving.replicas
    machine = f"{answer.systems * count} x {name}" if options.turns is None else f"table {options.turns}"
    return f"{model} on {machine}, {count} replica{'s' * (count > 1)}: {len(answer.serving.load):,} requests"


def as_text(model: str, options: ServingOptions, answer: ServiceAnswer, data: Values) -> str:
    """Return the main figures of a serving run, as text."""
    own = data["wse_sim"]
    rows = [
        ("completed", f"{data['completed']:,} in {number(data['duration'])} s, {data['failed']:,} failed"),
        (
            "throughput",
            f"{number(data['request_throughput'])} requests/s, {number(data['output_throughput'])} tokens/s of answers",
        ),
    ]
    if data["request_goodput"] is not None:
        rows.append(("goodput", f"{number(data['request_goodput'])} requests/s within {options.goodput}"))
    for key, title in (
        ("ttft", "first token"),
        ("tpot", "time per token"),
        ("itl", "gaps"),
        ("e2el", "whole answer"),
    ):
        parts = [f"{number(data[f'{which}_{key}_ms'])}" for which in ("mean", "p50", "p90", "p99")]
        rows.append((title, f"{parts[0]} ms mean; p50 {parts[1]}, p90 {parts[2]}, p99 {parts[3]}"))
    bounds = own["bounds"]
    rows += [
        (
            "cache",
            f"{own['kv_blocks_most']:,} of {own['kv_blocks']:,} blocks at most; {own['preemptions']:,} preemptions"
            + (
                f"; {own['cached_tokens']:,} prompt tokens came from the cache"
                if options.prefix_caching
                else ""
            ),
        ),
        ("bound by", own["binds"]),
        (
            "no schedule beats",
            f"{number(bounds['user_tokens_per_s'])} tokens/s for one user, {number(bounds['tokens_per_s'])} for all; "
            f"{number(bounds['requests_per_s'])} requests/s; first token {number(1e3 * bounds['first_token_s'])} ms",
        ),
    ]
    if energy := own["energy"]:
        money = energy.get("dollars_per_million_output_tokens")
        price = "" if money is None else f"; {number(money)} dollars per million tokens of answers"
        rows.append(
            (
                "energy",
                f"{number(energy['joules_per_output_token'])} J per token of an answer ({number(energy['low'])} if idle draws that of an "
                f"idle wafer, {number(energy['high'])} at work){price}",
            )
        )
    lines = [heading(model, options, answer), *(f"  {title:<18} {text}" for title, text in rows)]
    lines += [f"  {line}" for line in answer.tried]
    return "\n".join([*lines, *(f"  note: {note}" for note in own["notes"])])
