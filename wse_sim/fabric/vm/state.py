"""State of all register cores and their routers: flat arrays in one tuple, made from an image at cycle 0.

R = rows * cols cores, S = colors in use ("slots"), Q = input queues, N = output queues.  The operating system gives pages at first touch.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.vm.image import COLORS, CONTROL, DATA, LOCAL, TASK_IDS, Image
from wse_sim.jit_bundles import by_pointer

Array = npt.NDArray[Any]

# Fields of a core, int64.
(
    PC, WINDOW, DEPTH, MODE, LEFT, ACTIVE, BLOCKED, TASK, TEARDOWNS, TEARDOWN_OF, THREADS_BLOCKED, COMMAND, COMMAND_COUNT, ARMED,
    PRNG, TSC_ON, TSC_BASE, TSC_HELD, CARRY, STATUS, MAIN_PRIORITY, STATE, SINCE, BUSY_CYCLES, INPUT_CYCLES, OUTPUT_CYCLES,
    SENT, RECEIVED, PUSHED, FAULT, FAULT_A, FAULT_B, FAULT_PC, CLASS, LIVE, OPCODES, LAST_BUSY, QUEUE_TURN, WORD, EMPTY_WANTED, HELD, HIGH_TASKS,
    MAP_REST, RANKS, WAITS_INPUT, WAITS_ROOM, HAD_TURN, RAN, LAST_RESULT, LAST_AT, COMMAND_AT,
) = range(51)  # fmt: skip
CORE_FIELDS = 51

# LEFT counts the cycles of the main thread's stretch, HELD those of them that hold the issue slot (vector operations on memory); MAP_REST thousandths of a
# cycle that mapped operations have left over.
# COMMAND_AT: the first cycle in which the core may begin COMMAND, whose words are on their way until then.
# HAD_TURN: activated tasks that ran since words last had their turn.  RAN: tasks that ever ran.  RANKS: two bits of priority per thread.  WAITS_INPUT, WAITS_ROOM: threads whose queue was empty or full when they tried, and is so still.
# LAST_RESULT: 1 + address of the one element that the main thread's last vector operation wrote, LAST_AT: the cycle from which on others could issue.
# Modes of the main thread.  RESUMED: scalar code goes on where a stop of the debugger cut it, within the same cycle.
IDLE, RUN, LAUNCH, VECTOR, ENDING, HALTED, NO_PROGRAM, RESUMED = range(8)
CARRIED = FAULT_B  # of a core without a fault: opcodes of the stretch that a stop of the debugger cut
BREAK = 200  # opcode of a row at which cores may stop (breakpoints.py); it is none of the machine's, so it ends a stretch as a fault does
# What a core did in a cycle.
REST, BUSY, WAIT_INPUT, WAIT_OUTPUT, WAIT_THREAD = range(5)

# Faults.
(
    F_NONE, F_ADDRESS, F_DIVISION, F_ASSERT, F_CALLS, F_REGISTERS, F_THREAD, F_OPERAND, F_DEPTH, F_PRINT, F_TWO_INPUTS, F_NO_QUEUE, F_OPCODE,
    F_EDGE, F_CONFIG, F_BOUNDS, F_STOP,
) = range(17)  # fmt: skip

# Fields of a thread, int32; then four operands.  T_OP: 1 + operation, 0 = none (so an unused thread touches no page).
(
    T_OP, T_LEFT, T_REST, T_MILLI, T_PC, T_ACTIVATE, T_UNBLOCK, T_ON_CONTROL, T_CONTROL_TASK, T_PRIORITY, T_STEP, T_COST, T_INDEX, T_DONE,
    T_CARRY, T_FLAGS, T_RESULT, T_ENDLESS, T_WIDE,
) = range(19)  # fmt: skip
OPERAND0 = 20
(
    P_FORM,
    P_ADDRESS,
    P_STRIDE,
    P_ROW,
    P_C0,
    P_C1,
    P_C2,
    P_C3,
    P_DSR,
    P_SLOT,
    P_QUEUE,
    P_VALUE,
    P_KIND,
    P_START,
) = range(14)
OPERAND_FIELDS = 14
THREAD_FIELDS = OPERAND0 + 4 * OPERAND_FIELDS
N_THREADS = 9
# Forms of a resolved operand.
NOTHING, MEMORY, INPUT, OUTPUT, VALUE, FIFO = range(6)
# Kinds of memory operands.
LINE, SHAPE, RING = range(3)
# Flags of a thread.
FLAG_CONTROL, FLAG_WAVELET_INDEX, FLAG_ADVANCE, FLAG_ZERO0, FLAG_ZERO1, FLAG_FIFO, FLAG_SIMD = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
)
FLAG_STAYS = 256  # behind its last element the operation waits for a control wavelet (FLAG_SIMD has two bits)

# Flags of a wavelet.
DATA_WORD, CONTROL_WORD, ADVANCE_WORD = 0, 1, 2

# Bits of the state of a router's color.
RING_BIT, SWAP_X, SWAP_Y, TORN = 4, 32, 64, 128

# Settings of a run.
(
    ROWS, COLS, SLOTS, WORDS, REGISTERS, CALLS, DSRS, FIFOS, QUEUES, OUTPUTS, HOP, TURN_COST, CROSSING, CELLS, CAP, WAVELET_MILLI, ROUND_ROBIN,
    STRICT, RAMP_DELAY, IS_WSE3, PICK, CONFLICT, PROFILE, BUDGET, OFFSET_X, OFFSET_Y, DSR_COST, DATA_DEPTH, BANK_PERIOD_16,
    BANK_PERIOD_32, MAP_MILLI, MAP_VECTOR_MILLI, TRY_ALL, SCHEDULE, BOUNDS, WATCH, SCALAR_WORDS, HALF, SHAPE_COST, DEPENDENT,
) = range(40)  # fmt: skip
SETTINGS = 40

# Columns of `task_table` (class, id): entry or -1, kind, priority.
E_ENTRY, E_KIND, E_PRIORITY = range(3)
KIND_LOCAL, KIND_DATA, KIND_CONTROL = range(3)

# Columns of an injection.
(I_CORE, I_SLOT, I_POS, I_END, I_TIME, I_PERIOD, I_NEXT, I_PORT, I_FLAG) = range(9)
INJECTION_FIELDS = 9
# I_PORT of a command that reaches I_FLAG cores from I_CORE on; those of words are -1 (the core) and 0 to 4.
WAKE_PORT = -2

# Counters of the loop that outlive a call: see loop.py.
(
    N_LOG,
    N_DRAIN,
    PENDING_COMMANDS,
    OUTSTANDING,
    N_INJECTING,
    N_ROUTERS,
    N_READY,
    N_RINGS,
    N_TIMED,
    N_NEXT,
    PARITY,
    MOVED,
    CLOCK,
    FAULTS,
    DROPPED,
    PHASE,
    NEXT_WORD,
    N_FOUND,
) = range(18)
SIZES = 18
LOG_FIELDS = 12
PRINTED, TRACED, DROPPED_CONTROL, WARN_TASK, PICKED = range(5)


@by_pointer
class Machine(NamedTuple):
    """All arrays of a run; see the comments for shapes."""

    sets: Array  # int64 (SETTINGS,)
    die_edges: Array  # uint8 (n,): ports that lead over the edge of a die
    code: Array  # int32 (n * 4,): op | price << 8, a, b, c
    late_price: Array  # int32 (n,): price of rows that are paid when they are due (VEC, SYS, BLOCK), of jumps where they are taken
    issues: Array  # int32 (n, VECTOR_FIELDS)
    loads: Array  # int32 (n, LOAD_FIELDS)
    shapes: Array
    rings: Array
    filters: Array
    constants: Array  # int64 (classes, k)
    fifos: Array  # int32 (classes, FIFOS, 5): base, words, element words, activate push, activate pop
    task_table: Array  # int32 (classes, 64, 3)
    task_ids: Array  # int32 (classes, 65): count, then ids in order of choice
    teardown: Array  # int32 (classes, 24): entry or -1
    empties: Array  # int32 (classes, 2 QUEUES): entry or -1; output queues, then input queues
    owner: Array  # uint16 (classes, WORDS): 1 + number of the variable that holds a word, 0: none
    vop: Array  # int32 (ops, 10): widths, rates, format of 16-bit floats
    prices: Array  # int64 (MATH functions and more)
    slot_of: Array  # int32 (32,)
    color_of: Array  # int32 (S,)
    host_slot: Array  # uint8 (S,)
    in_depth: Array  # int32 (Q,)
    out_depth: Array  # int32 (N,)
    memory: Array  # uint16 (R * WORDS,)
    regs: Array  # int64 (R * REGISTERS + slack,)
    calls: Array  # int32 (R * CALLS * 2,)
    core: Array  # int64 (R, CORE_FIELDS)
    arguments: Array  # int64 (R, 16)
    threads: Array  # int32 (N_THREADS, R, THREAD_FIELDS)
    dsr: Array  # int64 (R, 3 * DSRS)
    dsr_row: Array  # int32 (R, 3 * DSRS)
    fifo: Array  # int32 (R, FIFOS, 4): first, count, starved, stuffed
    color_queue: Array  # int32 (R, S): input queue or -1
    out_color: Array  # int32 (R, N): slot or -1
    in_color: Array  # int32 (R, Q): slot or -1
    iq_count: Array  # int32 (Q, R)
    iq_head: Array
    iq_last: Array  # int64 (Q, R)
    iq_word: Array  # uint32 (Q, R, depth)
    iq_meta: Array  # uint8 (Q, R, depth): slot | flag << 6
    oq_count: Array  # int32 (N, R)
    oq_head: Array
    oq_word: Array  # uint32 (N, R, depth)
    oq_meta: Array  # uint8
    oq_time: Array  # int64
    route: Array  # uint16 (S * R * 4,): rx | tx << 5, 0 = invalid
    rstate: Array  # uint8 (S * R,): position | RING_BIT | pop << 3 | swaps | TORN
    switch_word: Array  # uint16 (S * R,), 0 on WSE-3: settings of a switch register once it was written, with bit 15 (registers.py)
    kept: (
        Array  # uint16 (R or 0, 512): configuration registers without a model, if the program names registers
    )
    filter_row: Array  # int32 (S * R,)
    filter_count: Array  # int64 (S * R,)
    pointer: Array  # uint8 (R,)
    waiting: Array  # int32 (R,): words in the router
    occupied: Array  # int64 (R,): mask of slots with words
    q_count: Array  # uint8 (S * R * 5,)
    q_head: Array
    q_word: Array  # uint32 (S * R * 5, CAP)
    q_flag: Array  # uint8
    q_stamp: Array  # int64
    port_free: Array  # int64 (R, 5)
    links: Array  # int64 (R, 5)
    blocked: Array  # int64 (R, 5)
    credit: Array  # int64 (S, R)
    host_words: Array  # uint32: words that the host sends
    log: Array  # int64 (n, LOG_FIELDS)
    drained: Array  # int64 (n, 4): core, slot, word, cycle
    profile: Array  # int64 (classes or 1, code rows, 2)
    size: Array  # int64 (SIZES,)
    router_list: Array  # int32 (R,)
    router_listed: Array  # uint8 (R,)
    ready: Array  # int32 (2, R)
    listed: Array  # uint8 (R,)
    rings_list: Array  # int32 (R,)
    ring_listed: Array  # uint8 (R,)
    wheel: Array  # int32 (WHEEL,)
    chain: Array  # int32 (R,)
    wake_at: Array  # int64 (R,)
    # Of the sanitizer (watch.py), empty unless it watches.
    written: Array  # uint8 (R * WORDS,): words of memory that somebody wrote
    oq_from: Array  # int64 (N, R, depth, 3): core, row of code and cycle that sent each word of a queue
    q_from: Array  # int64 (S * R * 5, CAP, 3)
    iq_from: Array  # int64 (Q, R, depth, 3)
    merged: Array  # int64 (S * R, 4): 1 + input and origin of the last word that passed
    found_count: Array  # int64 (kinds, code rows)
    found: Array  # int64 (n, FINDING_FIELDS)
    stops: Array  # int64 (R,): groups of breakpoints at which a core stops (breakpoints.py), empty without a debugger


WHEEL = 4096


def lazy_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike, *, is_sparse: bool = False) -> Array:
    """Zeros whose pages the operating system gives at first touch, large ones where it has them.

    The state of a large grid is looked through in every cycle: with pages of 4 KiB a quarter of the time goes into finding them.
    `is_sparse`: small pages, because little of it is ever touched.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size < 1 << 16:
        return np.zeros(shape, dtype)
    raw = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        raw.madvise(mmap.MADV_NOHUGEPAGE if is_sparse else mmap.MADV_HUGEPAGE)
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


