"""Output of ``wse-sim serve``: the numbers of a run as data and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wse_sim.files import Values
from wse_sim.serving.options import ServingOptions

if TYPE_CHECKING:
    from wse_sim.service.answers import ServiceAnswer


def heading(model: str, options: ServingOptions, answer: ServiceAnswer) -> str:
    """One line with the model, the machine, and the number of replicas and requests."""
    name = options.wafer if isinstance(options.wafer, str) else options.wafer.name
    count = answer.serving.replicas
    machine = f"{answer.systems * count} x {name}" if options.turns is None else f"table {options.turns}"
    return f"{model} on {machine}, {count} replica{'s' * (count > 1)}: {len(answer.serving.load):,} requests"


def as_text(model: str, options: ServingOptions, answer: ServiceAnswer, data: Values) -> str:
    """The main figures of a serving run, as text."""
    own = data["wse_sim"]
    rows = [
        ("completed", f"{data['completed']:,} in {data['duration']:,.4g} s, {data['failed']:,} failed"),
        (
            "throughput",
            f"{data['request_throughput']:,.4g} requests/s, {data['output_throughput']:,.5g} tokens/s of answers",
        ),
    ]
    if data["request_goodput"] is not None:
        rows.append(("goodput", f"{data['request_goodput']:,.4g} requests/s within {options.goodput}"))
    for key, title in (
        ("ttft", "first token"),
        ("tpot", "time per token"),
        ("itl", "gaps"),
        ("e2el", "whole answer"),
    ):
        parts = [f"{data[f'{which}_{key}_ms']:,.4g}" for which in ("mean", "p50", "p90", "p99")]
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
            f"{bounds['user_tokens_per_s']:,.4g} tokens/s for one user, {bounds['tokens_per_s']:,.5g} for all; "
            f"{bounds['requests_per_s']:,.4g} requests/s; first token {1e3 * bounds['first_token_s']:,.4g} ms",
        ),
    ]
    if energy := own["energy"]:
        money = energy.get("dollars_per_million_output_tokens")
        price = "" if money is None else f"; {money:,.4g} dollars per million tokens of answers"
        rows.append(
            (
                "energy",
                f"{energy['joules_per_output_token']:,.4g} J per token of an answer ({energy['low']:,.4g} if idle draws that of an "
                f"idle wafer, {energy['high']:,.4g} at work){price}",
            )
        )
    lines = [heading(model, options, answer), *(f"  {title:<18} {text}" for title, text in rows)]
    lines += [f"  {line}" for line in answer.tried]
    return "\n".join([*lines, *(f"  note: {note}" for note in own["notes"])])
