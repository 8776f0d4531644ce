"""A sweep that is killed: no worker stays, finished runs are kept, the same call goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wse_sim import sweep

pytest.importorskip("torch")

PROGRAM = """
import sys
from pathlib import Path
from wse_sim import sweep
if __name__ == "__main__":
    answer = sweep.sweep_sizes(models=sys.argv[2:], workers=1, seq=32,
                               keep=Path(sys.argv[1]), batch=4, phase="inference")
    print(len(answer.rows))
"""


def children(pid: int) -> list[int]:
    """Processes below `pid`."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(text) for text in task.read_text().split()]
    return found + [below for child in found for below in children(child)]


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], limit_s: float = 20.0) -> bool:
    """Whether all processes end by themselves."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_and_started_again(tmp_path: Path) -> None:
    """kill -9 of the parent after the first run: the worker ends, the run is not done again."""
    program, kept = tmp_path / "go.py", tmp_path / "sweep.jsonl"
    program.write_text(PROGRAM)
    # The sweep starts at the end of its list: fc-mnist is done while the larger model is at work.
    words = [sys.executable, str(program), str(tmp_path), "gpt-100m", "fc-mnist"]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE)
    end = time.monotonic() + 240
    while not (kept.exists() and kept.read_text().endswith("\n")) and time.monotonic() < end:
        time.sleep(0.05)
    below = children(parent.pid)
    assert below
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(below)
    first = kept.read_text()
    assert json.loads(first.splitlines()[0])["model"] == "fc-mnist"
    # A line that the crash cut short is left out, and does not spoil the next.
    with kept.open("a") as file:
        file.write('{"key": "cut sh')
    options = {"batch": 4, "phase": "inference", "seq": 32}
    store = sweep.KeptRuns(tmp_path, options)
    rows = store.get("fc-mnist")
    assert rows is not None
    assert {row.mode for row in rows} == {"pipelined", "weight-streaming"}
    assert sweep.KeptRuns(tmp_path, {**options, "batch": 5}).get("fc-mnist") is None
    store.put("other", rows)
    assert sweep.KeptRuns(tmp_path, options).get("other") == rows
    # All found: nothing runs, and the answer is the one kept.
    again = sweep.sweep_sizes(models=["fc-mnist"], seq=32, keep=tmp_path, batch=4, phase="inference")
    assert list(again.rows) == sorted(rows, key=lambda row: (row.parameters, row.mode))


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
    _, err = process.communicate()
    if process.returncode == 0:
        pytest.skip("the command was faster than the signal")
    assert process.returncode == 130
    assert err == "wse-sim: interrupted\n"
