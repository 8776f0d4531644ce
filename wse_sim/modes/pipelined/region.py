"""One region of a pipeline: two SimPy processes, forward and backward, that share its cores.

Symbols: stage k, sample i; ``s`` cycles of a pass (forward or backward), ``n`` rows per sample, ``h``
cycles that a word travels from the region before.  Rows stream word by word, so a pass is known when it
starts; ``u`` is the time until which the region's cores are taken by earlier work::

    ready        max over inputs of (their first row + h); a barrier waits for their last row
    start        max(ready, end of the same pass of sample i - 1, room in all streams out of it)
                 `parallel`, without rounds: as soon as the first core has finished sample i - 1, start + s
    u            <- max(u, start) + s
    end          max(u, max over inputs of (their end + h) + s / n)
    first row    start + (end - start) / n

Results travel h cycles, and the fill of the rectangle before that (``latency_cycles``).  The backward pass
obeys the same equations, with every stream reversed.

* Arriving data triggers the cores: one forward and one backward pass are open at a time and share the region;
  neither takes cycles while its rows are missing.  Alternating the two gives the 1F1B schedule.  If both are
  ready, backward runs first, because it frees the activations of a sample.
* If the busiest link of the fabric is slower than every region, a sample enters only after that link has carried
  the one before.
* With rounds of d samples (``round_samples``, the GPipe schedule) all forward passes of a round, with their fill, precede its
  first backward pass, since gradients arrive where results leave; and all its backward passes precede the next round. Only each
  core of a loss sends its first gradient at once.
* A pass has room if fewer than `capacity` samples wait in each stream out of it that the reader has not
  started.  A started sample is in the reader's store of activations, which has room for ``in_flight``
  samples from the start of forward to the end of backward.
* In a `parallel` stage different cores have rows, or parts of them. With w cycles of a core's own work, a row leaves w / n after
  its arrival: the first at start + w / n without the fill, since the first core is next to the inlet, but for a barrier, which
  all cores leave together; and the end is at least w / n after the last arrival.
* If R cores take whole samples in rotation, a pass takes R s cycles on one of them, and begins when the pass R samples
  before is over. The region's cores are taken for s of them.
* Weights are updated in place after the last backward pass of the batch; the next batch waits for it.

Time of a region: busy (charged) + stalled on input (a pass is open or has partly arrived, and rows are
missing) + stalled on output (no room) + idle (no work) = total time.

A cost may state that the cores wait w of the s cycles of a pass (:attr:`Stage.forward_stalls`). These cycles
occupy the region like all others, and count as stalled, spread evenly over the work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import simpy

from wse_sim.compiler.plan import Stage
from wse_sim.engine.accounts import BUSY, IDLE, STALLED_INPUT, STALLED_OUTPUT
from wse_sim.engine.result import Slice
from wse_sim.engine.trace import Alarm, RunTrace

Events = Generator[simpy.Event, object, None]


@dataclass(slots=True)
class Arrival:
    """State of one sample's arrival: streams still missing, and times of first and last row (cycles)."""

    missing: int
    first: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class StreamEnd:
    """One end of a stream: the pass at the other end, travel time (cycles), buffer size, samples carried."""

    other: Lane
    travel: float
    capacity: int
    samples: int = 0


