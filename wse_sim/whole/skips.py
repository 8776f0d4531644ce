"""Buffering of skips: where a skip bypasses slow regions, how many samples must wait, and the laid-out plan
that accounts for it.

Symbols: T the pace; a region v takes s cycles per pass and n rows per sample, and its results leave f cycles
late; h is the travel time of a word. The regions of a program start and finish at other times than the plan
assumes before layout: inlets of dense layers take a complete sample before they forward its first word, and results that
arrive together need one cycle per word::

    s(v)      = max over operands of  first word, or last word if v takes whole samples
    first(v)  = s(v) + s / n + f + h        last(v) = max(s(v) + s, last word in + s / n) + f + h
    needed    = 1 + floor((s(v) - s(u)) / T)        samples of u -> v from their start in u to their start in v

Words in flight need no buffer; the buffers of the skip hold the rest. If they are full, the producer stalls,
and so do all other readers of the same tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wse_sim.compiler.plan import Stage, Stream
from wse_sim.compiler.streams import with_way
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.regions.contract import PlacedKernel
from wse_sim.whole.stream_routes import Cycles, with_ways

SPARE = 1  # samples of room beyond what is needed
MUCH = 1_000  # samples: room without a limit


@dataclass(frozen=True)
class FullSkip:
    """A skip whose buffers hold fewer samples than the pace needs."""

    tensor: str
    reader: str
    held: int
    needed: int

    def told(self) -> str:
        """Return one sentence for the user."""
        return (
            f"the skip '{self.tensor}' into '{self.reader}' holds {self.held} samples and needs {self.needed} to keep the pace: its producer waits "
            "until the path around it has consumed one"
        )


def as_laid(plan: PipelinedPlan, regions: Sequence[PlacedKernel], ways: Cycles) -> PipelinedPlan:
    """Return the plan with the routes, result times and buffered samples of the program."""
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


def with_stores(plan: PipelinedPlan, regions: Sequence[PlacedKernel]) -> PipelinedPlan:
    """Return the plan with the samples that the stores of skips hold in its program, once they have room for its pace."""
    make_room(plan, regions)
    by_name = {region.name: region for region in regions}
    held = [by_name[stream.consumer].held_samples(stream.tensor) for stream in plan.streams]
    streams = tuple(
        stream
        if count is None
        else dataclasses.replace(stream, capacity_samples=count + stream.on_way_samples)
        for stream, count in zip(plan.streams, held, strict=True)
    )
    return dataclasses.replace(plan, streams=streams)


def without_limit(plan: PipelinedPlan, regions: Sequence[PlacedKernel]) -> PipelinedPlan:
    """Return the plan with unlimited buffers for skips."""
    by_name = {region.name: region for region in regions}
    streams = tuple(
        dataclasses.replace(stream, capacity_samples=MUCH)
        if by_name[stream.consumer].held_samples(stream.tensor) is not None
        else stream
        for stream in plan.streams
    )
    return dataclasses.replace(plan, streams=streams)


def full_skips(plan: PipelinedPlan, regions: Sequence[PlacedKernel]) -> tuple[FullSkip, ...]:
    """Return the skips of a laid-out plan that buffer fewer samples than the pace needs."""
    by_name = {region.name: region for region in regions}
    out = []
    for (reader, tensor), needed in needed_samples(plan).items():
        held = by_name[reader].held_samples(tensor)
        if held is not None and held < needed:
            out.append(FullSkip(tensor, reader, held, needed))
    return tuple(out)


def make_room(plan: PipelinedPlan, regions: Sequence[PlacedKernel]) -> None:
    """Give every skip the buffers that the pace needs, plus one sample: back-pressure from inlets that deal
    out arrives late."""
    by_name = {region.name: region for region in regions}
    for (reader, tensor), needed in needed_samples(_flowing(plan, regions)).items():
        by_name[reader].hold(tensor, needed + SPARE)


def needed_samples(plan: PipelinedPlan) -> Mapping[tuple[str, str], int]:
    """Return the samples that each stream must buffer to keep the plan's pace without stalls, by reader and
    tensor."""
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
    """Return the plan with stages that wait for whole samples, and late results, where the program has them."""
    stages = tuple(_stage(stage, region) for stage, region in zip(plan.stages, regions, strict=True))
    by_name = {stage.name: stage for stage in stages}
    streams = tuple(with_way(stream, by_name, plan.pace_cycles, plan.wafer) for stream in plan.streams)
    return dataclasses.replace(plan, stages=stages, streams=streams)


def _stage(stage: Stage, region: PlacedKernel) -> Stage:
    late = 0.0
    if stage.rows_per_sample == 1:  # rows come out together, and a link takes them one after the other
        late += region.result_words * region.wafer.wavelet_cycles
    return dataclasses.replace(
        stage, barrier=stage.barrier or region.takes_whole, latency_cycles=stage.latency_cycles + late
    )
