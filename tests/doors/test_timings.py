"""Timings of a command: parts are nested, add up, and are collected only on demand."""

from __future__ import annotations

import time

import pytest
from typer.testing import CliRunner

from wse_sim.cli import app
from wse_sim.timings import collecting, lines, spent


def work(seconds: float) -> None:
    """Use CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


def test_parts_lie_in_each_other_and_equal_ones_are_one():
    """The outer part takes at least what its two inner runs take; a part that fails is closed like any other."""
    with collecting() as log:
        with spent("outer"):
            for _ in range(2):
                with spent("inner"):
                    work(0.01)
        with pytest.raises(ValueError, match="no"), spent("failing"):
            raise ValueError("no")
        with spent("last"):
            pass
    outer, inner, failing, last = log.parts
    assert [(part.name, part.depth, part.count) for part in log.parts] == [
        ("outer", 0, 1),
        ("inner", 1, 2),
        ("failing", 0, 1),
        ("last", 0, 1),
    ]
    assert 0.02 <= inner.cpu_s <= outer.cpu_s
    assert inner.wall_s <= outer.wall_s
    text = lines(log.parts, 1.0, 5.0)
    assert text[1].split()[-1] == "1.00"  # before the work
    assert any(line.startswith("  inner (x2)") for line in text)
    rest = 4.0 - outer.cpu_s - failing.cpu_s - last.cpu_s
    assert float(text[-2].split()[-1]) == pytest.approx(rest, abs=0.006)


def test_nothing_is_kept_unless_someone_collects():
    with spent("alone"):
        work(0.001)
    with collecting() as log:
        pass
    assert log.parts == []


def test_the_option_names_the_steps_and_leaves_the_answer_alone(monkeypatch):
    """Reading, the compiler's steps and the simulation have lines on standard error; the answer is unchanged."""
    monkeypatch.setenv("WSE_SIM_CACHE", "none")
    ask = ["run", "fc-mnist", "--mode", "weight-streaming", "--batch", "8", "--json"]
    plain, timed = (CliRunner().invoke(app, [*ask, *more]) for more in ([], ["--timings"]))
    assert plain.exit_code == timed.exit_code == 0
    assert timed.stdout == plain.stdout
    for part in ("read the model", "  capture", "compile", "simulate", "all"):
        assert f"\n{part}" in timed.stderr
    assert plain.stderr == ""
    shown = CliRunner().invoke(app, ["show", "model", "fc-mnist", "--json", "--timings"])
    assert "lower to kernels" in shown.stderr


def test_a_command_that_fails_says_where_its_time_went_too():
    found = CliRunner().invoke(app, ["run", "no-such-model", "--timings"])
    assert found.exit_code != 0
    assert found.stderr.startswith("part")
