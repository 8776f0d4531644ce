"""Placements of one model side by side: what the placer wanted to make small, on its own scale.

Symbols: T cycles per sample of the slowest stage; B least T by area (:attr:`PipelinedPlan.lower_bound_cycles`);
wire in cores, |dx| + |dy| between the middles of producer and consumer, every stream counted once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wse_sim.modes.pipelined.plan import PipelinedPlan


@dataclass(frozen=True)
class PlanScore:
    """The objectives of one placement."""

    placer: str
    slowest: str  # stage
    slowest_cycles: float
    bound_cycles: float
    wire_l1: float  # cores
    byte_hops: float  # bytes per sample x links, all streams and the way back
    region_share: float  # of the program rectangle's cores
    latency_cycles: float  # of one sample alone, forward
    link_cycles: float  # per sample, of the busiest link
    wall_s: float

    @property
    def ratio(self) -> float:
        """Slowest stage over the least by area."""
        return self.slowest_cycles / self.bound_cycles

    @property
    def time_and_wire(self) -> float:
        """The objective ``delta-t+wire``: slowest stage (cycles) + wire (cores)."""
        return self.slowest_cycles + self.wire_l1

    @property
    def link_use(self) -> float:
        """What the busiest link carries over what it can at the pace of the slowest stage."""
        return self.link_cycles / self.slowest_cycles


def score(plan: PipelinedPlan, wall_s: float) -> PlanScore:
    """The objectives of a plan; `wall_s` seconds were spent on it."""
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
        region_share=sum(stage.region.cores for stage in plan.stages) / plan.wafer.program_cores,
        latency_cycles=sample_latency(plan),
        link_cycles=plan.link_cycles,
        wall_s=wall_s,
    )


def sample_latency(plan: PipelinedPlan) -> float:
    """Cycles from the first row of a lone sample to its last result, forward: the longest path.

    A stage starts with the first row of its inputs (a barrier with the last); it ends after its own
    cycles, or one row after its last input.  Rows leave after the fill of its rectangle.
    """
    hop = plan.wafer.hop_cycles
    first = {stage.name: 0.0 for stage in plan.stages}  # when inputs begin and end at each stage
    last = dict(first)
    end = 0.0
    readers: dict[str, list[tuple[str, float]]] = {stage.name: [] for stage in plan.stages}
    for stream in plan.streams:
        readers[stream.producer].append((stream.consumer, float(stream.hops * hop)))
    for stage in plan.stages:  # in dataflow order
        row = stage.forward_cycles / stage.rows_per_sample
        start = last[stage.name] if stage.barrier else first[stage.name]
        done = max(start + stage.forward_cycles, last[stage.name] + row)
        begun = start + (done - start) / stage.rows_per_sample
        for consumer, travel in readers[stage.name]:
            first[consumer] = max(first[consumer], begun + stage.latency_cycles + travel)
            last[consumer] = max(last[consumer], done + stage.latency_cycles + travel)
        end = max(end, done + stage.latency_cycles)
    return end


def verdict(scores: Sequence[PlanScore], rates: Sequence[float]) -> str:
    """Whether the shortest wire was also the highest throughput (`rates`, samples/s), in one sentence."""
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
        f"Shorter wire {told} higher throughput: '{scores[shortest].placer}' has {wire:+.1%} wire and "
        f"{rate:+.2%} throughput against '{scores[fastest].placer}'."
    )


def _reason(scores: Sequence[PlanScore], rates: Sequence[float], best: int) -> str:
    """What made the difference between the best and the next: the slowest kernel, or the wire."""
    others = [i for i in range(len(scores)) if i != best]
    rival = max(others, key=lambda i: rates[i])
    if rates[best] <= rates[rival] * 1.001:
        return f"but '{scores[rival].placer}' with more wire is as fast, so wire did not become throughput."
    if scores[best].slowest_cycles < scores[rival].slowest_cycles * 0.999:
        return f"its slowest kernel is faster than that of '{scores[rival].placer}', which is what counts."
    return f"its slowest kernel is no faster than that of '{scores[rival].placer}', so the wire helped."


def draw_plans(plans: Sequence[PipelinedPlan], titles: Sequence[str], path: str | Path) -> None:
    """One panel per plan: regions shaded by their order in the dataflow, streams as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(4.6 * len(plans) + 0.9, 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, len(plans), squeeze=False, sharey=True)
    for axes, plan, title in zip(grid[0], plans, titles, strict=True):
        areas = [stage.region for stage in plan.stages]
        patches = PatchCollection(
            [Rectangle((a.col, a.row), a.cols, a.rows) for a in areas], edgecolor="black", linewidths=0.4
        )
        patches.set_array(np.linspace(0.0, 1.0, len(areas)))
        patches.set_cmap("viridis")
        patches.set_alpha(0.65)
        axes.add_collection(patches)
        lines = [[(col, row) for row, col in stream.route] for stream in (*plan.streams, *plan.host_streams)]
        axes.add_collection(LineCollection(lines, colors="crimson", linewidths=0.5, alpha=0.8))
        dead = [(col, row) for row, col in plan.wafer.dead_cores]
        if dead:
            axes.scatter(*zip(*dead, strict=True), s=4, color="black", marker="s")
        for row in plan.wafer.dead_rows:
            axes.axhline(row + 0.5, color="black", linewidth=0.8)
        axes.set_xlim(0, plan.wafer.cols)
        axes.set_ylim(plan.wafer.rows, 0)
        axes.set_aspect("equal")
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("column (cores)")
    grid[0][0].set_ylabel("row (cores)")
    bar = figure.colorbar(patches, ax=grid[0].tolist(), shrink=0.7, pad=0.01)
    bar.set_label("order in the dataflow (0 first, 1 last stage); red: streams", fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
