"""Jitted loop of the wavelet executor.

A cycle is: what links bring comes due, rings push, words with something to move decide and move, pops and pushes become
the new state, then the cores that are awake take their cycle.  Short links (one cycle, two cells, one cycle a wavelet)
need no counters: a queue is its planes OCC and FULL.

A loop steps one band of rows (:mod:`wse_sim.fabric.executors.wavelet.bands`) and returns when it must wait
for another. All of its state is in its arguments, so the next call continues where the last one stopped.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.core import ring_head, ring_pop
from wse_sim.fabric.executors.wavelet.bands import (
    CALM,
    END,
    FARTHEST,
    QUIET,
    UNDECIDED,
    agree,
    decide_rest,
    forget_ghosts,
    have_told,
    hear_neighbours,
    is_stopped,
    show,
    stop,
    tell_neighbours,
)
from wse_sim.fabric.executors.wavelet.cores import end_cores, run_cores, soonest_timed, start_cores, wake_now
from wse_sim.fabric.executors.wavelet.links import (
    add_debts,
    come_due,
    find_slow_ports,
    settle_long,
    waits_for_clock,
)
from wse_sim.fabric.executors.wavelet.payload import enter
from wse_sim.fabric.executors.wavelet.planes import (
    AHEAD,
    BAND,
    BANDS,
    CLOCK,
    COLS,
    FULL,
    IN_ORDER,
    MAX_CYCLES,
    MOVED,
    N_NEXT,
    N_RINGS,
    N_RUN,
    N_TIMED,
    N_TOUCHED,
    N_WORK,
    ONE,
    PARITY,
    PENDING,
    PHASE,
    PUSH,
    RAMP,
    RECORD,
    REST,
    STRIDE,
    ZERO,
    touch,
)
from wse_sim.fabric.executors.wavelet.routers import (
    count_blocked,
    count_waiting,
    decide,
    settle_short,
    transfer,
)
from wse_sim.jit import bare_kernel, inlined_kernel

R_WORD, R_META, RING_COUNT = C.R_WORD, C.R_META, C.RING_COUNT
DONE, TWO_INPUTS, OUT_OF_BOUNDS, TOO_LONG = C.DONE, C.TWO_INPUTS, C.OUT_OF_BOUNDS, C.TOO_LONG
START, MOVE, SETTLE, AGREE = range(4)  # phases: what comes next


@inlined_kernel
def push_rings(t, routers, payload, cores, size, sets):
    """Move the oldest word of every ring into its router if it is due and a cell is free."""
    st, lay, rings = cores.st, cores.lay, cores.rings
    kept = 0
    for j in range(size[N_RINGS]):
        c = np.int64(rings[j])
        r = ring_head(st[c], c, t, lay)
        if r == 0:
            size[PENDING] = 1
        elif r > 0:
            slot, flag = np.int64(st[c, r + R_META]) & 255, np.int64(st[c, r + R_META]) >> 8
            f, b = routers.core_f[c], np.uint64((c % sets[COLS]) & 63)
            o = slot * RECORD + 8 * RAMP
            if (routers.rec[f, o + FULL] >> b) & ONE == ZERO:
                enter(payload, slot, c, np.int64(st[c, r + R_WORD]), flag, sets)
                routers.rec[f, o + PUSH] |= ONE << b
                touch(f, slot, routers, size)
                ring_pop(st[c], c, lay)
                size[MOVED] = 1
                wake_now(c, cores, size)
        if st[c, RING_COUNT] > 0:
            rings[kept] = c
            kept += 1
    size[N_RINGS] = kept


@inlined_kernel
def drop_idle_words(routers, size):
    """Keep the words of routers with something to move on the worklist; in the order of memory if they are many."""
    active, listed, work = routers.active, routers.listed, routers.work
    kept = 0
    size[IN_ORDER] = 2 * size[N_WORK] > active.shape[0]
    if size[IN_ORDER]:
        for f in range(active.shape[0]):
            listed[f] = 1 if active[f] != ZERO else 0
            if active[f] != ZERO:
                work[kept] = f
                kept += 1
    else:
        for j in range(size[N_WORK]):
            f = work[j]
            if active[f] != ZERO:
                work[kept] = f
                kept += 1
            else:
                listed[f] = 0
    size[N_WORK] = kept


@inlined_kernel
def settle_short_links(routers, tally, size):
    """Apply pops and pushes to the state of the queues."""
    for j in range(size[N_TOUCHED]):
        f = routers.touched_list[j]
        if routers.touched[f] != ZERO:
            settle_short(f, routers, tally, size)


@inlined_kernel
def at_rest(t, is_short, cores, links, routers, size, sets):
    """Return whether this band has nothing left to do (QUIET), and whether nothing happens until a timer ends
    (CALM)."""
    rest = np.int64(0)
    if size[MOVED]:
        return rest
    if not size[PENDING] and size[N_TIMED] == 0:
        if is_short or not waits_for_clock(links, routers, size, sets):
            rest |= QUIET
    if (
        size[N_NEXT] == 0
        and size[N_RINGS] == 0
        and (is_short or (links.n_due.sum() == 0 and not size[PENDING]))
    ):
        rest |= CALM
    return rest


def _make_loop(*, is_short):
    """Return the compiled loop for one kind of links, without the parts that it does not need."""

    @bare_kernel
    def loop(routers, payload, cores, tally, links, edges, size, sets, outcome):
        """Run a band to the end, or until it waits for another; True if it must be called again.

        The contract is that of the oracle's loop.
        """
        reach = sets[STRIDE] + 1
        many = sets[BANDS] > 1
        # rows at the edges are settled when the neighbours have told of their moves
        first_settled = 2 * sets[STRIDE] if size[BAND] > 0 else np.int64(0)
        t = size[CLOCK]
        if size[PHASE] == START:
            start_cores(cores, size)
            size[PHASE] = MOVE
        while True:
            if size[PHASE] == MOVE:
                size[MOVED], size[PENDING], size[N_TOUCHED], size[N_NEXT] = 0, 0, 0, 0
                if not is_short:
                    come_due(t, links, routers, tally, size)
                push_rings(t, routers, payload, cores, size, sets)
                settled = first_settled
                for j in range(size[N_WORK]):
                    f = routers.work[j]
                    if (
                        is_short and size[IN_ORDER]
                    ):  # no decision looks back further: settle while it is in the cache
                        for before in range(settled, f - reach):
                            if routers.touched[before] != ZERO:
                                settle_short(before, routers, tally, size)
                        settled = max(settled, f - reach)
                    if not is_short:
                        find_slow_ports(f, t, links, routers)
                    n = decide(f, t, not is_short, routers, payload, size, sets, outcome)
                    if outcome[0] == TWO_INPUTS or n == 0:
                        continue
                    transfer(f, n, t, routers, payload, cores, tally, size, sets)
                    count_blocked(f, routers, tally)
                    if not is_short:
                        add_debts(f, links, routers)
                if outcome[0] == TWO_INPUTS:
                    stop(edges, size, 2 * t)
                    return False
                if many:
                    tell_neighbours(t, routers, edges, size, sets)
                size[PHASE] = SETTLE
            if size[PHASE] == SETTLE:
                if many:
                    if not have_told(t, edges, size, sets):
                        return not is_stopped(edges, sets, 2 * t + 1)
                    hear_neighbours(t, routers, edges, size, sets)
                if is_short:
                    settle_short_links(routers, tally, size)
                else:
                    settle_long(t, links, routers, size)
                if many:
                    forget_ghosts(routers, size, sets)
                drop_idle_words(routers, size)
                run_cores(t, cores, routers, size, sets, outcome)
                if outcome[0] == OUT_OF_BOUNDS:
                    stop(edges, size, 2 * t + 1)
                    return False
                size[REST], size[AHEAD] = at_rest(t, is_short, cores, links, routers, size, sets), 0
                if size[REST] & CALM and size[N_TIMED] > 0:
                    size[AHEAD] = min(soonest_timed(t, cores, size) - t, FARTHEST)
                if many:
                    show(t, size[REST], size[AHEAD], edges, size)
                size[PHASE] = AGREE
            ahead = np.int64(1)
            if size[REST] != 0:
                if many:
                    ahead = agree(t, size[REST], size[AHEAD], edges, size, sets)
                    if ahead == UNDECIDED:
                        return not is_stopped(edges, sets, 2 * t + 2)
                else:
                    ahead = decide_rest(size[REST] & QUIET != 0, size[REST] & CALM != 0, size[AHEAD])
                if ahead == END:
                    break
                if ahead > 1:  # nothing can happen before
                    for j in range(size[N_WORK]):
                        count_waiting(routers.work[j], ahead - 1, routers, tally)
            size[PARITY], size[N_RUN] = 1 - size[PARITY], size[N_NEXT]
            t += ahead
            size[CLOCK], size[PHASE] = t, MOVE
            if t >= sets[MAX_CYCLES]:
                outcome[0], outcome[1] = TOO_LONG, t
                return False
        outcome[0], outcome[1] = DONE, t
        end_cores(t, cores, size, sets, outcome)
        return False

    return loop


run_short = _make_loop(is_short=True)
"""Links of one cycle, queues of two cells, one cycle a wavelet."""
run_long = _make_loop(is_short=False)
"""Links and queues of any length, any number of cycles a wavelet."""
