"""Loops of a layout, evaluated together and one by one: the same PEs, the same parameters, the same routes, the same faults."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from wse_sim.csl import CslError, compile_program, evaluate_loops
from wse_sim.csl.builtins import BUILTINS
from wse_sim.csl.colors import ColorRoute
from wse_sim.csl.layout import run_layout
from wse_sim.csl.modules import LayoutState, Options
from wse_sim.csl.unit import Compiler

from .generate import Generator

WIDTH, HEIGHT = 23, 5
HEAD = f"""
param memory: i16 = 3;
const other = @import_module("other.csl", .{{ .scale = memory }});
layout {{
  @set_rectangle({WIDTH}, {HEIGHT});
"""
OTHER = """
param scale: i16;
const Pair = struct { a: i32, b: f32, c: u16 };
fn swap(p: Pair) Pair { return Pair{ .a = p.a ^ 5, .b = -p.b, .c = p.c + 1 }; }
fn scaled(x: i16) i16 { return x * scale; }
fn route(x: i16, last: i16) comptime_struct {
  if (x == 0) { return .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } }; }
  if (x == last) { return .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } }; }
  return .{ .routes = .{ .rx = .{ WEST }, .tx = .{ EAST, RAMP } },
            .filter = .{ .kind = .{ .counter = true }, .max_counter = x & 3, .limit1 = 7 } };
}
"""


def layout_of(folder: Path, body: str, together: bool, other: str = OTHER) -> LayoutState:
    """The layout of a text, its loops evaluated together or one by one."""
    (folder / "layout.csl").write_text(HEAD + body + "\n}\n")
    (folder / "other.csl").write_text(other)
    (folder / "pe.csl").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_loops, "FEWEST", 2 if together else 1 << 40)
        return run_layout(Compiler(Options()), str(folder / "layout.csl"), {})


def described(state: LayoutState) -> tuple[dict[int, str], dict[tuple[int, int], ColorRoute]]:
    """Parameters of every PE, as text, and the configuration of every (color, PE)."""
    params: dict[int, str] = {}
    for table in state.tiles.tables.values():
        table.finish()
        for row, core in enumerate(table.where):
            params[int(core)] = f"{table.path} {table.params(row)}"
    routes = {
        (color, int(core)): state.routes[config[core] - 1]
        for color, config in state.colors.items()
        for core in config.nonzero()[0]
    }
    return params, routes


def both(folder: Path, body: str, other: str = OTHER) -> tuple[Any, Any]:
    return tuple(described(layout_of(folder, body, together, other)) for together in (True, False))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "body",
    [
        # decisions by column and row, colors from numbers, a function of another module, structures in structures
        """var x: i16 = 0;
           while (x < 23) : (x += 1) {
             const send = if (x % 2 == 0) @get_color(0) else @get_color(1);
             var y: i16 = 0;
             while (y < 5) : (y += 1) {
               @set_tile_code(x, y, "pe.csl", .{ .send = send, .first = x == 0, .both = x == y and y != 3,
                 .deep = .{ .scaled = other.scaled(x - y), .half = @as(f32, 0.5), .ids = [2]u16{ 7, x } } });
               @set_color_config(x, y, send, other.route(x, 22));
             }
           }""",
        # rows outside, columns inside; a table that is read by column; a loop that runs as long as the column says
        """const table = [5]u16{ 3, 1, 4, 1, 5 };
           for (@range(u16, 5)) |y, k| {
             for (@range(u16, 23)) |x| {
               var sum: u32 = 0;
               for (@range(u16, table[y])) |i| { if (i == x) { continue; } sum += table[i] * k; }
               @set_tile_code(x, y, "pe.csl", .{ .sum = sum, .most = if (sum > 7) sum else table[y] });
             }
           }""",
        # a number that travels from iteration to iteration: the order counts
        """var count: u16 = 0;
           for (@range(i16, 23)) |x| { for (@range(i16, 5)) |y| {
             @set_tile_code(x, y, "pe.csl", .{ .serial = count }); count += 1; } }""",
        # left early, and done again from the other side
        """for (@range(i16, 23)) |x| { if (x == 9) { break; } for (@range(i16, 5)) |y| { @set_tile_code(x, y, "pe.csl", .{}); } }
           var x: i16 = 22;
           while (x >= 9) : (x -= 1) { for (@range(i16, 5)) |y| { @set_tile_code(x, y, "pe.csl", .{ .x = x }); } }""",
    ],
)
def test_a_loop_together_says_what_it_says_monkeypatch(tmp_path: Path, body: str) -> None:
    together, alone = both(tmp_path, body)
    assert len(together[0]) == WIDTH * HEIGHT
    assert together == alone


@pytest.mark.slow
@examples(15)
@given(st.integers(0, 10**6))
def test_functions_of_the_language_give_every_lane_its_own_value(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    generator = Generator(seed)
    made = [generator.function() for _ in range(3)]
    calls = ", ".join(
        f".v{k} = other.{name}({', '.join('@as(' + t + ', ' + str(p) + ')' for t, p in zip(types, ['x', 'y', 'x * 37', '3'], strict=False))})"
        for k, (_, name, types, _) in enumerate(made)
    )
    body = f'for (@range(i16, {WIDTH})) |x| {{ for (@range(i16, {HEIGHT})) |y| {{ @set_tile_code(x, y, "pe.csl", .{{ {calls} }}); }} }}'
    other = OTHER + "\n".join(text for text, *_ in made)
    folder = tmp_path_factory.mktemp("lanes")
    found = []
    for together in (False, True):
        try:
            found.append(described(layout_of(folder, body, together, other)))
        except CslError as fault:
            found.append(str(fault))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("for (@range(i16, 24)) |x| { for (@range(i16, 5)) |y| { @set_tile_code(x, y, \"pe.csl\", .{}); } }", "PE (23, 0) is outside"),
        ("for (@range(i16, 23)) |x| { @set_tile_code(x - x % 2, 0, \"pe.csl\", .{}); }", "PE (0, 0) already has its code"),
        ("for (@range(i16, 23)) |x| { for (@range(i16, 4)) |y| { @set_tile_code(x, y, \"pe.csl\", .{}); } }", "PE (0, 4) has no code"),
        ("for (@range(i16, 23)) |x| { @comptime_assert(x != 17); }", "assertion failed"),
        ("for (@range(i16, 23)) |x| { const z = @as(i16, 5) / (x - 11); }", "division by zero: the right side of '/' is 0"),
    ],
)  # fmt: skip
def test_a_fault_is_the_same_fault(tmp_path: Path, body: str, words: str) -> None:
    found = []
    for together in (True, False):
        with pytest.raises(CslError) as fault:
            layout_of(tmp_path, body, together)
        found.append(str(fault.value).replace(str(tmp_path), ""))
    assert found[0] == found[1]
    assert words in found[0]


def test_the_work_grows_with_decisions_not_with_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three kinds of columns (first, last, others), a hundred rows: 300 evaluations of the call, whatever the width."""
    count = 0
    original = BUILTINS["@set_tile_code"]

    def counted(self: Any, node: Any, scope: Any) -> Any:
        nonlocal count
        count += 1
        return original(self, node, scope)

    monkeypatch.setitem(BUILTINS, "@set_tile_code", counted)
    (tmp_path / "pe.csl").write_text(
        "param first: bool; param last: bool; param x: i16; var y: bool = first; comptime { @export_symbol(y); }"
    )
    (tmp_path / "layout.csl").write_text("""
param width: i16;
layout {
  @set_rectangle(width, 100);
  for (@range(i16, width)) |x| {
    const first = if (x == 0) true else false;
    const last = if (x == width - 1) true else false;
    for (@range(i16, 100)) |y| { @set_tile_code(x, y, "pe.csl", .{ .first = first, .last = last, .x = x }); }
  }
}""")  # fmt: skip
    for width in (10, 200):
        count = 0
        program = compile_program(tmp_path / "layout.csl", params={"width": width})
        assert count == 300
        # nothing asks for `last` and `x`: the first column is one class, all others are the second
        assert len(program.image.classes) == 2
        assert program.image.core_class.reshape(100, width)[7].tolist() == [0] + [1] * (width - 1)


def test_a_parameter_counts_for_the_programs_that_ask_for_it(tmp_path: Path) -> None:
    """`b` is read where `a` says so: two classes for a = 1 (b = 0, 1), one for a = 0, though all four pairs occur."""
    (tmp_path / "pe.csl").write_text(
        "param a: i16; param b: i16; const v: i16 = if (a == 1) b else 9; var w: i16 = v; comptime { @export_symbol(w); }"
    )
    (tmp_path / "layout.csl").write_text("""
layout {
  @set_rectangle(8, 4);
  for (@range(i16, 8)) |x| { for (@range(i16, 4)) |y| { @set_tile_code(x, y, "pe.csl", .{ .a = x % 2, .b = y % 2 }); } }
}""")
    image = compile_program(tmp_path / "layout.csl").image
    values = [int(cls.memory[0][1][0]) if cls.memory else 0 for cls in image.classes]
    got = [[values[k] for k in row] for row in image.core_class.reshape(4, 8)]
    assert got == [[y % 2 if x % 2 == 1 else 9 for x in range(8)] for y in range(4)]
    assert sorted(values) == [0, 1, 9]
