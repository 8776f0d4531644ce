"""One core for one cycle: choice of the next task, scalar code, functions of the machine, and the one issue slot.

Order on the slot: microthreads of high priority, medium, main thread, low; by number within one priority.  The main thread's own
priority can be moved.  Only its vector operations compete: scalar code leaves the slot to the microthreads (published: 196 words sent
concurrently with a computing main thread in 201 cycles).  Tasks: a command of the host first, then teardown handlers, then high before low
priority, activated tasks before those that a word starts (so that an activation is not lost behind a stream of words).  Activated tasks
take turns: the next id above the task that ran last, else the lowest (two tasks of a public program activate themselves until a third
one, with a higher id, has received a word).  Each of them has one turn before a task that a word starts, so a task that activates itself, or
two that activate each other, do not keep words waiting forever.  Of those that words start, the lowest id.

One file, because all of it is compiled into one loop and shares the state of a core.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm import arithmetic as A
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import operands as R
from wse_sim.fabric.vm import scalar as X
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm import vector as V
from wse_sim.fabric.vm import watch as W
from wse_sim.fabric.vm.arithmetic import s16
from wse_sim.fabric.vm.issue_times import MAPPED
from wse_sim.fabric.vm.memory import run_memory
from wse_sim.fabric.vm.operands import resolve, survey
from wse_sim.fabric.vm.queues import head_meta, take, visible, wake_router
from wse_sim.fabric.vm.registers import access_register
from wse_sim.fabric.vm.scalar import stretch
from wse_sim.fabric.vm.vector import finish, step
from wse_sim.jit import inlined_kernel

Y = O.Sys
(
    TSC_READ, TSC_ENABLE, TSC_DISABLE, TSC_RESET, TSC_VALUE, RANDOM16, SET_PRNG, SEED_PRNG, X_COORD, Y_COORD, FABRIC_X, FABRIC_Y, PRINT,
    ASSERT_FAIL, UNBLOCK_CMD_STREAM, SET_ROUTES, SET_SWITCH, INVALIDATE_SWITCH, SET_POSITION, GET_POSITION, SET_RING, SET_POP, GET_ROUTES,
    TEARDOWN_ENTER, TEARDOWN_EXIT, TEARDOWN_PENDING, IS_TEARDOWN, SET_FILTER, FILTER_FIELD, QUEUE_FLUSH, IQ_EMPTY, OQ_EMPTY, IQ_COLOR, OQ_COLOR,
    TASK_PRIORITY, MAIN_PRIORITY, PERF_COUNTER, IS_ACTIVE, READ_CONFIG, WRITE_CONFIG, SWAP, TRACE, ADVANCE, HALT, DSR_SAVE, DRAINED,
    IQ_FULL, OQ_FULL,
) = (int(f) for f in Y)  # fmt: skip
_USES_COLOR = sum(1 << f for f in Y if f.when == "color")
_AT_ONCE = sum(1 << f for f in Y if f.when == "at once")
NO_TASK_A, NO_TASK_B = 31, 63


@inlined_kernel
def random16(c, core):
    """128 steps of the register x^23 + x^18 + 1; its low 16 bits."""
    state = core[c, S.PRNG]
    for _ in range(128):
        bit = ((state >> 22) ^ (state >> 17)) & 1
        state = ((state << 1) | bit) & 0xFFFFFFFF
    core[c, S.PRNG] = state
    return state & 0xFFFF


@inlined_kernel
def tsc(c, t, core):
    """Time stamp counter, 48 bit."""
    value = core[c, S.TSC_HELD]
    if core[c, S.TSC_ON] != 0:
        value += t - core[c, S.TSC_BASE]
    return value & 0xFFFFFFFFFFFF


@inlined_kernel
def write_log(c, t, kind, first, m):
    """A row of the log: cycle, core, kind, row of prints, up to eight values."""
    n = m.size[S.N_LOG]
    if n >= m.log.shape[0]:
        return
    m.log[n, 0], m.log[n, 1], m.log[n, 2], m.log[n, 3] = t, c, kind, m.regs[first]
    for i in range(8):
        j = first + 1 + i
        m.log[n, 4 + i] = m.regs[j] if j < m.regs.shape[0] else 0
    m.size[S.N_LOG] = n + 1


@inlined_kernel
def turning(rs, route):
    """Outputs of a router's color that some input reaches by a change of direction."""
    turns = np.int64(0)
    for k in range(4):
        pair = np.int64(route[rs * 4 + k])
        for i in range(4):
            for q in range(4):
                if i != q and q != (i + 2) % 4 and (pair >> i) & 1 and (pair >> (5 + q)) & 1:
                    turns |= 1 << q
    return turns


