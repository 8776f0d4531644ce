"""Comparison of placements of one model by the objectives that placers minimize, in their units.

Symbols: T cycles per sample of the slowest stage; B least T by area
(:attr:`PipelinedPlan.lower_bound_cycles`); wire in cores, |dx| + |dy| between the middles of producer and
consumer, every stream counted once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wse_sim.modes.pipelined.estimate import sample_latency
from wse_sim.modes.pipelined.plan import PipelinedPlan


@dataclass(frozen=True)
class PlanScore:
    """The objectives of one placement."""

    placer: str
    slowest: str  # stage
    slowest_cycles: float
    bound_cycles: float
    wire_l1: float  # cores
    byte_hops: float  # bytes per sample x links, over all streams, including gradients
    region_fraction: float  # of the program rectangle's cores
    latency_cycles: float  # of one sample alone, forward
    link_cycles: float  # per sample, of the busiest link
    wall_s: float

    @property
    def ratio(self) -> float:
        """Cycles of the slowest stage divided by the area bound."""
        return self.slowest_cycles / self.bound_cycles

    @property
    def time_and_wire(self) -> float:
        """The objective ``delta-t+wire``: cycles of the slowest stage plus wire length in cores."""
        return self.slowest_cycles + self.wire_l1

    @property
    def link_use(self) -> float:
        """Load of the busiest link relative to its capacity at the pace of the slowest stage."""
        return self.link_cycles / self.slowest_cycles


def score(plan: PipelinedPlan, wall_s: float) -> PlanScore:
    """Return the objectives of a plan; the placer took `wall_s` seconds."""
    slowest = max(plan.stages, key=lambda stage: stage.cycles_per_sample)
    middles = {stage.name: stage.region.center for stage in plan.stages}
    wire = sum(
        abs(middles[s.producer][0] - middles[s.consumer][0])
        + abs(middles[s.producer][1] - middles[s.consumer][1])
        for s in plan.streams
    )
    moved = sum((s.bytes_per_sample + s.backward_bytes_per_sample) * s.hops for s in plan.streams)
    return PlanScore(
        placer=plan.placer,
        slowest=slowest.name,
        slowest_cycles=slowest.cycles_per_sample,
        bound_cycles=plan.lower_bound_cycles,
        wire_l1=float(wire),
        byte_hops=float(moved),
        region_fraction=sum(stage.region.cores for stage in plan.stages) / plan.wafer.program_cores,
        latency_cycles=sample_latency(plan),
        link_cycles=plan.link_cycles,
        wall_s=wall_s,
    )


def verdict(scores: Sequence[PlanScore], rates: Sequence[float]) -> str:
    """Return one sentence on whether the shortest wire has the highest throughput (`rates`, samples/s)."""
    if len(scores) < 2:
        return "One placement: nothing to compare."
    fastest = int(np.argmax(rates))
    shortest = min(range(len(scores)), key=lambda i: scores[i].wire_l1)
    wire = scores[shortest].wire_l1 / scores[fastest].wire_l1 - 1 if scores[fastest].wire_l1 else 0.0
    rate = rates[shortest] / rates[fastest] - 1
    if fastest == shortest:
        return (
            f"'{scores[fastest].placer}' has both the shortest wire and the highest throughput: "
            + _reason(scores, rates, fastest)
        )
    told = "did not become" if rate < 0.001 else "became"
    return (
        f"Shorter wire {told} higher throughput: '{scores[shortest].placer}' has {100 * wire:+.1f} % wire and "
        f"{100 * rate:+.2f} % throughput against '{scores[fastest].placer}'."
    )


def _reason(scores: Sequence[PlanScore], rates: Sequence[float], best: int) -> str:
    """Return the reason for the difference between the best and the next: the slowest kernel, or the wire."""
    others = [i for i in range(len(scores)) if i != best]
    rival = max(others, key=lambda i: rates[i])
    if rates[best] <= rates[rival] * 1.001:
        return f"but '{scores[rival].placer}' with more wire is as fast, so wire did not become throughput."
    if scores[best].slowest_cycles < scores[rival].slowest_cycles * 0.999:
        return f"its slowest kernel is faster than that of '{scores[rival].placer}', which is what counts."
    return f"its slowest kernel is no faster than that of '{scores[rival].placer}', so the wire helped."
