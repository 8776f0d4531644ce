"""Scalar code: a stretch of opcodes of one core, up to its next interaction.

A stretch adds up prices; the main thread is busy for the sum afterwards, and what it stored counts at its start.  It stops before what
others could notice in another cycle (a vector operation, BLOCK, SYS), and at the end of the task.

Opcodes are in groups, each a function that states whether the opcode was one of its own.  All are inlined into :func:`stretch`, and the compiler
turns their comparisons with constants into one jump.  A group asks for nothing else before such a comparison, or the jump would become several.

Symbols of the groups: r = registers of the running function; d, x, y = numbers of the destination and the two sources in r; k = constant of the row;
at = word address in the memory of the core.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.values import bits_f32, f32_bits
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.arithmetic import divide, math_function, power, s16, s32, to_integer, to_unsigned
from wse_sim.fabric.vm.descriptors import dsd_field, element_address
from wse_sim.fabric.vm.half_floats import half_bits, half_value
from wse_sim.fabric.vm.registers import FIRST_BYTE
from wse_sim.fabric.vm.watch import look_at_scalar
from wse_sim.jit import helper_kernel, inlined_kernel

# The opcodes as plain integers: numba compiles comparisons with constants into one jump.
NOP, LDI, LDK, MOV, ADD_I16, ADD_U16 = range(0, 6)
ADD_I32, ADD_U32, ADD_I64, SUB_I16, SUB_U16, SUB_I32 = range(6, 12)
SUB_U32, SUB_I64, MUL_I16, MUL_U16, MUL_I32, MUL_U32 = range(12, 18)
MUL_I64, DIV_I16, DIV_U16, DIV_I32, DIV_U32, DIV_I64 = range(18, 24)
DIV_U64, MOD_I16, MOD_U16, MOD_I32, MOD_U32, MOD_I64 = range(24, 30)
MOD_U64, AND, OR, XOR, SHL_I16, SHL_U16 = range(30, 36)
SHL_I32, SHL_U32, SHL_I64, SHR, SHR_U64, ADDI_I16 = range(36, 42)
ADDI_U16, ADDI_I32, ADDI_U32, ADDI_I64, MULI_I16, MULI_U16 = range(42, 48)
MULI_I32, MULI_U32, ANDI, ORI, XORI, SHLI_I16 = range(48, 54)
SHLI_U16, SHLI_I32, SHLI_U32, SHRI, WRAP_I8, WRAP_U8 = range(54, 60)
WRAP_I16, WRAP_U16, WRAP_I32, WRAP_U32, WRAPS, WRAPU = range(60, 66)
EQ, NE, LT, LE, LTU64, LEU64 = range(66, 72)
FEQ, FLT, FLE, HEQ, HLT, HLE = range(72, 78)
JMP, JZ, JNZ, JEQ, JNE, JLT = range(78, 84)
JLE, JEQI, JNEI, JLTI, JLEI, JGTI = range(84, 90)
JGEI, CALL, CALLR, RET, END, FADD = range(90, 96)
FSUB, FMUL, FDIV, FNEG, FABS, FMA = range(96, 102)
HADD, HSUB, HMUL, HDIV, HNEG, HABS = range(102, 108)
H2F, F2H, I2F, F2I, MATH, POW = range(108, 114)
LD_I16, LD_U16, LD_I32, LD_U32, LD_64, ST_16 = range(114, 120)
ST_32, ST_64, LDX_I16, LDX_U16, LDX_I32, LDX_U32 = range(120, 126)
STX_16, STX_32, DSD_BASE, DSD_ADD, DSD_LEN, DSD_STRIDE = range(126, 132)
DSD_GET, DSD_ADDR16, DSD_ADDR32, DSR_LOAD, DSR_BASE, DSR_GET = range(132, 138)
VEC, ACT, BLOCK, UNBLOCK, SYS, U2F, F2U = range(138, 145)

# Why a stretch stopped; below: a fault of state.py.
W_END, W_VECTOR, W_SYSTEM, W_LATER, W_BUDGET, W_REGISTER = range(32, 38)
# What a group says: it ran the opcode; the opcode is another one; a 16-bit access beyond the memory, perhaps to a register.  Else why it stopped.
RAN, ANOTHER, POINTED = 0, -1, -2
FIRST_INDEXED = int(O.Op.LDX_I16)
u64, u32 = np.uint64, np.uint32
ONE = np.uint64(1)


@helper_kernel
def quotient(x, y):
    """Integer quotient, toward zero."""
    if y == -1:
        return -x
    q = x // y
    return q + 1 if q < 0 and q * y != x else q


@helper_kernel
def remainder(x, y):
    """Remainder with the sign of the dividend."""
    if y == -1:
        return np.int64(0)
    return x - quotient(x, y) * y


@helper_kernel
def quotient_u64(x, y):
    """Unsigned quotient of 64 bits."""
    return np.int64(np.uint64(x) // np.uint64(y))


@helper_kernel
def remainder_u64(x, y):
    """Unsigned remainder of 64 bits."""
    return np.int64(np.uint64(x) % np.uint64(y))


@inlined_kernel
def with_field(value, shift, field):
    """A DSD with another field of 16 bits."""
    return (value & ~(np.int64(0xFFFF) << shift)) | ((field & 0xFFFF) << shift)


@inlined_kernel
def integers(op, r, d, x, y):
    """Moves, sums, differences, products and bits of two integers; False: the opcode is another one."""
    if op == MOV:
        r[d] = r[x]
    elif op == ADD_I16:
        r[d] = s16(r[x] + r[y])
    elif op == ADD_U16:
        r[d] = (r[x] + r[y]) & 0xFFFF
    elif op == ADD_I32:
        r[d] = s32(r[x] + r[y])
    elif op == ADD_U32:
        r[d] = (r[x] + r[y]) & 0xFFFFFFFF
    elif op == ADD_I64:
        r[d] = r[x] + r[y]
    elif op == SUB_I16:
        r[d] = s16(r[x] - r[y])
    elif op == SUB_U16:
        r[d] = (r[x] - r[y]) & 0xFFFF
    elif op == SUB_I32:
        r[d] = s32(r[x] - r[y])
    elif op == SUB_U32:
        r[d] = (r[x] - r[y]) & 0xFFFFFFFF
    elif op == SUB_I64:
        r[d] = r[x] - r[y]
    elif op == MUL_I16:
        r[d] = s16(r[x] * r[y])
    elif op == MUL_U16:
        r[d] = (r[x] * r[y]) & 0xFFFF
    elif op == MUL_I32:
        r[d] = s32(r[x] * r[y])
    elif op == MUL_U32:
        r[d] = (r[x] * r[y]) & 0xFFFFFFFF
    elif op == MUL_I64:
        r[d] = r[x] * r[y]
    elif op == AND:
        r[d] = r[x] & r[y]
    elif op == OR:
        r[d] = r[x] | r[y]
    elif op == XOR:
        r[d] = r[x] ^ r[y]
    else:
        return False
    return True


@inlined_kernel
def with_constants(op, r, d, x, k):
    """A constant of the row alone, or with an integer; False: the opcode is another one."""
    if op == LDI:
        r[d] = k
    elif op == ADDI_I16:
        r[d] = s16(r[x] + k)
    elif op == ADDI_U16:
        r[d] = (r[x] + k) & 0xFFFF
    elif op == ADDI_I32:
        r[d] = s32(r[x] + k)
    elif op == ADDI_U32:
        r[d] = (r[x] + k) & 0xFFFFFFFF
    elif op == ADDI_I64:
        r[d] = r[x] + k
    elif op == MULI_I16:
        r[d] = s16(r[x] * k)
    elif op == MULI_U16:
        r[d] = (r[x] * k) & 0xFFFF
    elif op == MULI_I32:
        r[d] = s32(r[x] * k)
    elif op == MULI_U32:
        r[d] = (r[x] * k) & 0xFFFFFFFF
    elif op == ANDI:
        r[d] = r[x] & k
    elif op == ORI:
        r[d] = r[x] | k
    elif op == XORI:
        r[d] = r[x] ^ k
    else:
        return False
    return True


@inlined_kernel
def shifts(op, r, d, x, y, k):
    """Shifts, and integers cut to a type; False: the opcode is another one."""
    if op == SHL_I16:
        n = r[y]
        r[d] = s16(r[x] << n) if 0 <= n < 16 else 0
    elif op == SHL_U16:
        n = r[y]
        r[d] = (r[x] << n) & 0xFFFF if 0 <= n < 16 else 0
    elif op == SHL_I32:
        n = r[y]
        r[d] = s32(r[x] << n) if 0 <= n < 32 else 0
    elif op == SHL_U32:
        n = r[y]
        r[d] = (r[x] << n) & 0xFFFFFFFF if 0 <= n < 32 else 0
    elif op == SHL_I64:
        n = r[y]
        r[d] = r[x] << n if 0 <= n < 64 else 0
    elif op == SHR:
        n = r[y]
        r[d] = r[x] >> (n if 0 <= n < 64 else 63)
    elif op == SHR_U64:
        n = r[y]
        r[d] = np.int64(u64(r[x]) >> u64(n)) if 0 <= n < 64 else 0
    elif op == SHLI_I16:
        r[d] = s16(r[x] << k) if 0 <= k < 16 else 0
    elif op == SHLI_U16:
        r[d] = (r[x] << k) & 0xFFFF if 0 <= k < 16 else 0
    elif op == SHLI_I32:
        r[d] = s32(r[x] << k) if 0 <= k < 32 else 0
    elif op == SHLI_U32:
        r[d] = (r[x] << k) & 0xFFFFFFFF if 0 <= k < 32 else 0
    elif op == SHRI:
        r[d] = r[x] >> (k if 0 <= k < 64 else 63)
    elif op == WRAP_I8:
        r[d] = ((r[x] & 0xFF) ^ 0x80) - 0x80
    elif op == WRAP_U8:
        r[d] = r[x] & 0xFF
    elif op == WRAP_I16:
        r[d] = s16(r[x])
    elif op == WRAP_U16:
        r[d] = r[x] & 0xFFFF
    elif op == WRAP_I32:
        r[d] = s32(r[x])
    elif op == WRAP_U32:
        r[d] = r[x] & 0xFFFFFFFF
    elif op == WRAPS:
        n = np.int64(64 - k)
        r[d] = (r[x] << n) >> n
    elif op == WRAPU:
        r[d] = r[x] & ((np.int64(1) << k) - 1) if k < 64 else r[x]
    else:
        return False
    return True


@inlined_kernel
def comparisons(op, r, d, x, y):
    """Comparisons of integers; False: the opcode is another one."""
    if op == EQ:
        r[d] = 1 if r[x] == r[y] else 0
    elif op == NE:
        r[d] = 1 if r[x] != r[y] else 0
    elif op == LT:
        r[d] = 1 if r[x] < r[y] else 0
    elif op == LE:
        r[d] = 1 if r[x] <= r[y] else 0
    elif op == LTU64:
        r[d] = 1 if u64(r[x]) < u64(r[y]) else 0
    elif op == LEU64:
        r[d] = 1 if u64(r[x]) <= u64(r[y]) else 0
    else:
        return False
    return True


@inlined_kernel
def floats(op, r, d, x, y):
    """Arithmetic and comparisons of f32; False: the opcode is another one."""
    if op == FEQ:
        r[d] = 1 if bits_f32(r[x]) == bits_f32(r[y]) else 0
    elif op == FLT:
        r[d] = 1 if bits_f32(r[x]) < bits_f32(r[y]) else 0
    elif op == FLE:
        r[d] = 1 if bits_f32(r[x]) <= bits_f32(r[y]) else 0
    elif op == FADD:
        r[d] = f32_bits(np.float32(bits_f32(r[x]) + bits_f32(r[y])))
    elif op == FSUB:
        r[d] = f32_bits(np.float32(bits_f32(r[x]) - bits_f32(r[y])))
    elif op == FMUL:
        r[d] = f32_bits(np.float32(bits_f32(r[x]) * bits_f32(r[y])))
    elif op == FDIV:
        r[d] = f32_bits(divide(bits_f32(r[x]), bits_f32(r[y])))
    elif op == FNEG:
        r[d] = r[x] ^ 0x80000000
    elif op == FABS:
        r[d] = r[x] & 0x7FFFFFFF
    elif op == FMA:
        r[d] = f32_bits(np.float32(bits_f32(r[d]) + np.float32(bits_f32(r[x]) * bits_f32(r[y]))))
    else:
        return False
    return True


@inlined_kernel
def half_floats(op, half, r, d, x, y):
    """Arithmetic and comparisons of the program's 16-bit floats, computed in f32; False: the opcode is another one."""
    if op == HEQ:
        r[d] = 1 if half_value(half, r[x]) == half_value(half, r[y]) else 0
    elif op == HLT:
        r[d] = 1 if half_value(half, r[x]) < half_value(half, r[y]) else 0
    elif op == HLE:
        r[d] = 1 if half_value(half, r[x]) <= half_value(half, r[y]) else 0
    elif op == HADD:
        r[d] = half_bits(half, np.float32(half_value(half, r[x]) + half_value(half, r[y])))
    elif op == HSUB:
        r[d] = half_bits(half, np.float32(half_value(half, r[x]) - half_value(half, r[y])))
    elif op == HMUL:
        r[d] = half_bits(half, np.float32(half_value(half, r[x]) * half_value(half, r[y])))
    elif op == HDIV:
        r[d] = half_bits(half, divide(half_value(half, r[x]), half_value(half, r[y])))
    elif op == HNEG:
        r[d] = r[x] ^ 0x8000
    elif op == HABS:
        r[d] = r[x] & 0x7FFF
    else:
        return False
    return True


