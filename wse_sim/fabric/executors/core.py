"""One core for one cycle: queues, tasks, threads, issue slot, values.  Oracle and wavelet executor step it.

All state of a core is one int32 row of `st`: the fields below, the output ring, one input queue per slot, one
record per thread.  `lay` (int64) holds the sizes.  Cycle order: routers move, rings pop, then cores.

All functions share one file, because they are compiled into one loop and read one row of state.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.lower import C_MILLI, C_PER, C_START
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.format.values import arithmetic, bits_f16, bits_f32, f16_bits, f32_bits, round_f16
from wse_sim.jit import helper_kernel, inlined_kernel, rounded_product

# Columns of `lay`.
(COLS, SLOTS, THREADS, FUNCTIONAL, PICK, DELAY, RING_SIZE, LEAF0, LEAF_WIDTH, THREAD0, DEPTH0) = range(11)

# Fields of a core.
(PC, MAIN, ACTIVE, BLOCKED, TURNS_LEFT, TURN) = (0, 1, 2, 3, 4, 8)
(HALT_AT, RING_HEAD, RING_COUNT, RING_HIGH, LEAF_HIGH, WAVELET, CLASS, STATE, SINCE) = range(12, 21)
COUNTS = 21  # busy, stalled on input, stalled on output: 21, 22, 23
SENT, RECEIVED = 24, 25
RING0 = 26
RING_FIELDS = 4
R_WORD, R_META, R_TIME, R_IDENT = range(RING_FIELDS)  # meta = slot | flag << 8
Q_COUNT, Q_HEAD, Q_LAST, Q_FLAGS, Q_DATA = range(5)
(INSTR, LEFT, ITEMS, MILLI, INDEX, OFF_D, OFF_A, OFF_B, OFF_S) = range(9)
THREAD_FIELDS = 9
NO_INSTR, PICKING = -1, -2

# Outcome of a loop over all cores: kind; then cycle, core, slot, rows of the trace.
DONE, STUCK, TWO_INPUTS, OUT_OF_BOUNDS, TOO_LONG = range(5)
OUTCOME_FIELDS = 5

MAIN_NONE, MAIN_RUNNING, MAIN_IDLE, MAIN_HALTED = 0, 1, 2, 3
IDLE, BUSY, STALLED_IN, STALLED_OUT, FAULT = 0, 1, 2, 3, 4
FAULT_BOUNDS = -1

_MEMORY, _FABRIC, _SCALAR, _WAVELET = (
    int(P.Kind.MEMORY),
    int(P.Kind.FABRIC),
    int(P.Kind.SCALAR),
    int(P.Kind.WAVELET),
)
_HALT, _TASK_END, _LOOP, _ENDLOOP, _BUSY = (
    int(op) for op in (P.Op.HALT, P.Op.TASK_END, P.Op.LOOP, P.Op.ENDLOOP, P.Op.BUSY)
)
_ACTIVATE, _BLOCK, _UNBLOCK, _JOIN, _CONTROL = (
    int(op) for op in (P.Op.ACTIVATE, P.Op.BLOCK, P.Op.UNBLOCK, P.Op.JOIN, P.Op.CONTROL)
)
_FMACV = int(P.Op.FMACV)
_FRESH, _INDEXED = int(P.Each.FRESH), int(P.Each.INDEXED)
_LOCAL, _DATA = int(P.TaskKind.LOCAL), int(P.TaskKind.DATA)
_WIRE32, _WIRE16 = int(P.Wire.FP32), int(P.Wire.FP16)
OP, N, N_PARAM, LEVEL, TARGET, THREAD, PRIORITY = (
    P.OP,
    P.N,
    P.N_PARAM,
    P.LEVEL,
    P.TARGET,
    P.THREAD,
    P.PRIORITY,
)
WIRE, FN, IMM, DONE_KIND, DONE_TASK, ADVANCE, ON_CONTROL = (
    P.WIRE,
    P.FN,
    P.IMM,
    P.DONE_KIND,
    P.DONE_TASK,
    P.ADVANCE,
    P.ON_CONTROL,
)
M, D_OUTER, B_OUTER, D, A, B, S = P.M, P.D_OUTER, P.B_OUTER, P.D, P.A, P.B, P.S
KIND, BUF, OFFSET, STRIDE, STEP, OUTER_STEP = P.KIND, P.BUF, P.OFFSET, P.STRIDE, P.STEP, P.OUTER_STEP
T_KIND, T_KEY, T_ENTRY = P.T_KIND, P.T_KEY, P.T_ENTRY
FLAG_CONTROL, FLAG_ADVANCE_LOCAL = P.FLAG_CONTROL, P.FLAG_ADVANCE_LOCAL
LOW_WORD = 0xFFFFFFFF
B_BASE, B_ROW, B_COL, B_COLS, B_LENGTH, B_DTYPE = P.B_BASE, P.B_ROW, P.B_COL, P.B_COLS, P.B_LENGTH, P.B_DTYPE


def make_state(
    program: Program, config: FabricConfig, *, functional: bool
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return the state rows, int32 (R, width), at cycle 0, and their layout."""
    depth = int(program.input_depth.max(initial=2))
    if depth > 15:
        raise ProgramError(f"an input queue of {depth} words, limit 15; bind the color to another queue")
    leaf0 = RING0 + RING_FIELDS * config.ring_wavelets
    leaf_width = Q_DATA + depth
    thread0 = leaf0 + program.n_slots * leaf_width
    width = thread0 + THREAD_FIELDS * program.n_threads
    lay = np.zeros(DEPTH0 + program.n_slots, np.int64)
    lay[:DEPTH0] = (
        program.cols, program.n_slots, program.n_threads, functional, config.task_pick_cycles,
        config.ring_delay_cycles, config.ring_wavelets, leaf0, leaf_width, thread0,
    )  # fmt: skip
    lay[DEPTH0:] = program.input_depth
    st = np.zeros((program.n_cores, width), np.int32)
    st[:, CLASS] = program.core_class
    has_program = program.class_entry[program.core_class] >= 0
    st[:, MAIN] = np.where(has_program, MAIN_RUNNING, MAIN_NONE)
    st[:, PC] = program.class_entry[program.core_class]
    active = np.zeros(len(program.class_names), np.int64)
    blocked = np.zeros_like(active)
    for c in range(len(active)):
        for i, row in enumerate(program.tasks[program.class_tasks[c] : program.class_tasks[c + 1]]):
            active[c] |= int(row[P.T_ACTIVE]) << i
            blocked[c] |= int(row[P.T_BLOCKED]) << i
    st[:, ACTIVE], st[:, BLOCKED] = active[program.core_class], blocked[program.core_class]
    st[:, leaf0 + Q_LAST : thread0 : leaf_width] = -1
    st[:, thread0 + INSTR :: THREAD_FIELDS] = NO_INSTR
    return st, lay


