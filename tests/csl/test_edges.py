"""Operators and conversions on edge values of every type: what the compiler computes is what the compiled program computes."""

from __future__ import annotations

import math
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fabric.vm.test_semantics import HALF_EDGES, edges, f32_edges
from wse_sim.csl import compile_program
from wse_sim.csl import types as ty
from wse_sim.csl.coerce import arithmetic, convert
from wse_sim.csl.values import Value, from_bits, to_bits

from .machine import LAYOUT, Machine

INTEGERS = ["i5", "i8", "i16", "i32", "i64", "u8", "u16", "u24", "u32", "u64"]
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "and_": "&", "or_": "|", "xor": "^", "shl": "<<", "shr": ">>"}  # fmt: skip
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FLOATS = ["f32", "f16", "bf16", "cb16"]


def type_of(name: str) -> Any:
    """The type of the language with that name."""
    found = ty.named_type(name)
    assert found is not None
    return found


def values(name: str) -> list[Any]:
    """Edge values of a type, not above 16 of them for integers."""
    t = type_of(name)
    if isinstance(t, ty.IntType):
        found = {x if x >= 0 or t.signed else x + (1 << 64) for x in edges(t.bits, t.signed)}
        keep = {
            t.low,
            t.low + 1,
            t.high - 1,
            t.high,
            0,
            1,
            2,
            3,
            7,
            -1,
            -2,
            -7,
            t.high // 2,
            t.high // 3,
            10,
            100,
        }
        return sorted(found & keep)
    patterns = f32_edges() if name == "f32" else HALF_EDGES
    return [from_bits(t, bits) for bits in patterns[:: 3 if name == "f32" else 2]]


def poke(machine: Machine, name: str, type_name: str, numbers: list[Any]) -> None:
    """Write the values of an array of a type."""
    t = type_of(type_name)
    words = [to_bits(t, x) >> (16 * k) & 0xFFFF for x in numbers for k in range(t.words)]
    symbol = {s.name: s for s in machine.program.image.classes[0].symbols}[name]
    machine.session.poke(0, 0, symbol.address, np.array(words, np.uint16))


def peek(machine: Machine, name: str, type_name: str) -> list[Any]:
    """Read them."""
    t = type_of(type_name)
    symbol = {s.name: s for s in machine.program.image.classes[0].symbols}[name]
    words = machine.session.peek(0, 0, symbol.address, symbol.words).astype(object).reshape(-1, t.words)
    return [from_bits(t, sum(int(w) << (16 * k) for k, w in enumerate(row))) for row in words.tolist()]


def run(
    folder: Path, name: str, made: dict[str, tuple[str, str, list[Any]]], left: list[Any], half: str = "f16"
) -> Machine:
    """A program that computes, for every entry (expression of x and y, type of the result, values of y), all pairs; run once."""
    text = f"var left = @zeros([{len(left)}]{name});\n"
    exports, calls = '  @export_symbol(left, "left");\n', ""
    for key, (expression, result, right) in made.items():
        kind = "u16" if key in ("shl", "shr") else name
        n = len(left) * len(right)
        text += f"var right_{key} = @zeros([{len(right)}]{kind});\nvar out_{key} = @zeros([{n}]{result});\n"
        text += f"fn do_{key}() void {{ var k: u16 = 0; for (left) |x| {{ for (right_{key}) |y| {{ out_{key}[k] = {expression}; k += 1; }} }} }}\n"
        exports += (
            f'  @export_symbol(right_{key}, "right_{key}");\n  @export_symbol(out_{key}, "out_{key}");\n'
        )
        calls += f"  do_{key}();\n"
    text += f"fn run() void {{\n{calls}}}\ncomptime {{\n{exports}  @export_symbol(run);\n}}\n"
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(text)
    machine = Machine(compile_program(folder / "layout.csl", fp16=half))
    poke(machine, "left", name, left)
    for key, (_, _, right) in made.items():
        poke(machine, f"right_{key}", "u16" if key in ("shl", "shr") else name, right)
    machine.call("run")
    return machine


