"""The fast engine: the rules of :mod:`wse_sim.serving.scheduler` in machine code, turn by turn.

Nobody overtakes in a line of regions, so tokens come back in the order in which they left: a ring takes the place of an
event queue, and a turn is one maximum and one addition a region::

    c_0 = entry + t_0        c_r = max(c_r of the turn before, c_(r-1)) + t_r

Rounds of decodes that repeat are added at once (:mod:`wse_sim.serving.fast_jump`).  Replicas that take turns are played one after the other; where a router looks at them, each is played up to every arrival.
"""

from __future__ import annotations

import numpy as np

from wse_sim.jit import bare_kernel, inlined_kernel
from wse_sim.serving.base import COUNTERS, GAP_EDGES, NEVER, Load, Served, ServingError, ServingRules
from wse_sim.serving.fast_blocks import found
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
    PENDING,
    PREEMPTIONS,
    PROMPTS,
    READY,
    RUNNING,
    RUNNING_MOST,
    STREAK,
    TURNS,
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
from wse_sim.serving.latency import TurnTable
from wse_sim.serving.router import LEAST_LOADED, LEAST_OUTSTANDING, MOST_OF_MEAN, ROUND_ROBIN, ROUTERS
from wse_sim.serving.shares import shares

OVER, UNDER = MOST_OF_MEAN
BY_LOAD, BY_REQUESTS, BY_PREFIX = range(3)


def serve_fast(
    load: Load, rules: ServingRules, table: TurnTable, replicas: int = 1, router: str = ROUND_ROBIN
) -> Served:
    """Serve a load on equal replicas; equal to :func:`wse_sim.serving.line.serve_reference`.

    Raises
    ------
    ServingError
        If a router that looks at replicas is to place users, who come when they were answered; the reference engine can.
    """
    requests, every = play(load, rules, table, replicas, router)
    counts = {
        name: int(every.tally[:, place].max() if name.endswith("most") else every.tally[:, place].sum())
        for place, name in enumerate(COUNTERS)
    }
    return Served(
        requests.arrival, requests.admitted, requests.first, requests.last, requests.preemptions, every.gaps.sum(axis=0),
        every.busy.sum(axis=0), counts, requests.cached, requests.accepted, requests.replica, every.accepted_at.sum(axis=0),
        every.prefill_busy.sum(axis=0),
        tuple(np.concatenate([rows[:count], rows[-1:]]) for rows, (count, _, _) in zip(every.samples, every.sampled.tolist(), strict=True)),
        tuple(every.sampled[:, 1].tolist()),
    )  # fmt: skip


def play(
    load: Load, rules: ServingRules, table: TurnTable, replicas: int, router: str
) -> tuple[Requests, Replica]:
    """What :func:`serve_fast` says, as the rows and the replicas that machine code left."""
    if router not in ROUTERS:
        raise ServingError(f"router '{router}' is not known; use one of {', '.join(ROUTERS)}")
    is_routed = replicas > 1 and router != ROUND_ROBIN
    if is_routed and load.is_closed:
        raise ServingError(
            f"the fast engine cannot place users by {router}; use --router {ROUND_ROBIN} or --engine reference"
        )
    requests, limits = requests_of(load, rules), limits_of(rules)
    machine = Table(table.layers, table.base, table.head, table.deep, table.grid)
    every = replicas_of(load, rules, table, replicas)
    if is_routed:
        how = {LEAST_LOADED: BY_LOAD, LEAST_OUTSTANDING: BY_REQUESTS}.get(router, BY_PREFIX)
        _serve_routed(requests, every, machine, limits, GAP_EDGES, how, np.zeros(replicas, np.int64))
    else:
        for number, rows in enumerate(shares(load, replicas)):
            coming = rows[load.after[rows] < 0]
            one = Replica(*(array[number] for array in every))
            requests.replica[rows] = number
            _advance(requests, one, machine, limits, GAP_EDGES, coming, ENDLESS)
        requests.replica[requests.admitted == NEVER] = NEVER
    return requests, every


@bare_kernel
def _serve_routed(
    requests: Requests, every: Replica, table: Table, limits: Limits, edges: Int, how: int, hits: Int
) -> None:
    """Place every request when it arrives, by what the replicas look like."""
    replicas, nobody = len(every.at), requests.pending[:0]
    for number in range(len(requests.input)):
        when = requests.arrival[number]
        for k in range(replicas):
            _advance(requests, _one(every, k), table, limits, edges, nobody, when)
            if how == BY_PREFIX:
                hits[k] = found(requests, _one(every, k), limits, number)[0]
        size = requests.input[number] + requests.output[number] - 1
        if (size + limits.block - 1) // limits.block > limits.blocks:
            continue
        chosen = _chosen(every, limits, how, hits)
        requests.replica[number] = chosen
        push(requests, _one(every, chosen), limits, number, False)
        if every.at[chosen, IDLE]:
            every.at[chosen, NOW] = min(every.at[chosen, NOW], when)
    for k in range(replicas):
        _advance(requests, _one(every, k), table, limits, edges, nobody, np.int64(ENDLESS))


