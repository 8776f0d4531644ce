"""Values of a core of which only those count that decide something: an integer that is known, or what made it unknown.

A register and a word of memory hold an int (raw bits, as the machine keeps them) or an :class:`Unknown`.  What is computed from an unknown
value is unknown for the same cause; floating-point results are not followed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from wse_sim.fabric.vm.opcodes import Op


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A value that the proof does not know; `cause` says where it came from, as the end of a sentence.

    ``is_data``: data may decide it.  Otherwise it is the same whatever the data are, as long as they decide nothing else.
    """

    cause: str
    is_data: bool = True


Value = int | Unknown

DATA = Unknown("data of the host")
WORD = Unknown("a word that arrived")
CLOCK = Unknown("the clock", is_data=False)
POSITION = Unknown("the position of the core", is_data=False)
RANDOM = Unknown("random numbers", is_data=False)
FLOAT = Unknown("floating-point arithmetic", is_data=False)
MACHINE = Unknown("the state of routers, queues and threads", is_data=False)


def first_unknown(*values: Value) -> Unknown | None:
    """The unknown value that a result is unknown for: data before others; None if all are known."""
    unknown = [value for value in values if isinstance(value, Unknown)]
    return next((value for value in unknown if value.is_data), unknown[0] if unknown else None)


def signed(x: int, bits: int) -> int:
    """Low `bits` of `x`, sign-extended."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def _i16(x: int) -> int:
    return signed(x, 16)


def _u16(x: int) -> int:
    return x & 0xFFFF


def _i32(x: int) -> int:
    return signed(x, 32)


def _u32(x: int) -> int:
    return x & 0xFFFFFFFF


def _i64(x: int) -> int:
    return signed(x, 64)


_WRAPS = {"I16": _i16, "U16": _u16, "I32": _i32, "U32": _u32, "I64": _i64}
_BITS = {"I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64}


def quotient(x: int, y: int) -> int:
    """Integer quotient, toward zero."""
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


def remainder(x: int, y: int) -> int:
    """Remainder with the sign of the dividend."""
    return x - quotient(x, y) * y


def _shifted_left(kind: str) -> Callable[[int, int], int]:
    wrap, bits = _WRAPS[kind], _BITS[kind]
    return lambda x, y: wrap(x << y) if 0 <= y < bits else 0


def _shifted_right(x: int, y: int) -> int:
    return x >> (y if 0 <= y < 64 else 63)


def _unsigned(x: int) -> int:
    return x & ((1 << 64) - 1)


def _wrapped(op: Callable[[int, int], int], wrap: Callable[[int], int]) -> Callable[[int, int], int]:
    return lambda x, y: wrap(op(x, y))


BINARY: dict[int, Callable[[int, int], int]] = {
    Op.AND: lambda x, y: x & y,
    Op.OR: lambda x, y: x | y,
    Op.XOR: lambda x, y: x ^ y,
    Op.SHR: _shifted_right,
    Op.SHR_U64: lambda x, y: _i64(_unsigned(x) >> y) if 0 <= y < 64 else 0,
    Op.EQ: lambda x, y: int(x == y),
    Op.NE: lambda x, y: int(x != y),
    Op.LT: lambda x, y: int(x < y),
    Op.LE: lambda x, y: int(x <= y),
    Op.LTU64: lambda x, y: int(_unsigned(x) < _unsigned(y)),
    Op.LEU64: lambda x, y: int(_unsigned(x) <= _unsigned(y)),
}
"""r[a] = f(r[b], r[c])"""
DIVISIONS: dict[int, Callable[[int, int], int]] = {
    Op.DIV_U64: lambda x, y: _i64(_unsigned(x) // _unsigned(y)),
    Op.MOD_U64: lambda x, y: _i64(_unsigned(x) % _unsigned(y)),
}
"""The same, with a divisor that must not be 0."""
IMMEDIATE: dict[int, Callable[[int, int], int]] = {
    Op.ANDI: lambda x, y: x & y,
    Op.ORI: lambda x, y: x | y,
    Op.XORI: lambda x, y: x ^ y,
    Op.SHRI: _shifted_right,
    Op.WRAPS: signed,
    Op.WRAPU: lambda x, y: x & ((1 << y) - 1) if y < 64 else x,
    Op.WRAP_I8: lambda x, _: signed(x, 8),
    Op.WRAP_U8: lambda x, _: x & 0xFF,
}
"""r[a] = f(r[b], c)"""
for _kind, _wrap in _WRAPS.items():
    BINARY[Op[f"ADD_{_kind}"]] = _wrapped(lambda x, y: x + y, _wrap)
    BINARY[Op[f"SUB_{_kind}"]] = _wrapped(lambda x, y: x - y, _wrap)
    BINARY[Op[f"MUL_{_kind}"]] = _wrapped(lambda x, y: x * y, _wrap)
    BINARY[Op[f"SHL_{_kind}"]] = _shifted_left(_kind)
    DIVISIONS[Op[f"DIV_{_kind}"]] = _wrapped(quotient, _wrap)
    DIVISIONS[Op[f"MOD_{_kind}"]] = _wrapped(remainder, _wrap)
    IMMEDIATE[Op[f"ADDI_{_kind}"]] = _wrapped(lambda x, y: x + y, _wrap)
    if _kind != "I64":
        IMMEDIATE[Op[f"MULI_{_kind}"]] = _wrapped(lambda x, y: x * y, _wrap)
        IMMEDIATE[Op[f"SHLI_{_kind}"]] = _shifted_left(_kind)
        IMMEDIATE[Op[f"WRAP_{_kind}"]] = lambda x, _, wrap=_wrap: wrap(x)  # type: ignore[misc]

JUMPS: dict[int, Callable[[int, int], bool]] = {
    Op.JEQ: lambda x, y: x == y,
    Op.JNE: lambda x, y: x != y,
    Op.JLT: lambda x, y: x < y,
    Op.JLE: lambda x, y: x <= y,
}
"""Jump if f(r[a], r[b])."""
JUMPS_IMMEDIATE: dict[int, Callable[[int, int], bool]] = {
    Op.JZ: lambda x, _: x == 0,
    Op.JNZ: lambda x, _: x != 0,
    Op.JEQI: lambda x, y: x == y,
    Op.JNEI: lambda x, y: x != y,
    Op.JLTI: lambda x, y: x < y,
    Op.JLEI: lambda x, y: x <= y,
    Op.JGTI: lambda x, y: x > y,
    Op.JGEI: lambda x, y: x >= y,
}
"""Jump if f(r[a], b)."""
FLOATS = frozenset(
    {
        Op.FEQ, Op.FLT, Op.FLE, Op.HEQ, Op.HLT, Op.HLE, Op.FADD, Op.FSUB, Op.FMUL, Op.FDIV, Op.FNEG, Op.FABS, Op.FMA, Op.HADD, Op.HSUB,
        Op.HMUL, Op.HDIV, Op.HNEG, Op.HABS, Op.H2F, Op.F2H, Op.I2F, Op.F2I, Op.MATH, Op.POW,
    }
)  # fmt: skip
"""Arithmetic that is not followed."""


def _float(bits: int) -> np.float32:
    return np.uint32(bits & 0xFFFFFFFF).view(np.float32)


def _bits(value: np.float32) -> int:
    return int(np.float32(value).view(np.uint32))


FLOAT_BINARY: dict[int, Callable[[int, int], int]] = {
    Op.FADD: lambda x, y: _bits(_float(x) + _float(y)),
    Op.FSUB: lambda x, y: _bits(_float(x) - _float(y)),
    Op.FMUL: lambda x, y: _bits(_float(x) * _float(y)),
    Op.FEQ: lambda x, y: int(_float(x) == _float(y)),
    Op.FLT: lambda x, y: int(_float(x) < _float(y)),
    Op.FLE: lambda x, y: int(_float(x) <= _float(y)),
}
"""Arithmetic of f32 that is followed."""
LOADS = {
    Op.LD_I16: (1, True, 0), Op.LD_U16: (1, False, 0), Op.LD_I32: (2, True, 0), Op.LD_U32: (2, False, 0), Op.LD_64: (4, True, 0),
    Op.LDX_I16: (1, True, 1), Op.LDX_U16: (1, False, 1), Op.LDX_I32: (2, True, 2), Op.LDX_U32: (2, False, 2),
}  # fmt: skip
"""Words, whether signed, words that r[c] counts (0: the offset is c itself)."""
STORES = {Op.ST_16: (1, 0), Op.ST_32: (2, 0), Op.ST_64: (4, 0), Op.STX_16: (1, 1), Op.STX_32: (2, 2)}
