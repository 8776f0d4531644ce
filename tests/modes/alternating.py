"""A made-up mode in one file: two pipelines on half a wafer each, which take samples alternately."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from wse_sim.compiler.flow import run_steps, step
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import areas_of, tracks_of
from wse_sim.modes.pipelined import Pipelined
from wse_sim.modes.pipelined.options import PipelinedOptions
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import plan_pipeline
from wse_sim.serialize import saved


@dataclass(frozen=True)
class AlternatingOptions:
    """Options that a user may set."""

    batch: int = 2
    seed: int = 0


@saved
@dataclass(frozen=True)
class AlternatingPlan:
    """The pipeline of the northern half; the southern one is its copy, `shift` rows further south."""

    graph: object
    wafer: object
    cluster: object
    batch: int
    half: PipelinedPlan
    shift: int
    notes: tuple[str, ...] = ("two halves take samples in turn",)
    mode: str = "alternating"

    @property
    def weights_rest(self) -> bool:
        """Both halves keep the weights."""
        return True


@step("half")
def plan_half(graph, system, options):
    """Plan a pipeline for half of the samples on the northern half."""
    wafer = system.wafer.derive(program_rows=system.wafer.program_rows // 2)
    batch = max(1, options.batch // 2)
    return plan_pipeline(graph, wafer, system.cluster, PipelinedOptions(batch=batch, seed=options.seed))


@step("plan")
def copy_south(graph, system, options, half):
    """Place the same pipeline on the southern half."""
    shift = half.wafer.program_rows
    return AlternatingPlan(half.graph, system.wafer, system.cluster, 2 * half.batch, half, shift)


class Alternating(Pipelined):
    """Two half-wafer pipelines."""

    name = "alternating"
    about = "two half-wafer pipelines take samples in turn"
    options = AlternatingOptions
    plan = AlternatingPlan
    steps = (plan_half, copy_south)

    def compile(self, graph, system, options):
        found = run_steps(self.steps, {"graph": graph, "system": system, "options": options})
        return found if isinstance(found, Infeasible) else found["plan"]

    def simulate(self, plan, options, *, trace):
        half = super().simulate(plan.half, options, trace=trace)
        copies = tuple(
            dataclasses.replace(
                use,
                name=f"{use.name}, south",
                region=dataclasses.replace(use.region, row=use.region.row + plan.shift),
            )
            for use in half.kernels
        )
        kernels = (*half.kernels, *copies)
        areas = areas_of(kernels)
        return dataclasses.replace(
            half, mode=self.name, plan=plan, batch=plan.batch, kernels=kernels, areas=areas, queues=(),
            samples_per_s=2 * half.samples_per_s, active_pe_fraction=2 * half.active_pe_fraction,
            flops_per_step=2 * half.flops_per_step, mfu=2 * half.mfu, tracks=tracks_of(half.timeline, areas),
            link_wavelets=half.link_wavelets + np.roll(half.link_wavelets, plan.shift, axis=0),
        )  # fmt: skip

    def describe(self, plan):
        return (("halves", f"2 of {plan.shift} rows"), *super().describe(plan.half))

    def scaled(self, plan, factors):
        return dataclasses.replace(plan, half=super().scaled(plan.half, factors))

    def repriced(self, plan, wafer, cluster):
        return dataclasses.replace(plan, half=super().repriced(plan.half, wafer, cluster))

    def quick_figures(self, plan):
        return {"samples_per_s": 2 * super().quick_figures(plan.half)["samples_per_s"]}

    def work(self, plan):
        return super().work(plan.half)
