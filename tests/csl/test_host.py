"""The host: orders and widths of copies, commands in order, command files run unchanged, and what cannot be done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from wse_sim.csl import compile_program
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.host import arrays
from wse_sim.csl.host.arrays import HostError, MemcpyDataType, MemcpyOrder
from wse_sim.csl.host.commands import check_case, find_cases, parse_cslc
from wse_sim.csl.host.record import DebugUtil, initial_values
from wse_sim.csl.host.runtime import SdkRuntime
from wse_sim.csl.host.utils import (
    calculate_cycles,
    cast_uint32,
    float_to_hex,
    input_array_to_u32,
    make_u48,
    memcpy_view,
)
from wse_sim.errors import WseError

LAYOUT = """
param N: i16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 2 });
layout {
  @set_rectangle(2, 2);
  for (@range(i16, 2)) |x| {
    for (@range(i16, 2)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .N = N, .stuck = x == 1 and y == 0 });
    }
  }
  @export_name("data", [*]f32, true);
  @export_name("scale", fn(f32)void);
  @export_name("wait_on_one", fn()void);
}
"""
PE = """
param memcpy_params: comptime_struct;
param N: i16;
param stuck: bool;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
var values = @zeros([N]f32);
var data: [*]f32 = &values;
fn scale(factor: f32) void {
  for (@range(i16, N)) |i| { values[i] = values[i] * factor; }
  sys_mod.unblock_cmd_stream();
}
fn wait_on_one() void {
  if (!stuck) { sys_mod.unblock_cmd_stream(); }
}
comptime {
  @export_symbol(data, "data");
  @export_symbol(scale);
  @export_symbol(wait_on_one);
}
"""
RUN = """
import argparse
import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime, MemcpyDataType, MemcpyOrder
parser = argparse.ArgumentParser()
parser.add_argument("--name")
parser.add_argument("--cmaddr")
args = parser.parse_args()
runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
data = runner.get_id("data")
runner.load()
runner.run()
x = np.arange(12, dtype=np.float32)
runner.memcpy_h2d(data, x, 0, 0, 2, 2, 3, streaming=False, order=MemcpyOrder.ROW_MAJOR,
                  data_type=MemcpyDataType.MEMCPY_32BIT, nonblock=True)
runner.launch("scale", np.float32(2.5), nonblock=False)
y = np.zeros(12, np.float32)
runner.memcpy_d2h(y, data, 0, 0, 2, 2, 3, streaming=False, order=MemcpyOrder.ROW_MAJOR,
                  data_type=MemcpyDataType.MEMCPY_32BIT, nonblock=False)
runner.stop()
np.testing.assert_array_equal(y, 2.5 * x)
print("SUCCESS!")
"""
COMMANDS = """#!/usr/bin/env bash
set -e
cslc --arch=wse2 ./layout.csl --fabric-dims=9,4 --fabric-offsets=4,1 \\
--params=N:3 -o out --memcpy --channels=1 --width-west-buf=0 --width-east-buf=0
cs_python run.py --name out
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program of four cores with its script and its command file."""
    for name, text in (
        ("layout.csl", LAYOUT),
        ("pe.csl", PE),
        ("run.py", RUN),
        ("commands_wse2.sh", COMMANDS),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def runner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> SdkRuntime:
    """The program, compiled and started."""
    monkeypatch.chdir(folder)
    compile_program("layout.csl", arch="wse2", params={"N": 3}, memcpy=True, out="out")
    runtime = SdkRuntime("out")
    runtime.load()
    runtime.run()
    return runtime


def test_a_parameter_without_a_type_takes_what_its_literal_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--params=N:3,wide:true` where the layout declares neither type: N is a number, also in arithmetic, wide a Boolean."""
    monkeypatch.chdir(folder)
    declared = next(line for line in LAYOUT.splitlines() if line.startswith("param N"))
    checks = "comptime { @comptime_assert(N * 2 == 6 and wide); }"
    (folder / "layout.csl").write_text(LAYOUT.replace(declared, f"param N = 5; param wide = false; {checks}"))
    compile_program("layout.csl", arch="wse2", params={"N": "3", "wide": "true"}, memcpy=True, out="out")
    with pytest.raises(CslError, match="comptime_string"):
        compile_program("layout.csl", arch="wse2", params={"N": "three"}, memcpy=True, out="out")


