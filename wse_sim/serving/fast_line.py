"""The loop of one replica in the fast engine: plays turns that enter before a time, and all returns and
arrivals up to it."""

from __future__ import annotations

from wse_sim.jit import bare_kernel, inlined_kernel
from wse_sim.serving.base import NEVER
from wse_sim.serving.fast_blocks import register as register_blocks
from wse_sim.serving.fast_jump import jump
from wse_sim.serving.fast_queue import push
from wse_sim.serving.fast_rules import admit, decodes, follow, prompts, returned
from wse_sim.serving.fast_samples import sample, see
from wse_sim.serving.fast_state import (
    BACK_FROM,
    BACK_TO,
    BLOCKS_MOST,
    COMPUTED,
    ENDLESS,
    ENTERS,
    FREE,
    IDLE,
    MOVE_FROM,
    MOVE_TO,
    NEXT,
    NOW,
    PREEMPTIONS,
    PROMPTS,
    READY,
    RUNNING,
    RUNNING_MOST,
    STREAK,
    TURNS,
    Int,
    Limits,
    Replica,
    Requests,
    Table,
)


@bare_kernel
def advance(
    requests: Requests, replica: Replica, table: Table, limits: Limits, edges: Int, coming: Int, until: int
) -> None:
    """Play the turns that enter before `until`, and all returns and arrivals up to it."""
    at, tally, left, regions, ring = (
        replica.at, replica.tally, replica.left, len(table.layers), len(replica.back) - 1,
    )  # fmt: skip
    now = at[NOW]
    while True:
        _comes(requests, replica, limits, edges, coming, min(now, until))
        if limits.routed and replica.pending[0]:
            until = min(until, requests.arrival[replica.pending[replica.pending[0]]])
        if now >= until:
            at[NOW] = now
            return
        if replica.sampled[2]:
            sample(replica, now)
        while True:
            before, from_ = tally[PREEMPTIONS], at[BACK_TO]
            size, answers, more, count = decodes(requests, replica, table, limits, now)
            is_decode = count == 1
            size, answers, more, count, is_short = prompts(
                requests, replica, table, limits, now, size, answers, more, count
            )
            if not is_short and tally[PREEMPTIONS] == before:
                size, answers, more, count = admit(
                    requests, replica, table, limits, now, size, answers, more, count
                )
            if size or tally[PREEMPTIONS] == before:
                break
        tally[RUNNING_MOST] = max(tally[RUNNING_MOST], at[RUNNING])
        tally[BLOCKS_MOST] = max(tally[BLOCKS_MOST], limits.blocks - at[FREE])
        at[IDLE] = 1 if size == 0 else 0
        if size == 0:
            see(replica, limits)
            now = min(_next(requests, replica, limits, coming), _wakes(requests, replica, now))
            continue
        free_at = max(now, at[ENTERS])
        for r in range(regions):
            took = table.base[r, size] + answers * table.head[r] + table.layers[r] * more
            if r + 1 == regions:
                took += count * limits.draft_tail
            free_at = max(left[r], free_at) + took
            left[r] = free_at
            replica.busy[r] += took
        for k in range(from_, at[BACK_TO]):
            replica.back_at[k & ring] = free_at
        tally[TURNS] += 1
        tally[COMPUTED] += size
        if limits.jumps:
            if is_decode and size == 1:
                soon = min(until, _arrives_at(requests, replica, limits, coming), _moved_at(replica))
                soon = min(soon, max(now, replica.sampled[0] * replica.sampled[1]))
                jump(requests, replica, table, limits, edges, now, free_at, soon)
            else:
                at[STREAK] = 0
                for k in range(from_, at[BACK_TO]):
                    requests.enters[replica.back[k & ring]] = NEVER
        now = left[0]
        if replica.sampled[0] * replica.sampled[1] < now:
            see(replica, limits)
            sample(replica, now)


