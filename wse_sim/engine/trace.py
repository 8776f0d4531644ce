"""Recorder of a run: events, slices of the timeline, counters over time."""

from __future__ import annotations

from collections.abc import Mapping

import simpy
from simpy.core import NORMAL, EventPriority

from wse_sim.engine.result import Slice
from wse_sim.graph.kernel_graph import frozen

MAX_SLICES = 50_000  # a timeline viewer stays usable, a saved result stays small
MAX_COUNTER_POINTS = 20_000
MAX_RESOURCE_SLICES = 15_000  # of host and links, next to those of the regions


class CountingEnvironment(simpy.Environment):
    """A SimPy environment that counts the events put on its calendar."""

    def __init__(self) -> None:
        super().__init__()
        self.events = 0

    def schedule(self, event: simpy.Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        """Put an event on the calendar."""
        self.events += 1
        super().schedule(event, priority, delay)


class Alarm(simpy.Event):
    """An event that a process waits for and that others trigger once, now or later."""

    def ring(self, delay: float = 0.0) -> None:
        """Trigger the event after `delay`; later calls have no effect."""
        if not self.triggered:
            self._ok = True
            self._value = None
            self.env.schedule(self, delay=delay)


def _scaled(span: Slice, unit: float) -> Slice:
    """Return the span with its times in another unit."""
    track, name, category, start, duration, *rest = vars(span).values()
    return Slice(track, name, category, start * unit, duration * unit, *rest)


class RunTrace:
    """Slices and counters of one run, bounded in number; times are in units of the environment.

    `unit_s` is the length in seconds of one unit of the environment's time.
    """

    def __init__(self, *, is_on: bool, unit_s: float, limit: int = MAX_SLICES) -> None:
        self.room = limit if is_on else 0
        self.is_cut = False
        self._is_on = is_on
        self._is_resource_cut = False
        self._unit_s = unit_s
        self._slices: list[Slice] = []  # times in units of the environment
        self._resources: list[Slice] = []
        self._counters: dict[str, list[tuple[float, float]]] = {}

    def off(self) -> RunTrace:
        """Return a trace with the same unit that records nothing."""
        return RunTrace(is_on=False, unit_s=self._unit_s)

    def span(self, span: Slice, *, is_resource: bool = False) -> None:
        """Record a span, in units of the environment; spans of resources do not count towards the limit of
        regions."""
        if is_resource:
            if self._is_on and len(self._resources) < MAX_RESOURCE_SLICES:
                self._resources.append(span)
            else:
                self._is_resource_cut = self._is_on
        elif self.room > 0:
            self.room -= 1
            self._slices.append(span)
        else:
            self.is_cut = self._is_on

    @property
    def is_on(self) -> bool:
        """Whether spans are kept."""
        return self._is_on

    def spans(self) -> list[Slice]:
        """Return the recorded spans, in simulation order and in units of the environment."""
        return list(self._slices)

    def count(self, name: str, time: float, value: float) -> None:
        """Record the value of a counter from `time` on."""
        points = self._counters.setdefault(name, [])
        if len(points) < MAX_COUNTER_POINTS:
            points.append((time * self._unit_s, value))

    def slices(self) -> tuple[Slice, ...]:
        """Return all spans in seconds, sorted by track and start."""
        unit = self._unit_s
        ordered = sorted(
            [*self._slices, *self._resources], key=lambda item: (item.track, item.start_s, item.duration_s)
        )
        return tuple(_scaled(item, unit) for item in ordered)

    def counters(self) -> Mapping[str, tuple[tuple[float, float], ...]]:
        """Return all counters as (time_s, value) points."""
        return frozen({name: tuple(points) for name, points in self._counters.items()})

    def notes(self) -> tuple[str, ...]:
        """Return a note if the timeline was truncated."""
        regions = (f"the timeline holds the first {len(self._slices)} slices",) if self.is_cut else ()
        if not self._is_resource_cut:
            return regions
        return (*regions, f"the timeline holds the first {len(self._resources)} slices of host and links")
