"""Compares scalar code with the published rows: cycles of our own CSL programs, the published number, the error.

``python -m benchmarks.csl_costs [--json]``.  The prices are in ``configs/wafers/wse2.yaml`` (``scalar_*_cycles``).  Each program is written
after the description of the published one; where a row depends on the placement of arrays in banks, both placements are shown.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.csl import compile_program
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

LAYOUT = """
param n: u16;
param k: u16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0), .n = n, .k = k });
  @export_name("run", fn()void);
  @export_name("stamps", [6]u16, false);
}
"""
HEAD = """
param memcpy_params: comptime_struct;
param n: u16;
param k: u16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const time = @import_module("<time>");
var stamps = @zeros([6]u16);
comptime { @export_symbol(run); @export_symbol(stamps, "stamps"); }
"""
REGISTERS = """
const d = @get_dsr(dsr_dest, 0);
const s0 = @get_dsr(dsr_src0, 0);
const s1 = @get_dsr(dsr_src1, 0);
fn load() void {
  @load_to_dsr(d, C_dsd, .{ .save_address = false });
  @load_to_dsr(s0, C_dsd, .{ .save_address = false });
  @load_to_dsr(s1, A_dsd, .{ .save_address = false });
}
"""
SUMMA = """
var A = @zeros([n * k + 1]f32);
var B = @zeros([k * k]f32);
var C = @zeros([n * k]f32);
fn run() void {
  for (@range(i16, k)) |kk| {
    var c_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> C[i] });
    const a_dsd = @increment_dsd_offset(@get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> A[i + OFF] }), kk * @as(i16, n), f32);
    for (@range(i16, k)) |j| {
      const b = B[j * @as(i16, k) + kk];
      @fmacs(c_dsd, c_dsd, a_dsd, b);
      c_dsd = @increment_dsd_offset(c_dsd, @as(i16, n), f32);
    }
  }
  sys.unblock_cmd_stream();
}
"""
ARRAYS = """
var A = @zeros([n]f32);
var B = @zeros([k]f32);
var C = @zeros([n]f32);
const A_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> A[i] });
const C_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> C[i] });
"""
GEMM = (
    ARRAYS
    + REGISTERS
    + """
fn run() void {
  load();
  var j: i16 = 0;
  while (j < @as(i16, k)) : (j += 1) {
    const b = B[j];
    @set_dsr_base_addr(s1, &A);
    @fmacs(d, s0, s1, b);
  }
  sys.unblock_cmd_stream();
}
"""
)
SPARSE = (
    """
var value = @zeros([64]f32);
var A = @zeros([512]f32);
var C = @zeros([512]f32);
var rows = @zeros([64]u32);
var cols = @zeros([64]u32);
const A_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> A[i] });
const C_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> C[i] });
var count: u32 = 0;
"""
    + REGISTERS
    + """
fn run() void {
  count = @as(u32, k);
  load();
  var j: u32 = 0;
  while (j < count) : (j += 1) {
    const r = rows[j] * @as(u32, n);
    const c = cols[j] * @as(u32, n);
    @set_dsr_base_addr(s0, &C[r]);
    @set_dsr_base_addr(s1, &A[c]);
    FMACS
  }
  sys.unblock_cmd_stream();
}
"""
)
FMULS = """
var B = @zeros([n + 1]f32);
var C = @zeros([n]f32);
const B_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> B[i + OFF] });
const C_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> C[i] });
const C_dsr = @get_dsr(dsr_src0, 1);
const B_dsr = @get_dsr(dsr_src1, 0);
fn run() void {
  @load_to_dsr(B_dsr, B_dsd);
  @load_to_dsr(C_dsr, C_dsd);
  time.enable_tsc();
  time.get_timestamp(@ptrcast(*[3]u16, &stamps[0]));
  @fmuls(C_dsr, C_dsr, B_dsr);
  time.get_timestamp(@ptrcast(*[3]u16, &stamps[3]));
  sys.unblock_cmd_stream();
}
"""


def finished(text: str, n: int, k: int, arch: str = "wse2") -> Session:
    """Run the program `text` on one core and return its session."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "layout.csl").write_text(LAYOUT)
        (Path(folder) / "pe.csl").write_text(HEAD + text)
        program = compile_program(
            Path(folder) / "layout.csl", memcpy=True, arch=arch, params={"n": n, "k": k}
        )
    session = Session(program.image, load_wafer(arch))
    session.launch(0, 0, 1, 1, "run")
    if session.advance("commands").reason != "asked":
        raise SystemExit(f"a program stopped: {[str(w) for w in session.status()]}")
    return session


def per_turn(text: str, n: int) -> float:
    """Return the cycles of a turn of the loop, from runs of 10 and 50 turns."""
    return (finished(text, n, 50).cycle - finished(text, n, 10).cycle) / 40


def between_stamps(text: str, n: int, k: int) -> int:
    """Return the cycles between the two time stamps of a program."""
    session = finished(text, n, k)
    (symbol,) = [s for s in session.image.classes[0].symbols if s.name == "stamps"]
    stamps = session.peek(0, 0, symbol.address, 6).astype(np.int64)
    weights = 1 << np.array([0, 16, 32], np.int64)
    return int((stamps[3:] - stamps[:3]) @ weights)


def rows() -> list[dict[str, Any]]:
    """Return name, our cycles and published cycles of every row."""
    found: list[tuple[str, float, float]] = []
    for offset, label in ((1, "other banks"), (0, "same bank")):
        call = finished(SUMMA.replace("OFF", str(offset)), 14, 14).cycle / 196
        found.append((f"SUMMA inner loop, fmacs of 14, per call ({label})", call, 58.4))
        published = 5130 if offset else 10254
        found.append(
            (
                f"fmuls of 5,124 between time stamps ({label})",
                between_stamps(FMULS.replace("OFF", str(offset)), 5124, 1),
                published,
            )
        )
    for n in (8, 32):
        found.append((f"GEMM loop with loaded registers, fmacs of {n}", per_turn(GEMM, n), 2.04 * n + 21.7))
    empty, full = SPARSE.replace("FMACS", ""), SPARSE.replace("FMACS", "@fmacs(d, s0, s1, value[0]);")
    without = per_turn(empty, 36)
    found.append(("sparse loop without its fmacs", without, 33.7))
    found.append(("sparse loop, the fmacs of 36", per_turn(full, 36) - without, 2.0 * 36 + 6.06))
    return [
        {"row": name, "cycles": ours, "published": theirs, "error": ours / theirs - 1}
        for name, ours, theirs in found
    ]


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description="Prices of scalar code against published rows.")
    parser.add_argument("--json", action="store_true")
    table = rows()
    if parser.parse_args().json:
        print(json.dumps(table, indent=1))
        return
    for row in table:
        print(f"{row['row']:58} {row['cycles']:10.1f} {row['published']:10.1f} {row['error']:+8.1%}")


if __name__ == "__main__":
    main()
