"""The three rules of :mod:`wse_sim.serving.scheduler` in machine code, and the processing of returned tokens."""

from __future__ import annotations

from wse_sim.jit import inlined_kernel
from wse_sim.serving.base import NEVER
from wse_sim.serving.fast_blocks import (
    SIGNED_STEP,
    found,
    grow,
    mixed,
    register,
    release,
    share,
    shrink,
    without,
)
from wse_sim.serving.fast_queue import outranks, pop, push
from wse_sim.serving.fast_state import (
    ACCEPTED,
    ADMISSIONS,
    BACK_TO,
    CACHED,
    DRAFT_FREE,
    DRAFTED,
    DRAFTS,
    EMITTED,
    ENTERS,
    FREE,
    GAP_TICKS,
    HANDED,
    HEAD,
    LINK_FREE,
    MACHINE_FREE,
    MOVE_FROM,
    MOVE_TO,
    PREEMPTIONS,
    PROMPTS,
    READY,
    RECOMPUTED,
    RUNNING,
    SWAPPED,
    WAITING,
    Int,
    Limits,
    Replica,
    Requests,
    Table,
)
from wse_sim.serving.speculation import BITS

FRACTION = 2**BITS - 1


# Blocks


@inlined_kernel
def room(requests: Requests, replica: Replica, limits: Limits, number: int, tokens: int, now: int) -> bool:
    """Allocate blocks for `tokens` more tokens of a running request, preempting later requests if needed;
    False if impossible."""
    at = replica.at
    blocks = (requests.computed[number] + tokens + limits.block - 1) // limits.block
    while blocks - requests.held[number] > at[FREE]:
        victim = NEVER
        for k in range(at[RUNNING] - 1, -1, -1):
            other = replica.running[k]
            if other != number and outranks(requests, limits, other, number):
                if limits.by_priority:
                    continue
                break
            if requests.flying[other] == 0 and (victim == NEVER or outranks(requests, limits, victim, other)):
                victim = other
                if not limits.by_priority:
                    break
        if victim == NEVER:
            return False
        preempt(requests, replica, limits, victim, now)
        if victim == number:
            return False
    grow(requests, replica, limits, number, blocks)
    return True


@inlined_kernel
def preempt(requests: Requests, replica: Replica, limits: Limits, number: int, now: int) -> None:
    """Preempt a request: it loses its blocks, and its computed tokens unless they are swapped out, and
    waits."""
    at, tally = replica.at, replica.tally
    release(requests, replica, limits, number)
    at[RUNNING] = without(replica.running, at[RUNNING], number)
    at[READY] = without(replica.ready, at[READY], number)
    at[PROMPTS] = without(replica.prompts, at[PROMPTS], number)
    if limits.swap:
        requests.away[number] = requests.computed[number]
        at[ENTERS] = max(at[ENTERS], moves(replica, limits, requests.away[number], now))
    else:
        tally[RECOMPUTED] += requests.computed[number]
    tally[PREEMPTIONS] += 1
    requests.preemptions[number] += 1
    requests.computed[number] = 0
    requests.order[number] = requests.enters[number] = NEVER
    push(requests, replica, limits, number, True)


@inlined_kernel
def moves(replica: Replica, limits: Limits, tokens: int, now: int) -> int:
    """Return the tick at which some tokens have passed the edge."""
    at = replica.at
    at[LINK_FREE] = max(now, at[LINK_FREE]) + ((tokens * limits.token_ticks_1024 + 1023) >> 10)
    return at[LINK_FREE]


@inlined_kernel
def ready_again(requests: Requests, replica: Replica, number: int) -> None:
    """Insert a decoding request among those that are ready, in the order in which they can continue."""
    k = replica.at[READY]
    while k > 0 and requests.ready_at[replica.ready[k - 1]] > requests.ready_at[number]:
        replica.ready[k] = replica.ready[k - 1]
        k -= 1
    replica.ready[k] = number
    replica.at[READY] += 1


# The three rules