@inlined_kernel
def conversions(op, half, r, d, x, y, k):
    """Floats to and from other types, and functions of f32; False: the opcode is another one."""
    if op == H2F:
        r[d] = f32_bits(half_value(half, r[x]))
    elif op == F2H:
        r[d] = half_bits(half, bits_f32(r[x]))
    elif op == I2F:
        r[d] = f32_bits(np.float32(r[x]))
    elif op == F2I:
        r[d] = to_integer(bits_f32(r[x]))
    elif op == U2F:
        r[d] = f32_bits(np.float32(u64(r[x])))
    elif op == F2U:
        r[d] = to_unsigned(bits_f32(r[x]))
    elif op == MATH:
        r[d] = f32_bits(math_function(k, bits_f32(r[x])))
    elif op == POW:
        r[d] = f32_bits(power(bits_f32(r[x]), bits_f32(r[y])))
    else:
        return False
    return True


@inlined_kernel
def dsd_fields(op, r, d, x, y, k, m):
    """Fields and element addresses of a DSD in a register; False: the opcode is another one."""
    if op == DSD_BASE:
        r[d] = with_field(r[x], 4, r[y])
    elif op == DSD_ADD:
        r[d] = with_field(r[x], 4, (r[x] >> 4) + r[y])
    elif op == DSD_LEN:
        r[d] = with_field(r[x], 20, r[y])
    elif op == DSD_STRIDE:
        r[d] = with_field(r[x], 36, r[y])
    elif op == DSD_GET:
        r[d] = dsd_field(r[x], k, m.shapes)
    elif op == DSD_ADDR16:
        r[d] = element_address(r[x], r[y], np.int64(1), m.shapes, m.rings)
    elif op == DSD_ADDR32:
        r[d] = element_address(r[x], r[y], np.int64(2), m.shapes, m.rings)
    else:
        return False
    return True


