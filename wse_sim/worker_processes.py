"""Worker processes of this command, and waits for them that end.

A worker can be ended by the system (memory), and a copy of a process with threads can wait forever for a lock that a
thread of the original held when it was copied.  The first is seen at once, the second by workers that use no processor
time; either way the command states this in one sentence and leaves no worker behind.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from wse_sim.child_processes import end_with_command
from wse_sim.errors import WseError

P = ParamSpec("P")
T = TypeVar("T")
COPIES = sys.platform.startswith("linux")
"""Whether workers are copies of this process; elsewhere they start without its memory."""

LOOK_S = 1.0
QUIET_LOOKS = 120
"""Looks in a row, a second each, at which no worker has worked."""

QUIET_S = 0.02
"""Processor time that one worker uses between these looks without working: its thread that monitors the parent."""

ENDED_S = 5.0
"""Time that the thread of the workers gets to end after they are killed."""


def may_start() -> bool:
    """Return whether this process may have workers: a worker of multiprocessing.Pool may not."""
    return not multiprocessing.current_process().daemon


class Copies:
    """`count` worker processes; `start` is called in each with `arguments`."""

    def __init__(
        self, count: int, start: Callable[P, object] | None = None, *arguments: P.args, **named: P.kwargs
    ) -> None:
        self.count = count
        context = multiprocessing.get_context("fork" if COPIES else "spawn")
        self._pool = ProcessPoolExecutor(count, context, _begin, (start, arguments, named))

    def submit(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Submit a task to the workers.

        Raises
        ------
        WseError
            If one of them has ended.
        """
        try:
            return self._pool.submit(work, *arguments, **named)
        except BrokenProcessPool:
            raise _lost() from None

    def as_completed(self, futures: Iterable[Future[T]]) -> Iterator[Future[T]]:
        """Tasks as they end; all that a task raised is in its future.

        Raises
        ------
        WseError
            If a worker is ended by the system, or all that are left wait forever.
        """
        left, quiet, before_s = set(futures), 0, self._worked_s()
        while left:
            done, left = wait(left, LOOK_S, FIRST_COMPLETED)
            for future in done:
                if isinstance(future.exception(), BrokenProcessPool):
                    raise _lost()
                yield future
            now_s = self._worked_s()
            if done or now_s is None or before_s is None or now_s - before_s > QUIET_S * self.count:
                quiet, before_s = 0, now_s
            quiet += 1
            if quiet > QUIET_LOOKS:
                raise WseError(
                    f"{self.count} worker processes have made no progress for {QUIET_LOOKS * LOOK_S:.0f} s and would wait for "
                    "ever; run the same command again, or with one process"
                )

    def in_order(self, futures: Iterable[Future[T]]) -> Iterator[T]:
        """Results of tasks in the order in which they are given.  Raises as :meth:`as_completed`, and what a task raised."""
        for future in futures:
            for done in self.as_completed([future]):
                yield done.result()

    def close(self, *, abort: bool) -> None:
        """Let the workers go; with `abort` their tasks are not waited for."""
        workers = list((getattr(self._pool, "_processes", None) or {}).values())
        manager = getattr(self._pool, "_executor_manager_thread", None)
        self._pool.shutdown(wait=not abort, cancel_futures=True)
        if abort:
            for worker in workers:
                with suppress(OSError, ValueError):
                    worker.kill()  # one that waits for a lock hears no other signal
            if manager is not None:
                # Python wakes this thread at its end; if its pipe is closed meanwhile, that is an OSError.
                manager.join(ENDED_S)

    def _worked_s(self) -> float | None:
        """Processor seconds of all workers so far; None if the system does not report them."""
        total = 0
        for number in list(getattr(self._pool, "_processes", None) or {}):
            try:
                fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                return None
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")


def _begin(
    start: Callable[..., object] | None, arguments: tuple[object, ...], named: dict[str, object]
) -> None:
    end_with_command()
    if start is not None:
        start(*arguments, **named)


def _lost() -> WseError:
    return WseError(
        "a worker process was stopped by the system, most likely because memory ran out; give the command more memory, "
        "or run it with fewer processes"
    )
