"""The debugger: stops change nothing, the way back leads to the same state, values are those of memory, and editors are answered."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wse_sim.csl.compiler import CompiledProgram
from wse_sim.csl.debug.console import Commands
from wse_sim.csl.debug.debugger import Debugger
from wse_sim.csl.debug.values import Expression, Types, ValuePlace, shown
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.replay import ReplaySession, StopEvent
from wse_sim.fabric.vm.session import Session
from wse_sim.fabric.vm.snapshot import Snapshot, take_snapshot
from wse_sim.hardware.wafer import load_wafer

from .machine import Machine, compile_text
from .test_waits import HEAD, HEAR, LAYOUT, MID, SEND

ONE = """
const P = struct { a: i16, b: f32 };
var p: P; var total: f32 = 0.0; var data = @zeros([8]f32);
fn add(k: i16, y: f32) f32 { var z: f32 = y * 2.0; z += @as(f32, k); return z; }
fn go(n: i16) void {
  var buf = @zeros([4]i16);
  for (@range(i16, n)) |i| {
    const w = add(i, 1.5);
    data[i] = w;
    total += w;
    buf[i % 4] = i;
  }
  p.a = n; p.b = total;
}
comptime { @export_symbol(go); @export_symbol(total); }
"""
Steps = Callable[[Debugger, StopEvent], None]


def debugged(program: CompiledProgram, front: Steps) -> ReplaySession:
    """Run `go(6)` on one core with a front."""
    session = ReplaySession(program.image, load_wafer("wse2"))
    debugger = Debugger(front)
    debugger.attach(session, program.image)
    debugger.stopped(StopEvent("loaded", 0))
    session.launch(0, 0, 1, 1, "go", (6,), arm=False)
    assert session.advance().reason == "idle"
    session.ended()
    return session


def test_there_is_no_way_back_from_a_program_that_has_not_begun(program: CompiledProgram) -> None:
    """Where nothing has happened, the state is the first one known."""
    said: list[tuple[str, int]] = []

    def front(debugger: Debugger, event: StopEvent) -> None:
        if event.kind == "loaded":
            for back in (lambda: debugger.back(5), debugger.reverse, debugger.step_back):
                found = back()
                said.append((found.kind, found.cycle))

    debugged(program, front)
    assert said == [("begin", 0)] * 3


def plain(program: CompiledProgram) -> Session:
    session = Session(program.image, load_wafer("wse2"), sanitize=True)
    session.launch(0, 0, 1, 1, "go", (6,), arm=False)
    assert session.advance().reason == "idle"
    return session


def differing(one: Session, other: Session) -> list[str]:
    """Arrays that differ, without the sanitizer's notes on who wrote, which watchpoints clear."""
    found = take_snapshot(one, 0).differing(take_snapshot(other, 0))
    return [name for name in found if name not in ("written", "merged")]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> CompiledProgram:
    return compile_text(tmp_path_factory.mktemp("debug"), ONE)


def test_stops_at_every_line_change_nothing(program: CompiledProgram) -> None:
    """Six rounds of five lines and of one function: as many stops, and byte for byte the state of a run without them."""
    lines: list[int] = []

    def front(debugger: Debugger, event: StopEvent) -> None:
        if event.kind == "loaded":
            for line in (4, 7, 8, 9, 10, 11, 13):
                debugger.break_at("pe.csl", line)
        elif event.kind == "stop":
            lines.append(debugger.lines.where(event.rows[0])[1])
        debugger.resume()

    session, other = debugged(program, front), plain(program)
    assert lines == [7, *[8, 4, 9, 10, 11] * 6, 13]
    assert session.cycle == other.cycle
    assert differing(session, other) == []


