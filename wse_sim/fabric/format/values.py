"""Arithmetic of the cores on fp32 and fp16 values, bit for bit as numpy's float32 and float16.

A value is a float32; an fp16 value is a float32 that fp16 holds exactly, so the arena has one type.
fp32: every operation rounds (multiply-add rounds twice).  fp16 and mixed: a product of two fp16 is exact
in fp32, the sum is rounded to fp32 and then to the destination.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs
from __future__ import annotations

import math

import numpy as np

from wse_sim.fabric.format.program import Fn, Op
from wse_sim.jit import bare_kernel, helper_kernel, inlined_kernel, rounded_product

_ADD, _SUB, _MUL, _FMAC = int(Op.ADD), int(Op.SUB), int(Op.MUL), int(Op.FMAC)
_MAC, _MAX, _MIN, _MAP = int(Op.MAC), int(Op.MAX), int(Op.MIN), int(Op.MAP)
_EXP, _SILU, _GELU, _TANH, _RECIPROCAL = (
    int(Fn.EXP),
    int(Fn.SILU),
    int(Fn.GELU),
    int(Fn.TANH),
    int(Fn.RECIPROCAL),
)
_SQRT, _RSQRT, _RELU, _ABS, _NEGATE = int(Fn.SQRT), int(Fn.RSQRT), int(Fn.RELU), int(Fn.ABS), int(Fn.NEGATE)
_STEP, _SIGMOID, _GELU_TANH, _ERF = int(Fn.STEP), int(Fn.SIGMOID), int(Fn.GELU_TANH), int(Fn.ERF)
_SOFTPLUS, _SIN, _COS = int(Fn.SOFTPLUS), int(Fn.SIN), int(Fn.COS)


@inlined_kernel
def f32_bits(x):
    """Bits of a float32 as int64 in 0 .. 2**32 - 1."""
    return np.int64(np.float32(x).view(np.uint32))


@inlined_kernel
def bits_f32(bits):
    """The float32 of the low 32 bits."""
    return np.uint32(np.int64(bits) & 0xFFFFFFFF).view(np.float32)


@bare_kernel
def f16_bits(x):
    """Bits of the float16 nearest to a float32 (ties to even)."""
    bits = np.int64(np.float32(x).view(np.uint32))
    sign = (bits >> 16) & 0x8000
    magnitude = bits & 0x7FFFFFFF
    if magnitude >= 0x7F800000:  # infinity or not a number
        return sign | (0x7E00 if magnitude > 0x7F800000 else 0x7C00)
    if magnitude >= 0x477FF000:  # rounds to infinity
        return sign | 0x7C00
    if magnitude >= 0x38800000:  # normal
        rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1)
        return sign | ((rounded - 0x38000000) >> 13)
    if magnitude < 0x33000000:
        return sign
    exponent = magnitude >> 23  # subnormal: shift the mantissa, round to even
    mantissa = (magnitude & 0x7FFFFF) | 0x800000
    shift = 126 - exponent
    half = np.int64(1) << (shift - 1)
    rest = mantissa & ((half << 1) - 1)
    value = mantissa >> shift
    if rest > half or (rest == half and value & 1):
        value += 1
    return sign | value


@bare_kernel
def bits_f16(bits):
    """The float32 that equals the float16 of the low 16 bits."""
    bits = np.int64(bits) & 0xFFFF
    sign = np.float32(-1.0) if bits & 0x8000 else np.float32(1.0)
    exponent, mantissa = (bits >> 10) & 31, bits & 0x3FF
    if exponent == 31:
        return np.uint32(((bits & 0x8000) << 16) | 0x7F800000 | (mantissa << 13)).view(np.float32)
    if exponent == 0:
        return sign * np.float32(mantissa) * np.float32(2.0**-24)
    return np.uint32(((bits & 0x8000) << 16) | ((exponent + 112) << 23) | (mantissa << 13)).view(np.float32)


@helper_kernel
def round_f16(x):
    """A float32 rounded to fp16 precision."""
    return bits_f16(f16_bits(x))


@helper_kernel
def apply_function(fn, x):
    """Scalar function of MAP, evaluated in double and rounded once."""
    v = np.float64(x)
    if fn == _EXP:
        r = math.exp(min(v, 709.0))
    elif fn == _SILU:
        r = v / (1.0 + math.exp(-v)) if v > -700.0 else 0.0
    elif fn == _GELU:
        r = 0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0)))
    elif fn == _TANH:
        r = math.tanh(v)
    elif fn == _RECIPROCAL:
        r = 1.0 / v if v != 0.0 else math.inf
    elif fn == _SQRT:
        r = math.sqrt(v) if v >= 0.0 else math.nan
    elif fn == _RSQRT:
        r = 1.0 / math.sqrt(v) if v > 0.0 else math.inf
    elif fn == _RELU:
        r = v if v > 0.0 else 0.0
    elif fn == _ABS:
        r = abs(v)
    elif fn == _NEGATE:
        r = -v
    elif fn == _STEP:
        r = 1.0 if v > 0.0 else 0.0
    elif fn == _SIGMOID:
        r = 1.0 / (1.0 + math.exp(-v)) if v > -700.0 else 0.0
    elif fn == _GELU_TANH:
        r = 0.5 * v * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * v * v * v)))
    elif fn == _ERF:
        r = math.erf(v)
    elif fn == _SOFTPLUS:
        r = max(v, 0.0) + math.log(1.0 + math.exp(-abs(v)))
    elif fn == _SIN:
        r = math.sin(v)
    elif fn == _COS:
        r = math.cos(v)
    else:
        r = math.log(v) if v > 0.0 else -math.inf
    return np.float32(r)


@inlined_kernel
def arithmetic(op, fn, d, a, b, s):
    """One element in float32; the caller rounds to fp16 where the destination is fp16."""
    if op == _ADD:
        return np.float32(a + b)
    if op == _SUB:
        return np.float32(a - b)
    if op == _MUL:
        return np.float32(a * b)
    if op == _FMAC:
        return np.float32(a + rounded_product(b, s))
    if op == _MAC:
        return np.float32(d + rounded_product(a, b))
    if op == _MAX:
        return a if a > b else b
    if op == _MIN:
        return a if a < b else b
    if op == _MAP:
        return apply_function(fn, a)
    return a
