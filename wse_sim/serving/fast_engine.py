"""The fast engine: the rules of :mod:`wse_sim.serving.scheduler` in machine code, turn by turn.

Turns do not overtake in a line of regions, so tokens return in the order in which they entered. A ring
replaces the event queue, and a turn is one maximum and one addition per region::

    c_0 = entry + t_0        c_r = max(c_r of the turn before, c_(r-1)) + t_r

Rounds of decodes that repeat are added at once (:mod:`wse_sim.serving.fast_jump`).  Independent replicas are
simulated in intervals of time, one after the other; with a router, all replicas are simulated up to every
arrival.
"""

from __future__ import annotations

import time

import numpy as np

from wse_sim.jit import bare_kernel, inlined_kernel
from wse_sim.jit_bundles import bundled
from wse_sim.serving.base import (
    COUNTERS,
    GAP_EDGES,
    MOST_REPLICAS,
    NEVER,
    Load,
    RunInterrupted,
    Served,
    ServingError,
    ServingRules,
)
from wse_sim.serving.fast_blocks import found
from wse_sim.serving.fast_line import advance
from wse_sim.serving.fast_queue import push
from wse_sim.serving.fast_rules import follow
from wse_sim.serving.fast_state import (
    BACK_FROM,
    BACK_TO,
    ENDLESS,
    FREE,
    IDLE,
    MOVE_FROM,
    MOVE_TO,
    NOW,
    RUNNING,
    WAITING,
    WAITING_BLOCKS,
    Int,
    Limits,
    Replica,
    Requests,
    Table,
    limits_of,
    replicas_of,
    requests_of,
)
from wse_sim.serving.latency import TurnTable, check_turns
from wse_sim.serving.round_robin import shares
from wse_sim.serving.router import LEAST_LOADED, LEAST_OUTSTANDING, MOST_OF_MEAN, ROUND_ROBIN, ROUTERS

OVER, UNDER = MOST_OF_MEAN
BY_LOAD, BY_REQUESTS, BY_PREFIX = range(3)
FIRST_SPAN, SPAN_S, STEPS = (
    10**7,
    0.1,
    2**14,
)  # ticks and host seconds between checks for interrupts; steps of a router


def serve_fast(
    load: Load, rules: ServingRules, table: TurnTable, replicas: int = 1, router: str = ROUND_ROBIN
) -> Served:
    """Serve a load on equal replicas; equal to :func:`wse_sim.serving.line.serve_reference`.

    Raises
    ------
    ServingError
        If a turn or a context exceeds the table.
    RunInterrupted
        On an interrupt; it carries the answered requests.
    """
    requests, every, is_whole = play(load, rules, table, replicas, router)
    counts = {
        name: int(every.tally[:, place].max() if name.endswith("most") else every.tally[:, place].sum())
        for place, name in enumerate(COUNTERS)
    }
    served = Served(
        requests.arrival, requests.admitted, requests.first, requests.last, requests.preemptions, every.gaps.sum(axis=0),
        every.busy.sum(axis=0), counts, requests.cached, requests.accepted, requests.replica, every.accepted_at.sum(axis=0),
        every.prefill_busy.sum(axis=0),
        tuple(np.concatenate([rows[:count], rows[-1:]]) for rows, (count, _, _) in zip(every.samples, every.sampled.tolist(), strict=True)),
        tuple(every.sampled[:, 1].tolist()),
    )  # fmt: skip
    if not is_whole:
        raise RunInterrupted(served, requests.emitted == requests.output)
    return served


def play(
    load: Load, rules: ServingRules, table: TurnTable, replicas: int, router: str
) -> tuple[Requests, Replica, bool]:
    """Run :func:`serve_fast`, but return the final rows and replicas of the machine code, and whether the run
    completed without an interrupt.

    The machine code returns a few times per second, so that an interrupt is noticed.
    """
    if router not in ROUTERS:
        raise ServingError(f"router '{router}' is not known; use one of {', '.join(ROUTERS)}")
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ServingError(
            f"{replicas} replicas are outside 1 to {MOST_REPLICAS:,}; give a number in that range"
        )
    check_turns(table, load, rules)
    is_routed = replicas > 1 and router != ROUND_ROBIN
    requests, limits = requests_of(load, rules), limits_of(rules, is_routed)
    machine = Table(table.layers, table.base, table.head, table.deep, table.grid)
    every = replicas_of(load, rules, table, replicas)
    try:
        if is_routed:
            how = {LEAST_LOADED: BY_LOAD, LEAST_OUTSTANDING: BY_REQUESTS}.get(router, BY_PREFIX)
            coming, place, hits = (
                np.flatnonzero(load.after < 0),
                np.zeros(1, np.int64),
                np.zeros(replicas, np.int64),
            )
            while not _serve_routed(
                requests, every, machine, limits, GAP_EDGES, how, hits, coming, place, load.is_closed, STEPS
            ):
                pass
        else:
            _serve_in_turn(load, requests, every, machine, limits)
            requests.replica[requests.admitted == NEVER] = NEVER
    except KeyboardInterrupt:
        return requests, every, False
    return requests, every, True


def _serve_in_turn(load: Load, requests: Requests, every: Replica, machine: Table, limits: Limits) -> None:
    """Simulate the replicas in intervals of time that take a fraction of a second each."""
    replicas, comings = [], []
    for number, rows in enumerate(shares(load, len(every.at))):
        requests.replica[rows] = number
        replicas.append(Replica(*(array[number] for array in every)))
        comings.append(rows[load.after[rows] < 0])
    until, span = 0, FIRST_SPAN
    while (every.at[:, NOW] < ENDLESS).any():
        until, began = min(until + span, ENDLESS), time.monotonic()
        for one, coming in zip(replicas, comings, strict=True):
            advance(requests, one, machine, limits, GAP_EDGES, coming, until)
        if time.monotonic() - began < SPAN_S:
            span *= 2


