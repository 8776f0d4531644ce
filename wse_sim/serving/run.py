"""Serve a load on the replicas of a plan, and the searches based on that.

Replicas take requests round-robin: request n of an open load goes to replica n mod N, user u of a closed loop
to replica u mod N.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from wse_sim.modes.generation.plan import RESTING, GenerationPlan
from wse_sim.modes.generation.prompt_reading import SHORT
from wse_sim.modes.generation.turn_costs import TurnPrices
from wse_sim.serving.base import (
    MOST_REPLICAS,
    TICK_S,
    Load,
    RunInterrupted,
    Served,
    ServingError,
    ServingRules,
)
from wse_sim.serving.bounds import Bounds, binding_of, bounds_of
from wse_sim.serving.energy import HelperWafers, PowerDraw, draw_of
from wse_sim.serving.fast_engine import serve_fast
from wse_sim.serving.latency import TurnTable, check_turns, table_of
from wse_sim.serving.line import serve_reference
from wse_sim.serving.metrics import meets, request_times
from wse_sim.serving.router import ROUND_ROBIN
from wse_sim.serving.series import SampledRun, sampled_run

ENGINES: dict[str, Callable[[Load, ServingRules, TurnTable, int, str], Served]] = {
    "fast": serve_fast,
    "reference": serve_reference,
}
RATE_STEP = 0.01  # relative width at which the search for a rate ends


@dataclass(frozen=True)
class Replica:
    """A replica: its turn table, its rules, and notes on the choices made for it."""

    table: TurnTable
    rules: ServingRules
    notes: tuple[str, ...] = ()
    power: PowerDraw | None = None  # of a plan
    helper_wafers: tuple[int, int] = (
        0,
        0,
    )  # wafers that draft, and wafers that read prompts, for this replica

    @property
    def helpers(self) -> int:
        """Wafers of this replica beyond those that decode."""
        return sum(self.helper_wafers)


@dataclass(frozen=True)
class Serving:
    """The outcome of serving a load: the served requests, the replicas, the bounds and the bottleneck."""

    load: Load
    served: Served
    replica: Replica
    replicas: int
    bounds: Bounds  # of all replicas
    binding: str
    sentence: str  # names the bottleneck
    notes: tuple[str, ...]
    sampled: SampledRun
    is_cut: bool = False  # an interrupted run: only requests answered by then are included


def replica_of(
    plan: GenerationPlan,
    *,
    most_context: int,
    turn_tokens: int | None = None,
    blocks: int | None = None,
    block_tokens: int = 16,
    most_running: int = 256,
    joined: int = 1,
    reserve: bool = False,
    prefix_cache: bool = False,
) -> Replica:
    """Return the replica of a plan; by default, turns of the plan's chunk and the largest cache that fits
    with them.

    Raises
    ------
    ServingError
        If no cache fits together with the rows of a turn.
    """
    prices = TurnPrices(plan)
    notes = [*prices.notes]
    if turn_tokens is None:
        turn_tokens = plan.reading.chunk if plan.reading.way == RESTING else SHORT
        notes.append(f"turns of up to {turn_tokens} tokens: {_why(plan)} (--max-num-batched-tokens)")
    cache = prices.cache_tokens(turn_tokens)
    if blocks is None:
        blocks = cache // block_tokens
        if not blocks:
            raise ServingError(
                f"no cache fits in addition to the rows of a turn of {turn_tokens} tokens; use shorter turns or more systems"
            )
        notes.append(
            f"the cache holds {cache:,} tokens of all requests of a replica, in blocks of {block_tokens}"
        )
    rules = ServingRules(blocks, block_tokens, most_running, turn_tokens, joined, reserve, prefix_cache)
    table = table_of(plan, most_tokens=turn_tokens, most_context=max(most_context, plan.grid))
    return Replica(table, rules, tuple(notes), draw_of(plan))


def _why(plan: GenerationPlan) -> str:
    if plan.reading.way == RESTING:
        return f"the earliest first token of a prompt of {plan.prompt:,} that leaves half of the cache"
    return "short ones, since no chunk of a lone prompt is faster than one block"


def serve(
    load: Load,
    replica: Replica,
    *,
    replicas: int = 1,
    engine: str = "fast",
    router: str = ROUND_ROBIN,
    keeps: bool = False,
) -> Serving:
    """Serve a load on equal replicas; with `keeps`, an interrupt returns the requests answered so far by the
    fast engine.

    Raises
    ------
    ServingError
        If the load is empty, or a turn or context exceeds the table.
    KeyboardInterrupt
        On an interrupt, without `keeps`.
    """
    if not len(load):
        raise ServingError("the load has no request; give at least one")
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ServingError(
            f"{replicas} replicas are outside 1 to {MOST_REPLICAS:,}; give a number in that range"
        )
    rules = replica.rules
    fits = [
        rules.fits(*sizes)
        for sizes in zip(load.input_tokens.tolist(), load.output_tokens.tolist(), strict=True)
    ]
    check_turns(replica.table, load, rules)
    cut, whole = "", len(load)
    try:
        served = ENGINES[engine](load, rules, replica.table, replicas, router)
    except RunInterrupted as stop:
        if not keeps or not stop.is_answered.any():
            raise
        load, served = load.only(stop.is_answered), stop.served.only(stop.is_answered)
        fits = [True] * len(load)
        cut = (
            f"interrupted after {int(served.last_ticks.max()) * TICK_S:,.4g} s of simulated time: of {whole:,} requests "
            f"{len(load):,} were answered by then; only these count"
        )
    bounds = bounds_of(load, rules, replica.table, found=served.counters["cached"] / len(load))
    bounds = dataclasses.replace(
        bounds,
        tokens_per_s=replicas * bounds.tokens_per_s,
        requests_per_s=replicas * bounds.requests_per_s,
        cache_requests=replicas * bounds.cache_requests,
    )
    averaged = dataclasses.replace(served, busy_ticks=served.busy_ticks // replicas)
    binding, sentence = binding_of(averaged, load, rules, replica.table)
    notes = [*load.notes, *replica.notes, *([cut] if cut else [])]
    if failed := len(load) - sum(fits):
        notes.append(
            f"{failed:,} requests are longer than the cache of a replica ({rules.blocks * rules.block_tokens:,} tokens) and fail"
        )
    return Serving(
        load,
        served,
        replica,
        replicas,
        bounds,
        binding,
        sentence,
        tuple(notes),
        sampled_run(served),
        bool(cut),
    )


def attained(serving: Serving, goals: Mapping[str, float]) -> float:
    """Return the fraction of all requests that were answered within the goals."""
    return float(meets(request_times(serving.load, serving.served), goals).sum()) / (
        len(serving.load) + serving.load.refused
    )


def is_steady(serving: Serving) -> bool:
    """Return whether the queue is bounded: at most twice as many requests wait in the second half as in the
    first."""
    waited = serving.served.admitted_ticks - serving.served.arrival_ticks
    half = len(waited) // 2
    if half < 1 or not serving.served.completed.all():
        return bool(serving.served.completed.all())
    early, late = float(waited[:half].mean()), float(waited[half:].mean())
    whole = float((serving.served.last_ticks - serving.served.arrival_ticks).mean())
    return late <= 2 * early + 0.05 * whole


def capacity(
    load_at: Callable[[float], Load],
    replica: Replica,
    goals: Mapping[str, float],
    *,
    replicas: int = 1,
    attain: float = 0.99,
    router: str = ROUND_ROBIN,
) -> tuple[float, Serving | None]:
    """Return the highest rate at which `attain` of the requests meet the goals and no queue grows, and its
    run.

    Bisection to 1 % below the closed bound; `load_at` draws the same random numbers at each rate.  (0, None)
    if even a single request is too late.
    """

    def holds(rate: float) -> Serving | None:
        found = serve(load_at(rate), replica, replicas=replicas, router=router)
        return found if attained(found, goals) >= attain and is_steady(found) else None

    high = 1.05 * serve(load_at(1.0), replica, replicas=replicas).bounds.requests_per_s
    low, best = 0.0, None
    least = high / 1024
    while high - low > max(RATE_STEP * high, least):
        middle = (low + high) / 2 if low else high / 2
        if found := holds(middle):
            low, best = middle, found
        else:
            high = middle
    return low, best


def fewest_replicas(
    load: Load,
    replica: Replica,
    goals: Mapping[str, float],
    *,
    attain: float = 0.99,
    most: int = 64,
    router: str = ROUND_ROBIN,
) -> tuple[int, Serving | None]:
    """Return the fewest replicas on which `attain` of the requests meet the goals, and their run; else (most,
    None)."""

    def holds(count: int) -> Serving | None:
        found = serve(load, replica, replicas=count, router=router)
        is_fine = attained(found, goals) >= attain and (load.is_closed or is_steady(found))
        return found if is_fine else None

    high, best = 1, holds(1)
    while best is None and high < most:
        high = min(most, 2 * high)
        best = holds(high)
    if best is None:
        return most, None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if found := holds(middle):
            high, best = middle, found
        else:
            low = middle
    return high, best


def helpers_of(served: Served, replica: Replica, replicas: int) -> tuple[HelperWafers, ...]:
    """Return the busy fractions of wafers that draft and of wafers that prefill."""
    drafting, reading = replica.helper_wafers
    done, rules = served.completed, replica.rules
    if not done.any() or replica.power is None:
        return HelperWafers(drafting, 0.0), HelperWafers(reading, 0.0)
    span = int(served.last_ticks[done].max() - served.arrival_ticks[done].min())
    drafted = served.counters["drafts"] * (rules.speculation.busy_ticks if rules.speculation else 0)
    read = float(np.dot(served.prefill_busy_ticks, replica.power.core_fractions))
    lines = rules.prefill.lines if rules.prefill else 1
    return (
        HelperWafers(drafting, min(1.0, drafted / replicas / span)),
        HelperWafers(reading, min(1.0, read / lines / replicas / span)),
    )
