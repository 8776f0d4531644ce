"""Result of a chain: that of the chain as one pipeline, with fractions over all systems, and the lines by
name."""

from __future__ import annotations

import dataclasses

from wse_sim.engine.result import Result, areas_of, tracks_of
from wse_sim.graph.kernel_graph import frozen
from wse_sim.modes.pipelined_systems.plan import LINK, PipelinedSystemsPlan
from wse_sim.units import cycles_to_s


def over_systems(plan: PipelinedSystemsPlan, line: Result) -> Result:
    """Return the result over all systems; `line` is that of :attr:`PipelinedSystemsPlan.line`, with fractions
    of one wafer's cores.

    Areas, links and queues are those of the slowest wafer; kernels and timeline are those of all.
    """
    shown = {stage.name for stage in plan.parts[plan.slowest].stages}
    kernels = line.kernels
    queues = tuple(queue for queue in line.queues if queue.name in shown)
    areas = tuple(
        dataclasses.replace(area, kernel=index)
        for index, use in enumerate(kernels)
        if use.name in shown
        for area in areas_of((use,), queues)
    )
    bindings = _bindings(plan, line)
    inner = {(stream.producer, stream.consumer) for stream in plan.parts[plan.slowest].streams}
    return dataclasses.replace(
        line,
        mode=plan.mode,
        systems=plan.systems,
        plan=plan,
        active_pe_fraction=line.active_pe_fraction / plan.systems,
        mfu=line.mfu / plan.systems,
        binding=max(bindings, key=lambda name: bindings[name]),
        bindings=frozen(bindings),
        queues=queues,
        areas=areas,
        tracks=tracks_of(line.timeline, areas),
        streams=tuple(stream for stream in line.streams if (stream.producer, stream.consumer) in inner),
        notes=tuple(dict.fromkeys((*plan.notes, *line.notes))),
    )


def _bindings(plan: PipelinedSystemsPlan, line: Result) -> dict[str, float]:
    """Return the seconds of the batch that each resource alone would need; the slowest line is not a
    kernel."""
    stages = [stage for stage in plan.line.stages if stage.family != LINK]
    lines = [stage for stage in plan.line.stages if stage.family == LINK]

    def alone(cycles: float) -> float:
        return plan.batch * cycles_to_s(cycles, plan.wafer.clock_hz)

    found = dict(line.bindings) | {"compute": alone(max(stage.cycles_per_sample for stage in stages))}
    if lines:
        found["system_links"] = alone(max(stage.cycles_per_sample for stage in lines))
    return found
