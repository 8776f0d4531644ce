"""The reference engine: schedulers in front of lines of regions, each a SimPy process.

It is slow (about 100 requests per second) and simple; :mod:`wse_sim.serving.fast_engine` gives the same answers bit
for bit. Events at the same tick are processed in this order: turns that leave a line, caches that were handed
over, arrivals, new turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import cast

import numpy as np
import simpy

from wse_sim.serving.base import (
    COUNTERS,
    FIRST_SAMPLE_TICKS,
    GAP_BINS,
    GAP_EDGES,
    NEVER,
    Load,
    Served,
    ServingRules,
    Ticks,
    most_samples,
)
from wse_sim.serving.blocks import PrefixKeys
from wse_sim.serving.latency import Latency
from wse_sim.serving.round_robin import home_of
from wse_sim.serving.router import ROUND_ROBIN, chosen_replica
from wse_sim.serving.scheduler import QueuedRequest, Returned, TurnPart, TurnScheduler

Events = Generator[simpy.Event, object, None]
HANDED, ARRIVES, ENTERS = 2, 3, 4  # priorities of events at the same tick; a leaving turn has 1


class ServingLine:
    """One replica: a scheduler, an entry, and one process per region."""

    def __init__(self, service: ServingReplicas, keys: PrefixKeys | None) -> None:
        self.service, self.env, self.latency = service, service.env, service.latency
        self.scheduler = TurnScheduler(service.rules, service.latency, keys)
        self.busy = np.zeros(self.latency.regions, np.int64)
        self.turns = self.emitted = 0
        self.samples: list[list[int]] = []
        self.every = FIRST_SAMPLE_TICKS
        self.seen: list[int] = []
        self._regions = [simpy.Store(self.env) for _ in range(self.latency.regions)]
        self._wake = self.env.event()
        for place in range(self.latency.regions):
            self.env.process(self._region(place))
        self.env.process(self._entry())

    def arrives(self, request: QueuedRequest) -> None:
        """Add a request to the queue."""
        self.scheduler.arrives(request)
        self.rouse()

    def _entry(self) -> Events:
        while True:
            yield _later(self.env, ENTERS)
            self._sample(int(self.env.now))
            turn, admitted = self.scheduler.form(int(self.env.now))
            for request in admitted:
                self.service.admitted[request.number] = self.env.now
            for at, request, found in self.scheduler.handed:
                self.env.process(self._hand_over(at, request, found))
            if not turn:
                self.seen = self._state()
                self._wake = self.env.event()
                soon = self.scheduler.wakes_at(int(self.env.now))
                yield self._wake if soon is None else self._wake | self.env.timeout(soon - self.env.now)
                continue
            self.turns += 1
            times = self.latency.ticks_of([part[1:] for part in turn])
            if spec := self.scheduler.rules.speculation:
                times[-1] += spec.tail_ticks * sum(part.emits > 0 for part in turn)
            self.busy += times
            self.seen = self._state()
            yield self.env.timeout(max(0, self.scheduler.enters_at - int(self.env.now)))
            self._regions[0].put((turn, times))
            yield self.env.timeout(int(times[0]))

    def _state(self) -> list[int]:
        """Current values of the :data:`SAMPLED` columns, then the busy ticks of each region."""
        plan, tally = self.scheduler, self.scheduler.tally
        used = plan.rules.blocks - plan.pool.free
        counts = (tally[name] for name in ("computed", "recomputed", "cached", "preemptions"))
        return [len(plan.running), len(plan.waiting), used, self.emitted, *counts, *self.busy.tolist()]

    def _sample(self, now: int) -> None:
        """Sample the state since the last turn, which has not changed; when the list is full, keep every
        second row."""
        most = self.service.most_samples
        while most and len(self.samples) * self.every < now:
            if len(self.samples) == most:
                self.samples, self.every = self.samples[::2], 2 * self.every
                continue
            self.samples.append(self.seen)

    def _region(self, place: int) -> Events:
        while True:
            turn, times = cast(tuple[tuple[TurnPart, ...], Ticks], (yield self._regions[place].get()))
            begun = int(self.env.now)
            yield self.env.timeout(int(times[place]))
            self.service.left(self, place, begun, turn)
            if place + 1 < self.latency.regions:
                self._regions[place + 1].put((turn, times))
            else:
                self._emit(self.scheduler.returned(turn, int(self.env.now)))

    def _hand_over(self, at: int, request: QueuedRequest, found: int) -> Events:
        yield self.env.timeout(at - self.env.now)
        yield _later(self.env, HANDED)
        self._emit(self.scheduler.is_there(request, found, int(self.env.now)))

    def _emit(self, returned: list[Returned]) -> None:
        for one in returned:
            self.emitted += one.tokens
            self.service.emits(one)
        self.rouse()

    def rouse(self) -> None:
        """Wake the line, because its state has changed and it may form a turn."""
        if not self._wake.triggered:
            self._wake.succeed()


class ServingReplicas:
    """Replicas that serve a load, in SimPy; times in ticks."""

    def __init__(
        self, load: Load, rules: ServingRules, latency: Latency, replicas: int = 1, router: str = ROUND_ROBIN
    ) -> None:
        self.load, self.rules, self.latency, self.router = load, rules, latency, router
        self.env = simpy.Environment()
        self.most_samples = most_samples(replicas)
        priority = np.zeros(len(load), np.int64) if load.priority is None else load.priority
        columns = (column.tolist() for column in (load.input_tokens, load.output_tokens, priority))
        self.requests = [QueuedRequest(n, *row) for n, row in enumerate(zip(*columns, strict=True))]
        self._home = home_of(load, replicas)
        keys = PrefixKeys(load, rules.block_tokens) if rules.prefix_cache else None
        self.lines = [ServingLine(self, keys) for _ in range(replicas)]
        self.arrival = load.arrival_ticks.copy()
        self.admitted, self.first, self.last, self.replica = (
            np.full(len(load), NEVER, np.int64) for _ in range(4)
        )
        self.gaps = np.zeros(GAP_BINS, np.int64)
        self.emitted = self.gap_ticks = 0
        self._due: list[tuple[int, int]] = []  # heap of arrivals to come: when, request
        self._followers = {int(one): number for number, one in enumerate(load.after.tolist()) if one >= 0}

    def run(self) -> Served:
        """Simulate the load to its end."""
        self.begin()
        self.env.run()
        return self._served()

    def begin(self) -> None:
        """Start the processes of arrivals."""
        for number, (after, at) in enumerate(
            zip(self.load.after.tolist(), self.load.arrival_ticks.tolist(), strict=True)
        ):
            if after < 0:
                self.env.process(self._arrive(number, at))

    def left(self, line: ServingLine, place: int, begun: int, turn: tuple[TurnPart, ...]) -> None:
        """Called when a turn that entered region `place` at tick `begun` leaves it; subclasses that record turns
        override it.
        """

    def _served(self) -> Served:
        schedules = [line.scheduler for line in self.lines]
        counters = {
            "emitted": self.emitted,
            "gap_ticks": self.gap_ticks,
            "turns": sum(line.turns for line in self.lines),
        }
        for name in COUNTERS:
            if name not in counters:
                every = [schedule.tally[name] for schedule in schedules]
                counters[name] = max(every) if name.endswith("most") else sum(every)
        preempted = [number for schedule in schedules for number in schedule.preemptions]
        prefill = [schedule.prefill.busy for schedule in schedules if schedule.prefill]
        return Served(
            self.arrival, self.admitted, self.first, self.last,
            np.bincount(np.array(preempted, np.int64), minlength=len(self.load)).astype(np.int64),
            self.gaps, np.sum([line.busy for line in self.lines], axis=0), {name: counters[name] for name in COUNTERS},
            cached=np.array([request.cached for request in self.requests], np.int64),
            accepted=np.array([request.accepted for request in self.requests], np.int64),
            replica=self.replica,
            accepted_at=np.sum([schedule.accepted_at for schedule in schedules], axis=0).astype(np.int64),
            prefill_busy_ticks=np.sum(prefill, axis=0) if prefill else np.zeros(self.latency.regions, np.int64),
            samples=tuple(np.array([*line.samples, line.seen], np.int64) for line in self.lines),
            every_ticks=tuple(line.every for line in self.lines),
        )  # fmt: skip

    def _arrive(self, number: int, delay: int) -> Events:
        heapq.heappush(self._due, (int(self.env.now) + delay, number))
        yield self.env.timeout(delay)
        yield _later(self.env, ARRIVES)
        _, number = heapq.heappop(self._due)  # at the same tick the smaller number comes first
        request = self.requests[number]
        self.arrival[number] = request.arrival = int(self.env.now)
        if self.rules.fits(request.input_tokens, request.output_tokens):
            self.replica[number] = place = self._place(request)
            self.lines[place].arrives(request)
        else:
            self._follow(number)
            if self.router == ROUND_ROBIN or len(self.lines) == 1:
                self.lines[
                    int(self._home[number])
                ].rouse()  # a time at which a turn may be formed, and a sample taken

    def _place(self, request: QueuedRequest) -> int:
        if self.router == ROUND_ROBIN or len(self.lines) == 1:
            return int(self._home[request.number])
        schedules = [line.scheduler for line in self.lines]
        return chosen_replica(
            self.router,
            [schedule.load for schedule in schedules],
            [len(schedule.waiting) + len(schedule.running) for schedule in schedules],
            [len(schedule.pool.found(request.number, request.length)) for schedule in schedules],
        )

    def _follow(self, number: int) -> None:
        """Schedule the request that waits for this one to end: it arrives after its think time."""
        if number in self._followers:
            follower = self._followers[number]
            self.env.process(self._arrive(follower, int(self.load.think_ticks[follower])))

    def emits(self, returned: Returned) -> None:
        """Record that a request emitted tokens, all at the same tick."""
        now, number = int(self.env.now), returned.request.number
        if self.first[number] == NEVER:
            self.first[number] = now
        else:
            gap = now - int(self.last[number])
            self.gaps[np.searchsorted(GAP_EDGES, gap, side="right")] += 1
            self.gap_ticks += gap
        self.last[number] = now
        self.emitted += returned.tokens
        if returned.is_done:
            self._follow(number)


def _later(env: simpy.Environment, priority: int) -> simpy.Event:
    """Return an event at the current tick that fires after those with smaller `priority`."""
    event = env.event()
    event._ok, event._value = True, None
    env.schedule(event, priority=priority)  # type: ignore[arg-type]  # lower than URGENT and NORMAL
    return event


def serve_reference(
    load: Load, rules: ServingRules, table: Latency, replicas: int = 1, router: str = ROUND_ROBIN
) -> Served:
    """Serve a load on equal replicas.

    Returns
    -------
    Served
        Times and counters; a request that fits no cache is never admitted.
    """
    return ServingReplicas(load, rules, table, replicas, router).run()
