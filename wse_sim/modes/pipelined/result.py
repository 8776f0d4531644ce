"""Makes the result of a pipelined run: rates, the bottleneck, time per region, conservation of bytes.

Symbols: N samples of a batch over R replicas, P cycles per sample and replica at the steady state, T
cycles of the measured batch (the last one, with the samples that were added)::

    compute rate       N / T with free input, at most what the busiest link carries
    transmission rate  min(input workers, wafer I/O, busiest link)
    rate               N / T with the host in the loop, at most the smaller of both
    utilization        sum over stages of (compute cores x arithmetic cycles per sample)
                       / (compute cores of all stages x P)
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

import numpy as np
import simpy

from wse_sim.compiler.plan import Stage
from wse_sim.engine.accounts import READ_BYTES_PER_MAC, WRITE_BYTES_PER_MAC
from wse_sim.engine.host import Host, InputPath, remedies
from wse_sim.engine.result import KernelUse, Result, Slice, areas_of, tracks_of
from wse_sim.engine.steady import Books
from wse_sim.graph.blocks import common_names
from wse_sim.graph.kernel_graph import frozen
from wse_sim.modes.pipelined.links import add_link_spans, pipelined_wavelets, queue_uses
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.run import PipelinedRun, allreduce_cycles
from wse_sim.units import cycles_to_s, s_to_cycles

BACK_PRESSURE_TOLERANCE = (
    0.02  # of the slowest stage; smaller differences are fluctuations of unequal regions
)


class PipelinedMeasure:
    """The measured batch of a run (the last): times in cycles."""

    def __init__(self, run: PipelinedRun) -> None:
        self.run = run
        self.plan = run.plan
        last = run.options.steps - 1
        before = run.records[last - 1].end if last else 0.0
        books_before = run.records[last - 1].books if last else np.zeros_like(run.records[0].books)
        waited_before = run.records[last - 1].input_wait if last else 0.0
        found = run.steady[last]
        self.skipped = run.skipped[last]
        period = found.period if found is not None else 0.0
        self.step_cycles = run.records[last].end - before + self.skipped * period
        self.books: Books = run.records[last].books - books_before
        if found is not None:
            self.books = self.books + self.skipped * found.rates
        self.input_wait = run.records[last].input_wait - waited_before
        samples = -(-self.plan.batch // self.plan.replicas)
        self.samples = samples  # per replica
        self.is_steady = found is not None
        self.period_cycles = period if self.skipped else self._measured_period(samples)

    def _measured_period(self, samples: int) -> float:
        """Cycles per sample, measured on the slowest region in the second half of the batch."""
        rows = [r.forward.starts[-1] for r in self.run.regions if r.forward.starts[-1]]
        half = samples // 2
        spans = [(row[-1] - row[half]) / (len(row) - 1 - half) for row in rows if len(row) - 1 > half]
        if not spans or not self.run.training:
            return self.step_cycles / samples
        return max(float(np.median(spans)), *(s.cycles_per_sample for s in self.plan.stages))

    def seconds(self, cycles: float) -> float:
        """Return the seconds of `cycles`."""
        return cycles_to_s(cycles, self.plan.wafer.clock_hz)

    def add_input_wait(self, time_s: float) -> None:
        """Lengthen the batch by a time in which all regions wait for input."""
        cycles = s_to_cycles(time_s, self.plan.wafer.clock_hz)
        self.step_cycles += cycles
        self.books = self.books + np.asarray([0.0, cycles, 0.0, 0.0])

    @property
    def step_s(self) -> float:
        """Seconds of the measured batch."""
        return self.seconds(self.step_cycles) + self.plan.cluster.step_overhead_s


def collect(run: PipelinedRun, free: PipelinedRun, path: InputPath) -> Result:
    """Return the result, from the run with the host and the run with free input (which may be the same)."""
    plan, measure = run.plan, PipelinedMeasure(run)
    compute = PipelinedMeasure(free)
    steady = compute.period_cycles
    cores = sum(stage.region.compute_cores for stage in plan.stages)
    arithmetic = sum(stage.region.compute_cores * (_part(stage, "compute")) for stage in plan.stages)
    one_replica = [stage for stage in plan.stages if stage.replica == 0]
    flops = float(sum(stage.flops_per_sample for stage in one_replica)) * plan.batch
    bindings = _bindings(plan, measure, compute, path)
    # Unequal regions fluctuate by fractions of a percent; waiting for input must never look like a gain.
    step_s = max(measure.step_s, compute.step_s, plan.batch / path.samples_per_s)
    measure.add_input_wait(step_s - measure.step_s)
    if run.trace.is_on:
        _add_host_spans(run, path)
        add_link_spans(run)
    computed = min(plan.batch / compute.step_s, path.rates["links"])
    notes = (*_notes(run, measure), *remedies(path, computed))
    timeline, queues = run.trace.slices(), queue_uses(run)
    names = common_names(plan.graph)
    kernels = tuple(
        _kernel_use(measure, region.stage, measure.books[i], names) for i, region in enumerate(run.regions)
    )
    areas = areas_of(kernels, queues)
    return Result(
        model=plan.graph.name,
        mode=plan.mode,
        phase="training" if run.training else "inference",
        systems=1,
        batch=plan.batch,
        samples_per_s=plan.batch / step_s,
        compute_samples_per_s=computed,
        transmission_samples_per_s=path.samples_per_s,
        active_pe_fraction=cores / plan.wafer.cores,
        compute_utilization=arithmetic / (cores * max(steady, measure.period_cycles)),
        step_s=step_s,
        mfu=flops / step_s / plan.wafer.peak_fp16_flops_per_s,
        binding=max(bindings, key=lambda name: bindings[name]),
        bindings=frozen(bindings),
        kernels=kernels,
        timeline=timeline,
        link_wavelets=pipelined_wavelets(plan),
        conservation=frozen(_conservation(run)),
        plan=plan,
        flops_per_step=flops,
        events=run.env.events + (free.env.events if free is not run else 0),
        extrapolated_samples=measure.skipped * plan.replicas,
        counters=run.trace.counters(),
        notes=(*plan.notes, *notes),
        queues=queues,
        areas=areas,
        tracks=tracks_of(timeline, areas),
        streams=plan.streams,
    )


def _part(stage: Stage, cause: str) -> float:
    return stage.forward_parts.get(cause, 0.0) + stage.backward_parts.get(cause, 0.0)


def _bindings(
    plan: PipelinedPlan, measure: PipelinedMeasure, compute: PipelinedMeasure, path: InputPath
) -> dict[str, float]:
    """Return the seconds of the batch that each resource alone would need."""
    slowest = max(plan.stages, key=lambda stage: stage.cycles_per_sample)
    steady = slowest.cycles_per_sample * measure.samples
    bindings = {
        "compute": measure.seconds(steady),
        # Time of the batch beyond its slowest stage with free input.
        "fill_drain": measure.seconds(
            max(0.0, compute.step_cycles - compute.period_cycles * measure.samples)
        ),
    }
    bindings |= {name: plan.batch / rate for name, rate in path.rates.items()}
    if compute.period_cycles > plan.sample_cycles * (1 + BACK_PRESSURE_TOLERANCE):
        bindings["back_pressure"] = measure.seconds(compute.period_cycles * measure.samples)
    if plan.replicas > 1:
        copies: dict[int, list[Stage]] = {}
        for line in measure.run.pipelines:
            for position, region in enumerate(line.regions):
                copies.setdefault(position, []).append(region.stage)
        bindings["gradient_sync"] = measure.seconds(max(allreduce_cycles(plan, c) for c in copies.values()))
    return bindings


def _kernel_use(measure: PipelinedMeasure, stage: Stage, books: Books, names: Mapping[str, str]) -> KernelUse:
    plan, seconds = measure.plan, measure.seconds
    busy, stalled_input, stalled_output, idle = (seconds(float(cycles)) for cycles in books)
    idle += plan.cluster.step_overhead_s
    samples = (plan.batch - stage.replica + plan.replicas - 1) // plan.replicas
    parts = {
        cause: seconds(_part(stage, cause) * samples)
        for cause in {**stage.forward_parts, **stage.backward_parts}
    }
    if measure.run.training:
        parts["update"] = seconds(stage.update_cycles)
    bounds = _roofline(plan, stage)
    bound = max(bounds, key=lambda name: bounds[name])
    total = busy + stalled_input + stalled_output + idle
    flops = float(stage.flops_per_sample) * samples
    return KernelUse(
        name=stage.name,
        family=stage.family,
        layer=stage.layer,
        phase="training" if measure.run.training else "inference",
        count=samples,
        cores=stage.region.compute_cores,
        busy_s=busy,
        stalled_input_s=stalled_input,
        stalled_output_s=stalled_output,
        idle_s=idle,
        flops=flops,
        utilization=parts.get("compute", 0.0) / total if total > 0 else 0.0,
        bound=bound,
        bound_fraction=min(1.0, seconds(bounds[bound]) * samples / total) if total > 0 else 0.0,
        parts=frozen(parts),
        memory=stage.memory,
        region=stage.region,
        block=_block(stage, names, plan.replicas),
        replica=stage.replica,
    )


def _block(stage: Stage, names: Mapping[str, str], replicas: int) -> str:
    """Return the common name of equal stages in all blocks and all replicas."""
    name = next(
        (names[kernel] for kernel in stage.kernels if kernel in names),
        stage.kernels[0] if stage.kernels else stage.name,
    )
    return f"{name}@*" if replicas > 1 else name


def _roofline(plan: PipelinedPlan, stage: Stage) -> Mapping[str, float]:
    """Return the least cycles per sample that each resource of the region needs."""
    wafer = plan.wafer
    macs = stage.flops_per_sample / 2 / max(1, stage.region.compute_cores)
    streams = [s for s in plan.streams if stage.name in (s.producer, s.consumer)]
    fabric = max(
        (max(s.bytes_per_sample, s.backward_bytes_per_sample) / s.width for s in streams), default=0.0
    )
    return {
        "compute": _part(stage, "compute") + _part(stage, "special"),
        "sram": macs
        * max(
            READ_BYTES_PER_MAC / wafer.sram_read_bytes_per_cycle,
            WRITE_BYTES_PER_MAC / wafer.sram_write_bytes_per_cycle,
        ),
        "fabric": fabric / wafer.link_bytes_per_cycle,
    }


def _conservation(run: PipelinedRun) -> dict[str, float]:
    """Return the bytes of all simulated batches, counted at both ends of every stream, including added
    samples."""
    added = sum(run.skipped)
    sums = {"activations_sent_bytes": 0.0, "activations_received_bytes": 0.0}
    if run.training:
        sums |= {"gradients_sent_bytes": 0.0, "gradients_received_bytes": 0.0}
    for stream, (out_end, in_end) in zip(run.plan.streams, run.forward_ends, strict=True):
        sums["activations_sent_bytes"] += (out_end.samples + added) * stream.bytes_per_sample
        sums["activations_received_bytes"] += (in_end.samples + added) * stream.bytes_per_sample
    for stream, (out_end, in_end) in zip(run.plan.streams, run.backward_ends, strict=True):
        if run.training:
            sums["gradients_sent_bytes"] += (out_end.samples + added) * stream.backward_bytes_per_sample
            sums["gradients_received_bytes"] += (in_end.samples + added) * stream.backward_bytes_per_sample
    if run.host is not None:
        size = run.plan.input_bytes_per_sample
        extra = added * run.plan.replicas
        sums["input_sent_bytes"] = (run.host.sent + extra) * size
        sums["input_received_bytes"] = (run.host.received + extra) * size
    return sums


def _add_host_spans(run: PipelinedRun, path: InputPath) -> None:
    """Add the wafer's input to the timeline, by replaying the host with the recorded times of samples."""
    if run.host is None:
        return
    replicas = run.plan.replicas
    takes: list[tuple[float, int]] = []
    for replica, line in enumerate(run.pipelines):
        rows = [[t for step in source.forward.starts for t in step] for source in line.sources]
        takes += [(max(times), i * replicas + replica) for i, times in enumerate(zip(*rows, strict=False))]
    env, unit_s, size = simpy.Environment(), 1.0 / run.plan.wafer.clock_hz, run.plan.input_bytes_per_sample
    gate = path.gate_s / unit_s
    arrivals: list[tuple[float, int]] = []
    options = run.options
    host = Host(
        env,
        path,
        run.host.sent,
        lambda sample: arrivals.append((env.now, sample)),
        unit_s=unit_s,
        prefetch=2 * max(path.workers, replicas) + run.plan.in_flight * replicas,
        jitter=options.jitter,
        seed=options.seed,
    )

    def take() -> Generator[simpy.Event, object, None]:
        for time, sample in sorted(takes):
            if time > env.now:
                yield env.timeout(time - env.now)
            host.take(sample)

    env.process(take())
    env.run()
    for time, sample in arrivals:
        name = f"sample {sample}"
        run.trace.span(
            Slice("host input", name, "input", time - gate, gate, size, sample, role="sample", sample=sample),
            is_resource=True,
        )


def _notes(run: PipelinedRun, measure: PipelinedMeasure) -> tuple[str, ...]:
    notes = list(run.trace.notes())
    if measure.skipped:
        found = run.steady[run.options.steps - 1]
        text = " (regions swing around it)" if found is not None and not found.is_exact else ""
        notes.append(
            f"{measure.skipped * run.plan.replicas} of {run.plan.batch} samples were added at the steady pace "
            f"of {measure.period_cycles:.6g} cycles per sample{text}"
        )
    if not run.training:
        notes.append(
            "inference batches follow each other without a gap: the step is the steady pace times the batch"
        )
    return tuple(notes)
