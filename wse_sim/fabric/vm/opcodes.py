"""The bytecode of the register core: what a compiler writes and the machine runs.  The definition.

Symbols: r = registers of the running function (a window of the core's register file), m = memory of the core in 16-bit
words, pc = row of the image's code, K = constants of the core's class.

A row of code is ``(op, a, b, c)`` int32.  In addition to it stand a cost class (what it costs, :data:`COST_CLASSES`) and a row of the
source map.  The opcode says what, the cost class says how long.

Registers hold int64 in *canonical form*: signed integers sign-extended, unsigned ones zero-extended, bool 0 or 1,
f32 and f16 as raw bits zero-extended, handles and pointers u16 zero-extended (a pointer is a WORD address), a DSD as one
64-bit value (:data:`DSD fields <DSD_KIND>`).  Every opcode keeps the form, provided its operands have it.

``CALL a, -, c`` opens the callee's window at ``base + a``: arguments are in the callee's r0.., its results in r0...  ``RET`` at depth 0
ends the task.  A task and an exported function start at depth 0 with window 0; a data or control task finds the whole
wavelet (u32) in r0, an exported function its u32 arguments in r0...

One file, because compiler and machine must read one list.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import NamedTuple

WORDS = 24_576  # 16-bit words of a core's memory
QUEUES = 8  # input queues of a core, and as many output queues


class Op(IntEnum):
    """Opcodes.  ``imm`` is the int32 operand itself; ``pc`` an absolute row."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count

    NOP = auto()
    LDI = auto()  # r[a] = imm c
    LDK = auto()  # r[a] = K[c], 64 bit
    MOV = auto()  # r[a] = r[b]
    # wrapping arithmetic; the suffix is the type of the result
    ADD_I16 = auto()  # r[a] = r[b] + r[c]
    ADD_U16 = auto()
    ADD_I32 = auto()
    ADD_U32 = auto()
    ADD_I64 = auto()
    SUB_I16 = auto()  # r[a] = r[b] - r[c]
    SUB_U16 = auto()
    SUB_I32 = auto()
    SUB_U32 = auto()
    SUB_I64 = auto()
    MUL_I16 = auto()  # r[a] = r[b] * r[c]
    MUL_U16 = auto()
    MUL_I32 = auto()
    MUL_U32 = auto()
    MUL_I64 = auto()
    DIV_I16 = auto()  # truncates toward zero; divisor 0 is a fault
    DIV_U16 = auto()
    DIV_I32 = auto()
    DIV_U32 = auto()
    DIV_I64 = auto()
    DIV_U64 = auto()
    MOD_I16 = auto()  # sign of the dividend; divisor 0 is a fault
    MOD_U16 = auto()
    MOD_I32 = auto()
    MOD_U32 = auto()
    MOD_I64 = auto()
    MOD_U64 = auto()
    AND = auto()  # value-wise
    OR = auto()
    XOR = auto()
    SHL_I16 = auto()  # r[a] = r[b] << r[c]; an amount of the width or more gives 0
    SHL_U16 = auto()
    SHL_I32 = auto()
    SHL_U32 = auto()
    SHL_I64 = auto()
    SHR = (
        auto()
    )  # arithmetic on the canonical value: sar of signed, slr of unsigned types; amount above 63 as 63
    SHR_U64 = auto()  # logical, 64 bit; amount above 63 gives 0
    # immediate c
    ADDI_I16 = auto()
    ADDI_U16 = auto()
    ADDI_I32 = auto()
    ADDI_U32 = auto()
    ADDI_I64 = auto()
    MULI_I16 = auto()
    MULI_U16 = auto()
    MULI_I32 = auto()
    MULI_U32 = auto()
    ANDI = auto()  # imm sign-extended to 64 bit
    ORI = auto()
    XORI = auto()
    SHLI_I16 = auto()
    SHLI_U16 = auto()
    SHLI_I32 = auto()
    SHLI_U32 = auto()
    SHRI = auto()
    # casts
    WRAP_I8 = auto()  # r[a] = low 8 bits of r[b], sign-extended
    WRAP_U8 = auto()
    WRAP_I16 = auto()
    WRAP_U16 = auto()
    WRAP_I32 = auto()
    WRAP_U32 = auto()
    WRAPS = auto()  # low c bits, sign-extended
    WRAPU = auto()  # low c bits, zero-extended
    # comparisons to 0 or 1, signed 64 bit on canonical values
    EQ = auto()
    NE = auto()
    LT = auto()
    LE = auto()
    LTU64 = auto()
    LEU64 = auto()
    FEQ = auto()  # f32
    FLT = auto()
    FLE = auto()
    HEQ = auto()  # f16
    HLT = auto()
    HLE = auto()
    # jumps
    JMP = auto()  # to pc c
    JZ = auto()  # if r[a] == 0 to pc c
    JNZ = auto()
    JEQ = auto()  # if r[a] == r[b] to pc c
    JNE = auto()
    JLT = auto()
    JLE = auto()
    JEQI = auto()  # if r[a] == imm b to pc c
    JNEI = auto()
    JLTI = auto()
    JLEI = auto()
    JGTI = auto()
    JGEI = auto()
    CALL = auto()  # window += a, to pc c
    CALLR = auto()  # window += a, to pc r[b] (r[b] of the caller's window)
    RET = auto()
    END = auto()  # end of the task
    # floating point
    FADD = auto()
    FSUB = auto()
    FMUL = auto()
    FDIV = auto()
    FNEG = auto()  # flips the sign bit
    FABS = auto()
    FMA = auto()  # r[a] = r[a] + r[b] * r[c], rounded twice
    HADD = auto()  # widen to f32, operate, round to f16
    HSUB = auto()
    HMUL = auto()
    HDIV = auto()
    HNEG = auto()
    HABS = auto()
    H2F = auto()
    F2H = auto()
    I2F = auto()  # int64 to f32, to nearest even
    F2I = auto()  # f32 to int64, toward zero; not a number gives 0, beyond int64 its limit
    MATH = auto()  # r[a] = fn c of r[b], f32 (FUNCTIONS of semantics)
    POW = auto()  # r[a] = r[b] ** r[c], f32
    # memory; address = r[b] + imm c
    LD_I16 = auto()
    LD_U16 = auto()
    LD_I32 = auto()
    LD_U32 = auto()
    LD_64 = auto()
    ST_16 = auto()  # m[r[b] + c] = r[a]
    ST_32 = auto()
    ST_64 = auto()
    # memory; address = r[b] + n r[c], n words of the element
    LDX_I16 = auto()
    LDX_U16 = auto()
    LDX_I32 = auto()
    LDX_U32 = auto()
    STX_16 = auto()
    STX_32 = auto()
    # DSD values
    DSD_BASE = auto()  # r[a] = r[b] with base address r[c]
    DSD_ADD = auto()  # r[a] = r[b] with base + r[c] words
    DSD_LEN = auto()  # r[a] = r[b] with length r[c]
    DSD_STRIDE = auto()  # r[a] = r[b] with stride r[c]
    DSD_GET = auto()  # r[a] = field c of r[b] (DsdField)
    DSD_ADDR16 = auto()  # r[a] = address of element r[c] of r[b], elements of one word
    DSD_ADDR32 = auto()  # the same, elements of two words
    DSR_LOAD = auto()  # r[b] into a register: row c of dsr_loads
    DSR_BASE = auto()  # DSR c (file * 64 + id) gets base address r[b]
    DSR_GET = auto()  # r[a] = DSD value of DSR c as it stands (base as the last operation left it)
    VEC = auto()  # vector operation: row c of vector_issues, operand i in r[b + i]; r[a] = 1, or 0 if a FIFO ended it early; a < 0: none
    # tasks; c = Space
    ACT = auto()  # activate task r[b]
    BLOCK = auto()  # block r[b] of space c
    UNBLOCK = auto()
    SYS = auto()  # r[a] = function c (Sys) of r[b], r[b + 1], ...; a < 0: no result
    U2F = auto()  # as I2F and F2I, of u64
    F2U = auto()


