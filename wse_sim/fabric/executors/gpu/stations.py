"""Parts outside the bit planes: rings and input queues of cores, queues of copied slots, and the cores.

A station is a core with a program, or a router that copies words; one thread does all of its work in a cycle.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.core import core_cycle, leaf_push, ring_pop
from wse_sim.fabric.executors.gpu.planes import (
    BIN,
    COLS,
    FULL,
    GO,
    N_CORES,
    N_WORDS,
    NEVER,
    OUT_OF_BOUNDS,
    POP,
    RAMP,
    SPREAD,
    STRIDE,
    TX,
    VALUES,
)
from wse_sim.fabric.executors.router import advanced, neighbour, popped_payload
from wse_sim.fabric.executors.sleep import account, may_sleep_until_done
from wse_sim.fabric.format import program as P
from wse_sim.jit import atomic_and, atomic_min, atomic_or, helper_kernel, trailing_zeros

ONE, ZERO = np.uint64(1), np.uint64(0)
FLAG_DATA, FLAG_CONTROL, FLAG_LOCAL, ADVANCE = (
    P.FLAG_DATA,
    P.FLAG_CONTROL,
    P.FLAG_ADVANCE_LOCAL,
    int(P.Command.ADVANCE),
)
LOW_WORD = 0xFFFFFFFF


@helper_kernel
def word_and_bit(core, sets):
    """Return the word of routers that contains `core`, and the core's bit."""
    row, col = core // sets[COLS], core % sets[COLS]
    return (row + 1) * sets[STRIDE] + (col >> 6) + 1, np.uint64(col & 63)


@helper_kernel
def append(payload, e, word, flag):
    """Append a word to queue `e`; the planes have checked that there is space."""
    i = np.int64(payload.free[e])
    payload.cells[e, i], payload.flags[e, i] = np.uint32(word & LOW_WORD), np.uint8(flag)
    payload.free[e] = np.uint8(1 - i)


@helper_kernel
def has_main(st, core):
    """Return whether the core has a program that has not halted."""
    return st[core, C.MAIN] != C.MAIN_HALTED and st[core, C.MAIN] != C.MAIN_NONE


@helper_kernel
def push_ring(core, t, routes, planes, payload, cores, sets):
    """Move the oldest word of the ring into its router if it is due and a cell is free; return False if no
    more will come."""
    st, lay = cores.st, cores.lay
    if cores.ring_due[core] > t:
        return cores.ring_due[core] != NEVER
    r = C.RING0 + C.RING_FIELDS * np.int64(st[core, C.RING_HEAD])
    slot, flag = np.int64(st[core, r + C.R_META]) & 255, np.int64(st[core, r + C.R_META]) >> 8
    f, b = word_and_bit(core, sets)
    if (planes.rec[slot, FULL + RAMP, f] >> b) & ONE != ZERO:
        return False
    word = np.int64(st[core, r + C.R_WORD])
    if routes.copied[slot] >= 0:
        append(payload, (routes.copied[slot] * 5 + RAMP) * sets[N_CORES] + core, word, flag)
    else:
        if sets[VALUES]:
            k = routes.tree[slot, core]
            i = routes.base[k] + payload.entered[slot, core] % routes.size[k]
            payload.log[i] = np.uint32(word & LOW_WORD)
        payload.entered[slot, core] += np.int32(1)
    atomic_or(planes.ramp, slot * sets[N_WORDS] + f, ONE << b)
    atomic_or(planes.from_ramp, f, ONE << np.uint64(slot))
    ring_pop(st[core], core, lay)
    cores.ring_due[core] = NEVER
    if st[core, C.RING_COUNT] > 0:
        r = C.RING0 + C.RING_FIELDS * np.int64(st[core, C.RING_HEAD])
        cores.ring_due[core] = max(t + 1, st[core, r + C.R_TIME] + lay[C.DELAY])
    if cores.wake[core] == NEVER and has_main(st, core):
        cores.wake[core] = t
    return True


@helper_kernel
def hand_over(core, slot, word, flag, t, f, b, planes, cores, sets):
    """Append a word to the input queue of `core`, which can read it in the next cycle."""
    st, lay = cores.st, cores.lay
    leaf_push(st[core], core, slot, word, flag, t, lay)
    if st[core, lay[C.LEAF0] + slot * lay[C.LEAF_WIDTH] + C.Q_COUNT] >= lay[C.DEPTH0 + slot]:
        atomic_or(planes.closed, slot * sets[N_WORDS] + f, ONE << b)
    if cores.wake[core] == NEVER and has_main(st, core):
        cores.wake[core] = t + 1