@inlined_kernel
def drained(c, rs, slot, m):
    """1 if no word of a color waits in an output queue of the core or at the ramp of its router."""
    if m.q_count[rs * 5 + 4] != 0:
        return np.int64(0)
    for q in range(m.out_depth.shape[0]):
        for i in range(np.int64(m.oq_count[q, c])):
            if np.int64(m.oq_meta[q, c, (m.oq_head[q, c] + i) % m.out_depth[q]]) & 63 == slot:
                return np.int64(0)
    return np.int64(1)


@inlined_kernel
def router_function(c, fn, rs, first, m):
    """Function SYS on a color of the core's router, row `rs`: routes, switch, filter, teardown.  Its result, 0 if it has none."""
    core, sets = m.core, m.sets
    x, y, z = m.regs[first], m.regs[first + 1], m.regs[first + 2]
    n_cores = sets[S.ROWS] * sets[S.COLS]
    result = np.int64(0)
    if fn == SET_ROUTES:
        m.route[rs * 4] = np.uint16((y & 31) | ((z & 31) << 5))
    elif fn == SET_SWITCH:
        base = np.int64(0)
        for k in range(y & 3):  # the position before it
            if m.route[rs * 4 + k] != 0:
                base = np.int64(m.route[rs * 4 + k])
        rx, tx = z & 31, m.regs[first + 3] & 31
        rx = rx if rx else base & 31
        tx = tx if tx else base >> 5
        m.route[rs * 4 + (y & 3)] = np.uint16(rx | (tx << 5))
    elif fn == INVALIDATE_SWITCH:
        for k in range(1, 4):
            if y == 0 or y == k:
                m.route[rs * 4 + k] = 0
    elif fn == SET_POSITION:
        m.rstate[rs] = np.uint8((np.int64(m.rstate[rs]) & ~3) | (y & 3))
    elif fn == GET_POSITION:
        result = np.int64(m.rstate[rs]) & 3
    elif fn == SET_RING:
        m.rstate[rs] = np.uint8((np.int64(m.rstate[rs]) & ~S.RING_BIT) | (S.RING_BIT if y else 0))
    elif fn == SET_POP:
        m.rstate[rs] = np.uint8((np.int64(m.rstate[rs]) & ~(3 << 3)) | ((y & 3) << 3))
    elif fn == GET_ROUTES:
        result = np.int64(m.route[rs * 4 + (y & 3)])
    elif fn == TEARDOWN_ENTER:
        m.rstate[rs] |= np.uint8(S.TORN)
    elif fn == TEARDOWN_EXIT:
        m.rstate[rs] = np.uint8(np.int64(m.rstate[rs]) & ~S.TORN)
        core[c, S.TEARDOWN_OF] &= ~(np.int64(1) << (x & 31))
    elif fn == IS_TEARDOWN:
        result = (np.int64(m.rstate[rs]) >> 7) & 1
    elif fn == SET_FILTER:
        if m.filter_row.shape[0] > rs:
            m.filter_row[rs] = np.int32(s16(y))
            if 0 <= y < m.filters.shape[0]:
                m.filter_count[rs] = m.filters[y, O.F_INIT]
    elif fn == FILTER_FIELD:
        row = np.int64(m.filter_row[rs])
        own = m.filters.shape[0] - sets[S.SLOTS] * n_cores + rs
        if row != own:  # from now on the router has its own filter
            for k in range(O.FILTER_FIELDS):
                m.filters[own, k] = m.filters[row, k] if row >= 0 else 0
            m.filter_row[rs] = np.int32(own)
        m.filters[own, y] = z
        if y == O.F_INIT:
            m.filter_count[rs] = z
    elif fn == SWAP:
        m.rstate[rs] = np.uint8((np.int64(m.rstate[rs]) & ~96) | ((y & 3) << 5))
    elif fn == ADVANCE:
        m.rstate[rs] = np.uint8(advanced(rs, np.int64(O.Command.ADVANCE), m.rstate, m.route))
    elif fn == DRAINED:
        result = drained(c, rs, np.int64(m.slot_of[x & 31]), m)
    return result


