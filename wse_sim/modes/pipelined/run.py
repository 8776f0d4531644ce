"""The pipelined schedule: regions, streams between them, samples in flight, batches.

Every replica of the model is one :class:`Pipeline` of regions (:mod:`wse_sim.modes.pipelined.region`); sample
``i`` of a batch goes to replica ``i mod R``, so a batch of N samples is shared as evenly as possible.

Training: a batch ends when every stage has updated its weights.  With several replicas a stage's
gradients are summed over its copies before the update: a chain over the replicas and back, on all links
of the region's shorter side w::

    all-reduce = 2 P / (w B) + 2 d h      P gradient bytes, B link bytes per cycle, d hops between the
                                          farthest copies, h cycles per hop

Inference: batches follow each other without a gap; a step is the time between the last samples of two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import simpy

from wse_sim.compiler.plan import Stage, Stream
from wse_sim.engine.host import Host, InputPath
from wse_sim.engine.options import Options
from wse_sim.engine.steady import Books, Look, Steady, SteadyWatch
from wse_sim.engine.trace import CountingEnvironment, RunTrace
from wse_sim.errors import DeadlockError
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.region import Lane, RegionProcess, StreamEnd

GRADIENT_BYTES = 4  # gradients are summed over replicas in fp32
WARM_UP_DEPTHS = 2  # samples in flight that a batch before the measured one holds
UNBOUNDED = 1 << 40
MIN_LEFT = 16  # fewer samples are not worth skipping


class PipelineDeadlockError(DeadlockError):
    """A pipelined plan stopped because stages wait for each other."""


@dataclass(eq=False)
class Pipeline:
    """One replica: its regions and its samples in flight."""

    run: PipelinedRun
    replica: int
    in_flight: int
    regions: list[RegionProcess] = field(default_factory=list)
    sources: list[RegionProcess] = field(default_factory=list)
    ends: list[RegionProcess] = field(default_factory=list)  # regions whose last pass ends a sample
    completed: int = 0
    step: int = 0
    departures: list[float] = field(default_factory=list)  # of the samples of the current step

    def __post_init__(self) -> None:
        self.env = self.run.env
        self.steps = self.run.batches
        self.training = self.run.training  # whether samples come back as gradients
        plan = self.run.plan
        self.link_cycles = plan.link_cycles if plan.link_cycles > plan.pace_cycles else 0.0

    @property
    def trace(self) -> RunTrace:
        """Recorder of timeline slices."""
        return self.run.trace

    def size(self, step: int) -> int:
        """Samples of this replica in a batch."""
        return self.run.sizes[step][self.replica] if step < self.steps else 0

    @property
    def round_samples(self) -> int:
        """Samples of a round, as in the plan."""
        return self.run.plan.round_samples

    def has_input(self, sample: int) -> bool:
        """Return whether the host has delivered a sample."""
        host = self.run.host
        return host is None or host.has(self._global(sample))

    def take_input(self, source: RegionProcess, sample: int) -> None:
        """Let a source take a sample; the last of the sources frees its place in the buffer."""
        run = self.run
        if all(other.forward.started > sample for other in self.sources if other is not source):
            if run.host is not None:
                run.host.take(self._global(sample))
            run.in_flight += 1
            run.trace.count("samples in flight", self.env.now, run.in_flight)

    def admits(self, sample: int) -> bool:
        """Return whether another sample may enter; without gradients only buffers limit the number."""
        return not self.training or sample - self.completed < self.in_flight

    def end_passed(self) -> None:
        """Record that a sample's last pass is over at one of the ends of the pipeline."""
        if min(end.lanes[0].finished for end in self.ends) <= self.completed:
            return
        self.completed += 1
        self.departures.append(self.env.now)
        run = self.run
        run.in_flight -= 1
        run.trace.count("samples in flight", self.env.now, run.in_flight)
        for source in self.sources:
            if source.forward.is_blocked:
                source.forward.wake()
        run.departed(self)
        self.end_batch()

    def end_batch(self) -> None:
        """Continue with the next batch if all samples of this one have left."""
        if self.departures and len(self.departures) == self.size(self.step):
            self.departures = []
            self.step += 1
            if not self.training:
                self.run.part_done(self.step - 1)

    def synchronise(self, region: RegionProcess) -> simpy.Event | None:
        """Wait for the sum of a stage's gradients over the replicas."""
        return self.run.synchronise(self.regions.index(region)) if self.run.plan.replicas > 1 else None

    def part_done(self, step: int) -> None:
        """Record that a region (training) or this replica (inference) has finished a batch."""
        self.run.part_done(step)

    def _global(self, sample: int) -> int:
        """The host's number of this replica's sample: batches follow each other without a gap."""
        first = 0
        for sizes in self.run.sizes[:-1]:
            if sample < sizes[self.replica]:
                break
            sample -= sizes[self.replica]
            first += sum(sizes)
        return first + sample * self.run.plan.replicas + self.replica


