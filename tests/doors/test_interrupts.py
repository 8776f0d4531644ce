"""Interrupts and kills of a command leave one line and no worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STUDY = """
fixed: {model: fc-mnist, mode: weight-streaming}
grid: {batch: {from: 8, to: 2000, step: 1}}
draws: 0
"""


def children(pid: int) -> list[int]:
    """Return the processes below `pid`."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(text) for text in task.read_text().split()]
    return found + [below for child in found for below in children(child)]


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], limit_s: float = 60.0) -> bool:
    """Return whether all processes end by themselves."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_a_study_that_is_killed(tmp_path: Path) -> None:
    """kill -9 of the command while its workers run: they end by themselves."""
    pytest.importorskip("distributed")
    pytest.importorskip("torch")
    (tmp_path / "many.yaml").write_text(STUDY, encoding="utf-8")
    code = "from wse_sim.door import main; import sys; sys.argv = ['wse-sim', *sys.argv[1:]]; main()"
    words = [sys.executable, "-c", code, "study", "many.yaml", "--out", "out", "--workers", "1"]
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    end = time.monotonic() + 240
    while len(children(command.pid)) < 2 and time.monotonic() < end and command.poll() is None:
        time.sleep(0.1)
    below = children(command.pid)
    assert below
    command.send_signal(signal.SIGKILL)
    command.wait(60)
    assert gone(below)


@pytest.mark.thinned(1)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("after_s", [0.15, 0.3, 0.6])
def test_an_early_interrupt_is_one_line(tmp_path: Path, after_s: float) -> None:
    """SIGINT while modules load, or in the first moments of the work: status 130, no traceback."""
    code = "from wse_sim.door import main; import sys; sys.argv = ['wse-sim', 'show', 'kernels']; print('go', flush=True); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    time.sleep(after_s)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    if process.returncode == 0:
        pytest.skip("the command was faster than the signal")
    assert process.returncode == 130
    assert err == "wse-sim: interrupted\n"
