"""Worker processes: their results, and that no wait for a killed or blocked one lasts forever."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.doors.test_interrupts import gone
from wse_sim import worker_processes
from wse_sim.errors import WseError
from wse_sim.uncertainty.processes import in_processes

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not worker_processes.COPIES, reason="no copies of a process here"),
]


def faults(task: Callable[[int], object]) -> str:
    """Return the sentence that two workers end with; none of them is left."""
    with pytest.raises(WseError) as found:
        list(in_processes(task, 4, 2))
    # Not `is_alive`: the pool's own thread may have collected a child, which Python then takes for alive.
    assert gone([child.pid for child in multiprocessing.active_children() if child.pid], 30.0)
    return str(found.value)


def test_results_are_in_order_whoever_is_first() -> None:
    def task(number: int) -> tuple[int, bool]:
        time.sleep(0.02 * (number == 0))
        return number, os.getpid() != here

    here = os.getpid()
    assert list(in_processes(task, 5, 2)) == [(number, True) for number in range(5)]


def test_what_a_task_raises_comes_back() -> None:
    def task(number: int) -> float:
        return 1 / (number - 1)

    with pytest.raises(ZeroDivisionError):
        list(in_processes(task, 3, 2))


def test_a_worker_that_the_system_kills_ends_the_wait() -> None:
    def task(number: int) -> int:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert "stopped by the system" in faults(task)


def test_a_worker_that_waits_for_ever_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread held a lock when the process was copied, so it is never released in the copy."""
    monkeypatch.setattr(worker_processes, "LOOK_S", 0.05)
    monkeypatch.setattr(worker_processes, "QUIET_LOOKS", 10)
    lock = threading.Lock()

    def task(number: int) -> int:
        with lock:
            return number

    with lock:
        assert "have made no progress" in faults(task)


@pytest.mark.slow
def test_long_work_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that computes for many times the limit is not ended."""
    monkeypatch.setattr(worker_processes, "LOOK_S", 0.02)
    monkeypatch.setattr(worker_processes, "QUIET_LOOKS", 10)
    monkeypatch.setattr(worker_processes, "QUIET_S", 0.0)

    def task(number: int) -> int:
        end = time.process_time() + 0.6
        while time.process_time() < end:
            pass
        return number

    assert list(in_processes(task, 2, 2)) == [0, 1]


@pytest.mark.slow
def test_a_command_whose_worker_is_killed_says_so() -> None:
    """The status is 2, with one sentence after lines of progress; a pool of multiprocessing would wait forever."""
    words = [
        "run",
        "fc-mnist",
        "--mode",
        "pipelined",
        "--batch",
        "64",
        "--interval",
        "90",
        "--interval-workers",
        "2",
    ]
    code = (
        "import os, signal, sys\n"
        "from wse_sim.uncertainty import spread\n"
        "real = spread.in_processes\n"
        "def killing(task, count, workers):\n"
        "    here = os.getpid()\n"
        "    def one(number):\n"
        "        if number == 3 and os.getpid() != here: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return task(number)\n"
        "    return real(one, count, workers)\n"
        "spread.in_processes = killing\n"
        "from wse_sim.door import main\n"
        f"sys.argv[1:] = {words!r}\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 2, done.stderr
    *progress, last = done.stderr.splitlines()
    assert "a worker process was stopped by the system" in last
    assert not any("Traceback" in line for line in progress), done.stderr
