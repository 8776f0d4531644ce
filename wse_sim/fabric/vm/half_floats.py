"""The 16-bit floats of a core: f16 (IEEE), bf16 and cb16.  One program has one of them at run time.

cb16 has 6 bits of exponent with bias 42 (the language guide gives the bits of 6.0) and 9 of mantissa.  Infinities and subnormals are assumed:
as IEEE formats have them.  Training scripts have the bias 31 (`wse_sim/cstorch/numerics.py`): the unit's bias is programmable.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.values import bits_f16, bits_f32, f16_bits
from wse_sim.fabric.vm.opcodes import HALF_FORMATS
from wse_sim.jit import bare_kernel, helper_kernel

F16, BF16, CB16 = range(len(HALF_FORMATS))


@bare_kernel
def bf16_bits(x):
    """Bits of the bf16 nearest to a float32 (ties to even)."""
    bits = np.int64(np.float32(x).view(np.uint32))
    if bits & 0x7FFFFFFF > 0x7F800000:
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@bare_kernel
def cb16_bits(x):
    """Bits of the cb16 nearest to a float32 (ties to even)."""
    bits = np.int64(np.float32(x).view(np.uint32))
    sign, magnitude = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return sign | 0x7F00
    if magnitude >= (148 << 23) - 0x2000:  # rounds to 2 ** 21, which is infinity
        return sign | 0x7E00
    if magnitude >= 86 << 23:  # normal: 2 ** -41 and more
        return sign | ((magnitude + 0x1FFF + ((magnitude >> 14) & 1) - (85 << 23)) >> 14)
    if magnitude < 76 << 23:
        return sign
    mantissa, shift = (magnitude & 0x7FFFFF) | 0x800000, 100 - (magnitude >> 23)  # units of 2 ** -50
    half = np.int64(1) << (shift - 1)
    rest, value = mantissa & ((half << 1) - 1), mantissa >> shift
    if rest > half or (rest == half and value & 1):
        value += 1
    return sign | value


@bare_kernel
def bits_cb16(bits):
    """The float32 that equals a cb16."""
    bits = np.int64(bits) & 0xFFFF
    exponent, mantissa = (bits >> 9) & 63, bits & 0x1FF
    if exponent == 0:
        value = np.float32(mantissa) * np.float32(2.0**-50)
        return -value if bits & 0x8000 else value
    exponent = 255 if exponent == 63 else exponent + 85
    return np.uint32(((bits & 0x8000) << 16) | (exponent << 23) | (mantissa << 14)).view(np.float32)


@helper_kernel
def half_value(kind, bits):
    """The float32 that equals 16 bits of format `kind`."""
    if kind == F16:
        return bits_f16(bits)
    if kind == BF16:
        return bits_f32((np.int64(bits) & 0xFFFF) << 16)
    return bits_cb16(bits)


@helper_kernel
def half_bits(kind, x):
    """Bits of a float32 in format `kind`, rounded to nearest, ties to even."""
    if kind == F16:
        return f16_bits(x)
    if kind == BF16:
        return bf16_bits(x)
    return cb16_bits(x)
