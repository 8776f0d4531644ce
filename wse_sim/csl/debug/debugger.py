"""Debugger of a running program: breakpoints, watchpoints, and steps in both directions. It performs no input
or output.

When the program stops, the session calls :meth:`Debugger.stopped`, which calls the front end (a console, an
editor, a function of a test) with the event. The front end inspects the program and moves it. It returns
after calling a method that resumes the program from its present place. If the session is at a past place,
such methods run at once and return the event at which they stopped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from wse_sim.csl.debug.lines import DebugError, LineTable
from wse_sim.csl.debug.view import View
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.replay import FINE, FOR_EVER, ReplaySession, StopEvent
from wse_sim.fabric.vm.watch_points import ColorWatch, MemoryWatch, QueueWatch, WatchPoint

Front = Callable[["Debugger", StopEvent], None]
STEP = FINE - 1
"""Group of the stepped core; lower groups belong to breakpoints."""
INTO, OVER, OUT = "into", "over", "out"


@dataclasses.dataclass
class BreakPoint:
    """Breakpoint: stops cores (all if none are named) before a line if the condition holds."""

    id: int
    file: str
    line: int
    rows: tuple[int, ...]
    cores: frozenset[int] = frozenset()
    condition: str = ""
    is_temporary: bool = False
    hits: int = 0

    def __str__(self) -> str:
        """Describe the breakpoint in one line."""
        extra = f", if {self.condition}" if self.condition else ""
        many = f", {len(self.cores)} core{'s' * (len(self.cores) != 1)}" if self.cores else ""
        return f"breakpoint {self.id}: {self.file}:{self.line}{many}{extra}, {self.hits} hits"


@dataclasses.dataclass
class NamedWatch:
    """Watchpoint with the name that the user gave it."""

    id: int
    name: str
    point: WatchPoint
    condition: str = ""
    hits: int = 0

    def __str__(self) -> str:
        """Describe the watchpoint in one line."""
        extra = f", if {self.condition}" if self.condition else ""
        return f"watchpoint {self.id}: {self.name}{extra}, {self.hits} hits"


@dataclasses.dataclass(frozen=True)
class Goal:
    """End of a run: the next event, or a completed step of one core."""

    step: str = ""
    core: int = -1
    depth: int = 0


class Debugger:
    """Debugger of one program; the module's docstring describes how a front end uses it."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.until = FOR_EVER
        self.breaks: dict[int, BreakPoint] = {}
        self.watches: dict[int, NamedWatch] = {}
        self.event: StopEvent | None = None
        self.hits: list[BreakPoint | NamedWatch] = []
        self.is_released = True
        """Whether the program may run on from its present place."""
        self.is_detached = False
        self.asks_pause: Callable[[], bool] = lambda: False
        self._goal = Goal()
        self._next = 1
        self._session: ReplaySession | None = None

    def attach(self, session: ReplaySession, image: Image) -> None:
        """Debug a session of the program `image`, and set the existing breakpoints in it; watchpoints are
        deleted."""
        self._session, self.lines, self.view = session, LineTable(image), View(session, image)
        session.controller, session.lines = self, self.lines.starts
        self.core = int(np.argmax(np.asarray(image.core_class) >= 0))
        for point in self.breaks.values():
            point.rows = self.lines.line(point.file, point.line).rows
        self.watches.clear()
        self._arm()

    @property
    def session(self) -> ReplaySession:
        """Session of the loaded program.

        Raises
        ------
        DebugError
            If no program is loaded.
        """
        if self._session is None:
            raise DebugError("no program is loaded yet")
        return self._session

    # -- what the session asks

    def accepts(self, event: StopEvent) -> bool:
        """Return whether to stop at an event, and record the breakpoints or watchpoints that it hit."""
        if self.is_detached:
            return False
        if event.kind == "watch":
            hit = [w for w in self.watches.values() if w.point is event.watch]
            hit = [w for w in hit if self._holds(w, event.cores[0])]
            if hit:
                self.hits, self.core = list(hit), event.cores[0]
            return bool(hit)
        if event.kind != "stop":
            self.hits = []
            return True
        found: list[BreakPoint] = []
        for core, row in zip(event.cores, event.rows, strict=True):
            here = [b for b in self.breaks.values() if row in b.rows and (not b.cores or core in b.cores)]
            here = [b for b in here if b not in found and self._holds(b, core)]
            if here and not found:
                self.core = core
            found += here
        self.hits = list(found)
        if found:
            return True
        return self._goal.core in event.cores and self._is_stepped()

    def _holds(self, point: BreakPoint | NamedWatch, core: int) -> bool:
        """Return whether a condition holds; one that cannot be evaluated here also does, so that the user
        notices the mistake."""
        try:
            return not point.condition or bool(self.view.value(core, point.condition))
        except DebugError:
            return True

    def _is_stepped(self) -> bool:
        """Return whether the stepped core has completed its step."""
        goal, depth = self._goal, self.view.depth(self._goal.core)
        if goal.step == OVER:
            return depth <= goal.depth
        if goal.step == OUT:
            return depth < goal.depth or (
                depth == 0 and self.session.row(goal.core) in self.view.entries(goal.core)
            )
        return goal.step == INTO

    def stopped(self, event: StopEvent) -> None:
        """Call the front end, which decides how to continue after a stop."""
        self._take(event)
        self.is_released, self.until, self._goal = False, FOR_EVER, Goal()
        self._arm()
        self.front(self, event)
        self.session.return_to_present()
        self._arm()

    def poll(self) -> bool:
        """Return whether the front end requests a stop."""
        return self.asks_pause()

    def _take(self, event: StopEvent) -> None:
        self.event = event
        if event.kind == "stop" and not self.hits and self._goal.core in event.cores:
            self.core = self._goal.core
        for hit in self.hits:
            hit.hits += 1
            if isinstance(hit, BreakPoint) and hit.is_temporary:
                self.breaks.pop(hit.id, None)

    # -- breakpoints

    def break_at(
        self,
        file: str,
        line: int,
        cores: Iterable[int] = (),
        condition: str = "",
        *,
        is_temporary: bool = False,
    ) -> BreakPoint:
        """Add a breakpoint before a line of a source file.

        Raises
        ------
        DebugError
            If there is no code near the line, or the condition is not an expression.
        """
        found = self.lines.line(file, line)
        return self._add(found.file, found.line, found.rows, cores, condition, is_temporary)

    def break_in(
        self, function: str, cores: Iterable[int] = (), condition: str = "", *, is_temporary: bool = False
    ) -> BreakPoint:
        """Add a breakpoint at the start of a function or task.

        Raises
        ------
        DebugError
            If there is no such function, or the condition is not an expression.
        """
        found = self.lines.function(function)
        return self._add(found.file, found.line, found.rows, cores, condition, is_temporary)

    def _add(
        self,
        file: str,
        line: int,
        rows: tuple[int, ...],
        cores: Iterable[int],
        condition: str,
        is_temporary: bool,
    ) -> BreakPoint:
        self.view.check(condition)
        point = BreakPoint(self._number(), file, line, rows, frozenset(cores), condition, is_temporary)
        sets = {p.cores for p in self.breaks.values()} | {point.cores}
        if len(sets) > STEP:
            raise DebugError(f"breakpoints name {len(sets)} sets of cores; {STEP} fit: use a set again")
        self.breaks[point.id] = point
        self._arm()
        return point

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def watch_variable(self, text: str, core: int, condition: str = "") -> NamedWatch:
        """Add a watchpoint that stops when a variable of a core is written and the condition, if any, holds.

        Raises
        ------
        DebugError
            If the text does not name a variable in memory, or the condition is not an expression.
        """
        place = self.view.place(core, text)
        if place.address < 0:
            raise DebugError(f"'{text}' is in a register; only variables in memory can be watched")
        words = self.view.types.extent(place.type, place.first, place.width)
        point = MemoryWatch(core, place.address, words)
        return self._watch(f"{text} of {self.view.name(core)}", point, condition)

    def watch_color(self, color: int, core: int, condition: str = "") -> NamedWatch:
        """Add a watchpoint that stops when a word of a color passes the router of a core.

        Raises
        ------
        DebugError
            If no core uses the color, or the condition is not an expression.
        """
        slot = int(self.session.machine.slot_of[color]) if 0 <= color < 24 else -1
        if slot < 0:
            raise DebugError(f"color {color} is used by no core of the program")
        name = f"color {color} in the router of {self.view.name(core)}"
        return self._watch(name, ColorWatch(core, slot), condition)

    def watch_queue(self, queue: int, core: int, condition: str = "", *, is_input: bool) -> NamedWatch:
        """Add a watchpoint that stops when a word enters a queue of a core.

        Raises
        ------
        DebugError
            If the queue does not exist, or the condition is not an expression.
        """
        depths = self.session.machine.in_depth if is_input else self.session.machine.out_depth
        if not 0 <= queue < len(depths):
            raise DebugError(f"queue {queue} does not exist; they are numbered 0 to {len(depths) - 1}")
        kind = "input" if is_input else "output"
        name = f"{kind} queue {queue} of {self.view.name(core)}"
        return self._watch(name, QueueWatch(core, queue, is_input), condition)

    def _watch(self, name: str, point: WatchPoint, condition: str) -> NamedWatch:
        self.view.check(condition)
        watch = NamedWatch(self._number(), name, point, condition)
        point.reset(self.session.machine)
        self.watches[watch.id] = watch
        self._arm()
        return watch

    def delete(self, number: int) -> None:
        """Delete a breakpoint or a watchpoint.

        Raises
        ------
        DebugError
            If there is none with this number.
        """
        if self.breaks.pop(number, None) is None and self.watches.pop(number, None) is None:
            raise DebugError(f"there is no breakpoint or watchpoint {number}")
        self._arm()

    def delete_all(self) -> None:
        """Delete all breakpoints and watchpoints."""
        self.breaks.clear()
        self.watches.clear()
        self._arm()

    def _arm(self) -> None:
        """Set the session's stops: breakpoints, watchpoints, and during a step every line of the stepped
        core."""
        if self._session is None:
            return
        rows: dict[int, int] = {}
        groups: dict[int, np.ndarray] = {}
        if not self.is_detached:
            sets = {cores: g for g, cores in enumerate(dict.fromkeys(p.cores for p in self.breaks.values()))}
            for cores, g in sets.items():
                groups[g] = np.array(sorted(cores) or range(self.session.image.n_cores), np.int64)
            for point in self.breaks.values():
                for row in point.rows:
                    rows[row] = rows.get(row, 0) | 1 << sets[point.cores]
            if self._goal.step:
                groups[STEP] = np.array([self._goal.core], np.int64)
                for row in self.lines.starts.tolist():
                    rows[row] = rows.get(row, 0) | 1 << STEP
        self._session.set_stops(rows, groups)
        self._session.watches = [] if self.is_detached else [w.point for w in self.watches.values()]

    # -- forward: from a past place at once (returns the event), else when the front end returns

    def _run(self, goal: Goal, until: int = FOR_EVER) -> StopEvent | None:
        self._goal, self.until = goal, until
        self._arm()
        if self.session.present is None:
            self.is_released = True
            return None
        event = self.session.forward(self.accepts, until)
        return self._arrived(event)

    def _arrived(self, event: StopEvent) -> StopEvent:
        if event.kind in ("present", "begin", "cycle"):
            self.hits = []
        self._take(event)
        self._goal = Goal()
        self._arm()
        return event

    def resume(self) -> StopEvent | None:
        """Run to the next breakpoint, watchpoint, fault or end."""
        return self._run(Goal())

    def step(self, how: str = INTO, core: int | None = None) -> StopEvent | None:
        """Run until a core reaches its next line: into functions, over them, or out of the present one."""
        chosen = self.core if core is None else core
        self.core = chosen
        return self._run(Goal(how, chosen, self.view.depth(chosen)))

    def step_cycles(self, cycles: int) -> StopEvent | None:
        """Advance all cores by a number of cycles."""
        return self._run(Goal(), self.session.cycle + cycles)

    def detach(self) -> None:
        """Let the program run to its end without stops."""
        self.is_detached = self.is_released = True
        self.session.return_to_present()
        self._arm()

    # -- back

    def back(self, cycles: int) -> StopEvent:
        """Return all cores to their state a number of cycles ago."""
        return self._arrived(self.session.go_back(cycles))

    def reverse(self) -> StopEvent:
        """Go back to the previous hit of a breakpoint or watchpoint."""
        self._goal = Goal()
        self._arm()
        return self._arrived(self.session.reverse(self.accepts))

    def step_back(self, how: str = INTO, core: int | None = None) -> StopEvent:
        """Move a core back to its previous line."""
        chosen = self.core if core is None else core
        self.core = chosen
        self._goal = Goal(how, chosen, self.view.depth(chosen))
        self._arm()
        return self._arrived(self.session.reverse(self.accepts))

    # -- where a value comes from

    def origin(self, text: str, core: int) -> str:
        """Return a sentence with the last write of a variable: its line, its cycle, and the sender of the
        word that it received.

        The session's place does not change.

        Raises
        ------
        DebugError
            If the text does not name a variable in memory.
        """
        place = self.view.place(core, text)
        if place.address < 0:
            raise DebugError(f"'{text}' is in a register; ask for a variable in memory")
        session = self.session
        here, was_present = session.here(), session.present is None
        kept = session.watches
        point = MemoryWatch(core, place.address, self.view.types.extent(place.type, place.first, place.width))
        session.watches = [point]
        rows, groups = session._rows, session._groups
        session.set_stops({}, {})
        try:
            event = session.reverse(lambda event: event.kind == "watch")
            if event.kind == "begin":
                return f"'{text}' of {self.view.name(core)} has its initial value: it has not been written before this point"
            if event.text:
                return (
                    f"'{text}' of {self.view.name(core)} was written by {event.text} at cycle {event.cycle:,}"
                )
            cycle = event.cycle - (not session.stopped())
            told = f"'{text}' of {self.view.name(core)} was written at {self.view.where(event.row)}, cycle {cycle:,}"
            session.watches = []
            return told + self._sender(core, event.row, cycle)
        finally:
            session.watches = kept
            session.set_stops(rows, groups)
            session.return_to_present() if was_present else session.go_to(here)

    def _sender(self, core: int, row: int, cycle: int) -> str:
        """Return the sender of the word that an operation, or the task around a row, received; moves the
        session to where the word waited."""
        session = self.session
        queue = self.view.input_queue_of(core, row)
        if queue >= 0:
            session.go_to(session.moment_of(cycle))
            return f", from {self.view.head(core, queue)}"
        task = int(session.machine.core[core, S.TASK])
        entry = self.view.task_entry(core, task)
        if self.view.task_queue(core, task) < 0 or entry < 0:
            return ""
        session.set_stops({entry: 1}, {0: np.array([core], np.int64)})
        event = session.reverse(lambda event: event.kind == "stop")
        if event.kind == "begin":
            return ""
        session.set_stops({}, {})
        session.go_to(session.moment_of(event.cycle))
        return f", by a task that {self.view.head(core, self.view.task_queue(core, task))} started"
