"""Why a program stands still: the cause first, found through routes, queues, tasks and microthreads."""

import sys
from pathlib import Path

import pytest

from wse_sim.cli import app
from wse_sim.csl import compile_program
from wse_sim.csl.host import stalled
from wse_sim.door import run as door
from wse_sim.fabric.vm.proof import StandstillProof
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer

from .machine import compile_text

LAYOUT = """
const c = @get_color(3); const d = @get_color(4);
layout {{
  @set_rectangle(3, 1);
  @set_tile_code(0, 0, "left.csl", .{{}}); @set_tile_code(1, 0, "mid.csl", .{{}}); @set_tile_code(2, 0, "right.csl", .{{}});
  @set_color_config(0, 0, c, .{{ .routes = .{{ .rx = .{{ RAMP }}, .tx = .{{ EAST }} }} }});
  @set_color_config(1, 0, c, .{{ .routes = .{{ .rx = .{{ WEST }}, .tx = .{{ {through} }} }} }});
  @set_color_config(2, 0, c, .{{ .routes = .{{ .rx = .{{ WEST }}, .tx = .{{ RAMP }} }} }});
  @set_color_config(2, 0, d, .{{ .routes = .{{ .rx = .{{ RAMP }}, .tx = .{{ WEST }} }} }});
  @set_color_config(1, 0, d, .{{ .routes = .{{ .rx = .{{ EAST }}, .tx = .{{ WEST }} }} }});
  @set_color_config(0, 0, d, .{{ .routes = .{{ .rx = .{{ EAST }}, .tx = .{{ RAMP }} }} }});
}}
"""
HEAD = """
const c = @get_color(3); const d = @get_color(4); const iq = @get_input_queue(2); const oq = @get_output_queue(3);
var a = @zeros([8]u32); const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
task after() void {}
comptime { @export_symbol(f); @bind_local_task(after, @get_local_task_id(9)); }
"""
MID = HEAD + "fn f() void {}"
SENDS = "const out = @get_dsd(fabout_dsd, .{ .fabric_color = COLOR, .extent = N, .output_queue = oq });\n"
HEARS = "const in = @get_dsd(fabin_dsd, .{ .fabric_color = COLOR, .extent = 8, .input_queue = iq });\n"


def color(text: str, name: str, n: int = 8) -> str:
    return text.replace("COLOR", name).replace("N,", f"{n},")


def stopped(folder: Path, left: str, right: str, through: str = "EAST") -> StandstillProof:
    """Both outer cores run f; nobody releases its command stream."""
    files = {"left": HEAD + left, "mid": MID, "right": HEAD + right}
    program = compile_text(folder, "", LAYOUT.format(through=through), **files)
    session = Session(program.image, load_wafer("wse2"))
    session.launch(0, 0, 1, 1, "f")
    session.launch(2, 0, 1, 1, "f")
    assert session.advance("commands").reason == "waits"
    return session.proof()


SEND = color(SENDS, "c") + "fn f() void { @mov32(out, mem); }"
HEAR = color(HEARS, "c") + "fn f() void { @mov32(mem, in); }"


def test_a_gap_in_the_route_is_the_cause(tmp_path: Path) -> None:
    """The middle router leads the color to its own core: nothing can reach the right one."""
    proof = stopped(tmp_path, SEND, HEAR, through="RAMP")
    first = proof.text().splitlines()[0]
    assert "the router of core (1, 0) leads color 3 to its core, not to the east" in first
    assert any(
        "element 1 of 8, a word of color 3 in input queue 2" in line for c in proof.causes for line in c.chain
    )


def test_two_cores_that_hear_first_form_a_cycle(tmp_path: Path) -> None:
    left = color(SENDS, "c") + color(HEARS, "d") + "fn f() void { @mov32(mem, in); @mov32(out, mem); }"
    right = color(SENDS, "d") + color(HEARS, "c") + "fn f() void { @mov32(mem, in); @mov32(out, mem); }"
    (cause,) = stopped(tmp_path, left, right).causes
    assert "form a cycle" in cause.text
    assert "core (0, 0) at" in cause.text
    assert "core (2, 0) at" in cause.text
    assert cause.cores == 2


def test_a_sender_of_too_few_words_is_named_with_what_it_did_not_run(tmp_path: Path) -> None:
    """Six of eight words: the receiver waits for the seventh, the sender rests."""
    six = "const six = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{6} -> a[i] });"
    proof = stopped(tmp_path, color(SENDS, "c", 6) + six + "fn f() void { @mov32(out, six); }", HEAR)
    text = proof.text()
    assert "core (0, 0) is idle: no task is active" in text.splitlines()[0]
    assert "never ran: 'after'" in text.splitlines()[0]
    assert "element 7 of 8" in text
    assert text.index("element 7 of 8") < text.index("core (2, 0) has not released")


def test_a_full_queue_that_nothing_reads(tmp_path: Path) -> None:
    """Nobody takes what the right core hears: the left core waits for room, through two routers."""
    right = "task takes(w: u32) void {} fn f() void {}\ncomptime { @bind_data_task(takes, @get_data_task_id(c)); @block(takes); }"
    proof = stopped(tmp_path, SEND, right)
    assert "task 'takes'" in proof.text().splitlines()[0]
    assert "blocked" in proof.text().splitlines()[0]


