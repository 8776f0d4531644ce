"""Adds a loss to a model that returns its outputs, as a stage at the end of the pipeline.

If a graph returns its loss, the loss is a kernel like any other. If a module returns its outputs, its plan
has no loss; this module adds one.

Symbols: T rows (tokens) per sample with n logits each, L cores that receive rows in rotation, t = ceil(T / L)
rows of one core (1 / L of a sample if samples have one row); o start of a vector instruction, r rate of an fp32 sum
(elements per cycle).  Cycles of a core per row, counted from its program::

    squared error   n / 2 + 2 (o + n)                      words in, difference, sum of squares; operands share a bank
    cross entropy   n (e + 5.5 + 1 / r) + 12 o + e + d + 4 words in, maximum, exponentials, sums, logarithm, quotient;
                                                           e an exponential or a logarithm, d a division
    gradients out   n / 2 + 1                              in the backward pass

The core that hands the rows to the others takes n / 2 cycles per row. So 1 / L of a sample's time is the pace of cores
in rotation, and all of it the delay of its gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import ceil

from wse_sim.compiler.plan import CoreMemory, Region, Stage, Stream, waiting_bytes
from wse_sim.compiler.streams import HOST, copy_name, plain_name
from wse_sim.errors import ModelError
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.units import BYTES_PER_WAVELET

LOSS = "loss"
FAMILIES = {"cross entropy": "cross_entropy", "squared error": "elementwise"}
LOSSES = tuple(FAMILIES)
STARTS = {"cross entropy": 12, "squared error": 2}
FP16_BYTES = 2
MOST_LOSS_CORES = 16
"""Most cores that share the samples of one row: more would delay the words that pass all of them."""


def loss_cycles(loss: str, logits: int, wafer: Wafer) -> tuple[float, float]:
    """Return the cycles of a core for the loss of a row of `logits`, and for sending its gradient."""
    start = STARTS[loss] * wafer.vector_start_cycles
    out = logits / 2 + 1
    if loss == "squared error":
        return start + 2.5 * logits, out
    special = logits * wafer.exp_cycles + wafer.exp_cycles + wafer.divide_cycles
    return start + special + logits * (5.5 + 1 / wafer.add_fp32_per_cycle) + 4, out


def loss_cores(plan: PipelinedPlan, loss: str, logits: int) -> int:
    """Return the number of cores with which the loss of samples of one row keeps the forward pace of the other stages;
    each takes a sample in rotation."""
    cycles, _ = loss_cycles(loss, logits, plan.wafer)
    pace = max(stage.forward_cycles for stage in plan.stages)
    return ceil(cycles / max(pace, logits / 2, cycles / MOST_LOSS_CORES))


def with_loss(plan: PipelinedPlan, loss: str, cores: int | None = None) -> PipelinedPlan:
    """Return the plan with a stage for a loss in every copy of the model.

    Its `cores` are in the last moving column of the region that produces the outputs, from its last row up;
    the default is one per row of the sample, or the largest divisor that fits in the region. Cores take samples of one
    row in rotation; by default they are as many as keep the pace.

    Raises
    ------
    ModelError
        If the plan is no training, or its outputs are not one tensor of several logits.
    """
    graph, wafer = plan.graph, plan.wafer
    if loss not in LOSSES:
        raise ModelError(f"loss '{loss}' is unknown; use one of {', '.join(LOSSES)}")
    if not graph.training:
        raise ModelError("an inference has no loss; leave it out, or plan a training")
    leaving = [stream for stream in plan.host_streams if stream.consumer == HOST]
    names = sorted({stream.tensor for stream in leaving})
    if len(names) != 1:
        raise ModelError(
            f"model '{graph.name}' returns {len(names)} tensors, a loss reads one; return the logits alone"
        )
    logits = int(graph.tensors[names[0]].shape[-1])
    rows = graph.tensors[names[0]].elements // graph.samples // logits
    if logits == 1:
        raise ModelError(
            f"tensor '{names[0]}' has one number per row, so it may already be a loss; leave the option loss out"
        )
    by_name = {stage.name: stage for stage in plan.stages}
    stages, streams = list(plan.stages), list(plan.streams)
    for stream in leaving:
        last = by_name[stream.producer]
        rotation = loss_cores(plan, loss, logits) if rows == 1 else 1
        stage = _stage(last, loss, rows, logits, cores or _cores_within(last, rows, rotation), wafer)
        stages.append(stage)
        streams.append(_between(stream, last, stage, plan))
        held = waiting_bytes(streams[-1:])[stage.name] / stage.region.cores
        stages[-1] = dataclasses.replace(stage, memory=dataclasses.replace(stage.memory, streams_bytes=held))
    # Stages are ordered copy by copy.
    stages.sort(key=lambda stage: stage.replica)
    return dataclasses.replace(plan, stages=tuple(stages), streams=tuple(streams))


def without_loss(plan: PipelinedPlan) -> PipelinedPlan:
    """Return the plan without the stages that :func:`with_loss` has added."""
    return dataclasses.replace(
        plan,
        stages=tuple(stage for stage in plan.stages if stage.kernels),
        streams=tuple(stream for stream in plan.streams if plain_name(stream.consumer) != LOSS),
    )


def _cores_within(last: Stage, rows: int, rotation: int) -> int:
    """Return the number of cores for the loss next to the region of the last stage."""
    most = last.region.rows
    return (
        min(rotation, most) if rows == 1 else next(n for n in range(min(rows, most), 0, -1) if rows % n == 0)
    )


def _stage(last: Stage, loss: str, rows: int, logits: int, count: int, wafer: Wafer) -> Stage:
    place = last.region
    moving = place.cols - place.compute_cores // place.rows
    # More cores than the region has rows go on to the north, and to the south from the edge.
    first = max(0, place.row + place.rows - count)
    region = Region(first, max(place.col, place.col + moving - 1), count, 1, count)
    # A region is described by the cycles per sample of its busiest core.
    each = 1 / count if rows == 1 else ceil_div(rows, count)
    forward, backward = (each * cycles for cycles in loss_cycles(loss, logits, wafer))
    forward = max(forward, rows * logits / 2)
    return Stage(
        name=copy_name(LOSS, last.replica),
        family=FAMILIES[loss],
        layer=LOSS,
        kernels=(),
        region=region,
        forward_cycles=forward,
        backward_cycles=backward,
        update_cycles=0.0,
        forward_parts=_parts(loss, logits, each, forward, wafer),
        backward_parts=frozen(compute=backward),
        rows_per_sample=rows,
        barrier=False,
        in_flight=last.in_flight + (count - 1 if rows == 1 else 0),
        memory=CoreMemory(
            activations_bytes=FP16_BYTES * logits * ceil(each * last.in_flight),
            code_bytes=wafer.kernel_code_bytes,
        ),
        flops_per_sample=0,
        replica=last.replica,
        rotation=_rotation(loss, logits, count, wafer) if rows == 1 else 1,
    )


def _rotation(loss: str, logits: int, count: int, wafer: Wafer) -> int:
    """Return how many of `count` cores work at one time on samples of one row, whose words arrive one after the other."""
    return min(count, ceil(loss_cycles(loss, logits, wafer)[0] / (logits / 2)))


def _parts(loss: str, logits: int, each: float, forward: float, wafer: Wafer) -> Mapping[str, float]:
    """Return the parts of the `forward` cycles of a core that takes `each` rows per sample."""
    special = 0.0
    if loss == "cross entropy":
        special = each * (logits * wafer.exp_cycles + wafer.exp_cycles + wafer.divide_cycles)
    startup = each * STARTS[loss] * wafer.vector_start_cycles
    # Where the words of all rows bind, the cores wait.
    return frozen(compute=max(0.0, forward - special - startup), special=special, startup=startup)


def loss_rows(stage: Stage, plan: PipelinedPlan) -> tuple[str, int, float]:
    """Return the loss of a stage, its logits per row, and the rows of a core per sample.

    The rows follow from the cycles that send their gradients, which no constant of the wafer changes.
    """
    loss = next(name for name, family in FAMILIES.items() if family == stage.family)
    tensor = next(stream.tensor for stream in plan.streams if stream.consumer == stage.name)
    logits = int(plan.graph.tensors[tensor].shape[-1])
    return loss, logits, stage.backward_cycles / loss_cycles(loss, logits, plan.wafer)[1]


def loss_forward_cycles(stage: Stage, plan: PipelinedPlan, wafer: Wafer) -> float:
    """Return the forward cycles of the stage of a loss on another wafer."""
    loss, logits, each = loss_rows(stage, plan)
    return max(each * loss_cycles(loss, logits, wafer)[0], stage.rows_per_sample * logits / 2)


def repriced_loss(stage: Stage, plan: PipelinedPlan, wafer: Wafer) -> Stage:
    """Return the stage of a loss with the costs on `wafer`."""
    loss, logits, each = loss_rows(stage, plan)
    forward = loss_forward_cycles(stage, plan, wafer)
    one_row = stage.rows_per_sample == 1
    return dataclasses.replace(
        stage,
        forward_cycles=forward,
        forward_parts=_parts(loss, logits, each, forward, wafer),
        rotation=_rotation(loss, logits, stage.region.cores, wafer) if one_row else 1,
    )


def _between(leaving: Stream, last: Stage, stage: Stage, plan: PipelinedPlan) -> Stream:
    """Return the stream from the outputs to the loss and back: words fork on their route to the host.

    Like every stream it can buffer the samples in flight, as far as a link brings their words in the time of the way.
    """
    point = (stage.region.row, stage.region.col)
    start = (last.region.row + last.region.rows - 1, last.region.col + last.region.cols - 1)
    hops = abs(start[0] - point[0]) + abs(start[1] - point[1])
    way = last.latency_cycles + hops * plan.wafer.hop_cycles
    # Cores in rotation take samples as they come, until all of them work.
    pace = max(plan.pace_cycles, 0.0 if stage.rotation > 1 else stage.cycles_per_sample)
    held = way * leaving.width * BYTES_PER_WAVELET / (plan.wafer.wavelet_cycles * leaving.bytes_per_sample)
    on_way = int(min(ceil(way / pace), held))
    return dataclasses.replace(
        leaving,
        capacity_samples=2 + on_way,
        on_way_samples=on_way,
        consumer=stage.name,
        backward_bytes_per_sample=leaving.bytes_per_sample,
        route=(start, (start[0], point[1]), point),
        hops=hops,
        width=1,
    )