@inlined_kernel
def leaf_visible(s, c, q, t):
    """Return the number of words in the input queue at offset `q` that the core can read in cycle t."""
    n = np.int64(s[q + Q_COUNT])
    if n > 0 and s[q + Q_LAST] == t:
        n -= 1
    return n


@inlined_kernel
def leaf_push(s, c, slot, word, flag, t, lay):
    """Store a word that the router delivers in cycle t; the caller has checked that there is space."""
    q = lay[LEAF0] + slot * lay[LEAF_WIDTH]
    n = np.int64(s[q + Q_COUNT])
    i = (np.int64(s[q + Q_HEAD]) + n) % lay[DEPTH0 + slot]
    s[q + Q_DATA + i] = np.int32(word)
    flags = np.int64(s[q + Q_FLAGS])
    s[q + Q_FLAGS] = np.int32((flags & ~(3 << (2 * i))) | (flag << (2 * i)))
    s[q + Q_COUNT] = np.int32(n + 1)
    s[q + Q_LAST] = np.int32(t)
    if n + 1 > s[LEAF_HIGH]:
        s[LEAF_HIGH] = np.int32(n + 1)


@inlined_kernel
def leaf_flag(s, c, q):
    """Return the flag of the head word."""
    return (np.int64(s[q + Q_FLAGS]) >> (2 * np.int64(s[q + Q_HEAD]))) & 3


