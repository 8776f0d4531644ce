"""A vector operation that touches the fabric or a FIFO, step by step; and how every operation ends.

A step moves one wavelet (SIMD: up to two).
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm import arithmetic as A
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.arithmetic import element
from wse_sim.fabric.vm.memory import load, next_address, store
from wse_sim.fabric.vm.queues import head_meta, push, take, visible
from wse_sim.fabric.vm.watch import look_at_words, sent_by
from wse_sim.jit import inlined_kernel

_TERMINATE, _ON_ACTIVATE, _ON_UNBLOCK = (int(k) for k in list(O.OnControl)[1:])
_ADDC16 = A.ADDC16
DONE = 16


@inlined_kernel
def finish(c, k, m):
    """An operation is complete: its task is activated or unblocked, DSRs keep their addresses, the thread is free."""
    th, core = m.threads[k, c], m.core
    if th[S.T_ACTIVATE] >= 0:
        core[c, S.ACTIVE] |= np.int64(1) << np.int64(th[S.T_ACTIVATE])
    if th[S.T_UNBLOCK] >= 0:
        core[c, S.BLOCKED] &= ~(np.int64(1) << np.int64(th[S.T_UNBLOCK]))
    for place in range(3):
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        number = np.int64(th[o + S.P_DSR])
        if number >= 0 and th[o + S.P_FORM] == S.MEMORY:
            row = m.dsr_row[c, number]
            if row >= 0 and m.loads[row, O.L_SAVE_ADDRESS] != 0:
                m.dsr[c, number] = (m.dsr[c, number] & ~(np.int64(0xFFFF) << 4)) | (
                    (np.int64(th[o + S.P_ADDRESS]) & 0xFFFF) << 4
                )
        zero = (th[S.T_FLAGS] & S.FLAG_ZERO0 != 0 and place == 1) or (
            th[S.T_FLAGS] & S.FLAG_ZERO1 != 0 and place == 2
        )
        if zero and th[o + S.P_FORM] == S.MEMORY:
            width, address = np.int64(m.vop[th[S.T_OP] - 1, place]), np.int64(th[o + S.P_START])
            th[o + S.P_C0], th[o + S.P_C1], th[o + S.P_C2], th[o + S.P_C3] = 0, 0, 0, 0
            for _ in range(th[S.T_DONE]):
                store(m.memory, c * m.sets[S.WORDS], address, width, np.int64(0))
                address = next_address(
                    th[o + S.P_KIND], address, np.int64(th[o + S.P_STRIDE]), th, o, m.shapes, m.rings
                )
    if k == 0:
        one = th[S.T_DONE] == 1 and th[S.OPERAND0 + S.P_FORM] == S.MEMORY
        core[c, S.LAST_RESULT] = 1 + np.int64(th[S.OPERAND0 + S.P_START]) if one else 0
        core[c, S.MODE] = S.RUN
        pc = core[c, S.PC]
        target = np.int64(m.code[pc * 4 + 1])
        if target >= 0:
            m.regs[c * m.sets[S.REGISTERS] + core[c, S.WINDOW] + target] = 0 if th[S.T_RESULT] == 0 else 1
        core[c, S.PC] = pc + 1
    else:
        core[c, S.LIVE] &= ~(np.int64(1) << k)
    th[S.T_OP] = 0


@inlined_kernel
def fifo_event(c, row, column, flag, core, fifo, fifos):
    """The first push after an empty event, or pop after a full one, activates the FIFO's task."""
    if fifo[c, row, flag] != 0:
        fifo[c, row, flag] = 0
        task = fifos[core[c, S.CLASS], row, column]
        if task >= 0:
            core[c, S.ACTIVE] |= np.int64(1) << np.int64(task)


@inlined_kernel
def task_takes(c, q, th, m):
    """Return whether the control wavelet at the head of queue `q` starts a task, if the operation has no
    action for it."""
    word = np.int64(m.iq_word[q, c, m.iq_head[q, c]])
    cls = m.core[c, S.CLASS]
    task = (word >> 16) & 63
    return (
        th[S.T_ON_CONTROL] == 0
        and m.task_table[cls, task, S.E_ENTRY] >= 0
        and m.task_table[cls, task, S.E_KIND] == S.KIND_CONTROL
    )