class Space(IntEnum):
    """Kinds of ids for BLOCK and UNBLOCK."""

    TASK = 0
    COLOR = 1  # WSE-2: the data task of the color
    INPUT_QUEUE = 2
    MICROTHREAD = 3


class Sys(IntEnum):
    """Functions of SYS; arguments r[b], r[b + 1], ...; ``->`` the result in r[a].

    A row declares a function to compiler, machine and static analysis; the branch in :func:`~wse_sim.fabric.vm.cores.system` is what it does.

    cost       cost class
    course     how the analysis treats it: "free" has no effect that it follows; "clock", "random", "machine", "position" say why the result is
               unknown; "changes" the state of routers, queues or tasks; "reads" that state; "" has a separate rule, or is not followed
    arguments  of "changes" and "reads": their number
    when       "color": r[b] is a color, and the function does nothing where no router has it; "at once": does not wait for earlier cycles
    builtin    name, type of the result, types of the arguments of the builtin that is this function
    """

    cost: str
    course: str
    arguments: int
    when: str
    builtin: tuple[str, ...]

    def __new__(
        cls,
        number: int,
        cost: str = "register",
        course: str = "",
        arguments: int = 0,
        when: str = "",
        builtin: tuple[str, ...] = (),
    ) -> Sys:
        made = int.__new__(cls, number)
        made._value_, made.cost, made.course = number, cost, course
        made.arguments, made.when, made.builtin = arguments, when, builtin
        return made

    # fmt: off
    TSC_READ = 0, "tsc"  # pointer: three words, lowest first
    TSC_ENABLE = 1, "register", "free"
    TSC_DISABLE = 2, "register", "free"
    TSC_RESET = 3, "register", "free"
    TSC_VALUE = 4, "trace", "clock"  # -> the counter, 48 bit
    RANDOM16 = 5, "random", "random", 0, "at once", ("random16", "u16")  # -> u16
    SET_PRNG = 6, "register", "free", 0, "at once", ("set_active_prng", "void", "u16")  # number of the generator
    SEED_PRNG = 7, "random", "free", 0, "at once"  # state u32
    X_COORD = 8, "coordinate", "position", 0, "at once"  # -> column in the program rectangle
    Y_COORD = 9, "coordinate", "position", 0, "at once"  # -> row
    FABRIC_X = 10, "coordinate", "position", 0, "at once"  # -> column on the fabric
    FABRIC_Y = 11, "coordinate", "position", 0, "at once"
    PRINT = 12, "print", "free"  # row of image.prints, then its values
    ASSERT_FAIL = 13, "free", "", 0, "at once"  # row of image.asserts
    UNBLOCK_CMD_STREAM = 14, "task_bit"
    SET_ROUTES = 15, "config", "changes", 3, "color"  # color, rx mask (N 1, E 2, S 4, W 8, RAMP 16), tx mask: position 0
    SET_SWITCH = 16, "config", "changes", 4, "color"  # color, position 1..3, rx mask (0: as the position before), tx mask (0: likewise)
    INVALIDATE_SWITCH = 17, "register", "changes", 2, "color"  # color, position 1..3; 0: all three
    SET_POSITION = 18, "config", "changes", 2, "color"  # color, position
    GET_POSITION = 19, "register", "reads", 1, "color"  # color -> position
    SET_RING = 20, "config", "changes", 2, "color"  # color, bool
    SET_POP = 21, "config", "changes", 2, "color"  # color, Pop
    GET_ROUTES = 22, "register", "reads", 2, "color"  # color, position -> rx | tx << 5
    TEARDOWN_ENTER = 23, "register", "changes", 1, "color"  # color
    TEARDOWN_EXIT = 24, "register", "changes", 1, "color"  # color
    TEARDOWN_PENDING = 25, "register", "reads"  # -> mask of colors in teardown whose handler has not run
    IS_TEARDOWN = 26, "register", "reads", 1, "color"  # color -> bool
    SET_FILTER = 27, "config", "changes", 2, "color"  # color, row of image.filters; -1 removes
    FILTER_FIELD = 28, "register", "changes", 3, "color"  # color, FilterField, value
    QUEUE_FLUSH = 29, "register", "changes", 2  # queue, 1 for an input queue: its handler or task 29 runs when it is empty
    IQ_EMPTY = 30, "register", "machine"  # input queue -> bool
    OQ_EMPTY = 31, "register", "machine"  # output queue -> bool
    IQ_COLOR = 32, "register", "changes", 2  # input queue, color: bind
    OQ_COLOR = 33, "register", "changes", 2  # output queue, color: bind
    TASK_PRIORITY = 34, "register", "changes", 2  # task, 0 low or 1 high
    MAIN_PRIORITY = 35, "register", "changes", 1  # Priority of the main thread
    PERF_COUNTER = 36, "register", "clock"  # number -> value
    IS_ACTIVE = 37, "register", "machine"  # microthread -> bool
    READ_CONFIG = 38, "config"  # register address -> u16
    WRITE_CONFIG = 39, "config"  # register address, u16
    SWAP = 40, "register", "changes", 2, "color"  # color, bit 0 x | bit 1 y: color swap
    TRACE = 41, "print", "free"  # row of image.prints, then its values: kept for the host, not printed
    ADVANCE = 42, "register", "changes", 1, "color"  # color: the local switch advances
    HALT = 43, "register", "changes"  # the core does nothing any more
    DSR_SAVE = 44, "free", "", 0, "at once"  # DSR number (file * 64 + id), DSD value: state after its own loop
    DRAINED = 45, "register", "machine", 0, "color"  # color -> bool: none of its words waits in an output queue or at the ramp of the router
    IQ_FULL = 46, "register", "machine"  # -> mask of input queues where a further word would wait
    OQ_FULL = 47, "register", "machine"  # the same of output queues
    # fmt: on


