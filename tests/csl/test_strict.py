"""`--strict`: what the language guide refuses is refused with its rule, and compiles without it where it means something."""

from __future__ import annotations

from pathlib import Path

import pytest

from wse_sim.csl import CslError, compile_program
from wse_sim.csl.host.commands import parse_cslc

LAYOUT = 'layout {{ @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{{}}); {more} @export_name("run", fn()void); }}'
RUN = "fn run() void { }"
FABRIC = """const oq = @get_output_queue(2); const iq = @get_input_queue(3); var a = @zeros([2]u16);
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> a[i] });
const o = @get_dsd(fabout_dsd, .{ .extent = 2, .fabric_color = @get_color(1), .output_queue = oq });
const i = @get_dsd(fabin_dsd, .{ .extent = 2, .fabric_color = @get_color(1), .input_queue = iq });
"""
ROUTE = "comptime { @set_local_color_config(@get_color(1), CONFIG); } " + RUN
ENUM = "const E = enum(u16) { A, B, C }; var e: E; var x: u16; "
TASK = "task t() void { } "


def compiled(folder: Path, text: str, arch: str, *, strict: bool, more: str = "") -> None:
    (folder / "layout.csl").write_text(LAYOUT.format(more=more))
    (folder / "pe.csl").write_text(f"{text}\ncomptime {{ @export_symbol(run); }}")
    compile_program(folder / "layout.csl", arch=arch, strict=strict)


