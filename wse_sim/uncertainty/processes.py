"""Runs tasks on several processes that are copies of this one: only the number of a task is sent to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from wse_sim.worker_processes import COPIES, Copies, may_start

T = TypeVar("T")
_TASKS: list[Callable[[int], Any]] = []
"""Tasks of the child processes, which are forked copies of this one."""


def in_processes(task: Callable[[int], T], count: int, workers: int) -> Iterator[T]:
    """Yield the results of tasks 0 to `count` - 1 in order; in this process where copies of a process cannot be made.

    Raises
    ------
    WseError
        If a worker is ended by the system, or waits forever.
    """
    if workers < 2 or count < 2 or not COPIES or not may_start():
        yield from map(task, range(count))
        return
    _TASKS.append(task)
    copies, abort = Copies(min(workers, count)), True
    try:
        yield from copies.in_order([copies.submit(_run, number) for number in range(count)])
        abort = False
    finally:
        copies.close(abort=abort)
        _TASKS.pop()


def _run(number: int) -> Any:
    return _TASKS[-1](number)
