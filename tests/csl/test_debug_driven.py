"""The debugger from outside: pauses of endless programs, several programs in one command file, random sequences of commands."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wse_sim.csl.debug.console import Commands
from wse_sim.csl.debug.debugger import Debugger
from wse_sim.fabric.vm.replay import ReplaySession, StopEvent
from wse_sim.hardware.wafer import load_wafer

from .machine import compile_text
from .test_debug import ONE, Client
from .test_waits import HEAD, HEAR, LAYOUT, MID, SEND

ENDLESS_LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("go", fn(u16)void);
}
"""
ENDLESS = """
param memcpy_params: comptime_struct;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var n: u16 = 0;
fn go(least: u16) void {
  n = least;
  while (n >= least) {
    n += 1;
    if (n == 0 and least == 1) { n = 1; }
  }
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(go); }
"""
SCRIPT = """
import sys
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime
runner = SdkRuntime("out")
runner.load()
runner.run()
runner.launch("go", int(sys.argv[1]), nonblock=False)
runner.stop()
"""
CSLC = "cslc --arch=wse2 layout.csl --fabric-dims=8,3 --fabric-offsets=4,1 -o out --memcpy --channels=1\n"
LIMIT_S = 240


def write(folder: Path, *leasts: int) -> Path:
    """A command file with one run of the program for each argument; 1 never ends, 0xFFFF ends at once."""
    (folder / "layout.csl").write_text(ENDLESS_LAYOUT)
    (folder / "pe.csl").write_text(ENDLESS)
    (folder / "run.py").write_text(SCRIPT)
    file = folder / "commands.sh"
    file.write_text(CSLC + "".join(f"cs_python run.py {least}\n" for least in leasts))
    return file


@pytest.mark.slow
def test_an_editor_pauses_a_program_that_does_not_end(tmp_path: Path) -> None:
    """Twice; what is shown is the loop, and the program runs on in between."""
    client = Client()
    try:
        client.ask("initialize", adapterID="test")
        client.ask("launch", program=str(write(tmp_path, 1)))
        client.event("initialized")
        client.ask("configurationDone")
        cycles = []
        for _ in range(2):
            time.sleep(0.5)
            client.ask("pause", threadId=1)
            stopped = client.event("stopped")
            assert stopped["reason"] == "pause"
            cycles.append(int(re.match(r"cycle ([\d,]+): paused", stopped["text"])[1].replace(",", "")))  # type: ignore[index]
            frame = client.ask("stackTrace", threadId=1)["stackFrames"][0]
            assert (frame["name"], frame["line"] in range(7, 11)) == ("go", True)
            assert int(client.ask("evaluate", expression="n")["result"]) > 0
            client.ask("continue", threadId=1)
        assert cycles[0] < cycles[1]
        client.ask("disconnect", terminateDebuggee=True)
        client.event("terminated")
        assert client.process.wait(60) == 0
    finally:
        client.process.kill()