@dataclass(slots=True, eq=False)
class Lane:
    """All passes of one direction through a region, one sample after the other."""

    region: RegionProcess
    name: str
    cycles: float
    stalls: tuple[float, float] = (0.0, 0.0)  # of them: on input, on output
    row_cycles: float = 0.0  # from the arrival of a row to its results
    fill: float = 0.0
    before: list[StreamEnd] = field(default_factory=list)  # rows come from there
    after: list[StreamEnd] = field(default_factory=list)  # rows go there
    started: int = 0
    finished: int = 0
    step: int = 0
    step_started: int = 0
    starts: list[list[float]] = field(default_factory=list)  # per step, cycles
    open_until: float = 0.0  # the end of the samples started so far
    results_until: float = 0.0  # when the last of their results has left
    is_blocked: bool = False
    partial_since: float = inf
    _last_start: float = -inf
    _arrivals: dict[int, Arrival] = field(default_factory=dict)
    _alarm: Alarm | None = None  # set while the lane waits
    _ends: deque[float] = field(default_factory=deque)  # of the latest passes, one per core in rotation

    def run(self) -> Events:
        """Process all batches."""
        region, env, pipeline = self.region, self.region.env, self.region.pipeline
        for step in range(pipeline.steps):
            self.starts.append([])
            while self.step_started < pipeline.size(step):
                delay = self._delay(env.now)
                if delay == 0.0:
                    free = self._start(env.now)
                    yield env.timeout(free - env.now)
                    region.settle(env.now)
                    self.finished += 1
                    region.pass_ended(self)
                elif delay < inf:
                    yield env.timeout(delay)
                    region.settle(env.now)
                else:
                    self._alarm = Alarm(env)
                    yield self._alarm
                    self._alarm = None
                    region.settle(env.now)
            self.is_blocked, self.partial_since = False, inf
            yield from region.end_step(self)
            self.step, self.step_started = step + 1, 0

    @property
    def step_finished(self) -> int:
        """Return the number of completed passes of this batch."""
        return self.finished - (self.started - self.step_started)

    def wake(self) -> None:
        """Wake the lane, so that it checks again for work."""
        if self._alarm is not None:
            self._alarm.ring()

    def announce(self, sample: int, first: float, last: float) -> None:
        """Receive the announcement of the preceding region: arrival times of the first and the last row of a
        sample."""
        arrival = self._arrivals.get(sample)
        if arrival is None:
            arrival = self._arrivals[sample] = Arrival(len(self.before))
        arrival.missing -= 1
        arrival.first = max(arrival.first, first)
        arrival.last = max(arrival.last, last)
        if sample == self.started and self._alarm is not None:
            env = self.region.env
            if arrival.missing <= 0:
                ready = arrival.last if self.region.stage.barrier else arrival.first
                self.region.settle(env.now)
                self.partial_since = arrival.first
                self._alarm.ring(max(ready - env.now, 0.0))
            elif self.partial_since == inf and self.open_until <= first:
                self.region.settle(env.now)
                self.partial_since = first

    def lacks(self) -> list[StreamEnd]:
        """Return the streams that keep the next sample from starting: missing rows, or full buffers."""
        sample = self.started
        missing = [link for link in self.before if link.other.started <= sample]
        return missing or [link for link in self.after if link.other.started <= sample - link.capacity]

    def _delay(self, now: float) -> float:
        """Return the cycles until the next sample can start; infinite if it waits for another event."""
        sample = self.started
        arrival = self._arrivals.get(sample)
        self.is_blocked, self.partial_since = False, inf
        if arrival is not None:
            if arrival.first < inf:
                self.partial_since = arrival.first
            if arrival.missing > 0:
                return inf
            ready = arrival.last if self.region.stage.barrier else arrival.first
            if ready > now:
                return ready - now
            if not self.region.in_turn(self):
                return inf
            if self is self.region.backward and (turned := self.region.results_at(self.region.forward)) > now:
                return turned - now
        elif self.before or not self.region.takes_input(self):
            return inf
        if self._has_room(sample):
            return 0.0 if arrival is not None else self._input_delay(now)
        self.is_blocked, self.partial_since = True, inf
        return inf

    def _has_room(self, sample: int) -> bool:
        for link in self.after:
            if link.other.started <= sample - link.capacity:
                return False
        return self.region.has_room(self)

    def _input_delay(self, now: float) -> float:
        pipeline = self.region.pipeline
        if not pipeline.has_input(self.started):
            self.partial_since = now  # there is space, and the host is late
            return inf
        delay = max(self._last_start + pipeline.link_cycles - now, 0.0)
        self.is_blocked = delay > 0.0  # the busiest link still carries the sample before
        return delay

    def _start(self, now: float) -> float:
        """Start the pass of the next sample; return when the one after it can start."""
        region, sample = self.region, self.started
        stage, pipeline = region.stage, region.pipeline
        begin = max(region.taken_until, now)
        region.taken_until = end = begin + self.cycles
        alone = stage.rotation * self.cycles  # on one core
        end = max(end, now + alone)
        region.add_stalls(self.stalls)
        arrival = self._arrivals.pop(sample, None)
        if arrival is not None:
            end = max(end, arrival.last + self.row_cycles)
        self.started += 1
        self.step_started += 1
        self._last_start = now
        self.starts[self.step].append(now)
        self.open_until = end
        self.partial_since = inf
        fill = self.fill  # delays the rows without using cycles of the cores
        over = self.results_until = end + fill
        first = now + stage.first_cycles(end - now, self.row_cycles, fill)
        for link in self.after:
            link.samples += 1
            link.other.announce(sample, first + link.travel, over + link.travel)
        for link in self.before:
            link.samples += 1
            if link.other.is_blocked:
                link.other.wake()
        region.pass_started(self, sample, over)
        if pipeline.trace.room:
            name = f"{self.name} {sample}"
            pipeline.trace.span(
                Slice(
                    stage.name, name, "compute", begin, self.cycles, 0.0, sample, self.name, self.name, sample
                )
            )
        is_last = self.step_started == pipeline.size(self.step)
        if stage.parallel and not pipeline.round_samples and not is_last:
            return min(end, max(now + alone, region.taken_until))  # the first core takes the next sample
        if stage.rotation == 1:
            return end
        self._ends.append(end)
        return max(now, self._ends.popleft()) if len(self._ends) == stage.rotation else now


