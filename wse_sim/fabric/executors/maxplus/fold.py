"""Folding for timing-only runs: equal rows, and repeating rows or columns, are solved once.

**Equal rows**: where no route leads from row to row, rows with equal programs have equal times.

**Repeating lines** (rows or columns): a stretch of lines whose programs and routes repeat with period p is shortened to a few
periods, the small program is solved, and the middle period is copied.  With X_i(t) all moves, reads and ring pops of
period i, the small solution has to show

    X_(j+1)(t) = X_j(t - s),    X_j(t) = X_(j-1)(t - s)

for some period j and one shift s.  Then these times satisfy the equations of the large program:

* Copies i = 1 .. N between j and j + 1 are X_j later by i s; everything behind them is later by N s.  (With s < 0 the same
  holds from the other end.)  Neighbours of a copy are later and earlier by s, as those of period j are.
* The equations know no absolute time but for a core's own clock at its first word.  A shifted core may
  not be limited by its own start-up.  So its first word must have waited for an arrival (``ANCHOR``): shifting
  makes that arrival later, and the core still waits.
* Arbitration follows from the moves (credits, pointers), and the equations have one solution.

Streams are compared by signature (:mod:`~wse_sim.fabric.executors.maxplus.sign`). Programs that do not repeat
are solved completely.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.maxplus.records import ARRIVAL, OWN_CLOCK
from wse_sim.fabric.format.program import PORT_BIT, Program

Array = npt.NDArray[Any]
Planes = dict[str, Array]
"""Arrays (rows, cols, ...) by name: counters per core, ``anchor``, ``hashes``, ``firsts``, and ``origin``, the core solved."""
Solver = Callable[[Program, bool], Planes | None]

MIN_ROWS = 4
MAX_PERIOD = 16  # lines
KEPT = (8, 24, 72)  # periods of a first, second, third attempt
SHIFTED = ("halt", "stalled_in", "firsts")  # fields that a shift in time changes; all others are equal


class Rectangle(Protocol):
    """The data that distinguish lines of cores: arrays (..., R)."""

    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def core_class(self) -> Array: ...
    @property
    def die_edges(self) -> Array: ...
    @property
    def route(self) -> Iterable[Array]: ...
    @property
    def params(self) -> Iterable[Array]: ...


def lines_of(program: Rectangle, axis: int) -> list[Array]:
    """Return everything that distinguishes rows (axis 0) or columns (axis 1): arrays (lines, cores of a line)."""
    shape = program.rows, program.cols
    planes = [program.core_class, program.die_edges, *program.route, *program.params]
    return [np.ascontiguousarray(np.moveaxis(plane.reshape(shape), axis, 0)) for plane in planes]


def number_lines(program: Rectangle, axis: int) -> npt.NDArray[np.int64]:
    """Return equal numbers for equal rows or columns, in the order of first occurrence."""
    planes = lines_of(program, axis)
    seen: dict[bytes, int] = {}
    keys = (b"".join(plane[i].tobytes() for plane in planes) for i in range(len(planes[0])))
    return np.array([seen.setdefault(key, len(seen)) for key in keys], np.int64)


def take_lines(program: Program, axis: int, lines: npt.NDArray[np.int64]) -> Program:
    """Return the program of some rows or columns."""

    rows, cols = (len(lines), program.cols) if axis == 0 else (program.rows, len(lines))

    def part(plane: Array) -> Array:
        whole = plane.reshape(*plane.shape[:-1], program.rows, program.cols)
        chosen = np.take(whole, lines, axis=whole.ndim - 2 + axis)
        return np.ascontiguousarray(chosen).reshape(*plane.shape[:-1], rows * cols)

    return dataclasses.replace(
        program, rows=rows, cols=cols, core_class=part(program.core_class), die_edges=part(program.die_edges), route=part(program.route), params=part(program.params)
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RepeatedLines:
    """`count` periods of `period` lines, from line `first`."""

    axis: int
    first: int
    period: int
    count: int

    def end(self, period: int) -> int:
        """First line after period `period`."""
        return self.first + (period + 1) * self.period

    def shortened(self, program: Program, kept: int) -> Program:
        """Return the program with `kept` periods."""
        lines = program.rows if self.axis == 0 else program.cols
        return take_lines(program, self.axis, np.r_[0 : self.end(kept - 1), self.end(self.count - 1) : lines])

    def lengthened(self, planes: Planes, kept: int) -> Planes | None:
        """Return the planes of the whole program from those of the shortened one; None if this is not
        proved."""
        small = {name: np.moveaxis(plane, self.axis, 0) for name, plane in planes.items()}
        for j in sorted(range(1, kept - 1), key=lambda i: abs(2 * i - kept)):
            shift = self._shift(small, j - 1)
            if shift is None or shift != self._shift(small, j) or not self._anchored(small, j, shift):
                continue
            return self._copied(small, j, self.count - kept, shift)
        return None

    def _shift(self, small: Planes, i: int) -> int | None:
        """Return the cycles by which period i + 1 is later than period i; None if they differ in anything
        else."""
        here, there = slice(self.end(i - 1), self.end(i)), slice(self.end(i), self.end(i + 1))
        for name, plane in small.items():
            if name not in (*SHIFTED, "origin") and not np.array_equal(plane[here], plane[there]):
                return None
        firsts, later = small["firsts"][here], small["firsts"][there]
        used = firsts >= 0
        if not np.array_equal(used, later >= 0):
            return None
        shifts = np.unique((later - firsts)[used])
        if len(shifts) > 1:
            return None
        shift = int(shifts[0]) if len(shifts) else 0
        moved = np.where(small["anchor"][here] == ARRIVAL, shift, 0)
        for name in ("halt", "stalled_in"):
            if not np.array_equal(small[name][there] - small[name][here], moved):
                return None
        return shift

    def _anchored(self, small: Planes, j: int, shift: int) -> bool:
        """Return whether no shifted core starts by its own clock."""
        late = slice(self.end(j - 1), None) if shift > 0 else slice(0, self.end(j))
        return shift == 0 or not (small["anchor"][late] == OWN_CLOCK).any()

    def _copied(self, small: Planes, j: int, copies: int, shift: int) -> Planes:
        """Insert `copies` copies of period j after it."""
        lines, middle = len(small["halt"]), np.arange(self.end(j - 1), self.end(j))
        place = np.r_[0 : self.end(j), np.tile(middle, copies), self.end(j) : lines]
        lag = np.r_[
            np.zeros(self.end(j), int),
            np.repeat(np.arange(1, copies + 1), self.period),
            np.full(lines - self.end(j), copies),
        ]
        lag = lag * shift if shift >= 0 else (lag - copies) * shift
        whole = {name: plane[place] for name, plane in small.items()}
        late = np.where(whole["anchor"] == ARRIVAL, lag[:, None], 0)
        for name in ("halt", "stalled_in"):
            whole[name] = whole[name] + late
        whole["firsts"] = np.where(whole["firsts"] < 0, -1, whole["firsts"] + lag[:, None, None])
        return {name: np.moveaxis(plane, 0, self.axis) for name, plane in whole.items()}


def find_repeat(program: Rectangle, axis: int) -> RepeatedLines | None:
    """Return the longest sequence of repeating lines; None if it is too short to save time."""
    numbers = number_lines(program, axis)
    best = RepeatedLines(axis, 0, 1, 0)
    for period in range(1, min(MAX_PERIOD, len(numbers) // 2) + 1):
        equal = (numbers[period:] == numbers[:-period]).astype(np.int8)
        edges = np.diff(np.r_[0, equal, 0].astype(np.int8))
        starts, lengths = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
        for i in [int(lengths.argmax())] if len(lengths) else []:
            count = (int(lengths[i]) + period) // period
            if count * period > best.count * best.period:
                best = RepeatedLines(axis, int(starts[i]), period, count)
    return best if best.count >= 2 * KEPT[0] else None


def distinct_rows(program: Program) -> tuple[Program, npt.NDArray[np.int64]] | None:
    """Return the program of the distinct rows, and each row's index in it; None if rows are connected or all
    differ."""
    vertical = PORT_BIT["N"] | PORT_BIT["S"]
    if program.rows < MIN_ROWS or ((program.cfg_rx | program.cfg_tx) & vertical).any():
        return None
    place = number_lines(program, 0)
    _, first = np.unique(place, return_index=True)
    return (take_lines(program, 0, first), place) if len(first) < program.rows else None


def solve_folded(program: Program, solve: Solver, signing: bool = False) -> Planes | None:
    """Return the planes of `program`; `solve` computes them for a program without folding, or returns None if
    incomplete."""
    distinct = distinct_rows(program)
    if distinct is not None:
        few = solve_folded(distinct[0], solve, signing)
        return few and {name: plane[distinct[1]] for name, plane in few.items()}
    for axis in (0, 1):
        repeat = find_repeat(program, axis)
        for kept in KEPT:
            if repeat is None or repeat.count < 2 * kept:
                break
            planes = solve_folded(repeat.shortened(program, kept), solve, True)
            if planes is None:
                return solve(program, signing)
            whole = repeat.lengthened(planes, kept)
            if whole is not None:
                return whole
    return solve(program, signing)
