"""A session that can stop at rows of code and at watchpoints, and go back in time.

What the host does is kept as a list of actions.  From time to time the state is copied.  To go back, the nearest copy before is restored and
the actions behind it are done again; the machine is deterministic, so they end as they did.  The host itself does not go back: what it read
it has read, and it waits at the present place until the session is there again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.vm import breakpoints
from wse_sim.fabric.vm import loop as L
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.bands import one_band
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.session import STILL, Array, Look, Outcome, Session, Until
from wse_sim.fabric.vm.snapshot import Snapshot, take_snapshot
from wse_sim.fabric.vm.watch_points import MemoryWatch, WatchPoint
from wse_sim.hardware.wafer import Wafer

STOPPED = 128
"""Why a part of a run ended, next to the reasons of the loop: cores stopped."""
MARK, FINE = breakpoints.GROUPS - 1, breakpoints.GROUPS - 2  # groups of the session itself
FIRST_SPAN, MOST_SPAN = 32, 4096  # cycles between two looks at the watchpoints
FIRST_INTERVAL, MOST_SNAPSHOTS, MOST_BYTES = 512, 64, 1 << 30
PART_CYCLES = 1 << 16
FOR_EVER = 1 << 60
Words = Sequence[int] | npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class StopEvent:
    """Why a run stopped: `kind`, the cores and rows that stopped, the watchpoint that was hit, `row` of the code that did it (-1: unknown).

    Kinds: "stop", "watch", "cycle", "pause", "fault" (`text` has the sentence), "ended"; going through the past also "begin" and "present".
    """

    kind: str
    cycle: int
    cores: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    watch: WatchPoint | None = None
    row: int = -1
    text: str = ""
    before: tuple[int, ...] = ()
    """Words of a watched variable before they were written."""


class Controller(Protocol):
    """Receives events of a running session."""

    until: int
    """Cycle at which to stop."""

    def accepts(self, event: StopEvent) -> bool:
        """Whether to stop there."""

    def stopped(self, event: StopEvent) -> None:
        """Called while the session is stopped; it continues when this returns."""

    def poll(self) -> bool:
        """Return whether to stop now; called from time to time."""


@dataclasses.dataclass
class Action:
    """Something that the host did: a method of the session and its arguments; of an advance the first cycle and the last."""

    name: str
    arguments: tuple[object, ...] = ()
    keywords: dict[str, object] = dataclasses.field(default_factory=dict)
    begin: int = 0
    end: int = FOR_EVER


@dataclasses.dataclass(frozen=True)
class Moment:
    """A place in the run: within an action, before a cycle, or within it where some cores stopped at rows after a number of opcodes."""

    action: int
    cycle: int
    stopped: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    opcodes: tuple[int, ...] = ()
    is_included: bool = False
    """An event at this cycle is before it."""


class ReplaySession(Session):
    """A session that can be replayed, see the module's docstring; ``controller`` receives events."""

    def __init__(
        self, image: Image, wafer: Wafer, controller: Controller | None = None, **how: object
    ) -> None:
        own = {"profile": False, "threads": 1, "sanitize": True, "executor": "fast"}
        super().__init__(image, wafer, **{**how, **own})  # type: ignore[arg-type]
        self.n_rows = len(image.code)
        self.machine = breakpoints.with_stops(self.machine)
        self._clean = self.machine.code.copy()
        self._alone = one_band(self.machine)
        self.image = breakpoints.with_places(image)
        self.controller = controller
        self.actions: list[Action] = []
        self.snapshots: list[Snapshot] = []
        self.watches: list[WatchPoint] = []
        self.lines: Array = np.zeros(0, np.int64)
        """Rows that begin a line: where a write of a watched variable is looked for within a cycle."""
        self.present: Snapshot | None = None
        """The state in which the host waits, while the session is in the past."""
        self.at = -1
        self._rows: dict[int, int] = {}
        self._groups: dict[int, Array] = {}
        self._span, self._interval = FIRST_SPAN, FIRST_INTERVAL

    # -- what the host does

    def _kept(self, name: str, *arguments: object, **keywords: object) -> None:
        """Note an action, except within the past or within another one."""
        self.actions.append(Action(name, arguments, keywords, self.cycle, self.cycle))
        self.at = len(self.actions) - 1

    def poke(self, x: int, y: int, address: int, words: npt.ArrayLike) -> None:
        """Write words like :class:`Session`, and record the action."""
        data = np.array(words, np.uint16).ravel()
        self._reset_watches()
        super().poke(x, y, address, data)
        self._kept("poke", x, y, address, data)
        self._tell_writes()

    def poke_region(self, x: int, y: int, w: int, h: int, address: int, words: npt.ArrayLike) -> None:
        """Write a region like :class:`Session`, and record the action."""
        data = np.array(words, np.uint16)
        self._reset_watches()
        super().poke_region(x, y, w, h, address, data)
        self._kept("poke_region", x, y, w, h, address, data)
        self._tell_writes()

    def launch(
        self, x: int, y: int, w: int, h: int, name_or_entry: str | int, args: Iterable[int] = (), *, arm: bool = True,
        row_cycles: int = 0,
    ) -> None:  # fmt: skip
        """Launch like :class:`Session`, and record the action."""
        values = [int(a) for a in args]
        if self.cycle == 0 and any(cls.start >= 0 for cls in self.image.classes):
            self.advance("cycle", cycles=1)
        super().launch(x, y, w, h, name_or_entry, values, arm=arm, row_cycles=row_cycles)
        self._kept("launch", x, y, w, h, name_or_entry, values, arm=arm, row_cycles=row_cycles)

    def inject(self, x: int, y: int, color: int, words: npt.ArrayLike, **how: object) -> None:
        """Inject words like :class:`Session`, and record the action."""
        data = np.array(words, np.uint32)
        super().inject(x, y, color, data, **how)  # type: ignore[arg-type]
        self._kept("inject", x, y, color, data, **how)

    def inject_region(
        self, x: int, y: int, w: int, h: int, color: int, words: npt.ArrayLike, *, period_milli: int = 1000
    ) -> None:
        """Inject words into a region like :class:`Session`, and record the action."""
        data = np.array(words, np.uint32)
        super().inject_region(x, y, w, h, color, data, period_milli=period_milli)
        self._kept("inject_region", x, y, w, h, color, data, period_milli=period_milli)

    def expect(self, x: int, y: int, color: int, n: int, *, w: int = 1, h: int = 1) -> None:
        """Expect words like :class:`Session`, and record the action."""
        super().expect(x, y, color, n, w=w, h=h)
        self._kept("expect", x, y, color, n, w=w, h=h)

    def _reset_watches(self) -> None:
        for watch in self.watches:
            watch.reset(self.machine)

    def _tell_writes(self) -> None:
        """The host wrote: are there watchpoints on it?"""
        event = self._written_by_host()
        if event is not None:
            self._tell(event)

    def _written_by_host(self) -> StopEvent | None:
        hit = [w for w in self.watches if isinstance(w, MemoryWatch) and w.before and w.is_hit(self.machine)]
        if not hit:
            return None
        return StopEvent(
            "watch", self.cycle, (hit[0].core,), watch=hit[0], text="the host", before=hit[0].before
        )

    # -- time, with the host

    def advance(
        self, until: Until | Iterable[Until] = "idle", *, cycles: int | None = None, still_cycles: int = 0, look: Look | None = None
    ) -> Outcome:  # fmt: skip
        """Advance like :class:`Session`; the controller receives events, and faults."""
        action = Action("advance", begin=self.cycle)
        self.actions.append(action)
        self.at = len(self.actions) - 1
        outcome = super().advance(until, cycles=cycles, still_cycles=still_cycles, look=look)
        action.end = self.cycle
        if outcome.reason in ("fault", "waits", "still"):
            said = {
                "fault": str(outcome.fault),
                "waits": "nothing can happen now",
                "still": "nothing comes forward",
            }
            self._tell(StopEvent("fault", self.cycle, text=said[outcome.reason]))
        return outcome

    def ended(self) -> None:
        """The host has given its last command."""
        self._tell(StopEvent("ended", self.cycle, text="the host has stopped the program"))

    def _tell(self, event: StopEvent) -> None:
        if self.controller is not None and self.controller.accepts(event):
            self.controller.stopped(event)
            assert self.present is None

    def _run_watched(
        self, injections: Array, last: int, asked: int, still_cycles: int, look: Look | None
    ) -> int:
        seen, look_at = 0, self.cycle + still_cycles
        while True:
            self._keep_snapshot()
            end = min(last, self.cycle + PART_CYCLES, self.snapshots[-1].cycle + self._interval)
            end = min(end, look_at) if still_cycles else end
            who = self.controller
            if who is not None and who.until > self.cycle:
                end = min(end, who.until)
            why, event = self._part(max(end, self.cycle + 1) if last > self.cycle else last, asked)
            if event is not None:
                self._tell(event)
            elif why != L.AT_CYCLE or self.cycle >= last:
                return why
            elif who is not None and (who.until == self.cycle or who.poll()):
                self._tell(StopEvent("cycle" if who.until == self.cycle else "pause", self.cycle))
            if look is not None:
                look(self)
            if still_cycles and self.cycle >= look_at:
                found = self._progress()
                if found == seen:
                    return STILL
                seen, look_at = found, self.cycle + still_cycles

    def _keep_snapshot(self) -> None:
        """Copy the state if it is time for it; fewer copies, farther apart, where they would take too much memory."""
        if len(breakpoints.stopped_cores(self.machine)):
            return
        kept = self.snapshots
        if kept and self.cycle < kept[-1].cycle + self._interval:
            return
        kept.append(take_snapshot(self, self.at))
        while len(kept) > 2 and (len(kept) > MOST_SNAPSHOTS or len(kept) * kept[0].nbytes > MOST_BYTES):
            del kept[1::2]
            self._interval *= 2

    # -- stops

    def set_stops(self, rows: Mapping[int, int], groups: Mapping[int, Array]) -> None:
        """Cores of group g stop before the rows whose mask has bit g."""
        self._rows, self._groups = dict(rows), dict(groups)
        breakpoints.set_stops(self.machine, self._clean, self._rows, self._groups)

    def stopped(self) -> list[int]:
        """Return the cores that are stopped within the present cycle, before a row of their code."""
        return [int(c) for c in breakpoints.stopped_cores(self.machine)]

    def row(self, core: int) -> int:
        """The row of the code that a core's main thread does next, or is at."""
        return breakpoints.row_of(int(self.machine.core[core, S.PC]), self.n_rows)

    def _run_to(self, end: int, asked: int) -> int:
        """Run to a cycle or to the next stop of any core."""
        m = self.machine
        waiting = breakpoints.stopped_cores(m)
        if len(waiting):
            is_over = breakpoints.complete_cycle(m, self._alone, waiting)
            self._flush([m])
            if not is_over:
                return self._stop_or_fault()
            if self.cycle >= end:
                return L.AT_CYCLE
        rows = self._sent.rows
        self.machine = m = m._replace(host_words=self._sent.words if len(rows) else m.host_words)
        if not len(rows):
            rows = np.zeros((1, S.INJECTION_FIELDS), np.int64)
        why = self._run_alone(rows, end, asked)
        return self._stop_or_fault() if why == L.FAULTED else why

    def _stop_or_fault(self) -> int:
        breakpoints.mark_stops(self.machine)
        if len(breakpoints.stopped_cores(self.machine)):
            return STOPPED
        fault = self.machine.core[:, S.FAULT]
        fault[fault == S.F_STOP] = S.F_NONE  # the fault of another core ends the run
        return L.FAULTED

    def _part(self, end: int, asked: int) -> tuple[int, StopEvent | None]:
        """Run to a cycle, a stop or a watchpoint."""
        if not self.watches:
            why = self._run_to(end, asked)
            return why, self._stop_event() if why == STOPPED else None
        self._reset_watches()
        base = take_snapshot(self, self.at)
        why = self._run_to(min(end, self.cycle + self._span), asked)
        if any(watch.is_hit(self.machine) for watch in self.watches):
            self._span = FIRST_SPAN
            is_over = why not in (L.AT_CYCLE, L.ASKED)  # the present cycle was done as well
            return L.AT_CYCLE, self._find(base, self.cycle + is_over, asked)
        self._span = min(2 * self._span, MOST_SPAN)
        return why, self._stop_event() if why == STOPPED else None

    def _stop_event(self) -> StopEvent | None:
        """Cores that stopped for others than this session; None if there are none."""
        found = []
        for c in self.stopped():
            mask = self._rows.get(self.row(c), 0) & ~(1 << MARK | 1 << FINE)
            if any(mask >> g & 1 and c in cores for g, cores in self._groups.items()):
                found.append(c)
        return (
            StopEvent("stop", self.cycle, tuple(found), tuple(self.row(c) for c in found)) if found else None
        )

    # -- watchpoints: the cycle, then the line

    def _hits(self) -> list[WatchPoint]:
        return [watch for watch in self.watches if watch.is_hit(self.machine)]

    def _find(self, low: Snapshot, high: int, asked: int) -> StopEvent:
        """From a state before the first hit: halve the span down to its cycle, then stop core by line within this cycle."""
        first = low
        while high - low.cycle > 1:
            middle = (low.cycle + high) // 2
            low.restore(self)
            self._run_to(middle, asked)
            if self._hits():
                high = middle
            else:
                low = take_snapshot(self, first.action)
        low.restore(self)
        self._run_to(high, asked)
        cores = {watch.core for watch in self._hits()}
        low.restore(self)
        row, why = -1, STOPPED
        with self._stops({int(r): 1 << FINE for r in self.lines}, {FINE: np.array(sorted(cores), np.int64)}):
            while why == STOPPED and not self._hits():
                stopped = [c for c in self.stopped() if c in cores]
                row = self.row(stopped[0]) if stopped else row
                why = self._run_to(high, asked)
        watch = self._hits()[0]
        before = watch.before if isinstance(watch, MemoryWatch) else ()
        row = row if row >= 0 else self._writer(watch.core)
        return StopEvent("watch", self.cycle, (watch.core,), watch=watch, row=row, before=before)

    def _writer(self, c: int) -> int:
        """The row of an operation that a core has in flight, one of a microthread first."""
        threads = self.machine.threads
        running = [k for k in (*range(1, S.N_THREADS), 0) if threads[k, c, S.T_OP] > 0]
        return (
            breakpoints.row_of(int(threads[running[0], c, S.T_PC]), self.n_rows) if running else self.row(c)
        )

    @contextmanager
    def _stops(self, rows: Mapping[int, int], groups: Mapping[int, Array]) -> Iterator[None]:
        """Other stops for a while."""
        before = self._rows, self._groups
        self.set_stops(rows, groups)
        try:
            yield
        finally:
            self.set_stops(*before)

    # -- the past

    def here(self) -> Moment:
        """Return the present place in the run."""
        stopped = self.stopped()
        rows = tuple(self.row(c) for c in stopped)
        opcodes = tuple(int(n) for n in self.machine.core[:, S.OPCODES]) if stopped else ()
        return Moment(self.at, self.cycle, tuple(stopped), rows, opcodes)

    def _leave_present(self) -> None:
        if self.present is None:
            self.present = take_snapshot(self, self.at)

    def _set_back(self, snapshot: Snapshot) -> None:
        snapshot.restore(self)
        self.at, self._span = snapshot.action, FIRST_SPAN

    def return_to_present(self) -> None:
        """Be where the host waits."""
        if self.present is not None:
            self._set_back(self.present)
            self.present = None

    def moment_of(self, cycle: int) -> Moment:
        """Return the position before a cycle of the past."""
        last = len(self.actions) if self.present is None else self.present.action + 1
        found = [
            i for i in range(last) if self.actions[i].name == "advance" and self.actions[i].begin <= cycle
        ]
        return Moment(found[-1] if found else 0, cycle)

    def _before(self, moment: Moment) -> list[Snapshot]:
        """Snapshots before a place, the nearest first."""
        place = (moment.action, moment.cycle + bool(moment.stopped))
        return [
            s for s in reversed(self.snapshots) if (s.action, s.cycle) <= place and s.cycle <= moment.cycle
        ]

    def go_back(self, cycles: int) -> StopEvent:
        """Return to the state that number of cycles before, or to the first one that is known."""
        if not self.snapshots:  # nothing has happened yet
            return StopEvent("begin", self.cycle)
        first = self.snapshots[0].cycle
        wanted = max(first, self.cycle - cycles + bool(self.stopped()))
        self._leave_present()
        self.go_to(self.moment_of(wanted))
        return StopEvent("begin" if self.cycle - first <= 0 else "cycle", self.cycle)

    def go_to(self, moment: Moment) -> None:
        """To a place of the past."""
        self._leave_present()
        self._set_back(self._before(moment)[0])
        watches, self.watches = self.watches, []
        groups = {MARK: np.array(moment.stopped, np.int64)}
        try:
            with self._stops(dict.fromkeys(moment.rows, 1 << MARK), groups):
                while self._replay(moment) is not None:
                    pass
        finally:
            self.watches = watches

    def reverse(self, accepts: Callable[[StopEvent], bool]) -> StopEvent:
        """To the last event before this place that is accepted, or to the first known state ("begin")."""
        if not self.snapshots:
            return StopEvent("begin", self.cycle)
        limit = self.here()
        self._leave_present()
        for snapshot in self._before(limit):
            self._set_back(snapshot)
            if not limit.stopped and self.cycle == limit.cycle and not limit.is_included:
                continue
            last: tuple[Snapshot, StopEvent] | None = None
            with self._marked(limit):
                event = self._replay(limit)
                while event is not None:
                    if accepts(event):
                        last = (take_snapshot(self, self.at), event)
                    event = self._replay(limit)
            if last is not None:
                self._set_back(last[0])
                return last[1]
            limit = Moment(snapshot.action, snapshot.cycle, is_included=True)
        self._set_back(self.snapshots[0])
        return StopEvent("begin", self.cycle)

    def forward(self, accepts: Callable[[StopEvent], bool], until: int = FOR_EVER) -> StopEvent:
        """Through the past to the next event that is accepted, or to the place where the host waits ("present")."""
        assert self.present is not None
        limit = self._place_of_present()
        if until < limit.cycle or (until == limit.cycle and limit.stopped):
            limit = dataclasses.replace(self.moment_of(until), is_included=True)
        with self._marked(limit):
            event = self._replay(limit)
            while event is not None and not accepts(event):
                event = self._replay(limit)
        if event is not None:
            return event
        if self.cycle == until and (self.at, self.cycle) != (self.present.action, self.present.cycle):
            return StopEvent("cycle", self.cycle)
        self.return_to_present()
        return StopEvent("present", self.cycle)

    def _place_of_present(self) -> Moment:
        assert self.present is not None
        core = self.present.arrays["core"]
        stopped = np.flatnonzero(core[:, S.FAULT] == S.F_STOP)
        rows = tuple(breakpoints.row_of(int(pc), self.n_rows) for pc in core[stopped, S.PC].tolist())
        opcodes = tuple(core[:, S.OPCODES].tolist()) if len(stopped) else ()
        return Moment(self.present.action, self.present.cycle, tuple(stopped.tolist()), rows, opcodes)

    @contextmanager
    def _marked(self, limit: Moment) -> Iterator[None]:
        """Stops of the user, and those at which the limit is known."""
        rows = dict(self._rows)
        for row in limit.rows:
            rows[row] = rows.get(row, 0) | 1 << MARK
        with self._stops(rows, {**self._groups, MARK: np.array(limit.stopped, np.int64)}):
            yield

    def _replay(self, limit: Moment) -> StopEvent | None:
        """Do the kept actions again, to the next event or to a place (None)."""
        while True:
            action = self.actions[self.at]
            if self.at >= limit.action and self.cycle >= limit.cycle:
                return self._replay_within(limit)
            if action.name != "advance":
                event = self._repeat(action)
                self.at += 1
                if event is not None:
                    return event
                continue
            is_last = self.at == limit.action
            end = min(action.end, limit.cycle) if is_last else action.end
            if self.cycle < end:
                why, event = self._part(end, 0)
                if event is not None:
                    is_late = (
                        is_last and self.cycle >= limit.cycle and not limit.is_included and not self.stopped()
                    )
                    return None if is_late and not limit.stopped else event
                if why == L.QUIET:
                    self.machine.size[S.CLOCK] = end
                elif why == L.FAULTED:
                    return None
            elif is_last or self.stopped():
                return None
            else:
                if not len(self._sent.heads):
                    self._sent.clear()
                self.at += 1

    def _replay_within(self, limit: Moment) -> StopEvent | None:
        """Within the cycle of the limit."""
        while limit.stopped and self.cycle == limit.cycle:
            why, event = self._part(limit.cycle + 1, 0)
            if why != STOPPED and event is None:
                return None
            now = self.machine.core
            reached = [
                c
                for c, row in zip(limit.stopped, limit.rows, strict=True)
                if now[c, S.FAULT] == S.F_STOP
                and self.row(c) == row
                and now[c, S.OPCODES] >= limit.opcodes[c]
            ]
            if reached:
                return None
            if event is not None:
                return event
        return None

    def _repeat(self, action: Action) -> StopEvent | None:
        """An action of the host, as it was; it is not kept again."""
        self._reset_watches()
        getattr(Session, action.name)(self, *action.arguments, **action.keywords)
        return self._written_by_host() if action.name in ("poke", "poke_region") else None
