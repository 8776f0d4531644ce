"""Scripts of the host as they were written: arithmetic of NumPy 1, how they end, what they may leave, when a run stands still."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wse_sim.csl import compile_program
from wse_sim.csl.host.arrays import HostError, MemcpyDataType, MemcpyOrder
from wse_sim.csl.host.asked import STILL_VARIABLE
from wse_sim.csl.host.commands import cs_python, run_commands
from wse_sim.csl.host.record import DebugUtil
from wse_sim.csl.host.runtime import SdkRuntime
from wse_sim.csl.host.script import combine, combine_in_place, run_script
from wse_sim.csl.host.utils import check_rpc_api, get_api_info_dict, output_name

from .test_host import LAYOUT, PE

LOOPS = """
var stop: u16 = 0;
fn loop() void { while (stop == 0) { } sys_mod.unblock_cmd_stream(); }
task again() void { @activate(@get_local_task_id(9)); }
fn selfish() void { @activate(@get_local_task_id(9)); }
fn count() void { while (stop < 2000) { stop += 1; } sys_mod.unblock_cmd_stream(); }
comptime { @bind_local_task(again, @get_local_task_id(9)); @export_symbol(loop); @export_symbol(selfish); @export_symbol(count); }
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SdkRuntime:
    """A program of four cores with loops that do not end; it is stopped after 40,000 cycles without a change."""
    names = "".join(f'@export_name("{n}", fn()void);' for n in ("loop", "selfish", "count"))
    (tmp_path / "layout.csl").write_text(
        LAYOUT.replace('@export_name("scale"', names + '@export_name("scale"')
    )
    (tmp_path / "pe.csl").write_text(PE + LOOPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STILL_VARIABLE, "40000")
    compile_program("layout.csl", arch="wse2", params={"N": 3}, memcpy=True, out="out")
    runtime = SdkRuntime("out")
    runtime.load()
    runtime.run()
    return runtime


def test_time_stamps_of_sixteen_bit_words(tmp_path: Path) -> None:
    """7 + 2 * 2^16 + 2^32, in the script, in what it imports, in place; arrays and Python's own numbers stay as they are."""
    (tmp_path / "helper.py").write_text(
        "def stamp(words):\n    return words[0] + (words[1] << 16) + (words[2] << 32)\n"
    )
    script = tmp_path / "run.py"
    script.write_text(
        "import numpy as np\nimport helper\nfound = []\nw = np.array([7, 2, 1]).astype(np.uint16)\n"
        "found += [int(helper.stamp(w)), int(w[0] + w[1] * 65536), int(np.uint16(65535) + 1), int(w[1] - 5)]\n"
        "t = w[0]\nt += w[1] << 16\nfound.append(int(t))\na = np.zeros(2, np.uint16)\na += 3\nfound.append(str((a << 4).dtype))\n"
        "found.append('%d' % 3 + f'{1}' + 2 * 'x')\nassert __name__ == '__main__' and __file__.endswith('run.py')\n"
        "open('found.txt', 'w').write(repr(found))\n"
    )  # fmt: skip
    before = Path.cwd()
    try:
        os.chdir(tmp_path)
        run_script(script)
    finally:
        os.chdir(before)
        sys.modules.pop("helper", None)
    wanted = [7 + (2 << 16) + (1 << 32), 7 + (2 << 16), 65536, -3, 7 + (2 << 16), "uint16", "31xx"]
    assert (tmp_path / "found.txt").read_text() == repr(wanted)
    assert not list(tmp_path.rglob("*.pyc"))


def test_one_operation_at_a_time() -> None:
    """A Python number beside a NumPy scalar is 64 bits wide; two scalars, arrays and 64 unsigned bits are left to NumPy."""
    assert combine("lshift", np.uint16(3), 16) == 3 << 16
    assert combine("sub", 1, np.uint16(3)) == -2
    assert combine("add", np.float32(1), 1e-9).dtype == np.float64
    assert combine("lshift", np.uint16(3), np.uint16(16)) == 0
    assert combine("add", np.array([65535], np.uint16), 1)[0] == 0
    assert combine("lshift", np.uint64(1), 40) == 1 << 40
    assert combine("mul", "ab", 2) == "abab"
    row = np.zeros(3, np.float32)
    assert combine_in_place("add", row, 1) is row


