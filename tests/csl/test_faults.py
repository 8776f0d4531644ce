"""Malformed programs: one error each with its line and a sentence that says what is allowed; never a traceback."""

import os
import re
from pathlib import Path

import pytest

from wse_sim.csl import CslError, compile_program
from wse_sim.csl.host.faulted import told_fault
from wse_sim.csl.judge import judge
from wse_sim.errors import WseError

from .machine import LAYOUT, Machine, compile_text

# Text of the program, part of the sentence; `^` marks the line of the error (taken out before compiling).
PROGRAMS = {
    "name": ("fn f() void { ^x = 3; }", "'x' is not declared"),
    "close name": ("var count: u16; fn f() void { ^cuont = 3; }", "did you mean 'count'?"),
    "twice": ("var a: u16;\n^var a: u16;", "'a' is declared twice in this file"),
    "twice local": ("fn f() void { const a = 1;\n^const a = 2; }", "'a' is declared twice in this block"),
    "constant": ("const a: u16 = 1; fn f() void { ^a = 3; }", "'a' is a constant and cannot be assigned"),
    "range of a type": ("^const a: u8 = 256; var b: u16 = a; fn f() void { b = 1; }", "256 does not fit type 'u8' (0 to 255)"),
    "negative": ("var x: u16;\nfn f() void { ^x = -1; }", "-1 does not fit type 'u16'"),
    "mixed types": ("var a: i16; var b: f32; fn f() void { ^a = a + b; }", "'+' between 'i16' and 'f32'; convert one side with @as"),
    "mixed signs": ("var a: i16; var b: u16; fn f() void { ^a = a + b; }", "'+' between 'i16' and 'u16'"),
    "assign wider": ("var a: i16; var b: i32; fn f() void { ^a = b; }", "expected a value of type 'i16', found of type 'i32'; convert with @as"),
    "condition": ("var a: i16; fn f() void { ^if (a) { a = 1; } }", "a condition must be a bool, found 'i16'"),
    "not a bool": ("var a: bool; fn f() void { ^a = !3; }", "'!' of a value of type 'comptime_int' is not defined"),
    "call of a value": ("const a: u16 = 1; fn f() void { ^a(3); }", "a value of type 'u16' cannot be called"),
    "arguments": ("fn g(x: u16) void {} fn f() void { ^g(1, 2); }", "'g' takes 1 arguments but 2 are given"),
    "argument type": ("fn g(x: u16) void {} fn f() void { ^g(1.5); }", "expected a value of type 'u16', found 1.5"),
    "no return": ("^fn g() u16 { } fn f() void { _ = g(); }", "'g' may end without a return; it must return a 'u16'"),
    "return type": ("fn g() u16 { ^return; } fn f() void { _ = g(); }", "the function must return a 'u16'"),
    "comptime recursion": ("fn g(n: u16) u16 { return ^g(n + 1); } const a = g(1); var b = a; fn f() void { b = 1; }", "nested deeper than"),
    "cycle": ("^const a: u16 = b; const b: u16 = a; var c: u16 = a; fn f() void { c = 1; }", "depends on itself"),
    "field": ("const S = struct { a: u16 }; var s: S; fn f() void { ^s.b = 1; }", "'S' has no field 'b'; its fields are a"),
    "missing field": ("const S = struct { a: u16, b: u16 }; var s: S; fn f() void { ^s = .{ .a = 1 }; }", "the field 'b' of 'S' is missing"),
    "extra field": ("const S = struct { a: u16 }; var s: S; fn f() void { ^s = S{ .a = 1, .c = 1 }; }", "'S' has no field 'c'"),
    "field twice": ("const S = struct { a: u16 }; var s: S; fn f() void { s = S{ .a = 1, .a = ^1 }; }", "the field 'a' is given twice"),
    "enum": ("const E = enum(u16) { A, B }; var e: E; fn f() void { e = ^E.C; }", "the enum has no 'C'; it has A, B"),
    "array length": ("var a: [3]u16; fn f() void { ^a = .{ 1, 2 }; }", "takes 3 elements but 2 are given"),
    "index": ("var a: [3]u16; fn f() void { ^a[3] = 1; }", "index 3 is outside the array '[3]u16' (0 to 2)"),
    "dimensions": ("var a: [3, 2]u16; fn f() void { ^a[3] = 1; }", "has 2 dimensions but 1 indices are given"),
    "index type": ("var a: [3]u16; var x: f32; fn f() void { ^a[x] = 1; }", "an index must be an integer, found 'f32'"),
    "no array": ("var a: u16; fn f() void { ^a[0] = 1; }", "a value of type 'u16' has no elements"),
    "negative size": ("^var a: [0 - 3]u16; fn f() void { a[0] = 1; }", "the size of an array is -3"),
    "pointer": ("var a: u16; fn f() void { ^a.* = 1; }", "a value of type 'u16' is not a pointer"),
    "const pointer": ("const a = [2]u16{ 1, 2 }; fn g(p: [*]u16) void { p[0] = 1; } fn f() void { ^g(&a); }", "expected a value of type '[*]u16'"),
    "runtime size": ("var n: u16; fn f() void { ^var a: [n]u16 = .{}; _ = a; }", "known only at run time"),
    "comptime argument": ("var n: u16; fn g(comptime x: u16) void {} fn f() void { ^g(n); }", "must be known at compile time"),
    "division": ("^const a: u16 = 1 / 0; var b: u16 = a; fn f() void { b = 1; }", "division by zero: the right side of '/' is 0"),
    "shift": ("var a: u16; fn f() void { ^a = a << -1; }", "shift by -1"),
    "bitcast": ("var a: u16; fn f() void { ^_ = @bitcast(f32, a); }", "@bitcast from 'u16' (16 bits) to 'f32' (32 bits)"),
    "builtin": ("fn f() void { ^@activat(3); }", "there is no builtin '@activat'; did you mean '@activate'?"),
    "builtin arguments": ("var a: u16; fn f() void { ^a = @as(u16); }", "@as takes 2 arguments but 1 are given"),
    "color range": ("^const c = @get_color(77); fn f() void { _ = c; }", "the color must be 0 to 31"),
    "queue range": ("^const q = @get_output_queue(6); fn f() void { _ = q; }", "the output_queue must be 0 to 5 on wse2"),
    "layout builtin": ("comptime { ^@set_rectangle(1, 1); }", "@set_rectangle belongs in the layout block"),
    "bind": ("fn g() void {} comptime { ^@bind_local_task(g, @get_local_task_id(9)); }", "expected a task, found 'fn()void'"),
    "bind id": ("task t() void {} comptime { @bind_local_task(t, ^9); }", "@bind_local_task takes a value of type 'local_task_id'"),
    "bind twice": (
        "task t() void {} task u() void {}\ncomptime { @bind_local_task(t, @get_local_task_id(9));\n^@bind_local_task(u, @get_local_task_id(9)); }",
        "task id 9 is already bound to 't'",
    ),
    "unbound": ("task t() void {} fn f() void { ^@activate(t); }", "the task 't' is bound to no id"),
    "task argument": ("^task t(x: u64) void {} comptime { @bind_data_task(t, @get_data_task_id(@get_color(1))); }", "it takes one 32-bit or one or two 16-bit numbers"),
    "dsd field": ("const d = @get_dsd(fabin_dsd, ^.{ .extend = 3 }); fn f() void { _ = d; }", "has no field 'extend'; its fields are extent"),
    "dsd extent": ("const d = ^@get_dsd(fabin_dsd, .{ .fabric_color = @get_color(1) }); fn f() void { _ = d; }", "needs .extent"),
    "dsd affine": ("var a: [9]u16; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> ^a[i * i] }); fn f() void { _ = d; }", "must be affine"),
    "dsd variables": ("var a: [9]u16; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = ^|i, j|{3, 3} -> a[i * 3 + j] }); fn f() void { _ = d; }", "takes at most 1 variable"),
    "operands": ("var a: [9]f32; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[i] }); fn f() void { ^@fadds(d, d); }", "@fadds takes 3 operands and options"),
    "operand type": ("var a: [9]f32; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[i] }); fn f() void { @fadds(d, d, ^true); }", "expected a value of type 'f32'"),
    "option": ("var a: [9]f32; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[i] }); fn f() void { @fmovs(d, 0.0, ^.{ .asynch = true }); }", "there is no option 'asynch'"),
    "async memory": ("var a: [9]f32; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[i] }); fn f() void { @fmovs(d, 0.0, ^.{ .async = true }); }", "needs a fabin_dsd, a fabout_dsd or a FIFO"),
    "library": ("const m = ^@import_module(\"<maths>\"); fn f() void { _ = m.x; }", "there is no library <maths>; the libraries are"),
    "file": ("const m = ^@import_module(\"nothing.csl\"); fn f() void { _ = m.x; }", "cannot read 'nothing.csl'"),
    "member": ("const m = @import_module(\"<math>\"); fn f() void { _ = m.^cosinus(1.0); }", "has no 'cosinus'"),
    "assertion": ("comptime { ^@comptime_assert(1 > 2, \"order\"); }", "assertion failed: order"),
    "parameter": ("^param n: u16; var a: u16 = n; fn f() void { a = 1; }", "the parameter 'n' has no value"),
    "break": ("fn f() void { ^break; }", "'break' is outside a loop"),
    "label": ("fn f() void { while (true) { ^break :out; } }", "there is no loop or block with the label 'out'"),
    "unrolled": ("var a: u16; fn f() void { ^inline for (@range(u16, 60)) |i| { a = i; } }", "more than 50 iterations"),
    "untyped": ("fn f() void { ^var a = 3; a += 1; }", "the variable 'a' needs a type"),
    "missing else": ("^const a: u16 = if (false) 3; var b: u16 = a; fn f() void { b = 1; }", "there is no 'else' that gives a value"),
    "symbol": ("^comptime { @export_symbol(3); }", "@export_symbol takes a variable or a function"),
    "queue twice": (
        "comptime { @initialize_queue(@get_input_queue(2), .{ .color = @get_color(1) });\n^@initialize_queue(@get_input_queue(2), .{ .color = @get_color(2) }); }",
        "input_queue 2 is initialized twice",
    ),
}  # fmt: skip

