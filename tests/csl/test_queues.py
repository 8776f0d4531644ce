"""Handlers of queues that have become empty, for input and output queues."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wse_sim.csl import CslError

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