@helper_kernel
def copy_word(core, slot, t, f, b, routes, planes, payload, cores, sets):
    """Move the head word of the chosen queue of a copied slot to all outputs; a command acts on the switch."""
    rec, first = planes.rec, routes.copied[slot] * 5
    p = np.int64(0)
    while (rec[slot, POP + p, f] >> b) & ONE == ZERO or not (np.int64(routes.ports[slot, f]) >> p) & 1:
        p += 1
    e = (first + p) * sets[N_CORES] + core
    i = np.int64(payload.first[e])
    word, flag = np.int64(payload.cells[e, i]), np.int64(payload.flags[e, i])
    payload.first[e] = np.uint8(1 - i)
    hidden = flag == FLAG_CONTROL and (word >> 24) & 1 == 1  # no core sees it
    onward = np.int64(0) if flag == FLAG_LOCAL else flag
    if flag != 0:
        cfg = routes.route[slot, core]
        command = word & 3 if flag == FLAG_CONTROL else np.int64(ADVANCE)
        planes.position[slot, core] = advanced(
            np.int64(planes.position[slot, core]), cfg, command, routes.cfg_positions, routes.cfg_ring
        )
        if flag == FLAG_CONTROL:
            word = popped_payload(word, routes.cfg_pop[cfg], command)
        atomic_or(planes.switched, slot * sets[N_WORDS] + f, ONE << b)  # for the next cycle
        atomic_or(planes.has_switched, f, ONE << np.uint64(slot))
    for q in range(4):
        if (rec[slot, TX + q, f] >> b) & ONE != ZERO:
            e = (first + (q + 2) % 4) * sets[N_CORES] + neighbour(core, q, sets[COLS])
            append(payload, e, word, onward)
    if (rec[slot, TX + RAMP, f] >> b) & ONE != ZERO and not hidden:
        kept = flag if flag == FLAG_CONTROL else np.int64(FLAG_DATA)
        hand_over(core, slot, word, kept, t, f, b, planes, cores, sets)
        return True
    return False


@helper_kernel
def receive(core, t, routes, planes, payload, cores, sets):
    """Move the copies and the words for the core that pass this station in cycle t; return whether the core
    received a word."""
    f, b = word_and_bit(core, sets)
    if (planes.visited[f] >> b) & ONE == ZERO:
        return False
    fresh, todo = False, planes.moving[f]
    while todo != ZERO:
        slot = trailing_zeros(todo)
        todo &= todo - ONE
        if (planes.rec[slot, GO, f] >> b) & ONE == ZERO:
            continue
        if routes.copied[slot] >= 0:
            if copy_word(core, slot, t, f, b, routes, planes, payload, cores, sets):
                fresh = True
        elif (planes.rec[slot, TX + RAMP, f] >> b) & ONE != ZERO:
            word = np.int64(0)
            if sets[VALUES]:
                k = routes.tree[slot, core]
                word = np.int64(payload.log[routes.base[k] + payload.left[slot, core] % routes.size[k]])
                payload.left[slot, core] += np.int32(1)
            hand_over(core, slot, word, np.int64(FLAG_DATA), t, f, b, planes, cores, sets)
            fresh = True
    return fresh


@helper_kernel
def open_queues(core, planes, cores, sets):
    """Mark for the router which input queues have room, after the core has read words."""
    st, lay = cores.st, cores.lay
    f, b = word_and_bit(core, sets)
    mask = cores.reads[st[core, C.CLASS]]
    while mask != ZERO:
        slot = trailing_zeros(mask)
        mask &= mask - ONE
        if st[core, lay[C.LEAF0] + slot * lay[C.LEAF_WIDTH] + C.Q_COUNT] < lay[C.DEPTH0 + slot]:
            atomic_and(planes.closed, slot * sets[N_WORDS] + f, ~(ONE << b))


@helper_kernel
def run_core(core, t, fresh, planes, cores, marks, sets):
    """Run cycle t of an awake core, and set when it runs next."""
    st, lay = cores.st, cores.lay
    account(st, core, t, cores.bins, sets[BIN])
    received, ring = st[core, C.RECEIVED], st[core, C.RING_COUNT]
    state = core_cycle(
        st[core], core, t, lay, cores.code, cores.costs, cores.params, cores.tasks, cores.class_tasks, cores.buffers,
        cores.arena,
    )  # fmt: skip
    if state == C.FAULT:
        atomic_min(marks.faults, OUT_OF_BOUNDS, (t * sets[N_CORES] + core) * SPREAD)
        return
    if st[core, C.RECEIVED] != received:
        open_queues(core, planes, cores, sets)
    if ring == 0 and st[core, C.RING_COUNT] > 0:
        cores.ring_due[core] = t + lay[C.DELAY]
    st[core, C.STATE], st[core, C.SINCE] = np.int32(state), np.int32(t)
    cores.wake[core] = t + 1 if (fresh or state == C.BUSY) and has_main(st, core) else NEVER
    if state == C.BUSY and may_sleep_until_done(st, core, lay, cores.code):
        cores.wake[core] = t + st[core, lay[C.THREAD0] + C.LEFT]
        st[core, lay[C.THREAD0] + C.LEFT] = 1


@helper_kernel
def step_station(core, t, routes, planes, payload, cores, marks, sets):
    """Run the second half of cycle t: words that arrive, then the core; return False if nothing follows
    without new words."""
    fresh = receive(core, t, routes, planes, payload, cores, sets)
    if cores.wake[core] == t:
        run_core(core, t, fresh, planes, cores, marks, sets)
    return cores.wake[core] != NEVER
