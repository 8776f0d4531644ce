"""Vector operations: operands from DSDs, DSRs and registers; at once if they touch memory alone, else step by step.

A step moves one wavelet (SIMD: up to two).  Length of an operation: the first one that is not zero of source 0, source 1, destination; without
any, 1.  A length without end (0x7fff of a fabric DSD) gives way to the partner's.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.values import bits_f32, f32_bits
from wse_sim.fabric.vm import arithmetic as A
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.arithmetic import element, s16
from wse_sim.fabric.vm.queues import head_meta, push, take, visible
from wse_sim.fabric.vm.scalar import shape_total
from wse_sim.jit import helper_kernel, inlined_kernel

_DSD, _DSR, _SCALAR, _POINTER, _NO_FORM = (
    int(f) for f in (O.Form.DSD, O.Form.DSR, O.Form.SCALAR, O.Form.POINTER, O.Form.NONE)
)
_MEM1D, _MEM4D, _FABIN, _FABOUT, _CIRCBUF, _FIFO = (int(k) for k in list(O.DsdKind)[1:])
_TERMINATE, _ON_ACTIVATE, _ON_UNBLOCK = (int(k) for k in list(O.OnControl)[1:])
_ADDC16 = A.ADDC16
DONE = 16
RESOLVED_MEMORY, RESOLVED_SYNC, RESOLVED_ASYNC, THREAD_BUSY, BAD = range(5)


@inlined_kernel
def dsr_index(c, number, sets):
    """Place of DSR `number` (file * 64 + id)."""
    return (number >> 6) * sets[S.DSRS] + (number & 63)


@inlined_kernel
def operand_dsd(c, place, row, first, issues, regs, dsr, sets):
    """DSD value of an operand that is a DSD or a DSR; 0 otherwise."""
    form = issues[row, O.V_DEST + place]
    if form == _DSD:
        return regs[first + place]
    if form == _DSR:
        return dsr[c, dsr_index(c, np.int64(issues[row, O.V_DSR0 + place]), sets)]
    return np.int64(0)


@inlined_kernel
def option(value, c, first, constants, core, regs):
    """An id of an issue row: constant, register or constant of the class."""
    if value >= O.USE_CONSTANT:
        return constants[core[c, S.CLASS], value - O.USE_CONSTANT]
    if value >= O.USE_REGISTER:
        return regs[first + value - O.USE_REGISTER]
    return np.int64(value)


@inlined_kernel
def survey(c, row, first, m):
    """DSD operands to load, + 16 if an operand is fabric or FIFO, + 32 if the operation is asynchronous."""
    found = np.int64(0)
    if m.issues[row, O.V_ASYNC] != 0:
        found |= 32
    for place in range(4):
        form = m.issues[row, O.V_DEST + place]
        if form == _DSD or form == _DSR:
            kind = operand_dsd(c, place, row, first, m.issues, m.regs, m.dsr, m.sets) & 15
            if form == _DSD:
                found += 1
            else:
                load = m.dsr_row[c, dsr_index(c, np.int64(m.issues[row, O.V_DSR0 + place]), m.sets)]
                if load >= 0 and m.loads[load, O.L_ASYNC] != 0:
                    found |= 32
            if kind == _FABIN or kind == _FABOUT or kind == _FIFO:
                found |= 16
    return found


@inlined_kernel
def resolve(c, t, row, first, m):
    """Fill the record of the thread that is to run issue `row`; its number in T of core's STATUS.  Returns what follows."""
    core, sets = m.core, m.sets
    is_async, thread = m.issues[row, O.V_ASYNC] != 0, np.int64(-1)
    activate, unblock = (
        option(m.issues[row, O.V_ACTIVATE], c, first, m.constants, m.core, m.regs),
        option(m.issues[row, O.V_UNBLOCK], c, first, m.constants, m.core, m.regs),
    )
    on_control, control_task = (
        np.int64(m.issues[row, O.V_ON_CONTROL]),
        option(m.issues[row, O.V_CONTROL_TASK], c, first, m.constants, m.core, m.regs),
    )
    priority = np.int64(m.issues[row, O.V_PRIORITY])
    if m.issues[row, O.V_THREAD] >= 0:
        thread = option(m.issues[row, O.V_THREAD], c, first, m.constants, m.core, m.regs)
    out_thread, in_thread, dsd_priority, has_fabric = np.int64(-1), np.int64(-1), np.int64(0), False
    for place in range(3):  # options of an operation on DSRs stand with the load of the fabric operand
        if m.issues[row, O.V_DEST + place] == _NO_FORM:
            continue
        value = operand_dsd(c, place, row, first, m.issues, m.regs, m.dsr, m.sets)
        kind = value & 15
        if kind == _FABOUT or kind == _FABIN:
            queue = (value >> 9) & 15
            has_fabric = True
            dsd_priority = max(dsd_priority, (value >> 13) & 3)
            if kind == _FABOUT and out_thread < 0:
                out_thread = queue if queue != O.NO_QUEUE else 0
            elif kind == _FABIN and in_thread < 0:
                if queue == O.NO_QUEUE:
                    slot = np.int64(m.slot_of[(value >> 4) & 31])
                    queue = np.int64(m.color_queue[c, slot]) if slot >= 0 else 0
                in_thread = queue & 7
        if kind == _FIFO:
            has_fabric = True
        if m.issues[row, O.V_DEST + place] == _DSR:
            load = np.int64(m.dsr_row[c, dsr_index(c, np.int64(m.issues[row, O.V_DSR0 + place]), m.sets)])
            if load >= 0 and (m.loads[load, O.L_ASYNC] != 0 or kind == _FABOUT or kind == _FABIN):
                if m.loads[load, O.L_ASYNC] != 0:
                    is_async = True
                if m.loads[load, O.L_ACTIVATE] >= 0 and activate < 0:
                    activate = option(m.loads[load, O.L_ACTIVATE], c, first, m.constants, m.core, m.regs)
                if m.loads[load, O.L_UNBLOCK] >= 0 and unblock < 0:
                    unblock = option(m.loads[load, O.L_UNBLOCK], c, first, m.constants, m.core, m.regs)
                if m.loads[load, O.L_THREAD] >= 0 and thread < 0:
                    thread = option(m.loads[load, O.L_THREAD], c, first, m.constants, m.core, m.regs)
                if m.loads[load, O.L_PRIORITY] > 0:
                    priority = np.int64(m.loads[load, O.L_PRIORITY])
                if m.loads[load, O.L_ON_CONTROL] > 0:
                    on_control = np.int64(m.loads[load, O.L_ON_CONTROL])
                    control_task = option(
                        m.loads[load, O.L_CONTROL_TASK], c, first, m.constants, m.core, m.regs
                    )
    if thread < 0:
        thread = out_thread if out_thread >= 0 else in_thread
    k = np.int64(0)
    if is_async:
        if thread < 0:
            thread = np.int64(0)
        if thread >= S.N_THREADS - 1:
            core[c, S.FAULT], core[c, S.FAULT_A] = S.F_THREAD, thread
            return BAD
        k = 1 + thread
    if m.threads[k, c, S.T_OP] > 0:
        core[c, S.STATUS] = k
        return THREAD_BUSY
    th = m.threads[k, c]
    op = np.int64(m.issues[row, O.V_OP])
    th[S.T_LEFT], th[S.T_MILLI], th[S.T_PC] = 0, 999, np.int32(core[c, S.PC])
    th[S.T_ACTIVATE], th[S.T_UNBLOCK] = np.int32(activate), np.int32(unblock)
    th[S.T_ON_CONTROL], th[S.T_CONTROL_TASK] = np.int32(on_control), np.int32(control_task)
    th[S.T_PRIORITY] = np.int32(priority if priority > 0 else dsd_priority)
    th[S.T_DONE], th[S.T_CARRY], th[S.T_FLAGS], th[S.T_RESULT], th[S.T_ENDLESS] = 0, 0, 0, -1, 0
    index = np.int64(-1)
    if m.issues[row, O.V_INDEX] >= 0:
        index = m.regs[first + m.issues[row, O.V_INDEX]] & 0xFFFF
    th[S.T_INDEX] = np.int32(index)
    length, has_length, endless = np.int64(0), False, False
    n_memory, banks = 0, np.int64(0)
    for turn in range(4):
        place = (
            np.int64(0) if turn == 2 else (np.int64(3) if turn == 3 else np.int64(turn + 1))
        )  # sources, destination, scalar
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        form = m.issues[row, O.V_DEST + place]
        width = np.int64(m.vop[op, place])
        th[o + S.P_FORM], th[o + S.P_DSR] = S.NOTHING, -1
        if form == _NO_FORM:
            continue
        if form == _SCALAR:
            th[o + S.P_FORM] = S.VALUE
            th[o + S.P_VALUE] = np.int32(np.uint32(m.regs[first + place] & 0xFFFFFFFF))
            continue
        if form == _POINTER:
            th[o + S.P_FORM], th[o + S.P_KIND], th[o + S.P_STRIDE] = S.MEMORY, S.LINE, 0
            th[o + S.P_ADDRESS] = th[o + S.P_START] = np.int32(m.regs[first + place] & 0xFFFF)
            continue
        value = operand_dsd(c, place, row, first, m.issues, m.regs, m.dsr, m.sets)
        kind = value & 15
        if form == _DSR:
            th[o + S.P_DSR] = np.int32(dsr_index(c, np.int64(m.issues[row, O.V_DSR0 + place]), m.sets))
        n = (value >> 20) & 0xFFFF
        is_endless = False
        if kind == _FABIN or kind == _FABOUT:
            slot, queue = np.int64(m.slot_of[(value >> 4) & 31]), (value >> 9) & 15
            is_endless = n == O.ENDLESS
            simd = (value >> 54) & 3
            if simd != 0:
                th[S.T_FLAGS] |= np.int32(S.FLAG_SIMD * simd)
            if kind == _FABIN:
                th[o + S.P_FORM] = S.INPUT
                if queue == O.NO_QUEUE:
                    queue = np.int64(m.color_queue[c, slot]) if slot >= 0 else np.int64(-1)
                elif slot >= 0 and m.color_queue[c, slot] < 0 and sets[S.IS_WSE3] == 0:
                    m.color_queue[c, slot] = np.int32(queue)  # bound by the operation that names both
                if slot < 0 and 0 <= queue < m.in_color.shape[1]:
                    slot = np.int64(m.in_color[c, queue])
                if queue < 0 or queue >= m.in_depth.shape[0]:
                    core[c, S.FAULT], core[c, S.FAULT_A], core[c, S.FAULT_B] = (
                        S.F_NO_QUEUE,
                        (value >> 4) & 31,
                        0,
                    )
                    return BAD
            else:
                th[o + S.P_FORM] = S.OUTPUT
                if queue == O.NO_QUEUE:
                    queue = np.int64(0)
                if queue < m.out_depth.shape[0] and slot < 0:
                    slot = np.int64(m.out_color[c, queue])
                if slot < 0 or queue >= m.out_depth.shape[0]:
                    core[c, S.FAULT], core[c, S.FAULT_A], core[c, S.FAULT_B] = (
                        S.F_NO_QUEUE,
                        (value >> 4) & 31,
                        1,
                    )
                    return BAD
                flags = np.int64(0)
                if (value >> 52) & 1:
                    flags |= S.FLAG_CONTROL
                if (value >> 53) & 1:
                    flags |= S.FLAG_WAVELET_INDEX
                if (value >> 56) & 1:
                    flags |= S.FLAG_ADVANCE
                if (value >> 57) & 1:
                    flags |= S.FLAG_ZERO0
                if (value >> 58) & 1:
                    flags |= S.FLAG_ZERO1
                th[S.T_FLAGS] |= np.int32(flags)
            th[o + S.P_SLOT], th[o + S.P_QUEUE] = np.int32(slot), np.int32(queue)
        elif kind == _FIFO:
            th[o + S.P_FORM], th[o + S.P_ROW] = S.FIFO, np.int32((value >> 4) & 0xFFFF)
            th[S.T_FLAGS] |= np.int32(S.FLAG_FIFO)
            continue
        elif kind == _MEM1D or kind == _MEM4D or kind == _CIRCBUF:
            address = (value >> 4) & 0xFFFF
            if (value >> 53) & 1 and index >= 0:
                address = (address + s16(index)) & 0xFFFF
            th[o + S.P_FORM], th[o + S.P_START], th[o + S.P_ADDRESS] = (
                S.MEMORY,
                np.int32(address),
                np.int32(address),
            )
            th[o + S.P_C0], th[o + S.P_C1], th[o + S.P_C2], th[o + S.P_C3] = 0, 0, 0, 0
            if kind == _MEM1D:
                th[o + S.P_KIND], th[o + S.P_STRIDE] = S.LINE, np.int32(s16(value >> 36) * width)
            elif kind == _MEM4D:
                th[o + S.P_KIND], th[o + S.P_ROW], th[o + S.P_STRIDE] = S.SHAPE, np.int32(n), np.int32(width)
                n = shape_total(m.shapes, n)
            else:
                th[o + S.P_KIND], th[o + S.P_ROW] = S.RING, np.int32((value >> 36) & 0xFFFF)
                th[o + S.P_STRIDE] = np.int32(width * m.rings[(value >> 36) & 0xFFFF, 2])
            if place > 0 and th[o + S.P_STRIDE] != 0:
                n_memory += 1
                if n_memory == 2 and (address & 3) == banks:
                    n_memory = 3
                banks = address & 3
        else:
            core[c, S.FAULT], core[c, S.FAULT_A] = S.F_OPERAND, place
            return BAD
        if place < 3:
            has_length = True
            if is_endless:
                endless = True
            elif length == 0:
                length = n
    if length > 0 or not endless:
        endless = False
        if not has_length:
            length = np.int64(1)
    is_reduction = m.issues[row, O.V_DEST] == _POINTER and m.issues[row, O.V_SRC0] == _SCALAR
    if is_reduction and m.vop[op, A.N_SOURCES] == 2 and m.vop[op, 0] == m.vop[op, 1] and length > 0:
        # a scalar that the operation reduces into: the first element meets source 0, the others the result so far
        o = S.OPERAND0 + S.OPERAND_FIELDS
        address, width = np.int64(th[S.OPERAND0 + S.P_ADDRESS]), np.int64(m.vop[op, 0])
        if address + width <= sets[S.WORDS]:
            store(m.memory, c * sets[S.WORDS], address, width, np.int64(np.uint32(th[o + S.P_VALUE])))
        th[o + S.P_FORM], th[o + S.P_KIND], th[o + S.P_STRIDE] = S.MEMORY, S.LINE, 0
        th[o + S.P_ADDRESS] = th[o + S.P_START] = np.int32(address)
    th[S.T_ENDLESS] = np.int32(endless)
    th[S.T_REST] = np.int32(length)
    cost = np.int64(m.vop[op, A.COST])
    if n_memory >= 2:
        cost = np.int64(m.vop[op, A.COST_MEMORY])
    if n_memory == 3:
        cost = cost * sets[S.CONFLICT] // 1000
    th[S.T_COST] = np.int32(cost)
    th[S.T_OP] = np.int32(op + 1)
    core[c, S.STATUS] = k
    if not is_async and not has_fabric:
        return RESOLVED_MEMORY
    if is_async:
        core[c, S.LIVE] |= np.int64(1) << k
        return RESOLVED_ASYNC
    return RESOLVED_SYNC


