"""The pipelined compiler: stages, sizes, places, routes -> :class:`PipelinedPlan`.

Everything of the network rests on one wafer: weights with gradient and optimizer state, activations of
every sample in flight.  If the sum exceeds the SRAM the answer is :class:`Infeasible`.
"""

from __future__ import annotations

import numpy as np

from wse_sim.compiler.placing import SHELVES, place_stages
from wse_sim.compiler.plan import CoreMemory, Infeasible, PipelinedPlan, Region, Stage, Stream
from wse_sim.compiler.pricing import Prices, parts_of
from wse_sim.compiler.routing import (
    RESERVED_COLORS,
    Band,
    add_load,
    add_region_load,
    assign_colors,
    bands_between,
    least_loaded,
    links_needed,
    reverse,
)
from wse_sim.compiler.shelves import Box
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph, Phase, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer

STATE_BYTES = {"sgd": 10, "momentum": 14, "adamw": 18, "adam": 18}
"""Bytes per trained weight at rest: fp16 copy, fp32 master and gradient, fp32 moments."""
SUM_BYTES = 4  # partial sums travel in fp32
SUMMING_FAMILIES = frozenset({"gemm", "batch_gemm", "grouped_gemm", "conv2d", "attention"})


def compile_pipelined(
    graph: KernelGraph,
    wafer: Wafer,
    cluster: Cluster,
    *,
    batch: int,
    placer: str = SHELVES,
    seed: int = 0,
) -> PipelinedPlan | Infeasible:
    """Plan the pipeline for `graph`, which is restated for one sample; `placer` as for `place_stages`.

    Raises
    ------
    ModelError
        If the batch is impossible.
    """
    if batch < 1:
        raise ModelError(f"batch {batch} is not positive; ask for at least one sample")
    graph = graph.with_samples(1)
    capacity = float(wafer.program_cores * wafer.sram_usable_bytes)
    weights = float(graph.parameters * _bytes_per_weight(graph))
    if weights > capacity:
        return _sram(graph, weights, capacity, "weights, gradients and optimizer state")
    sizer = Sizer(graph, wafer, Prices(wafer, {"training": graph.training, "optimizer": _optimizer(graph)}))
    activations = sum(sizer.activation_bytes(group) for group in sizer.groups)
    if weights + activations > capacity:
        return _sram(
            graph, weights + activations, capacity, "weights and activations of all samples in flight"
        )
    placed = place_stages(sizer, placer, seed=seed)
    if placed is None:
        return _sram(
            graph, weights + activations, capacity, "stages with their buffers on rectangles of cores"
        )
    pace, boxes = placed
    stages = tuple(_stage(sizer, group, box) for group, box in zip(sizer.groups, boxes, strict=True))
    routed = _streams(sizer, stages, wafer, max(stage.cycles_per_sample for stage in stages))
    if isinstance(routed, Infeasible):
        return routed
    streams, loads = routed
    ideal = _ideal_pace(sizer)
    bound_by_memory = sizer.memory_bound_share(pace) > 0.5
    return PipelinedPlan(
        graph=graph,
        wafer=wafer,
        cluster=cluster,
        batch=batch,
        replicas=1,
        stages=stages,
        streams=streams,
        link_bytes_per_sample=loads,
        input_bytes_per_sample=float(graph.input_bytes),
        in_flight=max(sizer.in_flight.values()),
        binding="sram" if bound_by_memory else "cores",
        lower_bound_cycles=ideal,
        notes=_notes(graph, wafer),
    )


def _optimizer(graph: KernelGraph) -> str:
    for kernel in graph.kernels:
        if kernel.phase is Phase.UPDATE:
            return str(kernel.attrs.get("algorithm", "adamw"))
    return "sgd"


def _bytes_per_weight(graph: KernelGraph) -> int:
    return STATE_BYTES[_optimizer(graph)] if graph.training else 2


def _sram(graph: KernelGraph, need: float, limit: float, what: str) -> Infeasible:
    return Infeasible(
        mode="pipelined",
        model=graph.name,
        binding="SRAM",
        need=need,
        limit=limit,
        unit="bytes",
        where=what,
        remedy="use weight streaming or a smaller model",
    )


def _ideal_pace(sizer: Sizer) -> float:
    """Pace if the cores of the program rectangle were divided without remainder and none moved data."""
    pace = sizer.pace_for(float(sizer.wafer.program_cores))
    return pace if pace is not None else float("nan")


