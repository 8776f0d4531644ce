"""Where the time of a question goes: named parts of the work, collected while someone asks for it.

    with collecting() as log:          the command line, for ``--timings``
        ...
            with spent("capture"):     at the work itself; costs nothing while nobody collects
                ...

Times are seconds of CPU of this process and seconds on the clock; parts are in each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

SHOWN_S = 0.005  # parts within others that took less are not worth a line


@dataclass
class Spent:
    """One part of the work: what it is, how deep it is in others, its times in seconds, how often it ran."""

    name: str
    depth: int
    cpu_s: float = 0.0
    wall_s: float = 0.0
    count: int = 0


class Log:
    """Parts in the order in which they began; parts of one name at one place are one."""

    def __init__(self) -> None:
        self.parts: list[Spent] = []
        self._open: list[Spent] = []
        self._known: dict[tuple[str, ...], Spent] = {}

    def enter(self, name: str) -> Spent:
        """A part begins."""
        where = (*(part.name for part in self._open), name)
        part = self._known.get(where)
        if part is None:
            part = self._known[where] = Spent(name, len(self._open))
            self.parts.append(part)
        self._open.append(part)
        return part

    def leave(self, part: Spent, cpu_s: float, wall_s: float) -> None:
        """A part ends."""
        self._open.pop()
        part.cpu_s += cpu_s
        part.wall_s += wall_s
        part.count += 1


_log: ContextVar[Log | None] = ContextVar("spent", default=None)


@contextmanager
def collecting() -> Iterator[Log]:
    """Collect parts in the block."""
    log = Log()
    mark = _log.set(log)
    try:
        yield log
    finally:
        _log.reset(mark)


@contextmanager
def spent(name: str) -> Iterator[None]:
    """Time a named part of the work, if timings are collected."""
    log = _log.get()
    if log is None:
        yield
        return
    part, cpu, wall = log.enter(name), time.process_time(), time.perf_counter()
    try:
        yield
    finally:
        log.leave(part, time.process_time() - cpu, time.perf_counter() - wall)


def lines(parts: Sequence[Spent], before_s: float, total_s: float) -> list[str]:
    """The parts as text; `before_s` CPU seconds went before the work began, `total_s` in all."""
    top = sum(part.cpu_s for part in parts if part.depth == 0)
    rows: list[tuple[str, float, float | None]] = [("start: Python, imports of the command", before_s, None)]
    for part in parts:
        times = f" (x{part.count})" if part.count > 1 else ""
        if part.depth == 0 or max(part.cpu_s, part.wall_s) >= SHOWN_S:
            rows.append((f"{'  ' * part.depth}{part.name}{times}", part.cpu_s, part.wall_s))
    rows += [("rest", total_s - before_s - top, None), ("all", total_s, None)]
    width = max(len(name) for name, _, _ in rows)
    head = f"{'part':<{width}}  {'CPU s':>8}  {'clock s':>8}"
    return [head] + [
        f"{name:<{width}}  {cpu:>8.2f}  {'' if wall is None else f'{wall:.2f}':>8}".rstrip()
        for name, cpu, wall in rows
    ]
