"""Registers of a WSE-2 router by address, and tasks that activate themselves until another one has run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.csl.machine import Machine, compile_text
from wse_sim.csl import CslError
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer

TWO = """
const line = @get_color(3);
layout {
  @set_rectangle(2, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .is_sender = true });
  @set_tile_code(1, 0, "pe.csl", .{ .is_sender = false });
}
"""
# Bits of the routes: outputs W E S N R from bit 0, inputs from bit 5; of the switch: position 1 in bits 0 to 3, ring mode 12, position 13 and 14.
ROUTES = """
param is_sender: bool;
const line = @get_color(3);
var word = @zeros([1]u32);
var seen = @zeros([4]u16);
const out = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = line, .output_queue = @get_output_queue(2) });
const in = @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = line, .input_queue = @get_input_queue(2) });
const word_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> word[i] });
fn bytes(address: u16) u16 { return 2 * address; }
fn run() void {
  seen[0] = @bitcast(*u16, bytes(0x7f20 + 3)).*;
  seen[1] = @bitcast(*u16, bytes(0x7f40 + 3)).*;
  const routes: u16 = if (is_sender) 0x200 | 0x2 else 0x20 | 0x10;  // ramp to east, west to ramp
  @bitcast(*u16, bytes(0x7f20 + 3)).* = (seen[0] & 0xfc00) | routes;
  @bitcast(*u16, bytes(0x7f40 + 3)).* = 0x1000 | 0xc;               // ring; position 1: in from the ramp
  seen[2] = @bitcast(*u16, bytes(0x7f20 + 3)).*;
  seen[3] = @bitcast(*u16, bytes(0x7f40 + 3)).*;
  if (is_sender) { @mov32(out, @as(u32, 77)); } else { @mov32(word_dsd, in); }
}
comptime {
  @set_local_color_config(line, .{ .routes = .{ .rx = .{ NORTH }, .tx = .{ SOUTH } }, .switches = .{ .pos1 = .{ .tx = EAST } } });
  @initialize_queue(@get_input_queue(2), .{ .color = line });
  @export_symbol(word); @export_symbol(seen); @export_symbol(run);
}
"""


@pytest.mark.parametrize("executor", ["fast", "oracle"])
def test_routes_and_switches_by_address(tmp_path: Path, executor: str) -> None:
    """What the layout set reads back bit by bit; new routes carry a word east; the switch keeps what was written."""
    program = compile_text(tmp_path, ROUTES, TWO)
    session = Session(program.image, load_wafer("wse2"), executor=executor)
    session.launch(0, 0, 2, 1, "run", (), arm=False)
    assert session.advance().reason == "idle"
    for x, routes in ((0, 0x202), (1, 0x30)):
        symbols = {s.name: s for s in program.image.classes[program.image.core_class[x]].symbols}
        before, switch, after, written = session.peek(x, 0, symbols["seen"].address, 4).tolist()
        assert before & 0x3FF == 0x100 | 0x4  # in from the north, out to the south
        assert (
            switch == 0xDD1
        )  # position 1 sends east, positions 2 and 3 are invalid (5, as inputs: 8), no ring mode
        assert after & 0x3FF == routes
        assert written == 0x100C
        if x == 1:
            assert session.peek(x, 0, symbols["word"].address, 2).tolist() == [77, 0]


def test_an_address_without_a_register(tmp_path: Path) -> None:
    """The sentence names the word address; WSE-3 has no public addresses."""
    text = (
        "fn run() void { var a: u16 = 0xfe46; @bitcast(*u16, a).* = 0; }\ncomptime { @export_symbol(run); }"
    )
    program = compile_text(tmp_path, text, arch="wse3")
    session = Session(program.image, load_wafer("wse3"))
    session.launch(0, 0, 1, 1, "run", (), arm=False)
    outcome = session.advance()
    assert outcome.reason == "fault"
    assert "register 32547" in str(outcome.fault)  # 0xfe46 / 2


def test_addresses_of_tile_config_are_those_of_pointers(tmp_path: Path) -> None:
    """0x7f20 is the word of the first color of WSE-2 and a pointer counts bytes; `target` has what differs between generations."""
    text = """
const tile = @import_module("<tile_config>");
const line = @get_color(3);
var seen = @zeros([3]u16);
fn run() void {
  seen[0] = @bitcast(*u16, @as(u16, tile.target.addresses.COLOR_CONFIG) + @get_int(line) * tile.target.word_size).*;
  seen[1] = tile.addresses.COLOR_CONFIG; seen[2] = tile.target.tsc_size_words;
}
comptime { @set_local_color_config(line, .{ .routes = .{ .rx = .{ NORTH }, .tx = .{ SOUTH } } }); @export_symbol(seen); @export_symbol(run); }
"""
    machine = Machine(compile_text(tmp_path, text))
    machine.call("run")
    seen = machine.read("seen").tolist()
    assert (seen[0] & 0x3FF, *seen[1:]) == (0x104, 0xFE40, 3)
    assert "is not public" in text_of_fault(tmp_path, text.replace("COLOR_CONFIG", "SWITCH_CONFIG"))


def text_of_fault(folder: Path, text: str) -> str:
    with pytest.raises(CslError) as fault:
        compile_text(folder, text, arch="wse3")
    return str(fault.value)


def test_tasks_that_activate_themselves_let_others_run(tmp_path: Path) -> None:
    """Two tasks with low ids wait for a flag of a third one by activating themselves: each has its turn."""
    text = """
var turns = @zeros([3]u16);
var is_set: bool = false;
const first = @get_local_task_id(8);
const second = @get_local_task_id(9);
const third = @get_local_task_id(10);
task wait_first() void { turns[0] += 1; if (!is_set) { @activate(first); } }
task wait_second() void { turns[1] += 1; if (!is_set) { @activate(second); } }
task set() void { turns[2] += 1; if (turns[2] == 5) { is_set = true; } else { @activate(third); } }
fn run() void { @activate(first); @activate(second); @activate(third); }
comptime {
  @bind_local_task(wait_first, first); @bind_local_task(wait_second, second); @bind_local_task(set, third);
  @export_symbol(turns); @export_symbol(run);
}
"""
    machine = Machine(compile_text(tmp_path, text))
    machine.call("run")
    assert machine.read("turns").tolist() == [6, 6, 5]  # five rounds, and once more to see the flag