def test_values_are_those_of_the_program(program: CompiledProgram) -> None:
    """w = 2 * 1.5 + i, total = the sum so far; the condition holds in the fourth round alone."""
    seen: dict[str, Any] = {}

    def front(debugger: Debugger, event: StopEvent) -> None:
        if event.kind == "loaded":
            debugger.break_at("pe.csl", 10, condition="i == 3 and w > 5")
        elif event.kind == "stop":
            for text in ("i", "w", "data[0:5]", "total", "buf", "n", "data[i] * 2 + 1"):
                seen[text] = debugger.view.value(0, text)
        elif event.kind == "ended":
            seen["p"] = debugger.view.value(0, "p")
            seen["memory"] = debugger.session.peek(0, 0, debugger.view.place(0, "data").address, 16).view(
                np.float32
            )
        debugger.resume()

    debugged(program, front)
    assert seen["i"] == 3
    assert seen["w"] == 6.0
    assert seen["data[0:5]"] == [3.0, 4.0, 5.0, 6.0, 0.0]
    assert (seen["total"], seen["buf"], seen["n"], seen["data[i] * 2 + 1"]) == (12.0, [0, 1, 2, 0], 6, 13.0)
    assert seen["p"] == {"a": 6, "b": 33.0}
    np.testing.assert_array_equal(seen["memory"], [3, 4, 5, 6, 7, 8, 0, 0])


def test_back_ends_at_the_last_hit_that_forward_lists(program: CompiledProgram) -> None:
    places: list[tuple[int, int, int]] = []
    back: list[tuple[int, int, int]] = []

    def place(debugger: Debugger) -> tuple[int, int, int]:
        core = debugger.session.machine.core[0]
        return debugger.session.cycle, int(core[S.OPCODES]), debugger.session.row(0)

    def front(debugger: Debugger, event: StopEvent) -> None:
        if event.kind == "loaded":
            debugger.break_at("pe.csl", 9)
            debugger.break_in("add")
        elif event.kind == "stop":
            places.append(place(debugger))
        elif event.kind == "ended":
            while debugger.reverse().kind == "stop":
                back.append(place(debugger))
        debugger.resume()
        if event.kind == "ended":
            while debugger.session.present is not None:
                debugger.resume()

    session = debugged(program, front)
    assert len(places) == 12
    assert back == places[::-1]
    assert differing(session, plain(program)) == []


def test_cycles_on_and_back_give_the_same_state(program: CompiledProgram) -> None:
    kept: list[Snapshot] = []
    found: list[str] = []

    def front(debugger: Debugger, event: StopEvent) -> None:
        session = debugger.session
        if event.kind == "loaded":
            debugger.step_cycles(50)
        elif event.kind == "cycle" and session.cycle == 50:
            kept.append(take_snapshot(session, 0))
            debugger.step_cycles(70)
        elif event.kind == "cycle":
            assert session.cycle == 120
            assert debugger.back(70).cycle == 50
            found.extend(take_snapshot(session, 0).differing(kept[0]))
            session.return_to_present()
            debugger.resume()
        else:
            debugger.resume()

    debugged(program, front)
    assert len(kept) == 1
    assert found == []


def test_a_watched_variable_names_line_and_old_value(program: CompiledProgram) -> None:
    told: list[str] = []

    def front(debugger: Debugger, event: StopEvent) -> None:
        if event.kind == "loaded":
            debugger.watch_variable("total", 0)
        elif event.kind == "watch":
            told.append(f"{debugger.view.where(event.row)} {shown(debugger.view.value(0, 'total'))}")
        elif event.kind == "ended":
            told.append(debugger.origin("data[2]", 0))
        debugger.resume()

    debugged(program, front)
    assert told[:6] == [f"pe.csl:10 (go) {total}" for total in (3, 7, 12, 18, 25, 33)]
    assert told[6].startswith("'data[2]' of core (0, 0) was written at pe.csl:9 (go), cycle ")