def _stage(sizer: Sizer, group: Group, box: Box) -> Stage:
    rows, cols = box.compute_rows, box.compute_cols
    forward, backward = sizer.stage_cost(group, rows, cols)
    print_ = sizer.prices.footprint(group.forward, rows, cols, "stationary")
    region = Region(box.row, box.col, box.rows, box.cols, rows * cols)
    memory = CoreMemory(
        weights_bytes=float(np.asarray(print_.weights_bytes)),
        activations_bytes=float(np.asarray(print_.activations_bytes))
        + sizer.activation_bytes(group) / region.cores,
        buffers_bytes=float(np.asarray(print_.buffers_bytes)),
        code_bytes=float(np.asarray(print_.code_bytes)),
    )
    return Stage(
        name=group.name,
        family=group.forward.family,
        layer=group.forward.layer,
        kernels=tuple(kernel.name for kernel in group.kernels),
        region=region,
        forward_cycles=float(np.asarray(forward.total)),
        backward_cycles=float(np.asarray(backward.total)),
        update_cycles=sizer.update_cycles(group, rows, cols),
        forward_parts=frozen(parts_of(forward)),
        backward_parts=frozen(parts_of(backward)),
        rows_per_sample=group.rows_per_sample,
        barrier=group.is_barrier,
        in_flight=sizer.in_flight[group.name],
        memory=memory,
        flops_per_sample=sum(kernel.flops for kernel in group.kernels),
        latency_cycles=sizer.latency_cycles(group, rows, cols),
    )


def _streams(
    sizer: Sizer, stages: tuple[Stage, ...], wafer: Wafer, pace_cycles: float
) -> tuple[tuple[Stream, ...], np.ndarray] | Infeasible:
    by_name = {stage.name: stage for stage in stages}
    graph = sizer.graph
    loads = np.zeros((wafer.rows, wafer.cols, 4), np.float32)
    _add_inner_loads(graph, stages, loads)
    pending: list[tuple[str, str, str, float, Band]] = []
    seen: set[tuple[str, str, str]] = set()
    for producer, consumer, tensor in graph.edges():
        if producer not in by_name or consumer not in by_name or (producer, consumer, tensor) in seen:
            continue
        seen.add((producer, consumer, tensor))
        size = float(graph.tensors[tensor].bytes)
        links = links_needed(size, pace_cycles, wafer.link_bytes_per_cycle)
        ways = bands_between(by_name[producer].region, by_name[consumer].region, links)
        band = least_loaded(loads, ways)
        add_load(loads, band, size)
        if graph.training and graph.tensors[tensor].kind is TensorKind.ACTIVATION:
            add_load(loads, reverse(band), size)
        pending.append((tensor, producer, consumer, size, band))
    colors, used = assign_colors([item[4] for item in pending], wafer.rows, wafer.cols)
    if used > wafer.colors - RESERVED_COLORS:
        return Infeasible(
            mode="pipelined",
            model=graph.name,
            binding="colors",
            need=float(used),
            limit=float(wafer.colors - RESERVED_COLORS),
            unit="colors",
            where="the busiest router",
            remedy="use weight streaming, or place kernels so that fewer streams cross",
        )
    depth = _barrier_depth(sizer)
    streams = tuple(
        Stream(
            tensor=tensor,
            producer=producer,
            consumer=consumer,
            bytes_per_sample=size,
            backward_bytes_per_sample=size if graph.training else 0.0,
            route=band.route,
            hops=band.hops,
            width=band.width,
            color=color,
            capacity_samples=2 + max(0, depth[consumer] - depth[producer]),
        )
        for (tensor, producer, consumer, size, band), color in zip(pending, colors, strict=True)
    )
    return streams, loads


def _add_inner_loads(graph: KernelGraph, stages: tuple[Stage, ...], loads: np.ndarray) -> None:
    passes = 2.0 if graph.training else 1.0  # gradients run through a region as activations do
    for stage in stages:
        kernel = graph.kernel(stage.name)
        size_in = sum(graph.tensors[name].bytes for name in kernel.inputs if graph.tensors[name].per_sample)
        summed = kernel.family in SUMMING_FAMILIES
        size_out = sum(graph.tensors[name].elements * SUM_BYTES for name in kernel.outputs) if summed else 0
        add_region_load(loads, stage.region, passes * size_in, passes * size_out)


def _barrier_depth(sizer: Sizer) -> dict[str, int]:
    """Barriers on the longest path to each stage: a skip connection must buffer as many samples."""
    producers: dict[str, list[str]] = {g.name: [] for g in sizer.groups}
    for producer, consumer in sizer.edges:
        producers[consumer].append(producer)
    depth: dict[str, int] = {}
    for group in sizer.groups:
        depth[group.name] = int(group.is_barrier) + max(
            (depth.get(p, 0) for p in producers[group.name]), default=0
        )
    return depth


def _notes(graph: KernelGraph, wafer: Wafer) -> tuple[str, ...]:
    notes = [
        f"{wafer.transmission_core_share:.0%} of a region's cores move and buffer data instead of computing (fitted)",
    ]
    if any(k.family == "attention" and k.attrs.get("causal") for k in graph.kernels):
        notes.append("causal attention computes all scores")
    return (*graph.notes, *notes)