@inlined_kernel
def system(c, t, m):
    """Function SYS at the pc; False if it is a fault."""
    core, sets = m.core, m.sets
    pc = core[c, S.PC]
    first = c * sets[S.REGISTERS] + core[c, S.WINDOW] + np.int64(m.code[pc * 4 + 2])
    target = np.int64(m.code[pc * 4 + 1])
    fn = np.int64(m.code[pc * 4 + 3])
    x, y = m.regs[first], m.regs[first + 1]
    result = np.int64(0)
    rs = np.int64(-1)
    if (_USES_COLOR >> fn) & 1:
        slot = np.int64(m.slot_of[x & 31])
        if slot < 0:  # no router of the program uses the color
            return True
        rs = slot * sets[S.ROWS] * sets[S.COLS] + c
        wake_router(c, m.size, m.router_listed, m.router_list)
    if fn == TSC_READ or fn == TSC_VALUE:
        result = tsc(c, t, m.core)
        if fn == TSC_READ:
            if x < 0 or x + 3 > sets[S.WORDS]:
                core[c, S.FAULT], core[c, S.FAULT_A] = S.F_ADDRESS, x
                return False
            if sets[S.WATCH] != 0:
                W.look_at_words(c, t, pc, x, 3, True, m)
            for i in range(3):
                m.memory[c * sets[S.WORDS] + x + i] = np.uint16((result >> (16 * i)) & 0xFFFF)
    elif fn == TSC_ENABLE:
        if core[c, S.TSC_ON] == 0:
            core[c, S.TSC_ON], core[c, S.TSC_BASE] = 1, t
    elif fn == TSC_DISABLE:
        core[c, S.TSC_HELD] = tsc(c, t, m.core)
        core[c, S.TSC_ON] = 0
    elif fn == TSC_RESET:
        core[c, S.TSC_HELD], core[c, S.TSC_BASE] = 0, t
    elif fn == RANDOM16:
        result = random16(c, m.core)
    elif fn == SEED_PRNG:
        core[c, S.PRNG] = x & 0xFFFFFFFF
    elif fn == X_COORD:
        result = c % sets[S.COLS]
    elif fn == Y_COORD:
        result = c // sets[S.COLS]
    elif fn == FABRIC_X:
        result = c % sets[S.COLS] + sets[S.OFFSET_X]
    elif fn == FABRIC_Y:
        result = c // sets[S.COLS] + sets[S.OFFSET_Y]
    elif fn == PRINT or fn == TRACE:
        write_log(c, t, S.PRINTED if fn == PRINT else S.TRACED, first, m)
    elif fn == ASSERT_FAIL:
        core[c, S.FAULT], core[c, S.FAULT_A] = S.F_ASSERT, x
        return False
    elif fn == UNBLOCK_CMD_STREAM:
        if core[c, S.ARMED] != 0:
            core[c, S.ARMED] = 0
            m.size[S.PENDING_COMMANDS] -= 1
    elif fn == TASK_PRIORITY:
        bit = np.int64(1) << (x & 63)
        core[c, S.HIGH_TASKS] = core[c, S.HIGH_TASKS] | bit if y else core[c, S.HIGH_TASKS] & ~bit
    elif fn == READ_CONFIG or fn == WRITE_CONFIG:
        result = access_register(c, x, y & 0xFFFF if fn == WRITE_CONFIG else np.int64(-1), m)
        if result < 0:
            core[c, S.FAULT], core[c, S.FAULT_A] = S.F_CONFIG, x
            return False
        wake_router(c, m.size, m.router_listed, m.router_list)
    elif fn == QUEUE_FLUSH:
        core[c, S.EMPTY_WANTED] |= np.int64(1) << ((x & 7) + O.QUEUES * (y & 1))
    elif fn == IQ_EMPTY:
        result = np.int64(1) if visible(c, x & 7, t, m.iq_count, m.iq_last) == 0 else np.int64(0)
    elif fn == OQ_EMPTY:
        result = np.int64(1) if x >= m.out_depth.shape[0] or m.oq_count[x, c] == 0 else np.int64(0)
    elif fn == IQ_FULL:
        for q in range(m.in_depth.shape[0]):
            result |= np.int64(m.iq_count[q, c] >= m.in_depth[q]) << q
    elif fn == OQ_FULL:
        for q in range(m.out_depth.shape[0]):
            result |= np.int64(m.oq_count[q, c] >= m.out_depth[q]) << q
    elif fn == IQ_COLOR:
        slot = np.int64(m.slot_of[y & 31])
        if slot >= 0 and 0 <= x < m.in_color.shape[1]:
            old = m.in_color[c, x]
            if old >= 0 and m.color_queue[c, old] == x:
                m.color_queue[c, old] = -1
            m.color_queue[c, slot] = np.int32(x)
            m.in_color[c, x] = np.int32(slot)
            wake_router(c, m.size, m.router_listed, m.router_list)
    elif fn == OQ_COLOR:
        if 0 <= x < m.out_color.shape[1]:
            m.out_color[c, x] = m.slot_of[y & 31]
    elif fn == MAIN_PRIORITY:
        core[c, S.MAIN_PRIORITY] = x
    elif fn == IS_ACTIVE:
        result = (core[c, S.LIVE] >> (1 + (x & 7))) & 1
    elif fn == TEARDOWN_PENDING:
        result = core[c, S.TEARDOWN_OF]
    elif fn == HALT:
        core[c, S.MODE] = S.HALTED
    elif fn == DSR_SAVE:
        m.dsr[c, (x >> 6) * sets[S.DSRS] + (x & 63)] = y
    elif fn == PERF_COUNTER:
        result = core[c, S.BUSY_CYCLES] if x == 0 else core[c, S.OPCODES]
    elif rs >= 0:
        result = router_function(c, fn, rs, first, m)
    if target >= 0:
        m.regs[c * sets[S.REGISTERS] + core[c, S.WINDOW] + target] = result
    return True