@inlined_kernel
def take(
    requests: Requests, replica: Replica, table: Table, limits: Limits, number: int, tokens: int, drafts: int
) -> tuple[int, int]:
    """Add `tokens` tokens of a request to the turn; return the tokens that it may emit, and the cost of the
    contexts."""
    at, ring = replica.at, len(replica.back) - 1
    computed = requests.computed[number] + tokens
    if drafts == 0:
        register(requests, replica, limits, number, requests.computed[number], computed)
    requests.computed[number] = computed
    requests.flying[number] += 1
    emits = 0 if computed < requests.input[number] + requests.emitted[number] else 1 + drafts
    replica.back[at[BACK_TO] & ring] = number
    replica.back_emits[at[BACK_TO] & ring] = emits
    at[BACK_TO] += 1
    return emits, tokens * table.deep[(computed + table.grid - 1) // table.grid]


@inlined_kernel
def decodes(
    requests: Requests, replica: Replica, table: Table, limits: Limits, now: int
) -> tuple[int, int, int, int]:
    """Apply rule 1; return tokens of the turn, answers, cost of contexts, and number of requests."""
    at = replica.at
    size, answers, more, count = 0, 0, 0, 0
    most = 1 + len(limits.thresholds)
    while at[READY] and count < limits.joined and size < limits.turn:
        number = replica.ready[0]
        if requests.ready_at[number] > now:
            break
        part = min(most, requests.output[number] - requests.emitted[number], limits.turn - size)
        if room(requests, replica, limits, number, part, now):
            at[READY] = without(replica.ready, at[READY], number)
            emits, cost = take(requests, replica, table, limits, number, part, part - 1)
            size, answers, more, count = size + part, answers + emits, more + cost, count + 1
    return size, answers, more, count


@inlined_kernel
def prompts(
    requests: Requests, replica: Replica, table: Table, limits: Limits, now: int, size: int, answers: int, more: int,
    count: int,
) -> tuple[int, int, int, int, bool]:  # fmt: skip
    """Apply rule 2; return the increased totals of rule 1, and whether a request is left without a block."""
    at = replica.at
    k = 0
    while k < at[PROMPTS] and size < limits.turn:
        number = replica.prompts[k]
        if requests.ready_at[number] > now:
            k += 1
            continue
        known = requests.input[number] + requests.emitted[number]
        part = min(known - requests.computed[number], limits.turn - size)
        if not room(requests, replica, limits, number, part, now):
            return size, answers, more, count, True
        emits, cost = take(requests, replica, table, limits, number, part, 0)
        size, answers, more, count = size + part, answers + emits, more + cost, count + emits
        if emits:
            at[PROMPTS] = without(replica.prompts, at[PROMPTS], number)
        else:
            k += 1
    return size, answers, more, count, False


@inlined_kernel
def admit(
    requests: Requests, replica: Replica, table: Table, limits: Limits, now: int, size: int, answers: int, more: int,
    count: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Apply rule 3; return the totals of rules 1 and 2, plus those of newly admitted requests."""
    at = replica.at
    while at[WAITING] and size < limits.turn and at[RUNNING] < limits.most_running:
        number = at[HEAD]
        known = requests.input[number] + requests.emitted[number]
        whole = requests.input[number] + requests.output[number] - 1 if limits.reserve else known
        need = (whole + limits.block - 1) // limits.block
        hits, resting = found(requests, replica, limits, number)
        if need - hits > at[FREE] - resting:
            break
        pop(requests, replica, limits)
        replica.running[at[RUNNING]] = number
        at[RUNNING] += 1
        requests.order[number] = at[ADMISSIONS]
        at[ADMISSIONS] += 1
        share(requests, replica, limits, number, hits)
        requests.computed[number] = hits * limits.block
        requests.ready_at[number] = now
        if requests.admitted[number] == NEVER:
            requests.admitted[number] = now
            requests.cached[number] = requests.computed[number]
        part = min(known - requests.computed[number], limits.turn - size)
        if _comes_from_elsewhere(requests, replica, table, limits, number, known, need, now):
            continue
        blocks = (
            need if limits.reserve else (requests.computed[number] + part + limits.block - 1) // limits.block
        )
        grow(requests, replica, limits, number, blocks)
        emits, cost = take(requests, replica, table, limits, number, part, 0)
        size, answers, more, count = size + part, answers + emits, more + cost, count + emits
        if not emits:
            replica.prompts[at[PROMPTS]] = number
            at[PROMPTS] += 1
    return size, answers, more, count


@inlined_kernel
def _comes_from_elsewhere(
    requests: Requests,
    replica: Replica,
    table: Table,
    limits: Limits,
    number: int,
    known: int,
    need: int,
    now: int,
) -> bool:
    """Whether an admitted request's cache comes from elsewhere (swapped out, or prefilled elsewhere); starts
    the transfer."""
    at, tally = replica.at, replica.tally
    hits, away = requests.computed[number], requests.away[number]
    requests.away[number] = 0
    tally[CACHED] += max(0, hits - away)
    if limits.swap and away > hits:
        grow(requests, replica, limits, number, need)
        tally[SWAPPED] += away - hits
        requests.computed[number] = away
        requests.ready_at[number] = moves(replica, limits, away - hits, now) + limits.hop
        if requests.emitted[number] and away + 1 == known:
            ready_again(requests, replica, number)
        else:
            replica.prompts[at[PROMPTS]] = number
            at[PROMPTS] += 1
        return True
    if limits.elsewhere == 0:
        return False
    grow(requests, replica, limits, number, need)
    tally[HANDED] += known - hits
    done = _read_elsewhere(replica, table, limits, hits, known, now)
    passed = moves(replica, limits, known - hits, now if limits.streams else done)
    last = (known - hits + limits.stream_layers - 1) // limits.stream_layers if limits.streams else 0
    there = max(done + ((last * limits.token_ticks_1024 + 1023) >> 10), passed) + limits.hop
    requests.computed[number] = known
    requests.flying[number] = 1
    mask, place = len(replica.moving) - 1, at[MOVE_TO]
    while place > at[MOVE_FROM] and replica.moving_at[(place - 1) & mask] > there:
        to, of = place & mask, (place - 1) & mask
        replica.moving[to], replica.moving_at[to] = replica.moving[of], replica.moving_at[of]
        replica.moving_found[to] = replica.moving_found[of]
        place -= 1
    place &= mask
    replica.moving[place], replica.moving_at[place], replica.moving_found[place] = number, there, hits
    at[MOVE_TO] += 1
    return True


@inlined_kernel
def _read_elsewhere(replica: Replica, table: Table, limits: Limits, begin: int, length: int, now: int) -> int:
    """Return when a prompt has been read by machines, or by the line of wafers whose first region is free
    first."""
    if limits.elsewhere < 0:
        free_at = max(now, replica.at[MACHINE_FREE]) + limits.elsewhere_ticks[length - begin]
        replica.at[MACHINE_FREE] = free_at
        return free_at
    line = 0
    for other in range(1, limits.elsewhere):
        if replica.lines[other, 0] < replica.lines[line, 0]:
            line = other
    free_at = now
    while begin < length:
        end = min(length, begin + limits.turn)
        more = (end - begin) * table.deep[(end + table.grid - 1) // table.grid]
        free_at = now
        for r in range(len(table.layers)):
            took = table.base[r, end - begin] + table.layers[r] * more
            if end == length:
                took += table.head[r]
            free_at = max(replica.lines[line, r], free_at) + took
            replica.lines[line, r] = free_at
            replica.prefill_busy[r] += took
        begin = end
    return free_at


# What comes back


@inlined_kernel
def returned(
    requests: Requests, replica: Replica, limits: Limits, number: int, emits: int, now: int, edges: Int
) -> bool:
    """Process a part of a turn that left the last region, or a cache that arrived; return whether the request
    is complete."""
    at, tally = replica.at, replica.tally
    requests.flying[number] -= 1
    if emits == 0:
        return False
    if requests.first[number] == NEVER:
        requests.first[number] = now
    else:
        gap = now - requests.last[number]
        tally[GAP_TICKS] += gap
        replica.gaps[bin_of(edges, gap)] += 1
    requests.last[number] = now
    count = 1
    if emits > 1:
        count += _verified(requests, replica, limits, number, emits - 1)
    requests.emitted[number] += count
    tally[EMITTED] += count
    if requests.emitted[number] == requests.output[number]:
        release(requests, replica, limits, number)
        at[RUNNING] = without(replica.running, at[RUNNING], number)
        return True
    requests.ready_at[number] = now
    if limits.draft_delay > 0:
        begin = max(now, at[DRAFT_FREE])
        at[DRAFT_FREE] = begin + limits.draft_busy
        requests.ready_at[number] = begin + limits.draft_delay
    ready_again(requests, replica, number)
    return False


@inlined_kernel
def _verified(requests: Requests, replica: Replica, limits: Limits, number: int, drafts: int) -> int:
    """Return the number of accepted drafts, and release the slots of the rejected ones."""
    own = mixed(limits.seed + (number + 1) * SIGNED_STEP) + requests.emitted[number] + 1
    accepted = 0
    while (
        accepted < drafts and (mixed(own + accepted) >> (64 - BITS)) & FRACTION < limits.thresholds[accepted]
    ):
        replica.accepted_at[accepted] += 1
        accepted += 1
    before = requests.computed[number] - drafts - 1
    requests.computed[number] -= drafts - accepted
    requests.accepted[number] += accepted
    register(requests, replica, limits, number, before, requests.computed[number])
    if not limits.reserve:
        shrink(
            requests, replica, limits, number, (requests.computed[number] + limits.block - 1) // limits.block
        )
    replica.tally[DRAFTS] += 1
    replica.tally[DRAFTED] += drafts
    replica.tally[ACCEPTED] += accepted
    return accepted


@inlined_kernel
def follow(requests: Requests, replica: Replica, number: int, now: int) -> None:
    """Schedule the request that waits for this one to end: it arrives after its think time.

    `pending` holds the arrivals to come, sorted from last to first.
    """
    pending, other = replica.pending, requests.after[number]
    if other < 0:
        return
    when, k = now + requests.think[other], pending[0]
    requests.arrival[other] = when
    while k > 0:
        before = pending[k]
        if requests.arrival[before] > when or (requests.arrival[before] == when and before > other):
            break
        pending[k + 1] = before
        k -= 1
    pending[k + 1] = other
    pending[0] += 1


@inlined_kernel
def bin_of(edges: Int, gap: int) -> int:
    """Return the first bin whose upper edge is above a gap."""
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if edges[middle] <= gap:
            low = middle + 1
        else:
            high = middle
    return low
