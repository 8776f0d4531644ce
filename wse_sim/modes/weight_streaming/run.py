"""The weight streaming schedule: one kernel at a time on the whole wafer.

Symbols: for a phase of c cycles, W weight bytes in, G gradient bytes out, X spilled bytes, v cycles of travel
between the edge and the end of a lane, P bytes that wait there; f clock, B bytes/s of wafer I/O each way
(full duplex), A bytes/s of the activation servers, t floor of a launch::

    start     max(end of the phase before, first weights at the wafer)
    ahead     min(P / B, time from the first weights at the wafer and the last ones of the phase before to start)
    end       max(start + c / f, start + W / B - ahead + v / f, last weights at the wafer + v / f, start + G / B + v / f,
              start + t) + X / A
    next      when the gradients have a place in the queue of MemoryX

The floor is a maximum: the next launch is prepared while a phase runs.  Spill is not overlapped. All systems
do the same on their part of the batch, so only one is simulated: the slowest, if the user states a skew.
Every sum over systems waits for it, and weights are sent to all systems at the same time, so the result
equals that of simulating all. Micro-batches repeat all phases. If there are many equal micro-batches, only
the first ones and the last are simulated; the others repeat the last but one.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from wse_sim.engine.accounts import BUSY, IDLE, STALLED_INPUT, STALLED_OUTPUT
from wse_sim.engine.host import InputPath
from wse_sim.engine.options import Options
from wse_sim.engine.result import Slice
from wse_sim.engine.skew import slowest_factors
from wse_sim.engine.trace import CountingEnvironment, RunTrace
from wse_sim.errors import DeadlockError
from wse_sim.graph import Phase
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.weight_streaming.memoryx import MemoryX
from wse_sim.modes.weight_streaming.plan import StreamedPhase, WeightStreamingPlan
from wse_sim.modes.weight_streaming.swarmx import SwarmX
from wse_sim.units import cycles_to_s

SIMULATED_MICRO_BATCHES = 6  # enough for prefetch, queues and input buffers to settle
INPUT_PREFETCH = 2  # micro-batches by which the host is ahead
PLACES = {"weight_io": STALLED_INPUT, "gradient_io": STALLED_OUTPUT}
CAUSES = ("compute", "weight_io", "gradient_io", "launch_floor")

Events = Generator[simpy.Event, object, None]


@dataclass
class StreamingBooks:
    """Seconds of one step: per phase (phases, 4), by limiting resource, and outside all phases."""

    phases: NDArray[np.float64]
    causes: dict[str, float] = field(default_factory=dict)
    input_wait_s: float = 0.0
    update_s: float = 0.0

    @staticmethod
    def empty(phases: int) -> StreamingBooks:
        """Return empty books."""
        return StreamingBooks(np.zeros((phases, 4)))

    def add(self, cause: str, time_s: float) -> None:
        """Add time under the resource that limited the pace."""
        self.causes[cause] = self.causes.get(cause, 0.0) + time_s

    def plus(self, other: StreamingBooks, times: int) -> None:
        """Add `times` times the books of a micro-batch."""
        self.phases += times * other.phases
        for cause, time_s in other.causes.items():
            self.add(cause, times * time_s)
        self.input_wait_s += times * other.input_wait_s


@dataclass(frozen=True)
class PhaseSeconds:
    """Constant times of a phase, in seconds: on the cores, at the edge, in flight."""

    compute: float
    weights: float
    gradients: float
    ahead: float
    way: float
    spill: float

    @classmethod
    def of(
        cls, phase: StreamedPhase, wafer: Wafer, cluster: Cluster, swarmx_bytes_per_s: float
    ) -> PhaseSeconds:
        """Return the times of a phase."""
        edge = min(wafer.io_bytes_per_s, swarmx_bytes_per_s)
        return cls(
            compute=cycles_to_s(phase.compute_cycles, wafer.clock_hz),
            weights=phase.edge_weight_bytes / edge,
            gradients=phase.edge_gradient_bytes / edge,
            ahead=phase.ahead_bytes / edge,
            way=cycles_to_s(phase.way_cycles, wafer.clock_hz),
            spill=phase.spill_bytes / min(cluster.activation_server_bytes_per_s, wafer.io_bytes_per_s),
        )


class StreamingRun:
    """One simulation of a weight streaming plan; `path` None makes the input free."""

    def __init__(
        self, plan: WeightStreamingPlan, options: Options, path: InputPath | None, trace: RunTrace
    ) -> None:
        self.plan = plan
        self.options = options
        self.trace = trace
        self.env = CountingEnvironment()
        few = options.extrapolate and plan.micro_batches > SIMULATED_MICRO_BATCHES
        self.micro_batches = SIMULATED_MICRO_BATCHES if few else plan.micro_batches
        self.skipped = plan.micro_batches - self.micro_batches
        self.swarmx = SwarmX.of(plan.cluster, plan.systems)
        self.memoryx = MemoryX(
            self.env, plan, self.swarmx, trace, steps=options.steps, micro_batches=self.micro_batches
        )
        self.slowest = slowest_factors(
            plan.systems, options.skew, options.seed, options.steps
        )  # of each step
        self.ends: list[float] = []  # of each step, seconds
        self.added_s = 0.0  # of the last step: micro-batches that were not simulated
        self.books = StreamingBooks.empty(len(plan.phases))  # of the last step
        self.received_bytes = 0.0
        self.gradient_bytes = 0.0
        self.input_sent = 0
        self.input_received = 0
        self._seconds = [
            PhaseSeconds.of(phase, plan.wafer, plan.cluster, self.swarmx.bytes_per_s) for phase in plan.phases
        ]
        self._path = path
        self._edge_free_s = 0.0  # since when no weights cross the edge
        self._batches = simpy.Store(self.env, capacity=INPUT_PREFETCH)

    @property
    def waited_for_input(self) -> bool:
        """Whether the wafer waited for samples in the last step."""
        return self.books.input_wait_s > 0

    @property
    def step_s(self) -> float:
        """Seconds of the last step."""
        before = self.ends[-2] if len(self.ends) > 1 else 0.0
        return self.ends[-1] - before + self.added_s

    def execute(self) -> None:
        """Run all steps.

        Raises
        ------
        DeadlockError
            If the wafer waits for weights that never come.
        """
        if self._path is not None:
            self.env.process(self._host(self._path))
        self.env.process(self._wafer())
        self.env.run()
        if len(self.ends) < self.options.steps:
            raise DeadlockError(
                f"weight streaming of '{self.plan.graph.name}' is stuck at {self.env.now:.6g} s of simulated "
                f"time in step {len(self.ends)}: the wafer waits for weights whose update never comes"
            )

    def _host(self, path: InputPath) -> Events:
        # All workers of a system fill one micro-batch; jitter is drawn per micro-batch and system, the last one counts.
        draw = random.Random(self.options.seed)
        samples = self.plan.micro_batch
        for number in range(self.options.steps * self.micro_batches):
            jitter = self.options.jitter
            factor = 1.0
            if jitter:
                factor += jitter * max(draw.uniform(-1.0, 1.0) for _ in range(self.plan.systems))
            duration = samples / path.samples_per_s * factor
            self.input_sent += samples
            self.trace.span(
                Slice(
                    "input", f"micro-batch {number}", "input", self.env.now, duration,
                    role="micro-batch", sample=number,
                )
            )  # fmt: skip
            yield self.env.timeout(duration)
            yield self._batches.put(number)

    def _wafer(self) -> Events:
        env, plan = self.env, self.plan
        for step in range(self.options.steps):
            self.books = StreamingBooks.empty(len(plan.phases))
            self.memoryx.update_s = 0.0
            for micro_batch in range(self.micro_batches):
                begin = env.now
                books = StreamingBooks.empty(len(plan.phases))
                if self._path is not None:
                    yield self._batches.get()
                    self.input_received += plan.micro_batch
                    books.input_wait_s = env.now - begin
                    books.add("input", env.now - begin)
                is_last = micro_batch == self.micro_batches - 1
                for index in range(len(plan.phases)):
                    yield from self._phase(index, step, books, is_last=is_last)
                # The last but one represents all that are not simulated.
                is_model = self.skipped and micro_batch == self.micro_batches - 2
                self.books.plus(books, 1 + (self.skipped if is_model else 0))
                if is_model:
                    self.added_s = self.skipped * (env.now - begin)
                if self.options.progress is not None:
                    done = step * self.micro_batches + micro_batch + 1
                    self.options.progress(done, self.options.steps * self.micro_batches)
            if plan.cluster.step_overhead_s:
                yield env.timeout(plan.cluster.step_overhead_s)
            self.ends.append(env.now)

    def _phase(self, index: int, step: int, books: StreamingBooks, *, is_last: bool) -> Events:
        env, phase, of = self.env, self.plan.phases[index], self._seconds[index]
        row = books.phases[index]
        begin = env.now
        first = last_weights = begin
        if phase.weight_bytes:
            first, last_weights = yield from self.memoryx.next_weights()
            if first > env.now:
                yield env.timeout(first - env.now)
        start = env.now
        row[STALLED_INPUT] += start - begin
        books.add("weight_latency", start - begin)
        compute = of.compute * self.slowest[step]
        ahead = min(of.ahead, max(0.0, start - max(first, self._edge_free_s)))
        weights = max(of.weights - ahead, last_weights - start)
        if phase.weight_bytes:
            self._edge_free_s = start + weights
        gradients = of.gradients + of.way * (of.gradients > 0)
        times = (compute, weights + of.way * (weights > 0), gradients, phase.floor_s)
        duration = max(times)
        cause = CAUSES[times.index(duration)]
        books.add(cause, duration)
        row[BUSY] += compute
        row[PLACES.get(cause, IDLE)] += duration - compute
        if self.trace.is_on:
            self._write(phase, of, start, compute, weights, duration)
        self.received_bytes += phase.weight_bytes
        if phase.spill_bytes:
            row[
                STALLED_OUTPUT if phase.phase is Phase.FORWARD and not phase.recompute else STALLED_INPUT
            ] += of.spill
            books.add("spill", of.spill)
            duration += of.spill
        yield env.timeout(duration)
        if phase.weight_bytes:
            self.memoryx.release()
        if phase.gradient_bytes:
            waiting = env.now
            self.gradient_bytes += phase.gradient_bytes
            yield self.memoryx.gradients.put(
                (index, phase.gradient_bytes, is_last, step, env.now + self.swarmx.latency_s)
            )
            row[STALLED_OUTPUT] += env.now - waiting
            books.add("memoryx_update", env.now - waiting)

    def _write(
        self,
        phase: StreamedPhase,
        of: PhaseSeconds,
        start: float,
        compute: float,
        weights: float,
        duration: float,
    ) -> None:
        """Add the slices of a starting phase to the timeline."""
        flow = self.env.events
        direction = "forward" if phase.phase is Phase.FORWARD else "backward"

        def write(
            track: str, kind: str, begin: float, length: float, size: float = 0.0, flow: int = -1
        ) -> None:
            self.trace.span(Slice(track, phase.name, kind, begin, length, size, flow, direction, phase.name))

        write("wafer", "compute", start, compute, flow=flow)
        if phase.weight_bytes:
            # If all weights already wait in queues at the start, there is no slice to draw.
            write("weights in", "weights", start, max(0.0, weights), phase.weight_bytes, flow)
        if phase.gradient_bytes:
            write("gradients out", "gradients", start + of.way, of.gradients, phase.gradient_bytes, flow)
        if phase.spill_bytes:
            write("spill", "spill", start + duration, of.spill, phase.spill_bytes)
