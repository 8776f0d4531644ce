"""Type conversions, and arithmetic of known values.

Fixed-width results wrap at their width. Division truncates toward zero, and the remainder has the sign of the
dividend. f32 and f16 round after every operation, to nearest with ties to even.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.lanes import integer
from wse_sim.csl.values import Operand, Value, copy, round_float, show
from wse_sim.fabric.vm.semantics import (
    divided,
    float_to_integer,
    integer_to_f32,
    quotient,
    remainder,
    shifted_left,
)


def misfit(value: Operand, t: ty.Type, at: int) -> CslError:
    """Return the error for a value that does not convert to type `t`."""
    known = f" {show(value)}" if isinstance(value, Value) and ty.is_number(value.type) else ""
    hint = "; convert with @as" if ty.is_number(value.type) and ty.is_number(t) else ""
    return CslError(at, f"expected a value of type '{t}', found{known} of type '{value.type}'{hint}")


def can_widen(source: ty.Type, t: ty.Type) -> bool:
    """Return whether every value of number type `source` is a value of `t`."""
    if isinstance(source, ty.IntType) and isinstance(t, ty.IntType):
        if source.signed == t.signed:
            return source.bits <= t.bits
        return t.signed and source.bits < t.bits
    return isinstance(source, ty.FloatType) and isinstance(t, ty.FloatType) and source.bits < t.bits


def pointer_fits(source: ty.PointerType, t: ty.PointerType) -> bool:
    """Return whether a pointer converts to type `t`: the same target, const added, or an array to its
    elements."""
    if source.const and not t.const:
        return False
    if source.target is t.target or t.target is ty.ANYOPAQUE:
        return True
    if isinstance(source.target, ty.ArrayType):
        inner = source.target
        if inner.element is t.target:
            return t.many or inner.count == 1
        if isinstance(t.target, ty.ArrayType):
            return inner.element is t.target.element and inner.count == t.target.count
    return False


def coerce_known(value: Operand, t: ty.Type, at: int) -> Operand:
    """Convert `value` to the scalar type `t` if the language does so implicitly.

    Raises
    ------
    CslError
        If it does not, or the value does not fit.
    """
    s, data = value.type, value.data
    if s is t:
        return value
    if isinstance(t, ty.IntType):
        if isinstance(s, ty.IntType) or s is ty.COMPTIME_INT:
            if t.low <= data <= t.high:
                return Value(t, data)
            raise CslError(
                at, f"{data} does not fit type '{t}' ({t.low} to {t.high}); use a wider type or @as"
            )
        if s is ty.COMPTIME_FLOAT and data == int(data):
            return coerce_known(Value(ty.COMPTIME_INT, int(data)), t, at)
    elif isinstance(t, ty.FloatType):
        if s is ty.COMPTIME_FLOAT or s is ty.COMPTIME_INT or can_widen(s, t):
            return Value(t, round_float(t, float(data)))
        if isinstance(s, ty.FloatType) and round_float(t, data) == data:
            return Value(t, data)
    elif t is ty.COMPTIME_FLOAT:
        if s is ty.COMPTIME_INT or isinstance(s, (ty.IntType, ty.FloatType)):
            return Value(t, float(data))
    elif t is ty.COMPTIME_INT:
        if isinstance(s, ty.IntType):
            return Value(t, data)
    elif isinstance(t, ty.PointerType) and isinstance(s, ty.PointerType):
        if pointer_fits(s, t):
            return Value(t, data)
    elif isinstance(t, ty.FnType) and isinstance(s, ty.FnType):
        if t.kind == s.kind and len(t.params) == len(s.params) and t.result in {s.result, None}:
            same = all(a is b or a is None or b is None for a, b in zip(t.params, s.params, strict=True))
            if same:
                return value
    elif (
        isinstance(t, ty.ArrayType)
        and isinstance(s, ty.ArrayType)
        and t.count == s.count
        and t.element is s.element
    ):
        return Value(t, copy(data))
    raise misfit(value, t, at)


def convert(value: Operand, t: ty.Type, at: int) -> Operand:
    """Convert a number as `@as` does: to an integer it truncates toward zero and wraps, and to bool it tests
    `!= 0`.

    Raises
    ------
    CslError
        If the language has no such conversion.
    """
    s, data = value.type, value.data
    if s is t:
        return value
    if ty.is_number(s) or s is ty.BOOL:
        if isinstance(t, ty.IntType):
            if ty.is_float(s):
                if math.isnan(data) or math.isinf(data):
                    raise CslError(at, f"@as of {data} to '{t}': it is not an integer")
                high = ty.U64.high if t is ty.U64 else ty.I64.high
                return Value(t, t.wrap(float_to_integer(data, ty.I64.low, high)))
            return Value(t, t.wrap(integer(data)))
        if isinstance(t, ty.FloatType):
            if isinstance(s, ty.IntType) and s.bits > 53:
                data = integer_to_f32(int(data))
            return Value(t, round_float(t, float(data)))
        if t is ty.BOOL:
            return Value(t, data != 0)
        if t is ty.COMPTIME_INT:
            return Value(t, integer(data))
        if t is ty.COMPTIME_FLOAT:
            return Value(t, float(data))
    return coerce_known(value, t, at)


def common_type(left: Operand, right: Operand, op: str, at: int) -> ty.Type:
    """Return the type in which `left op right` is computed.

    Raises
    ------
    CslError
        If there is none.
    """
    a, b = left.type, right.type
    if a is b:
        return a
    if ty.is_number(a) and ty.is_number(b):
        if a is ty.COMPTIME_INT or (a is ty.COMPTIME_FLOAT and ty.is_float(b)):
            return b
        if b is ty.COMPTIME_INT or (b is ty.COMPTIME_FLOAT and ty.is_float(a)):
            return a
        if can_widen(a, b):
            return b
        if can_widen(b, a):
            return a
        if isinstance(a, ty.IntType) and isinstance(b, ty.IntType):
            if isinstance(right, Value) and a.low <= right.data <= a.high:
                return a
            if isinstance(left, Value) and b.low <= left.data <= b.high:
                return b
    if isinstance(a, ty.PointerType) and isinstance(b, ty.PointerType) and a.target is b.target:
        return a
    if op == "&" and isinstance(b, ty.PointerType):  # a && b, as in other languages
        raise CslError(
            at, f"'&' between '{a}' and the address of a '{b.target}'; the operator of truth values is 'and'"
        )
    raise CslError(at, f"'{op}' between '{a}' and '{b}'; convert one side with @as")


INT_OPS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
FLOAT_OPS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divided,
}
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def shift(op: str, left: Operand, right: Operand, at: int) -> Value:
    """Shift an integer by `<<` or `>>`; the result has the type of the left side, and an amount of at least
    its width shifts everything out.

    Raises
    ------
    CslError
        If an operand is not an integer or the amount is negative.
    """
    if not (ty.is_int(left.type) and ty.is_int(right.type)):
        raise CslError(at, f"'{op}' between '{left.type}' and '{right.type}'; both must be integers")
    a, n, t = left.data, right.data, left.type
    if n < 0:
        raise CslError(at, f"shift by {n}; the amount must not be negative")
    if isinstance(t, ty.IntType):
        return Value(t, t.wrap(shifted_left(a, n, t.bits)) if op == "<<" else a >> min(n, 64))
    if n > 4096:
        raise CslError(at, f"shift by {n}; the amount must be 4096 at most")
    return Value(t, a << n if op == "<<" else a >> n)


def arithmetic(op: str, left: Operand, right: Operand, at: int) -> Value:
    """Apply a binary operator to two known numbers.

    Raises
    ------
    CslError
        If the operator is not defined for their types, or divides by zero.
    """
    if op in ("<<", ">>"):
        return shift(op, left, right, at)
    t = left.type
    if t is not right.type:
        t = common_type(left, right, op, at)
        left, right = coerce_known(left, t, at), coerce_known(right, t, at)
    a, b = left.data, right.data
    if isinstance(t, ty.IntType) or t is ty.COMPTIME_INT:
        if op in ("/", "%"):
            if b == 0:
                raise CslError(at, f"division by zero: the right side of '{op}' is 0")
            a = quotient(a, b) if op == "/" else remainder(a, b)
        else:
            a = INT_OPS[op](a, b)
        return Value(t, t.wrap(a) if isinstance(t, ty.IntType) else a)
    if ty.is_float(t) and op in FLOAT_OPS:
        return Value(t, round_float(t, FLOAT_OPS[op](a, b)))
    if t is ty.BOOL and op in ("&", "|", "^"):
        return Value(t, bool(INT_OPS[op](a, b)))
    raise CslError(at, f"'{op}' between '{left.type}' and '{right.type}' is not defined")


def compare(op: str, left: Operand, right: Operand, at: int) -> bool:
    """Compare two known values; numbers in lanes are compared lane by lane.

    Raises
    ------
    CslError
        If the types cannot be compared with `op`.
    """
    a, b = left.type, right.type
    if ty.is_number(a) and ty.is_number(b):
        if a is not b:
            common_type(left, right, op, at)
        return COMPARE[op](left.data, right.data)
    if a is not b and not (
        isinstance(a, (ty.PointerType, ty.FnType)) and isinstance(b, (ty.PointerType, ty.FnType))
    ):
        raise CslError(at, f"'{op}' between '{a}' and '{b}'; both sides must have the same type")
    if op not in ("==", "!="):
        raise CslError(at, f"'{op}' between values of type '{a}'; only == and != are defined")
    x, y = left.data, right.data
    if isinstance(a, ty.PointerType):
        x, y = x.key(), y.key()
    return bool((x == y) == (op == "=="))
