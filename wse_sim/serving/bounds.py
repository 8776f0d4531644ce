"""Closed forms beside every run: what no schedule can beat, and what binds.

With t_r(n) the ticks of a turn of n tokens, contexts as long as the mean request's, t = max_r t_r(1) and lam = sum_r t_r(1)::

    one user alone         1 / lam tokens/s          N users   min(N / lam, 1 / t)
    first token alone      (turns - 1) max_r t_r(c) + sum_r t_r(c), turns = ceil(p / c)
    requests               rate <= 1 / W,  W = a max((o - 1) / joined, (p + o - 1) / c) + b (p + o - 1)

where a + b n is the largest line that nowhere exceeds max_r t_r(n), p and o are the mean lengths, c tokens of a turn: every turn
pays a, every token b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wse_sim.serving.base import TICK_S, Load, Served, ServingRules
from wse_sim.serving.latency import TurnTable


@dataclass(frozen=True)
class Bounds:
    """Closed forms of a load on one replica; rates per second."""

    user_tokens_per_s: float  # of one user alone
    tokens_per_s: float  # of any number of users, answers alone
    first_token_s: float  # of a lone request of the mean length
    requests_per_s: float  # with prompts of the mean length
    cache_requests: float  # of the mean length that fit the cache at a time


def bounds_of(load: Load, rules: ServingRules, table: TurnTable) -> Bounds:
    """The closed forms of a load of at least one request."""
    p, o = float(load.input_tokens.mean()), float(load.output_tokens.mean())
    context = min(table.most_context, round(p + o / 2))
    one = table.turn_ticks(1, answers=1, slots_cost=table.deep_of(max(1, context)))
    c = rules.turn_tokens
    prompt = round(p)
    deep = table.deep_of(max(1, min(table.most_context, prompt)))
    turns = -(-prompt // c)
    last = table.turn_ticks(prompt - (turns - 1) * c, answers=1, slots_cost=deep * (prompt - (turns - 1) * c))
    whole = table.turn_ticks(min(c, prompt), slots_cost=deep * min(c, prompt))
    first = (turns - 1) * whole.max() + last.sum() if turns > 1 else last.sum()
    a, b = _line_below(np.array([table.turn_ticks(n).max() for n in range(1, c + 1)], float))
    work = a * max((o - 1) / rules.joined, (p + o - 1) / c) + b * (p + o - 1)
    held = -(-(prompt + round(o) - 1) // rules.block_tokens)
    return Bounds(
        user_tokens_per_s=1 / (one.sum() * TICK_S),
        tokens_per_s=1 / (one.max() * TICK_S),
        first_token_s=float(first) * TICK_S,
        requests_per_s=1 / (work * TICK_S) if work else float("inf"),
        cache_requests=rules.blocks / max(1, held),
    )


def _line_below(values: np.ndarray) -> tuple[float, float]:
    """a and b >= 0 of the line a + b n that nowhere exceeds values[n - 1], touches at the last n, and is highest at n = 1."""
    n = np.arange(1, len(values) + 1)
    if len(values) == 1:
        return 0.0, float(values[0])
    slopes = (values[-1] - values[:-1]) / (n[-1] - n[:-1])
    b = max(0.0, float(slopes.max()))
    return max(0.0, float((values - b * n).min())), b


def binding_of(served: Served, load: Load, rules: ServingRules, table: TurnTable) -> tuple[str, str]:
    """What binds a run, by name, and in a sentence."""
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
        return f"region {slowest}", f"{where} was busy {busy[slowest]:.0%} of the time"
    return (
        "latency",
        f"the way of a token through {table.regions} regions; the busiest was busy {busy[slowest]:.0%} of the time",
    )