def test_operators_in_classes(tmp_path: Path) -> None:
    """A class mangles names that begin with two underscores: those of the calls behind operators begin with one."""
    script = tmp_path / "run.py"
    script.write_text(
        "import numpy as np\nclass Stamp:\n    shift = 8 * int('2')\n    def __init__(self, low, high):\n"
        "        self.__high = high\n        value = low\n        value += self.__high << self.shift\n        self.value = value\n"
        "assert int(Stamp(np.uint16(7), np.uint16(2)).value) == 7 + (2 << 16)\n"
    )
    run_script(script)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("import sys; sys.exit(0)", 0),
        ("import sys; sys.exit()", 0),
        ("raise SystemExit()", 0),
        ("x = 1", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no such file')", 1),
        ("raise ValueError('x')", 1),
        ("def broken(:", 1),
    ],
)
def test_how_a_script_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, end: str, status: int
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "run.py").write_text(end + "\n")
    assert cs_python([str(tmp_path / "run.py")]) == status
    said = capsys.readouterr().err
    assert ("no such file" in said) == ("no such" in end)
    assert ("Traceback" in said or "SyntaxError" in said) == (status == 1 and "exit" not in end)


def test_arrays_may_be_longer_than_a_copy(runner: SdkRuntime) -> None:
    """Twelve items are taken from the slice, and twelve written into it; what is behind stays."""
    data, x, y = runner.get_id("data"), np.arange(40, dtype=np.float32), np.full(40, -1, np.float32)
    runner.memcpy_h2d(
        data,
        x[5:],
        0,
        0,
        2,
        2,
        3,
        streaming=False,
        order=MemcpyOrder.ROW_MAJOR,
        data_type=MemcpyDataType.MEMCPY_32BIT,
    )
    runner.memcpy_d2h(
        y[10:],
        data,
        0,
        0,
        2,
        2,
        3,
        streaming=False,
        order=MemcpyOrder.ROW_MAJOR,
        data_type=MemcpyDataType.MEMCPY_32BIT,
    )
    assert y[8:24].tolist() == [-1, -1, *range(5, 17), -1, -1]
    runner.stop()


