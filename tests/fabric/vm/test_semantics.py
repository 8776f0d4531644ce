"""Every opcode and vector operation of the machine against its definition in plain Python, over edge values of every type."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import semantics as M
from wse_sim.fabric.vm.arithmetic import ADDC16, VOP, element
from wse_sim.fabric.vm.half_floats import half_bits, half_value
from wse_sim.fabric.vm.opcodes import Op
from wse_sim.fabric.vm.scalar import (
    comparisons,
    conversions,
    division,
    floats,
    half_floats,
    integers,
    jumps,
    shifts,
    with_constants,
)
from wse_sim.jit import bare_kernel

TYPES = {"I16": (16, True), "U16": (16, False), "I32": (32, True), "U32": (32, False), "I64": (64, True)}
AMOUNTS = [0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, -1]


@bare_kernel
def run_all(half, ops, values, constants, r, found):
    """Opcodes on r1 and r2 (r0 before: 3.5 in f32), or on r1 and a constant; what they leave in r0."""
    for i in range(len(ops)):
        op, k = ops[i], constants[i]
        r[0], r[1], r[2] = 0x40600000, values[i, 0], values[i, 1]
        d, x, y = np.uint64(0), np.uint64(1), np.uint64(2)
        if (
            integers(op, r, d, x, y)
            or with_constants(op, r, d, x, k)
            or comparisons(op, r, d, x, y)
            or shifts(op, r, d, x, y, k)
            or floats(op, r, d, x, y)
            or half_floats(op, half, r, d, x, y)
            or conversions(op, half, r, d, x, y, k)
        ):
            pass
        else:
            division(op, r, d, x, y)
        found[i] = r[0]


@bare_kernel
def jump_all(ops, values, constants, r, found):
    """Jumps of r1 and r2, or of r1 and a constant, to row 7, or on to row 1."""
    for i in range(len(ops)):
        r[1], r[2] = values[i, 0], values[i, 1]
        b = np.uint64(2)
        is_jump, is_taken, row = jumps(ops[i], r, np.uint64(1), b, constants[i], np.int64(1), np.int64(7))
        found[i] = 1 if is_jump and is_taken and row == 7 else 0
        if not is_jump or is_taken != (row == 7) or (row != 7 and row != 1):
            found[i] = -1


@bare_kernel
def all_elements(half, ops, operands, found):
    """Elements of vector operations."""
    for i in range(len(ops)):
        found[i] = element(ops[i], half, operands[i, 0], operands[i, 1], operands[i, 2])


@bare_kernel
def all_halves(half, values, found):
    """Numbers of all bit patterns of a format, and their bits again."""
    for i in range(len(values)):
        values[i] = half_value(half, np.int64(i))
        found[i] = half_bits(half, values[i])


def edges(bits: int, is_signed: bool) -> list[int]:
    """Return the limits of a type, their neighbours, powers of two, and a few others."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    found = {low, low + 1, high - 1, high, 0, 1, 2, 3, 7, 10, 100, 255, 256, 32767, 32768, 65535}
    found |= {-1, -2, -3, -7, -100, -32768, high // 2, low // 2, high // 3, 0x5555, 0x1234}
    return sorted(M.signed(x, 64) for x in found if low <= x <= high)


def f32_edges() -> list[int]:
    """Zeros, subnormals, limits, infinities, not a number, numbers near the limits of every other type."""
    numbers = [
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        3.5,
        0.1,
        1 / 3,
        math.pi,
        1e-45,
        1.1754944e-38,
        3.4028235e38,
        math.inf,
    ]
    numbers += [
        65504.0,
        65519.9,
        65520.0,
        6e-8,
        3e-8,
        6.1e-5,
        2.0**-30,
        2.0**-39,
        2.0**-40,
        4.29e9,
        89.0,
        104.0,
        710.0,
        1e5,
    ]
    numbers += [
        32767.0,
        32767.6,
        32768.5,
        65535.0,
        2.0**31,
        2.0**32,
        2.0**62,
        2.0**63,
        2.0**64,
        1e30,
        2001.0,
        1023.0,
    ]
    bits = [M.F32.encode(x) for x in numbers] + [0x7FC00000, 0x5EFFFFFF, 0x5F7FFFFF, 0x00800001, 0x477FEFFF]
    return sorted({x | sign for x in bits for sign in (0, 0x80000000)})


HALF_EDGES = sorted({x | s for x in (0, 1, 2, 0x3FF, 0x400, 0x3C00, 0x3C01, 0x3E00, 0x4248, 0x5640, 0x7BFF, 0x7C00, 0x7E00, 0x3F80, 0x4049, 0x7F7F, 0x7F80, 0x7FC0, 0x7E01, 0x7DFF, 0x80, 0x7F, 0x200, 0x1FF) for s in (0, 0x8000)})  # fmt: skip


def same(form: M.Format | None, found: int, wanted: int) -> bool:
    """Equal bits, or both not a number."""
    if form is None or found == wanted:
        return found == wanted
    return math.isnan(form.decode(found)) and math.isnan(form.decode(wanted))


def results(half: str) -> dict[int, M.Format]:
    """Return the formats of the results of opcodes on floats."""
    single = (Op.FADD, Op.FSUB, Op.FMUL, Op.FDIV, Op.POW, Op.I2F, Op.U2F, Op.FNEG, Op.FABS, Op.H2F, Op.MATH)
    half_ops = (Op.HADD, Op.HSUB, Op.HMUL, Op.HDIV, Op.HNEG, Op.HABS, Op.F2H)
    return dict.fromkeys(single, M.F32) | dict.fromkeys(half_ops, M.HALVES[half])


def cases(half: str) -> list[tuple[int, int, int, int]]:
    """Return (opcode, r1, r2, constant) with all pairs of edge values of the opcode's type."""
    found = []
    for op in (*M.scalar_operations(half), *M.IMMEDIATE):
        name = Op(op).name
        bits, is_signed = TYPES.get(name.rsplit("_", 1)[-1], (64, True))
        left = edges(bits, is_signed)
        right = AMOUNTS if name.startswith("SH") else left
        if op in M.half_floats(half) and op != Op.F2H:
            left = right = HALF_EDGES
        elif (op in M.FLOATS and op not in (Op.I2F, Op.U2F)) or op in (Op.F2H, Op.MATH):
            left = right = f32_edges()
        if name.startswith("WRAP"):
            left, right = edges(64, True), list(range(1, 65))
        if op in M.UNARY:
            right = [0]
        if op == Op.MATH:
            right = list(range(len(M.NAMES)))
        right = [y for y in right if -(1 << 31) <= y < 1 << 31] if op in M.IMMEDIATE else right
        for x, y in itertools.product(left, right):
            if op in M.IMMEDIATE:
                found.append((op, x, 0, y))
            elif op not in M.DIVISIONS or y != 0:
                found.append((op, x, y, 0))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("half", O.HALF_FORMATS)
def test_scalar_opcodes(half: str) -> None:
    rows = np.array(cases(half), np.int64)
    found = np.zeros(len(rows), np.int64)
    run_all(
        O.HALF_FORMATS.index(half),
        rows[:, 0].copy(),
        rows[:, 1:3].copy(),
        rows[:, 3].copy(),
        np.zeros(4, np.int64),
        found,
    )
    table, formats = M.scalar_operations(half), results(half)
    wrong = []
    for (op, x, y, k), value in zip(rows.tolist(), found.tolist(), strict=True):
        wanted = M.IMMEDIATE[op](x, k) if op in M.IMMEDIATE else table[op](x, y)
        if not same(formats.get(op), value, wanted):
            function = M.NAMES[k] if op == Op.MATH else k
            wrong.append((Op(op).name, hex(x), hex(y), function, hex(value), hex(wanted)))
    assert not wrong, (len(wrong), wrong[:20])


@pytest.mark.slow
def test_multiply_add() -> None:
    """r0 + r1 * r2 with 3.5 in r0."""
    rows = np.array(list(itertools.product(f32_edges(), f32_edges())), np.int64)
    found = np.zeros(len(rows), np.int64)
    run_all(
        0, np.full(len(rows), int(Op.FMA)), rows, np.zeros(len(rows), np.int64), np.zeros(4, np.int64), found
    )
    for (x, y), value in zip(rows.tolist(), found.tolist(), strict=True):
        assert same(M.F32, value, M.multiply_add(0x40600000, x, y)), (hex(x), hex(y))


@pytest.mark.slow
def test_jumps() -> None:
    pairs = list(itertools.product([*edges(32, True), 1 << 40, -(1 << 40)], edges(32, True)))
    for table, is_constant in ((M.JUMPS, False), (M.JUMPS_IMMEDIATE, True)):
        rows = np.array([(op, x, y) for op in table for x, y in pairs], np.int64)
        found = np.zeros(len(rows), np.int64)
        jump_all(
            rows[:, 0].copy(), rows[:, 1:].copy(), rows[:, 2] * is_constant, np.zeros(4, np.int64), found
        )
        wanted = [int(table[op](x, y)) for op, x, y in rows.tolist()]
        assert found.tolist() == wanted


@pytest.mark.slow
@pytest.mark.parametrize("half", O.HALF_FORMATS)
def test_vector_operations(half: str) -> None:
    """All pairs of edge values; operations of two factors with three scalars."""
    singles, integers_32 = f32_edges(), [x & 0xFFFFFFFF for x in edges(32, True)]
    table, rows = M.vector_operations(half), []
    for name, op in VOP.items():
        if op == ADDC16:
            continue
        wide = {"faddhs": "sh", "fmachs": "sh", "fh2s": "hh", "fs2h": "ss", "fs2xp16": "ss", "xp162fs": "nn", "xp162fh": "nn", "fh2xp16": "hh", "fscales": "sn", "fscaleh": "hn"}  # fmt: skip
        kinds = wide.get(name, name[-1] * 2 if name[0] == "f" else ("ww" if name.endswith("32") else "nn"))
        values = {"s": singles, "h": HALF_EDGES, "w": integers_32, "n": [x & 0xFFFF for x in edges(16, True)]}
        scalars = ([0x40400000, 0xBDCCCCCD, 0x7F800000] if name == "fmacs" else [0x4200, 0xAE66, 0x3C01]) if "mac" in name else [0]  # fmt: skip
        rows += [(op, a, b, s) for a, b in itertools.product(*(values[k] for k in kinds)) for s in scalars]
    given = np.array(rows, np.int64)
    found = np.zeros(len(rows), np.int64)
    all_elements(O.HALF_FORMATS.index(half), given[:, 0].copy(), given[:, 1:].copy(), found)
    wrong = []
    for (op, a, b, s), value in zip(rows, found.tolist(), strict=True):
        name = O.VECTOR_OPS[op]
        is_float = "f" in name and not name.endswith("xp16")
        form = None if not is_float else M.F32 if name.endswith("s") else M.HALVES[half]
        if not same(form, value, table[name](a, b, s)):
            wrong.append((name, hex(a), hex(b), hex(s), hex(value), hex(table[name](a, b, s))))
    assert not wrong, (len(wrong), wrong[:20])


def test_the_table_is_whole() -> None:
    """Every vector operation, every function, and every opcode that computes has a definition."""
    assert set(M.vector_operations("f16")) == set(O.VECTOR_OPS)
    defined = {*M.scalar_operations("f16"), *M.IMMEDIATE, *M.JUMPS, *M.JUMPS_IMMEDIATE, *M.LOADS, *M.STORES}
    rest = {op.name for op in Op if op not in defined}
    assert rest == {
        "NOP", "LDI", "LDK", "MOV", "JMP", "CALL", "CALLR", "RET", "END", "FMA", "DSD_BASE", "DSD_ADD", "DSD_LEN", "DSD_STRIDE", "DSD_GET",
        "DSD_ADDR16", "DSD_ADDR32", "DSR_LOAD", "DSR_BASE", "DSR_GET", "VEC", "ACT", "BLOCK", "UNBLOCK", "SYS",
    }  # fmt: skip


@pytest.mark.slow
def test_formats_are_those_of_ieee() -> None:
    """f16 against numpy's for all patterns, bf16 as the upper half of f32; rounding of numbers between, ties to even."""
    f16, bf16 = M.HALVES["f16"], M.HALVES["bf16"]
    numbers = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    for bits, x in enumerate(numbers.astype(np.float64).tolist()):
        assert f16.decode(bits) == x or math.isnan(x)
        assert f16.encode(x) == bits or math.isnan(x)
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, 1 << 32, 3000, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        rounded = drawn.astype(np.float16).view(np.uint16).tolist()
    for x, bits in zip(drawn.tolist(), rounded, strict=True):
        assert f16.encode(x) == bits or math.isnan(x)
        assert M.Format(8, 23).encode(x) == M.F32.encode(x) or math.isnan(x)
        assert M.Format(8, 23).decode(M.F32.encode(x)) == x or math.isnan(x)
        assert bf16.decode(M.F32.encode(x) >> 16) == M.F32.decode(M.F32.encode(x) & 0xFFFF0000) or math.isnan(
            x
        )


@pytest.mark.slow
@pytest.mark.parametrize("half", O.HALF_FORMATS)
def test_all_patterns_of_16_bits(half: str) -> None:
    values, found = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.int64)
    all_halves(O.HALF_FORMATS.index(half), values, found)
    form = M.HALVES[half]
    for bits, x in enumerate(values.tolist()):
        assert form.decode(bits) == x or (math.isnan(x) and math.isnan(form.decode(bits)))
        assert found[bits] == bits or math.isnan(x)
