"""Semantics of every opcode and every vector operation, in plain Python: the definition.

The compile-time evaluator and the static walk read these tables. The machine is compiled from separate
branches (``scalar``, ``arithmetic``, ``halves``), which tests compare with the tables over edge values of
every type. Registers store int64 in canonical form (see :mod:`~wse_sim.fabric.vm.opcodes`); floats are raw
bits. A float result is rounded once to f32, to nearest, ties to even; a 16-bit float is rounded from that
f32. A NaN result may have any sign and payload.
"""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from wse_sim.fabric.vm.opcodes import Op

Binary = Callable[[int, int], int]


# ---- integers


def signed(x: int, bits: int) -> int:
    """Low `bits` of `x`, sign-extended."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def unsigned(x: int, bits: int = 64) -> int:
    """Low `bits` of `x`, zero-extended."""
    return x & ((1 << bits) - 1)


def quotient(x: int, y: int) -> int:
    """Integer quotient, toward zero; `y` is not 0."""
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


def remainder(x: int, y: int) -> int:
    """Remainder with the sign of the dividend; `y` is not 0."""
    return x - quotient(x, y) * y


def shifted_left(x: int, n: int, bits: int) -> int:
    """`x` * 2**n before it is cut to `bits`; 0 if the amount is the width or more."""
    return x << n if 0 <= n < bits else 0


def shifted_right(x: int, n: int) -> int:
    """Arithmetic shift of a canonical value; an amount above 63 shifts everything out."""
    return x >> (n if 0 <= n < 64 else 63)


def _wrapped(op: Binary, wrap: Callable[[int, int], int], bits: int) -> Binary:
    return lambda x, y: wrap(op(x, y), bits)


def _shift(wrap: Callable[[int, int], int], bits: int) -> Binary:
    return lambda x, y: wrap(shifted_left(x, y, bits), bits)


BINARY: dict[int, Binary] = {
    Op.AND: operator.and_, Op.OR: operator.or_, Op.XOR: operator.xor, Op.SHR: shifted_right,
    Op.SHR_U64: lambda x, y: signed(unsigned(x) >> y, 64) if 0 <= y < 64 else 0,
    Op.EQ: lambda x, y: int(x == y), Op.NE: lambda x, y: int(x != y), Op.LT: lambda x, y: int(x < y), Op.LE: lambda x, y: int(x <= y),
    Op.LTU64: lambda x, y: int(unsigned(x) < unsigned(y)), Op.LEU64: lambda x, y: int(unsigned(x) <= unsigned(y)),
}  # fmt: skip
"""r[a] = f(r[b], r[c]), integers"""
DIVISIONS: dict[int, Binary] = {
    Op.DIV_U64: lambda x, y: signed(unsigned(x) // unsigned(y), 64),
    Op.MOD_U64: lambda x, y: signed(unsigned(x) % unsigned(y), 64),
}
"""Operations whose divisor must not be 0."""
IMMEDIATE: dict[int, Binary] = {
    Op.ANDI: operator.and_, Op.ORI: operator.or_, Op.XORI: operator.xor, Op.SHRI: shifted_right, Op.WRAPS: signed,
    Op.WRAPU: lambda x, bits: unsigned(x, bits) if bits < 64 else x,
    Op.WRAP_I8: lambda x, _: signed(x, 8), Op.WRAP_U8: lambda x, _: x & 0xFF,
}  # fmt: skip
"""r[a] = f(r[b], c)"""
for _kind, _wrap, _bits in (("I16", signed, 16), ("U16", unsigned, 16), ("I32", signed, 32), ("U32", unsigned, 32), ("I64", signed, 64)):  # fmt: skip
    for _name, _op in (("ADD", operator.add), ("SUB", operator.sub), ("MUL", operator.mul)):
        BINARY[Op[f"{_name}_{_kind}"]] = _wrapped(_op, _wrap, _bits)
    BINARY[Op[f"SHL_{_kind}"]] = _shift(_wrap, _bits)
    DIVISIONS[Op[f"DIV_{_kind}"]] = _wrapped(quotient, _wrap, _bits)
    DIVISIONS[Op[f"MOD_{_kind}"]] = _wrapped(remainder, _wrap, _bits)
    IMMEDIATE[Op[f"ADDI_{_kind}"]] = _wrapped(operator.add, _wrap, _bits)
    if _kind != "I64":
        IMMEDIATE[Op[f"MULI_{_kind}"]] = _wrapped(operator.mul, _wrap, _bits)
        IMMEDIATE[Op[f"SHLI_{_kind}"]] = _shift(_wrap, _bits)
        IMMEDIATE[Op[f"WRAP_{_kind}"]] = _wrapped(lambda x, _: x, _wrap, _bits)

JUMPS: dict[int, Callable[[int, int], bool]] = {
    Op.JEQ: operator.eq, Op.JNE: operator.ne, Op.JLT: operator.lt, Op.JLE: operator.le,
}  # fmt: skip
"""Jump if f(r[a], r[b])."""
JUMPS_IMMEDIATE: dict[int, Callable[[int, int], bool]] = {
    Op.JZ: lambda x, _: x == 0, Op.JNZ: lambda x, _: x != 0, Op.JEQI: operator.eq, Op.JNEI: operator.ne, Op.JLTI: operator.lt,
    Op.JLEI: operator.le, Op.JGTI: operator.gt, Op.JGEI: operator.ge,
}  # fmt: skip
"""Jump if f(r[a], b)."""
LOADS = {
    Op.LD_I16: (1, True, 0), Op.LD_U16: (1, False, 0), Op.LD_I32: (2, True, 0), Op.LD_U32: (2, False, 0), Op.LD_64: (4, True, 0),
    Op.LDX_I16: (1, True, 1), Op.LDX_U16: (1, False, 1), Op.LDX_I32: (2, True, 2), Op.LDX_U32: (2, False, 2),
}  # fmt: skip
"""Words, whether signed, words that r[c] counts (0: the offset is c itself)."""
STORES = {Op.ST_16: (1, 0), Op.ST_32: (2, 0), Op.ST_64: (4, 0), Op.STX_16: (1, 1), Op.STX_32: (2, 2)}


# ---- formats of floats


def _double_bits(x: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", x))[0])


def _double(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


class Format(NamedTuple):
    """A binary float: 1 bit of sign, an exponent, a mantissa; with subnormals, infinities and not-a-numbers.

    The bias of the exponent is that of IEEE, 2 ** (exponent_bits - 1) - 1, and `more_bias`.
    """

    exponent_bits: int
    mantissa_bits: int
    more_bias: int = 0

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1 + self.more_bias

    def encode(self, x: float) -> int:
        """Bits of the number of this format that is nearest to `x`, ties to even."""
        e, m, _ = self
        sign = 1 << (e + m) if math.copysign(1.0, x) < 0 else 0
        infinity = ((1 << e) - 1) << m
        if math.isnan(x):
            return sign | infinity | (_double_bits(x) >> (52 - m) & ((1 << m) - 1) or 1 << (m - 1))
        if math.isinf(x) or x == 0.0:
            return sign | (infinity if x else 0)
        bias = self.bias
        exponent = max(math.frexp(x)[1] - 1, 1 - bias)  # all subnormals have the unit of the smallest normal
        mantissa = round(math.ldexp(abs(x), m - exponent))  # a normal one with its leading bit
        return sign | min(infinity, mantissa + ((exponent + bias - 1) << m))

    def decode(self, bits: int) -> float:
        """The number that the low bits are."""
        e, m, _ = self
        sign = -1.0 if bits >> (e + m) & 1 else 1.0
        exponent, mantissa = bits >> m & ((1 << e) - 1), bits & ((1 << m) - 1)
        if exponent == (1 << e) - 1:
            return _double(0x7FF << 52 | mantissa << (52 - m) | (sign < 0) << 63)
        if exponent:
            mantissa += 1 << m
        return sign * math.ldexp(mantissa, max(exponent, 1) - self.bias - m)


class Single(Format):
    """f32, by C's own conversions, which are quicker."""

    def encode(self, x: float) -> int:
        return int(struct.unpack("<I", bytes(ctypes.c_float(x)))[0])

    def decode(self, bits: int) -> float:
        return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])


