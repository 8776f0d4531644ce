"""What an optimising compiler leaves out costs nothing, and values do not change; what an operation waits for costs its cycles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.csl.machine import Machine, compile_text
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer

ARCHES = ("wse2", "wse3")
LOOPS = """
var x = @zeros([128]i16);
var bound: i16 = 4;
var flag: i16 = 0;
var seen: i16 = 0;
fn four() void { for (@range(i16, 4)) |i| { x[i] += 3; } }
fn eight() void { for (@range(i16, 8)) |i| { x[i] += 3; } }
fn sixty() void { for (@range(i16, 60)) |i| { x[i] += 3; } }
fn hundred() void { for (@range(i16, 100)) |i| { x[i] += 3; } }
fn unknown() void { for (@range(i16, bound)) |i| { x[i] += 3; } }
fn short() void { if (flag < 5) { seen = 11; } else { seen = 22; } }
fn long() void { if (flag < 5) { x[0] = x[1] * x[2] + x[3] * x[4] + x[5] * x[6] + x[7] * x[8]; } }
fn low() void { flag = 1; }
fn high() void { flag = 9; }
comptime {
  @export_symbol(four); @export_symbol(eight); @export_symbol(sixty); @export_symbol(hundred); @export_symbol(unknown);
  @export_symbol(short); @export_symbol(long); @export_symbol(low); @export_symbol(high); @export_symbol(x); @export_symbol(seen);
}
"""


@pytest.mark.parametrize("arch", ARCHES)
def test_loops_of_few_turns_have_no_control(tmp_path: Path, arch: str) -> None:
    """A turn of a long loop pays its addition and its jump, one of a short loop with a known number of turns does not; values are those of Python."""
    wafer = load_wafer(arch)
    machine = Machine(compile_text(tmp_path, LOOPS, arch=arch))
    cycles = {name: machine.call(name) for name in ("four", "eight", "sixty", "hundred", "unknown")}
    control = wafer.scalar_alu16_cycles + wafer.scalar_branch_cycles + wafer.scalar_branch_taken_cycles
    body = (cycles["eight"] - cycles["four"]) / 4
    assert (cycles["hundred"] - cycles["sixty"]) / 40 == body + control
    assert cycles["unknown"] > cycles["four"] + 3 * control
    assert machine.read("x")[[0, 4, 59, 99, 100]].tolist() == [15, 9, 6, 3, 0]


@pytest.mark.parametrize("arch", ARCHES)
def test_short_arms_are_conditional(tmp_path: Path, arch: str) -> None:
    """Both arms of a short `if` take the same cycles; a long arm is jumped over."""
    machine = Machine(compile_text(tmp_path, LOOPS, arch=arch))
    found = []
    for setter in ("low", "high"):
        machine.call(setter)
        found.append((machine.call("short"), machine.read("seen").tolist(), machine.call("long")))
    (first, seen, taken), (second, other, skipped) = found
    assert (seen, other) == ([11], [22])
    assert first == second
    assert skipped < taken


VECTORS = """
const d = @get_dsr(dsr_dest, 1);
const s = @get_dsr(dsr_src0, 1);
const e = @get_dsr(dsr_dest, 2);
var a = @zeros([1]f32);
var b = @zeros([1]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> a[i] });
const b_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> b[i] });
fn dependent() void { @fmuls(d, s, 2.0); @fmuls(d, s, 2.0); @fmuls(d, s, 2.0); }
fn apart() void { @fmuls(e, s, 2.0); @fmuls(e, s, 2.0); @fmuls(e, s, 2.0); }
comptime {
  @load_to_dsr(d, a_dsd); @load_to_dsr(s, a_dsd); @load_to_dsr(e, b_dsd);
  @export_symbol(dependent); @export_symbol(apart);
}
"""


@pytest.mark.parametrize("arch", ARCHES)
def test_an_operation_waits_for_the_element_before_it(tmp_path: Path, arch: str) -> None:
    """Two of three operations read what the one before wrote."""
    machine = Machine(compile_text(tmp_path, VECTORS, arch=arch))
    machine.call("apart")  # the registers are loaded before the first call
    more = machine.call("dependent") - machine.call("apart")
    assert more == 2 * load_wafer(arch).scalar_vector_dependent_cycles


@pytest.mark.parametrize("arch", ARCHES)
def test_a_descriptor_of_two_dimensions_has_more_to_load(tmp_path: Path, arch: str) -> None:
    """An extended DSR, with a stride of two a stride register too; all three of them if the program may change the descriptor."""
    text = """
