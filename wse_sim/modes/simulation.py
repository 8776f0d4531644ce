"""The main loop: a plan goes in, a result comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from wse_sim.compiler.plan import Plan, Stage
from wse_sim.engine.checkpoint import Checkpoints, with_checkpoints
from wse_sim.engine.host import input_path
from wse_sim.engine.options import Options, Progress
from wse_sim.engine.result import Result
from wse_sim.engine.trace import Trace
from wse_sim.errors import ConfigError
from wse_sim.graph.kernel_graph import frozen
from wse_sim.modes.pipelined import result as pipelined_result
from wse_sim.modes.pipelined.links import busiest_link_s
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.run import PipelinedRun
from wse_sim.modes.weight_streaming import result as streaming_result
from wse_sim.modes.weight_streaming.plan import StreamedPhase, WeightStreamingPlan
from wse_sim.modes.weight_streaming.run import StreamingRun

Timing = str | Mapping[str, float]


def simulate(
    plan: Plan,
    *,
    timing: Timing = "model",
    trace: bool = True,
    steps: int | None = None,
    extrapolate: bool = True,
    jitter: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Run a plan as a discrete-event simulation and measure its last step.

    Parameters
    ----------
    plan
        What the compiler made.
    timing
        "model" takes the plan's cycles.  A mapping of stage or phase names to factors scales the cycles
        of those it names (a factor is measured over modelled cycles; the rest keeps its model).
    trace
        Whether to keep the timeline.
    steps
        Steps to run; the last one is measured.  Default: 2 pipelined, 3 weight streaming.
    extrapolate
        Whether to add the samples (or micro-batches) that repeat a steady pattern.
    jitter, seed
        Relative spread of an input worker's time per sample, and the seed of its draws.
    progress
        Called with (done, total) now and then.
    checkpoints
        How often the state is written; its time is added to every step in equal parts.

    Raises
    ------
    ConfigError
        If an option is impossible.
    PipelineDeadlockError
        If stages wait for each other for ever.
    """
    plan = _timed(plan, timing)
    count = steps if steps is not None else (2 if isinstance(plan, PipelinedPlan) else 3)
    options = Options(count, extrapolate, jitter, seed, progress)
    options.check()
    if checkpoints is not None:
        checkpoints.check()
    if isinstance(plan, PipelinedPlan):
        result = _simulate_pipelined(plan, options, trace=trace)
    elif isinstance(plan, WeightStreamingPlan):
        result = _simulate_streaming(plan, options, trace=trace)
    else:
        raise ConfigError(f"no mode simulates a {type(plan).__name__}; use a plan that compile made")
    return result if checkpoints is None else with_checkpoints(result, checkpoints)


def _simulate_pipelined(plan: PipelinedPlan, options: Options, *, trace: bool) -> Result:
    path = input_path(
        plan.cluster,
        sample_bytes=plan.input_bytes_per_sample,
        io_bytes_per_s=plan.wafer.io_bytes_per_s,
        link_s=busiest_link_s(plan),
        min_workers=plan.replicas,
    )
    log = Trace(is_on=trace, unit_s=1.0 / plan.wafer.clock_hz)
    run = PipelinedRun(plan, options, path, log)  # build: regions, streams, host
    run.execute()  # run: every region is a process
    free = run
    if run.waited_for_input:  # what the wafer could do alone needs a run of its own
        free = PipelinedRun(plan, options, None, log.off())
        free.execute()
    return pipelined_result.collect(run, free, path)


def _simulate_streaming(plan: WeightStreamingPlan, options: Options, *, trace: bool) -> Result:
    path = input_path(
        plan.cluster,
        sample_bytes=plan.graph.input_bytes / plan.graph.samples,
        io_bytes_per_s=min(plan.wafer.io_bytes_per_s, plan.cluster.activation_server_bytes_per_s),
    )
    log = Trace(is_on=trace, unit_s=1.0)
    run = StreamingRun(plan, options, path, log)  # build: MemoryX, SwarmX, host, wafer
    run.execute()  # run: each of them is a process
    free = run
    if run.waited_for_input:
        free = StreamingRun(plan, options, None, log.off())
        free.execute()
    return streaming_result.collect(run, free, path)


def _timed(plan: Plan, timing: Timing) -> Plan:
    """The plan with the cycles of another timing source."""
    if timing == "model":
        return plan
    if isinstance(timing, str):
        raise ConfigError(f"timing '{timing}' is unknown; use 'model' or a mapping of names to factors")
    if isinstance(plan, PipelinedPlan):
        stages = tuple(_scaled_stage(stage, timing.get(stage.name, 1.0)) for stage in plan.stages)
        return dataclasses.replace(plan, stages=stages)
    if not isinstance(plan, WeightStreamingPlan):
        return plan
    phases = tuple(_scaled_phase(phase, timing.get(phase.name, 1.0)) for phase in plan.phases)
    return dataclasses.replace(plan, phases=phases)


def _scaled_stage(stage: Stage, factor: float) -> Stage:
    if factor == 1.0:
        return stage
    return dataclasses.replace(
        stage,
        forward_cycles=stage.forward_cycles * factor,
        backward_cycles=stage.backward_cycles * factor,
        forward_parts=frozen({name: cycles * factor for name, cycles in stage.forward_parts.items()}),
        backward_parts=frozen({name: cycles * factor for name, cycles in stage.backward_parts.items()}),
    )


def _scaled_phase(phase: StreamedPhase, factor: float) -> StreamedPhase:
    if factor == 1.0:
        return phase
    return dataclasses.replace(
        phase,
        compute_cycles=phase.compute_cycles * factor,
        parts=frozen({name: cycles * factor for name, cycles in phase.parts.items()}),
    )
