"""Serving beyond a plan and the basic rules: speculative drafts, prefill elsewhere, and the edge link for
caches.

    --speculate draft:MODEL:K:A   a model on its own wafers drafts K tokens one after the other, each with a round trip
                mtp:K:A           a layer and the head in the last region draft K times
                prompt:K:A        the drafts are the tokens that followed the same words in the prompt: they take no time
    --prefill   foreign:RATE      machines that read RATE tokens per second, one prompt after the other
                foreign:FILE      JSON rows of [tokens, seconds] for a single prompt, interpolated linearly
                wafers:N          N additional replicas per replica, which only read prompts

A is the probability that a draft is accepted if all drafts before it were: K numbers separated by commas, or
one for all. A token passes the edge in (bytes of its keys and values on a wafer) / (bytes per second of a
wafer's edge); the wafer with the most bytes sets the time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wse_sim.errors import ConfigError
from wse_sim.files import read_json
from wse_sim.modes.generation.plan import GenerationPlan
from wse_sim.modes.generation.turn_costs import TurnPrices
from wse_sim.serving.base import (
    MOST_REPLICAS,
    MOST_TICKS,
    TICK_S,
    EdgeLink,
    PrefillElsewhere,
    Served,
    ServingError,
    ServingRules,
    Speculation,
    Ticks,
    ticks,
)
from wse_sim.serving.speculation import expected_tokens
from wse_sim.units import counted, cycles_to_s

MOST_DRAFTS = 64
MOST_RATE = 1e12
DRAFT, MTP, PROMPT = "draft", "mtp", "prompt"
FOREIGN, WAFERS = "foreign", "wafers"


@dataclass(frozen=True)
class Drafting:
    """Parsed ``--speculate``: the source of drafts, their number and acceptance probabilities."""

    way: str
    model: str
    acceptance: tuple[float, ...]


def read_drafting(text: str) -> Drafting:
    """Parse ``--speculate``.

    Raises
    ------
    ServingError
        If it has none of the forms in the module's docstring.

    Example
    -------
    >>> read_drafting("mtp:2:0.8,0.5").acceptance
    (0.8, 0.5)
    """
    way, _, rest = text.partition(":")
    model, numbers = "", rest
    if way == DRAFT:
        parts = rest.rsplit(":", 2)
        model, numbers = parts[0], ":".join(parts[1:])
    drafts, _, listed = numbers.partition(":")
    count, given = counted(drafts), [_probability(one) for one in listed.split(",")]
    if (
        way not in (DRAFT, MTP, PROMPT)
        or (way == DRAFT) != bool(model)
        or not count
        or count > MOST_DRAFTS
        or None in given
        or len(given) not in (1, count)
    ):
        raise ServingError(
            f"speculation '{text[:80]}' cannot be parsed; give draft:MODEL:K:A, mtp:K:A or prompt:K:A with 1 to {MOST_DRAFTS} drafts "
            "and one probability, or K with commas between"
        )
    acceptance = tuple(one for one in given if one is not None)
    return Drafting(way, model, acceptance * count if len(acceptance) == 1 else acceptance)


def _probability(text: str) -> float | None:
    try:
        number = float(text) if text.isascii() and "_" not in text else -1.0
    except ValueError:
        return None
    return number if 0 <= number <= 1 else None


def speculation_of(
    drafting: Drafting, plan: GenerationPlan | None, draft: GenerationPlan | None, *, seed: int = 0
) -> Speculation:
    """Return drafts with the times of a plan; `draft` is the plan of the model that drafts.

    Raises
    ------
    ServingError
        If multi-token prediction is to be priced without a plan.
    """
    count = len(drafting.acceptance)
    if drafting.way == DRAFT:
        assert draft is not None
        there_s = 2 * draft.cluster.swarmx_hop_s
        busy, delay = (_ticks(count * one) for one in (draft.stage_s, draft.latency_s))
        return Speculation(drafting.acceptance, min(busy, delay), delay + _ticks(there_s), 0, seed)
    if drafting.way == MTP:
        if plan is None:
            raise ServingError("mtp drafts in a layer of the model; give a model instead of --turns")
        prices = TurnPrices(plan)
        cycles = count * (prices.layer_cycles(1) + prices.head_cycles)
        return Speculation(drafting.acceptance, 0, 0, _ticks(cycles_to_s(cycles, plan.wafer.clock_hz)), seed)
    return Speculation(drafting.acceptance, seed=seed)


def edge_of(plan: GenerationPlan) -> EdgeLink:
    """Return the edge link of a replica's wafers; each wafer transfers the cache of its own layers."""
    layers: Counter[int] = Counter()
    for item in plan.regions:
        layers[item.wafer] += item.layers
    token_bytes = plan.cache_bytes_per_token / sum(layers.values()) * max(layers.values())
    token_s = token_bytes / plan.wafer.io_bytes_per_s
    return EdgeLink(_ticks(1024 * token_s), _ticks(plan.cluster.swarmx_hop_s))