F32 = Single(8, 23)
HALVES = {"f16": Format(5, 10), "bf16": Format(8, 7), "cb16": Format(6, 9, 11)}


def round_f32(x: float) -> float:
    """The f32 nearest to `x`, as a double."""
    return ctypes.c_float(x).value


def integer_to_f32(x: int) -> float:
    """The f32 nearest to an integer, rounded once."""
    extra = max(0, abs(x).bit_length() - 50)  # bits beyond these decide only that the rest is not zero
    kept = abs(x) >> extra | int(abs(x) & ((1 << extra) - 1) != 0)
    return math.copysign(round_f32(math.ldexp(kept, extra)), x)


def float_to_integer(x: float, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
    """Convert toward zero; NaN gives 0, values beyond the limits give the limit."""
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return low if x < 0 else high
    return min(max(int(x), low), high)


def divided(x: float, y: float) -> float:
    """Quotient with the signs and specials of IEEE."""
    if y != 0.0:
        return x / y
    return math.nan if x == 0.0 or math.isnan(x) else math.copysign(math.inf, x) * math.copysign(1.0, y)


# ---- functions of floats


def _log(base: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: -math.inf if x == 0.0 else base(x)


def _whole(fn: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: math.copysign(float(fn(x)), x) if math.isfinite(x) else x


def power(x: float, y: float) -> float:
    """x**y with the specials of C's pow."""
    try:
        return math.pow(x, y)
    except (OverflowError, ValueError) as error:
        if isinstance(error, ValueError) and x != 0.0:
            return math.nan  # a fraction as exponent of a negative number
        return math.copysign(math.inf, x) if y % 2.0 == 1.0 else math.inf


class MathFunction(NamedTuple):
    """A function of floats: its definition, and the cost class of a call."""

    value: Callable[[float], float]
    cost: str


FUNCTIONS = {
    "sqrt": MathFunction(math.sqrt, "math_sqrt"), "rsqrt": MathFunction(lambda x: math.inf if x == 0.0 else 1.0 / math.sqrt(x), "math_rsqrt"),
    "exp": MathFunction(math.exp, "math_exp"), "log": MathFunction(_log(math.log), "math_log"), "sin": MathFunction(math.sin, "math_sin"),
    "cos": MathFunction(math.cos, "math_cos"), "tan": MathFunction(math.tan, "math_tan"), "tanh": MathFunction(math.tanh, "math_tanh"),
    "inv": MathFunction(lambda x: divided(1.0, x), "math_inv"), "floor": MathFunction(_whole(math.floor), "math_round"),
    "ceil": MathFunction(_whole(math.ceil), "math_round"), "round": MathFunction(_whole(round), "math_round"),
    "trunc": MathFunction(_whole(math.trunc), "math_round"), "asin": MathFunction(math.asin, "math_tan"), "acos": MathFunction(math.acos, "math_tan"),
    "atan": MathFunction(math.atan, "math_tan"), "sinh": MathFunction(math.sinh, "math_exp"), "cosh": MathFunction(math.cosh, "math_exp"),
    "exp2": MathFunction(lambda x: 2.0**x, "math_exp"), "log2": MathFunction(_log(math.log2), "math_log"),
    "log10": MathFunction(_log(math.log10), "math_log"),
    "sigmoid": MathFunction(lambda x: 0.0 if x < -700.0 else 1.0 / (1.0 + math.exp(-x)), "math_exp"), "erf": MathFunction(math.erf, "math_exp"),
}  # fmt: skip
NAMES = tuple(FUNCTIONS)


def math_function(name: str, x: float) -> float:
    """Function `name` of FUNCTIONS; outside its domain not a number, beyond the largest double infinite."""
    try:
        return FUNCTIONS[name].value(x)
    except ValueError:
        return math.nan
    except OverflowError:
        return -math.inf if name == "sinh" and x < 0 else math.inf


# ---- opcodes on floats


def _on_f32(fn: Callable[[float, float], float]) -> Binary:
    return lambda x, y: F32.encode(round_f32(fn(F32.decode(x), F32.decode(y))))


def multiply_add(addend: int, x: int, y: int) -> int:
    """FMA on bits of f32, rounded after the product and after the sum."""
    return F32.encode(round_f32(F32.decode(addend) + round_f32(F32.decode(x) * F32.decode(y))))


FLOATS: dict[int, Binary] = {
    Op.FADD: _on_f32(operator.add), Op.FSUB: _on_f32(operator.sub), Op.FMUL: _on_f32(operator.mul), Op.FDIV: _on_f32(divided),
    Op.POW: _on_f32(power),
    Op.FEQ: lambda x, y: int(F32.decode(x) == F32.decode(y)), Op.FLT: lambda x, y: int(F32.decode(x) < F32.decode(y)),
    Op.FLE: lambda x, y: int(F32.decode(x) <= F32.decode(y)),
    Op.FNEG: lambda x, _: x ^ 0x80000000, Op.FABS: lambda x, _: x & 0x7FFFFFFF,
    Op.I2F: lambda x, _: F32.encode(integer_to_f32(x)), Op.F2I: lambda x, _: float_to_integer(F32.decode(x)),
    Op.U2F: lambda x, _: F32.encode(integer_to_f32(unsigned(x))),
    Op.F2U: lambda x, _: signed(float_to_integer(F32.decode(x), -(1 << 63), (1 << 64) - 1), 64),
}  # fmt: skip
"""r[a] = f(r[b], r[c]), f32 and conversions"""
IMMEDIATE[Op.MATH] = lambda x, fn: F32.encode(round_f32(math_function(NAMES[fn], F32.decode(x))))


@cache
def half_floats(half: str) -> dict[int, Binary]:
    """r[a] = f(r[b], r[c]) on 16-bit floats of a format (a key of HALVES)."""
    form = HALVES[half]

    def on_half(fn: Callable[[float, float], float]) -> Binary:
        return lambda x, y: form.encode(round_f32(fn(form.decode(x), form.decode(y))))

    return {
        Op.HADD: on_half(operator.add), Op.HSUB: on_half(operator.sub), Op.HMUL: on_half(operator.mul), Op.HDIV: on_half(divided),
        Op.HEQ: lambda x, y: int(form.decode(x) == form.decode(y)), Op.HLT: lambda x, y: int(form.decode(x) < form.decode(y)),
        Op.HLE: lambda x, y: int(form.decode(x) <= form.decode(y)),
        Op.HNEG: lambda x, _: x ^ 0x8000, Op.HABS: lambda x, _: x & 0x7FFF,
        Op.H2F: lambda x, _: F32.encode(form.decode(x)), Op.F2H: lambda x, _: form.encode(F32.decode(x)),
    }  # fmt: skip


UNARY = frozenset({Op.FNEG, Op.FABS, Op.I2F, Op.F2I, Op.U2F, Op.F2U, Op.HNEG, Op.HABS, Op.H2F, Op.F2H})
"""Opcodes of these tables that do not read r[c]."""


@cache
def scalar_operations(half: str) -> dict[int, Binary]:
    """Every opcode r[a] = f(r[b], r[c]) of a program with 16-bit floats of a format; divisors must not be 0."""
    return {**BINARY, **DIVISIONS, **FLOATS, **half_floats(half)}


# ---- vector operations


def _larger(x: float, y: float) -> float:
    """Maximum; a number wins over not a number."""
    if math.isnan(x) or math.isnan(y):
        return y if math.isnan(x) else x
    return x if x > y else y


def _scaled(x: float, n: float) -> float:
    try:
        return math.ldexp(x, int(n))
    except OverflowError:
        return math.copysign(math.inf, x)


def _normalized(x: float, _: float) -> float:
    return 2.0 * math.frexp(x)[0] if math.isfinite(x) else x


@cache
def vector_operations(half: str) -> dict[str, Callable[[int, int, int], int]]:
    """Return the bits of an element of every vector operation: f(source 0, source 1, scalar); ``addc16``
    returns 17 bits, without carry-in."""
    form = HALVES[half]
    table: dict[str, Callable[[int, int, int], int]] = {
        "addc16": lambda a, b, _: a + b, "mul16": lambda a, b, _: a * b & 0xFFFF, "popcnt": lambda a, *_: a.bit_count(),
        "clz": lambda a, *_: 16 - a.bit_length(), "ctz": lambda a, *_: (a & -a).bit_length() - 1 if a else 16,
        "sll16": lambda a, b, _: unsigned(shifted_left(a, b, 16), 16), "slr16": lambda a, b, _: a >> b,
        "sar16": lambda a, b, _: unsigned(signed(a, 16) >> b, 16),
    }  # fmt: skip
    for bits in (16, 32):
        table[f"mov{bits}"] = lambda a, *_: a
        for name, op in (("add", operator.add), ("sub", operator.sub), ("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):  # fmt: skip
            table[f"{name}{bits}"] = lambda a, b, _, op=op, bits=bits: unsigned(op(a, b), bits)  # type: ignore[misc]

    def on(result: Format, left: Format, right: Format, fn: Callable[[float, float], float]) -> Callable[[int, int, int], int]:  # fmt: skip
        return lambda a, b, _: result.encode(round_f32(fn(left.decode(a), right.decode(b))))

    def fused(result: Format, factors: Format) -> Callable[[int, int, int], int]:
        return lambda a, b, s: result.encode(
            round_f32(result.decode(a) + round_f32(factors.decode(b) * factors.decode(s)))
        )

    for end, f in (("s", F32), ("h", form)):
        sign = 1 << (f.exponent_bits + f.mantissa_bits)
        for name, fn in (("fadd", operator.add), ("fsub", operator.sub), ("fmul", operator.mul), ("fmax", _larger), ("fnorm", _normalized)):  # fmt: skip
            table[name + end] = on(f, f, f, fn)
        table[f"fmov{end}"] = lambda a, *_: a
        table[f"fneg{end}"] = lambda a, *_, sign=sign: a ^ sign  # type: ignore[misc]
        table[f"fabs{end}"] = lambda a, *_, sign=sign: a & ~sign  # type: ignore[misc]
        table[f"fmac{end}"] = fused(f, f)
        table[f"fscale{end}"] = lambda a, b, _, f=f: f.encode(round_f32(_scaled(f.decode(a), signed(b, 16))))  # type: ignore[misc]
        table[f"f{end}2xp16"] = lambda a, *_, f=f: unsigned(float_to_integer(f.decode(a), -32768, 32767), 16)  # type: ignore[misc]
        table[f"xp162f{end}"] = lambda a, *_, f=f: f.encode(float(signed(a, 16)))  # type: ignore[misc]
    table["faddhs"] = on(F32, F32, form, operator.add)
    table["fmachs"] = fused(F32, form)
    table["fh2s"] = lambda a, *_: F32.encode(form.decode(a))
    table["fs2h"] = lambda a, *_: form.encode(F32.decode(a))
    return table