def test_a_script_may_leave_its_folder_before_it_stops(
    runner: SdkRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    runner.launch("scale", 2.0)
    runner.dump_core("core")
    runner.stop()
    assert (tmp_path / "out" / "stopped.npz").is_file()
    assert (tmp_path / "sim.log").is_file()
    assert (tmp_path / "other" / "core").is_file()
    assert DebugUtil(tmp_path / "out").get_symbol(4, 1, "values", np.float32).size == 3


@pytest.mark.parametrize(
    ("name", "place"), [("loop", "pe.csl:22 (loop)"), ("selfish", "in task 'again' at pe.csl:23")]
)
def test_a_run_that_stands_still_is_stopped(runner: SdkRuntime, name: str, place: str) -> None:
    """No word moves and no memory changes: the cores, the task and the line; one sentence."""
    runner.launch(name)
    with pytest.raises(HostError) as fault:
        runner.stop()
    said = str(fault.value)
    assert "no word moved and no memory changed for 40,000 cycles" in said
    assert "first (0, 0) of pe.csl" in said
    assert "(1, 0)" in said
    assert said.count("\n") == 0
    assert place in said or name == "loop"


def test_a_loop_that_counts_in_memory_is_no_standstill(runner: SdkRuntime) -> None:
    """It changes memory between two looks, so it may continue: 2,000 turns of more than a cycle each."""
    runner.launch("count")
    runner.stop()
    assert runner.session.cycle > 6000
    assert runner.read_symbol(0, 0, "stop")[0] == 2000


def test_functions_that_a_host_may_call(runner: SdkRuntime) -> None:
    api = get_api_info_dict("out")
    assert api["scale"] == (["arg0"], ["f32"])
    assert check_rpc_api("scale", [np.float32(1)], api)
    for name, arguments, words in (
        ("scale", [], "takes 1 arguments, 0 are given"),
        ("scale", [np.int16(1)], "the argument is of type f32"),
        ("scala", [], "not an exported function"),
    ):
        with pytest.raises(HostError, match=words):
            check_rpc_api(name, arguments, api)
    with pytest.raises(HostError, match="lists no exported names"):
        get_api_info_dict("none")
    assert [output_name(o) for o in (["-o", "a"], ["-o=b", "x"], ["x"])] == ["a", "b", "out"]
    runner.stop()


@pytest.mark.slow
def test_an_interrupt_says_what_the_cores_do(runner: SdkRuntime, tmp_path: Path) -> None:
    """The sentence comes within a second, with a task and its line."""
    script = tmp_path / "run.py"
    script.write_text(
        "import os, signal, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it\n"
        "from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime\n"
        "runner = SdkRuntime('out')\nrunner.load()\nrunner.run()\nrunner.launch('count')\nrunner.launch('selfish')\n"
        "threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\nrunner.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "wse_sim.cli", "cs-python", str(script)],
        env={**os.environ, STILL_VARIABLE: "0"}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 130
    assert "wse-sim: interrupted at cycle" in done.stderr
    assert "in task 'again' at pe.csl:23" in done.stderr
    runner.stop()


TOOLS = {
    "sdk_debug_shell visualize --artifact_dir out": "'wse-sim csl run FILE --report DIR' writes a page of it",
    "sdk_debug_shell smoke examples": "'wse-sim csl check DIR' runs every command file",
    "sdk_debug_shell trace": "only its command compile is here",
    "csdb corefile.cs1": "'wse-sim csl debug FILE' debugs a command file",
    "cs_readelf out": "'wse-sim csl explain OUT'",
}


@pytest.mark.parametrize("line", TOOLS)
def test_other_tools_of_the_vendor_are_one_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "commands.sh").write_text(line)
    done = run_commands(tmp_path / "commands.sh", quiet=True, timeout_s=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert TOOLS[line] in done.stderr


def test_tools_by_a_path_of_their_author(tmp_path: Path) -> None:
    """A path that leads nowhere runs the command here, told once; one that leads to a file runs that file."""
    own = tmp_path / "sdk" / "cs_python"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\necho own\n")
    own.chmod(0o755)
    (tmp_path / "commands.sh").write_text(
        f"set -u\n/home/nobody/tools/cslc a.csl b.csl\n/home/nobody/tools/cslc a.csl b.csl | cat\n{own} run.py\n"
    )
    done = run_commands(tmp_path / "commands.sh", quiet=True, timeout_s=60)
    assert (
        done.stderr.count("there is no /home/nobody/tools/cslc on this machine; cslc of wse_sim runs instead")
        == 1
    )
    assert done.stderr.count("cslc takes one layout file, 2 are given") == 2
    assert done.stdout == "own\n"


@pytest.mark.slow
def test_sdk_debug_shell_compiles_as_cslc_does(tmp_path: Path) -> None:
    """Public scripts of an annealer call it with the arguments of cslc, from Python."""
    (tmp_path / "layout.csl").write_text(
        'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{}); }'
    )
    (tmp_path / "pe.csl").write_text("")
    (tmp_path / "build.py").write_text(
        "import subprocess\nsubprocess.run(['sdk_debug_shell', 'compile', 'layout.csl', '-o', 'made'], check=True)"
    )
    (tmp_path / "commands.sh").write_text("set -e\npython3 build.py")
    assert run_commands(tmp_path / "commands.sh", quiet=True, timeout_s=120).returncode == 0
    assert (tmp_path / "made" / "out.json").exists()