@inlined_kernel
def leaf_pop(s, c, slot, lay):
    """Remove and return the head word."""
    q = lay[LEAF0] + slot * lay[LEAF_WIDTH]
    head = np.int64(s[q + Q_HEAD])
    s[q + Q_HEAD] = np.int32((head + 1) % lay[DEPTH0 + slot])
    s[q + Q_COUNT] -= np.int32(1)
    s[RECEIVED] += np.int32(1)
    return np.int64(s[q + Q_DATA + head])


@inlined_kernel
def ring_push(s, c, slot, word, flag, t, lay):
    """Send a word in cycle t."""
    n = np.int64(s[RING_COUNT])
    r = RING0 + RING_FIELDS * ((np.int64(s[RING_HEAD]) + n) % lay[RING_SIZE])
    s[r + R_WORD] = np.int32(word)
    s[r + R_META] = np.int32(slot | (flag << 8))
    s[r + R_TIME] = np.int32(t)
    s[r + R_IDENT] = s[SENT]
    s[SENT] += np.int32(1)
    s[RING_COUNT] = np.int32(n + 1)
    if n + 1 > s[RING_HIGH]:
        s[RING_HIGH] = np.int32(n + 1)


@inlined_kernel
def ring_head(s, c, t, lay):
    """Return the offset of the head record if it may leave in cycle t, 0 if it is too young, -1 if the ring
    is empty."""
    if s[RING_COUNT] == 0:
        return np.int64(-1)
    r = RING0 + RING_FIELDS * np.int64(s[RING_HEAD])
    if s[r + R_TIME] + lay[DELAY] > t:
        return np.int64(0)
    return np.int64(r)


@inlined_kernel
def ring_pop(s, c, lay):
    """Drop the head record."""
    s[RING_HEAD] = np.int32((np.int64(s[RING_HEAD]) + 1) % lay[RING_SIZE])
    s[RING_COUNT] -= np.int32(1)


@helper_kernel
def operand_start(s, c, row, place, n, outer, lay, code, buffers):
    """Return the arena index of a memory operand's first element, or FAULT_BOUNDS; `outer` = (stride, count)
    of FMACV."""
    buf = code[row, place + BUF]
    level = code[row, LEVEL]
    offset = code[row, place + OFFSET]
    if level > 0:
        offset += code[row, place + STEP] * s[TURN + level - 1]
    if level > 1:
        offset += code[row, place + OUTER_STEP] * s[TURN + level - 2]
    last = offset + (n - 1) * code[row, place + STRIDE]
    far = outer
    low, high = min(offset, last, offset + far, last + far), max(offset, last, offset + far, last + far)
    if low < 0 or high >= buffers[buf, B_LENGTH]:
        return np.int64(FAULT_BOUNDS)
    core_row, core_col = c // lay[COLS], c % lay[COLS]
    rank = (core_row - buffers[buf, B_ROW]) * buffers[buf, B_COLS] + core_col - buffers[buf, B_COL]
    return buffers[buf, B_BASE] + rank * buffers[buf, B_LENGTH] + offset


