"""The same regions and routes with other constants: the cycles of every stage anew, nothing placed again.

A region keeps its rectangle; of its columns as many compute as the share of cores that move data leaves.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from wse_sim.compiler.block_recompute import NOTE, block_recompute
from wse_sim.compiler.plan import Stage
from wse_sim.compiler.pricing import Prices, parts_of
from wse_sim.compiler.shelves import compute_cols
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.graph.kernel_graph import frozen
from wse_sim.graph.optimizers import OPTIMIZERS, optimizer_of
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan


def reprice(plan: PipelinedPlan, wafer: Wafer, cluster: Cluster) -> PipelinedPlan:
    """The plan as it stands, on `wafer` and `cluster`: their geometry must be that of the plan's own."""
    graph = plan.graph
    algorithm = (optimizer_of(graph) or OPTIMIZERS["sgd"]).name
    again = block_recompute(graph) if NOTE in plan.notes else None
    sizer = Sizer(
        graph, wafer, Prices(wafer, {"training": graph.training, "optimizer": algorithm}), again=again
    )
    groups = {group.name: group for group in sizer.groups}
    shares = plan.wafer.transmission_core_share, wafer.transmission_core_share
    stages = tuple(_stage(sizer, groups[stage.kernels[0]], stage, shares) for stage in plan.stages)
    return dataclasses.replace(plan, wafer=wafer, cluster=cluster, stages=stages)


def _stage(sizer: Sizer, group: Group, stage: Stage, shares: tuple[float, float]) -> Stage:
    rows, region = stage.region.rows, stage.region
    cols = max(1, region.compute_cores // rows)
    before, now = (int(compute_cols(region.cols, share)) for share in shares)
    cols = max(1, cols + now - before)
    forward, backward = sizer.stage_cost(group, rows, cols)
    return dataclasses.replace(
        stage,
        region=dataclasses.replace(region, compute_cores=rows * cols),
        forward_cycles=float(np.asarray(forward.total)),
        backward_cycles=float(np.asarray(backward.total)),
        update_cycles=sizer.update_cycles(group, rows, cols),
        forward_parts=frozen(parts_of(forward)),
        backward_parts=frozen(parts_of(backward)),
        latency_cycles=sizer.latency_cycles(group, rows, cols),
    )
