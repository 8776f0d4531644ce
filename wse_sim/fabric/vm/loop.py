"""The loop over cycles: routers, words of the host, output queues, cores.

With `everything` (the oracle) each cycle visits every router and every core.  Without it (the fast executor) only those that can act: routers that
hold words, cores that were woken by a word, by room or by their own clock (a timing wheel), and the clock jumps over cycles in which nothing can
happen.  The rules of a visit are the same functions, so both must agree cycle for cycle.

A call steps one band of rows (:mod:`wse_sim.fabric.vm.bands`), as a rule all of them, and returns where it waits for another band; all it knows is
in its arguments, so the next call continues where the last one stopped.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.bands import (
    BANDS,
    COMMANDS_LEFT,
    END,
    FAULTS,
    FIRST,
    FULL,
    INJECTING,
    MOVED,
    NEVER,
    PENDING,
    POSTED,
    READY,
    RINGS,
    ROUTERS,
    SOONEST,
    WORDS_LEFT,
    hear,
    is_stopped,
    tell,
)
from wse_sim.fabric.vm.cores import core_cycle
from wse_sim.fabric.vm.queues import deliver, enter, wake_now
from wse_sim.fabric.vm.routers import has_room, route_router, send_ring
from wse_sim.fabric.vm.watch import came_from_host
from wse_sim.jit import bare_kernel, inlined_kernel

# Why a call returns, and what it may be asked to wait for (mask).
AT_CYCLE, QUIET, ASKED, FAULTED, FLUSH, WAITS, GIVEN_UP = range(7)
COMMANDS, DRAINED, INJECTED = 1, 2, 4
BEGIN, HEAR_BEGIN, HEAR, HEAR_SOONEST = range(4)  # phases: what comes next
LONG_LIST = 4096


@inlined_kernel
def account(c, t, core):
    """Count the cycles since the core's last visit under the state that it had."""
    state, since = core[c, S.STATE], core[c, S.SINCE]
    if since < t:
        if state == S.BUSY:
            core[c, S.BUSY_CYCLES] += t - since
            core[c, S.LAST_BUSY] = t
        elif state == S.WAIT_INPUT:
            core[c, S.INPUT_CYCLES] += t - since
        elif state != S.REST:
            core[c, S.OUTPUT_CYCLES] += t - since


@inlined_kernel
def may_sleep(c, core):
    """True if the main thread counts several cycles and no microthread could issue together with it."""
    return core[c, S.LEFT] >= 2 and core[c, S.LIVE] == 0