@helper_kernel
def begin_row(s, c, th, row, n, lay, code, costs, buffers):
    """Put instruction `row` of n elements on thread record `th`, start cost not included."""
    s[th + INSTR] = np.int32(row)
    s[th + ITEMS] = np.int32(n)
    s[th + MILLI] = 999
    s[th + INDEX] = 0
    if lay[FUNCTIONAL] == 0 or n == 0:
        return 0
    is_fmacv = code[row, OP] == _FMACV
    for k in range(4):
        place = D + k * P.OPERAND_FIELDS
        if code[row, place + KIND] == _MEMORY:
            length, outer = n, np.int64(0)
            if is_fmacv and place == D:
                length, outer = code[row, M], (n - 1) * code[row, D_OUTER]
            elif is_fmacv and place == B:
                length, outer = code[row, M], (n - 1) * code[row, B_OUTER]
            start = operand_start(s, c, row, place, length, outer, lay, code, buffers)
            if start == FAULT_BOUNDS:
                return FAULT_BOUNDS
            s[th + OFF_D + k] = np.int32(start)
    return 0


@helper_kernel
def begin(st, c, th, row, n, lay, code, costs, buffers):
    """:func:`begin_row` for core `c` of all rows."""
    return begin_row(st[c], c, th, row, n, lay, code, costs, buffers)


@inlined_kernel
def count_of(c, row, code, params):
    """Return length, iterations or cycles of an instruction in this core."""
    if code[row, N_PARAM] >= 0:
        return np.int64(max(0, params[code[row, N_PARAM], c]))
    return code[row, N]


@helper_kernel
def complete(s, c, th, t, lay, code, costs, params, buffers):
    """Complete a thread's instruction in its last issue cycle: launch, activate or unblock, and free the
    thread."""
    row = np.int64(s[th + INSTR])
    s[th + INSTR] = NO_INSTR
    if row < 0 or code[row, OP] < _CONTROL:
        return 0
    if th == lay[THREAD0] and code[row, THREAD] > 0:  # the start cost of a microthread was paid: launch it
        n = count_of(c, row, code, params)
        target = lay[THREAD0] + code[row, THREAD] * THREAD_FIELDS
        fault = begin_row(s, c, target, row, n, lay, code, costs, buffers)
        s[target + LEFT] = 0
        if n > 0 or fault != 0:
            return fault
        s[target + INSTR] = NO_INSTR
    if code[row, DONE_KIND] == 1:
        s[ACTIVE] |= np.int32(1 << code[row, DONE_TASK])
    elif code[row, DONE_KIND] == 2:
        s[BLOCKED] &= np.int32(~(1 << code[row, DONE_TASK]))
    return 0


@helper_kernel
def pick_task(s, c, t, lay, tasks, class_tasks):
    """Return the entry of the first runnable task in table order, or -1; pops the word of a data or control
    task."""
    first = class_tasks[s[CLASS]]
    for i in range(class_tasks[s[CLASS] + 1] - first):
        if (s[BLOCKED] >> i) & 1:
            continue
        kind, key = tasks[first + i, T_KIND], np.int64(tasks[first + i, T_KEY])
        if kind == _LOCAL:
            if (s[ACTIVE] >> i) & 1:
                s[ACTIVE] &= np.int32(~(1 << i))
                return np.int64(tasks[first + i, T_ENTRY])
        elif kind == _DATA:
            q = lay[LEAF0] + key * lay[LEAF_WIDTH]
            if leaf_visible(s, c, q, t) > 0 and leaf_flag(s, c, q) != FLAG_CONTROL:
                s[WAVELET] = np.int32(leaf_pop(s, c, key, lay))
                return np.int64(tasks[first + i, T_ENTRY])
        else:
            for slot in range(lay[SLOTS]):
                q = lay[LEAF0] + slot * lay[LEAF_WIDTH]
                if leaf_visible(s, c, q, t) > 0 and leaf_flag(s, c, q) == FLAG_CONTROL:
                    word = np.int64(s[q + Q_DATA + s[q + Q_HEAD]])
                    if ((word >> 16) & 63) == key:
                        s[WAVELET] = np.int32(leaf_pop(s, c, slot, lay))
                        return np.int64(tasks[first + i, T_ENTRY])
    return np.int64(-1)


