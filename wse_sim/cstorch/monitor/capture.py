"""Captures of a running job: how the wafer and the client spend the next N complete steps.

A capture starts and ends at step boundaries, where the loop requests its next batch, so it consists of complete steps. The run only
records times meanwhile; the process that requested the capture writes the files.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from wse_sim.cstorch import faults, runtime

if TYPE_CHECKING:
    from wse_sim.cstorch.compiled import Compiled

# Slices of one step that a capture keeps at most; the longest stay.
MAX_SLICES = 50_000


@dataclass
class Observation:
    """A requested capture, and its result."""

    steps: int
    seconds: float | None = None
    regions: tuple[str, ...] = ()
    boundaries: list[tuple[int, float]] = field(default_factory=list)  # (steps done, perf_counter)
    spans: list[Any] = field(default_factory=list)
    wafer_steps: list[tuple[int, float, float, int]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    compiles: list[Any] = field(default_factory=list)
    cut_short: bool = False
    after: int | None = None

    @property
    def whole_steps(self) -> int:
        return max(0, len(self.boundaries) - 1)


class Observer:
    """Serves one capture after another at the boundaries of steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Observation] = []
        self._active: Observation | None = None

    def ask(
        self,
        steps: int,
        seconds: float | None = None,
        regions: tuple[str, ...] = (),
        after: int | None = None,
    ) -> Observation:
        """Queue a capture; its ``done`` is set when it is complete.

        Args:
            steps: whole steps.
            seconds: end at the first boundary after so long.
            regions: patterns of the tracks to keep; all if empty.
            after: begin when the run has done so many steps; None begins with the next one.

        Raises:
            ProgramError: the number of steps is not positive.
        """
        if steps < 1 or (seconds is not None and seconds <= 0):
            raise faults.program_error(
                f"a capture of {steps} steps is out of range; give at least 1", where=""
            )
        wanted = Observation(steps, seconds, regions, after=after)
        with self._lock:
            self._waiting.append(wanted)
        runtime.run().boundary = self.boundary
        return wanted

    def boundary(self) -> None:
        """Record a step boundary; the run calls this while a capture is requested."""
        now, run = time.perf_counter(), runtime.run()
        active = self._active
        if active is not None:
            if active.boundaries[-1][0] == run.global_step:
                # Another execution begins: what were between is no step.
                active.boundaries.pop()
            active.boundaries.append((run.global_step, now))
            late = active.seconds is not None and now - active.boundaries[0][1] >= active.seconds
            if active.whole_steps >= active.steps or late:
                self.end()
        with self._lock:
            ready = [c for c in self._waiting if c.after is None or run.global_step >= c.after]
            if self._active is None and ready:
                self._active = ready[0]
                self._waiting.remove(self._active)
                self._active.boundaries.append((run.global_step, now))
                run.spans, run.wafer_steps, run.capturing = [], [], True
            if self._active is None and not self._waiting:
                run.boundary = None

    def end(self) -> None:
        """Close the current capture."""
        run, active = runtime.run(), self._active
        if active is None:
            return
        run.capturing = False
        active.spans, active.wafer_steps, active.compiles = run.spans, run.wafer_steps, list(run.compiled)
        run.spans, run.wafer_steps = [], []
        self._active = None
        active.done.set()

    def finish(self, capture: Observation) -> None:
        """End one capture, in any state."""
        if capture is self._active:
            self.end()
        with self._lock:
            if capture in self._waiting:
                self._waiting.remove(capture)
        capture.done.set()

    def close(self) -> None:
        """End all captures with the data that they have, because the run ends."""
        if self._active is not None:
            self._active.cut_short = True
            self.end()
        with self._lock:
            for wanted in self._waiting:
                wanted.cut_short = True
                wanted.done.set()
            self._waiting.clear()


recorder = Observer()


def as_data(capture: Observation) -> dict[str, Any]:
    """Return a capture as plain data, times in seconds from its beginning.

    ``client`` holds ``[kind, name, start, duration]``; ``steps`` ``[number, client start, client duration, wafer start,
    wafer duration, program]``; ``programs`` the slices of one step of each program.
    """
    if not capture.boundaries:
        return {"steps": [], "client": [], "programs": {}, "cut_short": True}
    zero = capture.boundaries[0][1]
    wafer = {number: (start, length, program) for number, start, length, program in capture.wafer_steps}
    wafer_zero = min((start for start, _, _ in wafer.values()), default=0.0)
    steps = []
    for (_, begin), (number, end) in zip(capture.boundaries, capture.boundaries[1:], strict=False):
        start, length, program = wafer.get(number, (None, None, None))
        shown = None if start is None else start - wafer_zero
        steps.append([number, begin - zero, end - begin, shown, length, program])
    used = sorted({program for _, _, program in wafer.values()})
    end_s = capture.boundaries[-1][1]
    return {
        "steps": steps,
        "client": [
            [s.kind, s.name, s.start_s - zero, s.duration_s]
            for s in capture.spans
            if zero <= s.start_s <= end_s
        ],
        "programs": {str(i): _program(capture.compiles[i], capture.regions) for i in used},
        "cut_short": capture.cut_short,
    }


def _program(compiled: Compiled, regions: tuple[str, ...]) -> dict[str, Any]:
    """Return the slices of one simulated step, from its beginning, none beyond its end."""
    from wse_sim.report import views

    result = compiled.result
    assert result is not None
    areas, resources = views.tracks(result)
    kept = [t for t in areas if not regions or any(fnmatchcase(t, p) for p in regions)]
    names = [*kept, *resources]
    index = {name: i for i, name in enumerate(names)}
    first = min((s.start_s for s in result.timeline), default=0.0)
    slices = [s for s in result.timeline if s.track in index and s.start_s - first < compiled.step_s]
    left_out = max(0, len(slices) - MAX_SLICES)
    if left_out:
        slices = sorted(slices, key=lambda s: -s.duration_s)[:MAX_SLICES]
    slices.sort(key=lambda s: (s.start_s, -s.duration_s))
    return {
        "name": compiled.name,
        "mode": compiled.mode,
        "wafer": result.plan.wafer.name,
        "clock_hz": result.plan.wafer.clock_hz,
        "systems": result.systems,
        "step_s": compiled.step_s,
        "regions": len(kept),
        "tracks": names,
        "left_out": left_out,
        "slices": [
            [
                index[s.track],
                s.name,
                s.category,
                s.start_s - first,
                min(s.duration_s, compiled.step_s - (s.start_s - first)),
                s.bytes,
            ]
            for s in slices
        ],
    }