var a = @zeros([16]f32);
var b = @zeros([16]f32);
const a1 = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
const b1 = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> b[i] });
const a2 = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 4} -> a[4 * i + j] });
const b2 = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 4} -> b[4 * i + j] });
fn line() void { @fmuls(a1, b1, 2.0); }
fn shape() void { @fmuls(a2, b2, 2.0); }
const a3 = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 4} -> a[8 * i + 2 * j] });
const b3 = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 4} -> b[8 * i + 2 * j] });
fn strided() void { @fmuls(a3, b3, 2.0); }
fn moved_line(by: i16) void { @fmuls(@increment_dsd_offset(a1, by, f32), b1, 2.0); }
fn moved_shape(by: i16) void { @fmuls(@increment_dsd_offset(a2, by, f32), b1, 2.0); }
comptime { @export_symbol(line); @export_symbol(shape); @export_symbol(strided); @export_symbol(moved_line); @export_symbol(moved_shape); }
"""
    machine = Machine(compile_text(tmp_path, text, arch=arch))
    wafer = load_wafer(arch)
    extended, stride = wafer.scalar_xdsr_load_cycles, wafer.scalar_dsr_shape_cycles
    assert machine.call("shape") - machine.call("line") == 2 * extended
    assert machine.call("strided") - machine.call("line") == 2 * (extended + stride)
    assert machine.call("moved_shape", 1) - machine.call("moved_line", 1) == extended + 3 * stride


UNCHANGED = """
var a = @zeros([8]f32);
const fixed = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
var read = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
var shorter = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
var pointed = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
var named = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
export var shared = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
const pointer = &pointed;
var sum: u32 = 0;
var constant: u32 = 0xfffffff0;
var changed: u32 = 0xfffffff0;
var negative: i64 = -5000000000;
var low_part: i16 = 0;
var half: f16 = -1.5;
var truth: bool = true;
var twice: f32 = 0.0;
fn typed() void {
  if (truth and negative < -4999999999) { twice = @as(f32, half) * 2.0; }
  const part = @ptrcast(*i16, &word);
  low_part = part.*;
}
var word: u32 = 0x12348765;
fn add_constant() void { sum = 7 + constant; }
fn add_changed() void { sum = 7 + changed; }
fn change() void { changed = 1; }
fn with_fixed() void { @fadds(fixed, fixed, 1.0); }
fn with_read() void { @fadds(read, read, 1.0); }
fn with_shorter() void { @fadds(shorter, shorter, 1.0); }
fn with_pointed() void { @fadds(pointed, pointed, 1.0); }
fn with_named() void { @fadds(named, named, 1.0); }
fn with_shared() void { @fadds(shared, shared, 1.0); }
fn shorten() void { shorter = @set_dsd_length(shorter, 4); }
fn replace() void { pointer.* = @set_dsd_length(pointer.*, 2); }
comptime {
  @export_symbol(with_fixed); @export_symbol(with_read); @export_symbol(with_shorter); @export_symbol(with_pointed);
  @export_symbol(with_named); @export_symbol(with_shared); @export_symbol(shorten); @export_symbol(replace); @export_symbol(named);
  @export_symbol(typed); @export_symbol(twice); @export_symbol(low_part);
  @export_symbol(a); @export_symbol(add_constant); @export_symbol(add_changed); @export_symbol(change); @export_symbol(sum);
}
"""


@pytest.mark.parametrize("arch", ARCHES)
def test_a_descriptor_that_is_only_read_is_a_constant(tmp_path: Path, arch: str) -> None:
    """One that is assigned, pointed to or exported is loaded with its operation, as is every one if the host reaches all variables."""
    wafer = load_wafer(arch)
    more = wafer.scalar_vector_load_cycles - wafer.scalar_vector_start_cycles
    machine = Machine(compile_text(tmp_path, UNCHANGED, arch=arch, memcpy=True))
    known = machine.call("with_fixed")
    assert machine.call("with_read") == known
    for other in ("shorter", "pointed", "named", "shared"):
        assert machine.call(f"with_{other}") == known + more
    assert machine.read("a").tolist() == [6] * 8
    machine.call("shorten")
    machine.call("replace")
    machine.call("with_shorter")
    machine.call("with_pointed")
    assert machine.read("a").tolist() == [8, 8, 7, 7, 6, 6, 6, 6]
    machine = Machine(compile_text(tmp_path, UNCHANGED, arch=arch))
    assert machine.call("with_read") == machine.call("with_fixed") + more


def test_a_number_that_is_only_read_is_a_constant(tmp_path: Path) -> None:
    """Its load and the wait for it are gone, and the sum is the same; another function's assignment keeps the load."""
    wafer = load_wafer("wse2")
    machine = Machine(compile_text(tmp_path, UNCHANGED, memcpy=True))
    cycles = machine.call("add_constant")
    assert machine.read("sum")[0] == 0xFFFFFFF7
    assert machine.call("add_changed") == cycles + wafer.scalar_load32_cycles + wafer.scalar_load_use_cycles
    assert machine.read("sum")[0] == 0xFFFFFFF7
    machine.call("change")
    machine.call("add_changed")
    assert machine.read("sum")[0] == 8
    machine.call("typed")
    assert machine.read("twice")[0] == -3.0
    assert machine.read("low_part")[0] == 0x8765 - 0x10000