def read_prefill(text: str, longest: int, *, streams: bool = True, layers: int = 1) -> PrefillElsewhere:
    """Parse ``--prefill``, for prompts of up to `longest` tokens.

    Raises
    ------
    ServingError, ConfigError
        If it is none of the forms at the top of this module.
    """
    way, _, rest = text.partition(":")
    if way == WAFERS and counted(rest) and int(rest) <= MOST_REPLICAS:
        return PrefillElsewhere(None, int(rest), streams, layers)
    rate = _rate(rest)
    if way == FOREIGN and rate:
        return PrefillElsewhere(ticks(np.arange(longest + 1) / rate), 1, streams, layers)
    if way == FOREIGN and rest and rate is None:
        return PrefillElsewhere(_measured(rest, longest), 1, streams, layers)
    raise ServingError(
        f"prefill '{text[:80]}' cannot be parsed; give foreign:TOKENS_PER_S, foreign:FILE or wafers:N (N up to {MOST_REPLICAS:,})"
    )


def _rate(text: str) -> float | None:
    """Return tokens per second; 0 for a number that is not a valid rate, None if the text is not a number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 1e-3 <= number <= MOST_RATE else 0.0


def _measured(name: str, longest: int) -> Ticks:
    """Return the ticks of prompts of 0 to `longest` tokens, linear between the rows of a file and beyond the
    last two."""
    data: object = read_json(Path(name), "table of prompts")
    try:
        rows = np.array(data, float)
        if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) < 2:
            raise ValueError("not two rows of two numbers")
        good = np.isfinite(rows).all() and (rows >= 0).all() and (np.diff(rows, axis=0)[:, 0] > 0).all()
        if not good or (np.diff(rows[:, 1]) < 0).any() or rows[-1, 1] / TICK_S > MOST_TICKS / 2**20:
            raise ValueError("numbers that fall, are negative or beyond a day")
    except (TypeError, ValueError) as fault:
        raise ConfigError(
            f"{name} holds {' '.join(str(fault).split())[:80]}; give increasing rows of [tokens, seconds]"
        ) from None
    at = np.arange(longest + 1)
    seconds = np.interp(at, rows[:, 0], rows[:, 1])
    slope = (rows[-1, 1] - rows[-2, 1]) / (rows[-1, 0] - rows[-2, 0])
    beyond = at > rows[-1, 0]
    seconds[beyond] = rows[-1, 1] + slope * (at[beyond] - rows[-1, 0])
    seconds[0] = 0.0
    return ticks(seconds)


def _ticks(seconds: float) -> int:
    return int(ticks(np.array(seconds)))


def with_special(
    rules: ServingRules,
    plan: GenerationPlan | None,
    *,
    longest: int,
    speculate: str | None = None,
    draft: GenerationPlan | None = None,
    prefill: str | None = None,
    streams: bool = True,
    swap: bool = False,
    by_priority: bool = False,
    seed: int = 0,
) -> ServingRules:
    """Return the rules with the requested extensions; the longest request has `longest` tokens.

    Raises
    ------
    ServingError
        If a swap or prefill elsewhere is requested without a plan, whose edge they pass.
    """
    edge = edge_of(plan) if plan else None
    if edge is None and (swap or prefill is not None):
        raise ServingError(
            "a swap, and prefill elsewhere, pass the edge of wafers; give a model instead of --turns"
        )
    return dataclasses.replace(
        rules,
        by_priority=by_priority,
        swap=swap,
        edge=edge,
        speculation=None
        if speculate is None
        else speculation_of(read_drafting(speculate), plan, draft, seed=seed),
        prefill=None
        if prefill is None or plan is None
        else read_prefill(
            prefill, longest, streams=streams, layers=sum(item.layers for item in plan.regions)
        ),
    )


def speculation_keys(served: Served, rules: ServingRules) -> dict[str, object]:
    """Return the speculation keys of `vllm bench serve`; empty without speculation."""
    if rules.speculation is None:
        return {}
    counters = served.counters
    drafts, drafted, accepted = (counters[name] for name in ("drafts", "drafted", "accepted"))
    return {
        "spec_decode_acceptance_rate": 100 * accepted / drafted if drafted else 0.0,
        "spec_decode_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [
            float(one) / drafts if drafts else 0.0 for one in served.accepted_at
        ],
    }


def helper_wafers(replica_systems: int, rules: ServingRules, draft: GenerationPlan | None) -> tuple[int, int]:
    """Return a replica's wafers besides those that decode: wafers that draft, and wafers for prefill."""
    lines = rules.prefill.lines if rules.prefill and rules.prefill.ticks is None else 0
    return draft.systems if draft else 0, lines * replica_systems


def expected_cycle(rules: ServingRules) -> tuple[float, int]:
    """Return the mean number of tokens that a decode emits per turn, and the number that it occupies in the
    turn."""
    if rules.speculation is None:
        return 1.0, 1
    acceptance = rules.speculation.acceptance[: max(0, rules.turn_tokens - 1)]
    return expected_tokens(acceptance), 1 + len(acceptance)
