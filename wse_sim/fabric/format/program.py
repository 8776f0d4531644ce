"""The program format: one structure of arrays that the oracle, the wavelet and the max-plus executor read.

Rules of the machine (the oracle is the definition; these equations hold for it)
-------------------------------------------------------------------------------
Time is an integer cycle t = 0, 1, ...  A *slot* is the index of a color in use, a *port* one of N, E, S, W,
RAMP (0..4).  Every router holds one queue per (slot, input port) of depth D = 2 H, where H = ``hop_cycles``; a
core holds one input queue per slot (depth 2 unless bound to a documented queue) and ONE output ring of
``ring_wavelets`` = 8 words over all colors.

* Credits are those of the start of the cycle.  With k the index of a word in its queue:

      router move     x_u(k) = max( x_parent(k) + L_parent, max over targets c of x_c(k - 2 L_c) + L_c )

  L = H on a mesh link (plus ``turn_cycles`` where the direction changes and ``die_crossing_cycles`` over the edge of a
  die), L = 1 between core and router.  A link has one L per color: its direction changes if the router that it leaves has, in
  any switch position that sends into it, an input across it; words that come straight there pay as well.  A word
  that goes back, or comes from the ramp, does not change direction.  A
  multicast is one event on all its outputs (atomic).  ``router_queue_wavelets`` q other than 2 replaces 2 L by q L.
* rate           a word of w = ``wavelet_milli`` keeps its output port, RAMP too, for w/1000 cycles: a move in cycle t
                 needs f < 1000 (t + 1) and leaves f = max(f, 1000 t) + w.
* ring           r(j)   = max( x0(j) + 2 T_R - 1, r(j-1) + 1, x_child(k - 2) + 1 ), first in first out over colors,
                 and x0(j) >= r(j - 8): a pop and a push may share a cycle.
* receive        y(k)   = max( t_core, x_last_router(k) + 1 ), and x_last_router(k) >= y(k - depth) + 1.
  So a word sent at t over h links is received at t + 5 + h H (T_R = 2), and without a reader the window of one
  stream is 12 + 2 h words: 8 in the ring, 2 per router (h + 1 of them), 2 in the core's input queue.
* arbitration    per router and cycle the slots are tried in round-robin order, starting after the slot granted
  last; a slot is granted if a word is there, all its targets have room and none of its output ports was taken in this
  cycle (RAMP is a port as well).  A position without outputs keeps its words.  Every grant moves the pointer.  ``arbitration: fixed`` always starts at slot 0.
* merges         two enabled inputs of one slot that both hold a word in one cycle are undefined on the machine:
  a ProgramError in strict mode; otherwise the input is taken in the order (t mod 5), + 1, ... of ports.
* switches       a (slot, core) has up to 4 positions of (rx, tx).  A control wavelet is routed with the old
  position, then its first command acts: NOP 0, ADVANCE 1, RESET 2.  ``ring`` wraps after the last position, else it
  stays.  ``pop`` (never 0, always 1, on advance 2) removes the first command.  A data word can carry an advance mark:
  LOCAL acts at its first router only, PATH at every router it passes.  Commands that are used up are NOP.  A control
  wavelet that no core is to see crosses RAMP like another, needs no room behind it and ends there.

The core
--------
One issue slot per cycle is shared by the main thread and the microthreads; order: microthreads of high and
medium priority, main thread, microthreads of low priority; by thread number within one priority.  Every cycle of
the main thread's scalar code (BUSY, start of a vector instruction, task pick) takes the slot as well.

* A DSD that meets a control wavelet discards it in one issue cycle (and ends, if it terminates on control).
* An instruction with a fabric operand moves one wavelet per step; a step may start when every input word is
  there and the ring has room.  It reads and sends in its first cycle, and takes p issue cycles: cost of its elements, at
  least 1.  Other threads may take the slot between them.  With SIMD-64 (wire fp16x4)
  a step moves two wavelets of two fp16 each, and waits until both are there (both have room); the last may be one.
* An instruction without fabric operand is one step of ceil(n * cost per element) cycles; values are applied at its start.
* Costs are integers in 1/1000 cycle.  Of steps of cost c the k-th takes ceil(k c) - ceil((k - 1) c) cycles, so
  a whole instruction of cost c takes ceil(c) cycles.  One of no elements is over with its start.
* ``start`` is charged to the main thread before the first step: CODE (``vector_start_cycles``), LOADED, NONE.
* Bank rule: two vector reads from memory whose first 16-bit words are in banks equal modulo 4 double the cost.
* A microthread may issue as soon as its start cost is paid; when it completes (cycle t) it may activate or unblock
  a task, visible at t + 1.  Launching on a busy microthread waits for it, then pays the start.
* What takes no cycle (loops, tasks, launches, JOIN, HALT) the main thread does before the slot of the cycle is given.
* A task runs to its end; an idle main thread picks the first task, in table order, that is active (local), or whose
  word heads its queue (data, control), and not blocked; the pick takes the word and costs ``task_pick_cycles``.
* HALT waits for the microthreads, then stops the core: its halt cycle is the first cycle in which it does nothing
  (a core that only ends its tasks halts at the cycle after its last issue).  The length of a run is the largest
  halt cycle.  Cores have their own clocks: nothing but wavelets makes them wait for each other.

Counters
--------
* A core is busy in a cycle in which its slot is used.  Else it is stalled on input or on output as the first of its threads, in
  the order of issue, that waits for a word or for room; else idle.  `received` counts words taken out of input queues,
  control wavelets too, `sent` words put into the ring.
* A run continues until nothing moves or issues and no word that is the first of its queue or ring is on its way there.  In that
  cycle routers still count blocked ports.  A program with unfinished cores has stopped in it.  Cores that wait count until then, words until the end.
* Marks: words that have landed, of router queues after the moves of a cycle, of rings after a push, of input queues before
  the core reads.

Prices
------
The price of an element is that of the operation and precision (``mov_milli`` ... ``fma_milli``), of ADD and SUB of two vectors
from memory ``add_memory_milli``.  PERIOD replaces it; MAP costs its function; a control wavelet costs one cycle.

* A destination in memory of stride 0 depends on itself: at least one cycle (not FMACV).
* Vector reads are A and B from memory with a stride (MAC: D too; FMACV: D and B), equal ones once.  Bank rule: first turn
  of all loops; modulo half the banks for fp16, ``fp32_bank_period_words`` else; the factor is ``conflict_milli``, rounded up.
* FP16: two reads of fp16 vectors of stride 1 that begin half a 32-bit word apart cost ``misaligned_fp16_milli`` at least; where their distance
  changes by an odd number of elements from turn to turn, half of the difference to that.
* An element of an FMACV costs ``map_element_milli``, and ``map_vector_milli`` if M > 1 (TRIGGERED: ``triggered_milli`` for both),
  and whole cycles of its FMAC: ceil(M c), at least 1; for fp16 at the full rate 1 + ceil((M - ``simd_fp16``) c), at least 1.
* A step of an instruction with a fabric operand costs as many elements as its wire carries, and at least one cycle.

Values: every operation of an element rounds to fp32 (a + b s twice), what goes into an fp16 buffer or on an fp16 wire
to fp16; elements one after the other.  Outside their domain: square root NaN, its reciprocal and 1 / 0 infinite,
logarithm minus infinite.

Addressing: an operand is (kind, buffer or slot, offset, stride, step, outer step); the element i of an execution
is at offset + i * stride + step * (turns of the innermost loop) + outer_step * (turns of the loop around it).
"""