@inlined_kernel
def inject_words(t, injections, heads, m):
    """Words of the host that are due; returns 1 if one moved, + 2 if one waits for the clock."""
    result = np.int64(0)
    if m.size[S.N_INJECTING] != 0 and t < m.size[S.NEXT_WORD]:
        return np.int64(2)
    n_cores = m.sets[S.ROWS] * m.sets[S.COLS]
    kept, soonest = np.int64(0), np.int64(NEVER)
    for j in range(m.size[S.N_INJECTING]):
        i = np.int64(heads[j])
        alive = True
        if injections[i, S.I_TIME] > 1000 * t:
            result |= 2
        else:
            c, slot, port = injections[i, S.I_CORE], injections[i, S.I_SLOT], injections[i, S.I_PORT]
            word, flag = np.int64(m.host_words[injections[i, S.I_POS]]), injections[i, S.I_FLAG]
            moved = False
            if port == S.WAKE_PORT:
                for core in range(c, c + flag):
                    wake_now(core, m.size, m.listed, m.ready)
                moved = True
            elif port < 0:
                q = np.int64(m.color_queue[c, slot])
                if q >= 0 and m.iq_count[q, c] < m.in_depth[q] and m.iq_last[q, c] != t:
                    deliver(c, q, slot, word, flag, t, m)
                    if m.sets[S.WATCH] != 0:
                        came_from_host(
                            m.iq_from[q, c, (m.iq_head[q, c] + m.iq_count[q, c] - 1) % m.in_depth[q]], t
                        )
                    moved = True
            else:
                e = (slot * n_cores + c) * 5 + port
                room = has_room(e, m.sets[S.CELLS], t, m.sets, m.q_count, m.q_head, m.q_stamp)
                if room > 0:
                    enter(e, c, slot, word, flag, t + 1, m)
                    if m.sets[S.WATCH] != 0:
                        came_from_host(
                            m.q_from[e, (np.int64(m.q_head[e]) + np.int64(m.q_count[e]) - 1) % m.sets[S.CAP]],
                            t,
                        )
                    moved = True
                elif room < 0:
                    result |= 2
            if moved:
                result |= 1
                injections[i, S.I_POS] += 1
                injections[i, S.I_TIME] = max(
                    injections[i, S.I_TIME] + injections[i, S.I_PERIOD], 1000 * (t + 1) - 999
                )
                if injections[i, S.I_POS] >= injections[i, S.I_END]:
                    following = injections[i, S.I_NEXT]
                    alive = following >= 0
                    i = following
        if alive:
            heads[kept] = i
            kept += 1
            soonest = min(soonest, max(t + 1, (injections[i, S.I_TIME] + 999) // 1000))
    m.size[S.N_INJECTING], m.size[S.NEXT_WORD] = kept, soonest
    return result


@inlined_kernel
def soonest_event(t, m):
    """First cycle after t in which a counting core wakes or a word of the host is due."""
    soonest = np.int64(NEVER)
    if m.size[S.N_TIMED] > 0:
        for k in range(S.WHEEL):
            c = np.int64(m.wheel[(t + 1 + k) % S.WHEEL])
            while c >= 0:
                soonest = min(soonest, m.wake_at[c])
                c = np.int64(m.chain[c])
            if soonest <= t + 1 + k:
                break
    if m.size[S.N_INJECTING] != 0:
        soonest = min(soonest, max(t + 1, m.size[S.NEXT_WORD]))
    return soonest


@inlined_kernel
def wake_timed(t, m):
    """Wake the cores whose timer ends in cycle t."""
    size = m.size
    c = np.int64(m.wheel[t % S.WHEEL])
    m.wheel[t % S.WHEEL] = -1
    while c >= 0:
        following = np.int64(m.chain[c])
        if m.wake_at[c] == t:
            m.core[c, S.HELD] = max(np.int64(0), m.core[c, S.HELD] - (m.core[c, S.LEFT] - 1))
            m.core[c, S.LEFT] = 1
            m.listed[c] = np.uint8((np.int64(m.listed[c]) & ~4) | (1 << size[S.PARITY]))
            m.ready[size[S.PARITY], size[S.N_READY]] = c
            size[S.N_READY] += 1
            size[S.N_TIMED] -= 1
        else:
            m.chain[c] = m.wheel[t % S.WHEEL]
            m.wheel[t % S.WHEEL] = c
        c = following


@inlined_kernel
def unmet(every):
    """Return the mask of the conditions that are not met."""
    mask = np.int64(0)
    if every[COMMANDS_LEFT] > 0:
        mask |= COMMANDS
    if every[WORDS_LEFT] > 0:
        mask |= DRAINED
    if every[INJECTING] > 0:
        mask |= INJECTED
    return mask


@inlined_kernel
def count(moved, pending, m, x):
    """Compute what this band shows at the end of a cycle."""
    size, mine, place = m.size, x.mine, x.place
    n = place[END] - place[FIRST]
    is_full = size[S.N_LOG] + n > m.log.shape[0] or size[S.N_DRAIN] + 5 * n > m.drained.shape[0]
    mine[COMMANDS_LEFT], mine[WORDS_LEFT] = size[S.PENDING_COMMANDS], size[S.OUTSTANDING]
    mine[INJECTING], mine[FULL], mine[FAULTS] = size[S.N_INJECTING], 1 if is_full else 0, size[S.FAULTS]
    mine[MOVED], mine[PENDING] = 1 if moved else 0, 1 if pending else 0
    mine[READY], mine[RINGS] = size[S.N_READY], size[S.N_RINGS]
    mine[ROUTERS] = size[S.N_ROUTERS] + place[POSTED] + place[POSTED + 1]


@inlined_kernel
def in_order(numbers, n, listed, bit, first, n_cores):
    """A long list of cores, each marked by `bit` in `listed`, in the order of their numbers: so their state is in order as well."""
    if n < LONG_LIST or 8 * n < n_cores:
        return
    k = np.int64(0)
    for c in range(first, first + n_cores):
        if np.int64(listed[c]) & bit != 0:
            numbers[k] = c
            k += 1


@inlined_kernel
def step(t, injections, heads, everything, m, x):
    """One cycle; returns 1 if anything moved, + 2 if something waits for the clock."""
    size = m.size
    first, n_cores = x.place[FIRST], x.place[END] - x.place[FIRST]
    result = np.int64(0)
    n = n_cores if everything else size[S.N_ROUTERS]
    if not everything:
        in_order(m.router_list, n, m.router_listed, 1, first, n_cores)
    for j in range(n):
        c = first + j if everything else np.int64(m.router_list[j])
        if m.waiting[c] > 0:
            result |= route_router(c, t, m, x)
    if size[S.N_INJECTING] > 0:
        result |= inject_words(t, injections, heads, m)
    n = n_cores if everything else size[S.N_RINGS]
    if not everything:
        in_order(m.rings_list, n, m.ring_listed, 1, first, n_cores)
    kept = np.int64(0)
    for j in range(n):
        c = first + j if everything else np.int64(m.rings_list[j])
        if everything and m.ring_listed[c] == 0:
            continue
        result |= send_ring(c, t, m) & 3
        left = False
        for q in range(m.out_depth.shape[0]):
            left = left or m.oq_count[q, c] > 0
        if left:
            m.rings_list[kept] = c
            kept += 1
        else:
            m.ring_listed[c] = 0
    size[S.N_RINGS] = kept
    kept = np.int64(0)
    for j in range(size[S.N_ROUTERS]):
        c = np.int64(m.router_list[j])
        if m.waiting[c] > 0:
            m.router_list[kept] = c
            kept += 1
        else:
            m.router_listed[c] = 0
    size[S.N_ROUTERS] = kept
    if not everything and size[S.N_TIMED] > 0:
        wake_timed(t, m)
    parity = size[S.PARITY]
    n = n_cores if everything else size[S.N_READY]
    if not everything:
        in_order(m.ready[parity], n, m.listed, 1 << parity, first, n_cores)
    for j in range(n):
        c = first + j if everything else np.int64(m.ready[parity, j])
        m.listed[c] &= np.uint8(255 - (1 << parity))
        mode = m.core[c, S.MODE]
        if mode == S.NO_PROGRAM or (mode == S.HALTED and m.core[c, S.LIVE] == 0):
            continue
        account(c, t, m.core)
        state = core_cycle(c, t, m)
        m.core[c, S.STATE], m.core[c, S.SINCE] = state, t
        if m.core[c, S.FAULT] != 0:
            size[S.FAULTS] += 1
        elif state == S.BUSY:
            result |= 1
            if not everything:
                if may_sleep(c, m.core) and (m.listed[c] >> (1 - parity)) & 1 == 0:
                    wake = t + m.core[c, S.LEFT]
                    m.wake_at[c] = wake
                    m.listed[c] = 4
                    m.chain[c] = m.wheel[wake % S.WHEEL]
                    m.wheel[wake % S.WHEEL] = c
                    size[S.N_TIMED] += 1
                elif (m.listed[c] >> (1 - parity)) & 1 == 0:
                    m.listed[c] |= np.uint8(1 << (1 - parity))
                    m.ready[1 - parity, size[S.N_NEXT]] = c
                    size[S.N_NEXT] += 1
    if size[S.FAULTS] == 0:
        size[S.PARITY], size[S.N_READY], size[S.N_NEXT] = 1 - parity, size[S.N_NEXT], 0
        if everything:
            size[S.N_READY] = 0
            m.listed[:] = 0
    return result


@bare_kernel
def run(m, x, injections, heads, everything, last_cycle, asked):
    """Run until cycle `last_cycle`, until all of `asked` are met, or until nothing can happen; return why.

    WAITS: it must be called again, because another band is behind.
    """
    size, mine, every = m.size, x.mine, x.every
    many = x.place[BANDS] > 1
    t = size[S.CLOCK]
    if size[S.PHASE] == BEGIN:
        count(False, False, m, x)
        if many:
            tell(x)
        size[S.PHASE] = HEAR_BEGIN
    while True:
        if many and not hear(x, m):
            return GIVEN_UP if is_stopped(x) else WAITS
        following = t + 1
        if size[S.PHASE] == HEAR_BEGIN:
            following = t
        elif size[S.PHASE] == HEAR:
            if every[FAULTS] > 0:
                size[S.PHASE] = BEGIN
                return FAULTED
            goes_on = every[MOVED] + every[PENDING] > 0
            if everything:
                if not goes_on:
                    size[S.PHASE] = BEGIN
                    return QUIET
            elif every[READY] == 0 and (every[ROUTERS] == 0 or not goes_on):
                mine[SOONEST] = soonest_event(t, m)
                size[S.PHASE] = HEAR_SOONEST
                if many:
                    tell(x)
                    continue
        if size[S.PHASE] == HEAR_SOONEST:
            soonest = every[SOONEST]
            if soonest == NEVER and every[MOVED] + every[PENDING] == 0:
                size[S.PHASE] = BEGIN
                return QUIET
            is_met = asked != 0 and unmet(every) & asked == 0
            if soonest != NEVER and every[ROUTERS] == 0 and every[RINGS] == 0 and not is_met:
                following = max(following, soonest)
        if size[S.PHASE] != HEAR_BEGIN:
            t = min(following, max(last_cycle, t + 1))
            size[S.CLOCK] = t
        size[S.PHASE] = BEGIN
        if asked != 0 and unmet(every) & asked == 0:
            return ASKED
        if t >= last_cycle:
            return AT_CYCLE
        if every[FULL] != 0:
            return FLUSH
        result = step(t, injections, heads, everything, m, x)
        count(result & 1 != 0, result & 2 != 0, m, x)
        size[S.PHASE] = HEAR
        if many:
            tell(x)
