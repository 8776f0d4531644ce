"""Programs that would not end, or are nested without end, are refused in a sentence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.csl.machine import compile_text
from tests.generated import examples
from wse_sim.csl.compiler import CompiledProgram, _sum
from wse_sim.errors import WseError

LOOPS = (
    "while (true) {}", "var i: i32 = 0; while (i < 10) {}", "for (@range(i64, 1000000000000)) |i| {}",
    "var s: i64 = 0; for (@range(i64, 1000000000000)) |i| { s += i; }",
    "for (@range(i32, 1000000)) |i| { for (@range(i32, 1000000)) |j| {} }",
    "var x: f32 = 0.0; while (x < 1.0) { x = x * 0.5; }",
    "var i: i32 = 0; while (i < 2) { var j: i32 = 0; while (j < 3) { j += 1; } }",
)  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_at_compile_time_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    """By a budget of steps, or by one of processor time (here a short one)."""
    monkeypatch.setattr("wse_sim.csl.evaluate.MAX_CPU_S", 0.05)
    with pytest.raises(WseError, match="evaluation at compile time"):
        compile_text(tmp_path, f"fn f() void {{}}\ncomptime {{ {loop} }}\n")


NESTS = {
    "(": "var x: i32 = {open}1{close};", "-": "var x: i32 = {open}1;", "!": "var x: bool = {open}true;",
    "{": "fn f() void {{ {open}{close} }}", "[1]": "var x = @zeros({open}i32);", "if (true) ": "fn f() void {{ {open}{{}} }}",
    ".{": "const x = {open}{close};", "*": "var x: {open}i32;", "@as(i32, ": "var x: i32 = {open}1{close};",
    "1 + (": "var x: i32 = {open}1{close};",
}  # fmt: skip
CLOSES = {"(": ")", "{": "}", ".{": "}", "@as(i32, ": ")", "1 + (": ")"}


COMPILES = """
import os, sys
from wse_sim.door import main
sys.argv = ['wse-sim', 'cslc', 'layout.csl', '--fabric-dims=8,3', '--fabric-offsets=4,1', '-o', 'out']
for folder in sorted(os.listdir()):
    os.chdir(folder)
    print(folder, file=sys.stderr, flush=True)
    try:
        main()
    except SystemExit as ended:
        assert ended.code in (None, 0, 2), ended.code
    os.chdir('..')
"""


@pytest.mark.slow
@pytest.mark.parametrize("depth", [3000, 30_000])
def test_nests(tmp_path: Path, depth: int) -> None:
    """Compiled, or refused in a sentence; never a fault of the compiler, never the end of its process.

    One process compiles all of them; the last line of its errors names the nest that ended it.
    """
    for i, part in enumerate(NESTS):
        folder = tmp_path / f"{i}"
        folder.mkdir()
        text = NESTS[part].format(open=part * depth, close=CLOSES.get(part, "") * depth)
        (folder / "pe.csl").write_text(text + "\n")
        (folder / "layout.csl").write_text(
            'layout {\n  @set_rectangle(1, 1);\n  @set_tile_code(0, 0, "pe.csl", .{});\n}\n'
        )
    done = subprocess.run(
        [sys.executable, "-c", COMPILES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-300:]
    assert "fault of the simulator" not in done.stderr
    assert all(f"{i}\n" in done.stderr for i in range(len(NESTS)))


@pytest.mark.parametrize("number", ["9" * 5000, "1" * 401, "0x" + "f" * 5000, "1" * 5000 + ".5"])
def test_long_numbers(tmp_path: Path, number: str) -> None:
    with pytest.raises(WseError):
        compile_text(tmp_path, f"var x: i32 = {number};\n")


PROGRAM = """
var values = @zeros([8]i16);
fn f() void { for (@range(i16, 8)) |i| { values[i] = i; } }
comptime { @export_symbol(values, "values"); @export_symbol(f, "f"); }
"""


def test_a_damaged_program_is_refused(tmp_path: Path) -> None:
    """One to four changed entries of its arrays in a sound archive, or a changed value of its JSON: all are seen."""
    import numpy as np

    program = compile_text(tmp_path, PROGRAM)
    out = tmp_path / "written"
    program.write(out)
    assert CompiledProgram.read(out).exports == program.exports
    with np.load(out / "bin" / "image.npz") as data:
        arrays = {name: data[name] for name in data.files}
    places = [(name, at) for name, array in arrays.items() for at in range(min(array.size, 200))]
    changed = tmp_path / "changed"

    @examples(60)
    @given(st.lists(st.sampled_from(places), min_size=1, max_size=4, unique=True), st.integers(1, 200))
    def case(where: list[tuple[str, int]], by: int) -> None:
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(out, changed)
        found = {name: array.copy() for name, array in arrays.items()}
        for name, at in where:
            found[name].reshape(-1)[at] += np.array(by).astype(found[name].dtype)
        np.savez_compressed(changed / "bin" / "image.npz", **found)
        with pytest.raises(WseError, match=r"damaged|no compiled program"):
            CompiledProgram.read(changed)

    case()
    for name in ("out.json", "bin/out_rpc.json"):
        text = (out / name).read_text()
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(out, changed)
        (changed / name).write_text(text.replace("1", "2", 1) if "1" in text else text + " ")
        with pytest.raises(WseError, match=r"damaged|no compiled program"):
            CompiledProgram.read(changed)


@pytest.mark.parametrize(("name", "value"), [
    ("core_class", 7), ("core_class", -2), ("source", 10**6), ("code", None), ("config", None), ("cost_class", None),
])  # fmt: skip
def test_tables_of_a_program_with_a_new_check_sum(tmp_path: Path, name: str, value: int | None) -> None:
    """Who writes the sum anew still cannot name rows of tables that are not there."""
    import json

    import numpy as np

    out = tmp_path / "written"
    compile_text(tmp_path, PROGRAM).write(out)
    file = out / "bin" / "image.npz"
    with np.load(file) as data:
        arrays = {key: data[key] for key in data.files}
    if value is None:
        arrays[name] = arrays[name].reshape(-1)[1:]
    else:
        arrays[name].reshape(-1)[0] = value
    np.savez_compressed(file, **arrays)
    about = json.loads((out / "out.json").read_text())
    about["sha256"] = _sum(out, about)
    (out / "out.json").write_text(json.dumps(about))
    with pytest.raises(WseError):
        CompiledProgram.read(out)