SYSTEM_BUILTINS = {f"@{function.builtin[0]}": function for function in Sys if function.builtin}


class Priority(IntEnum):
    """Order on the one issue slot: HIGH, MEDIUM, main thread, LOW.  DEFAULT is LOW for microthreads."""

    DEFAULT = 0
    HIGH = 1
    MEDIUM = 2
    LOW = 3


class Pop(IntEnum):
    """When a control wavelet loses its first command."""

    NEVER = 0
    ALWAYS = 1
    ON_ADVANCE = 2
    ON_ADVANCE_NOP = 3  # on ADVANCE and NOP


class Command(IntEnum):
    """Commands of a control wavelet."""

    NOP = 0
    ADVANCE = 1
    RESET = 2
    TEARDOWN = 3


class DsdKind(IntEnum):
    """Kinds of DSD values."""

    NONE = 0
    MEM1D = 1
    MEM4D = 2
    FABIN = 3
    FABOUT = 4
    CIRCBUF = 5
    FIFO = 6


class DsdField(IntEnum):
    """Fields that DSD_GET reads."""

    KIND = 0
    BASE = 1
    LENGTH = 2
    STRIDE = 3
    COLOR = 4
    QUEUE = 5
    TOTAL = 6  # elements of all dimensions


# Bits of a DSD value: (lowest bit, width).
DSD_KIND = (0, 4)
DSD_BASE = (4, 16)  # memory: word address; FIFO: number in the class
DSD_LENGTH = (20, 16)  # elements; MEM4D: row of image.shapes; 0x7fff of a fabric DSD: without end
DSD_STRIDE = (36, 16)  # MEM1D: elements, signed; CIRCBUF: row of image.rings
DSD_COLOR = (4, 5)  # fabric; NO_COLOR: that of the queue
DSD_QUEUE = (9, 4)  # fabric; NO_QUEUE on WSE-2: that of the color
DSD_PRIORITY = (13, 2)  # fabric: Priority
DSD_CONTROL_TRANSFORM = (15, 1)
DSD_CONTROL = (52, 1)  # FABOUT: control wavelets
DSD_WAVELET_INDEX = (53, 1)  # FABOUT: .index in the high half; memory: .index words added to the base
DSD_SIMD = (54, 2)  # fabric: Simd
DSD_ADVANCE = (56, 1)  # FABOUT: the local switch advances after the last wavelet
DSD_ZERO0 = (57, 1)  # FABOUT: clear source 0 when done
DSD_ZERO1 = (58, 1)
NO_COLOR = 31
NO_QUEUE = 15
ENDLESS = 0x7FFF


