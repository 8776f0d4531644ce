"""The pipelined mode over several systems: consecutive blocks on each wafer; activations travel from wafer to
wafer.

    options.py   options of the user
    steps.py     where the chain is cut, and every part as a separate pipeline
    plan.py      their plan; its `line` is the chain as one pipeline, with lines between systems as stages
    result.py    from the run of the line to a result

The schedule is that of the pipelined mode: regions of all wafers, and the lines between them, are processes
of one simulation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from wse_sim.compiler.flow import PlanStep
from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.engine.options import Options
from wse_sim.engine.result import Result
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.base import Layer, Placed, System, expect
from wse_sim.modes.pipelined import Pipelined
from wse_sim.modes.pipelined_systems.options import NAME, SystemsOptions
from wse_sim.modes.pipelined_systems.plan import PipelinedSystemsPlan
from wse_sim.modes.pipelined_systems.result import over_systems

ONE = Pipelined()


class PipelinedSystems:
    """Every kernel on its own region of one of several wafers."""

    name = NAME
    about = "every kernel stays on a region of one of several wafers; samples stream from wafer to wafer"
    competes = True
    is_offered = False
    weights_rest = True
    least_systems = 2
    counts = "sample"
    options: type = SystemsOptions
    plan: type = PipelinedSystemsPlan
    simulated_steps = 2

    @property
    def steps(self) -> Sequence[PlanStep]:
        """Return the steps of its compiler, imported on demand."""
        from wse_sim.modes.pipelined_systems.steps import STEPS

        return STEPS

    def compile(
        self, graph: KernelGraph, system: System, options: object
    ) -> PipelinedSystemsPlan | Infeasible:
        """Cut the chain, then size, place and route every part."""
        from wse_sim.modes.pipelined_systems.steps import plan_chain

        return plan_chain(graph, system, expect(options, SystemsOptions))

    def simulate(self, plan: Plan, options: Options, *, trace: bool) -> Result:
        """Run batches through the regions of all wafers."""
        plan = expect(plan, PipelinedSystemsPlan)
        return over_systems(plan, ONE.simulate(plan.line, options, trace=trace))

    def describe(self, plan: Plan) -> tuple[tuple[str, str], ...]:
        """Return the wafers in use, each with its blocks, its pace and the bytes that continue to the next
        one."""
        plan = expect(plan, PipelinedSystemsPlan)
        facts = [("systems in use", f"{len(plan.parts)} of {plan.systems}")]
        for number, part in enumerate(plan.parts):
            first, last = part.stages[0].name, part.stages[-1].name
            text = (
                f"{len(part.stages)} regions, {first} to {last}, {part.sample_cycles:,.0f} cycles per sample"
            )
            if number < len(plan.cuts):
                text += f", {plan.cuts[number].bytes_per_sample / 1e3:,.4g} kB per sample continue"
            facts.append((f"system {number + 1}", text))
        return (*facts, ("samples in flight", str(plan.line.in_flight)))

    def scaled(self, plan: Plan, factors: Mapping[str, float]) -> PipelinedSystemsPlan:
        """Return the plan with scaled cycles of the named stages."""
        plan = expect(plan, PipelinedSystemsPlan)
        return dataclasses.replace(plan, parts=tuple(ONE.scaled(part, factors) for part in plan.parts))

    def repriced(self, plan: Plan, wafer: Wafer, cluster: Cluster) -> PipelinedSystemsPlan:
        """Return the plan with the same cuts, regions and routes, and new cycles of stages and lines."""
        plan = expect(plan, PipelinedSystemsPlan)
        parts = tuple(ONE.repriced(part, wafer, cluster) for part in plan.parts)
        return dataclasses.replace(plan, wafer=wafer, cluster=cluster, parts=parts)

    def quick_figures(self, plan: Plan) -> dict[str, float]:
        """Return the steady rate: the slowest stage, link or line, at most what the host sends."""
        return ONE.quick_figures(expect(plan, PipelinedSystemsPlan).line)

    def work(self, plan: Plan) -> Iterator[Placed | Layer]:
        """Yield the kernels of all stages on all wafers."""
        for part in expect(plan, PipelinedSystemsPlan).parts:
            yield from ONE.work(part)
