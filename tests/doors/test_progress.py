"""Progress on standard error in a file: a line at intervals, none for short steps."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from wse_sim.cli import common


def test_long_steps_say_that_they_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one line per wait, with the current step; the thread ends with the command."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(common, "EVERY_S", 0.01)
    seen = threading.Event()
    monkeypatch.setattr(written, "flush", seen.set)
    with common.progress(quiet=False) as say:
        say("compile pipelined")
        seen.clear()
        assert seen.wait(10)
    lines = written.getvalue().splitlines()
    assert lines[-1].startswith("wse-sim: compile pipelined (")
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


@pytest.mark.parametrize("quiet", [False, True])
def test_quick_steps_and_quiet_ones_say_nothing(quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that ends before the first wait has no line; --quiet has none at all."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(common, "EVERY_S", 0.01 if quiet else 5.0)
    with common.progress(quiet=quiet) as say:
        say("capture")
        threading.Event().wait(0.05)
    assert written.getvalue() == ""
