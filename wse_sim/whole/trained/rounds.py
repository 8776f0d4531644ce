"""The schedule of a network that trains on the fabric: rounds of as many samples as every core can store.

The programs run the forward passes of a round, then its backward passes (GPipe with part of a batch); they do not
alternate them (1F1B).  A round fills and drains the pipeline, so a plan that is priced from the programs has it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from math import ceil
from types import MappingProxyType

from wse_sim.compiler.plan import Stage
from wse_sim.compiler.streams import plain_name
from wse_sim.errors import ModelError
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.graph.kernel_graph import frozen
from wse_sim.modes.pipelined.loss import loss_cores, loss_rows, with_loss, without_loss
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.repricing import reprice
from wse_sim.whole.bundles import split
from wse_sim.whole.coverage import forward_kernel
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.lower import without_program
from wse_sim.whole.network import leaving_of
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions import KINDS
from wse_sim.whole.regions.contract import divisor
from wse_sim.whole.regions.pointwise_place import PointwisePlace
from wse_sim.whole.room import check_room
from wse_sim.whole.stream_routes import Cycles, Ends, with_ways
from wse_sim.whole.trained.contract import TrainedKind
from wse_sim.whole.trained.kinds import TRAINED, trained_region_of
from wse_sim.whole.trained.link_choice import graph_with
from wse_sim.whole.trained.loss import LossPlace, core_counts

AHEAD = 2
"""Samples that cores with a part of each sample hold: one that they compute, and the next one."""


def in_rounds(plan: PipelinedPlan, samples: int, regions: Sequence[TrainedKind]) -> PipelinedPlan:
    """Return the plan with the forward passes of `samples` samples before their backward passes.

    A skip is as deep as the stores of the region that reads it. More samples are on their way between regions than in
    a plan whose passes alternate, since those of one pass follow each other faster.
    """
    forward = max(stage.forward_cycles for stage in plan.stages)
    backward = max(stage.backward_cycles for stage in plan.stages)
    faster = max(stage.cycles_per_sample for stage in plan.stages) / max(1.0, min(forward, backward))
    readers = {region.name: region for region in regions}
    streams = []
    for stream in plan.streams:
        reader = readers.get(plain_name(stream.consumer))
        on_way = ceil(stream.on_way_samples * max(1.0, faster))
        more = on_way - stream.on_way_samples
        stream = dataclasses.replace(
            stream, on_way_samples=on_way, capacity_samples=stream.capacity_samples + more
        )
        held = reader.held_samples(stream.tensor) if reader is not None else None
        if held is None and _has_parts(reader):  # one in its cores, which receive the next one
            held = max(AHEAD, stream.capacity_samples - stream.on_way_samples)
        if held is not None:
            stream = dataclasses.replace(stream, capacity_samples=held + stream.on_way_samples)
        streams.append(stream)
    stages = (
        dataclasses.replace(stage, rows_per_sample=one.laps)
        if isinstance(one := readers.get(plain_name(stage.name)), PointwisePlace)
        else stage
        for stage in plan.stages
    )
    return dataclasses.replace(
        plan,
        round_samples=samples,
        in_flight=samples,
        stages=tuple(_storing(stage, samples) for stage in stages),
        streams=tuple(streams),
    )


def in_program_rounds(plan: PipelinedPlan) -> PipelinedPlan:
    """Return the plan with rounds of the largest divisor of a replica's batch that all cores can store.

    Kernels without a program store no less than the plan gives them, so they do not count.

    Raises
    ------
    ModelError
        If a region cannot store one sample, or has no program.
    """
    samples = ceil(plan.batch / plan.replicas)
    stages = [stage for stage in plan.stages if stage.replica == 0]
    regions = regions_of(plan, stages)
    fits = [most_of_all(plan, regions)]
    plan = with_bundles(_with_cores_in_rotation(plan, divisor(samples, min(fits))), regions)
    for stage in (stage for stage in plan.stages if stage.replica == 0):
        if (
            not stage.kernels
        ):  # the loss has one token on each of its cores, where cores are free, or samples in rotation
            fits.append(_loss_of(plan, stage).most_in_flight(FabricConfig.from_wafer(plan.wafer), samples))
    return in_rounds(with_ways(plan, *shortest_ways(plan, regions)), divisor(samples, min(fits)), regions)


def with_links_of_regions(plan: PipelinedPlan) -> PipelinedPlan:
    """Return the plan with the numbers of bundles that its regions have: every tensor as many at all its ends. A plan with
    a region that has no program is returned unchanged."""
    try:
        return with_bundles(plan, regions_of(plan, [stage for stage in plan.stages if stage.replica == 0]))
    except ModelError:
        return plan


def shortest_ways(plan: PipelinedPlan, regions: Sequence[TrainedKind]) -> tuple[Cycles, Cycles]:
    """Return the travel cycles of words between the cells at which streams leave and enter regions, forward and of
    gradients.

    Routes go along a row, then along a column.  A program may have to go around others, so its own take no less.
    """
    by_name = {region.name: region for region in regions}
    there: dict[Ends, float] = {}
    back: dict[Ends, float] = {}
    for stream in plan.streams:
        # Further replicas have the distances of the first.
        maker, reader = by_name.get(plain_name(stream.producer)), by_name.get(plain_name(stream.consumer))
        if maker is None or reader is None:
            continue
        ends = stream.tensor, stream.producer, stream.consumer
        bundles = range(maker.bundles.get(stream.tensor, 1))
        there[ends] = max(
            _travel(plan, maker.bundle_senders(inlet.bundle)[0], inlet.cell)
            for inlet in reader.inlets
            if inlet.tensor == stream.tensor
        )
        sources = (
            []
            if stream.tensor not in reader.needs
            else [reader.gradient_senders(stream.tensor, bundle)[0] for bundle in bundles]
        )
        if stream.tensor in reader.needs:
            back[ends] = max(
                _travel(plan, source, cell)
                for source, cell in zip(sources, maker.gradient_inlets, strict=True)
            )
    return there, back


def _travel(plan: PipelinedPlan, start: Cell, end: Cell) -> float:
    """Return the cycles of a word along the row of `start`, then along the column of `end`."""
    (row, col), (last_row, last_col) = start, end
    along = [(row, c) for c in range(col, last_col, 1 if last_col > col else -1)]
    along += [(r, last_col) for r in range(row, last_row, 1 if last_row > row else -1)]
    return plan.wafer.travel_cycles([*along, end])


def with_bundles(plan: PipelinedPlan, regions: Sequence[TrainedKind]) -> PipelinedPlan:
    """Return the plan with as many links of every stream as its tensor has bundles, and prices that count these."""
    bundles = {tensor: count for region in regions for tensor, count in region.bundles.items()}
    counts = {name: bundles.get(name, 1) for name in plan.graph.tensors}
    kernels = tuple(
        dataclasses.replace(one, attrs=frozen({**one.attrs, "held_samples": 0, "kept_bytes": 0}))
        if one.attrs.get("held_samples", 0)
        else one
        for one in plan.graph.kernels
    )
    streams = tuple(
        dataclasses.replace(stream, width=bundles.get(stream.tensor, stream.width)) for stream in plan.streams
    )
    graph = graph_with(dataclasses.replace(plan.graph, kernels=kernels), counts)
    return reprice(dataclasses.replace(plan, graph=graph, streams=streams), plan.wafer, plan.cluster)


def regions_of(
    plan: PipelinedPlan, stages: Sequence[Stage], most: Mapping[str, int] = MappingProxyType({})
) -> tuple[TrainedKind, ...]:
    """Return the regions of the stages whose kernels have a program, with the bundles that the pace of the plan needs,
    at most `most` by tensor; operands that another kernel makes need gradients, unless it is frozen."""
    kernels = [(stage, forward_kernel(plan, stage.name)) for stage in stages if stage.kernels]
    rest, aside = frozen_layers(plan.graph), without_program(plan.graph)
    made = {name for _, kernel in kernels if kernel.name not in rest for name in kernel.outputs}
    regions = tuple(
        trained_region_of(plan.graph, kernel, stage, plan.wafer, frozenset(made.intersection(kernel.inputs)))
        for stage, kernel in kernels
        if kernel.family in (KINDS if kernel.name in rest else TRAINED) and kernel.name not in aside
    )
    split(plan, regions, most)
    for region in regions:
        region.settle()
    return regions


def most_of_all(plan: PipelinedPlan, regions: Sequence[TrainedKind]) -> int:
    """Return the samples that all regions can store.

    Raises
    ------
    ModelError
        If a region has no room for one, or a core that holds samples of a tensor has no room for them.
    """
    check_room(plan.graph, plan.wafer, {name: n for one in regions for name, n in one.bundles.items()})
    return min(most_of(region) for region in regions)


def most_of(region: TrainedKind) -> int:
    """Return the samples that a region can store.

    Raises
    ------
    ModelError
        If there is not room for one.
    """
    most = region.most_in_flight()
    if most < 1:
        raise ModelError(
            f"a core of '{region.name}' does not have room for {region.too_large}; use more cores or shorter samples"
        )
    return most


def _has_parts(region: TrainedKind | None) -> bool:
    """Return whether every core of a region has a part of each sample: its parts come out together, after a pass of all
    tokens."""
    return isinstance(region, PointwisePlace)


def _storing(stage: Stage, samples: int) -> Stage:
    """Return the stage with activations of `samples` samples; a loss stays as it is planned."""
    if not stage.kernels:
        return dataclasses.replace(stage, in_flight=samples)
    held = stage.memory.activations_bytes * samples / stage.in_flight
    return dataclasses.replace(
        stage, in_flight=samples, memory=dataclasses.replace(stage.memory, activations_bytes=held)
    )


def _with_cores_in_rotation(plan: PipelinedPlan, in_flight: int) -> PipelinedPlan:
    """Return the plan with as many cores for a loss of samples of one row as its program has for rounds of `in_flight`
    samples."""
    stage = next((stage for stage in plan.stages if not stage.kernels), None)
    if stage is None or stage.rows_per_sample > 1:
        return plan
    loss, logits, _ = loss_rows(stage, plan)
    bare = without_loss(plan)
    counts = core_counts(1, in_flight, loss_cores(bare, loss, logits))
    return with_loss(bare, loss, next(count for count in counts if count <= plan.wafer.program_rows))


def _loss_of(plan: PipelinedPlan, stage: Stage) -> LossPlace:
    """Return the cores of the loss: those of its stage, or as many as a sample has tokens."""
    output = plan.graph.tensors[leaving_of(plan).tensor]
    features = int(output.shape[-1])
    tokens = output.elements // plan.graph.samples // features
    cores = tokens if tokens > 1 else stage.region.cores
    return LossPlace((0, 0), cores * ((0, 0),), tokens, features)