@inlined_kernel
def pointed_register(c, m):
    """Load or store at the pc, whose address names a register; False if there is none."""
    pc = m.core[c, S.PC]
    window = c * m.sets[S.REGISTERS] + m.core[c, S.WINDOW]
    op, cell = np.int64(m.code[pc * 4]) & 255, window + np.int64(m.code[pc * 4 + 1])
    value = m.regs[cell] & 0xFFFF if op == X.ST_16 else np.int64(-1)
    found = access_register(c, m.core[c, S.FAULT_A] >> 1, value, m)
    if found < 0:
        m.core[c, S.FAULT], m.core[c, S.FAULT_A] = S.F_CONFIG, m.core[c, S.FAULT_A] >> 1
        return False
    if op == X.ST_16:
        wake_router(c, m.size, m.router_listed, m.router_list)
    else:
        m.regs[cell] = s16(found) if op == X.LD_I16 else found
    m.core[c, S.PC] = pc + 1
    m.core[c, S.LEFT] += np.int64(m.code[pc * 4]) >> 8
    return True


@inlined_kernel
def advanced(rs, command, rstate, route):
    """State of a router's color after a command: the position moves on, wraps in ring mode, or is reset."""
    state = np.int64(rstate[rs])
    position = state & 3
    if command == 2:
        position = 0
    elif command == 1:
        last = np.int64(0)
        for k in range(1, 4):
            if route[rs * 4 + k] != 0:
                last = np.int64(k)
        if position < last:
            position += 1
            while route[rs * 4 + position] == 0:
                position += 1
        elif state & S.RING_BIT:
            position = np.int64(0)
    elif command == 3:
        state |= S.TORN
    return (state & ~3) | position


@inlined_kernel
def start_task(c, entry, word, core, sets, regs):
    """The main thread begins a task: window 0, the word in r0."""
    core[c, S.PC], core[c, S.WINDOW], core[c, S.DEPTH] = entry, 0, 0
    core[c, S.MODE], core[c, S.LEFT] = S.RUN, sets[S.PICK]
    if core[c, S.TASK] < 64:
        core[c, S.RAN] |= np.int64(1) << core[c, S.TASK]
    regs[c * sets[S.REGISTERS]] = word


@inlined_kernel
def control_state(c, q, word, slot, core, sets, color_of, task_table):
    """The task of a control wavelet that heads queue `q`; -1: it stays; -2: no task has its id, and the channel's data task is open."""
    cls = core[c, S.CLASS]
    task = (word >> 16) & 63
    channel = q if sets[S.IS_WSE3] != 0 else np.int64(color_of[slot])
    if (core[c, S.BLOCKED] >> channel) & 1:
        return np.int64(-1)
    if task_table[cls, task, S.E_ENTRY] >= 0 and task_table[cls, task, S.E_KIND] == S.KIND_CONTROL:
        return np.int64(-1) if (core[c, S.BLOCKED] >> task) & 1 else task
    if task_table[cls, channel, S.E_ENTRY] >= 0 and task_table[cls, channel, S.E_KIND] == S.KIND_DATA:
        return np.int64(-2)
    return np.int64(-1)


