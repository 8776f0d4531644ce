"""The decisions of 64 routers (one word) in a cycle and the resulting moves, for links of any length."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.wavelet.payload import copy_words, deliver, unseen_controls
from wse_sim.fabric.executors.wavelet.planes import (
    FULL,
    IN_PORTS,
    LEAF_FULL,
    MOVED,
    N_WORK,
    OCC,
    ONE,
    PENDING,
    POP,
    PUSH,
    RAMP,
    RECORD,
    ROUND_ROBIN,
    RX,
    SLOTS,
    STRICT,
    STRIDE,
    TOP,
    ZERO,
    count_bits,
    touch,
    tx_at,
)
from wse_sim.jit import helper_kernel, inlined_kernel, trailing_zeros

TWO_INPUTS = C.TWO_INPUTS
at = np.uint64  # of a signed index numba asks whether it is negative, a fifth of a dense cycle


@inlined_kernel
def full_behind(rec, f, o, q, stride):
    """Return routers whose output q leads to a queue without a free cell."""
    if q == 0:
        return rec[at(f - stride), at(o + FULL + 16)]
    if q == 1:
        return (rec[at(f), at(o + FULL + 24)] >> ONE) | (rec[at(f + 1), at(o + FULL + 24)] << TOP)
    if q == 2:
        return rec[at(f + stride), at(o + FULL)]
    return (rec[at(f), at(o + FULL + 8)] << ONE) | (rec[at(f - 1), at(o + FULL + 8)] >> TOP)


@inlined_kernel
def push_behind(f, slot, q, bits, stride, routers, size):
    """Mark a push into the queues behind output q of `bits`."""
    rec, o = routers.rec, slot * RECORD + PUSH
    if q == 0:
        rec[at(f - stride), at(o + 16)] |= bits
        touch(f - stride, slot, routers, size)
    elif q == 1:
        rec[at(f), at(o + 24)] |= bits << ONE
        if bits >> TOP != ZERO:
            rec[at(f + 1), at(o + 24)] |= ONE
            touch(f + 1, slot, routers, size)
    elif q == 2:
        rec[at(f + stride), at(o)] |= bits
        touch(f + stride, slot, routers, size)
    else:
        rec[at(f), at(o + 8)] |= bits >> ONE
        if bits & ONE != ZERO:
            rec[at(f - 1), at(o + 8)] |= ONE << TOP
            touch(f - 1, slot, routers, size)


@helper_kernel
def choose_inputs(f, slot, t, chosen, here, two, routers, strict, outcome):
    """Resolve routers of `two`, which have words at two inputs: an error, or the inputs alternate."""
    if strict:
        core = routers.first_core[f] + trailing_zeros(two)
        if outcome[0] != TWO_INPUTS or core < outcome[2]:
            outcome[0], outcome[1], outcome[2], outcome[3] = TWO_INPUTS, t, core, slot
    rest = here
    for k in range(5):
        p = (t + k) % 5
        if (routers.ports[f, slot] >> p) & 1:
            chosen[p] &= rest
            rest &= ~chosen[p]


@helper_kernel
def arbitrate(f, bits, n, routers, sets):
    """Round robin of the routers in `bits` that may need it; clears the losers among the eligible."""
    rec, eligible, slots, pointer = routers.rec, routers.eligible, routers.slots, routers.pointer
    once, twice = ZERO, ZERO
    for k in range(n):
        twice |= once & eligible[k]
        once |= eligible[k]
    for k in range(n):
        single = eligible[k] & bits & ~twice
        while single != ZERO:
            pointer[routers.first_core[f] + trailing_zeros(single)] = np.uint8((slots[k] + 1) % sets[SLOTS])
            single &= single - ONE
    bits &= twice
    while bits != ZERO:
        b = np.uint64(trailing_zeros(bits))
        bits &= bits - ONE
        core = routers.first_core[f] + np.int64(b)
        start = np.int64(pointer[core]) if sets[ROUND_ROBIN] else np.int64(0)
        first = 0  # slots[] ascends: find where the round starts
        while first < n and slots[first] < start:
            first += 1
        taken = np.int64(0)
        for k in range(n):
            i = first + k
            if i >= n:
                i -= n
            if (eligible[i] >> b) & ONE == ZERO:
                continue
            o = slots[i] * RECORD
            tx = np.int64(0)
            for q in range(5):
                tx |= np.int64((rec[f, o + tx_at(q)] >> b) & ONE) << q
            if tx & taken:
                eligible[i] &= ~(ONE << b)
            else:
                taken |= tx
                pointer[core] = np.uint8((slots[i] + 1) % sets[SLOTS])


@inlined_kernel
def decide(f, t, has_slow, routers, payload, size, sets, outcome):
    """Find the words that move: fills slots, chosen, eligible, wanted; returns the number of slots with words.

    With `has_slow` outputs of ``routers.slow`` are still busy with an earlier word.
    """
    record, wanted, chosen = routers.rec[at(f)], routers.wanted, routers.chosen
    n = 0
    todo = routers.active[at(f)]
    some = ZERO
    for q in range(5):
        wanted[q] = ZERO
    while todo != ZERO:
        slot = trailing_zeros(todo)
        todo &= todo - ONE
        o = slot * RECORD
        ports = np.int64(routers.ports[at(f), at(slot)])
        inputs, outputs = np.uint64(ports & IN_PORTS), np.uint64(ports >> 5)
        here, two = ZERO, ZERO
        while inputs != ZERO:
            p = trailing_zeros(inputs)
            inputs &= inputs - ONE
            a = record[at(o + OCC + 8 * p)] & record[at(o + RX + 8 * p)]
            two |= here & a
            here |= a
            chosen[at(n), at(p)] = a
        if here == ZERO:
            continue
        if two != ZERO:
            choose_inputs(f, slot, t, chosen[at(n)], here, two, routers, sets[STRICT], outcome)
        leaves, stop = ZERO, ZERO
        while outputs != ZERO:
            q = trailing_zeros(outputs)
            outputs &= outputs - ONE
            out = here & record[at(o + tx_at(q))]
            if out == ZERO:
                continue
            leaves |= out
            wanted[q] |= out
            if has_slow and out & routers.slow[q] != ZERO:
                stop |= out & routers.slow[q]
                size[PENDING] = 1
            if q != RAMP:
                stop |= out & full_behind(routers.rec, f, o, q, sets[STRIDE])
            else:
                no_room = out & record[at(o + LEAF_FULL)]
                if no_room != ZERO:
                    no_room &= ~unseen_controls(f, slot, no_room, chosen[at(n)], payload, routers, sets)
                stop |= no_room
        routers.eligible[at(n)] = leaves & ~stop
        routers.slots[at(n)] = slot
        some |= leaves & ~stop
        n += 1
    if outcome[0] == TWO_INPUTS or some == ZERO:
        return n
    size[MOVED] = 1
    if some & routers.shared[at(f)] != ZERO:
        arbitrate(f, some & routers.shared[at(f)], n, routers, sets)
    return n


@inlined_kernel
def transfer(f, n, t, routers, payload, cores, tally, size, sets):
    """Move the words of the `n` slots that :func:`decide` found; fills granted."""
    record, granted, counted = routers.rec[at(f)], routers.granted, routers.counted
    for q in range(5):
        granted[q], counted[q] = ZERO, ZERO
    for k in range(n):
        go, slot = routers.eligible[at(k)], routers.slots[at(k)]
        if go == ZERO:
            continue
        o = slot * RECORD
        is_tree = payload.copied[at(slot)] < 0
        touch(f, slot, routers, size)
        outputs = np.uint64(routers.ports[at(f), at(slot)] >> 5)
        while outputs != ZERO:
            q = trailing_zeros(outputs)
            outputs &= outputs - ONE
            out = go & record[at(o + tx_at(q))]
            if out == ZERO:
                continue
            granted[q] |= out
            if not is_tree:
                counted[q] |= out
            if q != RAMP:
                push_behind(f, slot, q, out, sets[STRIDE], routers, size)
            elif is_tree:
                deliver(f, slot, out, t, routers, payload, cores, size, sets)
        inputs = np.uint64(routers.ports[at(f), at(slot)] & IN_PORTS)
        while inputs != ZERO:
            p = trailing_zeros(inputs)
            inputs &= inputs - ONE
            pops = go & routers.chosen[at(k), at(p)]
            if pops == ZERO:
                continue
            record[at(o + POP + 8 * p)] = pops
            if not is_tree:
                copy_words(f, slot, p, pops, t, routers, payload, cores, size, sets)
    for q in range(5):
        if counted[q] != ZERO:
            count_bits(tally.link_bits, tally.links, f, q, counted[q], routers.first_core)


@inlined_kernel
def count_blocked(f, routers, tally):
    """Outputs that a word waited for and that carried none."""
    for q in range(5):
        bits = routers.wanted[q] & ~routers.granted[q]
        if bits != ZERO:
            count_bits(tally.blocked_bits, tally.blocked, f, q, bits, routers.first_core)


@helper_kernel
def count_waiting(f, cycles, routers, tally):
    """Blocked cycles of ports that words wait for while the clock jumps over a time in which nothing can move."""
    rec, wanted = routers.rec, routers.wanted
    wanted[:] = ZERO
    todo = routers.active[f]
    while todo != ZERO:
        o = trailing_zeros(todo) * RECORD
        todo &= todo - ONE
        here = ZERO
        for p in range(5):
            here |= rec[f, o + OCC + 8 * p] & rec[f, o + RX + 8 * p]
        for q in range(5):
            wanted[q] |= here & rec[f, o + tx_at(q)]
    for q in range(5):
        bits = wanted[q]
        while bits != ZERO:
            tally.blocked[routers.first_core[f] + trailing_zeros(bits), q] += cycles
            bits &= bits - ONE


@inlined_kernel
def settle_short(f, routers, tally, size):
    """Short links of two cells: pops and pushes of word f become its new state, and f comes on the worklist."""
    record = routers.rec[at(f)]
    todo = routers.touched[at(f)]
    routers.touched[at(f)] = ZERO
    some, full_once = tally.high[f, 0], tally.high[f, 1]
    while todo != ZERO:
        slot = trailing_zeros(todo)
        todo &= todo - ONE
        o = slot * RECORD
        left = ZERO
        inputs = np.uint64(routers.ports[at(f), at(slot)] & IN_PORTS)
        while inputs != ZERO:
            p = trailing_zeros(inputs)
            inputs &= inputs - ONE
            i = o + 8 * p
            occ, pop, push = record[at(i + OCC)], record[at(i + POP)], record[at(i + PUSH)]
            if pop | push != ZERO:
                full = record[at(i + FULL)]
                now_full = (full | (occ & push)) & ~pop
                occ = push | full | (occ & ~pop)
                full_once |= now_full
                some |= occ
                record[at(i + FULL)], record[at(i + OCC)] = now_full, occ
                record[at(i + POP)], record[at(i + PUSH)] = ZERO, ZERO
            left |= occ
        if left != ZERO:
            routers.active[at(f)] |= ONE << np.uint64(slot)
        else:
            routers.active[at(f)] &= ~(ONE << np.uint64(slot))
    tally.high[f, 0], tally.high[f, 1] = some, full_once
    if routers.listed[at(f)] == 0:
        routers.listed[at(f)] = 1
        routers.work[size[N_WORK]] = f
        size[N_WORK] += 1
