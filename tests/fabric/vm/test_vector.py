"""Vector operations against numpy, bit for bit; shapes, rings, registers and lengths."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fabric.vm.assembler import Assembly, line
from tests.generated import examples
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import dsd
from wse_sim.fabric.vm.opcodes import Form
from wse_sim.fabric.vm.vector import room

LENGTH = 6
f32, f16, u16, i16, u32 = np.float32, np.float16, np.uint16, np.int16, np.uint32


def binary(dtype, fn):
    """Return a reference on two arrays of a type."""
    return dtype, dtype, dtype, lambda a, b, s: fn(a, b)


REFERENCES = {
    "mov16": (u16, u16, None, lambda a, b, s: a),
    "mov32": (u32, u32, None, lambda a, b, s: a),
    "add16": binary(u16, lambda a, b: a + b),
    "sub16": binary(u16, lambda a, b: a - b),
    "and16": binary(u16, lambda a, b: a & b),
    "or16": binary(u16, lambda a, b: a | b),
    "xor16": binary(u16, lambda a, b: a ^ b),
    "mul16": binary(u16, lambda a, b: a * b),
    "add32": binary(u32, lambda a, b: a + b),
    "sub32": binary(u32, lambda a, b: a - b),
    "sll16": binary(u16, lambda a, b: np.where(b < 16, a.astype(np.uint64) << np.minimum(b, 16), 0)),
    "slr16": binary(u16, lambda a, b: a.astype(np.uint64) >> np.minimum(b, 16)),
    "sar16": binary(u16, lambda a, b: a.view(i16).astype(np.int64) >> np.minimum(b, 15)),
    "popcnt": (u16, u16, None, lambda a, b, s: np.array([int(x).bit_count() for x in a])),
    "clz": (u16, u16, None, lambda a, b, s: np.array([16 - int(x).bit_length() for x in a])),
    "ctz": (
        u16,
        u16,
        None,
        lambda a, b, s: np.array([(int(x) & -int(x)).bit_length() - 1 if x else 16 for x in a]),
    ),
    "fmovs": (f32, f32, None, lambda a, b, s: a),
    "fadds": binary(f32, lambda a, b: a + b),
    "fsubs": binary(f32, lambda a, b: a - b),
    "fmuls": binary(f32, lambda a, b: a * b),
    "fmacs": (f32, f32, f32, lambda a, b, s: a + b * s),
    "fnegs": (f32, f32, None, lambda a, b, s: -a),
    "fabss": (f32, f32, None, lambda a, b, s: np.abs(a)),
    "fmaxs": binary(f32, lambda a, b: np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.maximum(a, b)))),
    "faddh": binary(f16, lambda a, b: a + b),
    "fsubh": binary(f16, lambda a, b: a - b),
    "fmulh": binary(f16, lambda a, b: a * b),
    "fmach": (f16, f16, f16, lambda a, b, s: (a.astype(f32) + b.astype(f32) * f32(s)).astype(f16)),
    "fnegh": (f16, f16, None, lambda a, b, s: -a),
    "fmachs": (f32, f32, f16, lambda a, b, s: a + b.astype(f32) * f32(s)),
    "faddhs": (f32, f32, f16, lambda a, b, s: a + b.astype(f32)),
    "fh2s": (f32, f16, None, lambda a, b, s: a.astype(f32)),
    "fs2h": (f16, f32, None, lambda a, b, s: a.astype(f16)),
    "xp162fs": (f32, i16, None, lambda a, b, s: a.astype(f32)),
    "xp162fh": (f16, i16, None, lambda a, b, s: a.astype(f16)),
}


def one_operation(op: str, a: np.ndarray, b: np.ndarray, scalar: int) -> np.ndarray:
    """Return the words of the destination after `op` on straight vectors."""
    asm = Assembly()
    has_b = REFERENCES[op][2] is not None
    issue = asm.issue(
        op,
        Form.DSD,
        Form.DSD,
        Form.DSD if has_b else Form.NONE,
        Form.SCALAR if op in ("fmacs", "fmach", "fmachs") else Form.NONE,
    )
    asm.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nLDK 2 0 2\nLDK 3 0 3\nVEC -1 0 {issue}\nRET",
        constants=(line(300, LENGTH), line(100, LENGTH), line(200, LENGTH), scalar), memory=((100, a.view(u16)), (200, b.view(u16))),
    )  # fmt: skip
    s = asm.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    assert s.advance().reason == "idle"
    return s.peek(0, 0, 300, 2 * LENGTH)


@pytest.mark.parametrize("op", sorted(REFERENCES))
@given(seed=st.integers(0, 2**32 - 1))
@examples(3)
def test_operations_are_those_of_numpy(op: str, seed: int):
    """Random bit patterns; shift amounts below 20; a not-a-number result is any not-a-number."""
    rng = np.random.default_rng(seed)
    to, of_a, of_b, reference = REFERENCES[op]

    def draw(dtype):
        raw = rng.integers(0, 65536, LENGTH * np.dtype(dtype).itemsize // 2).astype(u16)
        return (
            (raw % 20).astype(u16)
            if op[:3] in ("sll", "slr", "sar") and dtype is of_b and draw.second
            else raw.view(dtype)
        )

    draw.second = False
    a = draw(of_a)
    draw.second = True
    b = draw(of_b or u16)
    scalar = f32(1.7) if op == "fmacs" else f16(1.7)
    bits = int(scalar.view(u32)) if op == "fmacs" else int(scalar.view(u16))
    got = one_operation(op, a, b, bits)[: LENGTH * np.dtype(to).itemsize // 2].view(to)
    with np.errstate(all="ignore"):
        want = np.asarray(reference(a, b, scalar))
    if np.issubdtype(to, np.floating):
        same = (got == want.astype(to)) | (np.isnan(got) & np.isnan(want.astype(to)))
        assert same.all(), (got, want)
    else:
        assert (got == want.astype(np.int64).astype(to)).all(), (a, b, got, want)


def test_four_dimensions_and_rings_visit_their_elements():
    """A[2 i + j] over 5 x 5 has jumps (1, -2); a ring of 4 words from its third reads 2, 3, 0, 1, 2."""
    a = Assembly()
    a.extra["shapes"] = np.array([[2, 5, 5, 0, 0, 1, -2, 0, 0]], np.int32)
    a.extra["rings"] = np.array([[400, 4, 1]], np.int32)
    move = a.issue("mov16", Form.DSD, Form.DSD)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {move}\nLDK 0 0 2\nLDK 1 0 3\nVEC -1 0 {move}\nLDI 4 0 7\nDSD_ADDR16 5 1 4\nLDK 6 0 1\nDSD_ADDR16 7 6 4\nLDI 8 0 500\nST_16 5 8 0\nST_16 7 8 1\nRET",
        constants=(line(200, 25), dsd(O.DsdKind.MEM4D, base=100, length=0), line(300, 5), dsd(O.DsdKind.CIRCBUF, base=402, length=5, stride=0)),
        memory=((100, np.arange(20, dtype=u16)), (400, np.arange(10, 14, dtype=u16))),
    )  # fmt: skip
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.advance()
    assert s.peek(0, 0, 200, 25).tolist() == [2 * i + j for i in range(5) for j in range(5)]
    assert s.peek(0, 0, 300, 5).tolist() == [12, 13, 10, 11, 12]
    assert s.peek(0, 0, 500, 2).tolist() == [400 + (2 + 7) % 4, 100 + 2 * 1 + 2]  # element 7 = (i 1, j 2)


def test_a_pointer_accumulates_and_lengths_follow_the_first_source():
    """sum of 5 elements into one word; a destination of another length does not count."""
    a = Assembly()
    add = a.issue("fadds", Form.POINTER, Form.POINTER, Form.DSD)
    move = a.issue("mov16", Form.DSD, Form.DSD)
    fill = a.issue("mov16", Form.DSD, Form.SCALAR)
    values = np.arange(1, 6, dtype=f32)
    a.add(
        f"main:\nLDI 0 0 300\nLDI 1 0 300\nLDK 2 0 0\nVEC -1 0 {add}\nLDK 0 0 1\nLDK 1 0 2\nVEC -1 0 {move}\nLDK 0 0 3\nLDI 1 0 9\nVEC -1 0 {fill}\nRET",
        constants=(line(100, 5), line(400, 9), line(100, 2), line(500, 3)), memory=((100, values.view(u16)),),
    )  # fmt: skip
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.advance()
    assert s.peek(0, 0, 300, 2).view(f32)[0] == 15.0
    assert s.peek(0, 0, 400, 3).tolist() == [*values.view(u16)[:2], 0]
    assert s.peek(0, 0, 500, 4).tolist() == [9, 9, 9, 0]


def test_a_scalar_is_reduced_into():
    """max and sum over 5 elements into a variable whose value is also source 0; one element of a move is not a reduction."""
    a = Assembly()
    largest = a.issue("fmaxs", Form.POINTER, Form.SCALAR, Form.DSD)
    add = a.issue("fadds", Form.POINTER, Form.SCALAR, Form.DSD)
    values = np.array([3, 9, -2, 4, 1], f32)
    bits = [int(f32(v).view(u32)) for v in (-1e30, 100.0)]
    a.add(
        f"main:\nLDI 0 0 300\nLDK 1 0 1\nLDK 2 0 0\nVEC -1 0 {largest}\nLDI 0 0 302\nLDK 1 0 2\nVEC -1 0 {add}\nRET",
        constants=(line(100, 5), *bits), memory=((100, values.view(u16)),),
    )  # fmt: skip
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.advance()
    assert s.peek(0, 0, 300, 4).view(f32).tolist() == [9.0, 115.0]


def test_a_register_that_saves_its_address_goes_on_where_it_ended():
    """Two moves of 3 through a DSR pair: with save_address the second takes elements 3 to 5, without it 0 to 2 again."""
    for save, want in ((1, [0, 1, 2, 3, 4, 5]), (0, [0, 1, 2, 0, 0, 0])):
        a = Assembly()
        dest = a.load(O.DSR_DEST, 1, save_address=save)
        source = a.load(O.DSR_SRC1, 2, save_address=save)
        move = a.issue("mov16", Form.DSR, Form.DSR, dsr0=1, dsr1=128 + 2)
        a.add(
            f"main:\nLDK 0 0 0\nDSR_LOAD 0 0 {dest}\nLDK 0 0 1\nDSR_LOAD 0 0 {source}\nVEC -1 0 {move}\nVEC -1 0 {move}\nRET",
            constants=(line(200, 3), line(100, 3)), memory=((100, np.arange(6, dtype=u16)),), dsrs=3,
        )  # fmt: skip
        s = a.session()
        s.launch(0, 0, 1, 1, "main", arm=False)
        s.advance()
        assert s.peek(0, 0, 200, 6).tolist() == want


def test_memory_operations_cost_start_and_rate():
    """fmuls of 512 elements: the published 5,130 cycles for 5,124 elements are n + 6 with loaded registers; here a clean and a conflicting pair.

    Two time stamps around the operation: n / 1 + 6, doubled where both sources begin in banks equal modulo 4.  The start of 6 cycles counts from the
    last load of a register: the row of the first stamp and that of the operation pass meanwhile, one cycle each.
    """
    spans = []
    for second in (1502, 1500):  # banks 1500 % 4 = 0 and 1502 % 4 = 2
        a = Assembly()
        loads = [a.load(file, 0) for file in (O.DSR_DEST, O.DSR_SRC0, O.DSR_SRC1)]
        multiply = a.issue("fmuls", Form.DSR, Form.DSR, Form.DSR, dsr0=0, dsr1=64, dsr2=128)
        a.add(
            "main:\nSYS -1 0 1\n" + "".join(f"LDK 0 0 {i}\nDSR_LOAD 0 0 {load}\n" for i, load in enumerate(loads))
            + f"SYS 1 0 4\nVEC -1 0 {multiply}\nSYS 2 0 4\nSUB_I32 3 2 1\nLDI 4 0 16\nST_16 3 4 0\nRET",
            constants=(line(3000, 512), line(100, 512), line(second, 512)), dsrs=1,
        )  # fmt: skip
        s = a.session()
        s.launch(0, 0, 1, 1, "main", arm=False)
        s.advance()
        spans.append(int(s.peek(0, 0, 16, 1)[0]))
    assert spans == [512 + 6, 2 * 512 + 6]


@pytest.mark.parametrize(
    ("simd", "free", "words"), [(2, 2, 2), (2, 1, 0), (2, 0, 0), (3, 3, 2), (3, 2, 2), (3, 1, 1), (3, 0, 0)]
)
def test_two_words_a_cycle_need_room(simd: int, free: int, words: int) -> None:
    """The mode simd_64 (2) waits for room for both; simd_32_or_64 (3) puts one word where there is room for one alone."""
    thread, depth = np.zeros(S.THREAD_FIELDS, np.int32), 6
    thread[S.OPERAND0 + S.P_FORM] = S.OUTPUT
    machine = SimpleNamespace(
        out_depth=np.array([depth]),
        oq_count=np.array([[depth - free]]),
        core=np.zeros((1, S.CORE_FIELDS), np.int64),
    )
    state, found, _ = getattr(room, "py_func", room)(0, 1, np.int64(2), simd, False, thread, machine)
    assert (found if state == S.BUSY else 0) == words