def owners(image: Image, words: int) -> Array:
    """Return the variable of a class for each word of its memory (1 + its index among the symbols), 0 if
    there is none."""
    found = np.zeros((max(1, len(image.classes)), words), np.uint16)
    for k, cls in enumerate(image.classes):
        held = [(s.words, s.exported, i, s.address) for i, s in enumerate(cls.symbols) if s.kind == "var"]
        for length, _, i, address in sorted(held):  # a part that is exported by itself belongs to its whole
            found[k, address : address + length] = 1 + i
    return found


def used_colors(image: Image) -> list[int]:
    """Colors that any core routes, reads or exchanges with the host; the partner of a swapped color too."""
    used = {int(c) for c in range(COLORS) if image.config.shape[1] and image.config[c].any()} | set(
        image.host_colors
    )
    for cls in image.classes:
        used |= {int(c) for _, c in (*cls.input_colors, *cls.output_colors)}
        used |= {int(c) for c, _ in (*cls.reads, *cls.teardown)}
        if image.arch == "wse2":
            used |= {task.id for task in cls.tasks if task.kind == DATA and task.id < COLORS}
    if any(config.swap for config in image.configs):
        used |= {c ^ 1 for c in used}
    return sorted(c for c in used if 0 <= c < COLORS)


def task_tables(image: Image) -> tuple[Array, Array]:
    """Rows (entry, kind, priority) of every class and id, and the ids of a class in the order of choice."""
    table = np.zeros((max(1, len(image.classes)), TASK_IDS, 3), np.int32)
    table[:, :, E_ENTRY] = -1
    order = np.zeros((max(1, len(image.classes)), TASK_IDS + 1), np.int32)
    kinds = {DATA: KIND_DATA, CONTROL: KIND_CONTROL}
    for k, cls in enumerate(image.classes):
        for task in cls.tasks:
            table[k, task.id] = (task.entry, kinds.get(task.kind, KIND_LOCAL), task.high_priority)
        ids = sorted(cls.tasks, key=lambda task: (task.kind != LOCAL, task.id))
        order[k, 0] = len(ids)
        order[k, 1 : 1 + len(ids)] = [task.id for task in ids]
    return table, order


