"""The trace of chosen cores: it changes nothing, its words are those of the program, and viewers read its lines."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from wse_sim.csl.host.arrays import HostError
from wse_sim.csl.host.traced import cores_of, cycles_of
from wse_sim.errors import ProgramError
from wse_sim.fabric.vm.session import Session
from wse_sim.fabric.vm.trace import TracedSession, Tracer
from wse_sim.hardware.wafer import load_wafer

from .machine import compile_text
from .test_waits import HEAD, HEAR, LAYOUT, MID, SEND

# What the public viewer takes apart, in our own words.
WORD = re.compile(
    r"@(\d+) P(\d+)\.(\d+) \(hwtile\) wavelet C(\d+) ctrl=[01], idx=[0-9a-f]{4}, data=[0-9a-f]{4} \([0-9a-f]{8}\([0-9a-f]{8}\)\), half=0, "
    r"ident=([0-9a-f]{16}) landing=([RENWS-]) departing=/([EWNSR ]{5})/(, to_ce_from_router)?"
)
ISSUE = re.compile(
    r"@\d+ P\d+\.\d+: Id: 0, Instr: 1, Seq: 0, Pipe: 2, Msg: \[EX OP\] (IDLE|\^ 0x[0-9a-f]{4}: T0 \S+)"
)


def traced(
    folder: Path, cores: list[tuple[int, int]], cycles: tuple[int, int] = (0, 400), **how: int
) -> tuple[Tracer, Session]:
    program = compile_text(
        folder, "", LAYOUT.format(through="EAST"), left=HEAD + SEND, mid=MID, right=HEAD + HEAR
    )
    tracer = Tracer(program.image, cores, cycles, **how)
    session = TracedSession(program.image, load_wafer("wse2"), tracer)
    for x in (0, 2):
        session.launch(x, 0, 1, 1, "f", arm=False)
    assert session.advance().reason == "idle"
    return tracer, session


def test_each_word_passes_each_router_once_under_one_name(tmp_path: Path) -> None:
    """Eight words: each lands at three routers and leaves them, a link a cycle, in their order."""
    tracer, _ = traced(tmp_path, [(0, 0), (1, 0), (2, 0)])
    left = [w for w in tracer.words if w["out"]]
    assert len(left) == 24
    names = {w["ident"] for w in left}
    assert len(names) == 8
    for name in names:
        way = [(w["core"], w["port"], w["out"]) for w in left if w["ident"] == name]
        assert way == [(0, 4, 2), (1, 3, 2), (2, 3, 16)]
        cycles = [w["cycle"] for w in left if w["ident"] == name]
        assert np.diff(cycles).tolist() == [1, 1]


def test_the_trace_changes_neither_cycles_nor_memory_and_names_lines(tmp_path: Path) -> None:
    tracer, session = traced(tmp_path, [(0, 0)])
    plain = Session(session.image, load_wafer("wse2"))
    for x in (0, 2):
        plain.launch(x, 0, 1, 1, "f", arm=False)
    plain.advance()
    assert session.cycle == plain.cycle
    assert np.array_equal(session.machine.memory, plain.machine.memory)
    vector = [s for s in tracer.spans if "mov32" in s.name]
    assert vector
    assert all("left.csl" in s.where for s in vector)
    assert sum(s.last - s.first + 1 for s in vector if s.state == "busy") >= 8


def test_lines_of_the_log_have_the_form_that_viewers_read(tmp_path: Path) -> None:
    tracer, session = traced(tmp_path, [(0, 0), (1, 0), (2, 0)])
    first, *lines = tracer.log().splitlines()
    assert re.fullmatch(r"@0 dimX=3, dimY=1", first)
    matches = [WORD.fullmatch(line) for line in lines]
    assert all(match or ISSUE.fullmatch(line) for match, line in zip(matches, lines, strict=True))
    words = [m for m in matches if m]
    assert sum(m[8] is not None for m in words) == 8  # delivered to the core
    cycles = [int(line[1:].split(" ")[0]) for line in lines]
    assert cycles == sorted(cycles)
    assert cycles[-1] <= session.cycle


def test_the_timeline_is_json_with_a_track_per_thread_and_is_bounded(tmp_path: Path) -> None:
    tracer, _ = traced(tmp_path, [(0, 0), (2, 0)])
    events = json.loads(tracer.timeline())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "core (0, 0)",
        "core (2, 0)",
    }
    assert all(e["dur"] >= 1 for e in events if e["ph"] == "X")
    short, _ = traced(tmp_path, [(0, 0), (2, 0)], most_events=10)
    assert short.cut_at > 0
    assert len(short.spans) + len(short.words) < 30
    window, _ = traced(tmp_path, [(0, 0)], (10, 20))
    assert all(10 <= w["cycle"] < 20 for w in window.words)


def test_what_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    image = compile_text(tmp_path, "fn f() void {}\ncomptime { @export_symbol(f); }").image
    for cores, cycles, why in (
        ([(4, 0)], (0, 9), "outside"),
        ([], (0, 9), "0 cores"),
        ([(0, 0)], (9, 9), "empty span"),
    ):
        with pytest.raises(ProgramError, match=why):
            Tracer(image, cores, cycles)
    assert cores_of("1:3,0:2+7,7") == [(1, 0), (2, 0), (1, 1), (2, 1), (7, 7)]
    assert cycles_of("5:10") == (5, 10)
    for text in ("1", "a,b", "3:1,0", "1,2,3", ""):
        with pytest.raises(HostError):
            cores_of(text)
    for text in ("5", "5:5", "-1:4"):
        with pytest.raises(HostError):
            cycles_of(text)