@pytest.mark.slow
def test_ctrl_c_pauses_in_the_console(tmp_path: Path) -> None:
    """SIGINT while the program runs leads back to the prompt."""
    write(tmp_path, 1)
    command = [sys.executable, "-u", "-m", "wse_sim.cli", "csl", "debug", "commands.sh"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("continue\n")
        process.stdin.flush()
        said = ""
        while "continue" not in said:
            said = process.stdout.readline()
            assert said
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        process.stdin.write("print n\nquit\n")
        process.stdin.flush()
        out, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert re.search(r"cycle [\d,]+: paused\npe\.csl:\d+ \(go\)", out), out
    assert re.search(r"^n = \d+$", out, re.MULTILINE), out
    assert process.returncode == 0


@pytest.mark.slow
def test_break_points_of_an_editor_hold_in_every_program_of_a_command_file(tmp_path: Path) -> None:
    """Two runs: each stops at the line, with its own value."""
    file = write(tmp_path, 0xFFFF, 0xFFFE)
    client = Client()
    try:
        client.ask("initialize", adapterID="test")
        client.ask("launch", program=str(file))
        client.event("initialized")
        source = {"path": str(tmp_path / "pe.csl")}
        client.ask("setBreakpoints", source=source, breakpoints=[{"line": 8}])
        client.ask("configurationDone")
        seen = []
        for _ in range(5):
            reason = client.event("stopped")["reason"]
            seen.append(f"{reason} {client.ask('evaluate', expression='n')['result']}")
            client.ask("continue", threadId=1)
        client.event("terminated")
        assert seen == ["breakpoint 65535", "pause 0", "breakpoint 65534", "breakpoint 65535", "pause 0"]
        assert client.process.wait(60) == 0
    finally:
        client.process.kill()


@pytest.mark.slow
def test_the_console_commands_every_program_of_a_command_file(tmp_path: Path) -> None:
    write(tmp_path, 0xFFFF, 0xFFFE)
    steps = "break pe.csl:8\ncontinue\nprint n\ndelete\ncontinue\ncontinue\nbreak pe.csl:8\ncontinue\nprint n\ndetach\n"
    (tmp_path / "steps.txt").write_text(steps)
    command = [sys.executable, "-m", "wse_sim.cli", "csl", "debug", "commands.sh", "--commands", "steps.txt", "--batch"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert re.findall(r"^n = (\d+)$", done.stdout, re.MULTILINE) == ["65535", "65534"], (
        done.stdout + done.stderr
    )


WORDS = (
    "break pe.csl:8", "break pe.csl:9 if i == 3", "break go", "tbreak add", "break pe.csl:1000", "break nothing", "watch total", "watch data[2]",
    "watch total if total > 10", "watch data[99]", "watch color 3", "watch queue in 2", "watch buffer[1]", "delete", "delete 1", "delete 99", "breaks",
    "continue", "step", "next", "finish", "cycles 1", "cycles 3", "cycles 100000", "cycles x", "back 1", "back 7", "back 1000000", "reverse-continue",
    "reverse-step", "reverse-next", "present", "core 0,0", "core 1,0", "core 9,9", "cores", "frame 0", "frame 7", "print total", "print data[1:3]",
    "print nothing", "print 1 +", "print p.b", "locals", "globals", "backtrace", "queues", "routes", "tasks", "origin total", "origin data[3]",
    "origin buffer[0]", "origin i", "list", "help", "", "nonsense", "watch", "break", "print", "core", "origin", "print #7.x", "print ((((1", "break -1:-1",
)  # fmt: skip


def loose(seed: int, most: int) -> Debugger:
    """A debugger that is given random commands, then runs on without stops."""
    rng, left = random.Random(seed), [most]

    def front(debugger: Debugger, event: StopEvent) -> None:
        commands = Commands(debugger)
        commands.event_text(event)
        while not debugger.is_released:
            word = rng.choice(WORDS) if left[0] > 0 else "detach"
            left[0] -= 1
            assert isinstance(commands.execute(word), str)

    return Debugger(front)


def state_at_the_end(folder: Path, seed: int, debugger: Debugger | None) -> tuple[bytes, int]:
    """Memory and cycles of one core with scalar code (even draws), or of three cores in a row that send and hear (odd ones)."""
    if seed % 2 == 0:
        program = compile_text(folder, ONE)
    else:
        files = {"left": HEAD + SEND, "mid": MID, "right": HEAD + HEAR}
        program = compile_text(folder, "", LAYOUT.format(through="EAST"), **files)
    session = ReplaySession(program.image, load_wafer("wse2"))
    if debugger is not None:
        debugger.attach(session, program.image)
        debugger.stopped(StopEvent("loaded", 0))
    if seed % 2 == 0:
        session.launch(0, 0, 1, 1, "go", (6,), arm=False)
    else:
        session.launch(0, 0, 3, 1, "f", arm=False)
    session.advance()
    session.ended()
    return session.machine.memory.tobytes(), session.cycle


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_random_commands_change_nothing_and_are_all_answered(tmp_path: Path, seed: int) -> None:
    assert state_at_the_end(tmp_path, seed, loose(seed, 40)) == state_at_the_end(tmp_path, seed, None)
