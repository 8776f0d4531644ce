"""The decisions of 64 routers (one word) in a cycle, and the content of their queues afterwards."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors.gpu.planes import (
    CONTROL,
    COUNTER_BITS,
    FULL,
    GO,
    HERE,
    IN_PORTS,
    N_CORES,
    N_WORDS,
    OCC,
    POP,
    RAMP,
    ROUND_ROBIN,
    RX,
    SLOTS,
    SPREAD,
    STRICT,
    STRIDE,
    TWO_INPUTS,
    TX,
)
from wse_sim.fabric.format import program as P
from wse_sim.jit import atomic_min, helper_kernel, trailing_zeros

FLAG_CONTROL = P.FLAG_CONTROL
ONE, ZERO, TOP = np.uint64(1), np.uint64(0), np.uint64(63)


@helper_kernel
def turn_switches(f, routes, planes, sets):
    """Routes of the routers of word `f` whose switches moved in the last cycle."""
    rec, todo = planes.rec, planes.has_switched[f]
    planes.has_switched[f] = ZERO
    while todo != ZERO:
        slot = trailing_zeros(todo)
        todo &= todo - ONE
        bits = planes.switched[slot * sets[N_WORDS] + f]
        planes.switched[slot * sets[N_WORDS] + f] = ZERO
        while bits != ZERO:
            b = np.uint64(trailing_zeros(bits))
            bits &= bits - ONE
            core = routes.first_core[f] + np.int64(b)
            cfg, k = routes.route[slot, core], planes.position[slot, core]
            rx, tx = np.int64(routes.cfg_rx[cfg, k]), np.int64(routes.cfg_tx[cfg, k])
            for p in range(5):
                rec[slot, RX + p, f] = (rec[slot, RX + p, f] & ~(ONE << b)) | (np.uint64((rx >> p) & 1) << b)
                rec[slot, TX + p, f] = (rec[slot, TX + p, f] & ~(ONE << b)) | (np.uint64((tx >> p) & 1) << b)


@helper_kernel
def choose_inputs(f, slot, t, ports, two, routes, planes, marks, sets):
    """Return the input that each router of a copied slot takes; words at two inputs are an error, or the
    inputs alternate."""
    rec = planes.rec
    if two != ZERO and sets[STRICT]:
        core = routes.first_core[f] + trailing_zeros(two)
        atomic_min(marks.faults, TWO_INPUTS, (t * sets[N_CORES] + core) * SPREAD + slot)
    taken = ZERO
    for k in range(5):
        p = (t + k) % 5
        if (ports >> p) & 1:
            here = rec[slot, OCC + p, f] & rec[slot, RX + p, f] & ~taken
            rec[slot, POP + p, f] = here
            taken |= here


@helper_kernel
def unseen_controls(f, slot, bits, routes, planes, payload, sets):
    """Routers of `bits` whose head word is a control wavelet that no core sees: it needs no room in the core."""
    unseen = ZERO
    if not sets[CONTROL] or routes.copied[slot] < 0:
        return unseen
    while bits != ZERO:
        b = np.uint64(trailing_zeros(bits))
        bits &= bits - ONE
        for p in range(5):
            if (np.int64(routes.ports[slot, f]) >> p) & 1 and (
                planes.rec[slot, POP + p, f] >> b
            ) & ONE != ZERO:
                e = (routes.copied[slot] * 5 + p) * sets[N_CORES] + routes.first_core[f] + np.int64(b)
                i = np.int64(payload.first[e])
                if payload.flags[e, i] == FLAG_CONTROL and (np.int64(payload.cells[e, i]) >> 24) & 1 == 1:
                    unseen |= ONE << b
    return unseen


@helper_kernel
def full_behind(f, slot, q, rec, stride):
    """Return routers whose output `q` (not the ramp) leads to a queue without a free cell."""
    if q == 0:
        return rec[slot, FULL + 2, f - stride]
    if q == 1:
        return (rec[slot, FULL + 3, f] >> ONE) | (rec[slot, FULL + 3, f + 1] << TOP)
    if q == 2:
        return rec[slot, FULL, f + stride]
    return (rec[slot, FULL + 1, f] << ONE) | (rec[slot, FULL + 1, f - 1] >> TOP)


@helper_kernel
def may_move(f, slot, t, routes, planes, payload, marks, sets):
    """Routers whose word on `slot` finds room behind all its outputs; fills HERE and, of copied slots, POP."""
    rec, ports = planes.rec, np.int64(routes.ports[slot, f])
    here, two, inputs = ZERO, ZERO, np.uint64(ports & IN_PORTS)
    while inputs != ZERO:
        p = trailing_zeros(inputs)
        inputs &= inputs - ONE
        a = rec[slot, OCC + p, f] & rec[slot, RX + p, f]
        two |= here & a
        here |= a
    rec[slot, HERE, f] = here
    if here == ZERO:
        return ZERO
    if routes.copied[slot] >= 0:
        choose_inputs(f, slot, t, ports, two, routes, planes, marks, sets)
    leaves, stop, outputs = ZERO, ZERO, np.uint64(ports >> 5)
    while outputs != ZERO:
        q = trailing_zeros(outputs)
        outputs &= outputs - ONE
        out = here & rec[slot, TX + q, f]
        if out == ZERO:
            continue
        leaves |= out
        if q != RAMP:
            stop |= out & full_behind(f, slot, q, rec, sets[STRIDE])
        else:
            no_room = out & planes.closed[slot * sets[N_WORDS] + f]
            if no_room != ZERO:
                no_room &= ~unseen_controls(f, slot, no_room, routes, planes, payload, sets)
            stop |= no_room
    return leaves & ~stop


@helper_kernel
def arbitrate(f, moving, bits, routes, planes, sets):
    """Round robin of the routers in `bits` over the slots in `moving`; the losers leave GO."""
    rec, pointer, n_slots = planes.rec, planes.pointer, sets[SLOTS]
    while bits != ZERO:
        b = np.uint64(trailing_zeros(bits))
        bits &= bits - ONE
        core = routes.first_core[f] + np.int64(b)
        start = np.int64(pointer[core]) if sets[ROUND_ROBIN] else np.int64(0)
        taken = np.int64(0)
        for k in range(n_slots):
            slot = (start + k) % n_slots
            if (moving >> np.uint64(slot)) & (rec[slot, GO, f] >> b) & ONE == ZERO:
                continue
            tx = np.int64(0)
            for q in range(5):
                tx |= np.int64((rec[slot, TX + q, f] >> b) & ONE) << q
            if tx & taken:
                rec[slot, GO, f] &= ~(ONE << b)
            else:
                taken |= tx
                pointer[core] = np.uint8((slot + 1) % n_slots)


@helper_kernel
def count_bits(counters, totals, f, port, bits, first_core):
    """Add `bits` to 64 bit-sliced counters; overflows go to `totals`."""
    k = 0
    while bits != ZERO and k < COUNTER_BITS:
        old = counters[port, k, f]
        counters[port, k, f] = old ^ bits
        bits = old & bits
        k += 1
    while bits != ZERO:
        totals[first_core[f] + trailing_zeros(bits), port] += np.int64(1) << COUNTER_BITS
        bits &= bits - ONE


@helper_kernel
def count_moves(f, active, moving, routes, planes, tally):
    """Links and blocked ports of this cycle; returns the routers in which a core must look."""
    rec, visited = planes.rec, ZERO
    for q in range(5):
        wanted, granted, counted, todo = ZERO, ZERO, ZERO, active
        while todo != ZERO:
            slot = trailing_zeros(todo)
            todo &= todo - ONE
            if not (np.int64(routes.ports[slot, f]) >> (5 + q)) & 1:
                continue
            tx = rec[slot, TX + q, f]
            wanted |= rec[slot, HERE, f] & tx
            if (moving >> np.uint64(slot)) & ONE != ZERO:
                out = rec[slot, GO, f] & tx
                granted |= out
                if routes.copied[slot] >= 0:
                    counted |= out
                    visited |= out
                elif q == RAMP:
                    visited |= out
        if counted != ZERO:
            count_bits(tally.link_bits, tally.links, f, q, counted, routes.first_core)
        if wanted & ~granted != ZERO:
            count_bits(tally.blocked_bits, tally.blocked, f, q, wanted & ~granted, routes.first_core)
    return visited


@helper_kernel
def decide(f, t, routes, planes, payload, tally, marks, sets):
    """Find the words of the routers of `f` that move in cycle t: GO, ``moving``, ``visited``; True if some do."""
    if planes.has_switched[f] != ZERO:
        turn_switches(f, routes, planes, sets)
    active, moving, once, twice = planes.active[f], ZERO, ZERO, ZERO
    todo = active
    while todo != ZERO:
        slot = trailing_zeros(todo)
        todo &= todo - ONE
        go = may_move(f, slot, t, routes, planes, payload, marks, sets)
        if go != ZERO:
            planes.rec[slot, GO, f] = go
            moving |= ONE << np.uint64(slot)
            twice |= once & go
            once |= go
    if once & routes.shared[f] != ZERO:
        arbitrate(f, moving, once & routes.shared[f], routes, planes, sets)
    planes.moving[f] = moving
    planes.visited[f] = count_moves(f, active, moving, routes, planes, tally) if active != ZERO else ZERO
    return moving != ZERO


@helper_kernel
def gone(f, slot, q, planes):
    """Routers of word `f` whose word on `slot` leaves by output `q` in this cycle."""
    if (planes.moving[f] >> np.uint64(slot)) & ONE == ZERO:
        return ZERO
    return planes.rec[slot, GO, f] & planes.rec[slot, TX + q, f]


@helper_kernel
def pushed(f, slot, p, planes, sets):
    """Routers of word `f` that get a word at input `p` of `slot` in this cycle."""
    stride = sets[STRIDE]
    if p == 0:
        return gone(f - stride, slot, 2, planes)
    if p == 1:
        return (gone(f, slot, 3, planes) >> ONE) | (gone(f + 1, slot, 3, planes) << TOP)
    if p == 2:
        return gone(f + stride, slot, 0, planes)
    if p == 3:
        return (gone(f, slot, 1, planes) << ONE) | (gone(f - 1, slot, 1, planes) >> TOP)
    return planes.ramp[slot * sets[N_WORDS] + f]


@helper_kernel
def settle(f, routes, planes, tally, sets):
    """Apply the moves of this cycle to the queues of word `f`."""
    rec, moving, stride = planes.rec, planes.moving, sets[STRIDE]
    entered = planes.from_ramp[f]
    todo = moving[f] | moving[f - 1] | moving[f + 1] | moving[f - stride] | moving[f + stride] | entered
    todo &= routes.used[f]
    while todo != ZERO:
        slot = trailing_zeros(todo)
        bit = todo & (~todo + ONE)
        todo &= todo - ONE
        ports = np.int64(routes.ports[slot, f])
        go = rec[slot, GO, f] if moving[f] & bit != ZERO else ZERO
        is_copied = routes.copied[slot] >= 0
        left, inputs = ZERO, np.uint64(ports & IN_PORTS)
        while inputs != ZERO:
            p = trailing_zeros(inputs)
            inputs &= inputs - ONE
            occ, push, pop = rec[slot, OCC + p, f], pushed(f, slot, p, planes, sets), ZERO
            if go != ZERO:
                pop = go & (rec[slot, POP + p, f] if is_copied else rec[slot, RX + p, f])
            if pop | push != ZERO:
                full = rec[slot, FULL + p, f]
                now_full = (full | (occ & push)) & ~pop
                occ = push | full | (occ & ~pop)
                rec[slot, OCC + p, f], rec[slot, FULL + p, f] = occ, now_full
                tally.high[0, f] |= occ
                tally.high[1, f] |= now_full
            left |= occ
        planes.active[f] = (planes.active[f] | bit) if left != ZERO else (planes.active[f] & ~bit)
        if entered & bit != ZERO:
            planes.ramp[slot * sets[N_WORDS] + f] = ZERO
    if entered != ZERO:
        planes.from_ramp[f] = ZERO