@helper_kernel
def threads_idle(s, c, lay):
    """Return whether no microthread has an instruction."""
    for k in range(1, lay[THREADS]):
        if s[lay[THREAD0] + k * THREAD_FIELDS + INSTR] != NO_INSTR:
            return False
    return True


@helper_kernel
def fetch(s, c, t, lay, code, costs, params, tasks, class_tasks, buffers):
    """Advance the main thread to its next instruction that costs cycles; control instructions are free."""
    main = lay[THREAD0]
    while s[main + INSTR] == NO_INSTR:
        if s[MAIN] == MAIN_IDLE:
            entry = pick_task(s, c, t, lay, tasks, class_tasks)
            if entry < 0:
                return 0
            s[MAIN], s[PC] = MAIN_RUNNING, np.int32(entry)
            if lay[PICK] > 0:
                s[main + INSTR], s[main + LEFT], s[main + ITEMS] = PICKING, np.int32(lay[PICK]), 0
                return 0
        if s[MAIN] != MAIN_RUNNING:
            return 0
        row = np.int64(s[PC])
        op = code[row, OP]
        level = code[row, LEVEL]
        if op == _HALT:
            if not threads_idle(s, c, lay):
                return 0
            s[MAIN], s[HALT_AT] = MAIN_HALTED, np.int32(t)
            return 0
        if op == _TASK_END:
            s[MAIN] = MAIN_IDLE
            continue
        if op == _JOIN and s[main + code[row, THREAD] * THREAD_FIELDS + INSTR] != NO_INSTR:
            return 0
        n = count_of(c, row, code, params)
        if op == _LOOP:
            s[TURNS_LEFT + level], s[TURN + level] = np.int32(n), 0
            if n == 0:
                s[PC] = np.int32(code[row, TARGET])
        elif op == _ENDLOOP:
            s[TURNS_LEFT + level] -= np.int32(1)
            if s[TURNS_LEFT + level] > 0:
                s[TURN + level] += np.int32(1)
                s[PC] = np.int32(code[row, TARGET])
        elif op == _BUSY:
            if n > 0:
                s[main + INSTR], s[main + LEFT], s[main + ITEMS] = np.int32(row), np.int32(n), 0
        elif op == _ACTIVATE:
            s[ACTIVE] |= np.int32(1 << code[row, TARGET])
        elif op == _BLOCK:
            s[BLOCKED] |= np.int32(1 << code[row, TARGET])
        elif op == _UNBLOCK:
            s[BLOCKED] &= np.int32(~(1 << code[row, TARGET]))
        elif op >= _CONTROL:
            if code[row, THREAD] > 0:
                if s[main + code[row, THREAD] * THREAD_FIELDS + INSTR] != NO_INSTR:
                    return 0
                s[main + INSTR], s[main + ITEMS] = np.int32(row), 0
            elif begin_row(s, c, main, row, n, lay, code, costs, buffers) != 0:
                return FAULT_BOUNDS
            s[main + LEFT] = np.int32(costs[row, C_START])
            if s[main + LEFT] == 0 and s[main + ITEMS] == 0:
                if complete(s, c, main, t, lay, code, costs, params, buffers) != 0:
                    return FAULT_BOUNDS
        s[PC] += np.int32(1)
    return 0


@inlined_kernel
def element_in(s, c, th, row, place, k, i, word, half, code, arena):
    """Return element i of operand k, from memory, half of a fabric word, an immediate or the data task's
    wavelet."""
    kind = code[row, place + KIND]
    if kind == _MEMORY:
        return arena[np.int64(s[th + OFF_D + k]) + i * code[row, place + STRIDE]]
    if kind == _SCALAR:
        return bits_f32(code[row, IMM])
    if kind == _FABRIC or kind == _WAVELET:
        bits = np.int64(s[WAVELET]) if kind == _WAVELET else word
        if code[row, WIRE] == _WIRE32:
            return bits_f32(bits)
        return bits_f16(bits >> (16 * half))
    return np.float32(0.0)