@inlined_kernel
def _chosen(every: Replica, limits: Limits, how: int, hits: Int) -> int:
    """As :func:`wse_sim.serving.router.chosen_replica`."""
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
def _one(every: Replica, k: int) -> Replica:
    """One of several replicas."""
    return Replica(
        every.at[k], every.tally[k], every.running[k], every.ready[k], every.prompts[k], every.back[k], every.back_at[k],
        every.back_emits[k], every.moving[k], every.moving_at[k], every.moving_found[k], every.left[k], every.left_before[k],
        every.lines[k],
        every.before[k], every.behind[k], every.users[k], every.key_of[k], every.keys[k], every.block_of[k], every.rows[k],
        every.free_rows[k], every.gaps[k], every.busy[k], every.prefill_busy[k], every.accepted_at[k], every.samples[k],
        every.sampled[k],
    )  # fmt: skip


@bare_kernel
def _advance(
    requests: Requests, replica: Replica, table: Table, limits: Limits, edges: Int, coming: Int, until: int
) -> None:
    """Play turns that enter before `until`, and what comes back up to it."""
    at, tally, left, regions, ring = (
        replica.at, replica.tally, replica.left, len(table.layers), len(replica.back) - 1,
    )  # fmt: skip
    now = at[NOW]
    while True:
        _comes(requests, replica, limits, edges, coming, min(now, until))
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
            now = min(_next(requests, replica, coming), _wakes(requests, replica, now))
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
                soon = min(until, _arrives_at(requests, replica, coming), _moved_at(replica))
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
    """What has come back, and who has arrived, in order of time; of one instant the line, then caches, then arrivals."""
    at, ring = replica.at, len(replica.back) - 1
    while True:
        back_at = replica.back_at[at[BACK_FROM] & ring] if at[BACK_FROM] < at[BACK_TO] else ENDLESS
        moved_at = _moved_at(replica)
        arrives_at = _arrives_at(requests, replica, coming)
        soon = min(back_at, moved_at, arrives_at)
        if soon > now or soon == ENDLESS:
            return
        if back_at == soon:
            number = replica.back[at[BACK_FROM] & ring]
            emits = replica.back_emits[at[BACK_FROM] & ring]
            at[BACK_FROM] += 1
            if returned(requests, replica, limits, number, emits, back_at, edges):
                at[PENDING] = follow(requests, replica, number, back_at, at[PENDING])
        elif moved_at == soon:
            place = at[MOVE_FROM] & (len(replica.moving) - 1)
            number = replica.moving[place]
            at[MOVE_FROM] += 1
            register_blocks(
                requests, replica, limits, number, replica.moving_found[place], requests.computed[number]
            )
            if returned(requests, replica, limits, number, 1, moved_at, edges):
                at[PENDING] = follow(requests, replica, number, moved_at, at[PENDING])
        else:
            if at[NEXT] < len(coming) and requests.arrival[coming[at[NEXT]]] == soon:
                number = coming[at[NEXT]]
                at[NEXT] += 1
            else:
                at[PENDING] -= 1
                number = requests.pending[at[PENDING]]
            size = requests.input[number] + requests.output[number] - 1
            if (size + limits.block - 1) // limits.block <= limits.blocks:
                push(requests, replica, limits, number, False)
            else:
                at[PENDING] = follow(requests, replica, number, soon, at[PENDING])


@inlined_kernel
def _moved_at(replica: Replica) -> int:
    """When the next cache is there."""
    at = replica.at
    if at[MOVE_FROM] == at[MOVE_TO]:
        return ENDLESS
    return int(replica.moving_at[at[MOVE_FROM] & (len(replica.moving) - 1)])


@inlined_kernel
def _arrives_at(requests: Requests, replica: Replica, coming: Int) -> int:
    """When the next request arrives."""
    at = replica.at
    open_at = requests.arrival[coming[at[NEXT]]] if at[NEXT] < len(coming) else ENDLESS
    closed_at = requests.arrival[requests.pending[at[PENDING] - 1]] if at[PENDING] else ENDLESS
    return min(open_at, closed_at)


@inlined_kernel
def _next(requests: Requests, replica: Replica, coming: Int) -> int:
    """When something comes back or arrives."""
    at, ring = replica.at, len(replica.back) - 1
    back_at = replica.back_at[at[BACK_FROM] & ring] if at[BACK_FROM] < at[BACK_TO] else ENDLESS
    return min(back_at, _moved_at(replica), _arrives_at(requests, replica, coming))


@inlined_kernel
def _wakes(requests: Requests, replica: Replica, now: int) -> int:
    """When somebody who runs can take part who cannot now."""
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
