"""Vector operations: operands from DSDs, DSRs and registers, length, thread and cost.

Length of an operation: the first non-zero length of source 0, source 1, destination; 1 if there is none. A
shorter destination in memory limits it, so nothing is written beyond its end; a fabric destination does not
(a public program sends n words by a descriptor of one).

With an action for control wavelets, a bounded operation stays open for the control wavelet after its last
word (a public program receives 8 words and such a wavelet by a descriptor of 9). An infinite length (0x7fff
of a fabric DSD) is replaced by the partner's.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm import arithmetic as A
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm import watch as W
from wse_sim.fabric.vm.arithmetic import s16
from wse_sim.fabric.vm.descriptors import shape_total
from wse_sim.fabric.vm.memory import store
from wse_sim.jit import inlined_kernel

_DSD, _DSR, _SCALAR, _POINTER, _NO_FORM = (
    int(f) for f in (O.Form.DSD, O.Form.DSR, O.Form.SCALAR, O.Form.POINTER, O.Form.NONE)
)
_MEM1D, _MEM4D, _FABIN, _FABOUT, _CIRCBUF, _FIFO = (int(k) for k in list(O.DsdKind)[1:])
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
    """DSD operands to load, + 16 if an operand is fabric or FIFO, + 32 if the operation is asynchronous, + 64 if a source is the element that was
    written last, + 256 for every descriptor of several dimensions to load.

    A destination that is source 0 as well is loaded once (code of the vendor's compiler; the machine has operations of that form).
    """
    found, loads = np.int64(0), np.int64(0)
    if m.issues[row, O.V_DEST] == _DSD and m.issues[row, O.V_DEST + 1] == _DSD:
        dest = operand_dsd(c, 0, row, first, m.issues, m.regs, m.dsr, m.sets)
        if dest == operand_dsd(c, 1, row, first, m.issues, m.regs, m.dsr, m.sets):
            loads -= 257 if dest & 15 == _MEM4D else 1
    if m.issues[row, O.V_ASYNC] != 0:
        found |= 32
    for place in range(4):
        form = m.issues[row, O.V_DEST + place]
        if form == _DSD or form == _DSR:
            value = operand_dsd(c, place, row, first, m.issues, m.regs, m.dsr, m.sets)
            kind = value & 15
            if form == _DSD:
                loads += 257 if kind == _MEM4D else 1
            else:
                load = m.dsr_row[c, dsr_index(c, np.int64(m.issues[row, O.V_DSR0 + place]), m.sets)]
                if load >= 0 and m.loads[load, O.L_ASYNC] != 0:
                    found |= 32
            if kind == _FABIN or kind == _FABOUT or kind == _FIFO:
                found |= 16
            elif place > 0 and 1 + ((value >> 4) & 0xFFFF) == m.core[c, S.LAST_RESULT]:
                found |= 64
    return found + loads


@inlined_kernel
def options(c, row, first, m):
    """Options of issue `row` and of the DSRs it names: is_async, has_fabric, thread, activate, unblock, on_control, control_task, priority."""
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
    priority = priority if priority > 0 else dsd_priority
    return is_async, has_fabric, thread, activate, unblock, on_control, control_task, priority


@inlined_kernel
def fabric_operand(c, th, o, value, m):
    """Color, queue and flags of a fabric DSD; False if it has no queue, which is a fault."""
    slot, queue = np.int64(m.slot_of[(value >> 4) & 31]), (value >> 9) & 15
    simd = (value >> 54) & 3
    if simd != 0:
        th[S.T_FLAGS] |= np.int32(S.FLAG_SIMD * simd)
    if value & 15 == _FABIN:
        th[o + S.P_FORM] = S.INPUT
        if queue == O.NO_QUEUE:
            queue = np.int64(m.color_queue[c, slot]) if slot >= 0 else np.int64(-1)
        elif slot >= 0 and m.color_queue[c, slot] < 0 and m.sets[S.IS_WSE3] == 0:
            m.color_queue[c, slot] = np.int32(queue)  # bound by the operation that names both
        if slot < 0 and 0 <= queue < m.in_color.shape[1]:
            slot = np.int64(m.in_color[c, queue])
        if queue < 0 or queue >= m.in_depth.shape[0]:
            m.core[c, S.FAULT], m.core[c, S.FAULT_A], m.core[c, S.FAULT_B] = (
                S.F_NO_QUEUE,
                (value >> 4) & 31,
                0,
            )
            return False
    else:
        th[o + S.P_FORM] = S.OUTPUT
        if queue == O.NO_QUEUE:
            queue = np.int64(0)
        if (
            queue < m.out_depth.shape[0]
            and (slot < 0 or m.sets[S.IS_WSE3] != 0)
            and m.out_color[c, queue] >= 0
        ):
            slot = np.int64(m.out_color[c, queue])  # on WSE-3 the color of the queue counts
        if slot < 0 or queue >= m.out_depth.shape[0]:
            m.core[c, S.FAULT], m.core[c, S.FAULT_A], m.core[c, S.FAULT_B] = (
                S.F_NO_QUEUE,
                (value >> 4) & 31,
                1,
            )
            return False
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
    return True


@inlined_kernel
def memory_operand(th, o, value, width, index, m):
    """Addresses of a DSD of memory; its length."""
    kind, n = value & 15, (value >> 20) & 0xFFFF
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
    return n


@inlined_kernel
def leaves_variable(c, th, o, n, width, m):
    """True if a memory operand of n elements begins in a variable and leaves it; FAULT_A is its first word, FAULT_B the first beyond."""
    first = np.int64(th[o + S.P_ADDRESS])
    low, high = first, first
    if th[o + S.P_KIND] == S.LINE:
        last = first + (n - 1) * np.int64(th[o + S.P_STRIDE])
        low, high = min(first, last), max(first, last)
    elif th[o + S.P_KIND] == S.SHAPE:
        row, moved = np.int64(th[o + S.P_ROW]), np.int64(0)
        if shape_total(m.shapes, row) > n:
            return False
        for k in range(m.shapes[row, 0]):
            extent = np.int64(m.shapes[row, 1 + k]) - 1
            reach = (np.int64(m.shapes[row, 5 + k]) + moved) * extent
            moved += reach
            low, high = low + min(np.int64(0), width * reach), high + max(np.int64(0), width * reach)
    else:
        return False
    if low < 0 or high + width > m.sets[S.WORDS]:  # the end of the memory is looked at element by element
        return False
    cls = m.core[c, S.CLASS]
    mine, beyond = m.owner[cls, first], low
    if m.owner[cls, low] == mine:
        beyond = high + width - 1
    if mine == 0 or m.owner[cls, beyond] == mine:
        return False
    m.core[c, S.FAULT], m.core[c, S.FAULT_A], m.core[c, S.FAULT_B] = S.F_BOUNDS, first, beyond
    return True


@inlined_kernel
def reduce_into(c, row, th, op, length, m):
    """A reduction of scalars: the place of the result becomes source 0 as well."""
    is_reduction = m.issues[row, O.V_DEST] == _POINTER and m.issues[row, O.V_SRC0] == _SCALAR
    if is_reduction and m.vop[op, A.N_SOURCES] == 2 and m.vop[op, 0] == m.vop[op, 1] and length > 0:
        # a scalar that the operation reduces into: the first element meets source 0, the others the result so far
        o = S.OPERAND0 + S.OPERAND_FIELDS
        address, width = np.int64(th[S.OPERAND0 + S.P_ADDRESS]), np.int64(m.vop[op, 0])
        if m.sets[S.WATCH] != 0:
            W.look_at_words(c, m.size[S.CLOCK], m.core[c, S.PC], address, width, True, m)
        if address + width <= m.sets[S.WORDS]:
            store(m.memory, c * m.sets[S.WORDS], address, width, np.int64(np.uint32(th[o + S.P_VALUE])))
        th[o + S.P_FORM], th[o + S.P_KIND], th[o + S.P_STRIDE] = S.MEMORY, S.LINE, 0
        th[o + S.P_ADDRESS] = th[o + S.P_START] = np.int32(address)


@inlined_kernel
def bounded(th, length, room, on_control):
    """The length within the room of the destination; the control wavelet behind the words that fit still ends the operation."""
    if room > 0 and length > room:
        length = room
        if on_control != 0:
            th[S.T_FLAGS] |= np.int32(S.FLAG_STAYS)
    return length


@inlined_kernel
def fill_operand(c, th, place, row, first, width, m):
    """Record operand `place` of an operation: whether it is sound, and its elements; -1: it has no length."""
    o = S.OPERAND0 + place * S.OPERAND_FIELDS
    form = m.issues[row, O.V_DEST + place]
    th[o + S.P_FORM], th[o + S.P_DSR] = S.NOTHING, -1
    if form == _NO_FORM:
        return True, np.int64(-1)
    if form == _SCALAR:
        th[o + S.P_FORM] = S.VALUE
        th[o + S.P_VALUE] = np.int32(np.uint32(m.regs[first + place] & 0xFFFFFFFF))
        return True, np.int64(-1)
    if form == _POINTER:
        th[o + S.P_FORM], th[o + S.P_KIND], th[o + S.P_STRIDE] = S.MEMORY, S.LINE, 0
        th[o + S.P_ADDRESS] = th[o + S.P_START] = np.int32(m.regs[first + place] & 0xFFFF)
        return True, np.int64(-1)
    value = operand_dsd(c, place, row, first, m.issues, m.regs, m.dsr, m.sets)
    kind = value & 15
    if form == _DSR:
        th[o + S.P_DSR] = np.int32(dsr_index(c, np.int64(m.issues[row, O.V_DSR0 + place]), m.sets))
    if kind == _FABIN or kind == _FABOUT:
        return fabric_operand(c, th, o, value, m), (value >> 20) & 0xFFFF
    if kind == _FIFO:
        th[o + S.P_FORM], th[o + S.P_ROW] = S.FIFO, np.int32((value >> 4) & 0xFFFF)
        th[S.T_FLAGS] |= np.int32(S.FLAG_FIFO)
        return True, np.int64(-1)
    if kind == _MEM1D or kind == _MEM4D or kind == _CIRCBUF:
        return True, memory_operand(th, o, value, width, np.int64(th[S.T_INDEX]), m)
    m.core[c, S.FAULT], m.core[c, S.FAULT_A] = S.F_OPERAND, place
    return False, np.int64(0)


@inlined_kernel
def element_cost(th, op, m):
    """1/1000 cycle of an element, and whether reads of two vectors, or of one with itself, meet in a bank of memory."""
    n_vectors, banks, collides = 0, np.int64(0), False
    for place in range(1, 4):
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        stride = np.int64(th[o + S.P_STRIDE])
        if th[o + S.P_FORM] != S.MEMORY or stride == 0:
            continue
        n_vectors += 1
        is_wide = m.vop[op, place] == 2
        # Elements 8 words apart are in one bank: such a read collides with itself.
        in_one_bank = th[o + S.P_KIND] == S.LINE and is_wide and stride & 7 == 0
        bank = np.int64(th[o + S.P_ADDRESS]) % m.sets[S.BANK_PERIOD_32 if is_wide else S.BANK_PERIOD_16]
        if (n_vectors == 2 and bank == banks) or in_one_bank:
            collides = True
        banks = bank
    column = A.COST_COLLIDING if collides else (A.COST_MEMORY if n_vectors >= 2 else A.COST)
    return np.int64(m.vop[op, column]), collides


@inlined_kernel
def is_within(c, t, th, op, length, m):
    """False if a memory operand leaves its variable, which is a fault; the sanitizer notes it and continues."""
    for place in range(4):
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        if th[o + S.P_FORM] == S.MEMORY and leaves_variable(c, th, o, length, np.int64(m.vop[op, place]), m):
            if m.sets[S.WATCH] == 0:
                return False
            core, pc = m.core, m.core[c, S.PC]
            core[c, S.FAULT] = 0
            W.note(W.BEYOND_VECTOR, c, t, pc, core[c, S.FAULT_A], core[c, S.FAULT_B], place == 0, 0, m)
    return True


@inlined_kernel
def start_record(c, k, row, first, th, m):
    """The record of thread `k` before its operands are known."""
    core = m.core
    th[S.T_LEFT], th[S.T_MILLI], th[S.T_PC] = 0, 999, np.int32(core[c, S.PC])
    core[c, S.WAITS_INPUT] &= ~(np.int64(1) << k)
    core[c, S.WAITS_ROOM] &= ~(np.int64(1) << k)
    th[S.T_DONE], th[S.T_CARRY], th[S.T_FLAGS], th[S.T_RESULT], th[S.T_ENDLESS] = 0, 0, 0, -1, 0
    index = np.int64(-1)
    if m.issues[row, O.V_INDEX] >= 0:
        index = m.regs[first + m.issues[row, O.V_INDEX]] & 0xFFFF
    th[S.T_INDEX] = np.int32(index)


@inlined_kernel
def resolve(c, t, row, first, m):
    """Fill the record of the thread that is to run issue `row`; its number in T of core's STATUS.  Returns what follows."""
    core, sets = m.core, m.sets
    is_async, has_fabric, thread, activate, unblock, on_control, control_task, priority = options(
        c, row, first, m
    )
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
        if sets[S.WATCH] != 0:
            W.note(W.THREAD_TAKEN, c, t, core[c, S.PC], k - 1, m.threads[k, c, S.T_PC], 0, 0, m)
        return THREAD_BUSY
    th = m.threads[k, c]
    op = np.int64(m.issues[row, O.V_OP])
    start_record(c, k, row, first, th, m)
    th[S.T_ACTIVATE], th[S.T_UNBLOCK] = np.int32(activate), np.int32(unblock)
    th[S.T_ON_CONTROL], th[S.T_CONTROL_TASK] = np.int32(on_control), np.int32(control_task)
    th[S.T_PRIORITY] = np.int32(priority)
    core[c, S.RANKS] = core[c, S.RANKS] & ~(np.int64(3) << (2 * k)) | ((priority & 3) << (2 * k))
    length, room, has_length, endless = np.int64(0), np.int64(0), False, False
    for turn in range(4):  # source 0, source 1, destination, scalar
        place = np.int64(0) if turn == 2 else (np.int64(3) if turn == 3 else np.int64(turn + 1))
        is_sound, n = fill_operand(c, th, place, row, first, np.int64(m.vop[op, place]), m)
        if not is_sound:
            return BAD
        if n < 0 or place == 3:
            continue
        has_length = True
        form = th[S.OPERAND0 + place * S.OPERAND_FIELDS + S.P_FORM]
        if form != S.MEMORY and n == O.ENDLESS:
            endless = True
        elif length == 0:
            length = n
        if place == 0 and form == S.MEMORY:
            room = n
    length = bounded(th, length, room, on_control)
    if length > 0 or not endless:
        endless = False
        if not has_length:
            length = np.int64(1)
    if length > 0 and sets[S.BOUNDS] != 0 and not is_within(c, t, th, op, length, m):
        return BAD
    cost, collides = element_cost(th, op, m)
    reduce_into(c, row, th, op, length, m)
    th[S.T_ENDLESS] = np.int32(endless)
    th[S.T_REST] = np.int32(length)
    th[S.T_COST], th[S.T_WIDE] = np.int32(cost), np.int32(2 if collides else 1)
    th[S.T_OP] = np.int32(op + 1)
    core[c, S.STATUS] = k
    if sets[S.WATCH] != 0:
        W.look_at_queues(c, t, k, m)
    if not is_async and not has_fabric:
        return RESOLVED_MEMORY
    if is_async:
        core[c, S.LIVE] |= np.int64(1) << k
        return RESOLVED_ASYNC
    return RESOLVED_SYNC