class Simd(IntEnum):
    """Two f16 per wavelet; one wavelet per step, two, or as many as are there."""

    NONE = 0
    SIMD_32 = 1
    SIMD_64 = 2
    SIMD_32_OR_64 = 3


class Form(IntEnum):
    """Forms of an operand of a vector operation; operand i is in r[b + i]."""

    NONE = 0
    DSD = 1
    DSR = 2  # the row names the register: column of the operand's DSR
    SCALAR = 3
    POINTER = 4  # a scalar in memory: a vector of stride 0 without length


class VectorRow(NamedTuple):
    """A vector operation, named as its builtin.

    kinds  of destination, sources and scalar: s an f32, h a 16-bit float, w and d raw words of 16 and 32 bits
    rate   which ``*_milli`` of the configuration an element costs, and its column (0 f32, 1 f16, 2 mixed); without one, a cycle
    """

    kinds: str
    rate: str = ""
    column: int = 0

    def words(self, place: int) -> int:
        """Words of an element of operand `place`; operands that it lacks have the width of source 0, a scalar one word."""
        if place < len(self.kinds):
            return 2 if self.kinds[place] in "sd" else 1
        return 1 if place == 3 else self.words(1)


VECTOR_OPERATIONS = {
    "mov16": VectorRow("ww", "mov", 1), "mov32": VectorRow("dd", "mov", 0), "add16": VectorRow("www", "add", 1),
    "addc16": VectorRow("www", "max", 1), "sub16": VectorRow("www", "add", 1), "and16": VectorRow("www", "add", 1),
    "or16": VectorRow("www", "add", 1), "xor16": VectorRow("www", "add", 1), "sll16": VectorRow("www", "max", 0),
    "slr16": VectorRow("www", "max", 0), "sar16": VectorRow("www", "max", 0), "popcnt": VectorRow("ww"), "clz": VectorRow("ww"),
    "ctz": VectorRow("ww"), "add32": VectorRow("ddd"), "sub32": VectorRow("ddd"), "mul16": VectorRow("www"), "and32": VectorRow("ddd"),
    "or32": VectorRow("ddd"), "xor32": VectorRow("ddd"), "fmovs": VectorRow("ss", "mov", 0), "fadds": VectorRow("sss", "add", 0),
    "fsubs": VectorRow("sss", "add", 0), "fmuls": VectorRow("sss", "mul", 0), "fmacs": VectorRow("ssss", "fma", 0),
    "fnegs": VectorRow("ss", "add", 0), "fabss": VectorRow("ss", "add", 0), "fmaxs": VectorRow("sss", "max", 0),
    "fnorms": VectorRow("ss", "add", 0), "fscales": VectorRow("ssw", "add", 0), "fmovh": VectorRow("hh", "mov", 1),
    "faddh": VectorRow("hhh", "add", 1), "fsubh": VectorRow("hhh", "add", 1), "fmulh": VectorRow("hhh", "mul", 1),
    "fmach": VectorRow("hhhh", "fma", 1), "fnegh": VectorRow("hh", "add", 1), "fabsh": VectorRow("hh", "add", 1),
    "fmaxh": VectorRow("hhh", "max", 1), "fnormh": VectorRow("hh", "add", 1), "fscaleh": VectorRow("hhw", "add", 1),
    "faddhs": VectorRow("ssh", "add", 2), "fmachs": VectorRow("sshh", "fma", 2), "fh2s": VectorRow("sh", "max", 0),
    "fs2h": VectorRow("hs", "max", 0), "fh2xp16": VectorRow("wh", "max", 1), "fs2xp16": VectorRow("ws", "max", 0),
    "xp162fh": VectorRow("hw", "max", 1), "xp162fs": VectorRow("sw", "max", 0),
}  # fmt: skip
VECTOR_OPS = tuple(VECTOR_OPERATIONS)