CALLS = """
const State = enum(i16) { FIRST, NEXT, LAST };
var x = @zeros([16]i16);
var turn: i16 = 0;
var seen: i16 = 0;
fn state() State {
  if (turn == 1) { return State.FIRST; } else if (turn == 2) { return State.NEXT; }
  return State.LAST;
}
fn long_body() void { for (@range(i16, 16)) |i| { x[i] += x[i] * 3 + turn; } seen += 1; }
fn choice() void {
  switch (state()) {
    State.FIRST => { long_body(); },
    State.NEXT => { seen += 2; },
    State.LAST => { seen += 3; },
  }
}
fn plain() void {
  if (turn == 1) { for (@range(i16, 16)) |i| { x[i] += x[i] * 3 + turn; } seen += 1; }
  else if (turn == 2) { seen += 2; }
  else { seen += 3; }
}
fn mixed(a: u32, b: u32) u32 { if (b > 7) { return (a << 3) ^ (b * 5); } return a | (b << 2); }
var word: u32 = 0;
fn folded() void { word = mixed(5, 9); }
fn written() void { word = 5; }
fn set(t: i16) void { turn = t; }
comptime {
  @export_symbol(choice); @export_symbol(plain); @export_symbol(folded); @export_symbol(written); @export_symbol(set);
  @export_symbol(seen); @export_symbol(word); @export_symbol(x);
}
"""


@pytest.mark.parametrize("arch", ARCHES)
def test_functions_with_one_call_and_their_known_results(tmp_path: Path, arch: str) -> None:
    """A `switch` over the result of a function called once takes the cycles of its `if`s in place; known arguments make a constant."""
    machine = Machine(compile_text(tmp_path, CALLS, arch=arch))
    for turn, step in ((1, 1), (2, 2), (3, 3)):
        machine.call("set", turn)
        before = machine.read("seen")[0]
        ways = machine.call("choice"), machine.call("plain")
        assert machine.read("seen")[0] == before + 2 * step
        assert (
            abs(ways[0] - ways[1]) <= load_wafer(arch).scalar_jump_cycles
        )  # ends of arms lie in another order
    assert machine.call("folded") == machine.call("written")
    machine.call("folded")
    assert machine.read("word")[0] == (5 << 3) ^ (9 * 5)


def test_large_variables_begin_at_sixteen_bytes(tmp_path: Path) -> None:
    """Seven words do not fill 16 bytes, nine do; a word address counts two bytes."""
    text = """
var one: i16 = 1;
var small = @zeros([7]i16);
var large = @zeros([9]i16);
var other = @zeros([5]f32);
comptime { @export_symbol(one); @export_symbol(small); @export_symbol(large); @export_symbol(other); }
"""
    program = compile_text(tmp_path, text)
    address = {s.name: s.address for s in program.image.classes[0].symbols}
    assert address["large"] % 8 == address["other"] % 8 == 0
    assert address["small"] == address["one"] + 2  # arrays begin at even words


TWO = """
layout {
  @set_rectangle(2, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .sends = true, .words = 4 });
  @set_tile_code(1, 0, "pe.csl", .{ .sends = false, .words = 4 });
  @set_color_config(0, 0, @get_color(3), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, @get_color(3), .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
}
"""
STAYS = """
param sends: bool;
param words: u16;
const line = @get_color(3);
const ctrl = @import_module("<control>");
var buffer = @zeros([words]u32);
var ended: u16 = 0;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{words} -> buffer[i] });
const out = @get_dsd(fabout_dsd, .{ .extent = words, .fabric_color = line, .output_queue = @get_output_queue(2) });
const end = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = line, .output_queue = @get_output_queue(2), .control = true });
const in = @get_dsd(fabin_dsd, .{ .extent = words + 1, .fabric_color = line, .input_queue = @get_input_queue(2) });
task done() void { ended += 1; }
fn run() void {
  if (sends) {
    for (@range(u16, words)) |i| { buffer[i] = 10 + @as(u32, i); }
    @mov32(out, all);
    @mov32(end, ctrl.encode_single_payload(ctrl.opcode.NOP, false, {}, 0));
  } else {
    @mov32(all, in, .{ .async = true, .on_control = .{ .activate = @get_local_task_id(9) } });
  }
}
comptime {
  @bind_local_task(done, @get_local_task_id(9));
  @initialize_queue(@get_input_queue(2), .{ .color = line });
  @export_symbol(buffer); @export_symbol(ended); @export_symbol(run);
}
"""


@pytest.mark.parametrize("executor", ["fast", "oracle"])
def test_a_bounded_operation_waits_for_its_control_wavelet(tmp_path: Path, executor: str) -> None:
    """A destination of four words, a source of five: the control wavelet behind the fourth word ends the operation."""
    program = compile_text(tmp_path, STAYS, TWO)
    session = Session(program.image, load_wafer("wse2"), executor=executor)  # type: ignore[arg-type]
    session.launch(0, 0, 2, 1, "run", (), arm=False)
    assert session.advance().reason == "idle"
    symbols = {s.name: s for s in program.image.classes[program.image.core_class[1]].symbols}
    assert session.peek(1, 0, symbols["buffer"].address, 8).tolist() == [10, 0, 11, 0, 12, 0, 13, 0]
    assert session.peek(1, 0, symbols["ended"].address, 1).tolist() == [1]
