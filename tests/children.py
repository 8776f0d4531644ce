"""Children of a test: copies of its process that can only end, whatever they meet."""

from __future__ import annotations

import os
from collections.abc import Callable

FAILED = 2


def start_child(work: Callable[[], object]) -> int:
    """Number of a copy of this process that does `work` and ends: with 0, or with 2 if it raised.

    A copy that returned would go on with the tests of its parent.
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
    """How a child ended, once it has: its exit status, or minus the number of the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
