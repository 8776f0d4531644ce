"""Scalar opcodes against Python's integers and numpy's floats, and what a core refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fabric.vm.assembler import Assembly
from tests.generated import examples
from wse_sim.fabric.vm import opcodes as O
from wse_sim.hardware.wafer import load_wafer

TYPES = {
    "I16": (16, True),
    "U16": (16, False),
    "I32": (32, True),
    "U32": (32, False),
    "I64": (64, True),
    "U64": (64, False),
}


def wrapped(value: int, kind: str) -> int:
    """Return the canonical form of a value in a type."""
    bits, is_signed = TYPES[kind]
    value &= (1 << bits) - 1
    return value - (1 << bits) if is_signed and value >> (bits - 1) else value


def quotient(x: int, y: int) -> int:
    """Toward zero."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


INTEGER = {
    "ADD": lambda x, y, bits: x + y,
    "SUB": lambda x, y, bits: x - y,
    "MUL": lambda x, y, bits: x * y,
    "DIV": lambda x, y, bits: quotient(x, y),
    "MOD": lambda x, y, bits: x - quotient(x, y) * y,
    "SHL": lambda x, y, bits: x << y if 0 <= y < bits else 0,
}


def run_rows(rows: list[tuple[str, int, int]]) -> list[int]:
    """Results (signed 64 bit) of opcodes on two constants each; the executors must agree on all of them."""
    text, constants = ["main:"], []
    for i, (op, x, y) in enumerate(rows):
        constants += [x, y]
        text += [
            f"LDK 1 0 {2 * i}",
            f"LDK 2 0 {2 * i + 1}",
            f"{op} 3 1 2",
            f"LDI 4 0 {16 + 4 * i}",
            "ST_64 3 4 0",
        ]
    a = Assembly()
    a.add("\n".join([*text, "RET"]), constants=tuple(constants), data_words=16 + 4 * len(rows))
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    outcome = s.advance()
    assert outcome.reason == "idle", outcome
    return [int(v) for v in s.peek(0, 0, 16, 4 * len(rows)).view(np.int64)]


def values_of(kind: str) -> st.SearchStrategy[int]:
    """Return the values of a type, its limits among them."""
    bits, is_signed = TYPES[kind]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    return st.one_of(st.sampled_from([low, low + 1, 0, 1, high]), st.integers(low, high))


@given(st.data())
@examples(15)
def test_integer_arithmetic_wraps_in_its_type(data: st.DataObject):
    """Every operation and type on drawn operands; shift amounts up to past the width."""
    rows, expected = [], []
    for name, reference in INTEGER.items():
        for kind, (bits, _) in TYPES.items():
            if kind == "U64" and name not in ("DIV", "MOD"):
                continue
            x, y = data.draw(values_of(kind)), data.draw(values_of(kind))
            if name == "SHL":
                y = data.draw(st.integers(0, 70))
            elif name in ("DIV", "MOD") and y == 0:
                y = 7
            rows.append((f"{name}_{kind}", x, y))
            expected.append(wrapped(wrapped(reference(x, y, bits), kind), "I64"))
    assert run_rows(rows) == expected


@given(st.data())
@examples(10)
def test_logic_and_comparison_work_on_values(data: st.DataObject):
    """AND, OR, XOR keep the canonical form; comparisons are those of the numbers; SHR is arithmetic."""
    x, y, n = data.draw(values_of("I64")), data.draw(values_of("I64")), data.draw(st.integers(0, 80))
    rows = [
        ("AND", x, y),
        ("OR", x, y),
        ("XOR", x, y),
        ("EQ", x, y),
        ("NE", x, y),
        ("LT", x, y),
        ("LE", x, x),
        ("LTU64", x, y),
        ("SHR", x, n),
        ("SHR_U64", x, n),
    ]
    unsigned = x & (1 << 64) - 1
    expected = [
        x & y,
        x | y,
        x ^ y,
        x == y,
        x != y,
        x < y,
        True,
        unsigned < (y & (1 << 64) - 1),
        x >> min(n, 63),
        wrapped(unsigned >> n if n < 64 else 0, "I64"),
    ]
    assert run_rows(rows) == [int(v) for v in expected]


@given(
    st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1)), min_size=8, max_size=8)
)
@examples(15)
def test_floats_are_those_of_numpy(pairs: list[tuple[int, int]]):
    """f32 and f16, raw bits; not a number compares as not a number."""
    bits = np.array(pairs, np.uint32)
    ops = ["FADD", "FSUB", "FMUL", "FDIV", "HADD", "HSUB", "HMUL", "HDIV"]
    got = run_rows(
        [
            (op, int(x), int(y)) if op[0] == "F" else (op, int(x) & 0xFFFF, int(y) & 0xFFFF)
            for op, (x, y) in zip(ops, bits, strict=True)
        ]
    )
    with np.errstate(all="ignore"):
        for op, (x, y), value in zip(ops, bits, got, strict=True):
            wide = op[0] == "F"
            u, v = (
                np.array([x, y]).view(np.float32)
                if wide
                else np.array([x, y]).astype(np.uint16).view(np.float16)
            )
            want = {"A": u + v, "S": u - v, "M": u * v, "D": u / v}[op[1]]
            found = (
                np.array([value])
                .astype(np.uint32 if wide else np.uint16)
                .view(np.float32 if wide else np.float16)[0]
            )
            assert found == want or (np.isnan(found) and np.isnan(want)), (op, u, v, found, want)