class Surroundings(Protocol):
    """Methods of the pipeline that its regions call."""

    steps: int
    training: bool

    @property
    def env(self) -> simpy.Environment:
        """Simulation environment with the clock."""
        ...

    @property
    def trace(self) -> RunTrace:
        """Recorder of timeline slices."""
        ...

    def size(self, step: int) -> int:
        """Samples of a batch."""
        ...

    @property
    def round_samples(self) -> int:
        """Number of samples whose forward passes precede their backward passes; 0 if both alternate."""
        ...

    @property
    def link_cycles(self) -> float:
        """Least cycles between two entering samples: those of the busiest link if it is slower than every
        region, else 0."""
        ...

    def has_input(self, sample: int) -> bool:
        """Return whether the host has delivered a sample."""
        ...

    def take_input(self, source: RegionProcess, sample: int) -> None:
        """Let a source take a sample."""
        ...

    def admits(self, sample: int) -> bool:
        """Return whether another sample may enter."""
        ...

    def end_passed(self) -> None:
        """Record that a sample's last pass is over."""
        ...

    def synchronise(self, region: RegionProcess) -> simpy.Event | None:
        """Return the process that sums a stage's gradients over the replicas, if it takes time."""
        ...

    def part_done(self, step: int) -> None:
        """Record that the region has finished a batch."""
        ...