@pytest.mark.parametrize("order", list(MemcpyOrder))
@pytest.mark.parametrize(("w", "h", "n"), [(1, 1, 1), (2, 3, 4), (3, 1, 2), (1, 4, 5)])
def test_orders_of_host_arrays(order: MemcpyOrder, w: int, h: int, n: int) -> None:
    """Row-major: item (row, col, k) is at (row w + col) n + k; column-major: at row + h col + h w k."""
    items = np.arange(w * h * n, dtype=np.uint32)
    region = arrays.to_region(items, w, h, n, order)
    for row, col, k in np.ndindex(h, w, n):
        at = (row * w + col) * n + k if order == MemcpyOrder.ROW_MAJOR else row + h * col + h * w * k
        assert region[row, col, k] == at
    assert np.array_equal(arrays.from_region(region, order), items)


def test_widths_of_elements() -> None:
    """32-bit items are two words, the low one first; of 16-bit ones the low half counts and comes back zero-extended."""
    region = np.array([[[0x11112222, 0x33334444]]], np.uint32)
    assert arrays.to_words(region, MemcpyDataType.MEMCPY_32BIT).ravel().tolist() == [
        0x2222,
        0x1111,
        0x4444,
        0x3333,
    ]
    assert np.array_equal(arrays.from_words(arrays.to_words(region, 1), 1), region)
    halves = arrays.to_words(region, MemcpyDataType.MEMCPY_16BIT)
    assert halves.ravel().tolist() == [0x2222, 0x4444]
    assert arrays.from_words(halves, 0).ravel().tolist() == [0x2222, 0x4444]


def test_helpers_of_scripts() -> None:
    """Time stamps of three words, 16-bit data in 32-bit items."""
    assert make_u48([1, 2, 3]) == 1 + (2 << 16) + (3 << 32)
    stamps = np.array([5, 0, 0, 7, 1, 0], np.uint16).view(np.float32)
    assert calculate_cycles(stamps) == 7 + (1 << 16) - 5
    assert float_to_hex(1.0) == "0x3f800000"
    assert cast_uint32(np.float16(1.0)) == 0x3C00
    assert cast_uint32(-1) == 0xFFFFFFFF
    half = np.array([1.0, -2.0, 0.5, 4.0], np.float16)
    packed = input_array_to_u32(half, 1, 2)
    assert (packed >> 16).tolist() == [0, 1, 0, 1]
    assert np.array_equal(memcpy_view(input_array_to_u32(half), np.float16), half)


@pytest.mark.slow
def test_a_command_file_runs_unchanged(folder: Path) -> None:
    """cslc and cs_python of the file are ours; the values are those that its script checks; the same cycles twice, on two threads as well."""
    figures = folder / "figures.jsonl"
    environment = {**os.environ, "WSE_SIM_CSL_FIGURES": str(figures)}
    for threads in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "wse_sim.cli", "csl", "run", str(folder / "commands_wse2.sh"), "--threads", threads],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout == "SUCCESS!\n"
    first, second = (json.loads(line) for line in figures.read_text().splitlines())
    assert first["cycles"] == second["cycles"] > 1500
    assert first["warnings"] == []
    assert find_cases(folder) == [(".", "wse2", folder / "commands_wse2.sh")]


def test_a_case_alone_finds_what_lies_beside_it(tmp_path: Path) -> None:
    """A case that is given by its own folder still reads the library two folders above; what it writes stays in its copy."""
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "note").write_text("found")
    case = tmp_path / "cases" / "one"
    case.mkdir(parents=True)
    (case / "commands_wse2.sh").write_text("set -e\ngrep -q found ../../libs/note\ntouch written\n")
    [(name, arch, file)] = find_cases(case)
    assert name == "."
    assert check_case(name, arch, file).passed
    assert not (case / "written").exists()


def test_a_copy_states_streaming_order_and_width(runner: SdkRuntime) -> None:
    """The interface has no defaults for them."""
    given = {"streaming": False, "order": MemcpyOrder.ROW_MAJOR, "data_type": MemcpyDataType.MEMCPY_32BIT}
    for name in given:
        rest = {key: value for key, value in given.items() if key != name}
        with pytest.raises(HostError, match=name):
            runner.memcpy_d2h(np.zeros(12, np.float32), runner.get_id("data"), 0, 0, 2, 2, 3, **rest)  # type: ignore[arg-type]


