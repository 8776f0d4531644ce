"""The numbers of an answer of serving as data: the keys of `vllm bench serve`, and what is ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from wse_sim.files import Values
from wse_sim.service.serving_run import ServiceAnswer
from wse_sim.serving.base import TICK_S
from wse_sim.serving.curve import CurvePoint
from wse_sim.serving.energy import energy_of
from wse_sim.serving.metrics import bench_result
from wse_sim.serving.options import ServingOptions
from wse_sim.serving.run import Serving, helpers_of, is_steady
from wse_sim.serving.special import speculation_keys


def as_data(
    model: str,
    options: ServingOptions,
    answer: ServiceAnswer,
    goals: dict[str, float] | None,
    curve: Sequence[CurvePoint] = (),
) -> Values:
    """The keys of `vllm bench serve`, and additional ones under `wse_sim`."""
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
        "binds": serving.sentence + _saturated(serving),
        "search": list(answer.tried),
        "capacity_rps": answer.rate,
        "energy": _energy(options, serving),
        "curve": [asdict(point) for point in curve],
        "notes": list(serving.notes),
        "seed": options.seed,
    }
    return data


def _saturated(serving: Serving) -> str:
    """That a queue grows without end, and the rate at which requests are answered; "" if none does."""
    load, served = serving.load, serving.served
    span, done = int(load.arrival_ticks[-1] - load.arrival_ticks[0]), served.completed
    if load.is_closed or not span or not done.all() or is_steady(serving):
        return ""
    whole = int(served.last_ticks.max() - load.arrival_ticks[0]) * TICK_S
    came = (len(load) - 1) / (span * TICK_S)
    return f"; saturated: {came:,.4g} requests/s come, {len(load) / whole:,.4g} are answered, and the queue grows"


def _energy(options: ServingOptions, serving: Serving) -> Values | None:
    """Joules of a token, and money if a price is given; None without wafers."""
    if serving.replica.power is None:
        return None
    helpers = helpers_of(serving.served, serving.replica, serving.replicas)
    found = energy_of(serving.served, serving.replica.power, serving.replicas, helpers)
    tokens = serving.served.counters["emitted"]
    if options.dollars_per_wafer_hour is None or not tokens:
        return asdict(found)
    dollars = found.dollars_per_million_tokens(options.dollars_per_wafer_hour, tokens)
    return {**asdict(found), "dollars_per_million_output_tokens": dollars}