def test_conversions():
    """f16 to f32 and back, integers to f32, f32 toward zero."""
    f = lambda x: int(np.float32(x).view(np.uint32))  # noqa: E731
    h = lambda x: int(np.float16(x).view(np.uint16))  # noqa: E731
    got = run_rows(
        [
            ("H2F", h(1.5), 0),
            ("F2H", f(0.1), 0),
            ("I2F", -3, 0),
            ("F2I", f(-2.9), 0),
            ("F2I", f(math.nan), 0),
            ("WRAP_I8", 200, 0),
            ("WRAP_U8", -1, 0),
        ]
    )
    assert got == [f(1.5), h(0.1), f(-3), -2, 0, -56, 255]


def test_calls_open_windows_and_return_results():
    """fib(10) = 55 by a loop in a function that is called with its argument in r0 of the new window."""
    a = Assembly()
    a.add("""
    main:
    LDI 4 0 10
    CALL 4 0 fib
    LDI 5 0 16
    ST_16 4 5 0
    RET
    fib:                  # r0 = n -> r0
    LDI 1 0 0
    LDI 2 0 1
    again:
    JEQI 0 0 done
    ADD_U16 3 1 2
    MOV 1 2
    MOV 2 3
    ADDI_I16 0 0 -1
    JMP 0 0 again
    done:
    MOV 0 1
    RET
    """)
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.advance()
    assert s.peek(0, 0, 16, 1)[0] == 55


def test_prices_add_up():
    """Command pick 2, twelve rows of one cycle; a taken branch 2 more each (two of three): 2 + 12 + 4 = 18 cycles busy."""
    a = Assembly()
    a.add("main:\nLDI 0 0 0\nagain:\nADDI_I16 0 0 1\nADDI_I16 1 1 1\nJLTI 0 3 again\nNOP\nRET")
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.advance()
    wafer = load_wafer("wse2")
    assert s.counters()["busy"][0, 0] == wafer.task_pick_cycles + 12 + 2 * wafer.scalar_branch_taken_cycles
    assert s.counters()["opcodes"][0, 0] == 12


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("LDI 1 0 70\nLD_I16 0 1 0", "address 70 is outside"),
        ("LDI 1 0 -1\nST_16 1 1 0", "address -1 is outside"),
        ("LDI 0 0 5\nLDI 1 0 0\nDIV_I16 0 0 1", "divided by 0"),
        ("LDI 1 0 0\nSYS -1 1 13", "assertion failed: x > 0"),
        ("f:\nCALL 1 0 f", "deeper than"),
    ],
)
def test_faults_name_core_cycle_and_line(rows: str, words: str):
    """The last row is at fault: the message has its line and the core."""
    a = Assembly(1, 2)
    a.extra["asserts"] = ("x > 0",)
    a.add(f"main:\n{rows}\nRET", data_words=64, registers=200)
    s = a.session()
    s.launch(1, 0, 1, 1, "main")
    outcome = s.advance("commands")
    assert outcome.reason == "fault"
    line = sum(1 for row in rows.splitlines() if not row.endswith(":"))
    assert (outcome.fault.x, outcome.fault.y) == (1, 0)
    assert outcome.fault.where == f"pe.csl:{line} (f)"
    assert words in str(outcome.fault)


def test_the_generator_of_random_numbers():
    """128 steps of x^23 + x^18 + 1 from 0xdeadbeef, in Python."""
    a = Assembly()
    a.add("main:\nSYS 0 0 5\nSYS 1 0 5\nLDI 2 0 16\nST_16 0 2 0\nST_16 1 2 1\nRET")
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.advance()
    state, want = 0xDEADBEEF, []
    for _ in range(2):
        for _ in range(128):
            state = (state << 1 | ((state >> 22) ^ (state >> 17)) & 1) & 0xFFFFFFFF
        want.append(state & 0xFFFF)
    assert s.peek(0, 0, 16, 2).tolist() == want


def test_the_time_stamp_counter_reads_the_sum_of_a_stretch():
    """Two reads around 10 rows: their difference is 10 rows and the price of the first read."""
    a = Assembly()
    a.add(
        "main:\nSYS -1 0 1\nSYS 1 0 4\n"
        + "NOP\n" * 10
        + "SYS 2 0 4\nSUB_I32 3 2 1\nLDI 4 0 16\nST_16 3 4 0\nRET"
    )
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.advance()
    assert s.peek(0, 0, 16, 1)[0] == 11


def test_opcodes_of_the_chain_are_those_of_the_definition():
    """The plain integers that numba sees are the enumeration's."""
    from wse_sim.fabric.vm import scalar

    for op in O.Op:
        assert getattr(scalar, op.name) == op
    assert O.COST_CLASSES[0] == "free"
    assert set(O.COST_CLASSES) <= set(load_wafer("wse3").scalar_costs())