@dataclass(frozen=True)
class StepRecord:
    """End of a batch (cycles), and the accumulated time use of all regions since the start."""

    end: float
    books: Books
    input_wait: float


class PipelinedRun:
    """One simulation of a pipelined plan; `path` None makes the input free."""

    def __init__(
        self, plan: PipelinedPlan, options: Options, path: InputPath | None, trace: RunTrace
    ) -> None:
        self.plan = plan
        self.options = options
        self.env = CountingEnvironment()
        self.trace = trace
        self.training = plan.graph.training
        self.in_flight = 0
        replicas = plan.replicas
        share = [(plan.batch - r + replicas - 1) // replicas for r in range(replicas)]
        # Inference continues after the measured batch, so that no region runs dry while it is measured.
        self.batches = options.steps + (0 if self.training else 1)
        self.sizes = [list(share) for _ in range(options.steps)]
        self.samples = options.steps * plan.batch
        if self.training and options.extrapolate:
            # Batches before the measured one only have to leave the pipeline in the state that a full batch
            # leaves.
            enough = WARM_UP_DEPTHS * plan.in_flight + MIN_LEFT
            self.sizes[:-1] = [[min(size, enough) for size in share] for _ in self.sizes[:-1]]
        if not self.training:
            self.sizes.append([UNBOUNDED] * replicas)
        self.steady: list[Steady | None] = [None] * self.batches
        self.skipped = [0] * self.batches
        self.records: list[StepRecord] = []
        self.forward_ends: list[tuple[StreamEnd, StreamEnd]] = []  # (sending, receiving) end of every stream
        self.backward_ends: list[tuple[StreamEnd, StreamEnd]] = []
        self.host: Host | None = None
        self._parts = [0] * self.batches
        self._gathered: dict[int, tuple[int, simpy.Event]] = {}
        self.pipelines = [self._pipeline(replica) for replica in range(replicas)]
        self.regions = [region for line in self.pipelines for region in line.regions]
        self._wire()
        slowest = max(range(len(self.regions)), key=lambda i: self.regions[i].stage.cycles_per_sample)
        pace = self.regions[slowest].stage.cycles_per_sample
        self._watches = [SteadyWatch(slowest, pace) for _ in range(self.batches)]
        if path is not None:
            self.host = Host(
                self.env,
                path,
                sum(map(sum, self.sizes)),
                self._arrived,
                unit_s=1.0 / plan.wafer.clock_hz,
                # Enough ready samples to fill the pipeline again after an update.
                prefetch=2 * max(path.workers, replicas) + plan.in_flight * replicas,
                jitter=options.jitter,
                seed=options.seed,
            )

    def execute(self) -> None:
        """Run all batches.

        Raises
        ------
        PipelineDeadlockError
            If samples are missing and nothing can happen.
        """
        for region in self.regions:
            for lane in region.lanes:
                self.env.process(lane.run())
        self.env.run()
        if len(self.records) < self.options.steps:
            raise PipelineDeadlockError(self._deadlock())

    @property
    def waited_for_input(self) -> bool:
        """Whether a stage waited for the host in the measured batch."""
        last = self.options.steps - 1
        before = self.records[last - 1].input_wait if last else 0.0
        return self.records[last].input_wait > before

    def _pipeline(self, replica: int) -> Pipeline:
        line = Pipeline(self, replica, self.plan.in_flight)
        line.regions = [RegionProcess(s, line) for s in self.plan.stages if s.replica == replica]
        return line

    def _wire(self) -> None:
        by_name = {region.stage.name: region for region in self.regions}
        for stream in self.plan.streams:
            producer, consumer = by_name[stream.producer], by_name[stream.consumer]
            there, back = (stream.travel_cycles(self.plan.wafer, backward=turned) for turned in (False, True))
            self.forward_ends.append(_join(producer.forward, consumer.forward, there, stream))
            self.backward_ends.append(_join(consumer.backward, producer.backward, back, stream))
        for line in self.pipelines:
            line.sources = [r for r in line.regions if r.is_source]
            line.ends = line.sources if self.training else [r for r in line.regions if r.is_sink]

    def _arrived(self, sample: int) -> None:
        for sizes in self.sizes[:-1]:
            if sample < sum(sizes):
                break
            sample -= sum(sizes)
        for source in self.pipelines[sample % self.plan.replicas].sources:
            source.forward.wake()

    # batches

    def part_done(self, step: int) -> None:
        """Record that one region (training) or one replica (inference) has finished a batch."""
        self._parts[step] += 1
        if self._parts[step] < (len(self.regions) if self.training else len(self.pipelines)):
            return
        waited = sum(region.input_wait for region in self.regions)
        self.records.append(StepRecord(self.env.now, self._books(), waited))
        if not self.training and step == self.options.steps - 1:
            self._close()

    def _close(self) -> None:
        """End the measured batch: admit no more samples, and let those inside leave."""
        self.sizes[-1] = [
            max(s.forward.step_started if s.forward.step == self.batches - 1 else 0 for s in line.sources)
            for line in self.pipelines
        ]
        if self.host is not None:
            self.host.drop(self.host.samples)
        for region in self.regions:
            region.forward.wake()

    def _books(self) -> Books:
        now = self.env.now
        for region in self.regions:
            region.settle(now)
        return np.asarray([region.times for region in self.regions])

    # the steady state

    def departed(self, line: Pipeline) -> None:
        """Record that a sample has left; look for the steady state from time to time."""
        step, options = line.step, self.options
        if options.progress is not None and line.completed % 64 == 0:
            options.progress(sum(p.completed for p in self.pipelines), self.samples)
        if (
            not options.extrapolate
            or self.plan.round_samples  # samples leave in rounds
            or options.jitter
            or self.steady[step] is not None
            or step >= options.steps
        ):
            return
        rows = min(len(p.departures) if p.step == step else 0 for p in self.pipelines)
        if len(line.departures) != rows or self._left(step) < MIN_LEFT:
            return  # only the replica that completes a row of samples continues
        found = self._watches[step].look(
            Look(
                rows,
                self.env.now,
                max(s.forward.started - p.completed for p in self.pipelines for s in p.sources),
                lambda: [max(r) for r in zip(*(p.departures[:rows] for p in self.pipelines), strict=True)],
                lambda: [lane.starts[step] for region in self.regions for lane in region.lanes],
                self._books,
            )
        )
        if found is not None:
            self._shorten(step, found)

    def _shorten(self, step: int, found: Steady) -> None:
        """Remove samples from the batch that would repeat the steady pattern."""
        skipped = self._left(step) // found.cycle * found.cycle
        self.steady[step] = found
        self.skipped[step] = skipped
        self.sizes[step] = [size - skipped for size in self.sizes[step]]
        if self.host is not None:
            self.host.drop(skipped * self.plan.replicas)
        for region in self.regions:
            region.forward.wake()
            region.backward.wake()
        for line in self.pipelines:
            line.end_batch()  # a replica whose last sample has already left has no later event to do this

    def _left(self, step: int) -> int:
        """Return the samples of the batch that no source has taken yet, in the replica with the fewest."""
        return min(
            p.size(step) - source.forward.step_started if source.forward.step == step else 0
            for p in self.pipelines
            for source in p.sources
        )

    def _deadlock(self) -> str:
        import networkx as nx  # slow to import, and needed only for this message

        waits: nx.DiGraph = nx.DiGraph()
        stuck = []
        for region in self.regions:
            for lane in region.lanes:
                if lane.step_started < region.pipeline.size(lane.step):
                    stuck.append(region.stage.name)
                    waits.add_edges_from((region.stage.name, k.other.region.stage.name) for k in lane.lacks())
        try:
            cycle = [edge[0] for edge in nx.find_cycle(waits)]
            text = "stages " + " -> ".join([*cycle, cycle[0]]) + " wait for each other"
        except nx.NetworkXNoCycle:
            text = f"stages {', '.join(dict.fromkeys(stuck[:8]))} wait and nothing can move"
        return (
            f"pipelined plan of '{self.plan.graph.name}' is stuck at cycle {self.env.now:.0f}: {text}; "
            f"give the streams between them more capacity or the stages more samples in flight"
        )

    # gradients of replicas

    def synchronise(self, position: int) -> simpy.Event:
        """Count the copies of a stage that have finished; the last one starts the all-reduce."""
        count, event = self._gathered.pop(position, (0, self.env.event()))
        count += 1
        if count < self.plan.replicas:
            self._gathered[position] = (count, event)
        else:
            copies = [line.regions[position].stage for line in self.pipelines]
            timer = self.env.timeout(allreduce_cycles(self.plan, copies))
            timer.callbacks.append(lambda _: _succeed(event))  # type: ignore[union-attr]
        return event


def free_step_cycles(plan: PipelinedPlan) -> float:
    """Return the simulated cycles of one batch without delays by the host."""
    run = PipelinedRun(plan, Options(steps=2), None, RunTrace(is_on=False, unit_s=1.0 / plan.wafer.clock_hz))
    run.execute()
    steady = run.steady[1]
    skipped = run.skipped[1] * steady.period if steady is not None else 0.0
    return run.records[1].end - run.records[0].end + skipped


def _succeed(event: simpy.Event) -> None:
    event.succeed()


def _join(sender: Lane, receiver: Lane, travel: float, stream: Stream) -> tuple[StreamEnd, StreamEnd]:
    out_end = StreamEnd(receiver, travel, stream.capacity_samples)
    in_end = StreamEnd(sender, travel, stream.capacity_samples)
    sender.after.append(out_end)
    receiver.before.append(in_end)
    return out_end, in_end


def allreduce_cycles(plan: PipelinedPlan, copies: list[Stage]) -> float:
    """Return the cycles to sum the gradients of one stage over its copies and to return the sum."""
    wafer, stage = plan.wafer, copies[0]
    known = {kernel.name: kernel for kernel in plan.graph.kernels}
    names = {p for name in stage.kernels if name in known for p in known[name].parameters}
    size = float(GRADIENT_BYTES * sum(plan.graph.tensors[name].elements for name in names))
    if not any(name in known for name in stage.kernels):
        size = stage.memory.weights_bytes * stage.region.compute_cores  # weights and state: an upper bound
    width = min(stage.region.rows, stage.region.cols)
    centers = [copy.region.center for copy in copies]
    distance = max(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a in centers for b in centers)
    if size == 0:
        return 0.0
    return 2 * size / (width * wafer.link_bytes_per_cycle) + 2 * distance * wafer.hop_cycles
