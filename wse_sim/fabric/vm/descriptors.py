"""Fields of DSD values, and the addresses of their elements."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm.arithmetic import s16
from wse_sim.jit import helper_kernel


@helper_kernel
def shape_total(shapes, row):
    """Elements of a shape."""
    n = np.int64(1)
    for k in range(shapes[row, 0]):
        n *= np.int64(shapes[row, 1 + k])
    return n


@helper_kernel
def dsd_field(value, field, shapes):
    """Field (DsdField) of a DSD value."""
    kind = value & 15
    if field == 0:
        return kind
    if field == 1:
        return (value >> 4) & 0xFFFF
    if field == 2 or field == 6:
        if kind == 2:
            return shape_total(shapes, (value >> 20) & 0xFFFF)
        return (value >> 20) & 0xFFFF
    if field == 3:
        return s16(value >> 36)
    if field == 4:
        return (value >> 4) & 31
    return (value >> 9) & 15


@helper_kernel
def element_address(value, n, width, shapes, rings):
    """Word address of element n of a memory DSD; elements of `width` words."""
    kind, base = value & 15, (value >> 4) & 0xFFFF
    if kind == 2:
        row = (value >> 20) & 0xFFFF
        inner, jump_sum = np.int64(1), np.int64(0)
        for k in range(shapes[row, 0]):
            jump_sum += np.int64(shapes[row, 5 + k]) * (
                n // inner - n // (inner * max(1, np.int64(shapes[row, 1 + k])))
            )
            inner *= max(1, np.int64(shapes[row, 1 + k]))
        return base + width * jump_sum
    if kind == 5:
        row = (value >> 36) & 0xFFFF
        first, size = np.int64(rings[row, 0]), np.int64(rings[row, 1])
        return first + (base - first + width * n * np.int64(rings[row, 2])) % max(size, 1)
    return base + width * n * s16(value >> 36)