LAYOUTS = {
    "no rectangle": ("^layout { }", "does not call @set_rectangle"),
    "no layout": ("^const a = 1;", "has no layout block"),
    "rectangle twice": ("layout { @set_rectangle(1, 1);\n^@set_rectangle(1, 1); }", "@set_rectangle is called twice"),
    "outside": ("layout { @set_rectangle(1, 1);\n^@set_tile_code(1, 0, \"pe.csl\"); }", "PE (1, 0) is outside the rectangle of 1 x 1 PEs"),
    "code missing": ("^layout { @set_rectangle(2, 1); @set_tile_code(0, 0, \"pe.csl\"); }", "PE (1, 0) has no code"),
    "code twice": ("layout { @set_rectangle(1, 1); @set_tile_code(0, 0, \"pe.csl\");\n^@set_tile_code(0, 0, \"pe.csl\"); }", "already has its code"),
    "direction": (
        "layout { @set_rectangle(1, 1);\n^@set_color_config(0, 0, @get_color(1), .{ .routes = .{ .rx = .{ UP }, .tx = .{ RAMP } } }); }",
        "'UP' is not declared",
    ),
    "route field": (
        "layout { @set_rectangle(1, 1);\n^@set_color_config(0, 0, @get_color(1), .{ .routes = .{ .in = .{ WEST } } }); }",
        "routes have no field 'in'; their fields are rx, tx",
    ),
    "not a color": ("layout { @set_rectangle(1, 1);\n^@set_color_config(0, 0, 3, .{}); }", "expected a color, found 'comptime_int'"),
    "position": (
        "layout { @set_rectangle(1, 1);\n^@set_color_config(0, 0, @get_color(1), .{ .switches = .{ .current_switch_pos = 2 } }); }",
        "current_switch_pos is 2, and pos2 is not given",
    ),
    "program builtin": ("layout { @set_rectangle(1, 1);\n^@export_symbol(3); }", "@export_symbol belongs in the program of a PE"),
}  # fmt: skip