@inlined_kernel
def dsr_fields(op, r, d, x, ic, c0, m, dsr, dsr_row):
    """DSRs loaded, moved and read; False: the opcode is another one."""
    file_words = m.sets[S.DSRS]
    first = c0 * 3 * file_words
    if op == DSR_LOAD:
        place = first + np.int64(m.loads[ic, O.L_FILE]) * file_words + np.int64(m.loads[ic, O.L_ID])
        dsr[place] = r[x]
        dsr_row[place] = ic
    elif op == DSR_BASE:
        place = first + (np.int64(ic) >> 6) * file_words + (np.int64(ic) & 63)
        dsr[place] = with_field(dsr[place], 4, r[x])
    elif op == DSR_GET:
        r[d] = dsr[first + (np.int64(ic) >> 6) * file_words + (np.int64(ic) & 63)]
    else:
        return False
    return True


@inlined_kernel
def division(op, r, d, x, y):
    """Quotients and remainders of integers."""
    if r[y] == 0:
        return S.F_DIVISION
    if op == DIV_I16:
        r[d] = s16(quotient(r[x], r[y]))
    elif op == DIV_I32:
        r[d] = s32(quotient(r[x], r[y]))
    elif op == DIV_U64:
        r[d] = quotient_u64(r[x], r[y])
    elif op <= DIV_I64:
        r[d] = quotient(r[x], r[y])
    elif op == MOD_I16:
        r[d] = s16(remainder(r[x], r[y]))
    elif op == MOD_I32:
        r[d] = s32(remainder(r[x], r[y]))
    elif op == MOD_U64:
        r[d] = remainder_u64(r[x], r[y])
    else:
        r[d] = remainder(r[x], r[y])
    return RAN