def equal(x: Any, y: Any) -> bool:
    """Equal values with equal signs of zero, or both not a number."""
    if isinstance(x, float):
        return (math.isnan(x) and math.isnan(y)) or (x == y and math.copysign(1, x) == math.copysign(1, y))
    return bool(x == y)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "i8" else pytest.mark.slow) for n in INTEGERS]
)
def test_integers(tmp_path: Path, name: str) -> None:
    t, left = type_of(name), values(name)
    made = {}
    for key, op in OPERATORS.items():
        right = [0, 1, t.bits - 1, t.bits, t.bits + 1, 63, 64, 200] if op in ("<<", ">>") else left
        made[key] = (f"x {op} y", name, [y for y in right if y != 0 or op not in ("/", "%")])
    for key, op in COMPARISONS.items():
        made[key] = (f"x {op} y", "bool", left)
    machine = run(tmp_path, name, made, left)
    wrong = []
    for key, (expression, result, right) in made.items():
        found = iter(peek(machine, f"out_{key}", result))
        for x in left:
            for y in right:
                if key in COMPARISONS:
                    wanted: Any = getattr(operator, key)(x, y)
                else:
                    second = Value(ty.U16 if key in ("shl", "shr") else t, y)
                    wanted = arithmetic(OPERATORS[key], Value(t, x), second, 0).data
                if (got := next(found)) != wanted:
                    wrong.append((expression, x, y, got, wanted))
    assert not wrong, (len(wrong), wrong[:10])


def converted(s: str, t: str, x: Any) -> Any:
    """Conversion as the compiler does it; a machine makes 0 of what is not a number, where the compiler refuses."""
    if isinstance(x, float) and t[0] in "iu" and not math.isfinite(x):
        limits = (0, 0) if math.isnan(x) else (ty.I64.low, (ty.U64 if t == "u64" else ty.I64).high)
        return type_of(t).wrap(limits[x > 0])
    return convert(Value(type_of(s), x), type_of(t), 0).data


@pytest.mark.slow
@pytest.mark.parametrize("half", ["f16", "bf16", "cb16"])
@pytest.mark.parametrize("name", [*INTEGERS, "f32", "half"])
def test_conversions(tmp_path: Path, name: str, half: str) -> None:
    source = half if name == "half" else name
    left = values(source)
    targets = [t for t in [*INTEGERS, "f32", half, "bool"] if t != source]
    made = {t: (f"@as({t}, x)", t, [left[0]]) for t in targets}
    machine = run(tmp_path, source, made, left, half)
    wrong = []
    for t in targets:
        for x, got in zip(left, peek(machine, f"out_{t}", t), strict=True):
            if not equal(got, wanted := converted(source, t, x)):
                wrong.append((t, x, got, wanted))
    assert not wrong, (len(wrong), wrong[:10])


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOATS)
def test_floats(tmp_path: Path, name: str) -> None:
    t, left = type_of(name), values(name)
    made = {key: (f"x {op} y", name, left) for key, op in OPERATORS.items() if op in "+-*/"}
    made |= {key: (f"x {op} y", "bool", left) for key, op in COMPARISONS.items()}
    machine = run(tmp_path, name, made, left, "f16" if name == "f32" else name)
    wrong = []
    for key, (expression, result, right) in made.items():
        found = iter(peek(machine, f"out_{key}", result))
        for x in left:
            for y in right:
                wanted = getattr(operator, key)(x, y) if key in COMPARISONS else arithmetic(OPERATORS[key], Value(t, x), Value(t, y), 0).data  # fmt: skip
                if not equal(got := next(found), wanted):
                    wrong.append((expression, x, y, got, wanted))
    assert not wrong, (len(wrong), wrong[:10])