class RegionProcess:
    """The cores of one region and their two lanes."""

    def __init__(self, stage: Stage, pipeline: Surroundings) -> None:
        self.stage = stage
        self.pipeline = pipeline
        self.env = pipeline.env
        (row, fill), (row_back, fill_back) = (
            (stage.row_cycles(backward=back), stage.fill_cycles(backward=back)) for back in (False, True)
        )
        self.forward = Lane(self, "forward", stage.forward_cycles, stage.forward_stalls, row, fill)
        self.backward = Lane(
            self, "backward", stage.backward_cycles, stage.backward_stalls, row_back, fill_back
        )
        self.taken_until = 0.0
        self._stalls = (0.0, 0.0)  # cycles of scheduled work in which the cores wait for input, for output
        self.times = [0.0, 0.0, 0.0, 0.0]  # cycles: busy, stalled on input, stalled on output, idle
        self.ends: list[float] = []  # per batch of a training, cycles at which its update is over
        self.input_wait = 0.0  # cycles that a source waited for the host
        self._since = 0.0
        self._updated: simpy.Event | None = None

    @property
    def is_source(self) -> bool:
        """Whether the host feeds this stage."""
        return not self.forward.before

    @property
    def is_sink(self) -> bool:
        """Whether no stage reads this one."""
        return not self.forward.after

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The directions in use; backward first, so that it is charged first."""
        return (self.backward, self.forward) if self.pipeline.training else (self.forward,)

    def settle(self, now: float) -> None:
        """Account for the time since the last call."""
        since = self._since
        if now <= since:
            return
        self._since = now
        taken_until, times = self.taken_until, self.times
        if taken_until > since:
            busy_end = now if taken_until > now else taken_until
            stalls = self._stalls
            if stalls[0] or stalls[1]:
                self._book_work(busy_end - since, taken_until - since)
            else:
                times[BUSY] += busy_end - since
            if busy_end >= now:
                return
        else:
            busy_end = since
        forward, backward = self.forward, self.backward
        open_end = max(forward.open_until, backward.open_until, busy_end)
        if open_end >= now:
            times[STALLED_INPUT] += now - busy_end
            return
        times[STALLED_INPUT] += open_end - busy_end
        if forward.is_blocked or backward.is_blocked:
            times[STALLED_OUTPUT] += now - open_end
            return
        partial = max(now - max(open_end, min(forward.partial_since, backward.partial_since)), 0.0)
        times[STALLED_INPUT] += partial
        times[IDLE] += now - open_end - partial
        if self.is_source and forward.partial_since < now:
            self.input_wait += partial

    def add_stalls(self, stalls: tuple[float, float]) -> None:
        """Record the cycles of a scheduled pass in which the cores wait for input and for output."""
        on_input, on_output = stalls
        if on_input or on_output:
            self._stalls = self._stalls[0] + on_input, self._stalls[1] + on_output

    def _book_work(self, cycles: float, left: float) -> None:
        """Account for `cycles` of the `left` cycles for which the region is occupied."""
        on_input, on_output = self._stalls
        if left > 0.0 and (on_input or on_output):
            part = cycles / left
            self._stalls = on_input * (1 - part), on_output * (1 - part)
            on_input, on_output = on_input * part, on_output * part
            self.times[STALLED_INPUT] += on_input
            self.times[STALLED_OUTPUT] += on_output
            cycles -= on_input + on_output
        self.times[BUSY] += cycles

    def takes_input(self, lane: Lane) -> bool:
        """Return whether the host feeds a lane."""
        return lane is self.forward and self.is_source

    def in_turn(self, lane: Lane) -> bool:
        """Return whether the passes of the other direction that precede the next pass of a lane are over."""
        size = self.pipeline.round_samples
        if not size:
            return True
        position = lane.step_started
        if lane is self.backward:
            if (
                not self.stage.kernels
                and position % size < self.stage.region.cores // self.stage.rows_per_sample
            ):
                return True  # the first gradient of every core of a loss leaves at once
            last = min((position // size + 1) * size, self.pipeline.size(lane.step))
            return self.forward.step > lane.step or self.forward.step_finished >= last
        return self.backward.step_finished >= position // size * size

    def results_at(self, lane: Lane) -> float:
        """Return when the last cores are done with the passes of a lane, in rounds; where different cores have rows, none waits
        for others."""
        if not (self.pipeline.round_samples and self.stage.kernels) or self.stage.parallel:
            return 0.0
        return lane.results_until

    def has_room(self, lane: Lane) -> bool:
        """Return whether the activation store and the pipeline have space for another sample."""
        if lane is self.backward:
            return True
        sample = lane.started
        if self.pipeline.training and sample - self.backward.finished >= self.stage.in_flight:
            return False
        if not self.in_turn(lane):
            return False
        return not self.is_source or self.pipeline.admits(sample)

    def pass_started(self, lane: Lane, sample: int, end: float) -> None:
        """Record that a pass has started, which ends at `end`."""
        if lane is self.backward:
            return
        if self.is_source:
            self.pipeline.take_input(self, sample)
        if self.is_sink and self.pipeline.training:
            self.backward.announce(sample, end, end)

    def pass_ended(self, lane: Lane) -> None:
        """Record that a pass has ended: its activations are free, and the sample may have left the
        pipeline."""
        if lane is self.backward and self.forward.is_blocked:
            self.forward.wake()
        if self.pipeline.round_samples:
            (self.forward if lane is self.backward else self.backward).wake()
        if lane is self.lanes[0] and (self.is_source if self.pipeline.training else self.is_sink):
            self.pipeline.end_passed()

    def end_step(self, lane: Lane) -> Events:
        """Finish a batch after its last pass: the backward lane updates the weights, the forward lane waits
        for this."""
        pipeline = self.pipeline
        env = self.env
        if not pipeline.training:
            return
        if lane is self.forward:
            if self.backward.step == lane.step:
                self._updated = env.event()
                yield self._updated
                self.settle(env.now)
            return
        if (last := self.results_at(lane)) > env.now:  # the furthest cores take the last gradient
            yield env.timeout(last - env.now)
            self.settle(env.now)
        summed = pipeline.synchronise(self)
        if summed is not None:
            self.backward.partial_since = env.now
            yield summed
            self.settle(env.now)
            self.backward.partial_since = inf
        self.taken_until = env.now + self.stage.update_cycles
        length, step = self.stage.update_cycles, lane.step
        pipeline.trace.span(
            Slice(self.stage.name, f"update {step}", "update", env.now, length, role="update", sample=step)
        )
        yield env.timeout(self.stage.update_cycles)
        self.settle(env.now)
        if self._updated is not None:
            self._updated.succeed()
            self._updated = None
        self.ends.append(env.now)
        pipeline.part_done(lane.step)