@inlined_kernel
def word_32(mem, i):
    """Two words of memory from place `i` on."""
    return np.int64(mem[i]) | (np.int64(mem[i + ONE]) << 16)


@inlined_kernel
def put_32(mem, i, value):
    """Write two words of memory from place `i` on."""
    mem[i] = value & 0xFFFF
    mem[i + ONE] = (value >> 16) & 0xFFFF


@inlined_kernel
def missed(c0, core, at, why):
    """No memory at this address: keep it, for the message or the register."""
    core[c0, S.FAULT_A] = at
    return why


@inlined_kernel
def accesses(op, r, d, x, k, c0, core, mem, base, words):
    """Loads and stores at a register and a constant."""
    if op == LD_I16:
        at = r[x] + k
        if at < 0 or at + 1 > words:
            return missed(c0, core, at, POINTED)
        r[d] = s16(np.int64(mem[u64(base + at)]))
    elif op == LD_U16:
        at = r[x] + k
        if at < 0 or at + 1 > words:
            return missed(c0, core, at, POINTED)
        r[d] = np.int64(mem[u64(base + at)])
    elif op == LD_I32:
        at = r[x] + k
        if at < 0 or at + 2 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        r[d] = s32(word_32(mem, u64(base + at)))
    elif op == LD_U32:
        at = r[x] + k
        if at < 0 or at + 2 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        r[d] = word_32(mem, u64(base + at))
    elif op == LD_64:
        at = r[x] + k
        if at < 0 or at + 4 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        r[d] = word_32(mem, u64(base + at)) | (word_32(mem, u64(base + at + 2)) << 32)
    elif op == ST_16:
        at = r[x] + k
        if at < 0 or at + 1 > words:
            return missed(c0, core, at, POINTED)
        mem[u64(base + at)] = r[d] & 0xFFFF
    elif op == ST_32:
        at = r[x] + k
        if at < 0 or at + 2 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        put_32(mem, u64(base + at), r[d])
    elif op == ST_64:
        at = r[x] + k
        if at < 0 or at + 4 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        put_32(mem, u64(base + at), r[d])
        put_32(mem, u64(base + at + 2), r[d] >> 32)
    else:
        return ANOTHER
    return RAN


