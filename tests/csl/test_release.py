"""Rules of SDK 2.10 beside those of 1.4, and what an operation on registers costs before it issues."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wse_sim.csl import CompiledProgram, CslError, compile_program
from wse_sim.csl import types as ty
from wse_sim.csl.colors import read_route
from wse_sim.csl.host.commands import check_case, find_cases, parse_cslc
from wse_sim.csl.release import integer_params, release_of
from wse_sim.csl.values import Operand, Value
from wse_sim.errors import WseError
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

from .machine import Machine, compile_text

ARCHES = ("wse2", "wse3")
LAYOUT = """
param stream: i16 = 7;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1, .MEMCPYD2H_1 = stream });
layout {
  @set_rectangle(2, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0), .is_sender = true });
  @set_tile_code(1, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(1), .is_sender = false });
  for (@range(u16, 2)) |k| {
    const c = @get_color(4 + k);
    @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
    @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  }
  @export_name("run", fn()void);
  @export_name("b", [*]u32, true);
}
"""
PROGRAM = """
param memcpy_params;
param is_sender: bool;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const tile_config = @import_module("<tile_config>");
const oq = @get_output_queue(2);
const iq = @get_input_queue(3);
const first = @get_color(4);
const second = @get_color(5);
var a = [3]u32{ 11, 22, 33 };
var b = @zeros([2, 3]u32);
var b_ptr: [*]u32 = &b; // of a matrix
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[i] });
const b_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> b[0, i] });
const next_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> b[1, i] });
const in = @get_dsd(fabin_dsd, .{ .extent = 3, .input_queue = iq });
const out = @get_dsd(fabout_dsd, if (@is_arch("wse3")) .{ .extent = 3, .output_queue = oq } else .{ .extent = 3, .fabric_color = first, .output_queue = oq });
const again = @get_dsd(fabout_dsd, if (@is_arch("wse3")) .{ .extent = 3, .output_queue = oq } else .{ .extent = 3, .fabric_color = second, .output_queue = oq });
const to_host = sys.get_streaming_fabout_dsd(@get_color(@bitcast(u16, sys.MEMCPYD2H_1)), 1, @get_output_queue(3));
fn run() void {
  if (is_sender) {
    @mov32(out, a_dsd);
    if (@is_arch("wse3")) {
      var empty = false;
      while (!empty) { empty = tile_config.output_queue_status.is_empty(tile_config.output_queue_status.get(), oq); }
      tile_config.output_queue_config.encode_output_queue(2, @get_int(second));
    }
    @mov32(again, a_dsd);
  } else {
    @mov32(b_dsd, in);
    tile_config.input_queue_config.encode_input_queue(3, @get_int(second), false);
    @mov32(next_dsd, in);
  }
  sys.unblock_cmd_stream();
}
comptime {
  if (!is_sender) { @initialize_queue(iq, .{ .color = first }); }
  @initialize_queue(oq, if (@is_arch("wse3")) .{ .color = first } else .{});
  @initialize_queue(@get_output_queue(3), if (@is_arch("wse3")) .{ .color = @get_color(@bitcast(u16, sys.MEMCPYD2H_1)) } else .{});
  @block(if (@is_arch("wse3")) @get_data_task_id(iq) else @get_data_task_id(first));
  @export_symbol(run);
  @export_symbol(b_ptr, "b");
}
"""


def compiled(
    folder: Path, program: str, arch: str, sdk: str = "", *, strict: bool = False
) -> CompiledProgram:
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(program)
    return compile_program(folder / "layout.csl", arch=arch, memcpy=True, sdk=sdk, strict=strict)


@pytest.mark.parametrize("arch", ARCHES)
def test_queues_give_inputs_their_color(tmp_path: Path, arch: str) -> None:
    """Three words on each of two colors through one queue of the reader, whose color changes between them; the host's stream is a number."""
    program = compiled(tmp_path, PROGRAM, arch)
    assert 7 in program.image.host_colors
    session = Session(program.image, load_wafer(arch))
    session.launch(0, 0, 2, 1, "run")
    assert session.advance("commands").reason == "asked"
    reader = program.image.classes[program.image.core_class[1]]
    (pointer,) = [s for s in reader.symbols if s.name == "b"]
    address = int(session.peek(1, 0, pointer.address, 1)[0])
    assert session.peek(1, 0, address, 12).view(np.uint32).tolist() == [11, 22, 33] * 2


def test_inputs_without_a_color_are_refused(tmp_path: Path) -> None:
    """No queue has a color, or the release is 1.4: one sentence and the line of the descriptor."""
    line = PROGRAM[: PROGRAM.index("const in =")].count("\n") + 1
    for text, sdk, words in (
        (PROGRAM.replace("if (!is_sender) {", "if (false) {"), "", "input_queue 3 has no color either"),
        (PROGRAM, "1.4", "the color of its queue counts with --sdk 2.10"),
    ):
        with pytest.raises(CslError) as fault:
            compiled(tmp_path, text, "wse2", sdk)
        assert words in fault.value.sentence
        assert fault.value.line == line


