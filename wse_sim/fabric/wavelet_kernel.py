"""Jitted loop of the wavelet executor: bit planes of 64 routers, cores as an active list with a timing wheel.

One record of uint64 words per (word of 64 routers, slot) in `rec`: occupied and full bits of the five input queues, which
of the two cells is the head, pops and pushes of this cycle, route planes, full core queues.  With n words in a queue and h
its head cell, a push fills cell h xor (n = 1).  A cycle is: rings push, words with something to move decide and
move payload, then pops and pushes become the new state, then the cores that are awake take their cycle.

Word f of row r and word column w is f = (r + 1) stride + w + 1 with stride = words per row + 1: neighbours are f - stride,
f + stride, f - 1, f + 1, and the one padding word of a row is the left end of the next.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric import core as C
from wse_sim.fabric import oracle as R
from wse_sim.fabric import program as P
from wse_sim.fabric.bits import bare_kernel, inlined_kernel, trailing_zeros
from wse_sim.fabric.core import core_cycle, is_finished, leaf_push, ring_head, ring_pop
from wse_sim.fabric.oracle import advanced, popped_payload

# Fields of one record.
OCC, FULL, HEAD, POP, PUSH, RX = range(6)  # of port p: + 8 p, one cache line per port
TX, LEAF_FULL, PORTS = 40, 45, 46  # TX of port q: + q; PORTS: inputs in any position, outputs << 5
RECORD = 48
RAMP = 4
BUSY, FAULT, STALLED_OUT = C.BUSY, C.FAULT, C.STALLED_OUT
STATE, SINCE, COUNTS, RECEIVED, CLASS, MAIN = C.STATE, C.SINCE, C.COUNTS, C.RECEIVED, C.CLASS, C.MAIN
RUNNING, HALTED, NO_MAIN = C.MAIN_RUNNING, C.MAIN_HALTED, C.MAIN_NONE
THREAD0, THREADS, LEAF0, LEAF_WIDTH, DEPTH0 = C.THREAD0, C.THREADS, C.LEAF0, C.LEAF_WIDTH, C.DEPTH0
THREAD_FIELDS, INSTR, LEFT, NO_INSTR, RING_COUNT = C.THREAD_FIELDS, C.INSTR, C.LEFT, C.NO_INSTR, C.RING_COUNT
R_WORD, R_META, Q_COUNT, PRIORITY = C.R_WORD, C.R_META, C.Q_COUNT, P.PRIORITY
FLAG_CONTROL, FLAG_LOCAL, ADVANCE = P.FLAG_CONTROL, P.FLAG_ADVANCE_LOCAL, int(P.Command.ADVANCE)
DONE, STUCK, TWO_INPUTS, OUT_OF_BOUNDS, TOO_LONG = R.DONE, R.STUCK, R.TWO_INPUTS, R.OUT_OF_BOUNDS, R.TOO_LONG

(COLS, SLOTS, STRIDE, ROUND_ROBIN, STRICT, MAX_CYCLES, BIN, PAYLOAD, CONTROL, N_CORES) = range(10)
WHEEL = 1024
COUNTER_BITS = 12
ASLEEP, LISTED, TIMED = 0, 1, 2
ONE, ZERO, TOP = np.uint64(1), np.uint64(0), np.uint64(63)
IN_PORTS, FIVE = np.uint64(31), np.uint64(5)


def router_scratch(n_f: int) -> tuple[np.ndarray, ...]:
    """Work arrays of the router phase: active and touched slots per word, lists of words, one word's slots."""
    return (
        np.zeros(n_f, np.uint64), np.zeros(n_f, np.uint64), np.zeros(n_f, np.uint8), np.zeros(n_f, np.int64),
        np.zeros(n_f, np.int64), np.zeros(64, np.int64), np.zeros(64, np.uint64), np.zeros((64, 5), np.uint64),
        np.zeros(64, np.uint32),
    )  # fmt: skip


