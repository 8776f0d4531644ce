"""Programs that the language guide allows, each a story of ten lines with the answer computed beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from wse_sim.csl import CslError
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

from .machine import LAYOUT, Machine, compile_text


def answer(folder: Path, text: str, arch: str = "wse2", layout: str = LAYOUT, **files: str) -> list[int]:
    """What `r` holds after `run`."""
    program = compile_text(
        folder, f"{text}\ncomptime {{ @export_symbol(run); @export_symbol(r); }}", layout, arch, **files
    )
    machine = Machine(program)
    machine.call("run")
    return [float(v) if machine.read("r").dtype.kind == "f" else int(v) for v in machine.read("r")]  # type: ignore[misc]


ROUTED = "const c = @get_color(3); comptime { @set_local_color_config(c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } }); }"
PAIR = "const P = struct { a: u16, b: u16 }; var s: P; var r: u16;"
ANSWERS = {
    "structure": ("var s = .{ .a = @as(u16, 3), .b = @as(f32, 2.0) }; var r: u16; fn run() void { s.a = 7; r = s.a + 1; }", 8),
    "structure of run time": ("var r: u16; var q: u16 = 4; fn run() void { var s = .{ .a = q, .b = @as(f32, 2.0) }; s.a += 1; r = s.a; }", 5),
    "structures of one type": ("var s = .{ .a = @as(u16, 3) }; var t = .{ .a = @as(u16, 5) }; var r: u16; fn run() void { s = t; t.a = 9; r = s.a; }", 5),
    "tuple": ("var s = .{ @as(u16, 3), @as(f32, 2.0) }; var r: u16; fn run() void { s[0] += 4; r = s[0]; }", 7),
    "structure of compile time": ("var r: u16; fn run() void { var s = .{ .a = 10 }; @field(s, \"a\") = 20; s.a += 1; r = s.a; }", 21),
    "field": (PAIR + "fn run() void { @field(s, \"a\") = 20; @field(s, \"b\") += 2; r = @field(s, \"a\") + s.b; }", 22),
    "address of a field": (PAIR + "fn run() void { const p = &@field(s, \"b\"); p.* = 4; r = s.b; }", 4),
    "if behind +=": ("var r: u16 = 3; var c: bool = true; fn run() void { r += if (c) 4 else 9; r *= if (r > 100) 1 else 2; }", 14),
    "switch behind +=": ("var r: u16 = 3; fn run() void { r += switch (r) { 3 => 10, else => 20 }; r -= b: { if (r > 5) break :b 1; break :b 2; }; }", 12),
    "if in a sum": ("var r: u16 = 3; var c: bool = true; fn run() void { r = (if (c) 4 else 9) + r; }", 7),
    "if in a comparison": ("var r: u16 = 3; var c: bool = true; fn run() void { if (r == (if (c) 3 else 9)) { r = 50; } }", 50),
    "if in an index": ("var a = [3]u16{ 1, 2, 3 }; var r: u16; var c: bool = true; fn run() void { r = a[if (c) 1 else 2]; }", 2),
    "anyopaque": ("var a = [2]u16{ 7, 8 }; var r: u16; fn run() void { var p: *anyopaque = &a; const q = @ptrcast([*]u16, p); r = q[1]; }", 8),
    "const anyopaque": ("const a = [2]u16{ 7, 8 }; var r: u16; fn g(p: *const anyopaque) u16 { return @ptrcast([*]const u16, p)[1]; } fn run() void { r = g(&a); }", 8),
    "registers": (ROUTED + "var r: u16; comptime { @set_config(0x7f23, 5); const o = @get_config(0x7f23); @set_config(0x7f23, o + 3); } fn run() void { r = @get_config(0x7f23); }", 8),
    "register in ranges": (ROUTED + "var r: u16; var a: u16 = 0x7f23; fn run() void { @set_config(a, 3, .{ 0x7f00, 0x7f40 }); r = @get_config(a, .{ .{ 0x7f00, 0x7f04 }, .{ 0x7f20, 0x7f38 } }); }", 3),
    "register without a model": ("var r: u16; var v: u16 = 42; fn run() void { @set_config(0x7e10, v); r = @get_config(0x7e10) + 1; }", 43),
    "values of an enum": ("const E = enum(u16) { red, white = 4, blue }; var r: u16; fn run() void { r = @as(u16, E.red) * 16 + @as(u16, E.blue); }", 1),
    "integer of an integer": ("const n: i8 = -10; var r: bool; fn run() void { r = comptime (@is_same_type(@type_of(@get_int(n)), i8) and @get_int(n) == -10); }", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_programs(tmp_path: Path, name: str) -> None:
    text, wanted = ANSWERS[name]
    assert answer(tmp_path, text) == [wanted]


def test_values_of_a_json_file(tmp_path: Path) -> None:
    """An array, and an object whose labels carry their types."""
    (tmp_path / "array.json").write_text("[1, 2, 3, 5]")
    (tmp_path / "object.json").write_text('{"size:u16": 4, "c:color": 3, "scale:f32": 0.5, "on": true}')
    text = """
    const a = @import_comptime_value([4]u16, "array.json");
    const o = @import_comptime_value(comptime_struct, "object.json");
    var r = @zeros([2]u16);
    fn run() void {
      r[0] = a[3] + (if (o.on) o.size else 0);
      r[1] = @get_int(o.c);
      @comptime_assert(o.scale == 0.5 and @is_same_type(@type_of(o.scale), f32));
    }
    """
    assert answer(tmp_path, text) == [9, 3]
    with pytest.raises(CslError, match=r"cannot read 'none\.json'"):
        answer(
            tmp_path,
            'const a = @import_comptime_value([4]u16, "none.json"); var r = a; fn run() void { r[0] = 1; }',
        )


EXPORTS = """layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{});
  @export_name("p", [*]u16, true); @export_name("q", [*]f32, true); @export_name("v", u16, true); @export_name("r", [3]u16, true); }"""


def test_exported_symbols_by_their_numbers(tmp_path: Path) -> None:
    """Numbers follow the layout: p 0, q 1, v 2.  The second word of 8.0 is 0x4100, the third array element of p is 9."""
    text = """
    var a = [3]u16{ 7, 8, 9 }; var p: [*]u16 = &a; var b = [1]f32{ 8.0 }; var q: [*]f32 = &b; var v: u16 = 11;
    var r = @zeros([3]u16); var one: u16 = 1;
    fn run() void { r[0] = @get_tensor_ptr(@get_symbol_id(p))[2]; r[1] = @get_tensor_ptr(one)[1]; r[2] = @get_symbol_value(u16, one + 1); }
    comptime { @export_symbol(p); @export_symbol(q); @export_symbol(v); }
    """
    assert answer(tmp_path, text, layout=EXPORTS) == [9, 0x4100, 11]


@pytest.mark.parametrize(("other", "counted"), [("", [6, 2]), ("x: u32", [5, 1])])
def test_two_tasks_take_turns_on_one_id(tmp_path: Path, other: str, counted: list[int]) -> None:
    """Six words, a limit of three: a task without an argument runs behind every third, one with an argument takes the fourth."""
    text = f"""
    const q = @get_input_queue(2); const oq = @get_output_queue(2); const c = @get_color(3);
    var a = [6]u32{{ 1, 2, 3, 4, 5, 6 }}; var r = @zeros([2]u16);
    const out = @get_dsd(fabout_dsd, .{{ .extent = 6, .output_queue = oq }});
    const d = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{6}} -> a[i] }});
    task first(x: u32) void {{ r[0] += 1; }}
    task other({other}) void {{ r[1] += 1; }}
    fn run() void {{ @mov32(out, d, .{{ .async = true }}); }}
    comptime {{
      @bind_rotating_tasks(first, other, @get_data_task_id(q), .{{ .limit = 3 }});
      @initialize_queue(q, .{{ .color = c }}); @initialize_queue(oq, .{{ .color = c }});
      @set_local_color_config(c, .{{ .routes = .{{ .rx = .{{ RAMP }}, .tx = .{{ RAMP }} }} }});
    }}
    """
    assert answer(tmp_path, text, "wse3") == counted


def test_a_count_of_turns_begins_below_its_limit(tmp_path: Path) -> None:
    """A start of 2 is allowed below a limit of 3, one of 3 is not: the first task would never run."""
    text = """
    var r = @zeros([1]u16);
    task first(x: u32) void {{ }}
    task other() void {{ }}
    fn run() void {{ r[0] = 7; }}
    comptime {{
      const q = @get_input_queue(2);
      @bind_rotating_tasks(first, other, @get_data_task_id(q), .{{ .limit = 3, .init = {start} }});
      @initialize_queue(q, .{{ .color = @get_color(3) }});
    }}
    """
    assert answer(tmp_path, text.format(start=2), "wse3") == [7]
    with pytest.raises(CslError, match="the limit is 3 and the count begins at 3"):
        answer(tmp_path, text.format(start=3), "wse3")


@pytest.mark.parametrize(("stride", "is_legal"), [(127, True), (128, False), (-128, True), (-129, False)])
def test_a_stride_is_a_signed_byte(tmp_path: Path, stride: int, is_legal: bool) -> None:
    """Strides of -128 to 127 words are legal; one beyond either end is refused with the range."""
    first = 0 if stride > 0 else -stride
    text = f"""
    var a = @zeros([300]i16); var r = @zeros([1]i16);
    const d = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{2}} -> a[{first} + i * ({stride})] }});
    fn run() void {{ @add16(d, d, 5); r[0] = a[{first + stride}]; }}
    """
    if is_legal:
        assert answer(tmp_path, text) == [5]
        return
    with pytest.raises(CslError, match=f"is {stride}; it must be -128 to 127"):
        answer(tmp_path, text)


def test_comptime_blocks_set_priorities_and_routes(tmp_path: Path) -> None:
    """Both tasks are active at once; the later id has the priority, so it is first: it writes 1, the other sees that and writes 12."""
    text = """
    const tc = @import_module("<tile_config>"); var r: u16 = 0;
    task low() void { r = 10 * r + 2; }
    task high() void { r = 10 * r + 1; }
    fn run() void { @activate(@get_local_task_id(9)); @activate(@get_local_task_id(12)); }
    comptime {
      @bind_local_task(low, @get_local_task_id(9)); @bind_local_task(high, @get_local_task_id(12));
      tc.task_priority.set_task_priority(@get_local_task_id(12));
    }
    """
    assert answer(tmp_path, text) == [12]


LENGTHS = """
var a = @constants([5]f32, 2.0); var b = @zeros([3]f32); var r = @constants([4]f32, 7.0);
const da = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> a[i] });
const db = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> b[i] });
fn run() void { %s }
"""


@pytest.mark.parametrize("body", ["@fmovs(db, da);", "@fadds(db, da, da);", "@fmacs(db, da, da, 2.0);"])
def test_a_shorter_destination_bounds_the_operation(tmp_path: Path, body: str) -> None:
    """What is behind the destination keeps its values."""
    assert answer(tmp_path, LENGTHS % body) == [7.0] * 4


BEYOND = {
    "too long": "const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] }); fn run() void { @fmovs(d, 1.0); }",
    "in a variable": "var d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] }); fn run() void { @fmovs(d, 1.0); }",
    "by its extent": "const d = @get_dsd(mem1d_dsd, .{ .base_address = &a, .extent = 8 }); fn run() void { @fmovs(d, 1.0); }",
    "before it": "const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> a[i - 2] }); fn run() void { @fmovs(d, 1.0); }",
    "moved": "const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> a[i] }); fn run() void { @fmovs(@increment_dsd_offset(d, 3, f32), 1.0); }",
    "in two dimensions": "const d = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 3} -> a[3 * i + j] }); fn run() void { @fmovs(d, 1.0); }",
    "in a register": "const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] }); const q = @get_dsr(dsr_dest, 1); fn run() void { @load_to_dsr(q, d); @fmovs(q, 1.0); }",
    "by a stride": "const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[3 * i] }); fn run() void { @fmovs(d, 1.0); }",
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_a_descriptor_that_leaves_its_array_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CslError, match="of 'a', an array of 5"):
        answer(tmp_path, "var a = @zeros([5]f32); var r = @constants([4]f32, 7.0); " + BEYOND[name])


def test_a_template_of_a_descriptor_may_be_longer(tmp_path: Path) -> None:
    """Public programs make a descriptor on an array of one element and set address and length where they use it."""
    text = """
    const none = @zeros([1]f32); var r = @zeros([4]f32); var n: u16 = 4;
    var d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> none[i] });
    fn run() void { d = @set_dsd_base_addr(d, r); d = @set_dsd_length(d, n); @fmovs(d, 1.5); }
    """
    assert answer(tmp_path, text) == [1.5] * 4


def test_bounds_while_running_are_a_fault_where_they_are_asked_for(tmp_path: Path) -> None:
    """A length of run time: eight elements over an array of five, named with both variables and the line."""
    text = """var a = @zeros([5]f32); var r = @constants([4]f32, 7.0); var n: u16 = 8;
    var d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> a[i] });
    fn run() void { @fmovs(@set_dsd_length(d, n), 1.0); }
    comptime { @export_symbol(run); @export_symbol(r); @export_symbol(a); }"""
    session = Session(compile_text(tmp_path, text).image, load_wafer("wse2"), bounds=True)
    session.launch(0, 0, 1, 1, "run", (), arm=False)
    fault = str(session.advance().fault)
    assert "pe.csl:3 (run): a vector operation begins in 'a'" in fault
    assert "in 'r'; 'a' is words" in fault


SPIN = """
const c = @get_color(3); const q = @get_input_queue(2); const oq = @get_output_queue(2);
const out = @get_dsd(fabout_dsd, .{{ .extent = 1, .fabric_color = c, .output_queue = oq }});
var r = @zeros([2]u16); var word: u32 = 77;
task spin() void {{ r[0] += 1; if (r[1] == 0) {{ @activate(@get_local_task_id({next})); }} }}
task back() void {{ @activate(@get_local_task_id({id})); }}
task data(x: u32) void {{ r[1] = @as(u16, x); }}
fn run() void {{ @activate(@get_local_task_id({id})); @mov32(out, word, .{{ .async = true }}); }}
comptime {{
  @bind_local_task(spin, @get_local_task_id({id})); @bind_local_task(back, @get_local_task_id(25)); @bind_data_task(data, @get_data_task_id({source}));
  @initialize_queue(q, .{{ .color = c }}); {output}
  @set_local_color_config(c, .{{ .routes = .{{ .rx = .{{ RAMP }}, .tx = .{{ RAMP }} }} }});
}}
"""


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(("number", "following"), [(8, 8), (20, 20), (8, 25), (30, 25)])
def test_tasks_that_activate_themselves_or_each_other_let_words_in(
    tmp_path: Path, arch: str, number: int, following: int
) -> None:
    """The word is sent at once; the tasks stop when they see it, after a few turns."""
    wse3 = arch == "wse3"
    output = "@initialize_queue(oq, .{ .color = c });" if wse3 else ""
    text = SPIN.format(id=number, next=following, source="q" if wse3 else "c", output=output)
    turns, word = answer(tmp_path, text, arch)
    assert word == 77
    assert turns < 10
