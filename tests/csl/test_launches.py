"""A launch reaches row after row, as its words travel: begins of the rows, and what cores with clocks of their own see of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wse_sim.csl import CompiledProgram, compile_program
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

ROWS = 6
LAYOUT = """
param rows: u16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = rows });
const down: color = @get_color(1);
layout {
  @set_rectangle(2, rows);
  for (@range(u16, 2)) |x| {
    for (@range(u16, rows)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .sends = y == 0 });
      if (y == 0) {
        @set_color_config(x, y, down, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ SOUTH } } });
      } else if (y == rows - 1) {
        @set_color_config(x, y, down, .{ .routes = .{ .rx = .{ NORTH }, .tx = .{ RAMP } } });
      } else {
        @set_color_config(x, y, down, .{ .routes = .{ .rx = .{ NORTH }, .tx = .{ RAMP, SOUTH } } });
      }
    }
  }
  @export_name("run", fn()void);
  @export_name("stamp", [*]u16, false);
}
"""
PE = """
param memcpy_params: comptime_struct;
param sends: bool;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const time = @import_module("<time>");
const down: color = @get_color(1);
const from_north = @get_input_queue(2);
const to_south = @get_output_queue(2);
var stamp = @zeros([3]u16);
var stamp_pointer: [*]u16 = &stamp;
var word = [1]u32{ 7 };
var came = @zeros([1]u32);
const word_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> word[i] });
const came_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> came[i] });
const out_dsd = @get_dsd(fabout_dsd, .{ .fabric_color = down, .extent = 1, .output_queue = to_south });
const in_dsd = @get_dsd(fabin_dsd, .{ .fabric_color = down, .extent = 1, .input_queue = from_north });
fn run() void {
  time.enable_tsc();
  if (sends) { @mov32(out_dsd, word_dsd); } else { @mov32(came_dsd, in_dsd); }
  time.get_timestamp(@ptrcast(*[3]u16, &stamp));
  sys.unblock_cmd_stream();
}
comptime {
  @export_symbol(run);
  @export_symbol(stamp_pointer, "stamp");
  @initialize_queue(from_north, .{ .color = down });
  if (@is_arch("wse3")) { @initialize_queue(to_south, .{ .color = down }); }
}
"""


def column(folder: Path, arch: str) -> CompiledProgram:
    """Two columns in which the first row sends a word down; every core stamps its arrival by its own clock."""
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(PE)
    return compile_program(folder / "layout.csl", arch=arch, memcpy=True, params={"rows": ROWS})


def launched(compiled: CompiledProgram, arch: str, row_cycles: int, **how: Any) -> tuple[Any, Any]:
    """Cycle at which every row began, from the launch, and stamps (rows, 2) of the cores."""
    session = Session(compiled.image, load_wafer(arch), schedule=True, **how)
    session.advance("cycle", cycles=50)
    session.launch(0, 0, 2, ROWS, "run", row_cycles=row_cycles)
    assert session.advance("commands").reason == "asked"
    picks = session.picks()
    began = picks[picks[:, 2] == 64]  # commands of the host
    pointer = next(s.address for s in compiled.image.classes[0].symbols if s.name == "stamp")
    at = int(session.peek(0, 0, pointer, 1)[0])
    stamps = session.peek_region(0, 0, 2, ROWS, at, 3).astype(np.int64) @ (1 << np.array([0, 16, 32]))
    return {int(core) // 2: int(cycle) - 50 for cycle, core, _, _ in began}, stamps


@pytest.mark.parametrize("how", [{}, {"executor": "oracle"}, {"threads": 3, "in_turns": True}])
def test_rows_begin_one_after_another(tmp_path: Path, how: dict[str, Any]) -> None:
    """Row y begins y times the cycles of a row after the first, whoever runs the program; without a price all begin at once."""
    compiled = column(tmp_path, "wse2")
    assert launched(compiled, "wse2", 5, **how)[0] == {y: 5 * y for y in range(ROWS)}
    assert launched(compiled, "wse2", 0, **how)[0] == dict.fromkeys(range(ROWS), 0)


def test_a_word_that_follows_the_launch_comes_at_the_same_time_of_every_clock(tmp_path: Path) -> None:
    """A public broadcast down a column of WSE-3 arrives in every row at the same cycle of its own clock, which its launch starts."""
    wafer = load_wafer("wse3")
    _, stamps = launched(column(tmp_path, "wse3"), "wse3", wafer.launch_row_cycles)
    assert len(set(stamps[1:].ravel().tolist())) == 1
    _, at_once = launched(column(tmp_path, "wse3"), "wse3", 0)
    assert np.array_equal(np.diff(at_once[1:, 0]), np.full(ROWS - 2, wafer.hop_cycles))


def test_a_core_without_its_command_yet_takes_words_of_others(tmp_path: Path) -> None:
    """A command that is on its way does not keep its core from what it does already: the core is idle, not busy."""
    compiled = column(tmp_path, "wse2")
    session = Session(compiled.image, load_wafer("wse2"))
    session.launch(0, 0, 2, ROWS, "run", row_cycles=100)
    session.advance("cycle", cycles=99)
    assert not session.counters()["busy"][1:].any()
    assert (session.machine.core[2:, S.COMMAND] >= 0).all()
