"""Makes the result of a weight-streaming run: rates, the bottleneck, time per kernel, conservation of bytes.

Symbols: N samples of a step over S systems, T seconds of the measured step (the last one)::

    rate               N / T                with the host in the loop
    compute rate       N / T                with free input
    transmission rate  S x min(input workers, wafer I/O of one system)
    utilization        arithmetic seconds of all phases / T     (all cores of the lanes do the same)
    MFU                FLOPs without recomputation / (T S peak)

The bottleneck is the resource that set the pace for most of the step: the largest term of each phase's
maximum, and the waits between phases.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from wse_sim.engine.accounts import (
    BUSY,
    IDLE,
    READ_BYTES_PER_MAC,
    STALLED_INPUT,
    STALLED_OUTPUT,
    WRITE_BYTES_PER_MAC,
)
from wse_sim.engine.host import InputPath, remedies
from wse_sim.engine.result import Area, KernelUse, Result, tracks_of
from wse_sim.engine.skew import expected_factor
from wse_sim.graph.blocks import common, common_names
from wse_sim.graph.kernel_graph import frozen
from wse_sim.modes.weight_streaming.links import program_region, streaming_wavelets
from wse_sim.modes.weight_streaming.plan import StreamedPhase, WeightStreamingPlan
from wse_sim.modes.weight_streaming.run import StreamingRun
from wse_sim.units import cycles_to_s


def collect(run: StreamingRun, free: StreamingRun, path: InputPath) -> Result:
    """Return the result, from the run with the host and the run with free input (which may be the same)."""
    plan = run.plan
    input_s = plan.batch_per_system / path.samples_per_s
    step_s = max(run.step_s, free.step_s, input_s)
    run.books.input_wait_s += step_s - run.step_s
    wafer, times = plan.wafer, plan.micro_batches
    area = program_region(plan.used, plan.lanes)
    # Samples that pad the last micro-batch or the last system are computed, but were not requested.
    flops = float(sum(p.flops for p in plan.phases if not p.recompute)) / plan.micro_batch * plan.batch
    arithmetic_s = times * sum(cycles_to_s(p.parts.get("compute", 0.0), wafer.clock_hz) for p in plan.phases)
    sample_bytes = plan.graph.input_bytes / plan.graph.samples
    cause = max(run.books.causes, key=lambda name: run.books.causes[name])
    is_input = cause == "input" or input_s > free.step_s
    binding = path.slowest if is_input else BINDING_NAMES.get(cause, cause)
    timeline = run.trace.slices()
    areas = (Area("all cores in use", area, "wafer", _core_times_s(run, step_s), plan.memory),)
    return Result(
        model=plan.graph.name,
        mode=plan.mode,
        phase="training" if plan.graph.training else "inference",
        systems=plan.systems,
        batch=plan.batch,
        samples_per_s=plan.batch / step_s,
        compute_samples_per_s=plan.batch / free.step_s,
        transmission_samples_per_s=path.samples_per_s * plan.systems,
        active_pe_fraction=area.cores / wafer.cores,
        compute_utilization=arithmetic_s / step_s,
        step_s=step_s,
        mfu=flops / step_s / (plan.systems * wafer.peak_fp16_flops_per_s),
        binding=binding,
        bindings=frozen(_bindings(run, path)),
        kernels=_kernels(run),
        timeline=timeline,
        link_wavelets=streaming_wavelets(plan, sample_bytes * plan.batch_per_system),
        conservation=frozen(_conservation(run)),
        plan=plan,
        flops_per_step=flops,
        events=run.env.events + (free.env.events if free is not run else 0),
        extrapolated_samples=run.skipped * plan.micro_batch,
        counters=run.trace.counters(),
        notes=(*plan.notes, *_notes(run), *remedies(path, plan.batch_per_system / free.step_s)),
        figures=frozen({"slowest_system_factor": run.slowest[-1]} if run.options.skew else {}),
        areas=areas,
        tracks=tracks_of(timeline, areas),
    )


# A cause that is not itself a resource is reported as the resource behind it.
BINDING_NAMES = {"weight_latency": "iteration_boundary"}


def _bindings(run: StreamingRun, path: InputPath) -> dict[str, float]:
    """Return the seconds of the step that each resource alone would need."""
    plan, times = run.plan, run.plan.micro_batches
    io = min(plan.wafer.io_bytes_per_s, run.swarmx.bytes_per_s)
    spill = min(plan.cluster.activation_server_bytes_per_s, plan.wafer.io_bytes_per_s)
    phases = plan.phases
    bindings = {
        "compute": times
        * sum(cycles_to_s(p.compute_cycles, plan.wafer.clock_hz) for p in phases)
        * run.slowest[-1],
        "weight_io": times * sum(p.edge_weight_bytes for p in phases) / io,
        "gradient_io": times * sum(p.edge_gradient_bytes for p in phases) / io,
        "launch_floor": times * sum(p.floor_s for p in phases),
        "spill": times * sum(p.spill_bytes for p in phases) / spill,
        "memoryx_update": _update_s(plan),
        "iteration_boundary": run.books.causes.get("weight_latency", 0.0),
    }
    for name, rate in path.rates.items():
        if name != "links":
            bindings[name] = plan.batch_per_system / rate
    return bindings


def _update_s(plan: WeightStreamingPlan) -> float:
    gradients = sum(p.gradient_bytes for p in plan.phases)
    traffic = gradients / 2 * plan.optimizer_bytes_per_parameter + 2 * gradients * (plan.micro_batches - 1)
    return traffic / plan.cluster.memoryx_update_bytes_per_s


def _core_times_s(run: StreamingRun, step_s: float) -> tuple[float, float, float, float]:
    """Return how a core spends the step: busy, stalled on input, on output, idle."""
    sums = run.books.phases.sum(axis=0)
    sums[STALLED_INPUT] += run.books.input_wait_s
    sums[IDLE] += run.plan.cluster.step_overhead_s
    times = sums / sums.sum() * step_s
    return float(times[0]), float(times[1]), float(times[2]), float(times[3])


def _kernels(run: StreamingRun) -> tuple[KernelUse, ...]:
    """Return one row per group of equal phases; the blocks of a model become one row with a count."""
    names = common_names(run.plan.graph)
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, phase in enumerate(run.plan.phases):
        key = (
            phase.family,
            phase.phase,
            phase.recompute,
            names.get(phase.kernel, phase.kernel),
            phase.compute_cycles,
            phase.weight_bytes,
            phase.gradient_bytes,
        )
        groups.setdefault(key, []).append(index)
    return tuple(_kernel_use(run, members, names) for members in groups.values())


def _kernel_use(run: StreamingRun, members: list[int], names: Mapping[str, str]) -> KernelUse:
    plan = run.plan
    phase, count = plan.phases[members[0]], len(members) * plan.micro_batches
    times: NDArray[np.float64] = run.books.phases[members].sum(axis=0)
    total = float(times.sum())
    parts = {cause: cycles_to_s(cycles, plan.wafer.clock_hz) * count for cause, cycles in phase.parts.items()}
    bounds = _roofline(run, phase)
    bound = max(bounds, key=lambda name: bounds[name])
    # The row of equal blocks has their common name.
    block = names.get(phase.kernel, "") + phase.name[len(phase.kernel) :] if phase.kernel in names else ""
    layer = common([plan.phases[index].layer for index in members])
    return KernelUse(
        name=block if block and len(members) > 1 else phase.name,
        family=phase.family,
        layer=layer,
        phase="recompute" if phase.recompute else str(phase.phase),
        count=count,
        cores=program_region(plan.used, plan.lanes).cores,
        busy_s=float(times[BUSY]),
        stalled_input_s=float(times[STALLED_INPUT]),
        stalled_output_s=float(times[STALLED_OUTPUT]),
        idle_s=float(times[IDLE]),
        flops=float(phase.flops) * count,
        utilization=parts.get("compute", 0.0) / total if total > 0 else 0.0,
        bound=bound,
        bound_fraction=min(1.0, bounds[bound] * count / total) if total > 0 else 0.0,
        parts=frozen(parts),
        memory=plan.memory,
        block=block or phase.name,
    )


def _roofline(run: StreamingRun, phase: StreamedPhase) -> Mapping[str, float]:
    """Return the least seconds that each resource needs for one run of a phase."""
    plan, wafer = run.plan, run.plan.wafer
    macs = phase.flops / 2 / program_region(plan.used, plan.lanes).cores
    sram = macs * max(
        READ_BYTES_PER_MAC / wafer.sram_read_bytes_per_cycle,
        WRITE_BYTES_PER_MAC / wafer.sram_write_bytes_per_cycle,
    )
    io = min(wafer.io_bytes_per_s, run.swarmx.bytes_per_s)
    compute = phase.parts.get("compute", 0.0) + phase.parts.get("special", 0.0)
    return {
        "compute": cycles_to_s(compute, wafer.clock_hz),
        "sram": cycles_to_s(sram, wafer.clock_hz),
        "fabric": cycles_to_s(phase.parts.get("fabric", 0.0), wafer.clock_hz),
        "io": max(phase.edge_weight_bytes, phase.edge_gradient_bytes) / io + phase.spill_bytes / io,
        "launch": phase.floor_s,
    }


def _conservation(run: StreamingRun) -> dict[str, float]:
    """Return the bytes of all simulated steps, counted at both ends."""
    size = run.plan.graph.input_bytes / run.plan.graph.samples
    sums = {
        "weights_sent_bytes": run.memoryx.sent_bytes,
        "weights_received_bytes": run.received_bytes,
        "gradients_sent_bytes": run.gradient_bytes,
        "gradients_received_bytes": run.memoryx.received_bytes,
    }
    if run.input_sent:
        sums["input_sent_bytes"] = run.input_sent * size
        sums["input_received_bytes"] = run.input_received * size
    return sums


def _notes(run: StreamingRun) -> tuple[str, ...]:
    notes = list(run.trace.notes())
    if run.skipped:
        notes.append(
            f"{run.skipped} of {run.plan.micro_batches} micro-batches were added as copies of a simulated one"
        )
    if run.options.skew:
        systems, skew = run.plan.systems, run.options.skew
        notes.append(
            f"the slowest of {systems} systems takes {run.slowest[-1]:.4g} times the mean in this step, "
            f"{expected_factor(systems, skew):.4g} on average (spread {skew:g}: the user's, assumed); the all-reduce waits for it"
        )
    return tuple(notes)