# Columns of image.vector_issues, int32.  Ids below 0: none; USE_REGISTER + i: found in r[b + i]; USE_CONSTANT + k: K[k].
(V_OP, V_DEST, V_SRC0, V_SRC1, V_SRC2) = range(5)  # V_DEST..V_SRC2: Form
(V_DSR0, V_DSR1, V_DSR2, V_DSR3) = range(5, 9)  # file * 64 + id of the operand's DSR, or -1
V_ASYNC = 9
V_ACTIVATE = 10  # task id or -1
V_UNBLOCK = 11  # task id or -1
V_ON_CONTROL = 12  # OnControl
V_CONTROL_TASK = 13  # task id of ON_CONTROL activate or unblock
V_PRIORITY = 14
V_THREAD = 15  # microthread or -1: by the rule of the generation
V_INDEX = 16  # .index: register offset i (in r[b + i]) or -1
VECTOR_FIELDS = 17
USE_REGISTER = 4096
USE_CONSTANT = 8192


class OnControl(IntEnum):
    """Effect of a control wavelet on the operation that receives it (besides consuming it)."""

    NONE = 0
    TERMINATE = 1
    ACTIVATE = 2
    UNBLOCK = 3


# Columns of image.dsr_loads, int32.
(
    L_FILE,
    L_ID,
    L_ASYNC,
    L_ACTIVATE,
    L_UNBLOCK,
    L_SAVE_ADDRESS,
    L_SINGLE_STEP,
    L_THREAD,
    L_PRIORITY,
    L_ON_CONTROL,
    L_CONTROL_TASK,
) = range(11)
LOAD_FIELDS = 11
DSR_DEST, DSR_SRC0, DSR_SRC1 = range(3)

