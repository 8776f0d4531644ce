"""Generation: layers of a decoder on square or rectangular regions; tokens of requests pass through.

decoder.py   a decoder, read from its graph           grid.py    layout of a product on a grid
layer.py     cycles of one layer, layer_parts.py has the parts that programs measure
steps.py     the compiler's steps                 plan.py    their plan
joined_layer.py    the layer for several tokens at once, memory.py has the memory of a core
prompt_reading.py   a prompt in chunks                   line.py    the flow line in closed form
run.py       the schedule                         result.py  from a run to a result
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from wse_sim.compiler.flow import PlanStep
from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.engine.options import Options
from wse_sim.engine.result import Result
from wse_sim.engine.trace import RunTrace
from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.base import Layer, Placed, System, expect
from wse_sim.modes.generation.layer_parts import decoded_layer, joined_layer, prefilled_layer
from wse_sim.modes.generation.plan import RESTING, GenerationPlan
from wse_sim.modes.generation.result import collect
from wse_sim.modes.generation.run import GenerationRun
from wse_sim.options import GenerationChoice


class Generation:
    """Layers of a decoder on regions; requests alternate, one token each."""

    name = "generation"
    about = "layers of a decoder on regions; requests pass through token by token"
    competes = False
    is_offered = True
    weights_rest = True
    least_systems = 1
    counts = "token"
    options: type = GenerationChoice
    plan: type = GenerationPlan
    simulated_steps = 3

    @property
    def steps(self) -> Sequence[PlanStep]:
        """Return the steps of its compiler, imported on demand."""
        from wse_sim.modes.generation.steps import ATTEMPT, STEPS

        return *STEPS, *ATTEMPT

    def compile(self, graph: KernelGraph, system: System, options: object) -> GenerationPlan | Infeasible:
        """Choose the grid; split layers and cache over the regions."""
        from wse_sim.modes.generation.steps import plan_generation

        chosen = expect(options, GenerationChoice)
        return plan_generation(graph, system.wafer, system.cluster, system.systems, chosen)

    def simulate(self, plan: Plan, options: Options, *, trace: bool) -> Result:
        """Run a prompt and some tokens of every request."""
        plan = expect(plan, GenerationPlan)
        run = GenerationRun(plan, options, RunTrace(is_on=trace, unit_s=1.0))
        run.execute()
        return collect(run)

    def describe(self, plan: Plan) -> tuple[tuple[str, str], ...]:
        """Return regions, context and memory of a core for display."""
        plan = expect(plan, GenerationPlan)
        memory = plan.memory
        return (
            ("regions", _regions(plan)),
            ("context", f"{plan.context:,} tokens, prompt {plan.prompt:,}"),
            ("longest context", f"{plan.max_context:,} tokens per request in these regions"),
            ("", f"{plan.max_context_wafer:,} tokens if every core held cache"),
            ("reading a prompt", f"{plan.reading.chunk:,} tokens at a time, {plan.reading.way}"),
            ("cache", f"{plan.cache_bytes_per_token / 1e3:,.4g} kB per token"),
            (
                "memory of a core",
                f"{memory.total_bytes / 1e3:.1f} of {plan.wafer.sram_usable_bytes / 1e3:.1f} kB: weights "
                f"{memory.weights_bytes / 1e3:.1f}, cache {memory.activations_bytes / 1e3:.1f}, buffers "
                f"{memory.buffers_bytes / 1e3:.1f}, code {memory.code_bytes / 1e3:.1f}",
            ),
        )

    def scaled(self, plan: Plan, factors: Mapping[str, float]) -> GenerationPlan:
        """Return the plan with layer cycles scaled in "decode", "prefill" and a "chunk" of a prompt."""
        plan = expect(plan, GenerationPlan)
        decode, prefill = factors.get("decode", 1.0), factors.get("prefill", 1.0)
        read = factors.get("chunk", 1.0) if plan.reading.way == RESTING else prefill
        turns = tuple(
            dataclasses.replace(turn, layer_cycles=turn.layer_cycles * read) for turn in plan.reading.turns
        )
        return dataclasses.replace(
            plan,
            decode_cycles=plan.decode_cycles * decode,
            decode_parts=frozen({name: cycles * decode for name, cycles in plan.decode_parts.items()}),
            prefill_cycles=None if plan.prefill_cycles is None else plan.prefill_cycles * prefill,
            reading=dataclasses.replace(plan.reading, turns=turns),
        )

    def repriced(self, plan: Plan, wafer: Wafer, cluster: Cluster) -> GenerationPlan | Infeasible:
        """Return the plan with the same grid and regions, and new costs of layers and routes."""
        from wse_sim.modes.generation.steps import plan_generation

        plan = expect(plan, GenerationPlan)
        chosen = GenerationChoice(
            batch=plan.batch, prompt=plan.prompt, grid=plan.grid, grid_cols=plan.cols, groups=plan.groups,
            chunk=plan.reading.chunk,
        )  # fmt: skip
        return plan_generation(plan.graph, wafer, cluster, plan.systems, chosen)

    def quick_figures(self, plan: Plan) -> dict[str, float]:
        """Return the rates by the closed forms of the plan."""
        plan = expect(plan, GenerationPlan)
        token_s = max(plan.latency_s, plan.batch * plan.stage_s)
        return {
            "samples_per_s": plan.batch / token_s,
            "tokens_per_s": plan.batch / token_s,
            "tokens_per_s_per_user": 1.0 / token_s,
            "prefill_tokens_per_s": plan.prefill_tokens_per_s,
            "time_to_first_token_s": plan.first_token_s,
        }

    def work(self, plan: Plan) -> Iterator[Placed | Layer]:
        """Yield the layer for a token, for a prompt as one block, and for a chunk of it."""
        plan = expect(plan, GenerationPlan)
        yield decoded_layer(plan.layer, plan.context, plan.sides, plan.wafer, plan.groups)
        if plan.is_square:
            yield prefilled_layer(plan.layer, plan.prompt, plan.grid, plan.wafer)
        if plan.reading.way == RESTING:
            yield joined_layer(plan.layer, plan.reading.chunk, plan.sides, plan.wafer, plan.groups)


def _regions(plan: GenerationPlan) -> str:
    """Return the placement in one line of text."""
    layers = [item for item in plan.regions if item.layers]
    text = f"{len(layers)} of {plan.grid} x {plan.cols} cores, {plan.layers_per_region} layers each"
    apart = [item.region for item in plan.regions if not item.layers]
    return "; ".join([text, *(f"embedding and head on {at.rows} x {at.cols}" for at in apart)])
