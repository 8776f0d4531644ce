"""The rate of a plan for many draws of the constants in one pass.

A wafer whose drawn constants are arrays (one element per draw) goes through the closed forms once per kind
and shape of stage. Regions and routes stay the same. The rates equal those of `repriced` and `quick_figures`,
bit by bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.compiler.wafer_batch import DrawnWafers, FloatArray
from wse_sim.engine.host import InputPath
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.pipelined.loss import loss_forward_cycles
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.repricing import shape_of, sizer_of


def rates(
    plan: PipelinedPlan,
    machines: Sequence[tuple[Wafer, Cluster]],
    path_of: Callable[[PipelinedPlan], InputPath],
) -> list[float]:
    """Return the samples per second of the plan on each machine; all wafers must have the geometry of the
    plan's."""
    wafers = DrawnWafers.of([wafer for wafer, _ in machines])
    pace = _pace(plan, wafers)
    found = []
    for number, (wafer, cluster) in enumerate(machines):
        on = dataclasses.replace(plan, wafer=wafer, cluster=cluster)
        rate = plan.replicas * wafer.clock_hz / max(float(pace[number]), on.link_cycles)
        found.append(min(rate, path_of(on).samples_per_s))
    return found


def _pace(plan: PipelinedPlan, wafers: DrawnWafers) -> FloatArray:
    """Return the cycles per sample of the slowest stage, (draws,)."""
    own = sizer_of(plan, plan.wafer)
    groups = {group.name: group for group in own.groups}
    sizers: dict[int, tuple[Sizer, dict[str, Group]]] = {}
    efficiencies = np.array([wafer.pipeline_efficiency for wafer in wafers.each])
    slower = (
        np.ones(len(efficiencies))
        if own.columns.most_moving
        else plan.wafer.pipeline_efficiency / efficiencies
    )
    slowest = np.zeros(len(wafers.each))
    known: set[Hashable] = set()
    for stage in plan.stages:
        if not stage.kernels:  # a loss that the compiler added

            def forward(wafer: Wafer, stage: Stage = stage) -> Mapping[str, object]:
                return {"forward": loss_forward_cycles(stage, plan, wafer)}

            slowest = np.maximum(slowest, wafers.price(forward)["forward"] + stage.backward_cycles)
            continue
        rows, cols = shape_of(stage)
        kind = own.kind(groups[stage.kernels[0]]), rows, cols
        if kind in known:
            continue
        known.add(kind)

        def cycles(
            wafer: Wafer, stage: Stage = stage, rows: int = rows, cols: int = cols
        ) -> Mapping[str, object]:
            if id(wafer) not in sizers:
                on = own.priced_on(wafer)
                sizers[id(wafer)] = on, {group.name: group for group in on.groups}
            sizer, of = sizers[id(wafer)]
            forward, backward = sizer.stage_cost(of[stage.kernels[0]], rows, cols)
            return {"forward": forward.total, "backward": backward.total}

        priced = wafers.price(cycles)
        slowest = np.maximum(slowest, priced["forward"] * slower + priced["backward"] * slower)
    return slowest