@pytest.mark.parametrize(
    ("condition", "values"),
    [("total > 10", (12, 18, 25, 33)), ("data[2] == 0", (3, 7)), ("nothing", (3, 7, 12, 18, 25, 33))],
)
def test_a_watch_point_may_have_a_condition(
    program: CompiledProgram, condition: str, values: tuple[int, ...]
) -> None:
    """data[2] is written before the third sum; a condition that names nothing stops at every write."""
    told: list[str] = []

    def front(debugger: Debugger, event: StopEvent) -> None:
        if event.kind == "loaded":
            told.append(Commands(debugger).execute(f"watch total core 0,0 if {condition}"))
        elif event.kind == "watch":
            told.append(shown(debugger.view.value(0, "total")))
        debugger.resume()

    debugged(program, front)
    assert told == [
        f"watchpoint 1: total of core (0, 0), if {condition}, 0 hits",
        *(str(v) for v in values),
    ]


def test_a_word_has_a_sender(tmp_path: Path) -> None:
    """A row of three cores: the first sends, the last hears; a value in memory leads to the sender's line, words in queues too."""
    files = {"left": HEAD + SEND, "mid": MID, "right": HEAD + HEAR}
    program = compile_text(tmp_path, "", LAYOUT.format(through="EAST"), **files)
    told: list[str] = []

    def front(debugger: Debugger, event: StopEvent) -> None:
        if event.kind == "loaded":
            debugger.watch_color(3, 1)
            debugger.watch_queue(2, 2, is_input=True)
        elif event.kind == "watch" and debugger.hits[0].id == 2:
            (queue,) = [q for q in debugger.view.queues(2) if q.name == "input queue 2"]
            told.append(queue.words[0].origin)
            debugger.delete_all()
        elif event.kind == "ended":
            told.append(debugger.origin("a", 2))
        debugger.resume()

    session = ReplaySession(program.image, load_wafer("wse2"))
    debugger = Debugger(front)
    debugger.attach(session, program.image)
    debugger.stopped(StopEvent("loaded", 0))
    for x in (0, 2):
        session.launch(x, 0, 1, 1, "f", arm=False)
    assert session.advance().reason == "idle"
    session.ended()
    assert told[0].startswith("core (0, 0) at left.csl:7 (f), cycle ")
    assert "was written at right.csl:7 (f), cycle " in told[1]
    assert ", from word 0x00000000 of color 3, sent by core (0, 0) at left.csl:7 (f), cycle " in told[1]


def test_descriptors_and_bad_expressions_are_told(program: CompiledProgram) -> None:
    said: list[str] = []

    def front(debugger: Debugger, event: StopEvent) -> None:
        if event.kind == "loaded":
            commands = Commands(debugger)
            said.extend(
                commands.execute(line)
                for line in (
                    "p nothing",
                    "p data[9]",
                    "break pe.csl:900",
                    "watch 1 + 2",
                    "core 7,7",
                    "fly",
                    "p data[0:2] +",
                    "b none",
                )
            )
        debugger.resume()

    debugged(program, front)
    assert [text.split(" ")[0] for text in said] == ["error:"] * 5 + ["there"] + ["error:"] * 2
    assert "has no variable 'nothing' here; it has" in said[0]
    assert "lines with code are 4 to 13" in said[2]
    types = Types(program.image)
    assert types.of_words("[2, 2]i16", [1, 2, 0xFFFF, 4]) == [[1, 2], [-1, 4]]
    assert types.of_words("f32", [0, 0x3F80]) == 1.0


