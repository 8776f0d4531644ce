"""Weight streaming: one kernel at a time on the whole wafer, weights stream in.

options.py     options of the user          steps.py   the compiler's steps
plan.py        their plan                   micro_batch.py  the samples per pass
memory.py      memory of a micro-batch      work.py    the kernels in order
run.py         the schedule                 memoryx.py, swarmx.py  the cluster around the wafer
links.py       traffic                      result.py  from a run to a result
recurrence.py  the schedule without events, for ratios      rectangle.py  a part of the wafer
plan_draws.py       a plan for many draws of the constants in one pass
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from wse_sim.compiler.flow import PlanStep
from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.compiler.pricing import Prices
from wse_sim.engine.host import InputPath, input_path
from wse_sim.engine.options import Options
from wse_sim.engine.result import Result
from wse_sim.engine.trace import RunTrace
from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer
from wse_sim.kernels import Tiling
from wse_sim.modes.base import Layer, Placed, System, expect
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import StreamedPhase, WeightStreamingPlan, on_rectangle
from wse_sim.modes.weight_streaming.result import collect
from wse_sim.modes.weight_streaming.run import StreamingRun
from wse_sim.modes.weight_streaming.work import with_recompute


class WeightStreaming:
    """One kernel at a time on all cores; weights come from MemoryX."""

    name = "weight-streaming"
    about = "one kernel at a time on the whole wafer; weights stream in from MemoryX"
    competes = True
    is_offered = True
    weights_rest = False
    least_systems = 1
    counts = "sample"
    options: type = StreamingChoice
    plan: type = WeightStreamingPlan
    simulated_steps = 3

    @property
    def steps(self) -> Sequence[PlanStep]:
        """Return the steps of its compiler, imported on demand."""
        from wse_sim.modes.weight_streaming.steps import ATTEMPT, STEPS

        return *STEPS, *ATTEMPT

    def compile(
        self, graph: KernelGraph, system: System, options: object
    ) -> WeightStreamingPlan | Infeasible:
        """Choose micro-batch, lanes, recomputation and spill."""
        from wse_sim.modes.weight_streaming.steps import plan_streaming

        choice = expect(options, StreamingChoice)
        return plan_streaming(graph, system.wafer, system.cluster, system.systems, choice)

    def simulate(self, plan: Plan, options: Options, *, trace: bool) -> Result:
        """Run the phases of some steps."""
        plan = expect(plan, WeightStreamingPlan)
        path = _path(plan, plan.cluster, plan.wafer)
        log = RunTrace(is_on=trace, unit_s=1.0)
        run = StreamingRun(plan, options, path, log)  # build: MemoryX, SwarmX, host, wafer
        run.execute()  # run: each of them is a process
        free = run
        if run.waited_for_input:
            free = StreamingRun(plan, options, None, log.off())
            free.execute()
        return collect(run, free, path)

    def describe(self, plan: Plan) -> tuple[tuple[str, str], ...]:
        """Return micro-batch, lanes, recomputation and spilled bytes for display."""
        plan = expect(plan, WeightStreamingPlan)
        return (
            ("micro-batch", f"{plan.micro_batch} x {plan.micro_batches}"),
            ("lanes", str(plan.lanes)),
            ("recomputation", plan.recompute),
            ("weight density", f"{plan.weight_density:.3g}"),
            ("activations spilled", f"{plan.spilled_bytes / 1e9:.4g} GB"),
        )

    def scaled(self, plan: Plan, factors: Mapping[str, float]) -> WeightStreamingPlan:
        """Return the plan with scaled cycles of the named phases."""
        plan = expect(plan, WeightStreamingPlan)
        phases = tuple(_scaled(phase, factors.get(phase.name, 1.0)) for phase in plan.phases)
        return dataclasses.replace(plan, phases=phases)

    def repriced(self, plan: Plan, wafer: Wafer, cluster: Cluster) -> WeightStreamingPlan | Infeasible:
        """Return the plan with the same micro-batch, lanes, recomputation and rectangle, and new phases."""
        return _planned_again(expect(plan, WeightStreamingPlan), wafer, cluster)

    def with_batch(self, plan: Plan, batch: int) -> WeightStreamingPlan | Infeasible:
        """Return the faster of two plans: with the same micro-batch, or with one scaled by the ratio of the
        batches."""
        plan = expect(plan, WeightStreamingPlan)
        same = _planned_again(plan, plan.wafer, plan.cluster, batch=batch)
        larger = max(1, plan.micro_batch * batch // plan.batch)
        scaled = _planned_again(plan, plan.wafer, plan.cluster, batch=batch, micro_batch=larger)
        fits = [one for one in (same, scaled) if isinstance(one, WeightStreamingPlan)]
        return max(fits, key=lambda one: self.quick_figures(one)["samples_per_s"]) if fits else same

    def quick_figures(self, plan: Plan) -> dict[str, float]:
        """Return the rates by the recurrence of the schedule."""
        from wse_sim.modes.weight_streaming.recurrence import step_seconds

        plan = expect(plan, WeightStreamingPlan)
        path = _path(plan, plan.cluster, plan.wafer)
        return {"samples_per_s": plan.batch / step_seconds(plan, path, self.simulated_steps)}

    def drawn_figures(
        self, plan: Plan, machines: Sequence[tuple[Wafer, Cluster]]
    ) -> Sequence[Mapping[str, float]] | None:
        """Return `quick_figures` of the plan on every machine in one pass; None for a derived mode with other
        costs."""
        own = type(self)
        if (
            own.repriced is not WeightStreaming.repriced
            or own.quick_figures is not WeightStreaming.quick_figures
        ):
            return None
        from wse_sim.modes.weight_streaming.plan_draws import rates

        plan = expect(plan, WeightStreamingPlan)
        machines = [(on_rectangle(wafer, plan.rectangle), cluster) for wafer, cluster in machines]
        found = rates(plan, machines, functools.partial(_path, plan), self.simulated_steps)
        return [{} if rate is None else {"samples_per_s": rate} for rate in found]

    def work(self, plan: Plan) -> Iterator[Placed | Layer]:
        """Yield the kernels of all phases."""
        plan = expect(plan, WeightStreamingPlan)
        rows, cols = plan.used.program_rows, plan.used.program_cols
        tiling = Tiling(rows, cols, "streamed", lanes=plan.lanes)
        prices = Prices(plan.wafer)
        work = with_recompute(plan.graph, plan.recompute)
        for phase, item in zip(plan.phases, work, strict=True):
            cost = prices.cost(item.kernel, rows, cols, "streamed", plan.lanes)
            fill, whole = float(np.asarray(cost.idle)), float(np.asarray(cost.total))
            scale = (phase.compute_cycles - fill) / (whole - fill) if whole > fill else 1.0
            yield Placed(phase.name, item.kernel, tiling, phase.compute_cycles, fill, scale)


def _planned_again(
    plan: WeightStreamingPlan,
    wafer: Wafer,
    cluster: Cluster,
    *,
    batch: int | None = None,
    micro_batch: int | None = None,
) -> WeightStreamingPlan | Infeasible:
    """Return the plan for another machine or batch; choices that are not given stay the same."""
    from wse_sim.modes.weight_streaming.rectangle import rectangle_of
    from wse_sim.modes.weight_streaming.steps import plan_streaming

    choice = StreamingChoice(
        batch=batch or plan.batch,
        micro_batch=micro_batch or plan.micro_batch,
        lanes=plan.lanes,
        recompute=plan.recompute,  # type: ignore[arg-type]  # as it was chosen
        density=plan.weight_density,
        rectangle=rectangle_of(plan),
    )
    return plan_streaming(plan.graph, wafer, cluster, plan.systems, choice)


def _path(plan: WeightStreamingPlan, cluster: Cluster, wafer: Wafer) -> InputPath:
    return input_path(
        cluster,
        sample_bytes=plan.graph.input_bytes / plan.graph.samples,
        result_bytes=plan.result_bytes_per_sample,
        io_bytes_per_s=min(wafer.io_bytes_per_s, cluster.activation_server_bytes_per_s),
    )


def _scaled(phase: StreamedPhase, factor: float) -> StreamedPhase:
    if factor == 1.0:
        return phase
    return dataclasses.replace(
        phase,
        compute_cycles=phase.compute_cycles * factor,
        parts=frozen({name: cycles * factor for name, cycles in phase.parts.items()}),
    )
