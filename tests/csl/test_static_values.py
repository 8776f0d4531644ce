"""What a static course and the compiler compute with integers, opcode by opcode, against the machine of CSL."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.fabric.vm.assembler import Assembly
from tests.fabric.vm.test_scalar import TYPES, run_rows
from wse_sim.fabric.vm.opcodes import Op
from wse_sim.fabric.vm.semantics import BINARY, DIVISIONS, IMMEDIATE, JUMPS, JUMPS_IMMEDIATE

DRAWN = np.random.default_rng(7)


def operands(op: int, count: int = 6) -> list[tuple[int, int]]:
    """Pairs in the range of the opcode's type (64 bits if it names none), its limits among them."""
    kind = re.search(r"_([IU]\d+)$", Op(op).name)
    is_cast = Op(op).name.startswith("WRAP")
    bits, is_signed = TYPES.get(kind[1], (64, True)) if kind and not is_cast else (40, True)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    high = min(high, 2**63 - 1)  # registers are signed
    drawn = [int(x) for x in DRAWN.integers(low, high, count, endpoint=True)]
    return list(zip([low, high, *drawn], [high, 3, *drawn[1:], 5], strict=True))


def small(op: int, y: int) -> int:
    """A second operand that fits an immediate, and is a number of bits where it counts bits."""
    return abs(y) % 60 + 1 if re.match(r"SH|WRAP[SU]$", Op(op).name) else y % 1000 - 500


def immediate_rows(rows: list[tuple[str, int, int]]) -> list[int]:
    """Results of opcodes with an immediate."""
    text, constants = ["main:"], []
    for i, (op, x, y) in enumerate(rows):
        constants.append(x)
        text += [f"LDK 1 0 {i}", f"{op} 3 1 {y}", f"LDI 4 0 {16 + 4 * i}", "ST_64 3 4 0"]
    a = Assembly()
    a.add("\n".join([*text, "RET"]), constants=tuple(constants), data_words=16 + 4 * len(rows))
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    assert s.advance().reason == "idle"
    return [int(v) for v in s.peek(0, 0, 16, 4 * len(rows)).view(np.int64)]


@pytest.mark.parametrize("table", [BINARY, DIVISIONS], ids=["sums and bits", "divisions"])
def test_operations_on_two_registers(table):
    rows = [
        (op, x, (small(op, y) if "SH" in Op(op).name else y) or 7) for op in table for x, y in operands(op)
    ]
    found = run_rows([(Op(op).name, x, y) for op, x, y in rows])
    assert [table[op](x, y) for op, x, y in rows] == found


def test_operations_with_an_immediate():
    rows = [(op, x, small(op, y)) for op in IMMEDIATE if op != Op.MATH for x, y in operands(op)]
    found = immediate_rows([(Op(op).name, x, y) for op, x, y in rows])
    assert [IMMEDIATE[op](x, y) for op, x, y in rows] == found


@pytest.mark.parametrize("table", [JUMPS, JUMPS_IMMEDIATE], ids=["registers", "immediate"])
def test_jumps_are_taken_where_the_machine_takes_them(table):
    """A jump over the load of a one: what is stored says whether it was taken."""
    cases = [(op, x, y) for op in table for x, y in [(-3, 4), (4, 4), (5, 4), (0, 0), (0, -1)]]
    text, constants = ["main:"], []
    for i, (op, x, y) in enumerate(cases):
        constants += [x, y]
        second = "2" if table is JUMPS else str(y)
        jump = f"{Op(op).name} 1 {second} after{i}"
        text += [f"LDK 1 0 {2 * i}", f"LDK 2 0 {2 * i + 1}", "LDI 3 0 0", jump, "LDI 3 0 1", f"after{i}:"]
        text += [f"LDI 4 0 {16 + i}", "ST_16 3 4 0"]
    a = Assembly()
    a.add("\n".join([*text, "RET"]), constants=tuple(constants), data_words=16 + len(cases))
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    assert s.advance().reason == "idle"
    assert [not table[op](x, y) for op, x, y in cases] == s.peek(0, 0, 16, len(cases)).astype(bool).tolist()
