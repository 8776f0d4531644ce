"""What ``wse-sim serve`` prints and writes: the numbers of a run as data, as text, and as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wse_sim.files import Values
from wse_sim.serving.options import ServingOptions
from wse_sim.written import together

if TYPE_CHECKING:
    from wse_sim.serving.run import Serving


@dataclass(frozen=True)
class Answer:
    """A run of serving, on how many wafers, and what a search found."""

    serving: Serving
    systems: int
    tried: tuple[str, ...] = ()


def as_data(model: str, options: ServingOptions, answer: Answer, goals: dict[str, float] | None) -> Values:
    """The keys of `vllm bench serve`, and what is ours under `wse_sim`."""
    from dataclasses import asdict

    from wse_sim.serving.metrics import bench_result
    from wse_sim.serving.special import speculation_keys

    serving = answer.serving
    rate: float | str = "inf" if options.rate is None else options.rate
    data = bench_result(serving.load, serving.served, model=model, rate=rate, goals=goals)
    rules, counters = serving.replica.rules, serving.served.counters
    data |= speculation_keys(serving.served, rules)
    data["wse_sim"] = {
        "wafers": answer.systems * serving.replicas,
        "systems": answer.systems,
        "replicas": serving.replicas,
        "regions": serving.replica.table.regions,
        "turn_tokens": rules.turn_tokens,
        "kv_blocks": rules.blocks,
        "block_size": rules.block_tokens,
        "kv_blocks_most": counters["blocks_most"],
        "running_most": counters["running_most"],
        "preemptions": counters["preemptions"],
        "recomputed_tokens": counters["recomputed"],
        "cached_tokens": counters["cached"],
        "swapped_tokens": counters["swapped"],
        "handed_over_tokens": counters["handed"],
        "helper_wafers": serving.replica.helpers * serving.replicas,
        "router": options.router,
        "turns": counters["turns"],
        "bounds": {name: float(value) for name, value in asdict(serving.bounds).items()},
        "binding": serving.binding,
        "binds": serving.sentence,
        "search": list(answer.tried),
        "energy": _energy(options, serving),
        "notes": list(serving.notes),
        "seed": options.seed,
    }
    return data


def _energy(options: ServingOptions, serving: Serving) -> Values | None:
    """Joules of a token, and money if a price is given; None without wafers."""
    from dataclasses import asdict

    from wse_sim.serving.energy import energy_of
    from wse_sim.serving.special import helpers_of

    if serving.replica.power is None:
        return None
    helpers = helpers_of(serving.served, serving.replica, serving.replicas)
    found = energy_of(serving.served, serving.replica.power, serving.replicas, helpers)
    tokens = serving.served.counters["emitted"]
    if options.dollars_per_wafer_hour is None or not tokens:
        return asdict(found)
    dollars = found.dollars_per_million_tokens(options.dollars_per_wafer_hour, tokens)
    return {**asdict(found), "dollars_per_million_output_tokens": dollars}


def heading(model: str, options: ServingOptions, answer: Answer) -> str:
    """What was served on what."""
    name = options.wafer if isinstance(options.wafer, str) else options.wafer.name
    count = answer.serving.replicas
    machine = f"{answer.systems * count} x {name}" if options.turns is None else f"table {options.turns}"
    return f"{model} on {machine}, {count} replica{'s' * (count > 1)}: {len(answer.serving.load):,} requests"


def as_text(model: str, options: ServingOptions, answer: Answer, data: Values) -> str:
    """What an operator asks first."""
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
            + (f"; {own['cached_tokens']:,} tokens of prompts were there" if options.prefix_caching else ""),
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


def write_files(
    out: Path, data: Values, serving: Serving, title: str, goals: dict[str, float] | None
) -> None:
    """result.json, a row for each completed request in requests.csv, and a picture."""
    from wse_sim.report.serving import draw_serving

    with together(out) as part:
        (part / "result.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        with (part / "requests.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(_rows(serving))
        draw_serving(serving, part / "serving.png", title=title, goals=goals)


def _rows(serving: Serving) -> Iterator[tuple[object, ...]]:
    from wse_sim.serving.base import TICK_S
    from wse_sim.serving.metrics import request_times

    yield (
        "request_id", "input", "output", "arrival_s", "queue_time_s", "ttft_s", "tpot_s", "latency_s", "preemptions",
    )  # fmt: skip
    done, times = serving.served.completed, request_times(serving.load, serving.served)
    columns = (
        done.nonzero()[0], serving.load.input_tokens[done], serving.load.output_tokens[done],
        serving.served.arrival_ticks[done] * TICK_S, times["queue"] / 1e3, times["ttft"] / 1e3, times["tpot"] / 1e3,
        times["e2el"] / 1e3, serving.served.preemptions[done],
    )  # fmt: skip
    yield from zip(*(column.tolist() for column in columns), strict=True)
