"""The reference engine: the scheduler before a line of regions, each a process of SimPy.

Slow (some 100 requests a second) and plain; :mod:`wse_sim.serving.loop` gives the same answers bit for bit.
"""

from __future__ import annotations

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
    SAMPLED,
    SAMPLES,
    Load,
    Served,
    ServingRules,
    Ticks,
)
from wse_sim.serving.blocks import PrefixKeys
from wse_sim.serving.latency import Latency
from wse_sim.serving.scheduler import QueuedRequest, TurnPart, TurnScheduler

Events = Generator[simpy.Event, object, None]
LAST = 2  # priority of the entry: after all returns and arrivals of its instant


class ServingLine:
    """One replica that serves a load; times in ticks."""

    def __init__(self, load: Load, rules: ServingRules, latency: Latency) -> None:
        self.load, self.rules, self.latency = load, rules, latency
        self.env = simpy.Environment()
        self.scheduler = TurnScheduler(
            rules, PrefixKeys(load, rules.block_tokens) if rules.prefix_cache else None
        )
        self.requests = [
            QueuedRequest(number, *sizes)
            for number, sizes in enumerate(
                zip(load.input_tokens.tolist(), load.output_tokens.tolist(), strict=True)
            )
        ]
        count = len(load)
        self.arrival = load.arrival_ticks.copy()
        self.admitted, self.first, self.last = (np.full(count, NEVER, np.int64) for _ in range(3))
        self.gaps = np.zeros(GAP_BINS, np.int64)
        self.busy = np.zeros(latency.regions, np.int64)
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.samples: list[list[int]] = []
        self.every = FIRST_SAMPLE_TICKS
        self._state: list[int] = []
        self._followers = {int(one): number for number, one in enumerate(load.after.tolist()) if one >= 0}
        self._regions = [simpy.Store(self.env) for _ in range(latency.regions)]
        self._wake = self.env.event()

    def run(self) -> Served:
        """Play the load to its end."""
        self.begin()
        self.env.run()
        self._state = self._seen()
        self._sample()
        schedule = self.scheduler
        self.counters |= {
            "computed": schedule.computed, "recomputed": schedule.recomputed, "cached": schedule.cached, "preemptions": schedule.preempted,
            "running_most": schedule.running_most, "blocks_most": schedule.blocks_most,
        }  # fmt: skip
        preempted = np.bincount(schedule.preemptions, minlength=len(self.load)).astype(np.int64)
        samples = np.array(self.samples, np.int64).reshape(-1, len(SAMPLED) + self.latency.regions)
        return Served(
            self.arrival, self.admitted, self.first, self.last, preempted, self.gaps, self.busy, self.counters,
            samples, self.every,
        )  # fmt: skip

    def begin(self) -> None:
        """Start the processes: arrivals, regions, the entry."""
        for number, (after, at) in enumerate(
            zip(self.load.after.tolist(), self.load.arrival_ticks.tolist(), strict=True)
        ):
            if after < 0:
                self.env.process(self._arrive(number, at))
        for place in range(self.latency.regions):
            self.env.process(self._region(place))
        self.env.process(self._entry())

    def _sample(self) -> None:
        """One more row of samples: nothing has changed since the last turn; of a full list every second one stays."""
        if len(self.samples) == SAMPLES:
            self.samples, self.every = self.samples[::2], 2 * self.every
        self.samples.append(self._state)

    def _seen(self) -> list[int]:
        plan = self.scheduler
        used = self.rules.blocks - plan.pool.free
        return [
            len(plan.running), len(plan.waiting), used, self.counters["emitted"], plan.computed, plan.recomputed,
            plan.cached, plan.preempted, *self.busy.tolist(),
        ]  # fmt: skip

    def _arrive(self, number: int, delay: int) -> Events:
        yield self.env.timeout(delay)
        request = self.requests[number]
        self.arrival[number] = self.env.now
        if self.rules.fits(request.input_tokens, request.output_tokens):
            self.scheduler.arrives(request)
            self._rouse()
        else:
            self._follow(number)
            self._rouse()

    def _follow(self, number: int) -> None:
        """Who waits for the end of a request comes after its time to think."""
        if number in self._followers:
            follower = self._followers[number]
            self.env.process(self._arrive(follower, int(self.load.think_ticks[follower])))

    def _entry(self) -> Events:
        while True:
            turn_now = self.env.event()
            turn_now._ok, turn_now._value = True, None
            self.env.schedule(turn_now, priority=LAST)  # type: ignore[arg-type]  # lower than URGENT and NORMAL
            yield turn_now
            while len(self.samples) * self.every < self.env.now:
                self._sample()
            turn, admitted = self.scheduler.form()
            for request in admitted:
                self.admitted[request.number] = self.env.now
            if not turn:
                self._state = self._seen()
                self._wake = self.env.event()
                yield self._wake
                continue
            self.counters["turns"] += 1
            times = self.latency.ticks_of([part[1:] for part in turn])
            self.busy += times
            self._state = self._seen()
            self._regions[0].put((turn, times))
            yield self.env.timeout(int(times[0]))

    def _region(self, place: int) -> Events:
        while True:
            turn, times = cast(tuple[tuple[TurnPart, ...], Ticks], (yield self._regions[place].get()))
            begun = int(self.env.now)
            yield self.env.timeout(int(times[place]))
            self.left(place, begun, turn)
            if place + 1 < self.latency.regions:
                self._regions[place + 1].put((turn, times))
            else:
                self._leave(turn)

    def left(self, place: int, begun: int, turn: tuple[TurnPart, ...]) -> None:
        """A turn left a region in which it began at some tick; for those who watch."""

    def _leave(self, turn: tuple[TurnPart, ...]) -> None:
        now = int(self.env.now)
        for request in self.scheduler.returned(turn):
            number = request.number
            if self.first[number] == NEVER:
                self.first[number] = now
            else:
                gap = now - int(self.last[number])
                self.gaps[np.searchsorted(GAP_EDGES, gap, side="right")] += 1
                self.counters["gap_ticks"] += gap
            self.last[number] = now
            self.counters["emitted"] += 1
            if request.emitted == request.output_tokens:
                self._follow(number)
        self._rouse()

    def _rouse(self) -> None:
        if not self._wake.triggered:
            self._wake.succeed()


def serve_reference(load: Load, rules: ServingRules, table: Latency) -> Served:
    """Serve a load on one replica.

    Returns
    -------
    Served
        Times and counters; a request that fits no cache is never admitted.
    """
    return ServingLine(load, rules, table).run()
