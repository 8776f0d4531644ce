"""Scalar code: a stretch of opcodes of one core, up to its next interaction.

A stretch adds up prices; the main thread is busy for the sum afterwards, and what it stored counts at its start.  It stops before what
others could notice in another cycle (a vector operation, BLOCK, SYS), and at the end of the task.

All opcodes stand in one function, which is longer than a screen: the compiler turns its comparisons with constants into one jump, and registers of
the core stay in registers of the machine from opcode to opcode.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.values import bits_f16, bits_f32, f16_bits, f32_bits
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.arithmetic import divide, math_function, power, s16, s32, to_integer
from wse_sim.fabric.vm.descriptors import dsd_field, element_address
from wse_sim.fabric.vm.registers import FIRST_BYTE
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
VEC, ACT, BLOCK, UNBLOCK, SYS = range(138, 143)

# Why a stretch stopped; below: a fault of state.py.
W_END, W_VECTOR, W_SYSTEM, W_LATER, W_BUDGET, W_REGISTER = range(32, 38)
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
def stretch(c0, m):
    """Run opcodes of core `c0`; its LEFT holds the cycles of the stretch so far.  Returns the reason; a fault leaves FAULT_A."""
    core, r, mem, sets, code, dsr, dsr_row = (
        m.core,
        m.regs,
        m.memory,
        m.sets,
        m.code,
        m.dsr.reshape(-1),
        m.dsr_row.reshape(-1),
    )
    pc, window, depth = core[c0, S.PC], core[c0, S.WINDOW], core[c0, S.DEPTH]
    cls = core[c0, S.CLASS]
    spent = core[c0, S.LEFT]
    words, base, taken = sets[S.WORDS], c0 * sets[S.WORDS], sets[S.TAKEN]
    W = u64(c0 * sets[S.REGISTERS] + window)
    why, fault_a = np.int64(0), np.int64(0)
    count, budget = np.int64(0), sets[S.BUDGET]
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
        a = u64(u32(code[p + ONE]))
        ib = np.int64(code[p + u64(2)])
        ic = code[p + u64(3)]
        b, c = u64(u32(ib)), u64(u32(ic))
        before = spent
        count += 1
        pc += 1
        spent += price
        if op == NOP:
            pass
        elif op == LDI:
            r[W + a] = np.int64(ic)
        elif op == LDK:
            r[W + a] = m.constants[cls, ic]
        elif op == MOV:
            r[W + a] = r[W + b]
        elif op == ADD_I16:
            r[W + a] = s16(r[W + b] + r[W + c])
        elif op == ADD_U16:
            r[W + a] = (r[W + b] + r[W + c]) & 0xFFFF
        elif op == ADD_I32:
            r[W + a] = s32(r[W + b] + r[W + c])
        elif op == ADD_U32:
            r[W + a] = (r[W + b] + r[W + c]) & 0xFFFFFFFF
        elif op == ADD_I64:
            r[W + a] = r[W + b] + r[W + c]
        elif op == SUB_I16:
            r[W + a] = s16(r[W + b] - r[W + c])
        elif op == SUB_U16:
            r[W + a] = (r[W + b] - r[W + c]) & 0xFFFF
        elif op == SUB_I32:
            r[W + a] = s32(r[W + b] - r[W + c])
        elif op == SUB_U32:
            r[W + a] = (r[W + b] - r[W + c]) & 0xFFFFFFFF
        elif op == SUB_I64:
            r[W + a] = r[W + b] - r[W + c]
        elif op == MUL_I16:
            r[W + a] = s16(r[W + b] * r[W + c])
        elif op == MUL_U16:
            r[W + a] = (r[W + b] * r[W + c]) & 0xFFFF
        elif op == MUL_I32:
            r[W + a] = s32(r[W + b] * r[W + c])
        elif op == MUL_U32:
            r[W + a] = (r[W + b] * r[W + c]) & 0xFFFFFFFF
        elif op == MUL_I64:
            r[W + a] = r[W + b] * r[W + c]
        elif op == DIV_I16:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = s16(quotient(r[W + b], r[W + c]))
        elif op == DIV_U16:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = quotient(r[W + b], r[W + c])
        elif op == DIV_I32:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = s32(quotient(r[W + b], r[W + c]))
        elif op == DIV_U32 or op == DIV_I64:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = quotient(r[W + b], r[W + c])
        elif op == DIV_U64:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = quotient_u64(r[W + b], r[W + c])
        elif op == MOD_I16:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = s16(remainder(r[W + b], r[W + c]))
        elif op == MOD_U16:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = remainder(r[W + b], r[W + c])
        elif op == MOD_I32:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = s32(remainder(r[W + b], r[W + c]))
        elif op == MOD_U32 or op == MOD_I64:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = remainder(r[W + b], r[W + c])
        elif op == MOD_U64:
            if r[W + c] == 0:
                why = S.F_DIVISION
                break
            r[W + a] = remainder_u64(r[W + b], r[W + c])
        elif op == AND:
            r[W + a] = r[W + b] & r[W + c]
        elif op == OR:
            r[W + a] = r[W + b] | r[W + c]
        elif op == XOR:
            r[W + a] = r[W + b] ^ r[W + c]
        elif op == SHL_I16:
            x = r[W + c]
            r[W + a] = s16(r[W + b] << x) if 0 <= x < 16 else 0
        elif op == SHL_U16:
            x = r[W + c]
            r[W + a] = (r[W + b] << x) & 0xFFFF if 0 <= x < 16 else 0
        elif op == SHL_I32:
            x = r[W + c]
            r[W + a] = s32(r[W + b] << x) if 0 <= x < 32 else 0
        elif op == SHL_U32:
            x = r[W + c]
            r[W + a] = (r[W + b] << x) & 0xFFFFFFFF if 0 <= x < 32 else 0
        elif op == SHL_I64:
            x = r[W + c]
            r[W + a] = r[W + b] << x if 0 <= x < 64 else 0
        elif op == SHR:
            x = r[W + c]
            r[W + a] = r[W + b] >> (x if 0 <= x < 64 else 63)
        elif op == SHR_U64:
            x = r[W + c]
            r[W + a] = np.int64(u64(r[W + b]) >> u64(x)) if 0 <= x < 64 else 0
        elif op == ADDI_I16:
            r[W + a] = s16(r[W + b] + np.int64(ic))
        elif op == ADDI_U16:
            r[W + a] = (r[W + b] + np.int64(ic)) & 0xFFFF
        elif op == ADDI_I32:
            r[W + a] = s32(r[W + b] + np.int64(ic))
        elif op == ADDI_U32:
            r[W + a] = (r[W + b] + np.int64(ic)) & 0xFFFFFFFF
        elif op == ADDI_I64:
            r[W + a] = r[W + b] + np.int64(ic)
        elif op == MULI_I16:
            r[W + a] = s16(r[W + b] * np.int64(ic))
        elif op == MULI_U16:
            r[W + a] = (r[W + b] * np.int64(ic)) & 0xFFFF
        elif op == MULI_I32:
            r[W + a] = s32(r[W + b] * np.int64(ic))
        elif op == MULI_U32:
            r[W + a] = (r[W + b] * np.int64(ic)) & 0xFFFFFFFF
        elif op == ANDI:
            r[W + a] = r[W + b] & np.int64(ic)
        elif op == ORI:
            r[W + a] = r[W + b] | np.int64(ic)
        elif op == XORI:
            r[W + a] = r[W + b] ^ np.int64(ic)
        elif op == SHLI_I16:
            r[W + a] = s16(r[W + b] << np.int64(ic)) if 0 <= ic < 16 else 0
        elif op == SHLI_U16:
            r[W + a] = (r[W + b] << np.int64(ic)) & 0xFFFF if 0 <= ic < 16 else 0
        elif op == SHLI_I32:
            r[W + a] = s32(r[W + b] << np.int64(ic)) if 0 <= ic < 32 else 0
        elif op == SHLI_U32:
            r[W + a] = (r[W + b] << np.int64(ic)) & 0xFFFFFFFF if 0 <= ic < 32 else 0
        elif op == SHRI:
            r[W + a] = r[W + b] >> (np.int64(ic) if 0 <= ic < 64 else 63)
        elif op == WRAP_I8:
            r[W + a] = ((r[W + b] & 0xFF) ^ 0x80) - 0x80
        elif op == WRAP_U8:
            r[W + a] = r[W + b] & 0xFF
        elif op == WRAP_I16:
            r[W + a] = s16(r[W + b])
        elif op == WRAP_U16:
            r[W + a] = (r[W + b]) & 0xFFFF
        elif op == WRAP_I32:
            r[W + a] = s32(r[W + b])
        elif op == WRAP_U32:
            r[W + a] = (r[W + b]) & 0xFFFFFFFF
        elif op == WRAPS:
            x = np.int64(64 - ic)
            r[W + a] = (r[W + b] << x) >> x
        elif op == WRAPU:
            r[W + a] = r[W + b] & ((np.int64(1) << np.int64(ic)) - 1) if ic < 64 else r[W + b]
        elif op == EQ:
            r[W + a] = 1 if r[W + b] == r[W + c] else 0
        elif op == NE:
            r[W + a] = 1 if r[W + b] != r[W + c] else 0
        elif op == LT:
            r[W + a] = 1 if r[W + b] < r[W + c] else 0
        elif op == LE:
            r[W + a] = 1 if r[W + b] <= r[W + c] else 0
        elif op == LTU64:
            r[W + a] = 1 if u64(r[W + b]) < u64(r[W + c]) else 0
        elif op == LEU64:
            r[W + a] = 1 if u64(r[W + b]) <= u64(r[W + c]) else 0
        elif op == FEQ:
            r[W + a] = 1 if bits_f32(r[W + b]) == bits_f32(r[W + c]) else 0
        elif op == FLT:
            r[W + a] = 1 if bits_f32(r[W + b]) < bits_f32(r[W + c]) else 0
        elif op == FLE:
            r[W + a] = 1 if bits_f32(r[W + b]) <= bits_f32(r[W + c]) else 0
        elif op == HEQ:
            r[W + a] = 1 if bits_f16(r[W + b]) == bits_f16(r[W + c]) else 0
        elif op == HLT:
            r[W + a] = 1 if bits_f16(r[W + b]) < bits_f16(r[W + c]) else 0
        elif op == HLE:
            r[W + a] = 1 if bits_f16(r[W + b]) <= bits_f16(r[W + c]) else 0
        elif op == JMP:
            pc = np.int64(ic)
        elif op == JZ:
            if r[W + a] == 0:
                pc = np.int64(ic)
                spent += taken
        elif op == JNZ:
            if r[W + a] != 0:
                pc = np.int64(ic)
                spent += taken
        elif op == JEQ:
            if r[W + a] == r[W + b]:
                pc = np.int64(ic)
                spent += taken
        elif op == JNE:
            if r[W + a] != r[W + b]:
                pc = np.int64(ic)
                spent += taken
        elif op == JLT:
            if r[W + a] < r[W + b]:
                pc = np.int64(ic)
                spent += taken
        elif op == JLE:
            if r[W + a] <= r[W + b]:
                pc = np.int64(ic)
                spent += taken
        elif op == JEQI:
            if r[W + a] == ib:
                pc = np.int64(ic)
                spent += taken
        elif op == JNEI:
            if r[W + a] != ib:
                pc = np.int64(ic)
                spent += taken
        elif op == JLTI:
            if r[W + a] < ib:
                pc = np.int64(ic)
                spent += taken
        elif op == JLEI:
            if r[W + a] <= ib:
                pc = np.int64(ic)
                spent += taken
        elif op == JGTI:
            if r[W + a] > ib:
                pc = np.int64(ic)
                spent += taken
        elif op == JGEI:
            if r[W + a] >= ib:
                pc = np.int64(ic)
                spent += taken
        elif op == CALL:
            if depth >= sets[S.CALLS]:
                why = S.F_CALLS
                break
            y = (c0 * sets[S.CALLS] + depth) * 2
            m.calls[y] = np.int32(pc)
            m.calls[y + 1] = np.int32(window)
            depth += 1
            window += np.int64(a)
            if window >= sets[S.REGISTERS]:
                why = S.F_REGISTERS
                break
            W = u64(c0 * sets[S.REGISTERS] + window)
            pc = np.int64(ic)
        elif op == CALLR:
            x = r[W + b]
            if depth >= sets[S.CALLS]:
                why = S.F_CALLS
                break
            y = (c0 * sets[S.CALLS] + depth) * 2
            m.calls[y] = np.int32(pc)
            m.calls[y + 1] = np.int32(window)
            depth += 1
            window += np.int64(a)
            if window >= sets[S.REGISTERS]:
                why = S.F_REGISTERS
                break
            W = u64(c0 * sets[S.REGISTERS] + window)
            pc = x
        elif op == RET:
            if depth == 0:
                why = W_END
                break
            depth -= 1
            y = (c0 * sets[S.CALLS] + depth) * 2
            pc = np.int64(m.calls[y])
            window = np.int64(m.calls[y + 1])
            W = u64(c0 * sets[S.REGISTERS] + window)
        elif op == END:
            why = W_END
            break
        elif op == FADD:
            r[W + a] = f32_bits(np.float32(bits_f32(r[W + b]) + bits_f32(r[W + c])))
        elif op == FSUB:
            r[W + a] = f32_bits(np.float32(bits_f32(r[W + b]) - bits_f32(r[W + c])))
        elif op == FMUL:
            r[W + a] = f32_bits(np.float32(bits_f32(r[W + b]) * bits_f32(r[W + c])))
        elif op == FDIV:
            r[W + a] = f32_bits(divide(bits_f32(r[W + b]), bits_f32(r[W + c])))
        elif op == FNEG:
            r[W + a] = r[W + b] ^ 0x80000000
        elif op == FABS:
            r[W + a] = r[W + b] & 0x7FFFFFFF
        elif op == FMA:
            r[W + a] = f32_bits(
                np.float32(bits_f32(r[W + a]) + np.float32(bits_f32(r[W + b]) * bits_f32(r[W + c])))
            )
        elif op == HADD:
            r[W + a] = f16_bits(np.float32(bits_f16(r[W + b]) + bits_f16(r[W + c])))
        elif op == HSUB:
            r[W + a] = f16_bits(np.float32(bits_f16(r[W + b]) - bits_f16(r[W + c])))
        elif op == HMUL:
            r[W + a] = f16_bits(np.float32(bits_f16(r[W + b]) * bits_f16(r[W + c])))
        elif op == HDIV:
            r[W + a] = f16_bits(divide(bits_f16(r[W + b]), bits_f16(r[W + c])))
        elif op == HNEG:
            r[W + a] = r[W + b] ^ 0x8000
        elif op == HABS:
            r[W + a] = r[W + b] & 0x7FFF
        elif op == H2F:
            r[W + a] = f32_bits(bits_f16(r[W + b]))
        elif op == F2H:
            r[W + a] = f16_bits(bits_f32(r[W + b]))
        elif op == I2F:
            r[W + a] = f32_bits(np.float32(r[W + b]))
        elif op == F2I:
            r[W + a] = to_integer(bits_f32(r[W + b]))
        elif op == MATH:
            r[W + a] = f32_bits(math_function(np.int64(ic), bits_f32(r[W + b])))
        elif op == POW:
            r[W + a] = f32_bits(power(bits_f32(r[W + b]), bits_f32(r[W + c])))
        elif op == LD_I16:
            y = r[W + b] + np.int64(ic)
            if y < 0 or y + 1 > words:
                if y < FIRST_BYTE:
                    why, fault_a = S.F_ADDRESS, y
                else:  # a register: others could notice the cycle
                    why, fault_a, spent = W_LATER if before > 0 else W_REGISTER, y, before
                break
            M = u64(base + y)
            r[W + a] = s16(np.int64(mem[M]))
        elif op == LD_U16:
            y = r[W + b] + np.int64(ic)
            if y < 0 or y + 1 > words:
                if y < FIRST_BYTE:
                    why, fault_a = S.F_ADDRESS, y
                else:  # a register: others could notice the cycle
                    why, fault_a, spent = W_LATER if before > 0 else W_REGISTER, y, before
                break
            M = u64(base + y)
            r[W + a] = np.int64(mem[M])
        elif op == LD_I32:
            y = r[W + b] + np.int64(ic)
            if y < 0 or y + 2 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            r[W + a] = s32(np.int64(mem[M]) | (np.int64(mem[M + ONE]) << 16))
        elif op == LD_U32:
            y = r[W + b] + np.int64(ic)
            if y < 0 or y + 2 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            r[W + a] = np.int64(mem[M]) | (np.int64(mem[M + ONE]) << 16)
        elif op == LD_64:
            y = r[W + b] + np.int64(ic)
            if y < 0 or y + 4 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            r[W + a] = (
                np.int64(mem[M])
                | (np.int64(mem[M + ONE]) << 16)
                | (np.int64(mem[M + u64(2)]) << 32)
                | (np.int64(mem[M + u64(3)]) << 48)
            )
        elif op == ST_16:
            y = r[W + b] + np.int64(ic)
            if y < 0 or y + 1 > words:
                if y < FIRST_BYTE:
                    why, fault_a = S.F_ADDRESS, y
                else:  # a register: others could notice the cycle
                    why, fault_a, spent = W_LATER if before > 0 else W_REGISTER, y, before
                break
            M = u64(base + y)
            mem[M] = r[W + a] & 0xFFFF
        elif op == ST_32:
            y = r[W + b] + np.int64(ic)
            if y < 0 or y + 2 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            mem[M] = r[W + a] & 0xFFFF
            mem[M + ONE] = (r[W + a] >> 16) & 0xFFFF
        elif op == ST_64:
            y = r[W + b] + np.int64(ic)
            if y < 0 or y + 4 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            mem[M] = r[W + a] & 0xFFFF
            mem[M + ONE] = (r[W + a] >> 16) & 0xFFFF
            mem[M + u64(2)] = (r[W + a] >> 32) & 0xFFFF
            mem[M + u64(3)] = (r[W + a] >> 48) & 0xFFFF
        elif op == LDX_I16:
            y = r[W + b] + r[W + c]
            if y < 0 or y + 1 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            r[W + a] = s16(np.int64(mem[M]))
        elif op == LDX_U16:
            y = r[W + b] + r[W + c]
            if y < 0 or y + 1 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            r[W + a] = np.int64(mem[M])
        elif op == LDX_I32:
            y = r[W + b] + 2 * r[W + c]
            if y < 0 or y + 2 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            r[W + a] = s32(np.int64(mem[M]) | (np.int64(mem[M + ONE]) << 16))
        elif op == LDX_U32:
            y = r[W + b] + 2 * r[W + c]
            if y < 0 or y + 2 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            r[W + a] = np.int64(mem[M]) | (np.int64(mem[M + ONE]) << 16)
        elif op == STX_16:
            y = r[W + b] + r[W + c]
            if y < 0 or y + 1 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            mem[M] = r[W + a] & 0xFFFF
        elif op == STX_32:
            y = r[W + b] + 2 * r[W + c]
            if y < 0 or y + 2 > words:
                why, fault_a = S.F_ADDRESS, y
                break
            M = u64(base + y)
            mem[M] = r[W + a] & 0xFFFF
            mem[M + ONE] = (r[W + a] >> 16) & 0xFFFF
        elif op == DSD_BASE:
            r[W + a] = (r[W + b] & ~(np.int64(0xFFFF) << 4)) | ((r[W + c] & 0xFFFF) << 4)
        elif op == DSD_ADD:
            r[W + a] = (r[W + b] & ~(np.int64(0xFFFF) << 4)) | ((((r[W + b] >> 4) + r[W + c]) & 0xFFFF) << 4)
        elif op == DSD_LEN:
            r[W + a] = (r[W + b] & ~(np.int64(0xFFFF) << 20)) | ((r[W + c] & 0xFFFF) << 20)
        elif op == DSD_STRIDE:
            r[W + a] = (r[W + b] & ~(np.int64(0xFFFF) << 36)) | ((r[W + c] & 0xFFFF) << 36)
        elif op == DSD_GET:
            r[W + a] = dsd_field(r[W + b], np.int64(ic), m.shapes)
        elif op == DSD_ADDR16:
            r[W + a] = element_address(r[W + b], r[W + c], np.int64(1), m.shapes, m.rings)
        elif op == DSD_ADDR32:
            r[W + a] = element_address(r[W + b], r[W + c], np.int64(2), m.shapes, m.rings)
        elif op == DSR_LOAD:
            y = (
                c0 * 3 * sets[S.DSRS]
                + np.int64(m.loads[ic, O.L_FILE]) * sets[S.DSRS]
                + np.int64(m.loads[ic, O.L_ID])
            )
            dsr[y] = r[W + b]
            dsr_row[y] = ic
        elif op == DSR_BASE:
            y = c0 * 3 * sets[S.DSRS] + (np.int64(ic) >> 6) * sets[S.DSRS] + (np.int64(ic) & 63)
            dsr[y] = (dsr[y] & ~(np.int64(0xFFFF) << 4)) | ((r[W + b] & 0xFFFF) << 4)
        elif op == DSR_GET:
            y = c0 * 3 * sets[S.DSRS] + (np.int64(ic) >> 6) * sets[S.DSRS] + (np.int64(ic) & 63)
            r[W + a] = dsr[y]
        elif op == VEC:
            why = W_VECTOR
            break
        elif op == ACT:
            core[c0, S.ACTIVE] |= np.int64(1) << (r[W + b] & 63)
        elif op == BLOCK:
            if spent > 0:
                why = W_LATER
                break
            if ic == 3:
                core[c0, S.THREADS_BLOCKED] |= np.int64(1) << (r[W + b] & 63)
            else:
                core[c0, S.BLOCKED] |= np.int64(1) << (r[W + b] & 63)
            spent += m.late_price[pc - 1]
        elif op == UNBLOCK:
            if ic == 3:
                core[c0, S.THREADS_BLOCKED] &= ~(np.int64(1) << (r[W + b] & 63))
            else:
                core[c0, S.BLOCKED] &= ~(np.int64(1) << (r[W + b] & 63))
        elif op == SYS:
            why = W_SYSTEM
            break
        else:
            why = S.F_OPCODE
            break
        if with_profile:
            m.profile[profile_class, u64(p >> u64(2)), 0] += spent - before
            m.profile[profile_class, u64(p >> u64(2)), 1] += 1
    if why < W_END or why == W_VECTOR or why == W_SYSTEM or why == W_LATER or why == W_REGISTER:
        pc -= 1  # the row itself comes again, or is named by the fault
        count -= 1
    core[c0, S.PC], core[c0, S.WINDOW], core[c0, S.DEPTH] = pc, window, depth
    core[c0, S.LEFT] = spent
    core[c0, S.OPCODES] += count
    core[c0, S.FAULT_A] = fault_a
    return why