def check(folder: Path, marked: str, sentence: str, layout: bool) -> None:
    line = marked[: marked.index("^")].count("\n") + 1
    text = marked.replace("^", "", 1)
    program, top = ("var a: u16;", text) if layout else (text, LAYOUT)
    if not layout and "fn f()" in text:
        program += "\ncomptime { @export_symbol(f); }"
    with pytest.raises(CslError) as fault:
        compile_text(folder, program, top)
    assert sentence in fault.value.sentence, str(fault.value)
    assert fault.value.line == line, str(fault.value)
    name = "layout.csl" if layout else "pe.csl"
    assert re.match(rf".*{name}:{line}:\d+: ", str(fault.value))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(tmp_path: Path, name: str) -> None:
    check(tmp_path, *PROGRAMS[name], layout=False)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(tmp_path: Path, name: str) -> None:
    check(tmp_path, *LAYOUTS[name], layout=True)


def test_faults_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "layout.csl").write_text(LAYOUT)
    (tmp_path / "pe.csl").write_text("var a: u16;")
    path = tmp_path / "layout.csl"
    with pytest.raises(WseError, match="the architecture is 'wse9'; it must be wse2 or wse3"):
        compile_program(path, arch="wse9")
    with pytest.raises(WseError, match="needs --fabric-dims=8,3 at least; 7,3 are given"):
        compile_program(path, memcpy=True, fabric_dims=(7, 3), fabric_offsets=(4, 1))
    with pytest.raises(WseError, match="the offsets are 3,1; with memcpy they must be at least 4,1"):
        compile_program(path, memcpy=True, fabric_dims=(9, 3), fabric_offsets=(3, 1))
    with pytest.raises(WseError, match="17 channels are requested; the range is 1 to 16"):
        compile_program(path, channels=17)
    with pytest.raises(
        CslError, match=r"there is no parameter 'm' in 'layout\.csl'; its parameters are none"
    ):
        compile_program(path, params={"m": 3})
    with pytest.raises(WseError, match="there is no file"):
        compile_program(tmp_path / "other.csl")