@inlined_kernel
def run_elements_row(state, c, th, row, first, n, word_a, word_b, code, buffers, arena):
    """Compute elements first .. first + n - 1; return the outgoing word."""
    op, fn = code[row, OP], code[row, FN]
    to_fabric = code[row, D + KIND] == _FABRIC
    narrow = not to_fabric and buffers[code[row, D + BUF], B_DTYPE] == 1
    out = np.int64(0)
    for half in range(n):
        i = first + half
        a = element_in(state, c, th, row, A, 1, i, word_a, half, code, arena)
        if op == _FMACV:
            which, replaces = np.int64(i), fn & _FRESH != 0 and (i == 0 or code[row, D_OUTER] != 0)
            if fn & _INDEXED:
                which, a = min((word_a >> 16) & 0xFFFF, code[row, P.N] - 1), bits_f16(word_a)
            d0 = np.int64(state[th + OFF_D]) + i * code[row, D_OUTER]
            b0 = np.int64(state[th + OFF_B]) + which * code[row, B_OUTER]
            for j in range(code[row, M]):
                x = d0 + j * code[row, D + STRIDE]
                r = rounded_product(a, arena[b0 + j * code[row, B + STRIDE]])
                r = r if replaces else np.float32(arena[x] + r)
                arena[x] = round_f16(r) if narrow else r
            continue
        b = element_in(state, c, th, row, B, 2, i, word_b, half, code, arena)
        s = element_in(state, c, th, row, S, 3, i, word_b, half, code, arena)
        x = np.int64(state[th + OFF_D]) + i * code[row, D + STRIDE]
        d = np.float32(0.0) if to_fabric else arena[x]
        r = arithmetic(op, fn, d, a, b, s)
        if not to_fabric:
            arena[x] = round_f16(r) if narrow else r
        elif code[row, WIRE] == _WIRE32:
            out = f32_bits(r)
        else:
            out |= f16_bits(r) << (16 * half)
    return out


@helper_kernel
def run_elements(st, c, th, row, first, n, word_a, word_b, code, buffers, arena):
    """:func:`run_elements_row` for core `c` of all rows."""
    return run_elements_row(st[c], c, th, row, first, n, word_a, word_b, code, buffers, arena)


@inlined_kernel
def words_of_step(n):
    """Return the number of wavelets for the `n` elements of a step: two if there are more than two
    elements."""
    return np.int64(2) if n > 2 else np.int64(1)


