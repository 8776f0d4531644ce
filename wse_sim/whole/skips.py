"""Samples that wait on the fabric: where a skip passes by slow regions, and what a laid-out plan states about it.

Symbols: T the pace; region v with s cycles of a pass, n rows of a sample, f cycles by which results leave late; h cycles of a word
on its way.  Regions of a program take in and give words otherwise than a plan counts before it is laid: inlets of dense layers take a whole sample
before the first of its words continues, a last row that finishes all tokens of a sample sends them during the next one, and
results that come together need as many cycles as they have words::

    s(v)      = max over operands of  first word, or last word if v takes whole samples
    first(v)  = s(v) + s / n + f + h        last(v) = max(s(v) + s, last word in + s / n) + f + h
    needed    = 1 + floor((s(v) - s(u)) / T)        samples of u -> v from their start in u to their start in v

What is on its way waits for nobody; the stores of the skip hold the rest.  A producer that finds them full waits, and all that read
the same tensor with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wse_sim.compiler.plan import Stage, Stream
from wse_sim.compiler.streams import with_way
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.laid_ways import Cycles, with_ways
from wse_sim.whole.regions.contract import PlacedKernel

SPARE = 1  # samples of room beyond what is needed
MUCH = 1_000  # samples: room without a limit


@dataclass(frozen=True)
class FullSkip:
    """A skip whose stores hold fewer samples than the pace needs."""

    tensor: str
    reader: str
    held: int
    needed: int

    def told(self) -> str:
        """Say it in one sentence."""
        return (
            f"the skip '{self.tensor}' into '{self.reader}' holds {self.held} samples and needs {self.needed} to keep the pace: its producer waits "
            "until the way around it has taken one"
        )


def as_laid(plan: PipelinedPlan, regions: Sequence[PlacedKernel], ways: Cycles) -> PipelinedPlan:
    """Return the plan with the routes, the times of results and the buffered samples of the program."""
    plan = with_ways(_flowing(plan, regions), ways, {})
    by_name = {region.name: region for region in regions}
    streams = []
    for stream in plan.streams:
        held = by_name[stream.consumer].held_samples(stream.tensor)
        if held is None:
            held = max(
                stream.capacity_samples - stream.on_way_samples, 1 + by_name[stream.consumer].takes_whole
            )
        streams.append(dataclasses.replace(stream, capacity_samples=held + stream.on_way_samples))
    return dataclasses.replace(plan, streams=tuple(streams))


def without_limit(plan: PipelinedPlan, regions: Sequence[PlacedKernel]) -> PipelinedPlan:
    """The plan with room for any number of samples in the stores of skips."""
    by_name = {region.name: region for region in regions}
    streams = tuple(
        dataclasses.replace(stream, capacity_samples=MUCH)
        if by_name[stream.consumer].held_samples(stream.tensor) is not None
        else stream
        for stream in plan.streams
    )
    return dataclasses.replace(plan, streams=streams)


def full_skips(plan: PipelinedPlan, regions: Sequence[PlacedKernel]) -> tuple[FullSkip, ...]:
    """Skips that hold less than the pace needs, of a plan as it is laid."""
    by_name = {region.name: region for region in regions}
    out = []
    for (reader, tensor), needed in needed_samples(plan).items():
        held = by_name[reader].held_samples(tensor)
        if held is not None and held < needed:
            out.append(FullSkip(tensor, reader, held, needed))
    return tuple(out)


def make_room(plan: PipelinedPlan, regions: Sequence[PlacedKernel]) -> None:
    """Give every skip as many stores as the pace needs, and room for a sample more: inlets that deal out hear more slowly."""
    by_name = {region.name: region for region in regions}
    for (reader, tensor), needed in needed_samples(_flowing(plan, regions)).items():
        by_name[reader].hold(tensor, needed + SPARE)


def needed_samples(plan: PipelinedPlan) -> Mapping[tuple[str, str], int]:
    """Samples of every stream that wait at its reader, by reader and tensor, so that nobody waits for room at the plan's pace."""
    pace, wafer = plan.pace_cycles, plan.wafer
    stages = {stage.name: stage for stage in plan.stages}
    into: dict[str, list[Stream]] = {}
    for stream in plan.streams:
        into.setdefault(stream.consumer, []).append(stream)
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    starts: dict[str, float] = {}
    for stage in plan.stages:
        travel = [(stream.producer, stream.travel_cycles(wafer)) for stream in into.get(stage.name, ())]
        came = max((last[name] + way for name, way in travel), default=0.0)
        began = came if stage.barrier else max((first[name] + way for name, way in travel), default=0.0)
        end = max(began + stage.forward_cycles, came + stage.forward_cycles / stage.rows_per_sample)
        starts[stage.name] = began
        first[stage.name] = began + (end - began) / stage.rows_per_sample + stage.latency_cycles
        last[stage.name] = end + stage.latency_cycles
    out = {}
    for stream in plan.streams:
        on_way = with_way(stream, stages, pace, wafer).on_way_samples
        slack = (starts[stream.consumer] - starts[stream.producer]) / pace
        out[stream.consumer, stream.tensor] = max(1, 1 + int(slack + 1e-9) - on_way)
    return out


def _flowing(plan: PipelinedPlan, regions: Sequence[PlacedKernel]) -> PipelinedPlan:
    """The plan with stages that take whole samples where inlets do, and results that leave late where they do."""
    stages = tuple(_stage(stage, region) for stage, region in zip(plan.stages, regions, strict=True))
    by_name = {stage.name: stage for stage in stages}
    streams = tuple(with_way(stream, by_name, plan.pace_cycles, plan.wafer) for stream in plan.streams)
    return dataclasses.replace(plan, stages=stages, streams=streams)


def _stage(stage: Stage, region: PlacedKernel) -> Stage:
    late = region.late_fraction * stage.forward_cycles
    if stage.rows_per_sample == 1:  # rows come out together, and a link takes them one after the other
        late += region.result_words * region.wafer.wavelet_cycles
    return dataclasses.replace(
        stage, barrier=stage.barrier or region.takes_whole, latency_cycles=stage.latency_cycles + late
    )