from __future__ import annotations

import dataclasses
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.integer[Any]]

PORT_NAMES = ("N", "E", "S", "W", "RAMP")
PORT_BIT = {"N": 1, "E": 2, "S": 4, "W": 8, "R": 16}
MAX_POSITIONS = 4
MAX_TASKS = 31
MAX_LOOP_DEPTH = 4


class Op(IntEnum):
    """Opcodes: control of the main thread first, then vector instructions."""

    HALT = 0
    TASK_END = 1
    LOOP = 2  # N turns; TARGET = index of its ENDLOOP
    ENDLOOP = 3  # TARGET = index of its LOOP
    BUSY = 4  # N cycles of scalar code
    ACTIVATE = 5  # TARGET = task of the class
    BLOCK = 6
    UNBLOCK = 7
    JOIN = 8  # wait until microthread THREAD is idle
    CONTROL = 9  # send one control wavelet (payload IMM) on the slot of D
    MOV = 10  # d = a
    ADD = 11  # d = a + b
    SUB = 12  # d = a - b
    MUL = 13  # d = a * b
    FMAC = 14  # d = a + b * s
    MAC = 15  # d = d + a * b
    MAX = 16  # d = max(a, b)
    MAP = 17  # d = fn(a)
    FMACV = 18  # for every element a_j: d[j * D_OUTER + i] += a_j * b[j * B_OUTER + i], i < M
    MIN = 19  # d = min(a, b)