@helper_kernel
def next_address(kind, address, stride, th, o, shapes, rings):
    """Address of the element after the present one; counters of a shape advance."""
    if kind == S.LINE:
        return address + stride
    if kind == S.RING:
        row = np.int64(th[o + S.P_ROW])
        first, words = np.int64(rings[row, 0]), np.int64(rings[row, 1])
        address += stride
        if address >= first + words:
            address -= words
        elif address < first:
            address += words
        return address
    row = np.int64(th[o + S.P_ROW])
    for k in range(shapes[row, 0]):
        th[o + S.P_C0 + k] += 1
        if th[o + S.P_C0 + k] < shapes[row, 1 + k]:
            return address + stride * np.int64(shapes[row, 5 + k])
        th[o + S.P_C0 + k] = 0
    return address


@helper_kernel
def load(memory, base, address, width):
    """Raw bits of an element of `width` words."""
    value = np.int64(memory[base + address])
    if width == 2:
        value |= np.int64(memory[base + address + 1]) << 16
    return value


@helper_kernel
def store(memory, base, address, width, value):
    """Write raw bits."""
    memory[base + address] = np.uint16(value & 0xFFFF)
    if width == 2:
        memory[base + address + 1] = np.uint16((value >> 16) & 0xFFFF)


@helper_kernel
def is_inside(th, o, n, width, words):
    """True if the n elements of a straight or stride-0 operand lie in memory (others are checked element by element)."""
    if th[o + S.P_FORM] != S.MEMORY or th[o + S.P_KIND] != S.LINE or n == 0:
        return True
    first = np.int64(th[o + S.P_ADDRESS])
    last = first + (n - 1) * np.int64(th[o + S.P_STRIDE])
    return min(first, last) >= 0 and max(first, last) + width <= words