@inlined_kernel
def on_control(c, th, core):
    """A control wavelet has come: the operation ends, if its options state this, and a task is activated or unblocked."""
    action = th[S.T_ON_CONTROL]
    if action == _ON_ACTIVATE:
        core[c, S.ACTIVE] |= np.int64(1) << np.int64(th[S.T_CONTROL_TASK])
    elif action == _ON_UNBLOCK:
        core[c, S.BLOCKED] &= ~(np.int64(1) << np.int64(th[S.T_CONTROL_TASK]))
    return DONE if action != 0 else S.BUSY


@inlined_kernel
def local_element(c, place, o, width, th, m):
    """Raw bits of the next element of a source in memory, a FIFO or a register; -1 after a fault."""
    base, words = c * m.sets[S.WORDS], m.sets[S.WORDS]
    form = th[o + S.P_FORM]
    if form == S.MEMORY:
        address = np.int64(th[o + S.P_ADDRESS])
        if address < 0 or address + width > words:
            m.core[c, S.FAULT], m.core[c, S.FAULT_A], m.core[c, S.FAULT_PC] = (
                S.F_ADDRESS,
                address,
                th[S.T_PC],
            )
            return np.int64(-1)
        if m.sets[S.WATCH] != 0:
            look_at_words(c, m.size[S.CLOCK], th[S.T_PC], address, width, False, m)
        v = load(m.memory, base, address, width)
        if place < 3:
            th[o + S.P_ADDRESS] = np.int32(
                next_address(
                    th[o + S.P_KIND], address, np.int64(th[o + S.P_STRIDE]), th, o, m.shapes, m.rings
                )
            )
    elif form == S.FIFO:
        row = np.int64(th[o + S.P_ROW])
        cls = m.core[c, S.CLASS]
        size, start = np.int64(m.fifos[cls, row, 2]), np.int64(m.fifos[cls, row, 0])
        v = load(m.memory, base, start + size * np.int64(m.fifo[c, row, 0]), min(size, width))
        m.fifo[c, row, 0] = (m.fifo[c, row, 0] + 1) % max(1, m.fifos[cls, row, 1] // m.fifos[cls, row, 2])
        m.fifo[c, row, 1] -= 1
        fifo_event(c, row, 4, 3, m.core, m.fifo, m.fifos)
    else:
        v = np.int64(np.uint32(th[o + S.P_VALUE])) & ((np.int64(1) << (16 * width)) - 1)
    return v


@inlined_kernel
def keep_element(c, width_d, w, th, m):
    """Write an element of the destination into memory or a FIFO; False after a fault."""
    base, words, d = c * m.sets[S.WORDS], m.sets[S.WORDS], S.OPERAND0
    form = th[d + S.P_FORM]
    if form == S.MEMORY:
        address = np.int64(th[d + S.P_ADDRESS])
        if address < 0 or address + width_d > words:
            m.core[c, S.FAULT], m.core[c, S.FAULT_A], m.core[c, S.FAULT_PC] = S.F_ADDRESS, address, th[S.T_PC]
            return False
        if m.sets[S.WATCH] != 0:
            look_at_words(c, m.size[S.CLOCK], th[S.T_PC], address, width_d, True, m)
        store(m.memory, base, address, width_d, w)
        th[d + S.P_ADDRESS] = np.int32(
            next_address(th[d + S.P_KIND], address, np.int64(th[d + S.P_STRIDE]), th, d, m.shapes, m.rings)
        )
    else:
        row = np.int64(th[d + S.P_ROW])
        cls = m.core[c, S.CLASS]
        size, start = np.int64(m.fifos[cls, row, 2]), np.int64(m.fifos[cls, row, 0])
        place_in = (np.int64(m.fifo[c, row, 0]) + np.int64(m.fifo[c, row, 1])) % max(
            1, np.int64(m.fifos[cls, row, 1]) // size
        )
        if m.sets[S.WATCH] != 0:
            look_at_words(c, m.size[S.CLOCK], th[S.T_PC], start + size * place_in, size, True, m)
        store(m.memory, base, start + size * place_in, min(size, width_d), w)
        m.fifo[c, row, 1] += 1
        fifo_event(c, row, 3, 2, m.core, m.fifo, m.fifos)
    return True


@inlined_kernel
def room(c, k, n_words, simd, ended, th, m):
    """Room for the destination: BUSY or what the operation waits for, the words that fit, and whether a full FIFO ends it."""
    state, d = S.BUSY, S.OPERAND0
    if th[d + S.P_FORM] == S.OUTPUT:
        q = np.int64(th[d + S.P_QUEUE])
        free = np.int64(m.out_depth[q]) - np.int64(m.oq_count[q, c])
        if free < n_words and simd == 3 and free == 1:
            n_words = np.int64(1)
        if free < n_words:
            state = S.WAIT_OUTPUT
            if th[S.T_FLAGS] & S.FLAG_FIFO == 0:
                m.core[c, S.WAITS_ROOM] |= np.int64(1) << k  # until a word leaves
    elif th[d + S.P_FORM] == S.FIFO:
        row = np.int64(th[d + S.P_ROW])
        cls = m.core[c, S.CLASS]
        if (m.fifo[c, row, 1] + 1) * m.fifos[cls, row, 2] > m.fifos[cls, row, 1]:
            m.fifo[c, row, 3] = 1
            state = S.WAIT_OUTPUT
            if k == 0 and not ended:
                ended, th[S.T_RESULT], th[S.T_REST] = True, 0, 0
    return state, n_words, ended


@inlined_kernel
def send_word(c, word, flag, t, th, m):
    """Write a word into the output queue of the destination."""
    queue, slot = np.int64(th[S.OPERAND0 + S.P_QUEUE]), np.int64(th[S.OPERAND0 + S.P_SLOT])
    push(c, queue, slot, word, flag, t, m)
    if m.sets[S.WATCH] != 0:
        sent_by(c, t, th[S.T_PC], queue, m)


@inlined_kernel
def charge(th, rest, n):
    """Cycles of a step of `n` of `rest` elements; DONE if it is the last one and takes one cycle, else BUSY."""
    cost = np.int64(th[S.T_MILLI]) + np.int64(th[S.T_COST]) * n
    cycles = max(np.int64(1), cost // 1000)
    th[S.T_MILLI] = np.int32(max(np.int64(0), cost - 1000 * cycles))
    th[S.T_LEFT] = np.int32(cycles - 1)
    th[S.T_DONE] += np.int32(n)
    if th[S.T_ENDLESS] == 0:
        th[S.T_REST] = np.int32(rest - n)
        if cycles == 1 and rest == n and th[S.T_FLAGS] & S.FLAG_STAYS == 0:
            return DONE
    return S.BUSY


@inlined_kernel
def is_through(th):
    """True if an operation has no element left and waits for no control wavelet."""
    return th[S.T_REST] == 0 and th[S.T_ENDLESS] == 0 and th[S.T_FLAGS] & S.FLAG_STAYS == 0


@inlined_kernel
def step(c, k, t, m):
    """One issue cycle of thread `k`: BUSY, DONE (BUSY, and the operation is complete), or what it waits for."""
    th, core = m.threads[k, c], m.core
    is_sync = k == 0
    if th[S.T_LEFT] > 0:
        th[S.T_LEFT] -= 1
        return DONE if th[S.T_LEFT] == 0 and is_through(th) else S.BUSY
    op = np.int64(th[S.T_OP]) - 1
    rest = np.int64(th[S.T_REST]) if th[S.T_ENDLESS] == 0 else np.int64(1 << 30)
    flags = np.int64(th[S.T_FLAGS])
    simd = (flags >> 6) & 3
    per_word = np.int64(2) if simd != 0 else np.int64(1)
    n_words = np.int64(2) if simd >= 2 and rest > 2 else np.int64(1)
    ended = rest == 0
    state = S.BUSY
    is_control = False
    d, width_d = S.OPERAND0, np.int64(m.vop[op, 0])
    for place in range(1, 3):
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        form = th[o + S.P_FORM]
        if form == S.INPUT:
            q = np.int64(th[o + S.P_QUEUE])
            n = visible(c, q, t, m.iq_count, m.iq_last)
            if n > 0:
                meta = head_meta(c, q, m.iq_meta, m.iq_head)
                if th[o + S.P_SLOT] >= 0 and (meta & 63) != th[o + S.P_SLOT]:
                    n = np.int64(0)  # a word of another color heads the queue
                elif meta >> 6 == S.CONTROL_WORD:
                    if not is_control and state == S.BUSY:
                        if task_takes(c, q, th, m):
                            n = np.int64(0)  # the task takes it
                        elif th[S.T_ON_CONTROL] != 0:  # without an action it is an element as any other
                            is_control = True
                            if not ended:  # a full operation leaves it to the next one
                                take(c, q, m.iq_head, m.iq_word, m.iq_count, m.in_depth, m.core)
            if is_control:
                break
            if n < n_words and simd == 3 and n == 1:
                n_words = np.int64(1)
            if n < n_words:
                state = S.WAIT_INPUT
                alone = th[S.OPERAND0 + (3 - place) * S.OPERAND_FIELDS + S.P_FORM] != S.INPUT
                if alone and m.iq_count[q, c] == 0 and th[S.T_FLAGS] & S.FLAG_FIFO == 0:
                    core[c, S.WAITS_INPUT] |= np.int64(1) << k  # until a word comes
        elif form == S.FIFO:
            row = np.int64(th[o + S.P_ROW])
            if m.fifo[c, row, 1] == 0:
                m.fifo[c, row, 2] = 1
                state = S.WAIT_INPUT
                if is_sync and not ended:
                    ended, th[S.T_RESULT], th[S.T_REST] = True, 0, 0
    if is_control:
        return on_control(c, th, core)
    if ended and flags & S.FLAG_STAYS != 0 and state == S.WAIT_INPUT:
        return state
    if state == S.BUSY:
        state, n_words, ended = room(c, k, n_words, simd, ended, th, m)
    if ended:
        return DONE
    if state != S.BUSY:
        return state
    n = min(rest, per_word * n_words)
    out, word_a, word_b = np.int64(0), np.int64(0), np.int64(0)
    for i in range(n):
        half = i % per_word
        x, y, z = np.int64(0), np.int64(0), np.int64(0)
        for place in range(1, 4):
            o = S.OPERAND0 + place * S.OPERAND_FIELDS
            form = th[o + S.P_FORM]
            if form == S.NOTHING:
                continue
            width = np.int64(m.vop[op, place])
            if form == S.INPUT:
                if half == 0:
                    word = take(
                        c, np.int64(th[o + S.P_QUEUE]), m.iq_head, m.iq_word, m.iq_count, m.in_depth, m.core
                    )
                    if place == 1:
                        word_a = word
                    else:
                        word_b = word
                word = word_a if place == 1 else word_b
                v = word if width == 2 else (word >> (16 * half)) & 0xFFFF
            else:
                v = local_element(c, place, o, width, th, m)
                if v < 0:
                    return S.BUSY
            if place == 1:
                x = v
            elif place == 2:
                y = v
            else:
                z = v
        if op == _ADDC16:
            w = x + y + np.int64(th[S.T_CARRY])
            th[S.T_CARRY] = np.int32((w >> 16) & 1)
            w &= 0xFFFF
        else:
            w = element(op, np.int64(m.vop[op, A.HALF]), x, y, z)
        form = th[d + S.P_FORM]
        if form == S.MEMORY or form == S.FIFO:
            if not keep_element(c, width_d, w, th, m):
                return S.BUSY
        elif form == S.OUTPUT:
            if width_d == 2:
                out = w
            else:
                out |= w << (16 * half)
                if flags & S.FLAG_WAVELET_INDEX and th[S.T_INDEX] >= 0 and simd == 0:
                    out |= np.int64(th[S.T_INDEX]) << 16
            if half == per_word - 1 or i == n - 1:
                flag = S.CONTROL_WORD if flags & S.FLAG_CONTROL else S.DATA_WORD
                if flags & S.FLAG_ADVANCE and i == rest - 1:
                    flag = S.ADVANCE_WORD
                send_word(c, out, flag, t, th, m)
                out = np.int64(0)
    return charge(th, rest, n)