@inlined_kernel
def issue(s, c, th, t, lay, code, costs, params, buffers, arena):
    """Try to give the issue slot to a thread: BUSY, STALLED_IN, STALLED_OUT, IDLE (no instruction) or FAULT."""
    row = np.int64(s[th + INSTR])
    if row == NO_INSTR:
        return IDLE
    if s[th + LEFT] > 0:
        s[th + LEFT] -= np.int32(1)
        if s[th + LEFT] == 0 and s[th + ITEMS] == 0:
            if complete(s, c, th, t, lay, code, costs, params, buffers) != 0:
                return FAULT
        return BUSY
    per = costs[row, C_PER]
    items = np.int64(s[th + ITEMS])
    n = items if per == 0 else min(per, items)
    n_words = words_of_step(n)
    word_a, word_b = np.int64(0), np.int64(0)
    is_control = False
    if per > 0:
        for place in (A, B):
            if code[row, place + KIND] == _FABRIC:
                q = lay[LEAF0] + code[row, place + BUF] * lay[LEAF_WIDTH]
                if leaf_visible(s, c, q, t) < n_words:
                    return STALLED_IN
                if leaf_flag(s, c, q) == FLAG_CONTROL:
                    leaf_pop(s, c, code[row, place + BUF], lay)
                    is_control = True
                    break
        if is_control:
            if code[row, ON_CONTROL] == 1:
                s[th + ITEMS] = 0
                if complete(s, c, th, t, lay, code, costs, params, buffers) != 0:
                    return FAULT
            return BUSY
        if code[row, D + KIND] == _FABRIC and s[RING_COUNT] + n_words > lay[RING_SIZE]:
            return STALLED_OUT
        for k in range(n_words):
            if code[row, A + KIND] == _FABRIC:
                word_a |= (leaf_pop(s, c, code[row, A + BUF], lay) & LOW_WORD) << (32 * k)
            if code[row, B + KIND] == _FABRIC:
                word_b |= (leaf_pop(s, c, code[row, B + BUF], lay) & LOW_WORD) << (32 * k)
    out = np.int64(0)
    if code[row, OP] == _CONTROL:
        out = code[row, IMM]
    elif lay[FUNCTIONAL] != 0:
        out = run_elements_row(
            s, c, th, row, np.int64(s[th + INDEX]), n, word_a, word_b, code, buffers, arena
        )
    if code[row, D + KIND] == _FABRIC:
        flag = np.int64(0)
        if code[row, OP] == _CONTROL:
            flag = np.int64(FLAG_CONTROL)
        elif n == items and code[row, ADVANCE] > 0:
            flag = FLAG_ADVANCE_LOCAL - 1 + code[row, ADVANCE]
        if n_words == 2:
            ring_push(s, c, code[row, D + BUF], out & LOW_WORD, np.int64(0), t, lay)
            out = (out >> 32) & LOW_WORD
        ring_push(s, c, code[row, D + BUF], out, flag, t, lay)
    cost = np.int64(s[th + MILLI]) + costs[row, C_MILLI] * (n if per == 0 else 1)
    cycles = max(np.int64(1), cost // 1000)
    s[th + MILLI] = np.int32(max(np.int64(0), cost - 1000 * cycles))
    s[th + LEFT] = np.int32(cycles - 1)
    s[th + ITEMS] = np.int32(items - n)
    s[th + INDEX] += np.int32(n)
    if cycles == 1 and items == n:
        if complete(s, c, th, t, lay, code, costs, params, buffers) != 0:
            return FAULT
    return BUSY


@helper_kernel
def core_cycle(s, c, t, lay, code, costs, params, tasks, class_tasks, buffers, arena):
    """Run one cycle of one core; return IDLE, BUSY, STALLED_IN, STALLED_OUT or FAULT."""
    if fetch(s, c, t, lay, code, costs, params, tasks, class_tasks, buffers) != 0:
        return FAULT
    main = lay[THREAD0]
    state = IDLE
    n_threads = lay[THREADS]
    for turn in range(4 if n_threads > 1 else 1):  # high, medium, main, low
        is_main = turn == 2 or n_threads == 1
        for k in range(0 if is_main else 1, 1 if is_main else n_threads):
            th = main + k * THREAD_FIELDS
            row = np.int64(s[th + INSTR])
            if row == NO_INSTR or (not is_main and code[row, PRIORITY] != (turn if turn < 2 else 2)):
                continue
            one = issue(s, c, th, t, lay, code, costs, params, buffers, arena)
            if state == IDLE or one == BUSY or one == FAULT:
                state = one  # of several blocked threads the first counts
            if one == BUSY or one == FAULT:
                break
        if state == BUSY or state == FAULT:
            break
    if state == BUSY and s[MAIN] != MAIN_HALTED:
        s[HALT_AT] = np.int32(t + 1)
    return state


@helper_kernel
def is_finished(s, c, lay):
    """Return whether the core has halted, or has ended its tasks with nothing active."""
    if s[MAIN] == MAIN_NONE or s[MAIN] == MAIN_HALTED:
        return True
    return s[MAIN] == MAIN_IDLE and s[ACTIVE] == 0 and threads_idle(s, c, lay)
