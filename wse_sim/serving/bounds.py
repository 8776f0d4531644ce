"""Closed forms for every run: bounds that no schedule can exceed, and the bottleneck.

With t_r(n) the ticks of a turn of n tokens, contexts as long as those of the mean request, t = max_r t_r(1) and lam = sum_r t_r(1)::

    one user alone         1 / lam tokens/s          N users   min(N / lam, 1 / t)
    first token alone      (turns - 1) max_r t_r(c) + sum_r t_r(c), turns = ceil(p / c)
    requests               rate <= 1 / W,  W = a max((o - 1) / joined, (p + o - 1) / c) + b (p + o - 1)

where a + b n is the largest line that nowhere exceeds max_r t_r(n), p and o are the mean lengths, c tokens of
a turn: every turn pays a, every token b.  Tokens of prompts that are in the cache or are read elsewhere do
not count in p. With speculation a decode processes K + 1 tokens and emits E of them on average
(:mod:`wse_sim.serving.speculation`), so o - 1 tokens take (o - 1) / E decodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wse_sim.serving.base import TICK_S, Load, Served, ServingRules, Ticks
from wse_sim.serving.latency import TurnTable
from wse_sim.serving.prefill_transfer import EdgeState, PrefillState
from wse_sim.serving.special import expected_cycle


@dataclass(frozen=True)
class Bounds:
    """Closed forms for a load on one replica; rates are per second."""

    user_tokens_per_s: float  # of a single user
    tokens_per_s: float  # of any number of users, counting only answers
    first_token_s: float  # of a lone request of the mean length
    requests_per_s: float  # with prompts of the mean length
    cache_requests: float  # of the mean length that fit the cache at a time


def bounds_of(load: Load, rules: ServingRules, table: TurnTable, *, found: float = 0.0) -> Bounds:
    """Return the closed forms of a load of at least one request; on average the cache has `found` tokens of a
    prompt."""
    p, o = float(load.input_tokens.mean()), float(load.output_tokens.mean())
    context = min(table.most_context, round(p + o / 2))
    emitted, verified = expected_cycle(rules)
    spec, c = rules.speculation, rules.turn_tokens
    tail = spec.tail_ticks if spec else 0
    cost = table.deep_of(max(1, context))

    def decode(requests: int) -> Ticks:
        n = requests * verified
        one = table.turn_ticks(n, answers=n, slots_cost=n * cost)
        one[-1] += requests * tail
        return one

    cycle = float(decode(1).sum() + (spec.delay_ticks if spec else 0))
    most = max(1, min(rules.joined, c // verified))
    rates = [
        n * emitted / float(max(decode(n).max(), n * (spec.busy_ticks if spec else 0)))
        for n in range(1, most + 1)
    ]
    prompt = 0.0 if rules.prefill else max(0.0, p - found)
    cycles = (o - 1) / emitted
    tokens = prompt + cycles * verified
    a, b = _line_below(np.array([table.turn_ticks(n).max() for n in range(1, c + 1)], float))
    work = a * max(cycles / rules.joined, tokens / c) + b * tokens
    work = max(work, cycles * (spec.busy_ticks if spec else 0))
    held = -(-(round(p) + round(o) - 1) // rules.block_tokens)
    return Bounds(
        user_tokens_per_s=emitted / (cycle * TICK_S),
        tokens_per_s=max(rates) / TICK_S,
        first_token_s=_lone_first_ticks(round(p), rules, table) * TICK_S,
        requests_per_s=1 / (work * TICK_S) if work else float("inf"),
        cache_requests=rules.blocks / max(1, held),
    )


def _lone_first_ticks(prompt: int, rules: ServingRules, table: TurnTable) -> float:
    """Return the ticks to the first token of a single prompt."""
    if rules.prefill is not None and rules.edge is not None:
        alone = PrefillState(rules.prefill, table, rules.turn_tokens)
        return float(alone.there(0, prompt, 0, EdgeState(rules.edge)))
    c = rules.turn_tokens
    deep = table.deep_of(max(1, min(table.most_context, prompt)))
    turns = -(-prompt // c)
    left = prompt - (turns - 1) * c
    last = table.turn_ticks(left, answers=1, slots_cost=deep * left)
    whole = table.turn_ticks(min(c, prompt), slots_cost=deep * min(c, prompt))
    return float((turns - 1) * whole.max() + last.sum() if turns > 1 else last.sum())


def _line_below(values: np.ndarray) -> tuple[float, float]:
    """Return a and b >= 0 of the line a + b n that never exceeds values[n - 1], equals the last one, and is
    highest at n = 1."""
    n = np.arange(1, len(values) + 1)
    if len(values) == 1:
        return 0.0, float(values[0])
    slopes = (values[-1] - values[:-1]) / (n[-1] - n[:-1])
    b = max(0.0, float(slopes.max()))
    return max(0.0, float((values - b * n).min())), b


def binding_of(served: Served, load: Load, rules: ServingRules, table: TurnTable) -> tuple[str, str]:
    """Return the name of the resource that limits a run, and a sentence that explains it."""
    done = served.completed
    if not done.any():
        return "cache", "no request fits the cache"
    span = int(served.last_ticks[done].max() - served.arrival_ticks[done].min())
    busy = served.busy_ticks / max(1, span)
    slowest = int(busy.argmax())
    waited = (served.admitted_ticks - served.arrival_ticks)[done]
    whole = (served.last_ticks - served.arrival_ticks)[done]
    is_queued = waited.sum() > 0.1 * whole.sum()
    if is_queued and served.counters["blocks_most"] > 0.95 * rules.blocks and busy[slowest] < 0.9:
        return (
            "cache",
            f"the cache was full ({rules.blocks:,} blocks of {rules.block_tokens} tokens) while requests waited",
        )
    if is_queued and served.counters["running_most"] >= rules.most_running and busy[slowest] < 0.9:
        return (
            "running",
            f"{rules.most_running} requests ran at a time, the most that is allowed, while others waited",
        )
    if busy[slowest] > 0.6:
        where = "the first region" if slowest == 0 else f"region {slowest} of {table.regions}"
        return f"region {slowest}", f"{where} was busy {100 * busy[slowest]:.0f} % of the time"
    return (
        "latency",
        f"the path of a token through {table.regions} regions; the busiest was busy {100 * busy[slowest]:.0f} % of the time",
    )