# Columns of image.shapes: dimensions, four extents, four jumps in elements, innermost first.
SHAPE_FIELDS = 9
# Columns of image.rings: first word, words, stride in elements.
RING_FIELDS = 3


class FilterKind(IntEnum):
    """Filters where a color leaves to the core."""

    RANGE = 0
    COUNTER = 1
    SPARSE_COUNTER = 2


HALF_FORMATS = ("f16", "bf16", "cb16")
"""The 16-bit floats that a program can have, by number."""

# Columns of image.filters, int64.
(
    F_KIND,
    F_MIN,
    F_MAX,
    F_LIMIT1,
    F_LIMIT2,
    F_MAX_COUNTER,
    F_INIT,
    F_COUNT_DATA,
    F_COUNT_CONTROL,
    F_FILTER_CONTROL,
) = range(10)
FILTER_FIELDS = 10

COST_CLASSES = (
    "free", "move", "alu16", "alu32", "alu64", "mul16", "mul32", "mul64", "div16", "div32", "div64", "load16", "load32", "load64",
    "store16", "store32", "store64", "branch", "jump", "call", "return", "task_end",
    "f32_add", "f32_mul", "f32_div", "f32_move", "f16_add", "f16_mul", "f16_div", "f16_move", "convert",
    "math_sqrt", "math_rsqrt", "math_exp", "math_log", "math_sin", "math_cos", "math_tan", "math_tanh", "math_inv", "math_pow", "math_round",
    "dsd_change", "dsd_add", "dsr_load", "dsr_load_4d", "dsr_change", "vector", "task_bit", "register", "tsc", "trace", "random", "coordinate", "print", "config",
    "mapped", "map_start",
)  # fmt: skip
