"""Simulation of a rectangle with repeating lines on a smaller rectangle, with the cycles of the whole.

A stretch of rows or columns with the same programs and color configurations in period p is shortened to some
periods. The machine runs the small rectangle, and after every cycle the three middle periods are compared:
threads, queues, routers, task bits, and all other state that determines the next cycle, except values. If
they were equal in every cycle, the whole rectangle does in every cycle the same as the small one, with copies
of the middle period between its halves:

* at the start all periods are equal;
* the next state of a core or router depends on its own state and that of its neighbours, and neighbours of a
  copy are in the state of the middle period's neighbours in the small rectangle;
* the course does not depend on data (:mod:`wse_sim.csl.static.schedule`), and no core reads its position.

If the periods differ, a rectangle with more periods is tried. If rows are left out, all rows begin at once,
because rows that begin one after another (``launch_row_cycles``) are never in equal states.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl.static.schedule import Call, Recorded, decided_by_data
from wse_sim.errors import WseError
from wse_sim.fabric.executors.maxplus.fold import RepeatedLines, find_repeat
from wse_sim.fabric.format.builder import die_edges
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.session import Session, Until
from wse_sim.hardware.wafer import Wafer
from wse_sim.jit import kernel

Array = npt.NDArray[Any]
KEPT = (8, 16, 32, 64)
"""Number of periods in the first, second, ... attempt."""
GAP_CYCLES = 1000
"""Cycles that pass before a command of the host."""
_VALUES = (S.FAULT_A, S.WORD)  # fields of a core that may contain data
_THREAD_VALUES = (S.T_CARRY, *(S.OPERAND0 + i * S.OPERAND_FIELDS + S.P_VALUE for i in range(4)))
CORE_MASK = np.array([i not in (*_VALUES, S.RAN) for i in range(S.CORE_FIELDS)])
THREAD_MASK = np.array([i not in _THREAD_VALUES for i in range(S.THREAD_FIELDS)])


@kernel
def first_difference(m, here, there, core_mask, thread_mask):
    """Return the index of the first pair of cores (`here[i]`, `there[i]`) whose states differ in anything but
    values; -1 if all agree."""
    slots, n = m.credit.shape[0], m.core.shape[0]
    for i in range(len(here)):
        a, b = here[i], there[i]
        for f in range(m.core.shape[1]):
            if core_mask[f] and m.core[a, f] != m.core[b, f]:
                return i
        for k in range(m.threads.shape[0]):
            if m.threads[k, a, S.T_OP] != m.threads[k, b, S.T_OP]:
                return i
            if m.threads[k, a, S.T_OP] != 0:
                for f in range(m.threads.shape[2]):
                    if thread_mask[f] and m.threads[k, a, f] != m.threads[k, b, f]:
                        return i
        for f in range(m.dsr.shape[1]):
            if m.dsr[a, f] != m.dsr[b, f] or m.dsr_row[a, f] != m.dsr_row[b, f]:
                return i
        for f in range(m.fifo.shape[1]):
            for g in range(m.fifo.shape[2]):
                if m.fifo[a, f, g] != m.fifo[b, f, g]:
                    return i
        for q in range(m.iq_count.shape[0]):
            if m.iq_count[q, a] != m.iq_count[q, b] or m.in_color[a, q] != m.in_color[b, q]:
                return i
            if m.iq_last[q, a] != m.iq_last[q, b]:
                return i
            for j in range(m.iq_count[q, a]):
                x = m.iq_meta[q, a, (m.iq_head[q, a] + j) % m.in_depth[q]]
                if x != m.iq_meta[q, b, (m.iq_head[q, b] + j) % m.in_depth[q]]:
                    return i
        for q in range(m.oq_count.shape[0]):
            if m.oq_count[q, a] != m.oq_count[q, b] or m.out_color[a, q] != m.out_color[b, q]:
                return i
            for j in range(m.oq_count[q, a]):
                x = (m.oq_head[q, a] + j) % m.out_depth[q]
                y = (m.oq_head[q, b] + j) % m.out_depth[q]
                if m.oq_meta[q, a, x] != m.oq_meta[q, b, y] or m.oq_time[q, a, x] != m.oq_time[q, b, y]:
                    return i
        if m.pointer[a] != m.pointer[b] or m.waiting[a] != m.waiting[b] or m.occupied[a] != m.occupied[b]:
            return i
        for port in range(5):
            if m.port_free[a, port] != m.port_free[b, port]:
                return i
        for slot in range(slots):
            ra, rb = slot * n + a, slot * n + b
            if m.rstate[ra] != m.rstate[rb] or m.credit[slot, a] != m.credit[slot, b]:
                return i
            if m.color_queue[a, slot] != m.color_queue[b, slot]:
                return i
            if m.filter_row.shape[0] > 0 and m.filter_count[ra] != m.filter_count[rb]:
                return i
            for j in range(4):
                if m.route[ra * 4 + j] != m.route[rb * 4 + j]:
                    return i
            for port in range(5):
                ea, eb = ra * 5 + port, rb * 5 + port
                if m.q_count[ea] != m.q_count[eb]:
                    return i
                for j in range(m.q_flag.shape[1]):  # credits look at stamps of words that left
                    x, y = (m.q_head[ea] + j) % m.q_flag.shape[1], (m.q_head[eb] + j) % m.q_flag.shape[1]
                    if m.q_stamp[ea, x] != m.q_stamp[eb, y]:
                        return i
                    if j < m.q_count[ea] and m.q_flag[ea, x] != m.q_flag[eb, y]:
                        return i
    return -1


@dataclasses.dataclass(frozen=True)
class _Lines:
    """Fields of a rectangle that :func:`find_repeat` reads."""

    rows: int
    cols: int
    core_class: Array
    die_edges: Array
    route: Array
    params: tuple[Array, ...] = ()


@dataclasses.dataclass(frozen=True)
class Folded:
    """Cycles of the launches, from a rectangle of `rows` x `cols`; ``reason`` is why there are none.

    ``later_cycles`` is how much later the last row begins than was assumed, if rows were left out.
    """

    cycles: list[int]
    rows: int = 0
    cols: int = 0
    reason: str = ""
    later_cycles: int = 0


def fold(image: Image, wafer: Wafer, calls: Sequence[Call]) -> Folded:
    """Return the cycles of `calls` on all cores, :data:`GAP_CYCLES` apart, from a smaller rectangle.

    Raises
    ------
    WseError
        If the program faults or waits forever.
    """
    reason = "its rows and columns do not repeat"
    for kept in KEPT:
        repeats = _repeats(image, wafer, kept)
        if not repeats:
            break
        found = _run(_shortened(image, repeats, kept), wafer, calls, repeats, kept)
        if not found.reason:
            later = wafer.launch_row_cycles * (image.rows - 1) if found.rows < image.rows else 0
            return dataclasses.replace(found, later_cycles=later)
        reason = found.reason
        if not reason.startswith("periods"):
            break
    return Folded([], reason=reason)


def _repeats(image: Image, wafer: Wafer, kept: int) -> list[RepeatedLines]:
    """Return the stretches of rows and of columns with at least twice `kept` periods, which are worth
    shortening to `kept` periods."""
    cls = np.asarray(image.core_class, np.int64)
    lines = _Lines(image.rows, image.cols, cls, np.zeros(image.n_cores, np.uint8), image.config)
    probe = Session(_corner(image), wafer).config
    axes = (1,) if die_edges(image.rows, probe).any() else (0, 1)
    found = (find_repeat(lines, axis) for axis in axes)
    return [repeat for repeat in found if repeat is not None and repeat.count >= 2 * kept]


def _corner(image: Image) -> Image:
    return _taken(image, np.arange(1), np.arange(1))


def _taken(image: Image, rows: Array, cols: Array) -> Image:
    """Return the image of some rows and columns."""
    shape = image.rows, image.cols
    cls = np.asarray(image.core_class).reshape(shape)[np.ix_(rows, cols)]
    config = np.asarray(image.config).reshape(-1, *shape)[:, rows][:, :, cols]
    return dataclasses.replace(
        image, rows=len(rows), cols=len(cols), core_class=np.ascontiguousarray(cls).ravel(), config=np.ascontiguousarray(config).reshape(len(config), -1)
    )  # fmt: skip


def _shortened(image: Image, repeats: list[RepeatedLines], kept: int) -> Image:
    """Return the image with `kept` periods of every stretch."""
    lines = [np.arange(image.rows), np.arange(image.cols)]
    for repeat in repeats:
        n = len(lines[repeat.axis])
        lines[repeat.axis] = np.r_[0 : repeat.end(kept - 1), repeat.end(repeat.count - 1) : n]
    return _taken(image, lines[0], lines[1])


def _pairs(image: Image, repeat: RepeatedLines, kept: int) -> tuple[Array, Array]:
    """Return the cores of the middle periods, and the cores one period further."""
    middle = kept // 2
    lines = np.arange(repeat.end(middle - 2), repeat.end(middle))
    grid = np.arange(image.n_cores).reshape(image.rows, image.cols)
    here, there = (
        np.take(grid, chosen, axis=repeat.axis).ravel() for chosen in (lines, lines + repeat.period)
    )
    return here.astype(np.int64), there.astype(np.int64)


class _Watched:
    """Session on the small rectangle, whose periods are compared after every cycle."""

    def __init__(self, image: Image, wafer: Wafer, repeats: list[RepeatedLines], kept: int) -> None:
        self.session = Session(image, wafer, schedule=True)
        pairs = [_pairs(image, repeat, kept) for repeat in repeats]
        self.here = np.concatenate([here for here, _ in pairs])
        self.there = np.concatenate([there for _, there in pairs])

    def agrees(self) -> bool:
        """Return whether the middle periods have equal states."""
        return bool(first_difference(self.session.machine, self.here, self.there, CORE_MASK, THREAD_MASK) < 0)

    def until(self, what: Until, end: str) -> str:
        """Step until the session's outcome is `end`; return "", or the reason why the periods differ.

        Raises
        ------
        WseError
            If the program faults or waits forever.
        """
        while True:
            outcome = self.session.advance(what, cycles=1)
            if outcome.reason == "fault":
                raise WseError(f"the program faulted at cycle {outcome.cycle}: {outcome.fault}")
            if outcome.reason == "waits":
                raise WseError(
                    f"the program waits forever: {'; '.join(str(w) for w in self.session.status()[:2])}"
                )
            if not self.agrees():
                return f"periods of its lines are out of step at cycle {outcome.cycle}"
            if outcome.reason == end:
                return ""


def _run(
    image: Image, wafer: Wafer, calls: Sequence[Call], repeats: list[RepeatedLines], kept: int
) -> Folded:
    watched = _Watched(image, wafer, repeats, kept)
    session, cycles = watched.session, []
    row_cycles = 0 if any(repeat.axis == 0 for repeat in repeats) else wafer.launch_row_cycles
    for call in calls:
        why = watched.until("idle", "idle")
        if why:
            return Folded([], reason=why)
        session.advance("cycle", cycles=GAP_CYCLES)
        begin = session.cycle
        session.launch(0, 0, image.cols, image.rows, call.name, call.arguments, row_cycles=row_cycles)
        why = watched.until("commands", "asked")
        if why:
            return Folded([], reason=why)
        cycles.append(session.cycle - begin - 1)
    session.advance("cycle", cycles=1)
    run = Recorded(session.picks(), calls)
    decided = [v for v in decided_by_data(image, wafer, run, may_place=False) if v.reason]
    if decided:
        return Folded([], reason=decided[0].reason)
    return Folded(cycles, image.rows, image.cols)