@inlined_kernel
def next_activated(c, allowed, core, task_ids):
    """Return the next activated task in the mask `allowed`, round-robin: the next id above the last task,
    else the lowest; -1: none."""
    active = core[c, S.ACTIVE] & allowed
    above, lowest = np.int64(64), np.int64(64)
    if active != 0:
        for i in range(task_ids[core[c, S.CLASS], 0]):
            task = np.int64(task_ids[core[c, S.CLASS], 1 + i])
            if (active >> task) & 1:
                lowest = min(lowest, task)
                if task > core[c, S.TASK]:
                    above = min(above, task)
    return above if above < 64 else (lowest if lowest < 64 else np.int64(-1))


@inlined_kernel
def start_by_word(c, t, turn, controls, m):
    """Begin the task of the lowest id that a word starts, of high (turn 0) or low priority; `controls`: queues that a control wavelet with a task heads."""
    core = m.core
    cls = core[c, S.CLASS]
    blocked, high = core[c, S.BLOCKED], core[c, S.HIGH_TASKS]
    for i in range(m.task_ids[cls, 0]):
        task = np.int64(m.task_ids[cls, 1 + i])
        if (blocked >> task) & 1 or (high >> task) & 1 == turn:
            continue
        entry = np.int64(m.task_table[cls, task, S.E_ENTRY])
        if controls != 0 and m.task_table[cls, task, S.E_KIND] == S.KIND_CONTROL:
            for q in range(m.iq_count.shape[0]):
                if (controls >> q) & 1 and (np.int64(m.iq_word[q, c, m.iq_head[q, c]]) >> 16) & 63 == task:
                    core[c, S.TASK] = task
                    word = take(c, q, m.iq_head, m.iq_word, m.iq_count, m.in_depth, m.core)
                    start_task(c, entry, word, m.core, m.sets, m.regs)
                    return True
        if m.task_table[cls, task, S.E_KIND] == S.KIND_DATA:
            q, slot = task, np.int64(-1)
            if m.sets[S.IS_WSE3] == 0:
                slot = np.int64(m.slot_of[task])
                q = np.int64(m.color_queue[c, slot]) if slot >= 0 else np.int64(-1)
            if q >= 0 and visible(c, q, t, m.iq_count, m.iq_last) > 0:
                meta = head_meta(c, q, m.iq_meta, m.iq_head)
                if meta >> 6 != S.CONTROL_WORD and (slot < 0 or (meta & 63) == slot):
                    core[c, S.TASK] = task
                    start_task(
                        c,
                        entry,
                        take(c, q, m.iq_head, m.iq_word, m.iq_count, m.in_depth, m.core),
                        m.core,
                        m.sets,
                        m.regs,
                    )
                    return True
    return False


@inlined_kernel
def is_empty(c, q, m):
    """Whether an output queue, or input queue q - QUEUES, has no words."""
    if q >= O.QUEUES:
        return q - O.QUEUES >= m.iq_count.shape[0] or m.iq_count[q - O.QUEUES, c] == 0
    return q >= m.out_depth.shape[0] or m.oq_count[q, c] == 0


