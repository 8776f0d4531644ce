"""Handlers of queues that have become empty, for input and output queues."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from wse_sim.csl import CompiledProgram, CslError, compile_program
from wse_sim.csl.static.launches import StaticTimes
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

from .machine import Machine, compile_text

PROGRAM = """
const tile_config = @import_module("<tile_config>");
const iq = @get_input_queue(3);
const other = @get_color(5);
const in = @get_dsd(fabin_dsd, .{ .extent = 3, .input_queue = iq });
export var b = @zeros([6]u32);
export var seen = @zeros([2]u32);
const first = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> b[i] });
const second = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> b[i + 3] });
fn emptied() void {
  seen[0] += 1;
  seen[1] = b[2];
  tile_config.input_queue_config.encode_input_queue(3, @get_int(other), false);
  tile_config.queue_flush.exit(iq);
  @mov32(second, in, .{ .async = true });
}
HELPER
fn run() void {
  @mov32(first, in, .{ .async = true });
  @queue_flush(iq);
}
comptime {
  @initialize_queue(iq, .{ .color = @get_color(4) });
  BIND
  @set_local_color_config(@get_color(4), .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @set_local_color_config(other, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @export_symbol(run);
}
"""
HANDLER = ("", "@set_empty_queue_handler(emptied, iq);")
TASK = ("task ended() void { emptied(); }", "@bind_local_task(ended, @get_local_task_id(29));")


def text(helper: str, bind: str) -> str:
    """The program with what follows an empty queue."""
    return PROGRAM.replace("HELPER", helper).replace("BIND", bind)


@pytest.mark.parametrize("executor", ["fast", "oracle"])
@pytest.mark.parametrize("follows", [HANDLER, TASK])
def test_an_input_queue_changes_its_color_once_its_words_are_read(
    tmp_path: Path, follows: tuple[str, str], executor: str
) -> None:
    machine = Machine(compile_text(tmp_path, text(*follows), arch="wse3"), executor)
    machine.session.inject(0, 0, 4, [1, 2, 3], start_cycle=20, port=3)
    machine.session.inject(0, 0, 5, [4, 5, 6], start_cycle=20, port=3)
    machine.session.advance("cycle", cycles=40)
    machine.call("run")
    np.testing.assert_array_equal(machine.read("b"), [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(machine.read("seen"), [1, 3])


@pytest.mark.parametrize(
    ("change", "arch", "said"),
    [
        (("BIND", HANDLER[1]), "wse2", "exists only on wse3"),
        (("BIND", HANDLER[1] * 2), "wse3", "input_queue 3 has a handler already"),
        (("BIND", "@set_empty_queue_handler(emptied, other);"), "wse3", "takes an input or output queue"),
        (("@queue_flush(iq)", "@queue_flush(other)"), "wse3", "takes an input or output queue"),
    ],
)
def test_wrong_handlers_are_refused(tmp_path: Path, change: tuple[str, str], arch: str, said: str) -> None:
    program = PROGRAM.replace(*change).replace("HELPER", "").replace("BIND", "")
    with pytest.raises(CslError, match=said):
        compile_text(tmp_path, program, arch=arch)


SENT = """
param first: bool;
param named: u16;
param bound: u16;
const sys = @import_module("<memcpy/memcpy>", @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 }).get_params(0));
const next: local_task_id = @get_local_task_id(9);
const oq = @get_output_queue(2);
const iq = @get_input_queue(2);
const out = @get_dsd(fabout_dsd, .{ .fabric_color = @get_color(named), .extent = 4, .output_queue = oq });
const in = @get_dsd(fabin_dsd, .{ .fabric_color = @get_color(4), .extent = 4, .input_queue = iq });
const memory = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> data[i] });
var data = [4]u32{ 7, 8, 9, 10 };
var data_ptr: [*]u32 = &data;
fn run() void {
  if (first) { @mov32(out, memory, .{ .async = true, .activate = next }); } else {
    @mov32(memory, in, .{ .async = true, .activate = next });
  }
}
task after() void { sys.unblock_cmd_stream(); }
comptime {
  @bind_local_task(after, next);
  @initialize_queue(oq, .{ .color = @get_color(bound) });
  @initialize_queue(iq, .{ .color = @get_color(4) });
  @export_symbol(data_ptr, "data");
  @export_symbol(run);
}
"""
SENT_LAYOUT = """
param named: u16;
param bound: u16;
layout {
  @set_rectangle(2, 1);
  for (@range(u16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .first = x == 0, .named = named, .bound = bound });
  }
  for ([2]u16{ 4, 5 }) |c| {
    @set_color_config(0, 0, @get_color(c), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
    @set_color_config(1, 0, @get_color(c), .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  }
  @export_name("run", fn()void);
  @export_name("data", [*]u32, true);
}
"""


def sent(folder: Path, arch: str, named: int, bound: int) -> CompiledProgram:
    """Core (0, 0) sends four words by a descriptor that names one color and a queue that may have another;
    core (1, 0) receives color 4."""
    (folder / "layout.csl").write_text(SENT_LAYOUT)
    (folder / "pe.csl").write_text(SENT)
    params = {"named": named, "bound": bound}
    return compile_program(folder / "layout.csl", arch=arch, memcpy=True, params=params)


@pytest.mark.parametrize("executor", ["fast", "oracle"])
@pytest.mark.parametrize(
    ("arch", "named", "bound", "arrives"),
    [
        ("wse3", 4, 4, True),
        ("wse3", 5, 4, True),
        ("wse3", 4, 5, False),
        ("wse2", 4, 5, True),
        ("wse2", 5, 4, False),
    ],
)
def test_words_take_the_color_of_their_queue_on_wse3_and_of_their_descriptor_on_wse2(
    tmp_path: Path, arch: str, named: int, bound: int, arrives: bool, executor: Literal["fast", "oracle"]
) -> None:
    session = Session(sent(tmp_path, arch, named, bound).image, load_wafer(arch), executor=executor)
    session.launch(0, 0, 2, 1, "run")
    assert (session.advance("commands").reason == "asked") is arrives
    assert session.counters()["received"].reshape(-1).tolist() == [0, 4 * arrives]


def test_the_walk_of_a_course_follows_the_color_of_the_queue(tmp_path: Path) -> None:
    """A receiver of color 4 and a queue of color 4: the same cycles as on the machine, whichever color is named."""
    times = []
    for named in (4, 5):
        image = sent(tmp_path, "wse3", named, 4).image
        session = Session(image, load_wafer("wse3"))
        session.advance("cycle", cycles=1000)
        session.launch(0, 0, 2, 1, "run", row_cycles=load_wafer("wse3").launch_row_cycles)
        assert session.advance("commands").reason == "asked"
        launch = StaticTimes(image, load_wafer("wse3")).launch("run")
        assert launch.cycles == session.cycle - 1001
        times.append(launch.cycles)
    assert times[0] == times[1]


def test_another_color_than_that_of_the_queue_gives_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(tmp_path, "wse3", 5, 4)  # two classes of cores share the line
    line = SENT.splitlines().index(next(x for x in SENT.splitlines() if "fabout_dsd" in x)) + 1
    said = capsys.readouterr().err
    assert said.startswith(f"{tmp_path / 'pe.csl'}:{line}:")
    assert said.endswith(
        "warning: the fabout_dsd names color 5, and on wse3 its words take color 4, that of output_queue 2; "
        "name color 4 here, or initialize the queue with color 5\n"
    )
    assert said.count("warning") == 1
    sent(tmp_path, "wse3", 4, 4)
    sent(tmp_path, "wse2", 5, 4)
    assert not capsys.readouterr().err


STATUS = """
const tile_config = @import_module("<tile_config>");
const inputs = tile_config.input_queue_status;
const outputs = tile_config.output_queue_status;
const iq = @get_input_queue(3);
const oq = @get_output_queue(2);
const back = @get_color(6);
const in = @get_dsd(fabin_dsd, .{ .extent = 40, .fabric_color = back, .input_queue = @get_input_queue(2) });
const out = @get_dsd(fabout_dsd, .{ .extent = 40, .fabric_color = back, .output_queue = oq });
var data = @zeros([40]u32);
const memory = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{40} -> data[i] });
export var full = @zeros([6]u16);
fn look() void {
  const now = inputs.get();
  full[0] = @as(u16, inputs.is_full(now, iq));
  full[1] = @as(u16, now.full);
  full[2] = @as(u16, outputs.get().full);
}
fn send() void {
  @mov32(out, memory, .{ .async = true });
  for (@range(u16, 200)) |i| { data[0] += 1; }
  full[3] = @as(u16, outputs.is_full(outputs.get(), oq));
  full[4] = @as(u16, inputs.is_full(inputs.get(), @get_input_queue(2)));
  @mov32(memory, in);
  full[5] = @as(u16, inputs.get().full) + @as(u16, outputs.get().full);
}
comptime {
  @initialize_queue(iq, .{ .color = @get_color(4) });
  @initialize_queue(@get_input_queue(2), .{ .color = back });
  @initialize_queue(oq, if (@is_arch("wse3")) .{ .color = back } else .{});
  @set_local_color_config(@get_color(4), .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @set_local_color_config(back, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } } });
  @export_symbol(look);
  @export_symbol(send);
}
"""


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_queue_is_full_when_it_holds_its_documented_number_of_words(tmp_path: Path, arch: str) -> None:
    """Input queue 3 holds 4 words on both generations: it is full with 4 words and not with 3.  40 words that nothing reads fill the queues
    of a color that leads back to its core (at most 6 and 8 words); once they are read, both are not full."""
    machine = Machine(compile_text(tmp_path, STATUS, arch=arch))
    for words, expected in (([1, 2, 3], [0, 0, 0]), ([4], [1, 8, 0]), ([5], [1, 8, 0])):
        machine.session.inject(0, 0, 4, words, start_cycle=machine.session.cycle + 5, port=3)
        machine.session.advance("cycle", cycles=100)
        machine.call("look")
        np.testing.assert_array_equal(machine.read("full")[:3], expected)
    machine.call("send")
    np.testing.assert_array_equal(machine.read("full")[3:], [1, 1, 8])