@bare_kernel
def _serve_routed(
    requests: Requests, every: Replica, table: Table, limits: Limits, edges: Int, how: int, hits: Int, coming: Int, place: Int,
    is_closed: bool, steps: int,
) -> bool:  # fmt: skip
    """Serve with a router, which places each request by the state of the replicas when it arrives; True if
    all is done within `steps`.

    A step plays all replicas up to the next arrival. If an answer may trigger the next request, it plays only
    the next return, or the replica with the next turn up to the next event in another replica.
    """
    replicas, nobody, pending = len(every.at), coming[:0], every.pending[0]
    for _ in range(steps):
        open_at = requests.arrival[coming[place[0]]] if place[0] < len(coming) else ENDLESS
        when = min(open_at, requests.arrival[pending[pending[0]]] if pending[0] else ENDLESS)
        until, from_, to = when, 0, replicas
        if is_closed:
            back_at, turn_at, other_at, first = _soonest(every)
            if min(back_at, turn_at) < when:
                if back_at <= turn_at:
                    until = back_at
                else:
                    until, from_, to = max(turn_at + 1, min(when, back_at, other_at)), first, first + 1
        for k in range(from_, to):
            advance(requests, bundled(_one(every, k, 0)), table, limits, edges, nobody, until)
        if until != when or to - from_ != replicas:
            continue
        if when == ENDLESS:
            return True
        is_open = open_at == when
        if pending[0]:
            number = pending[pending[0]]
            closed_at = requests.arrival[number]
            is_open = open_at < closed_at or (open_at == closed_at and coming[place[0]] < number)
        if is_open:
            number = coming[place[0]]
            place[0] += 1
        else:
            number = pending[pending[0]]
            pending[0] -= 1
        size = requests.input[number] + requests.output[number] - 1
        if (size + limits.block - 1) // limits.block > limits.blocks:
            follow(requests, bundled(_one(every, 0, 0)), number, when)
            continue
        if how == BY_PREFIX:
            for k in range(replicas):
                hits[k] = found(requests, bundled(_one(every, k, 0)), limits, number)[0]
        chosen = _chosen(every, limits, how, hits)
        requests.replica[number] = chosen
        push(requests, bundled(_one(every, chosen, 0)), limits, number, False)
        if every.at[chosen, IDLE]:
            every.at[chosen, NOW] = min(every.at[chosen, NOW], when)
    return False


@inlined_kernel
def _soonest(every: Replica) -> tuple[int, int, int, int]:
    """Ticks of the next return, of the next possible turn, and of the next one in any other replica, and the
    replica of the first."""
    back_at, turn_at, other_at, first = ENDLESS, ENDLESS, ENDLESS, 0
    for k in range(len(every.at)):
        at = every.at[k]
        if at[BACK_FROM] < at[BACK_TO]:
            back_at = min(back_at, every.back_at[k, at[BACK_FROM] & (every.back.shape[1] - 1)])
        if at[MOVE_FROM] < at[MOVE_TO]:
            back_at = min(back_at, every.moving_at[k, at[MOVE_FROM] & (every.moving.shape[1] - 1)])
        if at[NOW] < turn_at:
            other_at, turn_at, first = turn_at, at[NOW], k
        else:
            other_at = min(other_at, at[NOW])
    return back_at, turn_at, other_at, first


@inlined_kernel
def _chosen(every: Replica, limits: Limits, how: int, hits: Int) -> int:
    """:func:`wse_sim.serving.router.chosen_replica` in machine code."""
    replicas, total, least, best = len(every.at), 0, 0, NEVER
    for k in range(replicas):
        total += _load(every, limits, k)
        if how == BY_REQUESTS:
            one = every.at[k, WAITING] + every.at[k, RUNNING]
            if one < every.at[least, WAITING] + every.at[least, RUNNING]:
                least = k
        elif _load(every, limits, k) < _load(every, limits, least):
            least = k
    if how != BY_PREFIX:
        return least
    for k in range(replicas):
        load = _load(every, limits, k)
        if hits[k] == 0 or UNDER * load * replicas > OVER * total:
            continue
        if best < 0 or hits[k] > hits[best] or (hits[k] == hits[best] and load < _load(every, limits, best)):
            best = k
    return least if best < 0 else best


@inlined_kernel
def _load(every: Replica, limits: Limits, k: int) -> int:
    return limits.blocks - every.at[k, FREE] + every.at[k, WAITING_BLOCKS]


@inlined_kernel
def _one(every: Replica, k: int, list_: int) -> Replica:
    """Return the state of replica `k`, with pending list `list_`."""
    return Replica(
        every.at[k], every.tally[k], every.running[k], every.ready[k], every.prompts[k], every.back[k], every.back_at[k],
        every.back_emits[k], every.moving[k], every.moving_at[k], every.moving_found[k], every.left[k], every.left_before[k],
        every.lines[k],
        every.before[k], every.behind[k], every.users[k], every.key_of[k], every.keys[k], every.block_of[k], every.rows[k],
        every.free_rows[k], every.gaps[k], every.busy[k], every.prefill_busy[k], every.accepted_at[k], every.samples[k],
        every.sampled[k], every.pending[list_],
    )  # fmt: skip