@inlined_kernel
def choose_task(c, t, m):
    """Give an idle main thread its next task; return False if none can run."""
    core = m.core
    cls = core[c, S.CLASS]
    if core[c, S.COMMAND] >= 0 and core[c, S.COMMAND_AT] <= t:
        entry = core[c, S.COMMAND]
        core[c, S.COMMAND] = -1
        core[c, S.TASK] = 64
        start_task(c, entry, np.int64(0), m.core, m.sets, m.regs)
        for i in range(core[c, S.COMMAND_COUNT]):
            m.regs[c * m.sets[S.REGISTERS] + i] = m.arguments[c, i]
        return True
    blocked = core[c, S.BLOCKED]
    if core[c, S.TEARDOWNS] != 0 and (blocked >> 29) & 1 == 0:
        for color in range(24):
            if (core[c, S.TEARDOWNS] >> color) & 1:
                core[c, S.TEARDOWNS] &= ~(np.int64(1) << color)
                if m.teardown[cls, color] >= 0:
                    core[c, S.TASK] = 29
                    start_task(c, np.int64(m.teardown[cls, color]), np.int64(color), m.core, m.sets, m.regs)
                    return True
                core[c, S.ACTIVE] |= np.int64(1) << 29
    if core[c, S.EMPTY_WANTED] != 0:
        for q in range(2 * O.QUEUES):
            if (core[c, S.EMPTY_WANTED] >> q) & 1 and is_empty(c, q, m):
                core[c, S.EMPTY_WANTED] &= ~(np.int64(1) << q)
                if m.empties[cls, q] >= 0:
                    core[c, S.TASK] = 65
                    start_task(c, np.int64(m.empties[cls, q]), np.int64(q), m.core, m.sets, m.regs)
                    return True
                core[c, S.ACTIVE] |= np.int64(1) << 29
    controls = np.int64(0)  # queues that a control wavelet with a task heads
    for q in range(m.iq_count.shape[0]):
        while (
            visible(c, q, t, m.iq_count, m.iq_last) > 0
            and head_meta(c, q, m.iq_meta, m.iq_head) >> 6 == S.CONTROL_WORD
        ):
            word = np.int64(m.iq_word[q, c, m.iq_head[q, c]])
            slot = head_meta(c, q, m.iq_meta, m.iq_head) & 63
            task = control_state(c, q, word, slot, core, m.sets, m.color_of, m.task_table)
            if task >= 0:
                controls |= np.int64(1) << q
            if task != -2:
                break
            take(c, q, m.iq_head, m.iq_word, m.iq_count, m.in_depth, m.core)
            task = (word >> 16) & 63
            if task != NO_TASK_A and task != NO_TASK_B and m.size[S.N_LOG] < m.log.shape[0]:
                n = m.size[S.N_LOG]
                m.log[n, 0], m.log[n, 1], m.log[n, 2], m.log[n, 3] = t, c, S.DROPPED_CONTROL, task
                m.size[S.N_LOG] = n + 1
    high = core[c, S.HIGH_TASKS]
    for turn in range(0 if high != 0 else 1, 2):  # high priority, then low
        allowed = (high if turn == 0 else ~high) & ~blocked
        task = next_activated(c, allowed, core, m.task_ids)
        if task < 0 or (core[c, S.HAD_TURN] >> task) & 1:  # words have their turn
            core[c, S.HAD_TURN] &= ~allowed
            if start_by_word(c, t, turn, controls, m):
                return True
        if task >= 0:
            core[c, S.ACTIVE] &= ~(np.int64(1) << task)
            core[c, S.HAD_TURN] |= np.int64(1) << task
            core[c, S.TASK] = task
            start_task(c, np.int64(m.task_table[cls, task, S.E_ENTRY]), np.int64(0), m.core, m.sets, m.regs)
            return True
    return False


@inlined_kernel
def memory_cycles(n, th, vop):
    """Cycles of an operation of `n` elements on memory alone."""
    cost, wide = np.int64(th[S.T_COST]), np.int64(vop[th[S.T_OP] - 1, A.ISSUE])
    if wide == 1:
        cycles = (n * cost + 999) // 1000
    else:  # one issue, two if its reads collide, then the rate of long vectors
        cycles = min(n, np.int64(th[S.T_WIDE])) + (max(n - wide, np.int64(0)) * cost + 999) // 1000
    return cycles


@inlined_kernel
def mapped_cycles(c, n, core, sets):
    """Whole cycles that an operation of `n` elements takes more because it is mapped; what is left over adds up."""
    milli = core[c, S.MAP_REST] + sets[S.MAP_MILLI]
    if n > 1:
        milli += sets[S.MAP_VECTOR_MILLI]
    core[c, S.MAP_REST] = milli % 1000
    return milli // 1000