def test_fields_of_packed_structures(tmp_path: Path) -> None:
    """A field that shares words, and a field inside it, is read from its bits."""
    text = """
    const E = enum(u3) { A, B = 5 }; const In = packed struct { p: bool, q: i5 };
    const H = packed struct { a: u4, s: i3, e: E, inner: In, w: u17, f: f32, z: i2 };
    var g: H = H{ .a = 9, .s = -2, .e = E.B, .inner = In{ .p = true, .q = -7 }, .w = 0x1abcd, .f = 1.5, .z = -1 };
    fn run() void { g.a = 8; }
    comptime { @export_symbol(run); }
    """
    machine = Machine(compile_text(tmp_path, text))
    machine.call("run")
    image = machine.program.image
    symbol = {s.name: s for s in image.classes[0].symbols}["g"]
    (fields,) = (fields for name, _, fields in image.structures if name == symbol.type)
    assert [(f.name, f.type, f.at, f.first, f.bits) for f in fields][1] == ("s", "i3", 0, 4, 3)
    place = ValuePlace("g", symbol.type, symbol.address)
    session = machine.session
    expression = Expression(Types(image), lambda _: place, lambda at, n: session.peek(0, 0, at, n).tolist())
    inner = {"p": True, "q": -7}
    assert expression.value("g") == {
        "a": 8,
        "s": -2,
        "e": ".B",
        "inner": inner,
        "w": 0x1ABCD,
        "f": 1.5,
        "z": -1,
    }
    image.save(tmp_path / "image.npz")
    assert Image.load(tmp_path / "image.npz").structures == image.structures
    for path, value in (
        ("g.s", -2),
        ("g.inner.q", -7),
        ("g.inner.p", True),
        ("g.w", 0x1ABCD),
        ("g.f", 1.5),
        ("g.z", -1),
    ):
        assert expression.value(path) == value


def write_gemv(folder: Path) -> None:
    """A program of one core with its host script, as the first page on CSL has it."""
    page = (
        (Path(__file__).parents[2] / "docs" / "csl.md")
        .read_text()
        .partition("## From an empty folder to a profile")[2]
    )
    blocks: list[list[str]] = [[]]
    for line in page.split("\n"):
        if line.startswith("    ") or (blocks[-1] and not line.strip()):
            blocks[-1].append(line[4:])
        elif blocks[-1]:
            blocks.append([])
    for name, block in zip(("layout.csl", "pe.csl", "run.py", "commands.sh"), blocks, strict=False):
        (folder / name).write_text("\n".join(block).strip() + "\n")