@helper_kernel
def run_straight(th, op, n, widths, memory, base):
    """An operation on straight memory operands and scalars: the inner loops."""
    d, a, b, s = (
        S.OPERAND0 + S.OPERAND_FIELDS * 0,
        S.OPERAND0 + S.OPERAND_FIELDS,
        S.OPERAND0 + S.OPERAND_FIELDS * 2,
        S.OPERAND0 + S.OPERAND_FIELDS * 3,
    )
    to, to_step = base + np.int64(th[d + S.P_ADDRESS]), np.int64(th[d + S.P_STRIDE])
    xa, xa_step = base + np.int64(th[a + S.P_ADDRESS]), np.int64(th[a + S.P_STRIDE])
    xb, xb_step = base + np.int64(th[b + S.P_ADDRESS]), np.int64(th[b + S.P_STRIDE])
    va, vb = np.int64(np.uint32(th[a + S.P_VALUE])), np.int64(np.uint32(th[b + S.P_VALUE]))
    scalar = np.int64(np.uint32(th[s + S.P_VALUE]))
    a_in, b_in = th[a + S.P_FORM] == S.MEMORY, th[b + S.P_FORM] == S.MEMORY
    if th[s + S.P_FORM] == S.MEMORY:
        scalar = load(memory, base, np.int64(th[s + S.P_ADDRESS]), np.int64(widths[3]))
    if op == A.FMACS and a_in and b_in:
        f = bits_f32(scalar)
        for _ in range(n):
            x = bits_f32(np.int64(memory[xa]) | (np.int64(memory[xa + 1]) << 16))
            y = bits_f32(np.int64(memory[xb]) | (np.int64(memory[xb + 1]) << 16))
            w = f32_bits(np.float32(x + np.float32(y * f)))
            memory[to] = np.uint16(w & 0xFFFF)
            memory[to + 1] = np.uint16(w >> 16)
            to += to_step
            xa += xa_step
            xb += xb_step
        return np.int64(0)
    wd, wa, wb = np.int64(widths[0]), np.int64(widths[1]), np.int64(widths[2])
    mask_a, mask_b = (1 << (16 * wa)) - 1, (1 << (16 * wb)) - 1
    carry = np.int64(0)
    for _ in range(n):
        x = load(memory, xa, np.int64(0), wa) if a_in else va & mask_a
        y = load(memory, xb, np.int64(0), wb) if b_in else vb & mask_b
        if op == _ADDC16:
            w = x + y + carry
            carry = w >> 16
        else:
            w = element(op, x, y, scalar)
        store(memory, to, np.int64(0), wd, w)
        to += to_step
        xa += xa_step
        xb += xb_step
    return carry