@inlined_kernel
def indexed_accesses(op, r, d, x, y, c0, core, mem, base, words):
    """Loads and stores of an element of an array: the address in one register, the index in another."""
    if op == LDX_I16:
        at = r[x] + r[y]
        if at < 0 or at + 1 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        r[d] = s16(np.int64(mem[u64(base + at)]))
    elif op == LDX_U16:
        at = r[x] + r[y]
        if at < 0 or at + 1 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        r[d] = np.int64(mem[u64(base + at)])
    elif op == LDX_I32:
        at = r[x] + 2 * r[y]
        if at < 0 or at + 2 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        r[d] = s32(word_32(mem, u64(base + at)))
    elif op == LDX_U32:
        at = r[x] + 2 * r[y]
        if at < 0 or at + 2 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        r[d] = word_32(mem, u64(base + at))
    elif op == STX_16:
        at = r[x] + r[y]
        if at < 0 or at + 1 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        mem[u64(base + at)] = r[d] & 0xFFFF
    elif op == STX_32:
        at = r[x] + 2 * r[y]
        if at < 0 or at + 2 > words:
            return missed(c0, core, at, S.F_ADDRESS)
        put_32(mem, u64(base + at), r[d])
    else:
        return ANOTHER
    return RAN


@helper_kernel
def watched_access(op, r, d, x, y, k, c0, pc, spent, m):
    """A load or store under the sanitizer: it is looked at, then done with the true end of the memory."""
    words = m.sets[S.WORDS]
    index = np.int64(0)
    if op >= FIRST_INDEXED:
        index = r[y]
    look_at_scalar(op, r[x], index, k, c0, m.size[S.CLOCK] + spent, pc, m)
    why = np.int64(accesses(op, r, d, x, k, c0, m.core, m.memory, c0 * words, words))
    if why == ANOTHER:
        why = np.int64(indexed_accesses(op, r, d, x, y, c0, m.core, m.memory, c0 * words, words))
    return why


