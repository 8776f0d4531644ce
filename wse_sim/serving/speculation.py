"""Speculation: several drafted tokens are verified in one turn.

K drafts, a_i the probability that draft i is accepted if all before it were, D the time until the drafts are there::

    tokens of a cycle  E = 1 + sum over i of the product of a_1 .. a_i
    one user           E / (lam(K + 1) + D) tokens/s
    all users          E / max(t(K + 1), busy time of the draft's line) tokens/s

    draft model    D = K lam_draft + 2 h, the line is occupied K t_draft of it; the model has its own regions
    mtp            D = K (layers A(1) + head) in the last region, which is busy with it
    prompt         D = 0: what followed the same words in the prompt

It pays for one user where E exceeds (lam(K + 1) + D) / lam(1), for all where it exceeds max(t(K + 1), busy) / t(1).  Drafts of
several requests take turns on the draft's line, first come first served, all drafts of one request together (in truth single tokens
interleave; the rate is the same).

Whether a draft is accepted is a hash of seed, request and place in the answer: every engine and every order of events draws the same.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from wse_sim.serving.base import TICK_S, ServingError, Speculation

if TYPE_CHECKING:
    from wse_sim.serving.latency import TurnTable

MASK = 2**64 - 1
FIRST, SECOND, STEP = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0x9E3779B97F4A7C15
BITS = 53  # of the fraction that is drawn


def mixed(x: int) -> int:
    """The finalizer of MurmurHash3: a 64-bit number whose bits all depend on all bits of `x`."""
    x &= MASK
    for factor in (FIRST, SECOND):
        x = ((x ^ (x >> 33)) * factor) & MASK
    return x ^ (x >> 33)


def threshold(probability: float) -> int:
    """The threshold, in units of 2^-53, below which a drawn fraction has this probability."""
    return round(probability * 2**BITS)


def accepted_drafts(spec: Speculation, request: int, place: int, drafts: int) -> int:
    """Number of accepted drafts among the `drafts` tokens of a request's answer from `place` on.

    Example
    -------
    >>> accepted_drafts(Speculation((1.0, 1.0, 0.0)), 7, 20, 3)
    2
    """
    own = mixed(spec.seed + (request + 1) * STEP)
    for number, probability in enumerate(spec.acceptance[:drafts]):
        if mixed(own + place + number) >> (64 - BITS) >= threshold(probability):
            return number
    return drafts


class SpeculationBounds(NamedTuple):
    """Closed-form throughput with speculation, and the tokens per cycle from which it pays."""

    tokens_per_cycle: float
    user_tokens_per_s: float
    tokens_per_s: float
    pays_for_user_from: float  # tokens of a cycle from which a user alone is faster than without
    pays_for_all_from: float


def bounds_of_speculation(spec: Speculation, table: TurnTable, *, context: int) -> SpeculationBounds:
    """The closed forms at the top of this module; tokens with `context` tokens before them.

    Raises
    ------
    ServingError
        If a turn of the table has no room for the drafts.
    """
    drafts = len(spec.acceptance)
    if drafts + 1 > table.most_tokens:
        raise ServingError(
            f"{drafts} drafts and the known token exceed turns of {table.most_tokens} tokens; use at most {table.most_tokens - 1}"
        )
    deep = table.deep_of(max(1, min(context, table.most_context)))
    one = table.turn_ticks(1, answers=1, slots_cost=deep)
    several = table.turn_ticks(drafts + 1, answers=drafts + 1, slots_cost=(drafts + 1) * deep)
    several[-1] += spec.tail_ticks
    cycle, slowest = float(several.sum() + spec.delay_ticks), float(max(several.max(), spec.busy_ticks))
    tokens = expected_tokens(spec.acceptance)
    return SpeculationBounds(
        tokens,
        tokens / (cycle * TICK_S),
        tokens / (slowest * TICK_S),
        cycle / float(one.sum()),
        slowest / float(one.max()),
    )


def expected_tokens(acceptance: tuple[float, ...]) -> float:
    """Tokens of a cycle, in the mean of an answer without end.

    Example
    -------
    >>> expected_tokens((0.5, 0.5))
    1.75
    """
    return 1.0 + sum(accumulate(acceptance, mul))


def acceptance_to_pay(tokens: float, drafts: int) -> float:
    """The equal acceptance a of all drafts for which 1 + a + .. + a^K is `tokens`; above 1 where none is enough.

    Example
    -------
    >>> round(acceptance_to_pay(1.75, 2), 6)
    0.5
    """
    if tokens > drafts + 1:
        return tokens / (drafts + 1)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens((middle,) * drafts) < tokens else (low, middle)
    return high