# Text, part of the rule, generation, more of the layout.
RULES = {
    "binding in a function": (TASK + "fn run() void { @bind_local_task(t, @get_local_task_id(9)); }", "must appear in a top-level comptime block", "wse2", ""),
    "binding by a call": (TASK + "fn h() void { @bind_local_task(t, @get_local_task_id(9)); } comptime { h(); } " + RUN, "must appear in a top-level comptime block", "wse2", ""),
    "binding in a comptime block of a function": (TASK + "fn run() void { comptime { @bind_local_task(t, @get_local_task_id(9)); } }", "must appear in a top-level", "wse2", ""),
    "queue in a function": ("fn run() void { @initialize_queue(@get_input_queue(2), .{ .color = @get_color(1) }); }", "@initialize_queue can only be called while", "wse2", ""),
    "route in a function": ("fn run() void { @set_local_color_config(@get_color(1), .{ .routes = .{} }); }", "can only be called while a top-level", "wse2", ""),
    "both sides of a position": (ROUTE.replace("CONFIG", ".{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } }, .switches = .{ .pos1 = .{ .rx = EAST, .tx = NORTH } } }"), "one of rx, tx and invalid", "wse2", ""),
    "two inputs of a position": (ROUTE.replace("CONFIG", ".{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } }, .switches = .{ .pos2 = .{ .rx = .{ EAST, NORTH } } } }"), "must be a single direction", "wse2", ""),
    "no input": (ROUTE.replace("CONFIG", ".{ .routes = .{ .rx = .{}, .tx = .{ RAMP } } }"), "a route with tx has no rx", "wse2", ""),
    "no output": (ROUTE.replace("CONFIG", ".{ .routes = .{ .rx = .{ WEST } } }"), "a route with rx has no tx", "wse2", ""),
    "no routes": (ROUTE.replace("CONFIG", ".{ .switches = .{ .pos1 = .{ .rx = EAST } } }"), "without a routes field is not allowed", "wse2", ""),
    "pop mode among routes": (ROUTE.replace("CONFIG", ".{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP }, .pop_mode = .{ .always_pop = true } } }"), "give it in switches", "wse2", ""),
    "a task as a function": (TASK + "fn run() void { t(); }", "'t' is a task and cannot be called", "wse2", ""),
    "a direction twice": (ROUTE.replace("CONFIG", ".{ .routes = .{ .rx = .{ WEST, WEST }, .tx = .{ RAMP } } }"), "rx names a direction twice", "wse2", ""),
    "output queue without color": (FABRIC + "fn run() void { @mov16(o, d, .{ .async = true }); }", "output_queue 2 is never initialized", "wse3", ""),
    "input queue without color": (FABRIC + "fn run() void { @mov16(d, i, .{ .async = true }); }", "input_queue 3 is never initialized", "wse3", ""),
    "data task without color": ("task t(x: u32) void { } comptime { @bind_data_task(t, @get_data_task_id(@get_input_queue(3))); } " + RUN, "input_queue 3 is never initialized", "wse3", ""),
    "color of an output queue": ("comptime { @initialize_queue(@get_output_queue(2), .{ .color = @get_color(1) }); } " + RUN, "takes the queue alone", "wse2", ""),
    "priority of a queue": ("comptime { @initialize_queue(@get_input_queue(2), .{ .color = @get_color(1), .priority = .{ .high = true } }); } " + RUN, "has no .priority", "wse3", ""),
    "table of a queue": ("comptime { @initialize_queue(@get_input_queue(2), .{ .color = @get_color(1), .ctrl_table_id = 2 }); } " + RUN, "exists only on wse3", "wse2", ""),
    "register of sources as destination": (FABRIC + "const r = @get_dsr(dsr_src1, 1); fn run() void { @load_to_dsr(r, d); @mov16(r, d); }", "must be a dsr_dest or a dsr_src0", "wse2", ""),
    "register of destinations as source": (FABRIC + "const r = @get_dsr(dsr_dest, 1); fn run() void { @load_to_dsr(r, d); @mov16(d, r); }", "must be a dsr_src0 or a dsr_src1", "wse2", ""),
    "fabric input in a destination": (FABRIC + "const r = @get_dsr(dsr_dest, 1); fn run() void { @load_to_dsr(r, i); }", "cannot be loaded to a dsr_dest", "wse2", ""),
    "fabric output in a source": (FABRIC + "const r = @get_dsr(dsr_src0, 1); fn run() void { @load_to_dsr(r, o); }", "cannot be loaded to a dsr_src0", "wse2", ""),
    "a FIFO first": (FABRIC + "var b = @zeros([8]u16); const f = @allocate_fifo(b); fn run() void { _ = @add16(d, f, d); }", "must not be the first source", "wse2", ""),
    "activate and unblock": (FABRIC + TASK + "fn run() void { @mov16(o, d, .{ .async = true, .activate = t, .unblock = t }); } comptime { @bind_local_task(t, @get_local_task_id(9)); }", "at most one of activate and unblock", "wse2", ""),
    "an enum not covered": (ENUM + "fn run() void { switch (e) { E.A => { x = 1; }, E.B => { x = 2; } } }", "covers no C of the enum", "wse2", ""),
    "an enum not covered as a value": (ENUM + "fn run() void { x = switch (e) { E.A => 1 }; }", "covers no B, C of the enum", "wse2", ""),
    "a case twice": (ENUM + "fn run() void { switch (e) { E.A => { x = 1; }, E.A => { x = 2; }, else => {} } }", "the case A occurs twice", "wse2", ""),
    "a case twice of a known value": ("const E = enum(u16) { A, B }; const e = E.A; var x: u16; fn run() void { switch (e) { E.A => { x = 1; }, E.A, E.B => { x = 2; } } }", "the case A occurs twice", "wse2", ""),
    "an integer not covered": ("var e: i16; var x: u16; fn run() void { switch (e) { -5, 0 => { x = 1; } } }", "not all possible 'i16' values are covered", "wse2", ""),
    "type of a symbol": ("var x: u16; fn run() void { x = 1; } comptime { @export_symbol(x); }", "'x' has type 'u16' here and 'i16'", "wse2", '@export_name("x", i16, true);'),
    "type of a function": ("fn g(x: f32) void { } fn run() void { } comptime { @export_symbol(g); }", "both must be the same", "wse2", '@export_name("g", fn(u16)void);'),
    "a constant as mutable": ("var a = @zeros([2]u16); const p: [*]u16 = &a; fn run() void { a[0] = 1; } comptime { @export_symbol(p); }", "as mutable, and here it is a constant", "wse2", '@export_name("p", [*]u16, true);'),
    "a name that the layout lacks": ("var x: u16; fn run() void { x = 1; } comptime { @export_symbol(x); }", "the layout exports no name 'x'", "wse2", ""),
    "an array as a name": (RUN, "arrays are exported by a pointer", "wse2", '@export_name("x", [3]u16, true);'),
    "a color that is not routable": ("const c = @get_color(25); fn run() void { _ = @get_int(c); }", "the color must be 0 to 23", "wse2", ""),
    "operands of two widths": ("var a: i16; var b: i32; fn run() void { b = a + b; }", "both operands must have exactly the same type", "wse2", ""),
    "a comparison of two widths": ("var a: i16; var b: i32; fn run() void { if (a < b) { a = 1; } }", "both operands must have exactly the same type", "wse2", ""),
    "a signed amount": ("var a: i16; var b: i16; fn run() void { a = a << b; }", "it must be unsigned", "wse2", ""),
    "an array of arrays": ("var a: [3][2]u16; fn run() void { _ = @element_count(@type_of(a)); }", "must not be arrays", "wse2", ""),
    "division by zero": ("const f = 1.0 / 0.0; var a: f32; fn run() void { a = f; }", "divided by zero", "wse2", ""),
    "bytes in a descriptor": ("var a = @zeros([4]i8); const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] }); fn run() void { @mov16(d, 1); }", "have 16 or 32 bits", "wse2", ""),
    "an activated data task": ("task t(x: u32) void { } fn run() void { @activate(@get_data_task_id(@get_color(9))); } comptime { @bind_data_task(t, @get_data_task_id(@get_color(9))); }", "takes a local_task_id", "wse2", ""),
    "an id without a task": ("fn run() void { @activate(@get_local_task_id(9)); }", "is bound to no local task", "wse2", ""),
    "a task without an id": ("task t() void { } fn run() void { }", "the task 't' is bound to no id", "wse2", ""),
    "an immutable name": ("var x: i16; fn run() void { x = 1; } comptime { @export_symbol(x); }", "as immutable, and here it is a 'var'", "wse2", '@export_name("x", i16, false);'),
    "a part of a variable": ("var a = @zeros([4]i16); fn run() void { a[0] = 1; } comptime { @export_symbol(a[0], \"x\"); }", "'x' is a part of 'a'", "wse2", '@export_name("x", i16, true);'),
    "an array in a function's type": (RUN, "arrays are exported by a pointer", "wse2", '@export_name("g", fn([3]u16)void);'),
    "a compile-time type in a function's type": (RUN, "use a type of run time", "wse2", '@export_name("g", fn(comptime_int)void);'),
    "an enum as a name": (RUN, "use the integer below it, u16", "wse2", 'const E = enum(u16) { A }; @export_name("x", E, true);'),
    "an unreached name": ("fn g() u16 { return nothing; } " + RUN, "'nothing' is not declared", "wse2", ""),
    "an unreached type": ("fn g(x: f32) i16 { return x; } " + RUN, "expected a value of type 'i16'", "wse2", ""),
    "an unreached call": ("fn h(x: u16) void { } fn g() void { h(); } " + RUN, "'h' takes 1 argument", "wse2", ""),
    "an unreached parameter": ("fn g(x: nothing) void { } " + RUN, "'nothing' is not declared", "wse2", ""),
    "the address of a comptime variable": ("fn run() void { comptime var x: u16 = 1; const p = &x; _ = p.*; }", "'x' is a comptime variable, which has no address", "wse2", ""),
    "the address of a literal": ("var x: i16; fn run() void { const p = &(([2]i16{ 0, 7 })[1]); x = p.*; }", "only variables have an address", "wse2", ""),
    "a label in itself": ("var x: i16; fn run() void { foo: for (@range(i16, 3)) |i| { foo: for (@range(i16, 3)) |j| { x = j + i; } } }", "the label 'foo' is in use", "wse2", ""),
    "an exported plain struct": ("const S = struct { x: i16 }; export var s: S = S{ .x = 1 }; fn run() void { s.x = 1; }", "make it extern or packed", "wse2", ""),
    "a switch over a literal": ("var x: i16; fn run() void { switch (5) { 5 => { x = 1; }, else => {} } }", "the subject of a switch has type 'comptime_int'", "wse2", ""),
    "an invalid that is false": (RUN, "the invalid of pos1 must be true", "wse2", "@set_color_config(0, 0, @get_color(1), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } }, .switches = .{ .pos1 = .{ .invalid = false } } });"),
    "a filter's field of another kind": (RUN, "a filter of kind range has no field 'limit1'", "wse2", "@set_color_config(0, 0, @get_color(1), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } }, .filter = .{ .kind = .{ .range = true }, .limit1 = 3 } });"),
    "one enum as another": ("const A = enum(u16) { p }; const B = enum(u16) { q }; var a: A; var b: B; fn run() void { b = @as(B, a); }", "a value of one enum is not a value of another", "wse2", ""),
    "not of a literal": ("var x: i16; fn run() void { x = ~5; }", "'~' of a comptime_int", "wse2", ""),
    "a table of control tasks": (RUN + " comptime { @set_control_task_table(.{ .stride = 9 }); }", ".stride is 9", "wse3", ""),
    "two tables of control tasks": (RUN + " comptime { @set_control_task_table(); @set_control_task_table(); }", "is called twice", "wse3", ""),
    "a table of control tasks on wse2": (RUN + " comptime { @set_control_task_table(); }", "exists only on wse3", "wse2", ""),
    "teardown twice": (TASK + "fn h() void { } comptime { @bind_local_task(t, @get_local_task_id(29)); @set_teardown_handler(h, @get_color(1)); } " + RUN, "task id 29 is that of teardown", "wse2", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rules_of_the_guide(tmp_path: Path, name: str) -> None:
    """Refused with one sentence and a place; without --strict the program compiles, as it did."""
    text, words, arch, more = RULES[name]
    with pytest.raises(CslError) as fault:
        compiled(tmp_path, text, arch, strict=True, more=more)
    assert words in fault.value.sentence, fault.value.sentence
    assert fault.value.line > 0
    compiled(tmp_path, text, arch, strict=False, more=more)


ALWAYS = {
    "parentheses without end": ("fn run() void { var x: u16 = " + "(" * 5000 + "1" + ")" * 5000 + "; _ = x; }", "nested too deeply"),
    "a fabric input as destination": (FABRIC + "fn run() void { @mov16(i, d, .{ .async = true }); }", "the destination of @mov16 is a fabin_dsd"),
    "a fabric output as source": (FABRIC + "fn run() void { @add16(d, d, o); }", "a source of @add16 is a fabout_dsd"),
    "an alignment of three": ("var a: u16 align(3) = 1; fn run() void { a = 2; }", "must be a power of two"),
    "an index behind a pointer": ("var a = @zeros([3]i32); fn run() void { const p: [*]i32 = &a; p[1000] = 1; }", "index 1000 is outside the array"),
    "a value of an enum twice": ("const E = enum(u16) { A = 1, B = 1 }; fn run() void { _ = @get_int(E.A); }", "gives the value 1 twice"),
    "a value that an enum cannot hold": ("const E = enum(u8) { A = 200, B = 300 }; fn run() void { _ = @get_int(E.A); }", "300 does not fit type 'u8'"),
    "a float in an operation of integers": (FABRIC + "fn run() void { @add16(d, d, 1.5); }", "@add16 computes with integers, found 'f16'"),
    "an import without its parameter": ('const m = @import_module("<memcpy/get_params>", .{ .height = 1 }); const g = m.get_params(0); fn run() void { } comptime { @comptime_assert(g.width == 1); }', "<memcpy/get_params> needs a value for its parameter 'width'; pass it here"),
    "message passing": ('const m = @import_module("<message_passing>", .{ .input_queue_id = 2, .output_queue_id = 3 }); ' + RUN, "exists only on wse3"),
    "a write through a pointer to const": ("var a = @zeros([4]i32); fn run() void { const p: *const [4]i32 = &a; p.*[2] = 1; }", "read through a pointer to const"),
    "a value without an else": ("var x: i16; fn run() void { x = if (x > 1) 3; }", "add an 'else' with a 'i16'"),
    "a fabric input as output of a map": (FABRIC + "fn f(x: u16) u16 { return x; } fn run() void { @map(f, d, i); }", "the output of @map is a fabin_dsd"),
    "random numbers at compile time": ("const y = @random16(); var x: u16; fn run() void { x = y; }", "@random16 runs on the core only"),
    "no register": ("fn run() void { @set_config(0x100, 1); }", "0x100 is not a configuration register"),
    "a register out of its ranges": ("fn run() void { @set_config(0x7f20, 1, .{ 0x7f30, 0x7f40 }); }", "is in none of the ranges"),
    "a register that nothing wrote": ("comptime { const a = @get_config(0x7f23); @comptime_assert(a == 0); } fn run() void { }", "has no value at compile time"),
    "an option of rotation": (TASK + "comptime { @bind_rotating_tasks(t, t, @get_data_task_id(@get_color(1)), .{}); } fn run() void { }", "exists only on wse3"),
}  # fmt: skip


@pytest.mark.parametrize("name", ALWAYS)
def test_what_means_nothing_is_refused_always(tmp_path: Path, name: str) -> None:
    text, words = ALWAYS[name]
    with pytest.raises(CslError) as fault:
        compiled(tmp_path, text, "wse2", strict=False)
    assert words in fault.value.sentence, fault.value.sentence


def test_a_pointer_to_const_may_point_elsewhere(tmp_path: Path) -> None:
    text = "var a = @zeros([4]i32); var b = @zeros([4]i32); var p: [*]const i32 = &a; fn run() void { p = &b; b[0] = p[0]; }"
    compiled(tmp_path, text, "wse2", strict=True)


def test_a_sound_program_passes(tmp_path: Path) -> None:
    text = FABRIC + ENUM + """
    task t() void { x += 1; }
    fn run() void { @mov16(o, d, .{ .async = true, .activate = t }); switch (e) { E.A => { x = 1; }, E.B, E.C => { x = 2; } } }
    comptime {
      @bind_local_task(t, @get_local_task_id(9)); @initialize_queue(oq, .{ .color = @get_color(1) });
      @set_local_color_config(@get_color(1), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
    }"""  # fmt: skip
    compiled(tmp_path, text, "wse3", strict=True)


UNREACHED = {
    "for compile time": "fn g(comptime t: type) t { return nothing; } fn h(x: anytype) void { nothing(); } fn l() void { @set_color_config(0, 0, x, .{}); }",
    "an arm that is not taken": "const is_on = false; fn g() void { if (is_on) { nothing(); } }",
    "a variable that nothing reads": "var x: u16 = nothing;",  # public examples have some
}


@pytest.mark.parametrize("name", UNREACHED)
def test_unreached_code_that_is_not_looked_at(tmp_path: Path, name: str) -> None:
    compiled(tmp_path, UNREACHED[name] + RUN, "wse2", strict=True)


def test_code_that_one_class_can_compile(tmp_path: Path) -> None:
    """A function needs what only the left core has: it is refused where no core has it."""
    layout = 'layout { @set_rectangle(2, 1); @set_tile_code(0, 0, "pe.csl", .{ .n = LEFT }); @set_tile_code(1, 0, "pe.csl", .{ .n = 2.5 }); }'
    (tmp_path / "pe.csl").write_text(
        "param n; var x: u16; fn g() void { x = n; } comptime { @comptime_assert(n > 0); }"
    )
    (tmp_path / "layout.csl").write_text(layout.replace("LEFT", "3"))
    compile_program(tmp_path / "layout.csl", strict=True)
    (tmp_path / "layout.csl").write_text(layout.replace("LEFT", "3.5"))
    with pytest.raises(CslError, match="expected a value of type 'u16'"):
        compile_program(tmp_path / "layout.csl", strict=True)


def test_unknown_parameters_of_libraries_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(
        tmp_path,
        'const d = @import_module("<debug>", .{ .key = "a", .bufer_size = 3 });' + RUN,
        "wse2",
        strict=True,
    )
    assert "pe.csl:1:11: warning: '<debug>' has no parameter 'bufer_size'" in capsys.readouterr().err


def test_the_command_line_and_the_environment_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_cslc(["layout.csl", "--strict"])[1]["strict"]
    assert not parse_cslc(["layout.csl"])[1]["strict"]
    monkeypatch.setenv("WSE_SIM_CSL_STRICT", "1")
    assert parse_cslc(["layout.csl"])[1]["strict"]