FIRST_VECTOR_OP = int(Op.CONTROL)


class Kind(IntEnum):
    """Kinds of operands."""

    NONE = 0
    MEMORY = 1
    FABRIC = 2  # the buffer field holds the slot
    SCALAR = 3  # immediate value, field IMM
    WAVELET = 4  # the word that started the data task


class Dtype(IntEnum):
    """Precision of an instruction; MIXED multiplies fp16 and accumulates fp32."""

    FP32 = 0
    FP16 = 1
    MIXED = 2


class Wire(IntEnum):
    """Transport format: one fp32, one fp16 or two fp16 per wavelet; FP16X4: two such wavelets per step (SIMD-64)."""

    FP32 = 0
    FP16 = 1
    FP16X2 = 2
    FP16X4 = 3


class Start(IntEnum):
    """Start cost of an instruction."""

    CODE = 0
    LOADED = 1
    NONE = 2


class Fn(IntEnum):
    """Scalar functions of MAP; cost per element from the wafer."""

    EXP = 0
    SILU = 1
    GELU = 2
    TANH = 3
    RECIPROCAL = 4
    SQRT = 5
    RSQRT = 6
    RELU = 7
    ABS = 8
    NEGATE = 9
    LOG = 10
    STEP = 11  # 1 where positive, else 0
    SIGMOID = 12
    GELU_TANH = 13
    ERF = 14
    SOFTPLUS = 15
    SIN = 16
    COS = 17


class Each(IntFlag):
    """Flags of the FMACV instruction, in its field FN.

    FRESH: the first product that meets a destination replaces it.  INDEXED: an arriving word carries an fp16 value in
    its low half and in its high half the number of the vector it multiplies, instead of j.
    """

    TRIGGERED = 1  # by arriving data: no cost per element next to its FMAC
    FRESH = 2
    INDEXED = 4


class TaskKind(IntEnum):
    """What makes a task runnable, unless it is blocked."""

    LOCAL = 0
    DATA = 1  # KEY = slot
    CONTROL = 2  # KEY = id carried by the control wavelet


class Command(IntEnum):
    """Commands of a control wavelet."""

    NOP = 0
    ADVANCE = 1
    RESET = 2


# Flag of a wavelet on the wire.
FLAG_DATA, FLAG_CONTROL, FLAG_ADVANCE_LOCAL, FLAG_ADVANCE_PATH = 0, 1, 2, 3
NO_TASK = 63  # control wavelet without a task for the core

# Columns of `code`.  An operand takes six columns: kind, buffer or slot, offset, stride, step, outer step.
(OP, DTYPE, N, N_PARAM, LEVEL, TARGET, THREAD, PRIORITY, START, WIRE, FN, IMM) = range(12)
(DONE_KIND, DONE_TASK, ADVANCE, ON_CONTROL, M, D_OUTER, B_OUTER, PERIOD) = range(12, 20)
OPERAND_FIELDS = 6
D, A, B, S = (20 + OPERAND_FIELDS * i for i in range(4))
N_FIELDS = 20 + 4 * OPERAND_FIELDS
KIND, BUF, OFFSET, STRIDE, STEP, OUTER_STEP = range(OPERAND_FIELDS)