def test_a_host_writes_what_a_constant_pointer_points_to(tmp_path: Path) -> None:
    """``const data: [*]f32`` is exported as immutable, which is the pointer; its array is written, scaled and read back.

    The command line has a flag that only dumps how the vendor's compiler allocates registers.
    """
    (tmp_path / "layout.csl").write_text(LAYOUT.replace("[*]f32, true", "[*]f32, false"))
    (tmp_path / "pe.csl").write_text(PE.replace("var data: [*]", "const data: [*]"))
    words = f"{tmp_path}/layout.csl --fabric-dims=9,4 --fabric-offsets=4,1 --memcpy --channels=1 --params=N:3 --dump-dsr-alloc-graph"
    file, options = parse_cslc([*words.split(), "-o", str(tmp_path / "out")])
    compile_program(file, **options)
    runner = SdkRuntime(str(tmp_path / "out"))
    runner.load()
    runner.run()
    how = {"streaming": False, "order": MemcpyOrder.ROW_MAJOR, "data_type": MemcpyDataType.MEMCPY_32BIT}
    x, y = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
    runner.memcpy_h2d(runner.get_id("data"), x, 0, 0, 2, 2, 3, nonblock=False, **how)  # type: ignore[arg-type]
    runner.launch("scale", np.float32(2), nonblock=False)
    runner.memcpy_d2h(y, runner.get_id("data"), 0, 0, 2, 2, 3, nonblock=False, **how)  # type: ignore[arg-type]
    runner.stop()
    np.testing.assert_array_equal(y, 2 * x)


def test_copies_and_launches_keep_their_order(runner: SdkRuntime) -> None:
    """Commands that do not wait run in the order in which they were given; symbols answer after stop()."""
    data = runner.get_id("data")
    x = np.arange(12, dtype=np.float32)
    task = runner.memcpy_h2d(
        data,
        x,
        0,
        0,
        2,
        2,
        3,
        streaming=False,
        order=MemcpyOrder.COL_MAJOR,
        nonblock=True,
        data_type=MemcpyDataType.MEMCPY_32BIT,
    )
    runner.launch("scale", 3, nonblock=True)
    y = np.zeros(12, np.float32)
    runner.memcpy_d2h(
        y,
        data,
        0,
        0,
        2,
        2,
        3,
        streaming=False,
        order=MemcpyOrder.COL_MAJOR,
        data_type=MemcpyDataType.MEMCPY_32BIT,
    )
    assert task.done
    assert np.array_equal(y, 3 * x)
    runner.stop()
    # row 1, column 0 holds items 1, 5, 9 of the column-major array
    assert DebugUtil("out").get_symbol(4, 2, "data", np.uint16).size == 1
    assert runner.read_symbol(0, 1, "data", np.uint16).size == 1


def test_fractions_leave_out_what_the_host_takes(runner: SdkRuntime) -> None:
    """Two copies take over 1,500 cycles, four cores scale three numbers each meanwhile; the report's fractions are of the latter."""
    runner.launch("scale", 3, nonblock=False)
    runner.memcpy_d2h(
        np.zeros(12, np.float32),
        runner.get_id("data"),
        0,
        0,
        2,
        2,
        3,
        streaming=False,
        order=MemcpyOrder.ROW_MAJOR,
        data_type=MemcpyDataType.MEMCPY_32BIT,
    )
    runner.stop()
    at_work = runner.session.cycle - runner.session.quiet_cycles
    assert runner.session.quiet_cycles > 1000
    assert 0.5 * at_work < runner.session.counters()["busy"].max() <= at_work


def test_what_waits_for_ever_is_named(runner: SdkRuntime) -> None:
    """A core that does not release its command stream is named by the next command."""
    runner.launch("wait_on_one")
    with pytest.raises(HostError, match=r"wait forever.*\(1, 0\)"):
        runner.stop()


def test_a_runtime_loads_runs_and_stops_once_in_this_order(runner: SdkRuntime) -> None:
    """As the vendor's runtime demands, by its public messages."""
    idle = SdkRuntime("out")
    with pytest.raises(HostError, match=r"run\(\) before load\(\)"):
        idle.run()
    with pytest.raises(HostError, match=r"stop\(\) before run\(\)"):
        idle.stop()
    with pytest.raises(HostError, match=r"run\(\) is called twice"):
        runner.run()
    runner.stop()
    with pytest.raises(HostError, match=r"stop\(\) is called twice"):
        runner.stop()


