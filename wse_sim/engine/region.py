"""One region of a pipeline as a SimPy process: a serial resource that data triggers.

Symbols: stage k, sample i; ``f`` forward and ``b`` backward cycles per sample, ``n`` rows per sample,
``h`` cycles that a word travels from the producer's region to this one.  ``F`` is when a forward pass
starts, ``E`` when its last row has left::

    first row out     F + f / n
    ready             max over inputs of (their first row + h); a barrier waits for their last row
    E(k, i) = max(F(k, i) + f,  max over inputs of (E(input, i) + h) + f / n)

and the same backward with ``b`` along the same streams in reverse.  Rows stream word by word, so all
times of a sample are known when it starts: one time-out per pass.

* The region is charged ``f`` from F on.  A region whose producer is slower than itself works on other
  rows meanwhile: cores are triggered by the data that has come, whichever pass it belongs to.
* Backward goes first (1F1B): it frees the activations of a sample.
* A pass starts if every stream out of it has room: fewer than `capacity` samples wait there that the
  reader has not started.  A started sample lies in the reader's store of activations, which holds
  ``in_flight`` samples between forward and backward.
* Weights are updated in place after the last backward pass of the batch; the next batch waits for it.

Time of a region: busy (charged) + stalled on input (a sample is open or has partly come, and rows are
missing) + stalled on output (no room) + idle (nothing here) = all time.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import simpy

from wse_sim.compiler.plan import Stage

if TYPE_CHECKING:
    from wse_sim.engine.pipelined import Pipeline

BUSY, STALLED_INPUT, STALLED_OUTPUT, IDLE = range(4)
NOTHING, FORWARD, BACKWARD = range(3)

Events = Generator[simpy.Event, object, None]


@dataclass(slots=True)
class Arrival:
    """What has been announced of one sample: streams still missing, first and last row (cycles)."""

    missing: int
    first: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class Link:
    """One end of a stream: the region at the other end, travel time (cycles), room, samples carried.

    `sent` and `received` count at this end: a producer sends activations and receives gradients.
    """

    other: RegionProcess
    travel: float
    capacity: int
    sent: int = 0
    received: int = 0


@dataclass(slots=True, eq=False)
class RegionProcess:
    """The state of one region; :meth:`run` is its process."""

    stage: Stage
    pipeline: Pipeline
    inputs: list[Link] = field(default_factory=list)
    outputs: list[Link] = field(default_factory=list)
    forward_started: int = 0
    backward_started: int = 0
    finished: int = 0  # samples whose last pass here has ended; counted where a pipeline ends
    step: int = 0
    step_forward: int = 0
    step_backward: int = 0
    forward_starts: list[list[float]] = field(default_factory=list)  # per step, cycles
    backward_starts: list[list[float]] = field(default_factory=list)
    times: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    input_wait: float = 0.0  # cycles that a source waited for the host
    is_waiting: bool = False
    _forward_arrivals: dict[int, Arrival] = field(default_factory=dict)
    _backward_arrivals: dict[int, Arrival] = field(default_factory=dict)
    _since: float = 0.0
    _is_busy: bool = False
    _is_blocked: bool = False
    _open_until: float = 0.0  # the last row of the samples started so far
    _partial_since: float = inf
    _wakeup: simpy.Event | None = None

    @property
    def is_source(self) -> bool:
        """Whether the host feeds this stage."""
        return not self.inputs

    @property
    def is_sink(self) -> bool:
        """Whether no stage reads this one."""
        return not self.outputs

    def run(self) -> Events:
        """Work through all batches."""
        pipeline, env, stage = self.pipeline, self.pipeline.env, self.stage
        for _ in range(pipeline.steps):
            self.forward_starts.append([])
            self.backward_starts.append([])
            while not self._is_step_done():
                job = self._next()
                if job == NOTHING:
                    yield self._wait()
                    self.settle(env.now)
                    self.is_waiting = False
                    continue
                self._is_busy = True
                if job == BACKWARD:
                    self._start_backward(env.now)
                    yield env.timeout(stage.backward_cycles)
                else:
                    self._start_forward(env.now)
                    yield env.timeout(stage.forward_cycles)
                self.settle(env.now)
                self._is_busy = False
            if pipeline.training:
                yield from self._update()
            self.step += 1
            self.step_forward = self.step_backward = 0

    def settle(self, now: float) -> None:
        """Book the time since the last call."""
        since, span, self._since = self._since, now - self._since, now
        if span <= 0:
            return
        if self._is_busy:
            self.times[BUSY] += span
        elif self._is_blocked:
            self.times[STALLED_OUTPUT] += span
        else:
            open_part = min(max(self._open_until - since, 0.0), span)
            partial_part = min(max(now - self._partial_since, 0.0), span)
            stalled = min(span, open_part + partial_part)
            self.times[STALLED_INPUT] += stalled
            self.times[IDLE] += span - stalled
            if self.is_source:
                self.input_wait += partial_part

    def wake(self) -> None:
        """Look again for work, now."""
        if self._wakeup is not None and not self._wakeup.triggered:
            self._wakeup.succeed()

    def wake_at(self, time: float) -> None:
        """Look again for work at `time`."""
        env = self.pipeline.env
        if time <= env.now:
            self.wake()
        else:
            env.timeout(time - env.now).callbacks.append(self._on_time)  # type: ignore[union-attr]

    def _on_time(self, _: simpy.Event) -> None:
        self.wake()

    def _is_step_done(self) -> bool:
        size = self.pipeline.size(self.step)
        return self.step_forward >= size and (not self.pipeline.training or self.step_backward >= size)

    # what can start now

    def _next(self) -> int:
        now = self.pipeline.env.now
        if self.pipeline.training and self.backward_started < self.forward_started:
            ready = self._ready_at(self._backward_arrivals.get(self.backward_started))
            if ready <= now and self._has_backward_room():
                return BACKWARD
        if self.step_forward < self.pipeline.size(self.step):
            ready = self._forward_ready_at(now)
            if ready <= now and self._has_forward_room():
                return FORWARD
        return NOTHING

    def _ready_at(self, arrival: Arrival | None) -> float:
        if arrival is None or arrival.missing:
            return inf
        return arrival.last if self.stage.barrier else arrival.first

    def _forward_ready_at(self, now: float) -> float:
        if self.is_source:
            return now if self.pipeline.has_input(self.forward_started) else inf
        return self._ready_at(self._forward_arrivals.get(self.forward_started))

    def _has_forward_room(self) -> bool:
        sample = self.forward_started
        if self.pipeline.training and sample - self.backward_started >= self.stage.in_flight:
            return False
        if self.is_source and not self.pipeline.admits(sample):
            return False
        return all(link.other.forward_started > sample - link.capacity for link in self.outputs)

    def _has_backward_room(self) -> bool:
        sample = self.backward_started
        return all(link.other.backward_started > sample - link.capacity for link in self.inputs)

    def _wait(self) -> simpy.Event:
        env = self.pipeline.env
        now = env.now
        self._is_blocked = False
        self._partial_since = inf
        if self.pipeline.training and self.backward_started < self.forward_started:
            arrival = self._backward_arrivals.get(self.backward_started)
            self._look_ahead(arrival, self._ready_at(arrival), now)
        if self.step_forward < self.pipeline.size(self.step):
            arrival = self._forward_arrivals.get(self.forward_started)
            ready = self._forward_ready_at(now)
            self._look_ahead(arrival, ready, now)
            if self.is_source and ready > now and self._has_forward_room():
                self._partial_since = now  # it has room and waits for the host
        self.is_waiting = True
        self._wakeup = env.event()
        return self._wakeup

    def _look_ahead(self, arrival: Arrival | None, ready: float, now: float) -> None:
        if ready <= now:
            self._is_blocked = True
        elif ready < inf:
            self.wake_at(ready)
        if arrival is not None and ready > now:
            self._partial_since = min(self._partial_since, max(arrival.first, now))

    # passes

    def _start_forward(self, now: float) -> None:
        sample, stage, pipeline = self.forward_started, self.stage, self.pipeline
        row = stage.forward_cycles / stage.rows_per_sample
        finish = now + stage.forward_cycles
        if self.is_source:
            pipeline.take_input(self, sample)
        else:
            finish = max(finish, self._forward_arrivals.pop(sample).last + row)
        self.forward_started += 1
        self.step_forward += 1
        self.forward_starts[self.step].append(now)
        self._open_until = max(self._open_until, finish)
        for link in self.outputs:
            link.sent += 1
            link.other.receive_forward(sample, now + row + link.travel, finish + link.travel)
        for link in self.inputs:
            link.received += 1
            if link.other.is_waiting:
                link.other.wake()
        if self.is_sink:
            if pipeline.training:
                self._backward_arrivals[sample] = Arrival(0, finish, finish)
            else:
                pipeline.finish_at(self, finish)
        pipeline.trace.span(
            pipeline.track(stage), f"forward {sample}", "compute", now, stage.forward_cycles, flow=sample
        )

    def _start_backward(self, now: float) -> None:
        sample, stage, pipeline = self.backward_started, self.stage, self.pipeline
        row = stage.backward_cycles / stage.rows_per_sample
        finish = max(now + stage.backward_cycles, self._backward_arrivals.pop(sample).last + row)
        self.backward_started += 1
        self.step_backward += 1
        self.backward_starts[self.step].append(now)
        self._open_until = max(self._open_until, finish)
        for link in self.inputs:
            link.sent += 1
            link.other.receive_backward(sample, now + row + link.travel, finish + link.travel)
        for link in self.outputs:
            link.received += 1
            if link.other.is_waiting:
                link.other.wake()
        if self.is_source:
            pipeline.finish_at(self, finish)
        pipeline.trace.span(
            pipeline.track(stage), f"backward {sample}", "compute", now, stage.backward_cycles, flow=sample
        )

    def receive_forward(self, sample: int, first: float, last: float) -> None:
        """A producer says when the first and the last row of a sample will be here."""
        arrivals = self._forward_arrivals
        arrival = arrivals.get(sample)
        if arrival is None:
            arrival = arrivals[sample] = Arrival(len(self.inputs))
        self._announce(arrival, first, last, is_next=sample == self.forward_started)

    def receive_backward(self, sample: int, first: float, last: float) -> None:
        """A consumer says when the first and the last row of a gradient will be here."""
        arrivals = self._backward_arrivals
        arrival = arrivals.get(sample)
        if arrival is None:
            arrival = arrivals[sample] = Arrival(len(self.outputs))
        self._announce(arrival, first, last, is_next=sample == self.backward_started)

    def _announce(self, arrival: Arrival, first: float, last: float, *, is_next: bool) -> None:
        arrival.missing -= 1
        arrival.first = max(arrival.first, first)
        arrival.last = max(arrival.last, last)
        if not (self.is_waiting and is_next):
            return
        if not self._is_blocked:
            self.settle(self.pipeline.env.now)
            self._partial_since = min(self._partial_since, first)
        if not arrival.missing:
            self.wake_at(self._ready_at(arrival))

    def _update(self) -> Events:
        env, stage, pipeline = self.pipeline.env, self.stage, self.pipeline
        # The gradient is whole when its last row has come, perhaps after the charged time.
        if self._open_until > env.now:
            self._is_blocked, self._partial_since = False, inf
            yield env.timeout(self._open_until - env.now)
            self.settle(env.now)
        synchronised = pipeline.synchronise(self)
        if synchronised is not None:
            self._is_blocked, self._partial_since = False, env.now
            yield synchronised
            self.settle(env.now)
        self._is_busy = True
        pipeline.trace.span(
            pipeline.track(stage), f"update {self.step}", "update", env.now, stage.update_cycles
        )
        yield env.timeout(stage.update_cycles)
        self.settle(env.now)
        self._is_busy = False
        pipeline.run.part_done(self.step)

    def waits_for(self) -> list[RegionProcess]:
        """The regions that must move before this one can (after a run that stopped early)."""
        others: list[RegionProcess] = []
        if self.pipeline.training and self.backward_started < self.forward_started:
            if self._ready_at(self._backward_arrivals.get(self.backward_started)) == inf:
                others += [k.other for k in self.outputs if k.other.backward_started <= self.backward_started]
            else:
                sample = self.backward_started
                others += [k.other for k in self.inputs if k.other.backward_started <= sample - k.capacity]
        if self.step_forward < self.pipeline.size(self.step):
            sample = self.forward_started
            others += [k.other for k in self.inputs if k.other.forward_started <= sample]
            others += [k.other for k in self.outputs if k.other.forward_started <= sample - k.capacity]
        return others