@inlined_kernel
def run_main(c, t, m):
    """Bring the main thread to a state in which it counts cycles, waits or runs a vector operation; 0, or a fault."""
    core, sets = m.core, m.sets
    going = core[c, S.MODE] == S.RUN and core[c, S.LEFT] == 0
    if core[c, S.MODE] == S.RESUMED:
        core[c, S.MODE], going = S.RUN, True
    at_once = False
    while True:
        if going:
            going = False
            why = stretch(c, m)
            if why == X.W_VECTOR:
                pc = core[c, S.PC]
                row = np.int64(m.code[pc * 4 + 3])
                first = c * sets[S.REGISTERS] + core[c, S.WINDOW] + np.int64(m.code[pc * 4 + 2])
                found = survey(c, row, first, m)
                late = np.int64(m.late_price[pc])
                start = late - (MAPPED if late > MAPPED // 2 else 0) + sets[S.DSR_COST] * (found & 15)
                start += sets[S.SHAPE_COST] * (found >> 8)
                if found & 64 != 0:
                    start += max(sets[S.DEPENDENT] - (t + core[c, S.LEFT] - core[c, S.LAST_AT]), np.int64(0))
                core[c, S.LEFT] = max(core[c, S.LEFT] + start, np.int64(0))
                core[c, S.MODE] = S.LAUNCH
                at_once = found & 48 == 0
                if sets[S.PROFILE] != 0:
                    cls = core[c, S.CLASS] if m.profile.shape[0] > 1 else np.int64(0)
                    m.profile[cls, pc, 0] += start
                    m.profile[cls, pc, 1] += 1
            elif why == X.W_SYSTEM:
                pc = core[c, S.PC]
                if core[c, S.LEFT] == 0 or (_AT_ONCE >> np.int64(m.code[pc * 4 + 3])) & 1:
                    if not system(c, t, m):
                        return core[c, S.FAULT]
                    core[c, S.PC] = pc + 1
                    core[c, S.LEFT] += m.late_price[pc]
                    if sets[S.PROFILE] != 0:
                        cls = core[c, S.CLASS] if m.profile.shape[0] > 1 else np.int64(0)
                        m.profile[cls, pc, 0] += m.late_price[pc]
                        m.profile[cls, pc, 1] += 1
                    going = core[c, S.MODE] == S.RUN
            elif why == X.W_REGISTER:
                if not pointed_register(c, m):
                    return core[c, S.FAULT]
                going = True
            elif why == X.W_BUDGET:
                if core[c, S.LEFT] == 0:
                    core[c, S.LEFT] = 1
            elif why == X.W_END:
                core[c, S.MODE] = S.ENDING if core[c, S.LEFT] > 0 else S.IDLE
            elif why != X.W_LATER:
                core[c, S.FAULT] = why
                return why
        if core[c, S.MODE] == S.LAUNCH and (at_once or core[c, S.LEFT] == 0):
            pc = core[c, S.PC]
            row = np.int64(m.code[pc * 4 + 3])
            first = c * sets[S.REGISTERS] + core[c, S.WINDOW] + np.int64(m.code[pc * 4 + 2])
            what = resolve(c, t, row, first, m)
            if what == R.BAD:
                return core[c, S.FAULT]
            if what == R.RESOLVED_SYNC:
                core[c, S.MODE] = S.VECTOR
            elif what == R.RESOLVED_ASYNC:
                core[c, S.MODE], core[c, S.PC] = S.RUN, pc + 1
                target = np.int64(m.code[pc * 4 + 1])
                if target >= 0:
                    m.regs[c * sets[S.REGISTERS] + core[c, S.WINDOW] + target] = 1
                going = True
            elif what == R.RESOLVED_MEMORY:
                if sets[S.WATCH] != 0:
                    W.look_at_operation(c, t, 0, m)
                th = m.threads[0, c]
                n = np.int64(th[S.T_REST])
                bad = run_memory(
                    th, m.vop[th[S.T_OP] - 1], m.memory, c * sets[S.WORDS], sets[S.WORDS], m.shapes, m.rings
                )
                if bad != -1:
                    core[c, S.FAULT], core[c, S.FAULT_A] = S.F_ADDRESS, bad
                    return np.int64(S.F_ADDRESS)
                th[S.T_DONE] = np.int32(n)
                cycles = memory_cycles(n, th, m.vop)
                if m.late_price[pc] > MAPPED // 2:
                    cycles += mapped_cycles(c, n, m.core, m.sets)
                if sets[S.PROFILE] != 0:
                    cls = core[c, S.CLASS] if m.profile.shape[0] > 1 else np.int64(0)
                    m.profile[cls, pc, 0] += cycles
                core[c, S.LEFT] += cycles
                core[c, S.HELD] += cycles
                finish(c, np.int64(0), m)
                core[c, S.LAST_AT] = t + core[c, S.LEFT]
                going = core[c, S.LEFT] < 1 << 20
            at_once = False
        if not going:
            return np.int64(0)


@inlined_kernel
def main_order(c, core):
    """Rank of the main thread on the issue slot: microthreads have 0 (high), 2 (medium), 6 (low)."""
    p = core[c, S.MAIN_PRIORITY]
    return np.int64(-1) if p == 1 else (np.int64(1) if p == 2 else (np.int64(7) if p == 3 else np.int64(4)))


@inlined_kernel
def thread_order(k, ranks):
    """Rank of a microthread: high priority first, medium, low; by number within one."""
    p = (ranks >> (2 * k)) & 3
    return np.int64((0 if p == 1 else (2 if p == 2 else 6)) * 16 + k)


@inlined_kernel
def count_down(c, core):
    """A cycle of the main thread's stretch passes; the end of a task frees it."""
    core[c, S.LEFT] -= 1
    if core[c, S.LEFT] == 0:
        core[c, S.HELD] = 0
        if core[c, S.MODE] == S.ENDING:
            core[c, S.MODE] = S.IDLE


@inlined_kernel
def core_cycle(c, t, m):
    """Run one cycle of one core; return REST, BUSY or what it waits for. A fault is recorded in the core."""
    core, sets = m.core, m.sets
    if core[c, S.MODE] == S.IDLE and core[c, S.FAULT] == 0 and choose_task(c, t, m) and sets[S.SCHEDULE] != 0:
        n = m.size[S.N_LOG]
        if n < m.log.shape[0]:
            m.log[n, 0], m.log[n, 1], m.log[n, 2], m.log[n, 3] = t, c, S.PICKED, core[c, S.TASK]
            m.log[n, 4] = m.regs[c * sets[S.REGISTERS]]
            m.size[S.N_LOG] = n + 1
    if core[c, S.MODE] == S.RUN or core[c, S.MODE] == S.LAUNCH or core[c, S.MODE] == S.RESUMED:
        if run_main(c, t, m) != 0:
            return S.REST
    tried = np.int64(0)
    live = core[c, S.LIVE] & ~(core[c, S.THREADS_BLOCKED] << 1)
    state = np.int64(S.REST)
    counted = False
    if core[c, S.LEFT] > 0 and core[c, S.HELD] == 0:  # scalar code: the slot is free for a microthread
        count_down(c, core)
        if live == 0:
            return np.int64(S.BUSY)
        counted, tried = True, np.int64(1)
    ranks, state_rank = core[c, S.RANKS], np.int64(1 << 20)
    waits = live & (core[c, S.WAITS_INPUT] | core[c, S.WAITS_ROOM])
    if sets[S.TRY_ALL] != 0:  # the oracle tries them all the same
        waits = np.int64(0)
    live &= ~waits  # trying them again would change nothing
    while True:
        best, rank = np.int64(-1), np.int64(1 << 20)
        if tried & 1 == 0:
            best, rank = np.int64(0), main_order(c, m.core) * 16
        if live & ~tried != 0:
            for k in range(1, S.N_THREADS):
                if (live >> k) & 1 and (tried >> k) & 1 == 0:
                    mine = thread_order(k, ranks)
                    if mine < rank:
                        best, rank = np.int64(k), mine
        if best < 0:
            if counted:
                return np.int64(S.BUSY)
            for k in range(1, S.N_THREADS):  # what the first of those that wait waits for
                if (waits >> k) & 1 and thread_order(k, ranks) < state_rank:
                    state_rank = thread_order(k, ranks)
                    is_input = (core[c, S.WAITS_INPUT] >> k) & 1
                    state = np.int64(S.WAIT_INPUT if is_input else S.WAIT_OUTPUT)
            return state
        tried |= np.int64(1) << best
        one = np.int64(S.REST)
        if best == 0 and core[c, S.LEFT] > 0:
            core[c, S.HELD] -= 1
            count_down(c, core)
            return np.int64(S.BUSY)
        if best == 0 and core[c, S.MODE] == S.LAUNCH:
            one = np.int64(S.WAIT_THREAD)
        elif best > 0 or core[c, S.MODE] == S.VECTOR:
            one = np.int64(step(c, best, t, m))
            if sets[S.PROFILE] != 0 and (one == V.DONE or one == S.BUSY):
                cls = core[c, S.CLASS] if m.profile.shape[0] > 1 else np.int64(0)
                m.profile[cls, m.threads[best, c, S.T_PC], 0] += 1
            if one == V.DONE:
                finish(c, best, m)
                if best == 0:
                    core[c, S.LAST_AT] = t + 1
                return np.int64(S.BUSY)
            if one == S.BUSY:
                return np.int64(S.BUSY)
        if state == S.REST and one != S.REST:
            state, state_rank = one, rank
