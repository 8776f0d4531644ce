"""Child processes of a test: copies of its process that end whatever happens in them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

FAILED = 2
LIMIT_S = 120.0


def start_child(work: Callable[[], object]) -> int:
    """Return the number of a copy of this process that does `work` and ends: with 0, or with 2 if it raised.

    A copy that returned would continue with the tests of its parent.
    """
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        os._exit(FAILED)


def status_of(child: int) -> int:
    """Wait for a child to end; return its exit status, or minus the number of the signal.

    One that does not end within :data:`LIMIT_S` is killed: a copy of a process with threads can wait forever for a lock.
    """
    end = time.monotonic() + LIMIT_S
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < end:
        time.sleep(0.005)
    is_late = time.monotonic() >= end
    if is_late:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert not is_late, f"a child did not finish within {LIMIT_S:g} s"
    return status
