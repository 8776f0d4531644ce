"""Routers for one cycle: every color of a router tries to move its oldest word; each output takes one word per cycle.

Rules and symbols as in the docstring of the program format: credits of the start of a cycle, atomic multicast, round robin over colors, a control
wavelet is routed with the old position and acts behind itself.  Every cell of a queue keeps a stamp (of a word: when it may leave; of a free
cell: when it may be filled), so nothing depends on the order in which routers are visited.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.bands import END, FIRST, POP, PUSH, enter_ghost, post
from wse_sim.fabric.vm.cores import advanced, turning
from wse_sim.fabric.vm.queues import deliver, enter, wake_now, wake_router
from wse_sim.fabric.vm.watch import delivered, entered, look_at_meeting
from wse_sim.jit import inlined_kernel

RAMP = 4
_RANGE, _COUNTER = int(O.FilterKind.RANGE), int(O.FilterKind.COUNTER)


@inlined_kernel
def neighbour(c, port, sets):
    """Core behind a mesh port, -1 beyond the edge."""
    cols, rows = sets[S.COLS], sets[S.ROWS]
    if port == 0:
        return c - cols if c >= cols else np.int64(-1)
    if port == 1:
        return c + 1 if c % cols < cols - 1 else np.int64(-1)
    if port == 2:
        return c + cols if c // cols < rows - 1 else np.int64(-1)
    return c - 1 if c % cols > 0 else np.int64(-1)


@inlined_kernel
def link_cycles(c, slot, port, sets, route, die_edges):
    """Cycles of the link that leaves router `c` by `port`."""
    length = sets[S.HOP]
    if sets[S.TURN_COST] > 0:
        if (turning(slot * sets[S.ROWS] * sets[S.COLS] + c, route) >> port) & 1:
            length += sets[S.TURN_COST]
    if (die_edges[c] >> port) & 1:
        length += sets[S.CROSSING]
    return length


@inlined_kernel
def swapped(rs, slot, port, rstate, slot_of, color_of):
    """Slot of a word on the other side of `port`; on its way to the core it is another one if both axes swap."""
    state = np.int64(rstate[rs])
    if port == RAMP:
        both = S.SWAP_X | S.SWAP_Y
        return np.int64(slot_of[color_of[slot] ^ 1]) if state & both == both else np.int64(slot)
    if (port & 1 and state & S.SWAP_X) or (port & 1 == 0 and state & S.SWAP_Y):
        return np.int64(slot_of[color_of[slot] ^ 1])
    return np.int64(slot)


@inlined_kernel
def has_room(e, capacity, t, sets, q_count, q_head, q_stamp):
    """1 if a word may enter queue `e` of this many cells now, 0 if it is full, -1 if a cell becomes free by the clock alone."""
    count = np.int64(q_count[e])
    if count >= capacity:
        return 0
    cells = sets[S.CAP]
    i = (np.int64(q_head[e]) + count + cells - capacity) % cells
    return -1 if q_stamp[e, i] > t else 1


@inlined_kernel
def popped(word, state, command, has_advanced):
    """Control word after a router has handled its first command: the list of 24 bits moves by one command.

    An ADVANCE that finds the switch at its end (no ring) advances nothing and is not popped: it is meant for the next router.
    """
    pop = (state >> 3) & 3
    if pop == 0 or (pop == 2 and not has_advanced) or (pop == 3 and not has_advanced and command != 0):
        return word
    rest = (((word >> 22) & 0xFF) | ((word & 0xFFFF) << 8)) >> 3
    return (word & 0xFFFFFFFF & (0x3F << 16)) | ((rest & 0xFF) << 22) | (rest >> 8)


@inlined_kernel
def filtered(rs, word, flag, count, filter_row, filters, filter_count):
    """True if the filter drops the word; with `count` its counters move."""
    if filter_row.shape[0] <= rs or filter_row[rs] < 0:
        return False
    row = np.int64(filter_row[rs])
    kind = filters[row, O.F_KIND]
    is_control = flag == S.CONTROL_WORD
    if kind == _RANGE:
        index = (word >> 16) & 0xFFFF
        return not is_control and (index < filters[row, O.F_MIN] or index > filters[row, O.F_MAX])
    now = filter_count[rs]
    passes = now <= filters[row, O.F_MAX_COUNTER]
    if kind != _COUNTER:
        passes = now <= filters[row, O.F_MAX_COUNTER] or now == filters[row, O.F_LIMIT2]
    if is_control and filters[row, O.F_FILTER_CONTROL] == 0 and filters[row, O.F_COUNT_CONTROL] == 0:
        passes = True
    elif is_control and filters[row, O.F_FILTER_CONTROL] != 0:
        passes = now == filters[row, O.F_MAX_COUNTER]
    if count:
        counts = filters[row, O.F_COUNT_CONTROL] if is_control else filters[row, O.F_COUNT_DATA]
        if counts != 0:
            filter_count[rs] = 0 if now >= filters[row, O.F_LIMIT1] else now + 1
    return not passes


@inlined_kernel
def input_port(c, slot, rs, rx, t, m):
    """The input whose word goes next, -1 for none; inputs with words; 2 if a word waits for the clock alone, else 0."""
    waits = np.int64(0)
    port, total = np.int64(-1), np.int64(0)
    for i in range(5):
        p = (t + i) % 5
        e = rs * 5 + p
        if m.q_count[e] == 0:
            continue
        total += 1
        if (rx >> p) & 1:
            if m.q_stamp[e, m.q_head[e]] > t:
                waits |= 2
            elif port < 0:
                port = np.int64(p)
            elif m.sets[S.STRICT]:
                if m.core[c, S.FAULT] == 0:
                    m.core[c, S.FAULT], m.core[c, S.FAULT_A] = S.F_TWO_INPUTS, m.color_of[slot]
                    m.size[S.FAULTS] += 1
    return port, total, waits


@inlined_kernel
def leave(c, slot, port, e, t, m, x):
    """The oldest word leaves queue `e` of an input; who waits for its cell is woken."""
    sets, head = m.sets, np.int64(m.q_head[e])
    length = np.int64(1)
    if port != RAMP:
        up = neighbour(c, port, m.sets)
        if up >= 0:
            length = link_cycles(up, slot, (port + 2) % 4, m.sets, m.route, m.die_edges)
    m.q_stamp[e, head] = t + length
    m.q_head[e] = np.uint8((head + 1) % sets[S.CAP])
    m.q_count[e] -= np.uint8(1)
    m.waiting[c] -= 1
    if port == RAMP:
        if m.ring_listed[c] == 0:  # a word may wait for this cell
            wake_now(c, m.size, m.listed, m.ready)
    else:
        up = neighbour(c, port, m.sets)
        if x.place[FIRST] <= up < x.place[END]:
            wake_router(up, m.size, m.router_listed, m.router_list)
        elif up >= 0:
            post(x, 0 if up < c else 1, POP, e, 0, 0, t + length)


@inlined_kernel
def outputs_ready(c, slot, rs, tx, word, flag, hidden, t, m, x):
    """Whether all outputs take a word; whether the ramp's filter drops it; the ramp's queue; 2 if an output waits for the clock alone, else 0."""
    sets, n_cores = m.sets, m.sets[S.ROWS] * m.sets[S.COLS]
    ready, waits = True, np.int64(0)
    dropped = False
    queue = np.int64(-1)
    for q in range(5):
        if (tx >> q) & 1 == 0:
            continue
        if m.port_free[c, q] > 1000 * t:
            ready = False
            waits |= 2
        if q == RAMP:
            dropped = hidden or filtered(rs, word, flag, False, m.filter_row, m.filters, m.filter_count)
            queue = np.int64(
                m.color_queue[c, swapped(rs, slot, np.int64(q), m.rstate, m.slot_of, m.color_of)]
            )
            if not dropped and (queue < 0 or m.iq_count[queue, c] >= m.in_depth[queue]):
                ready = False
            continue
        other = neighbour(c, q, m.sets)
        if other < 0:  # the host takes words beyond the edge as it asks for them; control wavelets end there
            if flag != S.CONTROL_WORD and (m.credit[slot, c] <= 0 or m.size[S.N_DRAIN] >= m.drained.shape[0]):
                ready = False
            continue
        there = swapped(rs, slot, np.int64(q), m.rstate, m.slot_of, m.color_of)
        f = (there * n_cores + other) * 5 + (q + 2) % 4
        cells = sets[S.CELLS] * link_cycles(c, slot, q, m.sets, m.route, m.die_edges)
        if x.place[FIRST] <= other < x.place[END]:
            room = has_room(f, cells, t, m.sets, m.q_count, m.q_head, m.q_stamp)
        else:
            room = has_room(f, cells, t, m.sets, x.room_count, x.room_head, x.room_stamp)
        if room <= 0:
            ready = False
            if room < 0:
                waits |= 2
    return ready, dropped, queue, waits


@inlined_kernel
def obey(c, slot, rs, word, flag, state, m):
    """The switch follows the command of a word; the word as it continues."""
    onward = word
    if flag == S.CONTROL_WORD:
        command = (word >> 22) & 3
        m.rstate[rs] = np.uint8(advanced(rs, command, m.rstate, m.route))
        onward = popped(word, state, command, command == 1 and (np.int64(m.rstate[rs]) & 3) != state & 3)
        if command == 3 and state & S.TORN == 0:
            m.core[c, S.TEARDOWNS] |= np.int64(1) << m.color_of[slot]
            m.core[c, S.TEARDOWN_OF] |= np.int64(1) << m.color_of[slot]
            wake_now(c, m.size, m.listed, m.ready)
    elif flag == S.ADVANCE_WORD:
        m.rstate[rs] = np.uint8(advanced(rs, np.int64(1), m.rstate, m.route))
    return onward


@inlined_kernel
def route_router(c, t, m, x):
    """One cycle of router `c`: 1 if a word moved, + 2 if one waits for the clock alone."""
    first_core, end_core = x.place[FIRST], x.place[END]
    sets, n_cores = m.sets, m.sets[S.ROWS] * m.sets[S.COLS]
    taken, wanted, result = np.int64(0), np.int64(0), np.int64(0)
    n_slots = sets[S.SLOTS]
    first = np.int64(m.pointer[c]) if sets[S.ROUND_ROBIN] else np.int64(0)
    occupied = m.occupied[c]
    for turn in range(n_slots):
        slot = first + turn
        if slot >= n_slots:
            slot -= n_slots
        if (occupied >> slot) & 1 == 0:
            continue
        rs = slot * n_cores + c
        state = np.int64(m.rstate[rs])
        pair = np.int64(m.route[rs * 4 + (state & 3)])
        rx, tx = pair & 31, pair >> 5
        port, total, waits = input_port(c, slot, rs, rx, t, m)
        result |= waits
        if total == 0:
            m.occupied[c] &= ~(np.int64(1) << slot)
            continue
        if port < 0 or tx == 0 or state & S.TORN:
            continue
        wanted |= tx
        e = rs * 5 + port
        head = np.int64(m.q_head[e])
        word, flag = np.int64(m.q_word[e, head]), np.int64(m.q_flag[e, head])
        hidden = flag == S.CONTROL_WORD and (word >> 24) & 1 != 0
        ready, dropped, queue, waits = outputs_ready(c, slot, rs, tx, word, flag, hidden, t, m, x)
        result |= waits
        ready = ready and (tx & taken) == 0
        if not ready:
            continue
        # the move
        result |= 1
        taken |= tx
        m.pointer[c] = np.uint8((slot + 1) % n_slots)
        if sets[S.WATCH] != 0:
            look_at_meeting(c, rs, port, rx, flag != S.DATA_WORD, m.q_from[e, head], t, m)
        leave(c, slot, port, e, t, m, x)
        onward = obey(c, slot, rs, word, flag, state, m)
        for q in range(5):
            if (tx >> q) & 1 == 0:
                continue
            m.links[c, q] += 1
            m.port_free[c, q] = max(m.port_free[c, q], 1000 * t - 999) + sets[S.WAVELET_MILLI]
            if q == RAMP:
                if not hidden:
                    filtered(rs, word, flag, True, m.filter_row, m.filters, m.filter_count)
                if not dropped:
                    deliver(
                        c,
                        queue,
                        swapped(rs, slot, np.int64(q), m.rstate, m.slot_of, m.color_of),
                        onward,
                        flag if flag == S.CONTROL_WORD else 0,
                        t,
                        m,
                    )
                    if sets[S.WATCH] != 0:
                        delivered(c, queue, m.q_from[e, head], m)
                continue
            other = neighbour(c, q, m.sets)
            if other < 0:
                if flag == S.CONTROL_WORD:
                    continue
                n = m.size[S.N_DRAIN]
                m.drained[n, 0], m.drained[n, 1], m.drained[n, 2], m.drained[n, 3] = c, slot, onward, t
                m.size[S.N_DRAIN] = n + 1
                m.credit[slot, c] -= 1
                m.size[S.OUTSTANDING] -= 1
                continue
            there = swapped(rs, slot, np.int64(q), m.rstate, m.slot_of, m.color_of)
            length = link_cycles(c, slot, q, m.sets, m.route, m.die_edges)
            f = (there * n_cores + other) * 5 + (q + 2) % 4
            kept = 0 if flag == S.ADVANCE_WORD else flag
            if other < first_core or other >= end_core:
                enter_ghost(x, f)
                post(x, 0 if other < c else 1, PUSH, f, onward, kept, t + length)
                continue
            enter(f, other, there, onward, kept, t + length, m)
            if sets[S.WATCH] != 0:
                entered(f, m.q_from[e, head], m)
    for q in range(5):
        if ((wanted & ~taken) >> q) & 1:
            m.blocked[c, q] += 1
    return result


@inlined_kernel
def send_ring(c, t, m):
    """One word of the output queues of core `c` enters its router, or goes to the host: 1 moved, + 2 waits for the clock, + 4 words are left.

    Queues take turns; a word may leave 2 T_R - 1 cycles after it was written.
    """
    result = np.int64(0)
    n_queues, n_cores = m.out_depth.shape[0], m.sets[S.ROWS] * m.sets[S.COLS]
    start = m.core[c, S.QUEUE_TURN]
    for turn in range(n_queues):
        q = (start + turn) % n_queues
        if m.oq_count[q, c] == 0:
            continue
        result |= 4
        if result & 1:
            continue
        head = np.int64(m.oq_head[q, c])
        if m.oq_time[q, c, head] + m.sets[S.RAMP_DELAY] > t:
            result |= 2
            continue
        meta = np.int64(m.oq_meta[q, c, head])
        slot, word = meta & 63, np.int64(m.oq_word[q, c, head])
        if m.host_slot[slot] != 0:
            if m.credit[slot, c] <= 0 or m.size[S.N_DRAIN] >= m.drained.shape[0]:
                continue
            n = m.size[S.N_DRAIN]
            m.drained[n, 0], m.drained[n, 1], m.drained[n, 2], m.drained[n, 3] = c, slot, word, t
            m.size[S.N_DRAIN] = n + 1
            m.credit[slot, c] -= 1
            m.size[S.OUTSTANDING] -= 1
        else:
            e = (slot * n_cores + c) * 5 + RAMP
            room = has_room(e, m.sets[S.CELLS], t, m.sets, m.q_count, m.q_head, m.q_stamp)
            if room <= 0:
                if room < 0:
                    result |= 2
                continue
            enter(e, c, slot, word, meta >> 6, t + 1, m)
            if m.sets[S.WATCH] != 0:
                entered(e, m.oq_from[q, c, head], m)
        m.oq_head[q, c] = (head + 1) % m.out_depth[q]
        m.oq_count[q, c] -= 1
        m.core[c, S.QUEUE_TURN] = (q + 1) % n_queues
        m.core[c, S.WAITS_ROOM] = 0
        result |= 1
        wake_now(c, m.size, m.listed, m.ready)
    return result
