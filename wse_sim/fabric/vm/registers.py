"""Memory-mapped registers of a WSE-2 router, by word address: routes and switch positions of every color.

The layout is that of comments in the public examples (allreduce of two rows and an end).  Of color c:

    0x7f20 + c   routes: bits 0 to 4 outputs of position 0 (west, east, south, north, ramp), 5 to 9 its inputs in the same order, 10 and 11 color
                 swap of the vertical and of the horizontal inputs, 12 and 13 pop mode, 14 torn down
    0x7f40 + c   switch: per position 1 to 3 four bits (0 west, 1 east, 2 south, 3 north, 4 ramp, 5 invalid; above them 1 = an input changes,
                 0 = an output), bit 12 ring mode, 13 and 14 the position

A position names one side and keeps the other of the position before it, so all are recomputed when one register changes.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm import state as S
from wse_sim.jit import inlined_kernel

ROUTES, SWITCH, REGISTER_COLORS = 0x7F20, 0x7F40, 24
FIRST_REGISTER, REGISTERS = 0x7E00, 512
"""Registers for `@get_config` and `@set_config`; those without a meaning above store what is written, without
effect."""
FIRST_BYTE = 0xFC00
"""Byte addresses from here on are registers; no word address of the memory is as large."""
WRITTEN = 1 << 15


@inlined_kernel
def reordered(mask):
    """Five bits north, east, south, west, ramp as west, east, south, north, ramp, and back."""
    return (mask & 0b10110) | ((mask & 1) << 3) | ((mask & 8) >> 3)


@inlined_kernel
def switch_settings(rs, m):
    """Bits 0 to 11 of a switch register: as they were written, else from the routes."""
    if m.switch_word[rs] & WRITTEN:
        return np.int64(m.switch_word[rs]) & 0xFFF
    found, base = np.int64(0), np.int64(m.route[rs * 4])
    for k in range(1, 4):
        now = np.int64(m.route[rs * 4 + k])
        code, is_input = np.int64(5), np.int64(1)
        if now != 0:
            is_input = np.int64(0) if (now & 31) == (base & 31) and now != base else np.int64(1)
            side = reordered((now if is_input else now >> 5) & 31)
            code = np.int64(0)
            while code < 4 and (side >> code) & 1 == 0:
                code += 1
            base = now
        found |= (code | (is_input << 3)) << (4 * (k - 1))
    return found


@inlined_kernel
def set_positions(rs, settings, m):
    """Positions 1 to 3 from position 0 and the bits of a switch register."""
    m.switch_word[rs] = np.uint16(settings | WRITTEN)
    base = np.int64(m.route[rs * 4])
    for k in range(1, 4):
        field = settings >> (4 * (k - 1))
        code = field & 7
        if code > 4:
            m.route[rs * 4 + k] = 0
            continue
        side = reordered(np.int64(1) << code)
        base = (base & ~31) | side if field & 8 else (base & 31) | (side << 5)
        m.route[rs * 4 + k] = np.uint16(base)


@inlined_kernel
def read_register(rs, is_switch, m):
    """Value of a register of router and color `rs`."""
    state = np.int64(m.rstate[rs])
    if is_switch:
        ring = np.int64(1) if state & S.RING_BIT else np.int64(0)
        return switch_settings(rs, m) | (ring << 12) | ((state & 3) << 13)
    route = np.int64(m.route[rs * 4])
    swaps = (np.int64(2) if state & S.SWAP_X else np.int64(0)) | (
        np.int64(1) if state & S.SWAP_Y else np.int64(0)
    )
    torn = np.int64(1) if state & S.TORN else np.int64(0)
    return (
        reordered(route >> 5)
        | (reordered(route & 31) << 5)
        | (swaps << 10)
        | (((state >> 3) & 3) << 12)
        | (torn << 14)
    )


@inlined_kernel
def write_register(rs, is_switch, value, m):
    """Set a register of a router's color; `rs` is the slot of router and color."""
    state = np.int64(m.rstate[rs])
    if is_switch:
        state = (state & ~(3 | S.RING_BIT)) | ((value >> 13) & 3)
        if (value >> 12) & 1:
            state |= S.RING_BIT
        set_positions(rs, value & 0xFFF, m)
    else:
        settings = switch_settings(rs, m)
        m.route[rs * 4] = np.uint16(reordered((value >> 5) & 31) | (reordered(value & 31) << 5))
        set_positions(rs, settings, m)
        state &= ~(S.SWAP_X | S.SWAP_Y | (3 << 3) | S.TORN)
        state |= ((value >> 12) & 3) << 3
        if (value >> 10) & 1:
            state |= S.SWAP_Y
        if (value >> 11) & 1:
            state |= S.SWAP_X
        if (value >> 14) & 1:
            state |= S.TORN
    m.rstate[rs] = np.uint8(state)


@inlined_kernel
def register_slot(word, m):
    """Slot of the color of a register, -1 if no router of the program uses the color, -2 if there is no such register."""
    if m.sets[S.IS_WSE3] != 0:
        return np.int64(-2)
    first = np.int64(SWITCH) if word >= SWITCH else np.int64(ROUTES)
    if word < first or word >= first + REGISTER_COLORS:
        return np.int64(-2)
    return np.int64(m.slot_of[word - first])


@inlined_kernel
def access_register(c, word, value, m):
    """Read (`value` below 0) or write the register at a word address; its value, or -1: there is none."""
    slot = register_slot(word, m)
    if slot == -2:
        own = word - FIRST_REGISTER
        if own < 0 or own >= REGISTERS or c >= m.kept.shape[0]:
            return np.int64(-1)
        if value >= 0:
            m.kept[c, own] = np.uint16(value)
        return np.int64(m.kept[c, own])
    if slot < 0:
        return np.int64(0)
    rs = slot * m.sets[S.ROWS] * m.sets[S.COLS] + c
    is_switch = word >= SWITCH
    if value < 0:
        return np.int64(read_register(rs, is_switch, m))
    write_register(rs, is_switch, value, m)
    return np.int64(0)
