"""Processes that end with the command that started them, however it ends.

Workers of our own (copies of this process) look whether their parent is still there.  Foreign programs run as a group:
their own session, which is ended as a whole when the program ends, when its time is up, when the command is
interrupted, and, by a shell that waits for nothing else, when the command is killed.

A program can start others that leave its session (``setsid``, a daemon).  They inherit a mark in their environment, by which
Linux lists them, so they end too.  What leaves the session and clears its environment as well is not found.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

GRACE_S = 2.0
"""Seconds that a group has after SIGTERM before SIGKILL."""

MARK = "WSE_SIM_STARTED_BY"
"""Variable of the environment with a mark for each :func:`run_group` that a process descends from."""

_LOOKS_S = 0.02
# Reads until its parent lets go of the pipe: without a line first, the parent was killed.
_WATCH = """read line && exit
kill -KILL "-$1"
for each in /proc/[0-9]*; do grep -qs "$2" "$each/environ" && kill -KILL "${each#/proc/}"; done
"""


def end_with_command() -> None:
    """In a worker: end when the process that started it has ended, however it did; the parent alone handles signals."""
    threading.Thread(target=_look_after, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _look_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def run_group(
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
) -> int:
    """Run a program; its exit status, below 0 for a signal.  Nothing that it started is left when this ends.

    Raises
    ------
    subprocess.TimeoutExpired
        If it does not end within `timeout_s` seconds.
    """
    mark = secrets.token_hex(16)
    marked = {**env, MARK: f"{env[MARK]} {mark}" if MARK in env else mark}
    program = subprocess.Popen(
        words, cwd=cwd, env=marked, stdout=stdout, stderr=stderr, start_new_session=True
    )
    watch = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, "sh", str(program.pid), mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _await(program.pid, None if timeout_s is None else time.monotonic() + timeout_s, words, timeout_s)
        return _status(program)
    finally:
        _end(program, mark)
        with suppress(OSError):
            watch.communicate(b"done\n")


def _await(number: int, end: float | None, words: Sequence[str], timeout_s: float | None) -> None:
    """Wait for a process and leave it unreaped: so long, no other process and no other group gets its number."""
    how = os.WEXITED | os.WNOWAIT | (0 if end is None else os.WNOHANG)
    while os.waitid(os.P_PID, number, how) is None:
        if end is not None and time.monotonic() > end:
            raise subprocess.TimeoutExpired(words, timeout_s or 0.0)
        time.sleep(_LOOKS_S)


def _status(program: subprocess.Popen[bytes]) -> int:
    """The status of a program that has ended, still unreaped."""
    found = os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _end(program: subprocess.Popen[bytes], mark: str) -> None:
    """End a program's process group and the processes that left the group: first with SIGTERM, then with SIGKILL."""
    end = time.monotonic() + GRACE_S
    for number in (signal.SIGTERM, signal.SIGCONT):
        _send(program.pid, mark, number)
    for _ in range(2):
        while (_others(program.pid) or _marked(mark)) and time.monotonic() < end:
            time.sleep(_LOOKS_S)
        _send(program.pid, mark, signal.SIGKILL)
        end = time.monotonic() + GRACE_S  # what is killed needs a moment to go
    program.wait()


def _send(group: int, mark: str, number: signal.Signals) -> None:
    with suppress(OSError):
        os.killpg(group, number)
    for one in _marked(mark):
        with suppress(OSError):
            os.kill(one, number)


def _numbers() -> list[int]:
    """All processes of this machine.  Raises OSError where the system does not list them."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _marked(mark: str) -> list[int]:
    """Living processes with a mark in their environment; none where the system does not list them."""
    found = []
    with suppress(OSError):
        for number in _numbers():
            with suppress(OSError):
                if mark.encode() in Path(f"/proc/{number}/environ").read_bytes():
                    found.append(number)
    return found


def _others(group: int) -> bool:
    """Whether a process of a group still runs; where the system does not list them, one may."""
    try:
        numbers = _numbers()
    except OSError:
        return True
    for number in numbers:
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                return True
    return False