# Columns of `tasks`; rows of class c are class_tasks[c] : class_tasks[c + 1].
T_KIND, T_KEY, T_ENTRY, T_ACTIVE, T_BLOCKED = range(5)

# Columns of `buffer_table`.
B_BASE, B_ROW, B_COL, B_ROWS, B_COLS, B_LENGTH, B_DTYPE, B_ADDRESS = range(8)


@dataclasses.dataclass(frozen=True)
class BufferInfo:
    """A declared buffer: `length` elements in every core of a rectangle; `address` in bytes of SRAM."""

    name: str
    index: int
    dtype: str
    length: int
    row: int
    col: int
    rows: int
    cols: int
    address: int
    base: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one element in SRAM."""
        return 2 if self.dtype == "fp16" else 4


@dataclasses.dataclass(frozen=True)
class Program:
    """A validated, frozen fabric program; made by :class:`wse_sim.fabric.format.builder.Builder`.

    Arrays (R = rows * cols, row-major core index; margins of host columns included):

    ``core_class`` int32 (R,), 0 = router only; ``class_entry`` int32 (n_classes,), -1 = no main program;
    ``class_tasks`` int32 (n_classes + 1,); ``tasks`` int32 (n_tasks, 5); ``code`` int64 (n_instr, N_FIELDS);
    ``params`` int32 (n_params, R): per-core lengths, loop counts, busy cycles; ``route`` uint16 (n_slots, R) into
    the configs; ``cfg_rx``, ``cfg_tx`` uint8 (n_cfg, 4) port masks; ``cfg_positions``, ``cfg_initial``,
    ``cfg_ring``, ``cfg_pop`` uint8 (n_cfg,); ``slot_color`` int32 (n_slots,); ``input_depth`` int32 (n_slots,);
    ``buffer_table`` int64 (n_buffers, 8); ``die_edges`` uint8 (R,) port masks: links that lead over the edge of a die.
    """

    rows: int
    cols: int
    west: int  # host columns left of the user's column 0
    east: int
    core_class: IntArray
    class_names: tuple[str, ...]
    class_entry: IntArray
    class_tasks: IntArray
    tasks: IntArray
    code: IntArray
    params: IntArray
    route: IntArray
    cfg_rx: IntArray
    cfg_tx: IntArray
    cfg_positions: IntArray
    cfg_initial: IntArray
    cfg_ring: IntArray
    cfg_pop: IntArray
    slot_color: IntArray
    input_depth: IntArray
    buffer_table: IntArray
    die_edges: IntArray
    buffers: dict[str, BufferInfo]
    arena_elements: int
    n_threads: int
    has_control: bool  # some wavelet carries a control flag or an advance mark
    has_switches: bool

    def __post_init__(self) -> None:
        """Make the arrays read-only; writable ones would need another compilation."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def class_of_instruction(self) -> IntArray:
        """(n_instr,): core class of every instruction; the code of a class is one stretch, its main program first."""
        return np.searchsorted(self.class_entry[1:], np.arange(len(self.code)), side="right")

    @property
    def n_slots(self) -> int:
        """Colors in use."""
        return int(self.slot_color.shape[0])

    @property
    def n_cores(self) -> int:
        """Routers of the region, host columns included."""
        return self.rows * self.cols

    @property
    def user_cols(self) -> int:
        """Columns without host columns."""
        return self.cols - self.west - self.east

    def core_name(self, core: int) -> str:
        """Return ``(row, col)`` of a core index in the user's coordinates, for messages."""
        row, col = divmod(int(core), self.cols)
        return f"({row}, {col - self.west})"

    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (getattr(self, field.name) for field in dataclasses.fields(self))
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