@inlined_kernel
def jumps(op, r, a, b, ib, pc, k):
    """Conditional jumps to row `k`: whether the opcode is one, whether it is taken, the next row."""
    there, onward = (True, True, k), (True, False, pc)
    if op == JZ:
        return there if r[a] == 0 else onward
    if op == JNZ:
        return there if r[a] != 0 else onward
    if op == JEQ:
        return there if r[a] == r[b] else onward
    if op == JNE:
        return there if r[a] != r[b] else onward
    if op == JLT:
        return there if r[a] < r[b] else onward
    if op == JLE:
        return there if r[a] <= r[b] else onward
    if op == JEQI:
        return there if r[a] == ib else onward
    if op == JNEI:
        return there if r[a] != ib else onward
    if op == JLTI:
        return there if r[a] < ib else onward
    if op == JLEI:
        return there if r[a] <= ib else onward
    if op == JGTI:
        return there if r[a] > ib else onward
    if op == JGEI:
        return there if r[a] >= ib else onward
    return False, False, pc


@inlined_kernel
def task_bits(op, r, x, ic, c0, core):
    """Tasks activated and unblocked, threads unblocked; False: the opcode is another one."""
    if op == ACT:
        core[c0, S.ACTIVE] |= np.int64(1) << (r[x] & 63)
    elif op == UNBLOCK:
        core[c0, S.THREADS_BLOCKED if ic == 3 else S.BLOCKED] &= ~(np.int64(1) << (r[x] & 63))
    else:
        return False
    return True


@inlined_kernel
def others(op, r, d, x, y, ic, c0, m, dsr, dsr_row):
    """Run opcodes that are rare in scalar code."""
    k, half = np.int64(ic), m.sets[S.HALF]
    if shifts(op, r, d, x, y, k) or floats(op, r, d, x, y) or half_floats(op, half, r, d, x, y):
        return RAN
    if conversions(op, half, r, d, x, y, k) or dsd_fields(op, r, d, x, y, k, m):
        return RAN
    if dsr_fields(op, r, d, x, ic, c0, m, dsr, dsr_row) or task_bits(op, r, x, ic, c0, m.core):
        return RAN
    if op >= DIV_I16 and op <= MOD_U64:
        return division(op, r, d, x, y)
    return S.F_OPCODE


@inlined_kernel
def keep_frame(frame, pc, window, calls):
    """The caller of a function is kept."""
    calls[frame * 2] = np.int32(pc)
    calls[frame * 2 + 1] = np.int32(window)


@helper_kernel
def first_of_copy(pc, m):
    """Where the copy of a row of code begins that cores take which do not stop at it (breakpoints.py)."""
    return m.late_price.shape[0] // 4 + 3 * pc


