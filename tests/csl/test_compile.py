"""A program of our own goes from text to an image: addresses, symbols, code that is shared, memory that is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from wse_sim.csl import CslError, compile_program
from wse_sim.fabric.vm.opcodes import Op

LAYOUT = """
param n: i16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  for (@range(i16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .n = n, .column = x });
  }
  @export_name("y", [*]f32, false);
  @export_name("scale", fn(f32)void);
}
"""
PROGRAM = """
param memcpy_params: comptime_struct;
param n: i16;
param column: i16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var first: u16 = 3;
var y = @constants([n]f32, 1.5);
const y_ptr: [*]f32 = &y;
fn double(x: f32) f32 { return x + x; }
fn scale(by: f32) void {
  for (@range(i16, n)) |i| { y[i] = y[i] * double(by) + @as(f32, column); }
  sys.unblock_cmd_stream();
}
comptime {
  @export_symbol(y_ptr, "y");
  @export_symbol(scale);
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "layout.csl").write_text(LAYOUT)
    (tmp_path / "pe.csl").write_text(PROGRAM)
    return tmp_path


def test_an_image_has_classes_symbols_and_one_copy_of_equal_functions(folder: Path) -> None:
    program = compile_program(folder / "layout.csl", params={"n": 5}, memcpy=True)
    assert [e.name for e in program.exports] == ["y", "scale"]
    assert program.exports[1].inputs == (("arg0", "f32"),)
    image = program.image
    assert len(image.classes) == 2  # the column is a parameter
    one, two = image.classes
    # y (10 words, at the first even word behind 16) is read through the pointer variable that is exported
    symbol = {s.name: s for s in one.symbols}["y"]
    memory = dict(one.memory)
    assert memory[symbol.address].tolist() == [16]
    assert memory[16].view("float32").tolist() == [1.5] * 5
    # `scale` differs by its constant, `double` and the library do not
    adds = [row for row in image.code.tolist() if row[0] == Op.FADD and row[2] == row[3]]
    assert len(adds) == 1
    assert {s.name: s.address for s in one.symbols}["scale"] != {s.name: s.address for s in two.symbols}[
        "scale"
    ]


def test_the_same_text_gives_the_same_bytes(folder: Path) -> None:
    for out in ("a", "b"):
        compile_program(folder / "layout.csl", params={"n": 5}, memcpy=True, out=folder / out)
    for name in ("out.json", "bin/out_rpc.json", "bin/image.npz"):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes()


def test_what_does_not_fit_is_refused_with_the_sum(folder: Path) -> None:
    with pytest.raises(CslError, match=r"bytes of code and 492\d\d bytes of data"):
        compile_program(folder / "layout.csl", params={"n": 12300}, memcpy=True)


def test_a_fault_shows_its_line_with_the_caret_below_the_column(tmp_path: Path) -> None:
    """As `wse-sim cslc` prints it: the sentence, the source line as it is written, a caret below what is wrong."""
    source = "layout {   @set_rectangle(1, 1);   @no_such_builtin(); }"
    (tmp_path / "layout.csl").write_text(source)
    words = [sys.executable, "-m", "wse_sim.cli", "cslc", str(tmp_path / "layout.csl"), "--arch=wse2"]
    told = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert told.returncode == 2
    first, line, caret = told.stderr.splitlines()[-3:]
    assert first.startswith("wse-sim: ")
    assert line.strip() == source
    assert line[caret.index("^") :].startswith("@no_such_builtin")