def _delivered(image: Image, k: int) -> list[int]:
    """Colors that some core of a class hears from its router as the program begins."""
    cores = np.flatnonzero(np.asarray(image.core_class) == k)
    found = []
    for color in used_colors(image):
        rows: list[int] = np.unique(image.config[color][cores]).tolist() if image.config.shape[1] else []
        if any(row and any(tx & 16 for _, tx in image.configs[row - 1].positions) for row in rows):
            found.append(color)
    return found


def input_queues(image: Image, slot_of: Array) -> tuple[Array, Array, int]:
    """Input queue of every (class, slot), slot of every (class, queue), and the number of queues.

    On WSE-2 a color without a queue gets one of its own, numbered from 8, if it has a data task, or if the class has control tasks and the
    color comes to its core: control wavelets start them from any color.
    """
    n_slots = int(slot_of.max(initial=-1)) + 1
    queue_of = np.full((max(1, len(image.classes)), max(1, n_slots)), -1, np.int32)
    slots = np.full((max(1, len(image.classes)), 8 + max(1, n_slots)), -1, np.int32)
    n_queues = 8
    for k, cls in enumerate(image.classes):
        for queue, color in cls.input_colors:
            queue_of[k, slot_of[color]] = queue
            slots[k, queue] = slot_of[color]
        for color, queue in cls.reads:
            queue_of[k, slot_of[color]] = queue
        if image.arch == "wse2":
            own = 8
            colors = [task.id for task in cls.tasks if task.kind == DATA]
            if any(task.kind == CONTROL for task in cls.tasks):
                colors += _delivered(image, k)
            for color in colors:
                if queue_of[k, slot_of[color]] < 0:
                    queue_of[k, slot_of[color]] = own
                    own += 1
            n_queues = max(n_queues, own)
    return queue_of, slots[:, :n_queues].copy(), n_queues
