"""Elements in a core's memory: addresses of operands, and operations that use only memory, executed at once."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.values import bits_f32, f32_bits
from wse_sim.fabric.vm import arithmetic as A
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.arithmetic import element
from wse_sim.jit import helper_kernel

_ADDC16 = A.ADDC16


@helper_kernel
def next_address(kind, address, stride, th, o, shapes, rings):
    """Address of the element after the present one; counters of a shape advance."""
    if kind == S.LINE:
        return address + stride
    if kind == S.RING:
        row = np.int64(th[o + S.P_ROW])
        first, words = np.int64(rings[row, 0]), np.int64(rings[row, 1])
        address += stride
        if address >= first + words:
            address -= words
        elif address < first:
            address += words
        return address
    row = np.int64(th[o + S.P_ROW])
    for k in range(shapes[row, 0]):
        th[o + S.P_C0 + k] += 1
        if th[o + S.P_C0 + k] < shapes[row, 1 + k]:
            return address + stride * np.int64(shapes[row, 5 + k])
        th[o + S.P_C0 + k] = 0
    return address


@helper_kernel
def load(memory, base, address, width):
    """Raw bits of an element of `width` words."""
    value = np.int64(memory[base + address])
    if width == 2:
        value |= np.int64(memory[base + address + 1]) << 16
    return value


@helper_kernel
def store(memory, base, address, width, value):
    """Write raw bits."""
    memory[base + address] = np.uint16(value & 0xFFFF)
    if width == 2:
        memory[base + address + 1] = np.uint16((value >> 16) & 0xFFFF)


@helper_kernel
def is_inside(th, o, n, width, words):
    """True if the n elements of a straight or stride-0 operand are in memory (others are checked element by element)."""
    if th[o + S.P_FORM] != S.MEMORY or th[o + S.P_KIND] != S.LINE or n == 0:
        return True
    first = np.int64(th[o + S.P_ADDRESS])
    last = first + (n - 1) * np.int64(th[o + S.P_STRIDE])
    return min(first, last) >= 0 and max(first, last) + width <= words


@helper_kernel
def run_straight(th, op, n, widths, memory, base):
    """An operation on straight memory operands and scalars: the inner loops."""
    d, a, b, s = (
        S.OPERAND0 + S.OPERAND_FIELDS * 0,
        S.OPERAND0 + S.OPERAND_FIELDS,
        S.OPERAND0 + S.OPERAND_FIELDS * 2,
        S.OPERAND0 + S.OPERAND_FIELDS * 3,
    )
    to, to_step = base + np.int64(th[d + S.P_ADDRESS]), np.int64(th[d + S.P_STRIDE])
    xa, xa_step = base + np.int64(th[a + S.P_ADDRESS]), np.int64(th[a + S.P_STRIDE])
    xb, xb_step = base + np.int64(th[b + S.P_ADDRESS]), np.int64(th[b + S.P_STRIDE])
    va, vb = np.int64(np.uint32(th[a + S.P_VALUE])), np.int64(np.uint32(th[b + S.P_VALUE]))
    scalar = np.int64(np.uint32(th[s + S.P_VALUE]))
    a_in, b_in = th[a + S.P_FORM] == S.MEMORY, th[b + S.P_FORM] == S.MEMORY
    if th[s + S.P_FORM] == S.MEMORY:
        scalar = load(memory, base, np.int64(th[s + S.P_ADDRESS]), np.int64(widths[3]))
    if op == A.FMACS and a_in and b_in:
        f = bits_f32(scalar)
        for _ in range(n):
            x = bits_f32(np.int64(memory[xa]) | (np.int64(memory[xa + 1]) << 16))
            y = bits_f32(np.int64(memory[xb]) | (np.int64(memory[xb + 1]) << 16))
            w = f32_bits(np.float32(x + np.float32(y * f)))
            memory[to] = np.uint16(w & 0xFFFF)
            memory[to + 1] = np.uint16(w >> 16)
            to += to_step
            xa += xa_step
            xb += xb_step
        return np.int64(0)
    wd, wa, wb = np.int64(widths[0]), np.int64(widths[1]), np.int64(widths[2])
    mask_a, mask_b = (1 << (16 * wa)) - 1, (1 << (16 * wb)) - 1
    carry = np.int64(0)
    for _ in range(n):
        x = load(memory, xa, np.int64(0), wa) if a_in else va & mask_a
        y = load(memory, xb, np.int64(0), wb) if b_in else vb & mask_b
        if op == _ADDC16:
            w = x + y + carry
            carry = w >> 16
        else:
            w = element(op, np.int64(widths[A.HALF]), x, y, scalar)
        store(memory, to, np.int64(0), wd, w)
        to += to_step
        xa += xa_step
        xb += xb_step
    return carry


@helper_kernel
def run_memory(th, widths, memory, base, words, shapes, rings):
    """All elements of an operation that touches memory alone.  Returns -1, or the address out of range."""
    op, n = np.int64(th[S.T_OP]) - 1, np.int64(th[S.T_REST])
    straight = True
    for place in range(4):
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        if th[o + S.P_FORM] == S.MEMORY:
            if th[o + S.P_KIND] != S.LINE:
                straight = False
            if not is_inside(th, o, n, np.int64(widths[place]), words):
                return np.int64(th[o + S.P_ADDRESS])
    if straight:
        run_straight(th, op, n, widths, memory, base)
        for place in range(3):
            o = S.OPERAND0 + place * S.OPERAND_FIELDS
            th[o + S.P_ADDRESS] += np.int32(n * np.int64(th[o + S.P_STRIDE]))
        th[S.T_REST] = 0
        return np.int64(-1)
    carry = np.int64(0)
    for _ in range(n):
        x, y, z = np.int64(0), np.int64(0), np.int64(0)
        for place in range(1, 4):
            o = S.OPERAND0 + place * S.OPERAND_FIELDS
            width = np.int64(widths[place])
            v = np.int64(0)
            if th[o + S.P_FORM] == S.VALUE:
                v = np.int64(np.uint32(th[o + S.P_VALUE])) & ((1 << (16 * width)) - 1)
            elif th[o + S.P_FORM] == S.MEMORY:
                address = np.int64(th[o + S.P_ADDRESS])
                if address < 0 or address + width > words:
                    return address
                v = load(memory, base, address, width)
                th[o + S.P_ADDRESS] = np.int32(
                    next_address(
                        th[o + S.P_KIND], address, np.int64(th[o + S.P_STRIDE]), th, o, shapes, rings
                    )
                )
            if place == 1:
                x = v
            elif place == 2:
                y = v
            else:
                z = v
        if op == _ADDC16:
            w = x + y + carry
            carry = w >> 16
        else:
            w = element(op, np.int64(widths[A.HALF]), x, y, z)
        o, width = S.OPERAND0, np.int64(widths[0])
        address = np.int64(th[o + S.P_ADDRESS])
        if address < 0 or address + width > words:
            return address
        store(memory, base, address, width, w)
        th[o + S.P_ADDRESS] = np.int32(
            next_address(th[o + S.P_KIND], address, np.int64(th[o + S.P_STRIDE]), th, o, shapes, rings)
        )
    th[S.T_REST] = 0
    return np.int64(-1)
