"""Tasks on several processes that are copies of this one: nothing is sent to them but the number of a task."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from wse_sim.ended import end_with_command

T = TypeVar("T")
_TASKS: list[Callable[[int], Any]] = []
"""What a child process finds: it is a copy of this one."""


def in_processes(task: Callable[[int], T], count: int, workers: int) -> Iterator[T]:
    """Results of tasks 0 to `count` - 1 in order; in this process where copies of a process cannot be made."""
    if workers < 2 or count < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(task, range(count))
        return
    _TASKS.append(task)
    try:
        with multiprocessing.get_context("fork").Pool(min(workers, count), end_with_command) as pool:
            yield from pool.imap(_run, range(count))
    finally:
        _TASKS.pop()


def _run(number: int) -> Any:
    return _TASKS[-1](number)