def test_cores_that_rest_are_no_cycle_and_stuck_words_weigh_more_than_a_core_at_rest(tmp_path: Path) -> None:
    """Both outer cores have a data task for a word of the other; the cause of the second program is behind one of two ways of a core at rest."""
    left = (
        color(SENDS, "c")
        + "task hears(w: u32) void {} fn f() void {}\ncomptime { @bind_data_task(hears, @get_data_task_id(d)); }"
    )
    right = (
        color(SENDS, "d")
        + "task hears(w: u32) void {} fn f() void {}\ncomptime { @bind_data_task(hears, @get_data_task_id(c)); }"
    )
    rests = stopped(tmp_path, left, right).causes
    assert all("is idle: no task is active" in cause.text and cause.is_rest for cause in rests)
    sends = "fn f() void { @mov32(out, mem, .{ .async = true }); @mov32(out, mem, .{ .async = true }); }"
    hears = "task hears(w: u32) void {}\ncomptime { @bind_data_task(hears, @get_data_task_id(d)); }"
    many = SEND.split("fn f")[0].replace(".extent = 8", ".extent = 80")
    wrong = LAYOUT.replace(
        "@set_color_config(0, 0, c, .{{ .routes = .{{ .rx = .{{ RAMP }}",
        "@set_color_config(0, 0, c, .{{ .routes = .{{ .rx = .{{ SOUTH }}",
    )
    program = compile_text(
        tmp_path,
        "",
        wrong.format(through="EAST"),
        left=HEAD.replace("[8]u32", "[80]u32").replace("{8}", "{80}") + many + sends + hears,
        mid=MID,
        right=HEAD + HEAR,
    )
    session = Session(program.image, load_wafer("wse2"))
    session.launch(0, 0, 1, 1, "f")
    assert session.advance("commands").reason == "waits"
    assert "its route receives from south only" in session.proof().text().splitlines()[0]


def test_an_activated_task_that_is_blocked(tmp_path: Path) -> None:
    left = "fn f() void { @activate(@get_local_task_id(9)); }\ncomptime { @block(@get_local_task_id(9)); }"
    proof = stopped(tmp_path, left, "fn f() void {}")
    assert any("task 'after' (id 9) is activated and blocked" in cause.text for cause in proof.causes)


def test_the_first_cycle_without_progress_does_not_move_with_the_clock(tmp_path: Path) -> None:
    """It is a fact of the program, not of how long the host looked on."""
    program = compile_text(tmp_path, HEAD + HEAR, arch="wse2")
    session = Session(program.image, load_wafer("wse2"))
    session.launch(0, 0, 1, 1, "f")
    session.advance("commands")
    since = session.proof().since
    session.advance("cycle", cycles=5000)
    assert session.cycle > 5000
    assert session.proof().since == since < 100


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_program_that_ends_has_no_cause(tmp_path: Path, arch: str) -> None:
    (tmp_path / "pe.csl").write_text("fn f() void {}\ncomptime { @export_symbol(f); }")
    (tmp_path / "layout.csl").write_text(
        'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{}); }'
    )
    session = Session(compile_program(tmp_path / "layout.csl", arch=arch).image, load_wafer(arch))
    session.launch(0, 0, 1, 1, "f", arm=False)
    assert session.advance().reason == "idle"
    assert session.proof().causes == ()


def test_the_command_line_prints_a_cause_as_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other faults stay one line, whatever line ends they hold."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "run.py"
    for error, lines in (
        ("StoppedError", ["wse-sim: run.py:2: stops, because A", "  therefore B"]),
        ("HostError", ["wse-sim: run.py:2: stops, because A therefore B"]),
    ):
        script.write_text(
            f"from wse_sim.csl.host.arrays import {error}\nraise {error}('stops, because A\\n  therefore B')\n"
        )
        assert door(app, ["cs-python", str(script)]) == 2
        assert capsys.readouterr().err.splitlines() == lines


def test_a_long_wait_says_that_words_move(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pulse of a run: words since a million cycles ago, or that none moved."""
    proof = stopped(tmp_path, SEND, HEAR.replace("fn f() void { @mov32(mem, in); }", "fn f() void {}"))
    assert proof.causes
    monkeypatch.setattr(stalled, "BEAT_S", 0.0)
    session = Session(compile_program(tmp_path / "layout.csl").image, load_wafer("wse2"))
    pulse = stalled.Pulse("launch of 'f'")
    pulse.look(session)
    assert "too short to tell" in capsys.readouterr().err
    session.machine.links[0, 1] += 42
    session.advance("cycle", cycles=2_000_000)
    pulse.look(session)
    assert (
        "launch of 'f' at cycle 2,000,000: not dead: 42 words more than 2,000,000 cycles ago"
        in capsys.readouterr().err
    )
    session.advance("cycle", cycles=2_000_000)
    pulse.look(session)
    assert "no word moved in the last 2,000,000 cycles" in capsys.readouterr().err
