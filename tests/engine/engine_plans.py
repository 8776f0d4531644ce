"""Small plans by hand: one clock cycle is one second, so cycles can be counted on paper."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np

from wse_sim.compiler.plan import CoreMemory, Region, Stage, Stream
from wse_sim.graph import KernelGraph, Phase, Tensor, TensorKind, frozen
from wse_sim.hardware import Cluster, Wafer, load_cluster, load_wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.weight_streaming.plan import StreamedPhase, WeightStreamingPlan

ROWS, COLS = 16, 512


def unit_wafer(**changes: Any) -> Wafer:
    """Return a small wafer of 1 Hz with I/O that never binds unless asked."""
    fields: dict[str, Any] = {
        "clock_hz": 1.0,
        "rows": ROWS,
        "cols": COLS,
        "program_rows": ROWS - 2,
        "program_cols": COLS - 2,
        "io_bytes_per_s": 1e12,
    }
    return load_wafer("wse2").derive(**(fields | changes))


def free_cluster(**changes: Any) -> Cluster:
    """Return a cluster whose parts never bind unless asked."""
    fields: dict[str, Any] = {
        "worker_samples_per_s": 1e12,
        "worker_bytes_per_s": 1e15,
        "memoryx_bytes_per_s": 1e12,
        "swarmx_bytes_per_s": 1e12,
        "activation_server_bytes_per_s": 1e12,
        "memoryx_update_bytes_per_s": 1e15,
        "swarmx_hop_s": 0.0,
        "input_workers_per_system": 1,
    }
    return load_cluster("default").derive(**(fields | changes))


def empty_graph(training: bool, input_bytes: int = 4) -> KernelGraph:
    """Return a graph that states only the input."""
    tensors = {"x": Tensor("x", (1, input_bytes), "int8", TensorKind.INPUT)}
    return KernelGraph("hand", (), frozen(tensors), training=training)


def stage(name: str, forward: float, backward: float = 0.0, col: int = 0, **changes: Any) -> Stage:
    """Return a stage on a rectangle of 4 x 4 cores at column `col`."""
    base = Stage(
        name=name,
        family="gemm",
        layer=name,
        kernels=(name,),
        region=Region(1, col, 4, 4, 10),
        forward_cycles=forward,
        backward_cycles=backward,
        update_cycles=0.0,
        forward_parts=frozen({"compute": forward}),
        backward_parts=frozen({"compute": backward}),
        rows_per_sample=1,
        barrier=False,
        in_flight=1000,
        memory=CoreMemory(weights_bytes=8.0),
        flops_per_sample=int(20 * (forward + backward)),
    )
    return dataclasses.replace(base, **changes)


def stream(producer: str, consumer: str, capacity: int = 2, hops: int = 0, size: float = 8.0) -> Stream:
    """Return a stream of 8 bytes a sample each way."""
    return Stream(
        f"{producer}>{consumer}", producer, consumer, size, size, ((1, 0), (1, 4)), hops, 1, 0, capacity
    )


def pipelined(
    stages: list[Stage],
    streams: list[Stream],
    *,
    batch: int,
    training: bool = True,
    **changes: Any,
) -> PipelinedPlan:
    """Return a plan from stages and streams; regions are laid side by side."""
    stages = [
        dataclasses.replace(s, region=dataclasses.replace(s.region, col=1 + 4 * i))
        for i, s in enumerate(stages)
    ]
    fields: dict[str, Any] = {
        "graph": empty_graph(training),
        "wafer": unit_wafer(),
        "cluster": free_cluster(),
        "batch": batch,
        "replicas": 1 + max(s.replica for s in stages),
        "stages": tuple(stages),
        "streams": tuple(streams),
        "link_bytes_per_sample": np.zeros((ROWS, COLS, 4), np.float32),
        "input_bytes_per_sample": 4.0,
        "in_flight": 1000,
        "binding": "cores",
        "lower_bound_cycles": 0.0,
    }
    return PipelinedPlan(**(fields | changes))


def chain(times: list[tuple[float, float]], *, batch: int, **changes: Any) -> PipelinedPlan:
    """Stages a, b, c, ... in a row with (forward, backward) cycles."""
    per_stage = {k: changes.pop(k) for k in ("rows_per_sample", "barrier", "update_cycles") if k in changes}
    names = [f"s{i}" for i in range(len(times))]
    stages = [stage(n, f, b, **per_stage) for n, (f, b) in zip(names, times, strict=True)]
    streams = [stream(a, b) for a, b in pairwise(names)]
    return pipelined(stages, streams, batch=batch, **changes)


def phase(name: str, compute: float, kind: Phase = Phase.FORWARD, **changes: Any) -> StreamedPhase:
    """Return a phase of `compute` cycles; forward and weight-gradient phases of one layer belong together."""
    base = StreamedPhase(
        name=f"{name}:{kind}",
        kernel=f"{name}:{kind}",
        family="gemm",
        layer=name,
        phase=kind,
        recompute=False,
        compute_cycles=compute,
        parts=frozen({"compute": compute}),
        weight_bytes=0.0,
        gradient_bytes=0.0,
        spill_bytes=0.0,
        floor_s=0.0,
        flops=int(1000 * compute),
    )
    return dataclasses.replace(base, **changes)


def streaming(phases: list[StreamedPhase], *, batch: int = 1, **changes: Any) -> WeightStreamingPlan:
    """Return a weight streaming plan on the unit wafer."""
    systems = changes.get("systems", 1)
    per_system = -(-batch // systems)
    training = any(p.phase is Phase.WEIGHT_GRADIENT for p in phases)
    fields: dict[str, Any] = {
        "graph": empty_graph(training, input_bytes=0),
        "wafer": unit_wafer(io_bytes_per_s=1.0),
        "cluster": free_cluster(),
        "systems": 1,
        "batch": batch,
        "batch_per_system": per_system,
        "micro_batch": per_system,
        "micro_batches": 1,
        "lanes": 1,
        "recompute": "none",
        "phases": tuple(phases),
        "memory": CoreMemory(activations_bytes=16.0),
        "spilled_bytes": 0.0,
        "optimizer_bytes_per_parameter": 16.0,
    }
    return WeightStreamingPlan(**(fields | changes))