@inlined_kernel
def _comes(requests: Requests, replica: Replica, limits: Limits, edges: Int, coming: Int, now: int) -> None:
    """Process all returns and arrivals up to now in order of time; ties: first the line, then caches, then
    arrivals."""
    at, ring = replica.at, len(replica.back) - 1
    while True:
        back_at = replica.back_at[at[BACK_FROM] & ring] if at[BACK_FROM] < at[BACK_TO] else ENDLESS
        moved_at = _moved_at(replica)
        arrives_at = _arrives_at(requests, replica, limits, coming)
        soon = min(back_at, moved_at, arrives_at)
        if soon > now or soon == ENDLESS:
            return
        if min(back_at, moved_at) == soon:
            emits = 1
            if back_at == soon:
                number = replica.back[at[BACK_FROM] & ring]
                emits = replica.back_emits[at[BACK_FROM] & ring]
                at[BACK_FROM] += 1
            else:
                place = at[MOVE_FROM] & (len(replica.moving) - 1)
                number = replica.moving[place]
                at[MOVE_FROM] += 1
                register_blocks(
                    requests, replica, limits, number, replica.moving_found[place], requests.computed[number]
                )
            is_over = returned(requests, replica, limits, number, emits, soon, edges)
        else:
            number = _first_to_come(requests, replica, coming, soon)
            size = requests.input[number] + requests.output[number] - 1
            is_over = (size + limits.block - 1) // limits.block > limits.blocks
            if not is_over:
                push(requests, replica, limits, number, False)
        if is_over:
            follow(requests, replica, number, soon)
            if limits.routed and replica.pending[0]:
                now = min(now, requests.arrival[replica.pending[replica.pending[0]]])


@inlined_kernel
def _first_to_come(requests: Requests, replica: Replica, coming: Int, now: int) -> int:
    """Remove and return the request that arrives now; the smallest number if there are several."""
    at, pending = replica.at, replica.pending
    number, follows = NEVER, NEVER
    if at[NEXT] < len(coming) and requests.arrival[coming[at[NEXT]]] == now:
        number = coming[at[NEXT]]
    if pending[0] and requests.arrival[pending[pending[0]]] == now:
        follows = pending[pending[0]]
    if follows >= 0 and (number < 0 or follows < number):
        pending[0] -= 1
        return follows
    at[NEXT] += 1
    return number


@inlined_kernel
def _moved_at(replica: Replica) -> int:
    """Return the tick at which the next transferred cache arrives."""
    at = replica.at
    if at[MOVE_FROM] == at[MOVE_TO]:
        return ENDLESS
    return int(replica.moving_at[at[MOVE_FROM] & (len(replica.moving) - 1)])


@inlined_kernel
def _arrives_at(requests: Requests, replica: Replica, limits: Limits, coming: Int) -> int:
    """Return the tick of the next arrival that needs no router."""
    at, pending = replica.at, replica.pending
    open_at = requests.arrival[coming[at[NEXT]]] if at[NEXT] < len(coming) else ENDLESS
    follows = pending[0] > 0 and not limits.routed
    return min(open_at, requests.arrival[pending[pending[0]]] if follows else ENDLESS)


@inlined_kernel
def _next(requests: Requests, replica: Replica, limits: Limits, coming: Int) -> int:
    """Return the tick of the next return or arrival."""
    at, ring = replica.at, len(replica.back) - 1
    back_at = replica.back_at[at[BACK_FROM] & ring] if at[BACK_FROM] < at[BACK_TO] else ENDLESS
    return min(back_at, _moved_at(replica), _arrives_at(requests, replica, limits, coming))


@inlined_kernel
def _wakes(requests: Requests, replica: Replica, now: int) -> int:
    """Return the tick at which a running request that is not ready now becomes ready."""
    soon = ENDLESS
    for k in range(replica.at[READY]):
        ready_at = requests.ready_at[replica.ready[k]]
        if ready_at > now:
            soon = min(soon, ready_at)
    for k in range(replica.at[PROMPTS]):
        ready_at = requests.ready_at[replica.prompts[k]]
        if ready_at > now:
            soon = min(soon, ready_at)
    return soon
