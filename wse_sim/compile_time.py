"""Tracks machine code that numba compiles: announced once if a person waits for it, and excluded from
measured run times.

:func:`watch` is called where numba is loaded; commands set :data:`announces`. The module itself loads
nothing.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

SAID_AFTER_S = 1.0  # of compiling in all: less is not worth a line


@dataclass
class Compiling:
    """Seconds that this process has spent compiling, CPU and wall-clock; functions loaded from disk do not count."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    announces: bool = False
    said: bool = False


so_far = Compiling()


def clock() -> tuple[float, float]:
    """Seconds by the clock and of this process's CPU, without what compiling took; differences of two calls are times of a run."""
    return time.perf_counter() - so_far.wall_s, time.process_time() - so_far.cpu_s


def watch() -> None:
    """Listen to numba's compiler; a function that is compiled within another counts once."""
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        depth = 0
        cpu = wall = 0.0

        def on_start(self, event: object) -> None:
            self.depth += 1
            if self.depth == 1:
                self.cpu, self.wall = time.thread_time(), time.perf_counter()
                _say()

        def on_end(self, event: object) -> None:
            self.depth -= 1
            if self.depth == 0:
                so_far.cpu_s += time.thread_time() - self.cpu
                so_far.wall_s += time.perf_counter() - self.wall

    event.register("numba:compile", Listener())


def _say() -> None:
    if so_far.announces and not so_far.said and so_far.wall_s >= SAID_AFTER_S:
        so_far.said = True
        print(
            "wse-sim: note: compiling machine code, once per installation; this takes up to a minute",
            file=sys.stderr,
            flush=True,
        )