@helper_kernel
def run_memory(th, widths, memory, base, words, shapes, rings):
    """All elements of an operation that touches memory alone.  Returns -1, or the address out of range."""
    op, n = np.int64(th[S.T_OP]) - 1, np.int64(th[S.T_REST])
    straight = True
    for place in range(4):
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        if th[o + S.P_FORM] == S.MEMORY:
            if th[o + S.P_KIND] != S.LINE:
                straight = False
            if not is_inside(th, o, n, np.int64(widths[place]), words):
                return np.int64(th[o + S.P_ADDRESS])
    if straight:
        run_straight(th, op, n, widths, memory, base)
        for place in range(3):
            o = S.OPERAND0 + place * S.OPERAND_FIELDS
            th[o + S.P_ADDRESS] += np.int32(n * np.int64(th[o + S.P_STRIDE]))
        th[S.T_REST] = 0
        return np.int64(-1)
    carry = np.int64(0)
    for _ in range(n):
        x, y, z = np.int64(0), np.int64(0), np.int64(0)
        for place in range(1, 4):
            o = S.OPERAND0 + place * S.OPERAND_FIELDS
            width = np.int64(widths[place])
            v = np.int64(0)
            if th[o + S.P_FORM] == S.VALUE:
                v = np.int64(np.uint32(th[o + S.P_VALUE])) & ((1 << (16 * width)) - 1)
            elif th[o + S.P_FORM] == S.MEMORY:
                address = np.int64(th[o + S.P_ADDRESS])
                if address < 0 or address + width > words:
                    return address
                v = load(memory, base, address, width)
                th[o + S.P_ADDRESS] = np.int32(
                    next_address(
                        th[o + S.P_KIND], address, np.int64(th[o + S.P_STRIDE]), th, o, shapes, rings
                    )
                )
            if place == 1:
                x = v
            elif place == 2:
                y = v
            else:
                z = v
        if op == _ADDC16:
            w = x + y + carry
            carry = w >> 16
        else:
            w = element(op, x, y, z)
        o, width = S.OPERAND0, np.int64(widths[0])
        address = np.int64(th[o + S.P_ADDRESS])
        if address < 0 or address + width > words:
            return address
        store(memory, base, address, width, w)
        th[o + S.P_ADDRESS] = np.int32(
            next_address(th[o + S.P_KIND], address, np.int64(th[o + S.P_STRIDE]), th, o, shapes, rings)
        )
    th[S.T_REST] = 0
    return np.int64(-1)