def test_which_release_holds(tmp_path: Path) -> None:
    """What sources of 1.4 show counts in strict compilations; --sdk says it always.  Pointers made of matrices are legal in both."""
    older = "const none: comptime_struct = .{}; " + PROGRAM
    for text, sdk, strict, is_legal in (
        (PROGRAM, "", True, True),
        (older, "", False, True),
        (older, "", True, False),
        (older, "2.10", True, True),
        (PROGRAM, "1.4", False, False),
    ):
        if is_legal:
            compiled(tmp_path, text, "wse2", sdk, strict=strict)
        else:
            with pytest.raises(CslError, match="color of its queue counts with"):
                compiled(tmp_path, text, "wse2", sdk, strict=strict)
    with pytest.raises(WseError, match="--sdk is '3'; it must be"):
        compiled(tmp_path, PROGRAM, "wse2", "3")
    assert parse_cslc(["layout.csl", "--sdk", "1.4"])[1]["sdk"] == "1.4"


def test_the_release_is_found_in_the_sources(tmp_path: Path) -> None:
    """By files that the layout leads to, not by comments."""
    (tmp_path / "layout.csl").write_text('// comptime_struct\nlayout { @set_tile_code(0, 0, "src/pe"); }')
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "pe.csl").write_text(
        'const m = @import_module("more.csl"); const t = @import_module("<time>");'
    )
    (tmp_path / "src" / "more.csl").write_text('const me = @import_module("pe.csl");')
    assert release_of(tmp_path / "layout.csl") == "2.10"
    (tmp_path / "src" / "more.csl").write_text("fn f(a: comptime_struct) void { }")
    assert release_of(tmp_path / "layout.csl") == "1.4"


def test_colors_of_a_python_layout(tmp_path: Path) -> None:
    """As numbers where the parameter is an integer, as colors where it is one."""
    (tmp_path / "pe.csl").write_text(
        "param a: u16;\nparam b: color; // param c: u16\nparam d: i16 = 3;\nparam e: f32;\n"
    )
    assert integer_params(tmp_path / "pe.csl") == {"a", "d"}
    assert integer_params(tmp_path / "none.csl") == set()


def structure(**fields: Operand | dict[str, Operand]) -> Value:
    """An anonymous structure of directions."""
    return Value(
        ty.COMPTIME_STRUCT, {n: structure(**v) if isinstance(v, dict) else v for n, v in fields.items()}
    )


def test_routes_as_bits_are_the_routes_of_directions() -> None:
    """The number that `<directions>` makes, and the structure of the guide: one configuration, with a position for each side."""
    west, ramp, east = (Value(ty.DIRECTION, name) for name in ("WEST", "RAMP", "EAST"))
    both = Value(ty.COMPTIME_STRUCT, {0: east, 1: ramp})
    plain = structure(routes={"rx": west, "tx": both}, switches={"pos1": {"tx": ramp}, "pos2": {"rx": east}})
    bits = {"routes": 2048 | 2 | 16, "pos1": 16, "pos2": 512, "pos3": 0}
    number = {name: Value(ty.U16, word) for name, word in bits.items()}
    given = structure(routes=number.pop("routes"), switches=number)  # type: ignore[arg-type]
    assert read_route(given, 3, "wse2", 0) == read_route(plain, 3, "wse2", 0)
    with pytest.raises(CslError, match="made of the bits of <directions>"):
        read_route(structure(routes=Value(ty.U16, 32)), 3, "wse2", 0)


@pytest.mark.slow
def test_placeholders_of_command_files(tmp_path: Path) -> None:
    """`%python_sdk_paint ARGUMENTS` runs the folder's run.py with them."""
    (tmp_path / "run.py").write_text(
        "import sys\nassert sys.argv[1:] == ['--arch=wse2']\nprint('SUCCESS!')\n"
    )
    (tmp_path / "commands_wse2.sh").write_text("#!/bin/bash\nset -e\n\n%python_sdk_paint --arch=wse2\n")
    [(name, arch, file)] = find_cases(tmp_path)
    case = check_case(name, arch, file)
    assert case.passed, case.reason


REGISTERS = """
var a = @zeros([4]f32);
const d_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const d = @get_dsr(dsr_dest, 0);
const s = @get_dsr(dsr_src1, 0);
fn both() void { @load_to_dsr(d, d_dsd); @load_to_dsr(s, d_dsd); @fmuls(d, s, 2.0); @fmuls(d, s, 2.0); }
fn one() void { @load_to_dsr(d, d_dsd); @load_to_dsr(s, d_dsd); @fmuls(d, s, 2.0); }
fn loads() void { @load_to_dsr(d, d_dsd); @load_to_dsr(s, d_dsd); }
var count: u16 = 0;
fn step() void { count += 1; }
fn called() void { step(); step(); step(); }
fn written() void { count += 1; count += 1; count += 1; }
comptime { @export_symbol(both); @export_symbol(one); @export_symbol(loads); @export_symbol(called); @export_symbol(written); }
"""


@pytest.mark.parametrize("arch", ARCHES)
def test_registers_that_were_loaded_before(tmp_path: Path, arch: str) -> None:
    """Four elements behind the loads wait for them, and the factor is fetched meanwhile; four more issue at once, the factor is in a register.

    A short function costs its body.
    """
    wafer = load_wafer(arch)
    machine = Machine(compile_text(tmp_path, REGISTERS, arch=arch))
    loads, one, both = (machine.call(name) for name in ("loads", "one", "both"))
    assert one - loads == wafer.scalar_vector_start_cycles + 4
    assert both - one == wafer.scalar_vector_issue_cycles + 4
    # In one function the variable stays in a register.
    assert machine.call("called") == machine.call("written") + 2 * (
        wafer.scalar_load16_cycles + wafer.scalar_load_use_cycles
    )