@pytest.mark.slow
def test_the_console_debugs_an_unchanged_command_file(tmp_path: Path) -> None:
    """The session of the page, as it came out."""
    write_gemv(tmp_path)
    page = (
        (Path(__file__).parents[2] / "docs" / "csl.md")
        .read_text()
        .partition("## Debugger")[2]
        .partition("\n## ")[0]
    )
    shown_lines = [line[4:] for line in page.split("\n") if line.startswith("    ")]
    first = next(i for i, line in enumerate(shown_lines) if line.startswith("cycle 0: loaded"))
    wanted = shown_lines[first:]
    (tmp_path / "steps.txt").write_text(
        "".join(line[6:] + "\n" for line in wanted if line.startswith("(csl) "))
    )
    command = [
        sys.executable,
        "-m",
        "wse_sim.cli",
        "csl",
        "debug",
        "commands.sh",
        "--commands",
        "steps.txt",
        "--batch",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    got = [line.rstrip() for line in done.stdout.split("\n") if line.rstrip()]
    assert got == [*(line.rstrip() for line in wanted if line.rstrip()), "SUCCESS!"]


class Client:
    """An editor: messages as the protocol has them."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "wse_sim.cli", "csl", "debug", "--dap"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.messages: list[dict[str, Any]] = []
        self._seq, self._buffer = 0, b""

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The body of the answer to a request."""
        self._seq += 1
        request = {"seq": self._seq, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.process.stdin.flush()
        answer = self._find(lambda m: m["type"] == "response" and m["request_seq"] == self._seq)
        assert answer["success"], answer
        found: dict[str, Any] = answer["body"]
        return found

    def event(self, name: str) -> dict[str, Any]:
        """The body of the next event of a name."""
        found: dict[str, Any] = self._find(lambda m: m.get("event") == name).get("body", {})
        return found

    def _find(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            for message in self.messages:
                if is_wanted(message):
                    self.messages.remove(message)
                    return message
            self._read(end - time.monotonic())
        raise AssertionError(f"the adapter did not answer; it sent {self.messages}")

    def _read(self, timeout_s: float) -> None:
        assert self.process.stdout is not None
        number = self.process.stdout.fileno()
        if select.select([number], [], [], timeout_s)[0]:
            data = os.read(number, 65536)
            assert data, "the adapter has ended"
            self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            length = int(head.partition(b":")[2])
            if len(rest) < length:
                return
            self.messages.append(json.loads(rest[:length]))
            self._buffer = rest[length:]


@pytest.mark.slow
def test_an_editor_is_answered(tmp_path: Path) -> None:
    """y after the first of eight columns is 0 .. 7; a step back leads from line 13 to line 15."""
    write_gemv(tmp_path)
    client = Client()
    try:
        assert client.ask("initialize", adapterID="test")["supportsStepBack"]
        client.ask("launch", program=str(tmp_path / "commands.sh"))
        client.event("initialized")
        source = {"path": str(tmp_path / "pe.csl")}
        (point,) = client.ask("setBreakpoints", source=source, breakpoints=[{"line": 15}])["breakpoints"]
        assert (point["verified"], point["line"]) == (True, 15)
        client.ask("configurationDone")
        stopped = client.event("stopped")
        assert stopped["reason"] == "breakpoint"
        (thread,) = client.ask("threads")["threads"]
        assert thread["name"] == "core (0, 0): pe.csl"
        frame = client.ask("stackTrace", threadId=thread["id"])["stackFrames"][0]
        assert (frame["name"], frame["line"], frame["source"]["name"]) == ("gemv", 15, "pe.csl")
        scopes = {
            s["name"]: s["variablesReference"] for s in client.ask("scopes", frameId=frame["id"])["scopes"]
        }
        local = {
            v["name"]: v["value"]
            for v in client.ask("variables", variablesReference=scopes["Locals"])["variables"]
        }
        assert local["j"] == "0"
        assert (
            client.ask("evaluate", expression="y", frameId=frame["id"])["result"]
            == "[0, 1, 2, 3, 4, 5, 6, 7]"
        )
        client.ask("next", threadId=thread["id"])
        client.event("stopped")
        client.ask("stepBack", threadId=thread["id"])
        client.event("stopped")
        assert client.ask("stackTrace", threadId=thread["id"])["stackFrames"][0]["line"] == 15
        client.ask("setBreakpoints", source=source, breakpoints=[])
        watched = client.ask("dataBreakpointInfo", name="y[3]")["dataId"]
        client.ask("setDataBreakpoints", breakpoints=[{"dataId": watched}])
        client.ask("continue", threadId=thread["id"])
        client.event("stopped")  # the place where the host waits
        client.ask("continue", threadId=thread["id"])
        assert client.event("stopped")["reason"] == "data breakpoint"
        assert client.ask("evaluate", expression="y[3]")["result"] == "6"
        client.ask("reverseContinue", threadId=thread["id"])
        assert client.event("stopped")["reason"] == "data breakpoint"
        assert client.ask("evaluate", expression="y[3]")["result"] == "3"
        client.ask("disconnect", terminateDebuggee=True)
        client.event("terminated")
        assert client.process.wait(60) == 0
    finally:
        client.process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"Content-Length: -5\r\n\r\n{}", "bytes"),
        (b"Content-Length: 200000\r\n\r\n" + b"[" * 200000, "not a request"),
        (
            b'Content-Length: 53\r\n\r\n{"seq": 1, "command": "initialize", "arguments": [5]} ',
            "not a request",
        ),
        (b'Content-Length: 100\r\n\r\n{"seq": 1', "within a message"),
    ],
)
def test_what_is_not_the_protocol_is_refused_in_one_sentence(sent: bytes, said: str) -> None:
    """An editor that errs is told so, and the exit status is 2."""
    command = [sys.executable, "-m", "wse_sim.cli", "csl", "debug", "--dap"]
    done = subprocess.run(command, input=sent, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stdout.decode()
    assert "terminated" in done.stdout.decode()
    assert "Traceback" not in done.stdout.decode() + done.stderr.decode()