def test_a_fault_at_run_time_shows_its_line(tmp_path: Path) -> None:
    """Place, source line and caret on lines of their own; no line of a source that changed after it was compiled."""
    line = "  x[0] = x[k] + x[1];"
    text = f"var x = @zeros([8]i16);\nvar k: i16 = 30000;\nfn run() void {{\n{line}\n}}\ncomptime {{ @export_symbol(run); }}"
    machine = Machine(compile_text(tmp_path, text))
    machine.session.launch(0, 0, 1, 1, "run", (), arm=False)
    outcome = machine.session.advance()
    said = told_fault(outcome.fault, outcome.cycle).split("\n")
    assert "address 30016 is outside the memory" in said[0]
    assert said[1].endswith("pe.csl:4:11")
    assert said[2:] == [f"    {line}", f"    {' ' * line.index('[k')}^"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "out.json").write_text("{}")
    os.utime(tmp_path / "out" / "out.json", (0, 0))
    assert told_fault(outcome.fault, outcome.cycle, tmp_path / "out").split("\n") == said[:2]


@pytest.mark.parametrize("name", ["TIMESTAMP_COUNTER", "PERF_COUNTER_CONTROL"])
def test_addresses_of_counters_name_the_library(tmp_path: Path, name: str) -> None:
    text = f"""
    const config = @import_module("<tile_config>");
    var x: u16 = 0;
    fn run() void {{ x = @bitcast(*u16, @as(u16, config.addresses.{name})).*; }}
    comptime {{ @export_symbol(run); }}
    """
    with pytest.raises(CslError, match=r"addresses of the counters are not public.*use <time>"):
        compile_text(tmp_path, text)


def test_the_judge_places_a_fault_at_run_time() -> None:
    layout = (
        'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{}); @export_name("run", fn()void); }'
    )
    text = "var x = @zeros([8]i16);\nvar k: i16 = 30000;\nfn run() void { x[0] = x[k]; }\ncomptime { @export_symbol(run); }"
    answer = judge({"files": {"layout.csl": layout, "pe.csl": text}, "calls": ["run"], "memcpy": False})
    assert (answer.passed, answer.file, answer.line) == (False, "pe.csl", 3), answer
    assert answer.column > 0