def test_calls_that_cannot_be_done(runner: SdkRuntime) -> None:
    """One sentence each, before anything happens on the fabric."""
    data, x = runner.get_id("data"), np.zeros(12, np.float32)
    calls = [
        (lambda: runner.get_id("date"), "exported names are data, scale"),
        (lambda: runner.launch("data"), "launch takes a function"),
        (lambda: runner.launch("scale"), "takes 1 arguments"),
        (lambda: runner.launch("scale", "x"), "must be a number"),
        (
            lambda: runner.memcpy_h2d(
                data,
                x,
                1,
                0,
                2,
                2,
                3,
                streaming=False,
                order=MemcpyOrder.ROW_MAJOR,
                data_type=MemcpyDataType.MEMCPY_32BIT,
            ),
            "is not in the rectangle",
        ),
        (
            lambda: runner.memcpy_h2d(
                data,
                x[:7],
                0,
                0,
                2,
                2,
                2,
                streaming=False,
                order=MemcpyOrder.ROW_MAJOR,
                data_type=MemcpyDataType.MEMCPY_32BIT,
            ),
            "the region takes 8",
        ),
        (
            lambda: runner.memcpy_h2d(
                data,
                x.astype(np.float64),
                0,
                0,
                2,
                2,
                3,
                streaming=False,
                order=MemcpyOrder.ROW_MAJOR,
                data_type=MemcpyDataType.MEMCPY_32BIT,
            ),
            "64 bits",
        ),
        (
            lambda: runner.memcpy_h2d(
                77,
                x,
                0,
                0,
                2,
                2,
                3,
                streaming=False,
                order=MemcpyOrder.ROW_MAJOR,
                data_type=MemcpyDataType.MEMCPY_32BIT,
            ),
            "not an exported variable",
        ),
        (lambda: SdkRuntime("out", cmaddr="1.2.3.4:9"), "names a real system"),
    ]
    for call, words in calls:
        with pytest.raises(HostError, match=words) as fault:
            call()
        assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["a.csl", "--fabric-dim=8,3"], "did you mean --fabric-dims"),
        (["a.csl", "--fabric-dims=8"], "two integers"),
        (["a.csl", "--params=N"], "NAME:VALUE"),
        (["a.csl", "--channels=x"], "must be an integer"),
        (["a.csl", "b.csl"], "one layout file"),
        (["a.csl", "--arch"], "needs a value"),
    ],
)
def test_command_lines_that_are_wrong(line: list[str], words: str) -> None:
    """The option, the value and the remedy in one sentence."""
    with pytest.raises(WseError, match=words):
        parse_cslc(line)


def test_damaged_programs_and_places_that_are_no_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output folder that cannot be one is refused before the work; a damaged one says so."""
    monkeypatch.chdir(folder)
    (folder / "file").write_text("kept")
    with pytest.raises(WseError, match="-o file cannot be a folder"):
        compile_program("layout.csl", arch="wse2", params={"N": 3}, memcpy=True, out="file")
    compile_program("layout.csl", arch="wse2", params={"N": 3}, memcpy=True, out="out")
    for name, content in (
        ("bin/image.npz", "garbage"),
        ("out.json", '{"arch": 3}'),
        ("bin/out_rpc.json", "[]"),
    ):
        (folder / "out" / name).write_text(content)
        with pytest.raises(WseError, match="out"):
            SdkRuntime("out")


@pytest.mark.parametrize("content", [b"", b"PK", "text", "bytes"])
def test_files_beside_a_program_that_hold_something_else_are_a_sentence(
    tmp_path: Path, content: object
) -> None:
    """Values of single cores, as a Python layout writes them."""
    file = tmp_path / "symbols.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content == "text":
        np.savez(file, **{"1 2": np.zeros(3)})  # a core, and no name
    else:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("1 2 a", "text")
    with pytest.raises(WseError, match=r"symbols\.npz"):
        initial_values(file)


def test_initial_values_are_words_of_cores(tmp_path: Path) -> None:
    np.savez(tmp_path / "symbols.npz", **{"1 2 a b": np.array([1.0], np.float32)})
    ((x, y, name, words),) = initial_values(tmp_path / "symbols.npz")
    assert (x, y, name, words.tolist()) == (1, 2, "a b", [0, 0x3F80])
