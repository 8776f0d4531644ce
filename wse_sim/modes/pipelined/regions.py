"""Stages on their rectangles: times, memory, and samples in flight.

Sizing reserves memory for the samples between the two passes of a stage at the steady pace, with one period
per barrier (:func:`wse_sim.compiler.sizing.samples_in_flight`). If fill and travel are long compared with the
pace, a sample is in flight for longer, and that room would limit the pace. So the remaining SRAM of a region
takes more samples (:func:`deepened`)::

    F = ceil(hold / T) + 3,  at most the samples of a batch and what fits,  at least the result of sizing

with hold and T of :mod:`wse_sim.modes.pipelined.estimate`; the 3 are for passes that wait for those of the
other direction in their region, which a single sample does not do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from math import ceil

import numpy as np

from wse_sim.compiler.plan import CoreMemory, Region, Stage
from wse_sim.compiler.pricing import parts_of
from wse_sim.compiler.shelves import Box
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.compiler.streams import copy_name
from wse_sim.graph.kernel_graph import frozen
from wse_sim.modes.pipelined.estimate import LoneSample

WAITING = 3  # samples that wait for passes of the other direction; more gain nothing in simulated pipelines


class StageMaker:
    """Creates stages from boxes; equal stages on equal boxes are priced once."""

    def __init__(self, sizer: Sizer) -> None:
        self.sizer = sizer
        self._known: dict[tuple[Hashable, int, int, int], Stage] = {}

    def stages(self, boxes: Sequence[Box], replicas: int = 1) -> tuple[Stage, ...]:
        """Return the stages of the first `replicas` copies of the model, in dataflow order, copy by copy."""
        groups = self.sizer.groups
        return tuple(
            self.stage(group, box, copy)
            for copy in range(replicas)
            for group, box in zip(groups, boxes[copy * len(groups) : (copy + 1) * len(groups)], strict=True)
        )

    def stage(self, group: Group, box: Box, replica: int) -> Stage:
        """Return one stage on its box."""
        key = (self.sizer.kind(group), box.rows * box.cols, box.compute_rows, box.compute_cols)
        like = self._known.get(key)
        if like is None:
            like = self._known[key] = self._priced(group, box)
        return dataclasses.replace(
            like,
            name=copy_name(group.name, replica),
            layer=group.forward.layer,
            kernels=tuple(kernel.name for kernel in group.kernels),
            region=Region(box.row, box.col, box.rows, box.cols, box.compute_rows * box.compute_cols),
            in_flight=self.sizer.in_flight[group.name],
            replica=replica,
        )

    def _priced(self, group: Group, box: Box) -> Stage:
        sizer = self.sizer
        rows, cols = box.compute_rows, box.compute_cols
        forward, backward = sizer.stage_cost(group, rows, cols)
        fill, gradient_fill = sizer.latency_cycles(group, rows, cols)
        print_ = sizer.prices.footprint(group.forward, group.rows_of_inputs(rows), cols, "stationary")
        region = Region(box.row, box.col, box.rows, box.cols, rows * cols)
        memory = CoreMemory(
            weights_bytes=float(np.asarray(print_.weights_bytes)),
            activations_bytes=float(np.asarray(print_.activations_bytes))
            + sizer.activation_bytes(group) / region.cores,
            buffers_bytes=float(np.asarray(print_.buffers_bytes))
            + max(
                0.0, float(np.asarray(group.moving_bytes(rows, cols))) - float(np.asarray(print_.total_bytes))
            ),
            code_bytes=float(np.asarray(print_.code_bytes)),
            streams_bytes=sizer.stream_bytes(group) / region.cores,
        )
        return Stage(
            name=group.name,
            family=group.forward.family,
            layer=group.forward.layer,
            kernels=(),
            region=region,
            forward_cycles=float(np.asarray(forward.total)),
            backward_cycles=float(np.asarray(backward.total)),
            update_cycles=float(sizer.update_cycles(group, rows, cols)),
            forward_parts=frozen(parts_of(forward)),
            backward_parts=frozen(parts_of(backward)),
            rows_per_sample=sizer.rows_of_core(group, rows, cols),
            parallel=group.flow.parallel and sizer.graph.training,
            barrier=group.is_barrier,
            in_flight=0,
            memory=memory,
            flops_per_sample=sum(kernel.flops for kernel in group.kernels),
            latency_cycles=fill,
            gradient_latency_cycles=gradient_fill,
        )


def deepened(
    sizer: Sizer, stages: Sequence[Stage], lone: LoneSample, sample_cycles: float, samples: int
) -> tuple[Stage, ...]:
    """Return the stages with room for the samples that keep the pace `sample_cycles`, as far as SRAM allows.

    `stages` are those of all copies, `samples` of a batch are on each.
    """
    if not sizer.graph.training:
        return tuple(stages)
    limit = float(sizer.wafer.sram_usable_bytes)
    out = []
    for position, stage in enumerate(stages):
        group = sizer.groups[position % len(sizer.groups)]
        wanted = min(samples, ceil(lone.hold_cycles(stage.name) / sample_cycles) + WAITING) - stage.in_flight
        each = sizer.sample_bytes(group) / stage.region.cores
        if wanted > 0 and each > 0:
            wanted = min(wanted, int((limit - stage.memory.total_bytes) / each))
        if wanted <= 0:
            out.append(stage)
            continue
        held = stage.memory.activations_bytes + wanted * each
        out.append(
            dataclasses.replace(
                stage,
                in_flight=stage.in_flight + wanted,
                memory=dataclasses.replace(stage.memory, activations_bytes=held),
            )
        )
    return tuple(out)