def core_scratch(n: int) -> tuple[np.ndarray, ...]:
    """Work arrays of the core phase: awake, lists of cores and rings, wheel, its chain, wake times, last arrivals."""
    lists = (np.zeros(n, np.int32) for _ in range(3))
    return (
        np.zeros(n, np.uint8), *lists, np.full(WHEEL, -1, np.int64), np.full(n, -1, np.int32),
        np.zeros(n, np.int64), np.full(n, -1, np.int32),
    )  # fmt: skip


@inlined_kernel
def count_bits(counters, totals, f, port, bits, first_core):
    """Add `bits` to 64 counters held as bit slices; what overflows goes to `totals`."""
    k = 0
    while bits != ZERO and k < COUNTER_BITS:
        old = counters[f, port, k]
        counters[f, port, k] = old ^ bits
        bits = old & bits
        k += 1
    while bits != ZERO:
        totals[first_core[f] + trailing_zeros(bits), port] += np.int64(1) << COUNTER_BITS
        bits &= bits - ONE


@bare_kernel
def flush_counters(counters, totals, first_core):
    """Add the bit slices to `totals`."""
    for f in range(counters.shape[0]):
        for port in range(5):
            for k in range(COUNTER_BITS):
                bits = counters[f, port, k]
                while bits != ZERO:
                    totals[first_core[f] + trailing_zeros(bits), port] += np.int64(1) << k
                    bits &= bits - ONE


@inlined_kernel
def touch(f, slot, touched, touched_list, n_touched):
    """Remember that (f, slot) changes in this cycle; returns the new length of the list."""
    if touched[f] == ZERO:
        touched_list[n_touched] = f
        n_touched += 1
    touched[f] |= ONE << np.uint64(slot)
    return n_touched


@bare_kernel
def arbitrate(
    f, bits, slots, n, eligible, rec, pointer, first_core, sets, n_slots
):  # fmt: skip
    """Round robin of the routers in `bits` that may need it; clears the losers in `eligible`."""
    once, twice = ZERO, ZERO
    for k in range(n):
        twice |= once & eligible[k]
        once |= eligible[k]
    for k in range(n):
        single = eligible[k] & bits & ~twice
        while single != ZERO:
            pointer[first_core[f] + trailing_zeros(single)] = np.uint8((slots[k] + 1) % n_slots)
            single &= single - ONE
    bits &= twice
    while bits != ZERO:
        b = np.uint64(trailing_zeros(bits))
        bits &= bits - ONE
        core = first_core[f] + np.int64(b)
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
            o = slots[i] * RECORD + TX
            tx = np.int64(0)
            for q in range(5):
                tx |= np.int64((rec[f, o + q] >> b) & ONE) << q
            if tx & taken:
                eligible[i] &= ~(ONE << b)
            else:
                taken |= tx
                pointer[core] = np.uint8((slots[i] + 1) % n_slots)


@inlined_kernel
def move_lanes(cells0, cells1, source, target, bits, head, at, lanes):
    """Copy the head words of 64 queues from `source` to the free cells `at` of 64 queues from `target`."""
    if bits & (bits - ONE) == ZERO:  # one word
        i = trailing_zeros(bits)
        b = np.uint64(i)
        v = cells1[source + i] if (head >> b) & ONE != ZERO else cells0[source + i]
        if (at >> b) & ONE != ZERO:
            cells1[target + i] = v
        else:
            cells0[target + i] = v
        return
    s0, s1 = cells0[source : source + 64], cells1[source : source + 64]
    d0, d1 = cells0[target : target + 64], cells1[target : target + 64]
    for i in range(64):
        a, b = s0[i], s1[i]  # both are loaded before the choice: a choice between loads becomes a slow gather
        lanes[i] = b if (head >> np.uint64(i)) & ONE != ZERO else a
    low, high = bits & ~at, bits & at
    if low != ZERO:
        for i in range(64):
            d, v = d0[i], lanes[i]
            d0[i] = v if (low >> np.uint64(i)) & ONE != ZERO else d
    if high != ZERO:
        for i in range(64):
            d, v = d1[i], lanes[i]
            d1[i] = v if (high >> np.uint64(i)) & ONE != ZERO else d


