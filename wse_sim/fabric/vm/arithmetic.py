"""Values of the register core, bit for bit: an element is an int64 that holds the raw bits of 16 or 32.

f32: every operation rounds.  f16 (or bf16, cb16): operands are widened to f32, the result is rounded.  Mixed (fmachs, faddhs): f32 throughout.
Multiply-add rounds after the product and after the sum.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.values import bits_f32, f32_bits
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.half_floats import half_bits, half_value
from wse_sim.fabric.vm.semantics import FUNCTIONS
from wse_sim.jit import helper_kernel, inlined_kernel

# Columns of the table of vector operations: words of an element of destination, source 0, source 1, scalar; sources; cost of an
# element in 1/1000 cycle; the same with two memory sources; elements of one issue (a short vector is one issue, whatever limits long
# ones); cost where the banks of two memory sources collide; format of 16-bit floats.
(W_DEST, W_SRC0, W_SRC1, W_SCALAR, N_SOURCES, COST, COST_MEMORY, ISSUE, COST_COLLIDING, HALF) = range(10)
VOP = {name: i for i, name in enumerate(O.VECTOR_OPS)}


def operation_table(config: FabricConfig, half: int = 0) -> npt.NDArray[np.int32]:
    """Widths and costs of every vector operation: the rows of the documented table that the wafer's rates stand for."""
    table = np.zeros((len(O.VECTOR_OPS), 10), np.int32)
    table[:, HALF] = half
    for (name, op), row in zip(O.VECTOR_OPERATIONS.items(), table, strict=True):
        row[: W_SCALAR + 1] = [op.words(place) for place in range(4)]
        row[N_SOURCES] = min(len(op.kinds) - 1, 2)
        row[COST] = row[COST_MEMORY] = getattr(config, f"{op.rate}_milli")[op.column] if op.rate else 1000
        row[ISSUE] = config.simd_fp16 if name == "fmach" else 1
    for name in ("fadds", "fsubs"):
        table[VOP[name], COST_MEMORY] = config.add_memory_milli[0]
    # Colliding reads take their turns, a word of 32 bits a cycle; an operation that is slower than them anyway does not notice.
    reads = np.where(table[:, W_SRC0] == 2, 1000, config.add_milli[1])
    table[:, COST_COLLIDING] = np.maximum(table[:, COST_MEMORY], reads * config.conflict_milli // 1000)
    return table


_OP = {name: int(i) for name, i in VOP.items()}
MOV16, MOV32, FMOVS, FMOVH = _OP["mov16"], _OP["mov32"], _OP["fmovs"], _OP["fmovh"]
ADD16, ADDC16, SUB16, AND16, OR16, XOR16 = (
    _OP[n] for n in ("add16", "addc16", "sub16", "and16", "or16", "xor16")
)
SLL16, SLR16, SAR16, POPCNT, CLZ, CTZ = (_OP[n] for n in ("sll16", "slr16", "sar16", "popcnt", "clz", "ctz"))
ADD32, SUB32, MUL16, AND32, OR32, XOR32 = (
    _OP[n] for n in ("add32", "sub32", "mul16", "and32", "or32", "xor32")
)
FADDS, FSUBS, FMULS, FMACS, FNEGS, FABSS = (
    _OP[n] for n in ("fadds", "fsubs", "fmuls", "fmacs", "fnegs", "fabss")
)
FMAXS, FNORMS, FSCALES, FADDH, FSUBH, FMULH = (
    _OP[n] for n in ("fmaxs", "fnorms", "fscales", "faddh", "fsubh", "fmulh")
)
FMACH, FNEGH, FABSH, FMAXH, FNORMH, FSCALEH = (
    _OP[n] for n in ("fmach", "fnegh", "fabsh", "fmaxh", "fnormh", "fscaleh")
)
FADDHS, FMACHS, FH2S, FS2H = (_OP[n] for n in ("faddhs", "fmachs", "fh2s", "fs2h"))
FH2XP16, FS2XP16, XP162FH, XP162FS = (_OP[n] for n in ("fh2xp16", "fs2xp16", "xp162fh", "xp162fs"))


@inlined_kernel
def s16(x):
    """Low 16 bits, sign-extended."""
    return ((x & 0xFFFF) ^ 0x8000) - 0x8000


@inlined_kernel
def s32(x):
    """Low 32 bits, sign-extended."""
    return ((x & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@inlined_kernel
def larger(x, y):
    """Maximum; a number wins over not a number."""
    if math.isnan(x):
        return y
    if math.isnan(y):
        return x
    return x if x > y else y


@helper_kernel
def divide(x, y):
    """f32 quotient with the signs and specials of IEEE."""
    if y == np.float32(0.0):
        if x == np.float32(0.0) or math.isnan(x):
            return np.float32(math.nan)
        negative = (f32_bits(x) ^ f32_bits(y)) >> 31
        return np.float32(-math.inf) if negative & 1 else np.float32(math.inf)
    return np.float32(x / y)


@helper_kernel
def to_integer(x):
    """Toward zero; not a number 0; beyond int64 its limits."""
    v = np.float64(x)
    if math.isnan(v):
        return np.int64(0)
    if v >= 2.0**63:
        return np.int64(0x7FFFFFFFFFFFFFFF)
    if v <= -(2.0**63):
        return np.int64(-0x7FFFFFFFFFFFFFFF) - np.int64(1)
    return np.int64(v)


@helper_kernel
def to_unsigned(x):
    """Toward zero as a u64; not a number 0; beyond the limits of int64 below and u64 above, the limit."""
    v = np.float64(x)
    if v < 2.0**63 or math.isnan(v):
        return to_integer(x)
    return (
        np.int64(-1)
        if v >= 2.0**64
        else np.int64(v - 2.0**63) + (np.int64(-0x7FFFFFFFFFFFFFFF) - np.int64(1))
    )


@helper_kernel
def xp16(x):
    """Convert f32 to i16: toward zero, clamped to the limits."""
    v = to_integer(x)
    return (min(max(v, -32768), 32767)) & 0xFFFF


@helper_kernel
def scaled(x, n):
    """x * 2**n."""
    # Beyond 2**880 every f32 is infinite or 0, and an f64 does not overflow, which Python raises as an error.
    return np.float32(math.ldexp(np.float64(x), int(min(max(n, -880), 880))))


@helper_kernel
def normalized(x):
    """x scaled by a power of two into 1 <= |x| < 2; zero and specials stay."""
    v = np.float64(x)
    if v == 0.0 or v - v != 0.0:
        return x
    mantissa, _ = math.frexp(v)
    return np.float32(2.0 * mantissa)


@helper_kernel
def bit_count(op, x):
    """popcnt, clz, ctz of 16 bits."""
    n = np.int64(0)
    if op == POPCNT:
        for i in range(16):
            n += (x >> i) & 1
    elif op == CLZ:
        while n < 16 and not (x >> (15 - n)) & 1:
            n += 1
    else:
        while n < 16 and not (x >> n) & 1:
            n += 1
    return n


@helper_kernel
def rare(op, half, a, b):
    """Elements of the operations that programs use seldom."""
    if op == SLL16:
        return (a << b) & 0xFFFF if b < 16 else 0
    if op == SLR16:
        return a >> min(b, 16)
    if op == SAR16:
        return (s16(a) >> min(b, 15)) & 0xFFFF
    if op == POPCNT or op == CLZ or op == CTZ:
        return bit_count(op, a)
    if op == MUL16:
        return (a * b) & 0xFFFF
    if op == AND16 or op == AND32:
        return a & b
    if op == OR16 or op == OR32:
        return a | b
    if op == XOR16 or op == XOR32:
        return a ^ b
    if op == FMAXH:
        return half_bits(half, larger(half_value(half, a), half_value(half, b)))
    if op == FNORMS:
        return f32_bits(normalized(bits_f32(a)))
    if op == FNORMH:
        return half_bits(half, normalized(half_value(half, a)))
    if op == FSCALES:
        return f32_bits(scaled(bits_f32(a), s16(b)))
    if op == FSCALEH:
        return half_bits(half, scaled(half_value(half, a), s16(b)))
    if op == FH2S:
        return f32_bits(half_value(half, a))
    if op == FS2H:
        return half_bits(half, bits_f32(a))
    if op == FH2XP16:
        return xp16(half_value(half, a))
    if op == FS2XP16:
        return xp16(bits_f32(a))
    if op == XP162FH:
        return half_bits(half, np.float32(s16(a)))
    if op == XP162FS:
        return f32_bits(np.float32(s16(a)))
    return np.int64(0)


@helper_kernel
def element(op, half, a, b, s):
    """One element: bits of the result of operation `op` (ADDC16 is the caller's) on bits `a`, `b` and the scalar `s`; `half` is the format of its 16-bit floats."""
    if op == MOV16 or op == MOV32 or op == FMOVS or op == FMOVH:
        return a
    if op == FMACS:
        return f32_bits(np.float32(bits_f32(a) + np.float32(bits_f32(b) * bits_f32(s))))
    if op == FADDS:
        return f32_bits(np.float32(bits_f32(a) + bits_f32(b)))
    if op == FMULS:
        return f32_bits(np.float32(bits_f32(a) * bits_f32(b)))
    if op == FSUBS:
        return f32_bits(np.float32(bits_f32(a) - bits_f32(b)))
    if op == FMACH:
        return half_bits(
            half, np.float32(half_value(half, a) + np.float32(half_value(half, b) * half_value(half, s)))
        )
    if op == FADDH:
        return half_bits(half, np.float32(half_value(half, a) + half_value(half, b)))
    if op == FSUBH:
        return half_bits(half, np.float32(half_value(half, a) - half_value(half, b)))
    if op == FMULH:
        return half_bits(half, np.float32(half_value(half, a) * half_value(half, b)))
    if op == FMACHS:
        return f32_bits(np.float32(bits_f32(a) + np.float32(half_value(half, b) * half_value(half, s))))
    if op == FADDHS:
        return f32_bits(np.float32(bits_f32(a) + half_value(half, b)))
    if op == FNEGS:
        return a ^ 0x80000000
    if op == FABSS:
        return a & 0x7FFFFFFF
    if op == FNEGH:
        return a ^ 0x8000
    if op == FABSH:
        return a & 0x7FFF
    if op == FMAXS:
        return f32_bits(larger(bits_f32(a), bits_f32(b)))
    if op == ADD16:
        return (a + b) & 0xFFFF
    if op == SUB16:
        return (a - b) & 0xFFFF
    if op == ADD32:
        return (a + b) & 0xFFFFFFFF
    if op == SUB32:
        return (a - b) & 0xFFFFFFFF
    return rare(op, half, a, b)


_FN = {name: i for i, name in enumerate(FUNCTIONS)}
SQRT, RSQRT, EXP, LOG, SIN, COS, TAN, TANH = (
    _FN[n] for n in ("sqrt", "rsqrt", "exp", "log", "sin", "cos", "tan", "tanh")
)
INV, FLOOR, CEIL, ROUND, TRUNC, ASIN, ACOS, ATAN = (
    _FN[n] for n in ("inv", "floor", "ceil", "round", "trunc", "asin", "acos", "atan")
)
SINH, COSH, EXP2, LOG2, LOG10, SIGMOID, ERF = (
    _FN[n] for n in ("sinh", "cosh", "exp2", "log2", "log10", "sigmoid", "erf")
)


@helper_kernel
def logarithm(v, base):
    """Natural (0), binary (2) or decimal (10) logarithm with the specials of IEEE."""
    if math.isnan(v) or v < 0.0:
        return math.nan
    if v == 0.0:
        return -math.inf
    if base == 2:
        return math.log2(v)
    if base == 10:
        return math.log10(v)
    return math.log(v)


@helper_kernel
def math_function(fn, x):
    """f32 function `fn` (row of FUNCTIONS): evaluated in double, rounded once."""
    v = np.float64(x)
    finite = v - v == 0.0
    r = math.nan
    if fn == SQRT:
        r = math.sqrt(v) if v >= 0.0 else math.nan
    elif fn == RSQRT:
        if v > 0.0:
            r = 1.0 / math.sqrt(v)
        elif v == 0.0:
            r = math.inf
    elif fn == EXP:
        r = math.exp(min(v, 709.0)) if not math.isnan(v) else v
    elif fn == EXP2:
        r = 2.0 ** min(v, 1023.0) if not math.isnan(v) else v
    elif fn == LOG:
        r = logarithm(v, 0)
    elif fn == LOG2:
        r = logarithm(v, 2)
    elif fn == LOG10:
        r = logarithm(v, 10)
    elif fn == TANH:
        r = math.tanh(v)
    elif fn == INV:
        return divide(np.float32(1.0), x)
    elif fn == FLOOR:
        r = np.floor(v)
    elif fn == CEIL:
        r = np.ceil(v)
    elif fn == ROUND:
        r = np.rint(v)
    elif fn == TRUNC:
        r = np.floor(v) if v >= 0.0 else np.ceil(v)
    elif fn == ATAN:
        r = math.atan(v)
    elif fn == SIGMOID:
        r = 1.0 / (1.0 + math.exp(min(-v, 709.0)))
    elif fn == ASIN or fn == ACOS:
        if -1.0 <= v <= 1.0:
            r = math.asin(v) if fn == ASIN else math.acos(v)
    elif fn == SINH or fn == COSH:
        w = min(max(v, -700.0), 700.0)
        r = math.sinh(w) if fn == SINH else math.cosh(w)
    elif fn == ERF:
        r = math.erf(v)
    elif finite:
        if fn == SIN:
            r = math.sin(v)
        elif fn == COS:
            r = math.cos(v)
        else:
            r = math.tan(v)
    return np.float32(r)


@helper_kernel
def power(x, y):
    """f32 power, with the specials of C's pow."""
    return np.float32(math.pow(np.float64(x), np.float64(y)))
