"""The fast engine: the rules of :mod:`wse_sim.serving.scheduler` in machine code, turn by turn.

Nobody overtakes in a line of regions, so tokens come back in the order in which they left: a ring takes the place of an
event queue, and a turn is one maximum and one addition a region::

    c_0 = entry + t_0        c_r = max(c_r of the turn before, c_(r-1)) + t_r

Queues hold numbers of requests.  `running` and `ready` are short (at most `most_running`), so that taking one out of
the middle moves what follows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wse_sim.jit import bare_kernel, inlined_kernel
from wse_sim.serving.base import (
    COUNTERS,
    FIRST_SAMPLE_TICKS,
    GAP_BINS,
    GAP_EDGES,
    NEVER,
    SAMPLED,
    SAMPLES,
    Load,
    Served,
    ServingRules,
)
from wse_sim.serving.latency import TurnTable

Int = NDArray[np.int64]
ENDLESS = 2**62

# Places in the array of scalars of a replica
FREE, RUNNING, READY, PROMPTS, AGAIN, PENDING, NEXT, BACK_FROM, BACK_TO, ADMISSIONS, DONE = range(11)
TURNS, EMITTED, COMPUTED, RECOMPUTED, CACHED, PREEMPTIONS, GAP_TICKS, RUNNING_MOST, BLOCKS_MOST = range(
    9
)  # as COUNTERS


class Table(NamedTuple):
    """A table of turns for machine code."""

    layers: Int
    base: Int
    head: Int
    deep: Int
    grid: int


class Limits(NamedTuple):
    """The rules for machine code."""

    blocks: int
    block: int
    most_running: int
    turn: int
    joined: int
    reserve: bool


class ReplicaState(NamedTuple):
    """What changes: scalars, a row a request, and queues of requests."""

    at: Int  # scalars
    tally: Int  # counters
    computed: Int
    emitted: Int
    held: Int  # blocks
    flying: Int  # turns in the line
    order: Int  # of admission; NEVER while it does not run
    arrival: Int
    admitted: Int
    first: Int
    last: Int
    preemptions: Int
    running: Int  # in order of admission
    ready: Int  # decode next
    prompts: Int  # running, with tokens of a prompt to compute, in order of admission
    again: Int  # preempted; the last one is the head
    pending: Int  # arrivals of a closed load to come, in order of time, then number
    waiting: Int  # arrived, in order: a ring that is never full
    back: Int  # ring: request
    back_at: Int  # ring: ticks
    back_emits: Int  # ring: whether it emits
    left: Int  # when each region is free, (regions,)


def serve_fast(load: Load, rules: ServingRules, table: TurnTable) -> Served:
    """Serve a load on one replica; equal to :func:`wse_sim.serving.line.serve_reference`."""
    count, most = len(load), min(rules.most_running, max(1, len(load)))
    ring = 1
    # Turns pile up before a slow region; every part of one in the line holds a token of the cache.
    while ring <= min(rules.blocks * rules.block_tokens, int((load.input_tokens + load.output_tokens).sum())):
        ring *= 2
    state = ReplicaState(
        at=_zeros(11), tally=_zeros(len(COUNTERS)), computed=_zeros(count), emitted=_zeros(count), held=_zeros(count),
        flying=_zeros(count), order=_nevers(count), arrival=load.arrival_ticks.copy(), admitted=_nevers(count),
        first=_nevers(count), last=_nevers(count), preemptions=_zeros(count), running=_zeros(most), ready=_zeros(most),
        prompts=_zeros(most), again=_zeros(count), pending=_zeros(count), waiting=_zeros(count), back=_zeros(ring),
        back_at=_zeros(ring), back_emits=_zeros(ring), left=_zeros(table.regions),
    )  # fmt: skip
    follower = _nevers(count)
    waits = load.after >= 0
    follower[load.after[waits]] = np.flatnonzero(waits)
    coming = np.flatnonzero(~waits)
    limits = Limits(
        rules.blocks, rules.block_tokens, rules.most_running, rules.turn_tokens, rules.joined, rules.reserve
    )
    gaps, busy = _zeros(GAP_BINS), _zeros(table.regions)
    samples, sampled = np.zeros((SAMPLES, len(SAMPLED) + table.regions), np.int64), _zeros(2)
    sampled[1] = FIRST_SAMPLE_TICKS
    _serve(
        state, Table(table.layers, table.base, table.head, table.deep, table.grid), limits, load.input_tokens,
        load.output_tokens, coming, follower, load.think_ticks, GAP_EDGES, gaps, busy,
        samples, sampled,
    )  # fmt: skip
    return Served(
        state.arrival, state.admitted, state.first, state.last, state.preemptions, gaps, busy,
        dict(zip(COUNTERS, state.tally.tolist(), strict=True)), samples[: sampled[0]].copy(), int(sampled[1]),
    )  # fmt: skip


def _zeros(count: int) -> Int:
    return np.zeros(count, np.int64)


def _nevers(count: int) -> Int:
    return np.full(count, NEVER, np.int64)


@bare_kernel
def _serve(
    state: ReplicaState, table: Table, limits: Limits, input_: Int, output: Int, coming: Int, follower: Int, think: Int,
    edges: Int, gaps: Int, busy: Int, samples: Int, sampled: Int,
) -> None:  # fmt: skip
    """Play a load: returns, arrivals, then a turn, at every instant at which the first region is free."""
    at, tally, waiting, left = state.at, state.tally, state.waiting, state.left
    regions, ring = len(table.layers), len(state.back) - 1
    head, tail = 0, 0
    at[FREE] = limits.blocks
    now = 0
    while True:
        while sampled[0] * sampled[1] < now:  # nothing has changed since the last turn was formed
            _sample(state, limits, busy, tail - head, samples, sampled)
        # What has come back, and who has arrived, in order of time; a return comes before an arrival of the same instant.
        while True:
            back_at = state.back_at[at[BACK_FROM] & ring] if at[BACK_FROM] < at[BACK_TO] else ENDLESS
            open_at = state.arrival[coming[at[NEXT]]] if at[NEXT] < len(coming) else ENDLESS
            closed_at = state.arrival[state.pending[at[PENDING] - 1]] if at[PENDING] else ENDLESS
            if back_at <= now and back_at <= open_at and back_at <= closed_at:
                number = state.back[at[BACK_FROM] & ring]
                emits = state.back_emits[at[BACK_FROM] & ring]
                at[BACK_FROM] += 1
                if _returned(state, number, emits, back_at, output, edges, gaps):
                    _follow(state, number, back_at, follower, think)
            elif open_at <= now or closed_at <= now:
                if open_at <= closed_at:
                    number = coming[at[NEXT]]
                    at[NEXT] += 1
                else:
                    at[PENDING] -= 1
                    number = state.pending[at[PENDING]]
                size = input_[number] + output[number] - 1
                if (size + limits.block - 1) // limits.block <= limits.blocks:
                    waiting[tail % len(waiting)] = number
                    tail += 1
                else:
                    _follow(state, number, state.arrival[number], follower, think)
            else:
                break
        while True:
            before, from_ = tally[PREEMPTIONS], at[BACK_TO]
            size, answers, more = _decodes(state, table, limits, input_)
            size, answers, more, is_short = _prompts(state, table, limits, input_, size, answers, more)
            if not is_short and tally[PREEMPTIONS] == before:
                size, answers, more, head = _admit(
                    state, table, limits, input_, output, waiting, head, tail, now, size, answers, more
                )
            if size or tally[PREEMPTIONS] == before:
                break
        tally[RUNNING_MOST] = max(tally[RUNNING_MOST], at[RUNNING])
        tally[BLOCKS_MOST] = max(tally[BLOCKS_MOST], limits.blocks - at[FREE])
        if size == 0:
            back_at = state.back_at[at[BACK_FROM] & ring] if at[BACK_FROM] < at[BACK_TO] else ENDLESS
            open_at = state.arrival[coming[at[NEXT]]] if at[NEXT] < len(coming) else ENDLESS
            closed_at = state.arrival[state.pending[at[PENDING] - 1]] if at[PENDING] else ENDLESS
            now = min(back_at, open_at, closed_at)
            if now == ENDLESS:
                _sample(state, limits, busy, tail - head, samples, sampled)
                return
            continue
        free_at = now
        for r in range(regions):
            took = table.base[r, size] + answers * table.head[r] + table.layers[r] * more
            free_at = max(left[r], free_at) + took
            left[r] = free_at
            busy[r] += took
        for k in range(from_, at[BACK_TO]):
            state.back_at[k & ring] = free_at
        tally[TURNS] += 1
        tally[COMPUTED] += size
        now = left[0]


@inlined_kernel
def _returned(
    state: ReplicaState, number: int, emits: int, now: int, output: Int, edges: Int, gaps: Int
) -> bool:
    """A part of a turn left the last region; whether its request is complete."""
    at, tally = state.at, state.tally
    state.flying[number] -= 1
    if not emits:
        return False
    state.emitted[number] += 1
    if state.first[number] == NEVER:
        state.first[number] = now
    else:
        gap = now - state.last[number]
        gaps[_bin_of(edges, gap)] += 1
        tally[GAP_TICKS] += gap
    state.last[number] = now
    tally[EMITTED] += 1
    if state.emitted[number] < output[number]:
        state.ready[at[READY]] = number
        at[READY] += 1
        return False
    at[FREE] += state.held[number]
    state.held[number] = 0
    at[RUNNING] = _without(state.running, at[RUNNING], number)
    at[DONE] += 1
    return True


@inlined_kernel
def _follow(state: ReplicaState, number: int, now: int, follower: Int, think: Int) -> None:
    """Who waits for the end of a request is put among the arrivals to come, which are sorted from last to first."""
    other = follower[number]
    if other < 0:
        return
    when, k = now + think[other], state.at[PENDING]
    state.arrival[other] = when
    while k > 0:
        before = state.pending[k - 1]
        if state.arrival[before] > when or (state.arrival[before] == when and before > other):
            break
        state.pending[k] = before
        k -= 1
    state.pending[k] = other
    state.at[PENDING] += 1


@inlined_kernel
def _without(queue: Int, length: int, number: int) -> int:
    """Take a request out of a queue; its new length."""
    k = 0
    while k < length and queue[k] != number:
        k += 1
    if k == length:
        return length
    for j in range(k, length - 1):
        queue[j] = queue[j + 1]
    return length - 1


@inlined_kernel
def _room(state: ReplicaState, limits: Limits, number: int, tokens: int) -> bool:
    """Blocks for `tokens` more tokens of a running request, from younger ones that rest if need be."""
    at = state.at
    need = (state.computed[number] + tokens + limits.block - 1) // limits.block - state.held[number]
    while need > at[FREE]:
        victim = NEVER
        for k in range(at[RUNNING] - 1, -1, -1):
            other = state.running[k]
            if state.order[other] < state.order[number]:
                break
            if state.flying[other] == 0:
                victim = other
                break
        if victim == NEVER:
            return False
        _preempt(state, victim)
        if victim == number:
            return False
    if need > 0:
        state.held[number] += need
        at[FREE] -= need
    return True


@inlined_kernel
def _preempt(state: ReplicaState, number: int) -> None:
    """A request loses its blocks and what it computed, and waits at the head of the queue."""
    at, tally = state.at, state.tally
    at[FREE] += state.held[number]
    state.held[number] = 0
    at[RUNNING] = _without(state.running, at[RUNNING], number)
    at[READY] = _without(state.ready, at[READY], number)
    at[PROMPTS] = _without(state.prompts, at[PROMPTS], number)
    tally[RECOMPUTED] += state.computed[number]
    tally[PREEMPTIONS] += 1
    state.preemptions[number] += 1
    state.computed[number] = 0
    state.order[number] = NEVER
    state.again[at[AGAIN]] = number
    at[AGAIN] += 1


@inlined_kernel
def _take(state: ReplicaState, table: Table, number: int, tokens: int, known: int) -> tuple[int, int]:
    """A part of a turn: whether it emits, and what the contexts of its tokens cost."""
    at, ring = state.at, len(state.back) - 1
    state.computed[number] += tokens
    state.flying[number] += 1
    emits = 1 if state.computed[number] == known else 0
    state.back[at[BACK_TO] & ring] = number
    state.back_emits[at[BACK_TO] & ring] = emits
    at[BACK_TO] += 1
    return emits, tokens * table.deep[(state.computed[number] + table.grid - 1) // table.grid]


@inlined_kernel
def _decodes(state: ReplicaState, table: Table, limits: Limits, input_: Int) -> tuple[int, int, int]:
    """Rule 1: tokens of the turn, answers, cost of contexts."""
    at = state.at
    size, answers, more = 0, 0, 0
    most = min(limits.joined, limits.turn)
    while at[READY] and size < most:
        number = state.ready[0]
        if _room(state, limits, number, 1):
            at[READY] = _without(state.ready, at[READY], number)
            emits, cost = _take(state, table, number, 1, input_[number] + state.emitted[number])
            size, answers, more = size + 1, answers + emits, more + cost
    return size, answers, more


@inlined_kernel
def _prompts(
    state: ReplicaState, table: Table, limits: Limits, input_: Int, size: int, answers: int, more: int
) -> tuple[int, int, int, bool]:
    """Rule 2: what rule 1 gave, more, and whether somebody is left without a block."""
    at = state.at
    k = 0
    while k < at[PROMPTS] and size < limits.turn:
        number = state.prompts[k]
        known = input_[number] + state.emitted[number]
        part = min(known - state.computed[number], limits.turn - size)
        if not _room(state, limits, number, part):
            return size, answers, more, True
        emits, cost = _take(state, table, number, part, known)
        size, answers, more = size + part, answers + emits, more + cost
        if emits:
            at[PROMPTS] = _without(state.prompts, at[PROMPTS], number)
        else:
            k += 1
    return size, answers, more, False


@inlined_kernel
def _admit(
    state: ReplicaState, table: Table, limits: Limits, input_: Int, output: Int, waiting: Int, head: int, tail: int,
    now: int, size: int, answers: int, more: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Rule 3: what rules 1 and 2 gave, more, and the new head of the queue."""
    at = state.at
    while (at[AGAIN] or head < tail) and size < limits.turn and at[RUNNING] < limits.most_running:
        number = state.again[at[AGAIN] - 1] if at[AGAIN] else waiting[head % len(waiting)]
        known = input_[number] + state.emitted[number]
        whole = input_[number] + output[number] - 1 if limits.reserve else known
        need = (whole + limits.block - 1) // limits.block
        if need > at[FREE]:
            break
        if at[AGAIN]:
            at[AGAIN] -= 1
        else:
            head += 1
            state.admitted[number] = now
        state.running[at[RUNNING]] = number
        at[RUNNING] += 1
        state.order[number] = at[ADMISSIONS]
        at[ADMISSIONS] += 1
        part = min(known, limits.turn - size)
        held = need if limits.reserve else (part + limits.block - 1) // limits.block
        state.held[number] = held
        at[FREE] -= held
        emits, cost = _take(state, table, number, part, known)
        size, answers, more = size + part, answers + emits, more + cost
        if not emits:
            state.prompts[at[PROMPTS]] = number
            at[PROMPTS] += 1
    return size, answers, more, head


@inlined_kernel
def _sample(state: ReplicaState, limits: Limits, busy: Int, queued: int, samples: Int, sampled: Int) -> None:
    """One more row of samples; of a full array every second one stays."""
    if sampled[0] == len(samples):
        for k in range(len(samples) // 2):
            for column in range(samples.shape[1]):
                samples[k, column] = samples[2 * k, column]
        sampled[0], sampled[1] = len(samples) // 2, 2 * sampled[1]
    k, at, tally = sampled[0], state.at, state.tally
    sampled[0] += 1
    samples[k, 0], samples[k, 1], samples[k, 2] = at[RUNNING], queued + at[AGAIN], limits.blocks - at[FREE]
    samples[k, 3], samples[k, 4], samples[k, 5] = tally[EMITTED], tally[COMPUTED], tally[RECOMPUTED]
    samples[k, 6], samples[k, 7] = tally[CACHED], tally[PREEMPTIONS]
    for r in range(len(busy)):
        samples[k, 8 + r] = busy[r]


@inlined_kernel
def _bin_of(edges: Int, gap: int) -> int:
    """The first bin whose upper edge is above a gap."""
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if edges[middle] <= gap:
            low = middle + 1
        else:
            high = middle
    return low