@bare_kernel
def set_route_bits(rec, f, b, slot, rx, tx):
    """Write the current switch position of one router into the route planes."""
    mask = ONE << b
    for p in range(5):
        o = slot * RECORD
        rec[f, o + RX + 8 * p] = (rec[f, o + RX + 8 * p] & ~mask) | (mask if (rx >> p) & 1 else ZERO)
        rec[f, o + TX + p] = (rec[f, o + TX + p] & ~mask) | (mask if (tx >> p) & 1 else ZERO)


@bare_kernel
def fill_routes(rec, route, position, cfg_rx, cfg_tx, shared, core_f, cols):
    """Route planes of the initial positions, and the routers where two slots may want one output."""
    for core in range(route.shape[1]):
        b = np.uint64((core % cols) & 63)
        seen = np.int64(0)
        for slot in range(route.shape[0]):
            cfg = route[slot, core]
            if cfg == 0:
                continue
            k = position[slot, core]
            set_route_bits(rec, core_f[core], b, slot, np.int64(cfg_rx[cfg, k]), np.int64(cfg_tx[cfg, k]))
            inputs, outputs = np.int64(0), np.int64(0)
            for j in range(4):
                inputs |= np.int64(cfg_rx[cfg, j])
                outputs |= np.int64(cfg_tx[cfg, j])
            rec[core_f[core], slot * RECORD + PORTS] |= np.uint64(inputs | (outputs << 5))
            if outputs & seen:
                shared[core_f[core]] |= ONE << b
            seen |= outputs


@bare_kernel
def unseen_controls(f, slot, bits, plane, chosen, n, rec, cells0, cells1, flags0, flags1):
    """Routers of `bits` whose head word is a control wavelet that no core sees: it needs no room in the core."""
    unseen = ZERO
    while bits != ZERO:
        b = np.uint64(trailing_zeros(bits))
        bits &= bits - ONE
        ports = rec[f, slot * RECORD + PORTS] & IN_PORTS
        while ports != ZERO:
            p = trailing_zeros(ports)
            ports &= ports - ONE
            if (chosen[n, p] >> b) & ONE != ZERO:
                i = (slot * 5 + p) * plane + f * 64 + np.int64(b)
                second = (rec[f, slot * RECORD + HEAD + 8 * p] >> b) & ONE != ZERO
                flag = flags1[i] if second else flags0[i]
                word = np.int64(cells1[i] if second else cells0[i])
                if flag == FLAG_CONTROL and (word >> 24) & 1:
                    unseen |= ONE << b
    return unseen