@inlined_kernel
def finish(c, k, m):
    """An operation is through: its task is activated or unblocked, DSRs keep their addresses, the thread is free."""
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
def step(c, k, t, m):
    """One issue cycle of thread `k`: BUSY, DONE (BUSY, and the operation is through), or what it waits for."""
    th, core = m.threads[k, c], m.core
    sets = m.sets
    is_sync = k == 0
    if th[S.T_LEFT] > 0:
        th[S.T_LEFT] -= 1
        if th[S.T_LEFT] == 0 and th[S.T_REST] == 0 and th[S.T_ENDLESS] == 0:
            return DONE
        return S.BUSY
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
                        word = np.int64(m.iq_word[q, c, m.iq_head[q, c]])
                        cls = core[c, S.CLASS]
                        task = (word >> 16) & 63
                        if (
                            th[S.T_ON_CONTROL] == 0
                            and m.task_table[cls, task, S.E_ENTRY] >= 0
                            and m.task_table[cls, task, S.E_KIND] == S.KIND_CONTROL
                        ):
                            n = np.int64(0)  # the task takes it
                        else:
                            take(c, q, m.iq_head, m.iq_word, m.iq_count, m.in_depth, m.core)
                            is_control = True
            if is_control:
                break
            if n < n_words and simd == 3 and n == 1:
                n_words = np.int64(1)
            if n < n_words:
                state = S.WAIT_INPUT
        elif form == S.FIFO:
            row = np.int64(th[o + S.P_ROW])
            if m.fifo[c, row, 1] == 0:
                m.fifo[c, row, 2] = 1
                state = S.WAIT_INPUT
                if is_sync and not ended:
                    ended, th[S.T_RESULT], th[S.T_REST] = True, 0, 0
    if is_control:
        action = th[S.T_ON_CONTROL]
        if action == _ON_ACTIVATE:
            core[c, S.ACTIVE] |= np.int64(1) << np.int64(th[S.T_CONTROL_TASK])
        elif action == _ON_UNBLOCK:
            core[c, S.BLOCKED] &= ~(np.int64(1) << np.int64(th[S.T_CONTROL_TASK]))
        return DONE if action != 0 else S.BUSY
    if state == S.BUSY and th[d + S.P_FORM] == S.OUTPUT:
        q = np.int64(th[d + S.P_QUEUE])
        room = np.int64(m.out_depth[q]) - np.int64(m.oq_count[q, c])
        if room < n_words and simd == 3 and room == 1:
            n_words = np.int64(1)
        if room < n_words:
            state = S.WAIT_OUTPUT
    elif state == S.BUSY and th[d + S.P_FORM] == S.FIFO:
        row = np.int64(th[d + S.P_ROW])
        cls = core[c, S.CLASS]
        if (m.fifo[c, row, 1] + 1) * m.fifos[cls, row, 2] > m.fifos[cls, row, 1]:
            m.fifo[c, row, 3] = 1
            state = S.WAIT_OUTPUT
            if is_sync and not ended:
                ended, th[S.T_RESULT], th[S.T_REST] = True, 0, 0
    if ended:
        return DONE
    if state != S.BUSY:
        return state
    n = min(rest, per_word * n_words)
    base, words = c * sets[S.WORDS], sets[S.WORDS]
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
            v = np.int64(0)
            if form == S.MEMORY:
                address = np.int64(th[o + S.P_ADDRESS])
                if address < 0 or address + width > words:
                    core[c, S.FAULT], core[c, S.FAULT_A], core[c, S.FAULT_PC] = (
                        S.F_ADDRESS,
                        address,
                        th[S.T_PC],
                    )
                    return S.BUSY
                v = load(m.memory, base, address, width)
                if place < 3:
                    th[o + S.P_ADDRESS] = np.int32(
                        next_address(
                            th[o + S.P_KIND], address, np.int64(th[o + S.P_STRIDE]), th, o, m.shapes, m.rings
                        )
                    )
            elif form == S.INPUT:
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
            elif form == S.FIFO:
                row = np.int64(th[o + S.P_ROW])
                cls = core[c, S.CLASS]
                size, start = np.int64(m.fifos[cls, row, 2]), np.int64(m.fifos[cls, row, 0])
                v = load(m.memory, base, start + size * np.int64(m.fifo[c, row, 0]), min(size, width))
                m.fifo[c, row, 0] = (m.fifo[c, row, 0] + 1) % max(
                    1, m.fifos[cls, row, 1] // m.fifos[cls, row, 2]
                )
                m.fifo[c, row, 1] -= 1
                fifo_event(c, row, 4, 3, m.core, m.fifo, m.fifos)
            else:
                v = np.int64(np.uint32(th[o + S.P_VALUE])) & ((np.int64(1) << (16 * width)) - 1)
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
            w = element(op, x, y, z)
        form = th[d + S.P_FORM]
        if form == S.MEMORY:
            address = np.int64(th[d + S.P_ADDRESS])
            if address < 0 or address + width_d > words:
                core[c, S.FAULT], core[c, S.FAULT_A], core[c, S.FAULT_PC] = S.F_ADDRESS, address, th[S.T_PC]
                return S.BUSY
            store(m.memory, base, address, width_d, w)
            th[d + S.P_ADDRESS] = np.int32(
                next_address(
                    th[d + S.P_KIND], address, np.int64(th[d + S.P_STRIDE]), th, d, m.shapes, m.rings
                )
            )
        elif form == S.FIFO:
            row = np.int64(th[d + S.P_ROW])
            cls = core[c, S.CLASS]
            size, start = np.int64(m.fifos[cls, row, 2]), np.int64(m.fifos[cls, row, 0])
            place_in = (np.int64(m.fifo[c, row, 0]) + np.int64(m.fifo[c, row, 1])) % max(
                1, np.int64(m.fifos[cls, row, 1]) // size
            )
            store(m.memory, base, start + size * place_in, min(size, width_d), w)
            m.fifo[c, row, 1] += 1
            fifo_event(c, row, 3, 2, m.core, m.fifo, m.fifos)
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
                push(
                    c,
                    np.int64(th[d + S.P_QUEUE]),
                    np.int64(th[d + S.P_SLOT]),
                    out,
                    flag,
                    t,
                    m.oq_head,
                    m.oq_count,
                    m.out_depth,
                    m.oq_word,
                    m.oq_meta,
                    m.oq_time,
                    m.core,
                    m.size,
                    m.ring_listed,
                    m.rings_list,
                )
                out = np.int64(0)
    cost = np.int64(th[S.T_MILLI]) + np.int64(th[S.T_COST]) * n
    cycles = max(np.int64(1), cost // 1000)
    th[S.T_MILLI] = np.int32(max(np.int64(0), cost - 1000 * cycles))
    th[S.T_LEFT] = np.int32(cycles - 1)
    th[S.T_DONE] += np.int32(n)
    if th[S.T_ENDLESS] == 0:
        th[S.T_REST] = np.int32(rest - n)
        if cycles == 1 and rest == n:
            return DONE
    return S.BUSY
