"""What programs of the first releases say, in programs of a few lines; --strict refuses what the guide of 1.4 refuses (`test_strict.py`)."""

from pathlib import Path

import pytest

from wse_sim.csl.host.arrays import HostError
from wse_sim.csl.host.commands import parse_cslc
from wse_sim.csl.host.record import DebugUtil
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer

from .machine import Machine, compile_text
from .test_optimised import STAYS, TWO

OLD = """
const route = @get_color(3);
const both = @concat_structs(.{ .a = 1, .b = {} }, .{ .a = 1, .b = 2 });
var count: u16 = 0;
var id: u16 = 0;
task bump() void { if (count == 2) { return; } count += 1; }
fn run() void { bump(); bump(); bump(); id = @get_color_id(route) + both.b; }
comptime {
  @bind_local_task(bump, @get_local_task_id(9));
  @set_local_color_config(route, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP }, .pop_mode = .{ .pop_on_advance = true } }, .switches = .{ .pos1 = .{ .tx = RAMP } } });
  @export_symbol(run); @export_symbol(count); @export_symbol(id);
}
"""


def test_a_task_that_is_called_returns_to_its_caller(tmp_path: Path) -> None:
    """Two of three calls count; the color's number is 3, and a field that says nothing gives way."""
    machine = Machine(compile_text(tmp_path, OLD))
    machine.call("run")
    assert (machine.read("count").tolist(), machine.read("id").tolist()) == ([2], [5])


def test_the_pop_mode_among_the_routes_is_that_of_the_switch(tmp_path: Path) -> None:
    new = OLD.replace(", .pop_mode = .{ .pop_on_advance = true } }", " }").replace(
        ".pos1 = .{ .tx = RAMP }", ".pos1 = .{ .tx = RAMP }, .pop_mode = .{ .pop_on_advance = true }"
    )
    images = [compile_text(tmp_path, text).image for text in (OLD, new)]
    assert images[0].configs == images[1].configs
    assert images[0].configs


def test_options_of_one_dash() -> None:
    assert parse_cslc(["-arch=wse3", "layout.csl", "-memcpy"])[1]["arch"] == "wse3"


def test_a_script_may_ask_for_its_debugger_before_it_runs(tmp_path: Path) -> None:
    """What it reads is looked for when it reads."""
    program = compile_text(tmp_path, OLD)
    program.write(tmp_path / "out")
    early = DebugUtil(tmp_path / "out")
    with pytest.raises(HostError, match="no stopped run"):
        early.read_trace(0, 0, "x")


@pytest.mark.parametrize("executor", ["fast", "oracle"])
def test_a_control_wavelet_behind_a_full_operation_stays_for_the_next(tmp_path: Path, executor: str) -> None:
    """The task that it starts reads it as a word: no command, no task (31), no data."""
    text = STAYS.replace(
        "task done() void { ended += 1; }",
        "const one = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> buffer[i] });\n"
        "const word = @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = line, .input_queue = @get_input_queue(2) });\n"
        "task done() void { @mov32(one, word); ended += 1; }",
    )
    program = compile_text(tmp_path, text, TWO)
    session = Session(program.image, load_wafer("wse2"), executor=executor)  # type: ignore[arg-type]
    session.launch(0, 0, 2, 1, "run", (), arm=False)
    assert session.advance().reason == "idle"
    symbols = {s.name: s for s in program.image.classes[program.image.core_class[1]].symbols}
    assert session.peek(1, 0, symbols["buffer"].address, 4).tolist() == [0, 31, 11, 0]
    assert session.peek(1, 0, symbols["ended"].address, 1).tolist() == [1]