@bare_kernel
def move_flagged(
    f, slot, p, bits, plane, cols, t, rec, cells0, cells1, flags0, flags1, first_core, core_f, route, position, cfg_rx,
    cfg_tx, cfg_positions, cfg_ring, cfg_pop, st, lay, fresh, awake, next_list, n_next,
):  # fmt: skip
    """Move the control and marked words among `bits`, one by one; returns them and the new length of the list."""
    o = slot * RECORD
    flagged = ZERO
    while bits != ZERO:
        b = np.uint64(trailing_zeros(bits))
        bits &= bits - ONE
        i = (slot * 5 + p) * plane + f * 64 + np.int64(b)
        second = (rec[f, o + HEAD + 8 * p] >> b) & ONE != ZERO
        flag = np.int64(flags1[i] if second else flags0[i])
        if flag == 0:
            continue
        flagged |= ONE << b
        word = np.int64(cells1[i] if second else cells0[i])
        core = first_core[f] + np.int64(b)
        cfg = route[slot, core]
        hidden = flag == FLAG_CONTROL and (word >> 24) & 1 == 1
        command = word & 3 if flag == FLAG_CONTROL else np.int64(ADVANCE)
        position[slot, core] = advanced(position[slot, core], cfg, command, cfg_positions, cfg_ring)
        if flag == FLAG_CONTROL:
            word = popped_payload(word, cfg_pop[cfg], command)
        onward = 0 if flag == FLAG_LOCAL else flag
        for q in range(5):
            if (rec[f, o + TX + q] >> b) & ONE == ZERO:
                continue
            if q == RAMP:
                if not hidden:
                    leaf_push(st[core], core, slot, word, flag if flag == FLAG_CONTROL else 0, t, lay)
                    if st[core, lay[LEAF0] + slot * lay[LEAF_WIDTH] + Q_COUNT] >= lay[DEPTH0 + slot]:
                        rec[f, o + LEAF_FULL] |= ONE << b
                    fresh[core] = np.int32(t)
                    n_next = wake_core(core, awake, next_list, n_next, st)
                continue
            other = core + (-cols if q == 0 else 1 if q == 1 else cols if q == 2 else -1)
            f2, b2, p2 = core_f[other], np.uint64((other % cols) & 63), (q + 2) % 4
            i2 = (slot * 5 + p2) * plane + f2 * 64 + np.int64(b2)
            if ((rec[f2, o + HEAD + 8 * p2] ^ rec[f2, o + OCC + 8 * p2]) >> b2) & ONE != ZERO:
                cells1[i2], flags1[i2] = np.uint32(word & 0xFFFFFFFF), onward
            else:
                cells0[i2], flags0[i2] = np.uint32(word & 0xFFFFFFFF), onward
        k = position[slot, core]  # for the next cycle: no other word looks at these planes
        set_route_bits(rec, f, b, slot, np.int64(cfg_rx[cfg, k]), np.int64(cfg_tx[cfg, k]))
    return flagged, n_next


@inlined_kernel
def wake_core(c, awake, run_list, n, st):
    """Put a sleeping core with a program on a list; returns its new length."""
    if awake[c] == ASLEEP and st[c, MAIN] != HALTED and st[c, MAIN] != NO_MAIN:
        awake[c] = LISTED
        run_list[n] = c
        n += 1
    return n


@inlined_kernel
def may_sleep_until_done(st, c, lay, code):
    """True if the main thread keeps the issue slot for several cycles and no microthread precedes it."""
    if st[c, lay[THREAD0] + INSTR] == NO_INSTR or st[c, lay[THREAD0] + LEFT] < 2:
        return False
    for k in range(1, lay[THREADS]):
        row = np.int64(st[c, lay[THREAD0] + k * THREAD_FIELDS + INSTR])
        if row != NO_INSTR and code[row, PRIORITY] < 2:
            return False
    return True


