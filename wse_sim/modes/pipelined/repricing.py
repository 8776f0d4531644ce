"""Repricing: the same regions and routes with other constants, new cycles of every stage, and no new
placement.

A region keeps its rectangle and its compute columns; another efficiency scales its time as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from wse_sim.compiler.block_recompute import NOTE, BlockRecompute, block_recompute
from wse_sim.compiler.plan import Stage
from wse_sim.compiler.pricing import Prices, parts_of
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.graph.optimizers import OPTIMIZERS, optimizer_of
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.pipelined.loss import repriced_loss
from wse_sim.modes.pipelined.plan import PipelinedPlan


def sizer_for(graph: KernelGraph, wafer: Wafer, again: BlockRecompute | None = None) -> Sizer:
    """Return the sizer of the stages of a graph; `again` are the kernels that run twice."""
    algorithm = (optimizer_of(graph) or OPTIMIZERS["sgd"]).name
    prices = Prices.shared(wafer, {"training": graph.training, "optimizer": algorithm})
    return Sizer(graph, wafer, prices, again=again)


def sizer_of(plan: PipelinedPlan, wafer: Wafer) -> Sizer:
    """Return the sizer that prices the stages of a plan on `wafer`."""
    return sizer_for(plan.graph, wafer, block_recompute(plan.graph) if NOTE in plan.notes else None)


def shape_of(stage: Stage) -> tuple[int, int]:
    """Return the rows and columns of compute cores for which a stage is priced."""
    rows = stage.region.rows
    return rows, max(1, stage.region.compute_cores // rows)


def reprice(plan: PipelinedPlan, wafer: Wafer, cluster: Cluster) -> PipelinedPlan:
    """Return the plan unchanged except for the costs on `wafer` and `cluster`, whose geometry must be that of
    the plan's own."""
    sizer = sizer_of(plan, wafer)
    groups = {group.name: group for group in sizer.groups}
    # Rounding to whole columns would change narrow regions by a third; a compiler with the new value would
    # re-place them.
    slower = 1.0 if sizer.columns.most_moving else plan.wafer.pipeline_efficiency / wafer.pipeline_efficiency
    stages = tuple(
        _stage(sizer, groups[stage.kernels[0]], stage, slower)
        if stage.kernels
        else repriced_loss(stage, plan, wafer)
        for stage in plan.stages
    )
    return dataclasses.replace(plan, wafer=wafer, cluster=cluster, stages=stages)


def _stage(sizer: Sizer, group: Group, stage: Stage, slower: float) -> Stage:
    rows, cols = shape_of(stage)
    forward, backward = sizer.stage_cost(group, rows, cols)
    fill, gradient_fill = sizer.latency_cycles(group, rows, cols)
    return dataclasses.replace(
        stage,
        forward_cycles=float(np.asarray(forward.total)) * slower,
        backward_cycles=float(np.asarray(backward.total)) * slower,
        update_cycles=float(sizer.update_cycles(group, rows, cols)) * slower,
        forward_parts=_times(parts_of(forward), slower),
        backward_parts=_times(parts_of(backward), slower),
        latency_cycles=fill,
        gradient_latency_cycles=gradient_fill,
    )


def _times(parts: Mapping[str, float], factor: float) -> Mapping[str, float]:
    return frozen({name: cycles * factor for name, cycles in parts.items()})
