"""Adds repeating rounds of decodes in one step.

If every running request has entered, and left the last region, exactly D ticks after its previous turn, and every region is free D
ticks later than one round ago, then the state is that of one round ago shifted by D. So rounds repeat until another event: an
arrival, the last token of an answer, a token that begins another slot, or a cache without free blocks. k rounds add k D to times
and k to counts. The result is exact. Turns of several requests, drafts and a prefix cache (whose blocks have an order) are simulated
one by one.
"""

from __future__ import annotations

from wse_sim.jit import inlined_kernel
from wse_sim.serving.base import NEVER
from wse_sim.serving.fast_rules import bin_of
from wse_sim.serving.fast_state import (
    BACK_FROM,
    BACK_TO,
    BLOCKS_MOST,
    COMPUTED,
    EMITTED,
    ENTERS,
    FREE,
    GAP_TICKS,
    PROMPTS,
    RUNNING,
    SHIFT,
    SKIPPED,
    STREAK,
    STREAK_OF,
    TURNS,
    Int,
    Limits,
    Replica,
    Requests,
    Table,
)


@inlined_kernel
def jump(
    requests: Requests,
    replica: Replica,
    table: Table,
    limits: Limits,
    edges: Int,
    now: int,
    left_at: int,
    soon: int,
) -> None:
    """After a turn of one decode that entered at `now`, add all repeating rounds that end before `soon`."""
    at, ring = replica.at, len(replica.back) - 1
    number = replica.back[(at[BACK_TO] - 1) & ring]
    moved = now - requests.enters[number]
    is_same = (
        requests.enters[number] != NEVER
        and moved == left_at - requests.leaves[number]
        and at[STREAK_OF] == at[RUNNING]
        and (at[STREAK] == 0 or moved == at[SHIFT])
        and at[PROMPTS] == 0
        and at[ENTERS] <= now
    )
    at[STREAK] = at[STREAK] + 1 if is_same else 0
    at[SHIFT], at[STREAK_OF] = moved, at[RUNNING]
    requests.enters[number], requests.leaves[number] = now, left_at
    if at[STREAK] == at[RUNNING]:
        for r in range(len(replica.left)):
            if replica.left[r] - replica.left_before[r] != moved:
                at[STREAK] = 0
    if at[STREAK] == 0:
        for r in range(len(replica.left)):
            replica.left_before[r] = replica.left[r]
    if at[STREAK] != at[RUNNING]:
        return
    at[STREAK] = 0
    rounds = _rounds(requests, replica, table, limits, now, moved, soon)
    if rounds > 0:
        _add(requests, replica, table, limits, edges, rounds, moved)
    for r in range(len(replica.left)):
        replica.left_before[r] = replica.left[r]


@inlined_kernel
def _rounds(
    requests: Requests, replica: Replica, table: Table, limits: Limits, now: int, shift: int, soon: int
) -> int:
    """Return the number of rounds that certainly repeat; 0 if a running request did not decode in the last
    round."""
    at = replica.at
    rounds = min((soon - now) // shift - 1, (at[FREE] - at[RUNNING]) * limits.block // at[RUNNING])
    for k in range(at[RUNNING]):
        number = replica.running[k]
        if requests.enters[number] == NEVER or now - requests.enters[number] >= shift:
            return 0
        computed = requests.computed[number]
        in_slot = (computed + table.grid - 1) // table.grid * table.grid - computed
        rounds = min(rounds, in_slot, requests.output[number] - requests.emitted[number] - 1)
    return rounds


@inlined_kernel
def _add(
    requests: Requests, replica: Replica, table: Table, limits: Limits, edges: Int, rounds: int, shift: int
) -> None:
    """Add a number of rounds to all times and counts."""
    at, tally, ring, further = replica.at, replica.tally, len(replica.back) - 1, rounds * shift
    deep = 0
    for k in range(at[RUNNING]):
        number = replica.running[k]
        deep += table.deep[(requests.computed[number] + table.grid - 1) // table.grid]
        requests.computed[number] += rounds
        requests.emitted[number] += rounds
        requests.last[number] += further
        requests.enters[number] += further
        requests.leaves[number] += further
        blocks = (requests.computed[number] + limits.block - 1) // limits.block
        if blocks > requests.held[number]:
            at[FREE] -= blocks - requests.held[number]
            requests.held[number] = blocks
    for k in range(at[BACK_FROM], at[BACK_TO]):
        replica.back_at[k & ring] += further
    for r in range(len(replica.left)):
        replica.left[r] += further
        each = table.base[r, 1] + table.head[r]
        replica.busy[r] += rounds * (at[RUNNING] * each + table.layers[r] * deep)
    tokens = rounds * at[RUNNING]
    replica.gaps[bin_of(edges, shift)] += tokens
    at[SKIPPED] += tokens
    tally[GAP_TICKS] += tokens * shift
    tally[EMITTED] += tokens
    tally[TURNS] += tokens
    tally[COMPUTED] += tokens
    tally[BLOCKS_MOST] = max(tally[BLOCKS_MOST], limits.blocks - at[FREE])