@bare_kernel
def add_busy(bins, c, first, last, width):
    """Busy cycles first .. last - 1 of a core into the time bins."""
    t = first
    while t < last and t // width < bins.shape[0]:
        end = min(last, (t // width + 1) * width)
        bins[t // width, c] += np.int32(end - t)
        t = end


@inlined_kernel
def account(st, c, t, bins, width):
    """Count the cycles since the core's last step as what it was then."""
    state = np.int64(st[c, STATE])
    if state == 0 or st[c, SINCE] >= t:
        return
    st[c, COUNTS + state - 1] += np.int32(t - st[c, SINCE])
    if state == BUSY and bins.shape[0] > 0:
        add_busy(bins, c, np.int64(st[c, SINCE]), t, width)


@bare_kernel
def loop(
    sets, rec, shared, first_core, core_f, route, position, cfg_rx, cfg_tx, cfg_positions, cfg_ring, cfg_pop, pointer,
    cells0, cells1, flags0, flags1, reads, st, lay, code, costs, params, tasks, class_tasks, buffers, arena,
    links, link_bits, blocked, blocked_bits, high, bins, outcome, router_scratch, core_scratch, wanted, granted, sent,
):  # fmt: skip
    """Run to the end; the contract is that of the oracle's step."""
    n_f, n_slots, stride, cols, n_cores = rec.shape[0], sets[SLOTS], sets[STRIDE], sets[COLS], sets[N_CORES]
    plane = n_f * 64
    active, touched, listed, work, touched_list, slots, eligible, chosen, lanes = router_scratch
    awake, run_list, next_list, rings, wheel, chain, wake_at, fresh = core_scratch
    n_work = 0
    n_run, n_rings, n_timed = 0, 0, 0
    for c in range(n_cores):
        if st[c, MAIN] == RUNNING:
            n_run = wake_core(c, awake, run_list, n_run, st)
    t = np.int64(0)
    while True:
        moved, pending = False, False
        n_touched, n_next = 0, 0
        # rings push into the routers
        kept = 0
        for j in range(n_rings):
            c = np.int64(rings[j])
            r = ring_head(st[c], c, t, lay)
            if r == 0:
                pending = True
            elif r > 0:
                slot, flag = np.int64(st[c, r + R_META]) & 255, np.int64(st[c, r + R_META]) >> 8
                f, b = core_f[c], np.uint64((c % cols) & 63)
                o = slot * RECORD
                if (rec[f, o + FULL + 8 * RAMP] >> b) & ONE == ZERO:
                    if sets[PAYLOAD]:
                        i = (slot * 5 + RAMP) * plane + f * 64 + np.int64(b)
                        at = ((rec[f, o + HEAD + 8 * RAMP] ^ rec[f, o + OCC + 8 * RAMP]) >> b) & ONE
                        word = np.uint32(np.int64(st[c, r + R_WORD]) & 0xFFFFFFFF)
                        if at != ZERO:
                            cells1[i] = word
                        else:
                            cells0[i] = word
                        if sets[CONTROL]:
                            if at != ZERO:
                                flags1[i] = flag
                            else:
                                flags0[i] = flag
                    rec[f, o + PUSH + 8 * RAMP] |= ONE << b
                    n_touched = touch(f, slot, touched, touched_list, n_touched)
                    ring_pop(st[c], c, lay)
                    moved = True
                    n_run = wake_core(c, awake, run_list, n_run, st)
            if st[c, RING_COUNT] > 0:
                rings[kept] = c
                kept += 1
        n_rings = kept
        # routers decide and move payload
        for j in range(n_work):
            f = work[j]
            here_rec = rec[f]
            n = 0
            todo = active[f]
            contested = shared[f]
            any_eligible = ZERO
            for q in range(5):
                wanted[q], granted[q] = ZERO, ZERO
            while todo != ZERO:
                slot = trailing_zeros(todo)
                todo &= todo - ONE
                o = slot * RECORD
                inputs, outputs = here_rec[o + PORTS] & IN_PORTS, here_rec[o + PORTS] >> FIVE
                here, two = ZERO, ZERO
                while inputs != ZERO:
                    p = trailing_zeros(inputs)
                    inputs &= inputs - ONE
                    a = here_rec[o + 8 * p] & here_rec[o + RX + 8 * p]
                    two |= here & a
                    here |= a
                    chosen[n, p] = a
                if here == ZERO:
                    continue
                if two != ZERO:
                    if sets[STRICT]:
                        core = first_core[f] + trailing_zeros(two)
                        if outcome[0] != TWO_INPUTS or core < outcome[2]:
                            outcome[0], outcome[1], outcome[2], outcome[3] = TWO_INPUTS, t, core, slot
                    rest = here
                    for k in range(5):
                        p = (t + k) % 5
                        if (here_rec[o + PORTS] >> np.uint64(p)) & ONE != ZERO:
                            chosen[n, p] &= rest
                            rest &= ~chosen[n, p]
                leaves, stop = ZERO, ZERO
                while outputs != ZERO:
                    q = trailing_zeros(outputs)
                    outputs &= outputs - ONE
                    out = here & here_rec[o + TX + q]
                    if out == ZERO:
                        continue
                    leaves |= out
                    wanted[q] |= out
                    if q == 0:
                        stop |= out & rec[f - stride, o + FULL + 16]
                    elif q == 1:
                        stop |= out & ((here_rec[o + FULL + 24] >> ONE) | (rec[f + 1, o + FULL + 24] << TOP))
                    elif q == 2:
                        stop |= out & rec[f + stride, o + FULL]
                    elif q == 3:
                        stop |= out & ((here_rec[o + FULL + 8] << ONE) | (rec[f - 1, o + FULL + 8] >> TOP))
                    else:
                        no_room = out & here_rec[o + LEAF_FULL]
                        if no_room != ZERO and sets[CONTROL]:
                            no_room &= ~unseen_controls(
                                f, slot, no_room, plane, chosen, n, rec, cells0, cells1, flags0, flags1
                            )
                        stop |= no_room
                go = leaves & ~stop
                eligible[n] = go
                slots[n] = slot
                any_eligible |= go
                n += 1
            if outcome[0] == TWO_INPUTS or n == 0:
                continue
            contested &= any_eligible
            if contested != ZERO:
                arbitrate(f, contested, slots, n, eligible, rec, pointer, first_core, sets, n_slots)
            if any_eligible != ZERO:
                moved = True
            for k in range(n):
                go, slot = eligible[k], slots[k]
                if go == ZERO:
                    continue
                o = slot * RECORD
                n_touched = touch(f, slot, touched, touched_list, n_touched)
                outputs = here_rec[o + PORTS] >> FIVE
                while outputs != ZERO:
                    q = trailing_zeros(outputs)
                    outputs &= outputs - ONE
                    out = go & here_rec[o + TX + q]
                    sent[q] = out
                    if out == ZERO:
                        continue
                    granted[q] |= out
                    if q == 0:
                        rec[f - stride, o + PUSH + 16] |= out
                        n_touched = touch(f - stride, slot, touched, touched_list, n_touched)
                    elif q == 1:
                        here_rec[o + PUSH + 24] |= out << ONE
                        if out >> TOP != ZERO:
                            rec[f + 1, o + PUSH + 24] |= ONE
                            n_touched = touch(f + 1, slot, touched, touched_list, n_touched)
                    elif q == 2:
                        rec[f + stride, o + PUSH] |= out
                        n_touched = touch(f + stride, slot, touched, touched_list, n_touched)
                    elif q == 3:
                        here_rec[o + PUSH + 8] |= out >> ONE
                        if out & ONE != ZERO:
                            rec[f - 1, o + PUSH + 8] |= ONE << TOP
                            n_touched = touch(f - 1, slot, touched, touched_list, n_touched)
                inputs = here_rec[o + PORTS] & IN_PORTS
                while inputs != ZERO:
                    p = trailing_zeros(inputs)
                    inputs &= inputs - ONE
                    plain = go & chosen[k, p]
                    if plain == ZERO:
                        continue
                    here_rec[o + POP + 8 * p] |= plain
                    source = (slot * 5 + p) * plane + f * 64
                    head = here_rec[o + HEAD + 8 * p]
                    if sets[CONTROL]:
                        flagged, n_next = move_flagged(
                            f, slot, p, plain, plane, cols, t, rec, cells0, cells1, flags0, flags1, first_core, core_f,
                            route, position, cfg_rx, cfg_tx, cfg_positions, cfg_ring, cfg_pop, st, lay, fresh, awake,
                            next_list, n_next,
                        )  # fmt: skip
                        plain &= ~flagged
                    outputs = here_rec[o + PORTS] >> FIVE
                    while outputs != ZERO:
                        q = trailing_zeros(outputs)
                        outputs &= outputs - ONE
                        out = plain & sent[q]
                        if out == ZERO:
                            continue
                        if q == RAMP:
                            while out != ZERO:
                                i = trailing_zeros(out)
                                b = np.uint64(i)
                                out &= out - ONE
                                core = first_core[f] + i
                                word = np.int64(0)
                                if sets[PAYLOAD]:
                                    word = np.int64(
                                        cells1[source + i]
                                        if (head >> b) & ONE != ZERO
                                        else cells0[source + i]
                                    )
                                leaf_push(st[core], core, slot, word, 0, t, lay)
                                if (
                                    st[core, lay[LEAF0] + slot * lay[LEAF_WIDTH] + Q_COUNT]
                                    >= lay[DEPTH0 + slot]
                                ):
                                    here_rec[o + LEAF_FULL] |= ONE << b
                                fresh[core] = np.int32(t)
                                n_next = wake_core(core, awake, next_list, n_next, st)
                            continue
                        if not sets[PAYLOAD]:
                            continue
                        if q == 0:
                            at = rec[f - stride, o + HEAD + 16] ^ rec[f - stride, o + OCC + 16]
                            target = (slot * 5 + 2) * plane + (f - stride) * 64
                        elif q == 1:
                            at = (here_rec[o + HEAD + 24] ^ here_rec[o + OCC + 24]) >> ONE
                            at |= (rec[f + 1, o + HEAD + 24] ^ rec[f + 1, o + OCC + 24]) << TOP
                            target = (slot * 5 + 3) * plane + f * 64 + 1
                        elif q == 2:
                            at = rec[f + stride, o + HEAD] ^ rec[f + stride, o + OCC]
                            target = slot * 5 * plane + (f + stride) * 64
                        else:
                            at = (here_rec[o + HEAD + 8] ^ here_rec[o + OCC + 8]) << ONE
                            at |= (rec[f - 1, o + HEAD + 8] ^ rec[f - 1, o + OCC + 8]) >> TOP
                            target = (slot * 5 + 1) * plane + f * 64 - 1
                        move_lanes(cells0, cells1, source, target, out, head, at, lanes)
                        if sets[CONTROL]:
                            move_lanes(flags0, flags1, source, target, out, head, at, lanes)
            for q in range(5):
                if granted[q] != ZERO:
                    count_bits(link_bits, links, f, q, granted[q], first_core)
                if wanted[q] & ~granted[q] != ZERO:
                    count_bits(blocked_bits, blocked, f, q, wanted[q] & ~granted[q], first_core)
        if outcome[0] == TWO_INPUTS:
            return
        # pops and pushes become the new state
        for j in range(n_touched):
            f = touched_list[j]
            here_rec = rec[f]
            todo = touched[f]
            touched[f] = ZERO
            once, twice = high[f, 0], high[f, 1]
            while todo != ZERO:
                slot = trailing_zeros(todo)
                todo &= todo - ONE
                o = slot * RECORD
                left = ZERO
                inputs = here_rec[o + PORTS] & IN_PORTS
                while inputs != ZERO:
                    p = trailing_zeros(inputs)
                    inputs &= inputs - ONE
                    occ, pop, push = (
                        here_rec[o + 8 * p],
                        here_rec[o + POP + 8 * p],
                        here_rec[o + PUSH + 8 * p],
                    )
                    if pop | push != ZERO:
                        full = here_rec[o + FULL + 8 * p]
                        twice |= (full | (occ & push)) & ~pop
                        here_rec[o + FULL + 8 * p] = (full | (occ & push)) & ~pop
                        here_rec[o + HEAD + 8 * p] ^= pop
                        occ = push | full | (occ & ~pop)
                        here_rec[o + 8 * p] = occ
                        here_rec[o + POP + 8 * p], here_rec[o + PUSH + 8 * p] = ZERO, ZERO
                        once |= occ
                    left |= occ
                if left != ZERO:
                    active[f] |= ONE << np.uint64(slot)
                else:
                    active[f] &= ~(ONE << np.uint64(slot))
            high[f, 0], high[f, 1] = once, twice
            if listed[f] == 0:
                listed[f] = 1
                work[n_work] = f
                n_work += 1
        if 2 * n_work > n_f:  # dense: in the order of memory
            kept = 0
            for f in range(n_f):
                if active[f] != ZERO:
                    work[kept] = f
                    kept += 1
                listed[f] = 1 if active[f] != ZERO else 0
        else:
            kept = 0
            for j in range(n_work):
                f = work[j]
                if active[f] != ZERO:
                    work[kept] = f
                    kept += 1
                else:
                    listed[f] = 0
        n_work = kept
        # cores
        if n_timed > 0:
            c = wheel[t % WHEEL]
            wheel[t % WHEEL] = -1
            while c >= 0:
                following = np.int64(chain[c])
                if wake_at[c] == t:
                    st[c, lay[THREAD0] + LEFT] = 1
                    awake[c] = LISTED
                    run_list[n_run] = c
                    n_run += 1
                    n_timed -= 1
                else:
                    chain[c] = wheel[t % WHEEL]
                    wheel[t % WHEEL] = c
                c = following
        for j in range(n_run):
            c = np.int64(run_list[j])
            awake[c] = ASLEEP
            account(st, c, t, bins, sets[BIN])
            received, ring = st[c, RECEIVED], st[c, RING_COUNT]
            state = core_cycle(st[c], c, t, lay, code, costs, params, tasks, class_tasks, buffers, arena)
            if state == FAULT:
                if outcome[0] != OUT_OF_BOUNDS or c < outcome[2]:
                    outcome[0], outcome[1], outcome[2], outcome[3] = OUT_OF_BOUNDS, t, c, 0
                continue
            if st[c, RECEIVED] != received:
                mask = reads[st[c, CLASS]]
                while mask != ZERO:
                    slot = trailing_zeros(mask)
                    mask &= mask - ONE
                    if st[c, lay[LEAF0] + slot * lay[LEAF_WIDTH] + Q_COUNT] < lay[DEPTH0 + slot]:
                        rec[core_f[c], slot * RECORD + LEAF_FULL] &= ~(ONE << np.uint64((c % cols) & 63))
            if ring == 0 and st[c, RING_COUNT] > 0:
                rings[n_rings] = c
                n_rings += 1
            st[c, STATE], st[c, SINCE] = np.int32(state), np.int32(t)
            if state == BUSY:
                moved = True
                if may_sleep_until_done(st, c, lay, code):
                    wake_at[c] = t + st[c, lay[THREAD0] + LEFT]
                    awake[c] = TIMED
                    chain[c] = wheel[wake_at[c] % WHEEL]
                    wheel[wake_at[c] % WHEEL] = c
                    n_timed += 1
                else:
                    n_next = wake_core(c, awake, next_list, n_next, st)
            elif fresh[c] == t:
                n_next = wake_core(c, awake, next_list, n_next, st)
        if outcome[0] == OUT_OF_BOUNDS:
            return
        if not moved and not pending and n_timed == 0:
            break
        run_list, next_list = next_list, run_list
        n_run = n_next
        t += 1
        if n_run == 0 and n_rings == 0 and n_timed > 0 and not moved:
            soonest = np.int64(1) << 62  # nothing can happen before the next timed core
            for k in range(WHEEL):
                c = wheel[k]
                while c >= 0:
                    soonest = min(soonest, wake_at[c])
                    c = np.int64(chain[c])
            for j in range(n_work):
                count_waiting(work[j], active, rec, blocked, first_core, soonest - t, wanted)
            t = soonest
        if t >= sets[MAX_CYCLES]:
            outcome[0], outcome[1] = TOO_LONG, t
            return
    outcome[0], outcome[1] = DONE, t
    for c in range(n_cores):
        account(st, c, t, bins, sets[BIN])
        if not is_finished(st[c], c, lay):
            outcome[0] = STUCK


@bare_kernel
def count_waiting(f, active, rec, blocked, first_core, cycles, wanted):
    """Blocked cycles of ports that words wait for while the clock jumps over a time in which nothing can move."""
    wanted[:] = ZERO
    todo = active[f]
    while todo != ZERO:
        o = trailing_zeros(todo) * RECORD
        todo &= todo - ONE
        here = ZERO
        for p in range(5):
            here |= rec[f, o + 8 * p] & rec[f, o + RX + 8 * p]
        for q in range(5):
            wanted[q] |= here & rec[f, o + TX + q]
    for q in range(5):
        bits = wanted[q]
        while bits != ZERO:
            blocked[first_core[f] + trailing_zeros(bits), q] += cycles
            bits &= bits - ONE
