"""Cores of the wavelet executor: a list of awake cores, and a timing wheel for those with a timer."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.core import core_cycle, is_finished
from wse_sim.fabric.executors.sleep import account, may_sleep_until_done, slots_read
from wse_sim.fabric.executors.wavelet.planes import (
    BIN,
    COLS,
    END_CORE,
    FIRST_CORE,
    LEAF_FULL,
    MOVED,
    N_NEXT,
    N_RINGS,
    N_RUN,
    N_TIMED,
    ONE,
    PARITY,
    RECORD,
    SOONEST,
    ZERO,
    Array,
    Band,
)
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.memory import Memory
from wse_sim.jit import helper_kernel, inlined_kernel, trailing_zeros

STATE, SINCE, COUNTS, RECEIVED, CLASS, MAIN = C.STATE, C.SINCE, C.COUNTS, C.RECEIVED, C.CLASS, C.MAIN
BUSY, FAULT, RUNNING, HALTED, NO_MAIN = C.BUSY, C.FAULT, C.MAIN_RUNNING, C.MAIN_HALTED, C.MAIN_NONE
THREAD0, THREADS, LEAF0, LEAF_WIDTH, DEPTH0 = C.THREAD0, C.THREADS, C.LEAF0, C.LEAF_WIDTH, C.DEPTH0
THREAD_FIELDS, INSTR, LEFT, NO_INSTR, RING_COUNT = C.THREAD_FIELDS, C.INSTR, C.LEFT, C.NO_INSTR, C.RING_COUNT
Q_COUNT, PRIORITY = C.Q_COUNT, P.PRIORITY
STUCK, OUT_OF_BOUNDS = C.STUCK, C.OUT_OF_BOUNDS

WHEEL = 1024
ASLEEP, LISTED, TIMED = 0, 1, 2
NEVER = np.int64(1) << 62


class Cores(NamedTuple):
    """State and program of all cores for :mod:`wse_sim.fabric.executors.core`, and the lists of awake
    cores."""

    st: Array
    lay: Array
    code: Array
    costs: Array
    params: Array
    tasks: Array
    class_tasks: Array
    buffers: Array
    arena: Array
    reads: Array  # uint64 (classes,): slots that the class takes words from
    bins: Array  # int32 (bins, R): busy cycles
    awake: Array  # uint8 (R,)
    lists: Array  # int32 (2, cores of the band): cores of this cycle and of the next, by parity
    rings: Array  # int32 (cores of the band,): cores with words in their ring
    wheel: Array  # int64 (WHEEL,): first timed core of the band
    chain: Array  # int32 (R,): next timed core
    wake_at: Array  # int64 (R,)
    fresh: Array  # int32 (R,): cycle of the last word that came in


def make_cores(
    lowered: Lowered, arena: Memory, bins: int, bands: list[Band], *, functional: bool
) -> list[Cores]:
    """Return all cores at cycle 0, asleep; every band has separate lists and a separate timing wheel."""
    program = lowered.program
    n = program.n_cores
    st, lay = C.make_state(program, lowered.config, functional=functional)
    everyone = Cores(
        st, lay, program.code, lowered.costs, program.params, program.tasks, program.class_tasks,
        program.buffer_table, arena, slots_read(program), np.zeros((bins, n), np.int32), np.zeros(n, np.uint8),
        np.zeros((2, 0), np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64), np.full(n, -1, np.int32),
        np.zeros(n, np.int64), np.full(n, -1, np.int32),
    )  # fmt: skip
    sizes = [band.n_rows * program.cols for band in bands]
    return [
        everyone._replace(
            lists=np.zeros((2, size), np.int32),
            rings=np.zeros(size, np.int32),
            wheel=np.full(WHEEL, -1, np.int64),
        )
        for size in sizes
    ]


@inlined_kernel
def wake_core(c, cores, size):
    """Let a sleeping core with a program take the next cycle."""
    if cores.awake[c] == ASLEEP and cores.st[c, MAIN] != HALTED and cores.st[c, MAIN] != NO_MAIN:
        cores.awake[c] = LISTED
        cores.lists[1 - size[PARITY], size[N_NEXT]] = c
        size[N_NEXT] += 1


@inlined_kernel
def wake_now(c, cores, size):
    """Let a sleeping core with a program take this cycle."""
    if cores.awake[c] == ASLEEP and cores.st[c, MAIN] != HALTED and cores.st[c, MAIN] != NO_MAIN:
        cores.awake[c] = LISTED
        cores.lists[size[PARITY], size[N_RUN]] = c
        size[N_RUN] += 1


@helper_kernel
def wake_timed(t, cores, size):
    """Add the cores whose timer ends in cycle t to the list of this cycle."""
    wheel, chain = cores.wheel, cores.chain
    c = wheel[t % WHEEL]
    wheel[t % WHEEL] = -1
    while c >= 0:
        following = np.int64(chain[c])
        if cores.wake_at[c] == t:
            cores.st[c, cores.lay[THREAD0] + LEFT] = 1
            cores.awake[c] = LISTED
            cores.lists[size[PARITY], size[N_RUN]] = c
            size[N_RUN] += 1
            size[N_TIMED] -= 1
        else:
            chain[c] = wheel[t % WHEEL]
            wheel[t % WHEEL] = c
        c = following


@helper_kernel
def soonest_timed(t, cores, size):
    """Return the first cycle after t in which a timed core wakes; cached until that cycle has passed."""
    if size[SOONEST] > t:
        return size[SOONEST]
    soonest = NEVER
    for k in range(WHEEL):
        c = cores.wheel[k]
        while c >= 0:
            soonest = min(soonest, cores.wake_at[c])
            c = np.int64(cores.chain[c])
    size[SOONEST] = soonest
    return soonest


@inlined_kernel
def sleep_until_done(c, t, cores, size):
    """Remove a core from the lists until its instruction is done."""
    cores.wake_at[c] = t + cores.st[c, cores.lay[THREAD0] + LEFT]
    cores.awake[c] = TIMED
    cores.chain[c] = cores.wheel[cores.wake_at[c] % WHEEL]
    cores.wheel[cores.wake_at[c] % WHEEL] = c
    size[N_TIMED] += 1
    size[SOONEST] = min(size[SOONEST], cores.wake_at[c])


@inlined_kernel
def open_queues(c, cores, routers, sets):
    """Mark for the router which input queues have room, after the core has read words."""
    st, lay = cores.st, cores.lay
    mask = cores.reads[st[c, CLASS]]
    while mask != ZERO:
        slot = trailing_zeros(mask)
        mask &= mask - ONE
        if st[c, lay[LEAF0] + slot * lay[LEAF_WIDTH] + Q_COUNT] < lay[DEPTH0 + slot]:
            routers.rec[routers.core_f[c], slot * RECORD + LEAF_FULL] &= ~(
                ONE << np.uint64((c % sets[COLS]) & 63)
            )


@inlined_kernel
def run_cores(t, cores, routers, size, sets, outcome):
    """Run one cycle of all awake cores."""
    st, lay = cores.st, cores.lay
    if size[N_TIMED] > 0:
        wake_timed(t, cores, size)
    for j in range(size[N_RUN]):
        c = np.int64(cores.lists[size[PARITY], j])
        cores.awake[c] = ASLEEP
        account(st, c, t, cores.bins, sets[BIN])
        received, ring = st[c, RECEIVED], st[c, RING_COUNT]
        state = core_cycle(
            st[c], c, t, lay, cores.code, cores.costs, cores.params, cores.tasks, cores.class_tasks, cores.buffers,
            cores.arena,
        )  # fmt: skip
        if state == FAULT:
            if outcome[0] != OUT_OF_BOUNDS or c < outcome[2]:
                outcome[0], outcome[1], outcome[2], outcome[3] = OUT_OF_BOUNDS, t, c, 0
            continue
        if st[c, RECEIVED] != received:
            open_queues(c, cores, routers, sets)
        if ring == 0 and st[c, RING_COUNT] > 0:
            cores.rings[size[N_RINGS]] = c
            size[N_RINGS] += 1
        st[c, STATE], st[c, SINCE] = np.int32(state), np.int32(t)
        if state == BUSY:
            size[MOVED] = 1
            if may_sleep_until_done(st, c, lay, cores.code):
                sleep_until_done(c, t, cores, size)
            else:
                wake_core(c, cores, size)
        elif cores.fresh[c] == t:
            wake_core(c, cores, size)


@helper_kernel
def start_cores(cores, size):
    """Let every core with a program run in cycle 0."""
    for c in range(size[FIRST_CORE], size[END_CORE]):
        if cores.st[c, MAIN] == RUNNING:
            wake_now(c, cores, size)


@helper_kernel
def end_cores(t, cores, size, sets, outcome):
    """Finish the counters; an unfinished core makes the run stuck."""
    for c in range(size[FIRST_CORE], size[END_CORE]):
        account(cores.st, c, t, cores.bins, sets[BIN])
        if not is_finished(cores.st[c], c, cores.lay):
            outcome[0] = STUCK
