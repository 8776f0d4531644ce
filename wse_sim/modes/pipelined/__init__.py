"""The pipelined mode: every kernel owns a region, samples stream through.

options.py   options of the user       steps.py    the compiler's steps
plan.py      their plan
run.py       the schedule              region.py   one region of it
links.py     traffic and queues        result.py   from a run to a result
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from wse_sim.compiler.flow import PlanStep
from wse_sim.compiler.plan import Infeasible, Plan, Stage
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.scores import works_out_again
from wse_sim.engine.host import InputPath, input_path
from wse_sim.engine.options import Options
from wse_sim.engine.result import Result
from wse_sim.engine.trace import RunTrace
from wse_sim.graph import KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer
from wse_sim.kernels import Tiling
from wse_sim.modes.base import Layer, Placed, System, expect
from wse_sim.modes.pipelined.links import busiest_link_s
from wse_sim.modes.pipelined.options import PipelinedOptions
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.repricing import reprice
from wse_sim.modes.pipelined.result import collect
from wse_sim.modes.pipelined.run import PipelinedRun


class Pipelined:
    """Every kernel on its own region of one wafer."""

    name = "pipelined"
    about = "every kernel stays on a region of one wafer; samples stream through"
    competes = True
    is_offered = True
    weights_rest = True
    least_systems = 1
    counts = "sample"
    options: type = PipelinedOptions
    plan: type = PipelinedPlan
    simulated_steps = 2

    @property
    def steps(self) -> Sequence[PlanStep]:
        """Return the steps of its compiler, imported on demand."""
        from wse_sim.modes.pipelined.steps import ATTEMPT, STEPS

        return *STEPS, *ATTEMPT

    def compile(self, graph: KernelGraph, system: System, options: object) -> PipelinedPlan | Infeasible:
        """Size, place and route the kernels."""
        from wse_sim.modes.pipelined.steps import plan_pipeline

        if system.systems != 1:
            return Infeasible(
                mode=self.name,
                model=graph.name,
                binding="systems",
                need=float(system.systems),
                limit=1.0,
                unit="systems",
                where="a pipeline",
                remedy="this mode uses one wafer; use pipelined-systems or weight streaming for several",
            )
        return plan_pipeline(graph, system.wafer, system.cluster, expect(options, PipelinedOptions))

    def simulate(self, plan: Plan, options: Options, *, trace: bool) -> Result:
        """Run batches through the regions."""
        plan = expect(plan, PipelinedPlan)
        path = _host(plan)
        log = RunTrace(is_on=trace, unit_s=1.0 / plan.wafer.clock_hz)
        run = PipelinedRun(plan, options, path, log)  # build: regions, streams, host
        run.execute()  # run: every region is a process
        free = run
        if run.waited_for_input:  # the rate of the wafer alone needs a separate run
            free = PipelinedRun(plan, options, None, log.off())
            free.execute()
        return collect(run, free, path)

    def describe(self, plan: Plan) -> tuple[tuple[str, str], ...]:
        """Return regions, replicas, samples in flight, and the limit of sizing for display."""
        plan = expect(plan, PipelinedPlan)
        return (
            ("regions", str(len(plan.stages))),
            ("replicas", str(plan.replicas)),
            ("samples in flight", str(plan.in_flight)),
            ("sizing ran into", plan.binding),
        )

    def scaled(self, plan: Plan, factors: Mapping[str, float]) -> PipelinedPlan:
        """Return the plan with scaled cycles of the named stages."""
        plan = expect(plan, PipelinedPlan)
        stages = tuple(_scaled(stage, factors.get(stage.name, 1.0)) for stage in plan.stages)
        return dataclasses.replace(plan, stages=stages)

    def repriced(self, plan: Plan, wafer: Wafer, cluster: Cluster) -> PipelinedPlan:
        """Return the plan with the same regions and routes, and new cycles of every stage."""
        return reprice(expect(plan, PipelinedPlan), wafer, cluster)

    def quick_figures(self, plan: Plan) -> dict[str, float]:
        """Return the steady rate: the slowest stage or link of every replica, at most what the host sends."""
        plan = expect(plan, PipelinedPlan)
        rate = plan.replicas * plan.wafer.clock_hz / plan.sample_cycles
        return {"samples_per_s": min(rate, _host(plan).samples_per_s)}

    def drawn_figures(
        self, plan: Plan, machines: Sequence[tuple[Wafer, Cluster]]
    ) -> Sequence[Mapping[str, float]] | None:
        """Return `quick_figures` of the plan on every machine in one pass; None for a derived mode with other
        costs."""
        own = type(self)
        if own.repriced is not Pipelined.repriced or own.quick_figures is not Pipelined.quick_figures:
            return None
        from wse_sim.modes.pipelined.rate_draws import rates

        found = rates(expect(plan, PipelinedPlan), machines, _host)
        return [{"samples_per_s": rate} for rate in found]

    def work(self, plan: Plan) -> Iterator[Placed | Layer]:
        """Yield the kernels of all stages, except updates, which run once per batch, and a loss without a kernel."""
        plan = expect(plan, PipelinedPlan)
        prices = Prices(plan.wafer)
        for stage in plan.stages:
            if not stage.kernels:  # a loss that the compiler added
                continue
            rows = stage.region.rows
            cols = max(1, stage.region.compute_cores // rows)
            tiling = Tiling(rows, cols, "stationary")
            kernels = [plan.graph.kernel(name) for name in stage.kernels]
            forward = next(kernel for kernel in kernels if kernel.phase is Phase.FORWARD)
            for kernel in kernels:
                if kernel.phase is Phase.UPDATE:
                    continue
                cost = prices.cost(kernel, rows, cols, "stationary")
                again = forward if works_out_again(kernel) else None
                cycles = float(np.asarray(cost.total - cost.idle))
                if again is not None:
                    cycles += float(np.asarray(prices.cost(forward, rows, cols, "stationary").special))
                yield Placed(stage.name, kernel, tiling, cycles, 0.0, again=again)


def _host(plan: PipelinedPlan) -> InputPath:
    """Return the input path from the input workers to the first stage."""
    return input_path(
        plan.cluster,
        sample_bytes=plan.input_bytes_per_sample,
        result_bytes=plan.result_bytes_per_sample,
        io_bytes_per_s=plan.wafer.io_bytes_per_s,
        link_s=busiest_link_s(plan),
        min_workers=plan.replicas,
    )


def _scaled(stage: Stage, factor: float) -> Stage:
    if factor == 1.0:
        return stage
    return dataclasses.replace(
        stage,
        forward_cycles=stage.forward_cycles * factor,
        backward_cycles=stage.backward_cycles * factor,
        forward_parts=frozen({name: cycles * factor for name, cycles in stage.forward_parts.items()}),
        backward_parts=frozen({name: cycles * factor for name, cycles in stage.backward_parts.items()}),
    )