@inlined_kernel
def stretch(c0, m):
    """Run opcodes of core `c0`; its LEFT has the cycles of the stretch so far. Return the reason; a fault is
    left in FAULT_A."""
    core, mem, sets, code = m.core, m.memory, m.sets, m.code
    dsr, dsr_row = m.dsr.reshape(-1), m.dsr_row.reshape(-1)
    pc, window, depth = core[c0, S.PC], core[c0, S.WINDOW], core[c0, S.DEPTH]
    cls = core[c0, S.CLASS]
    spent = core[c0, S.LEFT]
    words, base = sets[S.SCALAR_WORDS], c0 * sets[S.WORDS]
    first = c0 * sets[S.REGISTERS]
    r = m.regs[first + window :]
    why = np.int64(0)
    core[c0, S.FAULT_A] = 0
    begun, budget = core[c0, S.CARRIED], sets[S.BUDGET]
    count = begun
    core[c0, S.CARRIED] = 0
    profile_class = cls if m.profile.shape[0] > 1 else np.int64(0)
    with_profile = sets[S.PROFILE] != 0
    while True:
        if count >= budget:
            why = W_BUDGET
            break
        p = u64(pc) << u64(2)
        op = np.int64(code[p])
        price = op >> 8
        op &= 255
        d = u64(u32(code[p + ONE]))
        ib = np.int64(code[p + u64(2)])
        ic = code[p + u64(3)]
        x, y, k = u64(u32(ib)), u64(u32(ic)), np.int64(ic)
        before = spent
        count += 1
        pc += 1
        spent += price
        if (
            op == NOP
            or integers(op, r, d, x, y)
            or with_constants(op, r, d, x, k)
            or comparisons(op, r, d, x, y)
        ):
            pass
        elif op == LDK:
            r[d] = m.constants[cls, ic]
        elif op == JMP:
            pc = k
        elif op == CALL or op == CALLR:
            target = k if op == CALL else r[x]
            if depth >= sets[S.CALLS]:
                why = S.F_CALLS
                break
            keep_frame(c0 * sets[S.CALLS] + depth, pc, window, m.calls)
            depth += 1
            window += np.int64(d)
            if window >= sets[S.REGISTERS]:
                why = S.F_REGISTERS
                break
            r = m.regs[first + window :]
            pc = target
        elif op == RET:
            if depth == 0:
                why = W_END
                break
            depth -= 1
            frame = (c0 * sets[S.CALLS] + depth) * 2
            pc, window = np.int64(m.calls[frame]), np.int64(m.calls[frame + 1])
            r = m.regs[first + window :]
        elif op == END or op == VEC or op == SYS:
            why = W_END if op == END else (W_VECTOR if op == VEC else W_SYSTEM)
            break
        elif op == BLOCK:
            if spent > 0:
                why = W_LATER
                break
            core[c0, S.THREADS_BLOCKED if ic == 3 else S.BLOCKED] |= np.int64(1) << (r[x] & 63)
            spent += m.late_price[pc - 1]
        else:
            is_jump, is_taken, pc = jumps(op, r, d, x, ib, pc, k)
            if is_taken:
                spent += m.late_price[u64(p >> u64(2))]
            if not is_jump:
                why = np.int64(accesses(op, r, d, x, k, c0, core, mem, base, words))
                if why == ANOTHER:
                    why = np.int64(indexed_accesses(op, r, d, x, y, c0, core, mem, base, words))
                if why == ANOTHER:
                    why = np.int64(others(op, r, d, x, y, ic, c0, m, dsr, dsr_row))
                if sets[S.WATCH] != 0 and (why == POINTED or why == S.F_ADDRESS):
                    why = np.int64(watched_access(op, r, d, x, y, k, c0, pc - 1, spent, m))
                if why == POINTED:
                    why = np.int64(S.F_ADDRESS)
                    if core[c0, S.FAULT_A] >= FIRST_BYTE:  # a register: others could notice the cycle
                        why, spent = W_LATER if before > 0 else W_REGISTER, before
                if why == S.F_OPCODE and op == S.BREAK:
                    if m.stops[c0] & k != 0:
                        core[c0, S.CARRIED] = count - 1
                        break
                    pc, count, why = first_of_copy(pc - 1, m), count - 2, np.int64(RAN)
                    continue
                if why != RAN:
                    break
        if with_profile:
            m.profile[profile_class, u64(p >> u64(2)), 0] += spent - before
            m.profile[profile_class, u64(p >> u64(2)), 1] += 1
    if why < W_END or why == W_VECTOR or why == W_SYSTEM or why == W_LATER or why == W_REGISTER:
        pc -= 1  # the row itself comes again, or is named by the fault
        count -= 1
    core[c0, S.PC], core[c0, S.WINDOW], core[c0, S.DEPTH] = pc, window, depth
    core[c0, S.LEFT] = spent
    core[c0, S.OPCODES] += count - begun
    return why
