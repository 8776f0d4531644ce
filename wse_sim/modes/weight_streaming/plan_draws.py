"""A plan priced for many draws of the constants in one pass.

A wafer whose drawn constants are arrays (one element per draw) goes through the closed forms once per kernel
signature. A form that compares constants in Python does not accept arrays and is evaluated draw by draw.
Micro-batch, lanes and recomputation stay the same; whether the model still fits, and what spills, is decided
per draw, as in :meth:`WeightStreaming.repriced`. The figures equal those of `repriced` and `quick_figures`,
bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import CoreMemory
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.wafer_batch import DrawnWafers
from wse_sim.engine.host import InputPath
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.blocks import block_numbers
from wse_sim.graph.optimizers import optimizer_of, stored_bytes
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.weight_streaming.graph_facts import (
    Fact,
    ahead_bytes,
    bytes_spilled,
    facts_of,
    graph_kept,
    need_of,
    way_cycles,
    work_of,
)
from wse_sim.modes.weight_streaming.memory import spilled_by_block
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.recurrence import PhaseColumns, step_seconds

FloatArray = NDArray[np.float64]


def rates(
    plan: WeightStreamingPlan,
    machines: Sequence[tuple[Wafer, Cluster]],
    path_of: Callable[[Cluster, Wafer], InputPath],
    simulated_steps: int,
) -> list[float | None]:
    """Return the samples per second of the plan on each machine; None where it does not fit.

    All wafers have the geometry of the plan's.
    """
    wafers = DrawnWafers.of([wafer for wafer, _ in machines])
    graph = plan.graph
    cycles, fixed = _compute_cycles(plan, wafers), _fixed_memory(plan, wafers)
    kept = graph_kept(graph, plan.recompute)
    facts = facts_of(kept, plan.recompute)
    is_gradient = np.array([phase.phase is Phase.WEIGHT_GRADIENT for phase in plan.phases])
    has_words = np.array([fact.elements > 0 for fact in facts])
    products = np.array([float(fact.matmul_phases) for fact in facts])
    columns = PhaseColumns.of(plan)
    found: list[float | None] = []
    for number, (wafer, cluster) in enumerate(machines):
        spilled = _spilled(plan, wafer, cluster, fixed(number))
        if spilled is None:
            found.append(None)
            continue
        ways = [way_cycles(wafer, plan.lanes, is_gradient=way) for way in (False, True)]
        drawn = columns.changed(
            compute_cycles=cycles[:, number],
            floor_s=wafer.launch_floor_s * products,
            way_cycles=np.where(has_words, np.where(is_gradient, ways[1], ways[0]), 0.0),
            ahead_bytes=ahead_column(facts, wafer, plan.lanes),
            spill_bytes=spill_column(kept, facts, spilled),
        )
        seconds = step_seconds(plan, path_of(cluster, wafer), simulated_steps, drawn, wafer, cluster)
        found.append(plan.batch / seconds)
    return found


def _compute_cycles(plan: WeightStreamingPlan, wafers: DrawnWafers) -> FloatArray:
    """Return the cycles of every phase, (phases, draws)."""
    graph = graph_kept(plan.graph, plan.recompute)
    rows, cols = plan.used.program_rows, plan.used.program_cols
    known: dict[object, FloatArray] = {}
    found = np.empty((len(plan.phases), len(wafers.each)))
    prices: dict[int, Prices] = {}
    options = {"training": plan.graph.training}
    for i, fact in enumerate(facts_of(graph, plan.recompute)):
        kernel = fact.item.kernel
        thinned = is_thinned(plan, fact)
        key = (kernel.signature, thinned)
        if key not in known:

            def parts(wafer: Wafer, kernel: Kernel = kernel) -> Mapping[str, object]:
                made = prices.setdefault(id(wafer), Prices(wafer, options))
                return made.cost(kernel, rows, cols, "streamed", plan.lanes).parts()

            priced = wafers.price(parts)
            if thinned:
                priced["compute"] = priced["compute"] * plan.weight_density
            known[key] = sum(priced.values(), np.zeros(len(wafers.each)))
        found[i] = known[key]
    return found


def is_thinned(plan: WeightStreamingPlan, fact: Fact) -> bool:
    """Return whether zero weights of a phase cost no cycles because they are not sent."""
    kernel = fact.item.kernel
    is_gradient = kernel.phase is Phase.WEIGHT_GRADIENT
    return plan.weight_density < 1 and fact.skips_zero_weights and not is_gradient and bool(kernel.parameters)


def _fixed_memory(plan: WeightStreamingPlan, wafers: DrawnWafers) -> Callable[[int], CoreMemory]:
    """Return a function from the number of a draw to the memory of a core for weights, buffers and code."""
    rows, cols = plan.used.program_rows, plan.used.program_cols
    options = {"training": plan.graph.training}
    prices: dict[int, Prices] = {}
    largest = {name: np.zeros(len(wafers.each)) for name in ("weights_bytes", "buffers_bytes", "code_bytes")}
    seen: set[object] = set()
    for item in work_of(plan.graph, "none"):
        if item.kernel.signature in seen:
            continue
        seen.add(item.kernel.signature)

        def parts(wafer: Wafer, kernel: Kernel = item.kernel) -> Mapping[str, object]:
            made = prices.setdefault(id(wafer), Prices(wafer, options))
            print_ = made.footprint(kernel, rows, cols, "streamed", plan.lanes)
            return {name: getattr(print_, name) for name in largest}

        for name, sizes in wafers.price(parts).items():
            largest[name] = np.maximum(largest[name], sizes)
    return lambda number: CoreMemory(
        float(largest["weights_bytes"][number]),
        0.0,
        float(largest["buffers_bytes"][number]),
        float(largest["code_bytes"][number]),
    )


def _spilled(plan: WeightStreamingPlan, wafer: Wafer, cluster: Cluster, fixed: CoreMemory) -> float | None:
    """Return the bytes that are spilled on this machine; None if the model does not fit."""
    capacity = max(0.0, wafer.program_cores * (wafer.sram_usable_bytes - fixed.total_bytes))
    if need_of(plan.graph).largest_kernel > capacity:
        return None
    if cluster.memoryx_bytes != plan.cluster.memoryx_bytes:
        optimizer = optimizer_of(plan.graph)
        state = stored_bytes(plan.graph, 4 if optimizer is None else optimizer.server_bytes, frozen=4)
        if state > cluster.memoryx_bytes:
            return None
    graph = graph_kept(plan.graph, plan.recompute)
    need = need_of(graph)
    resident = need.block_inputs if plan.recompute == "full" else need.kept
    spilled = bytes_spilled(resident, need, capacity)
    return None if spilled > cluster.activation_server_bytes else spilled


def spill_column(graph: KernelGraph, facts: Sequence[Fact], spilled: float) -> FloatArray:
    """Return the bytes, (phases,), that are spilled or restored with the first phase of a block in each
    direction."""
    column = np.zeros(len(facts))
    if spilled <= 0:
        return column
    spill = spilled_by_block(graph, block_numbers(graph), spilled)
    done: set[tuple[bool, int]] = set()
    for i, fact in enumerate(facts):
        number = fact.number
        if number is None or number not in spill:
            continue
        is_forward = fact.item.kernel.phase is Phase.FORWARD and not fact.item.recompute
        if (is_forward, number) not in done:
            done.add((is_forward, number))
            column[i] = spill[number]
    return column


def ahead_column(facts: Sequence[Fact], wafer: Wafer, lanes: int) -> FloatArray:
    """Return the bytes between the edge and the cores when a phase begins, (phases,)."""
    known: dict[object, float] = {}
    column = np.zeros(len(facts))
    for i, fact in enumerate(facts):
        kernel = fact.item.kernel
        if fact.elements and kernel.phase is not Phase.WEIGHT_GRADIENT:
            if kernel.signature not in known:
                known[kernel.signature] = ahead_bytes(kernel, wafer, lanes)
            column[i] = known[kernel.signature]
    return column
