"""The time of a step by its phases alone."""

from __future__ import annotations

from wse_sim.compiler.plan import Infeasible
from wse_sim.modes.weight_streaming.plan import StreamedPhase, WeightStreamingPlan


def estimate_step_s(plan: WeightStreamingPlan) -> float:
    """Time of a step if phases follow each other without waiting for the first weights."""
    clock, cluster = plan.wafer.clock_hz, plan.cluster
    io = min(plan.wafer.io_bytes_per_s, cluster.swarmx_bytes_per_s, cluster.memoryx_bytes_per_s)
    spill_rate = plan.cluster.activation_server_bytes_per_s
    one = sum(
        max(p.compute_cycles / clock, _io_s(p, io, clock), p.floor_s) + p.spill_bytes / spill_rate
        for p in plan.phases
    )
    return one * plan.micro_batches


def _io_s(phase: StreamedPhase, bytes_per_s: float, clock_hz: float) -> float:
    """Weights or gradients over the edge, and their way on the wafer."""
    size = max(phase.edge_weight_bytes, phase.edge_gradient_bytes)
    return size / bytes_per_s + phase.way_cycles / clock_hz if size else 0.0


def estimated_s(plan: WeightStreamingPlan | Infeasible) -> float:
    """The time of a step; endless where nothing fits."""
    return float("inf") if isinstance(plan, Infeasible) else estimate_step_s(plan)
