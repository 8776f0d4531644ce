"""Speculation: several drafted tokens are verified in one turn.

K drafts, a_i the probability that draft i is accepted if all previous ones were, D the time until the drafts
are ready::

    tokens of a cycle  E = 1 + sum over i of the product of a_1 .. a_i
    one user           E / (lam(K + 1) + D) tokens/s
    all users          E / max(t(K + 1), busy time of the draft's line) tokens/s

    draft model    D = K lam_draft + 2 h, of which the line is occupied K t_draft; the model has separate regions
    mtp            D = K (layers A(1) + head) in the last region, which is busy meanwhile
    prompt         D = 0: the tokens that followed the same words in the prompt

Speculation pays for a single user if E exceeds (lam(K + 1) + D) / lam(1), and for all users if it exceeds max(t(K + 1), busy) / t(1).
The draft model's line serves requests first come, first served, all drafts of one request together. (In reality single tokens
interleave, at the same rate.)

A hash of seed, request and position in the answer determines whether a draft is accepted, so the result is the same in every engine
and for every order of events.
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
BITS = 53  # of the drawn fraction


def mixed(x: int) -> int:
    """Return the finalizer of MurmurHash3: a 64-bit number whose bits all depend on all bits of `x`."""
    x &= MASK
    for factor in (FIRST, SECOND):
        x = ((x ^ (x >> 33)) * factor) & MASK
    return x ^ (x >> 33)


def threshold(probability: float) -> int:
    """Return the threshold, in units of 2^-53, below which a uniform fraction falls with this probability."""
    return round(probability * 2**BITS)


def accepted_drafts(spec: Speculation, request: int, place: int, drafts: int) -> int:
    """Return the number of accepted drafts among the `drafts` tokens of a request's answer from `place` on.

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
    pays_for_user_from: float  # tokens per cycle from which a single user is faster than without speculation
    pays_for_all_from: float


def bounds_of_speculation(spec: Speculation, table: TurnTable, *, context: int) -> SpeculationBounds:
    """Return the closed forms of the module's docstring, for tokens after `context` tokens.

    Raises
    ------
    ServingError
        If the drafts do not fit in a turn of the table.
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
    """Return the mean tokens per cycle, for an endless answer.

    Example
    -------
    >>> expected_tokens((0.5, 0.5))
    1.75
    """
    return 1.0 + sum(accumulate(acceptance, mul))


def acceptance_to_pay(tokens: float, drafts: int) -> float:
    """Return the acceptance a, equal for all drafts, for which 1 + a + .. + a^K is `tokens`; above 1 if
    impossible.

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
