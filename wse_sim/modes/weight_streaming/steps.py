"""The weight streaming compiler: phases of one step, recomputation, spill, lanes, micro-batches.

Symbols: B batch per system, b micro-batch, L lanes, C capacity of the wafer for activations
(program cores x usable SRAM), A bytes the backward pass needs, I bytes of the inputs of the repeated
blocks, W bytes in use while one block runs.

Rules, each a documented or a fitted mechanism:

* one kernel at a time on the whole program rectangle, or on a part where routes are shorter and
  that is faster (:mod:`rectangle`); weights stream in, activations are stationary;
* parallel products that read one tensor (query, key, value; gate, up) run as one phase;
* keep everything if ``A + W <= C``; else keep all but the scores of attention, which are recomputed
  without any weight, if that fits; else keep only the inputs of the blocks and run each block forward
  again before its backward pass, for which its weights stream in once more;
* equal blocks run one program, so their inputs are treated alike: all stay on the wafer if ``I + W <= C``; otherwise
  all are sent to the activation servers and back, together with the part of ``W`` that exceeds ``C``;
* one number of lanes for the whole model, the one with the least compute time;
* a phase of matrix products takes at least the launch floor; attention holds two products forward and
  four backward.

The steps share one file, so that they can be read in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wse_sim.compiler.defects import no_rectangle, whole_rectangle
from wse_sim.compiler.flow import run_steps, step
from wse_sim.compiler.plan import Infeasible
from wse_sim.compiler.pricing import Prices, parts_of
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph, Phase
from wse_sim.graph.blocks import block_numbers
from wse_sim.graph.kernel_graph import frozen
from wse_sim.graph.optimizers import optimizer_of, stored_bytes
from wse_sim.graph.results import note_of, sent_bytes, what_is_sent
from wse_sim.hardware import Cluster, Wafer
from wse_sim.kernels.contract.registry import notes_of
from wse_sim.modes.weight_streaming.graph_facts import (
    ahead_bytes,
    bytes_spilled,
    facts_of,
    graph_kept,
    least_recompute,
    need_of,
    streamed_bytes,
    way_cycles,
    whole_words,
    work_of,
)
from wse_sim.modes.weight_streaming.lanes import MAX_LANES, chosen_lanes, core_memory, lane_table, left_bytes
from wse_sim.modes.weight_streaming.memory import MemoryNeed, spilled_by_block
from wse_sim.modes.weight_streaming.micro_batch import Attempted, with_micro_batch
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.parts import PartTimes
from wse_sim.modes.weight_streaming.plan import (
    STREAMED_WEIGHT_BYTES,
    StreamedPhase,
    WeightStreamingPlan,
    on_rectangle,
)
from wse_sim.modes.weight_streaming.rectangle import Rectangle, on_fewer_cores
from wse_sim.modes.weight_streaming.work import Work


def compile_streaming(
    graph: KernelGraph,
    wafer: Wafer,
    cluster: Cluster,
    *,
    batch: int,
    systems: int = 1,
    choice: StreamingChoice | None = None,
) -> WeightStreamingPlan | Infeasible:
    """Plan one step of weight streaming.

    Raises
    ------
    ModelError
        If batch, systems, micro-batch or density are out of range.
    """
    choice = (choice or StreamingChoice()).replace(batch=batch)
    return plan_streaming(graph, wafer, cluster, systems, choice)


def plan_streaming(
    graph: KernelGraph, wafer: Wafer, cluster: Cluster, systems: int, choice: StreamingChoice
) -> WeightStreamingPlan | Infeasible:
    """Run :data:`STEPS`."""
    wafer, note = whole_rectangle(wafer)
    if not wafer.program_cores:
        return no_rectangle("weight-streaming", graph.name, wafer)
    given = {"graph": graph, "wafer": wafer, "cluster": cluster, "systems": systems, "options": choice}
    plan = _plan_of(run_steps(STEPS, given))
    return plan if isinstance(plan, Infeasible) or not note else replace(plan, notes=(*plan.notes, note))


def _plan_of(values: dict[str, object] | Infeasible) -> WeightStreamingPlan | Infeasible:
    if isinstance(values, Infeasible):
        return values
    plan = values["plan"]
    assert isinstance(plan, WeightStreamingPlan)  # of the lists below; not a user option
    return plan


def _check(systems: int, cluster: Cluster, choice: StreamingChoice) -> None:
    if systems < 1:
        raise ModelError(f"{systems} systems are too few; give at least 1")
    if systems > cluster.max_systems:
        raise ModelError(
            f"{systems} systems exceed the {cluster.max_systems} of cluster '{cluster.name}'; use fewer systems"
        )
    if choice.lanes is not None and not 1 <= choice.lanes <= MAX_LANES:
        raise ModelError(
            f"{choice.lanes} lanes are outside 1 to {MAX_LANES}; choose within or leave it to the compiler"
        )


# The steps, in the order in which they run


@step("per_system")
def check_request(cluster: Cluster, systems: int, options: StreamingChoice) -> int:
    """Check that the options are in range; distribute the batch over the systems."""
    _check(systems, cluster, options)
    return -(-options.batch // systems)


@step()
def fit_memoryx(graph: KernelGraph, cluster: Cluster) -> Infeasible | None:
    """Check that weights and optimizer state fit on the weight servers."""
    optimizer = optimizer_of(graph)
    state_bytes = stored_bytes(graph, 4 if optimizer is None else optimizer.server_bytes, frozen=4)
    if state_bytes <= cluster.memoryx_bytes:
        return None
    return Infeasible(
        mode="weight-streaming",
        model=graph.name,
        binding="MemoryX capacity",
        need=float(state_bytes),
        limit=float(cluster.memoryx_bytes),
        unit="bytes",
        where=f"cluster '{cluster.name}'",
        remedy="use more weight servers or a smaller model",
    )


@step("plan")
def try_micro_batches(
    graph: KernelGraph,
    wafer: Wafer,
    cluster: Cluster,
    systems: int,
    options: StreamingChoice,
    per_system: int,
) -> WeightStreamingPlan | Infeasible:
    """Run :data:`ATTEMPT` for the micro-batches of :mod:`micro_batch`, and for parts of the wafer."""
    given = {
        "graph": graph,
        "cluster": cluster,
        "systems": systems,
        "options": options,
        "per_system": per_system,
    }

    def attempt(micro_batch: int, rectangle: Rectangle | None = options.rectangle) -> Attempted:
        on = on_rectangle(wafer, rectangle)
        found = _plan_of(run_steps(ATTEMPT, {**given, "wafer": on, "micro_batch": micro_batch}))
        size = (on.program_rows, on.program_cols)
        if isinstance(found, Infeasible) or size == (wafer.program_rows, wafer.program_cols):
            return found
        return replace(found, wafer=wafer, rectangle=size)

    plan = with_micro_batch(attempt, options, per_system)
    if isinstance(plan, Infeasible) or options.rectangle:
        return plan

    def on_part(rectangle: Rectangle) -> Attempted:
        return attempt(plan.micro_batch, rectangle)

    return on_fewer_cores(plan, lambda: PartTimes(graph, plan, options, on_part).seconds, on_part)


@step("stated", "prices")
def state_micro_batch(graph: KernelGraph, wafer: Wafer, micro_batch: int) -> tuple[KernelGraph, Prices]:
    """Convert the graph to one micro-batch."""
    stated = graph.with_samples(micro_batch)
    return stated, Prices(wafer, {"training": stated.training})


@step("once", "lanes")
def choose_lanes(
    stated: KernelGraph, wafer: Wafer, prices: Prices, options: StreamingChoice, micro_batch: int
) -> tuple[Sequence[Work], int]:
    """Merge parallel products; choose the number of lanes with the least compute time.

    If the micro-batch cannot be halved, it is the fastest number that fits: each lane has separate buffers.
    """
    once = work_of(stated, "none")
    if options.lanes:
        return once, options.lanes
    whole = (wafer.program_rows, wafer.program_cols)
    numbers = lane_table(once, prices, wafer, [whole]).by_time(0)
    need, is_least = need_of(stated).largest_kernel, micro_batch == 1 or options.micro_batch is not None
    return once, chosen_lanes(numbers, once, prices, wafer, need, is_least=is_least)


@step("need", "capacity")
def fit_wafer(
    stated: KernelGraph,
    wafer: Wafer,
    prices: Prices,
    once: Sequence[Work],
    lanes: int,
    micro_batch: int,
) -> tuple[MemoryNeed, float] | Infeasible:
    """Check that operands and results of each kernel fit next to buffers and code."""
    capacity = left_bytes(once, prices, wafer, lanes)
    need = need_of(stated)
    if need.largest_kernel > capacity:
        return _does_not_fit(stated, need, micro_batch, capacity)
    return need, capacity


@step("stated", "recompute", "spilled_bytes", "activation_bytes")
def keep_recompute_or_spill(
    stated: KernelGraph, cluster: Cluster, options: StreamingChoice, need: MemoryNeed, capacity: float
) -> tuple[KernelGraph, str, float, float] | Infeasible:
    """Store everything, or all but attention scores, or block inputs; spill what does not fit."""
    recompute = options.recompute or least_recompute(stated, capacity)
    stated = graph_kept(stated, recompute)
    need = need_of(stated)
    resident = need.block_inputs if recompute == "full" else need.kept
    spilled = bytes_spilled(resident, need, capacity)
    if spilled > cluster.activation_server_bytes:
        return Infeasible(
            mode="weight-streaming",
            model=stated.name,
            binding="activation server capacity",
            need=spilled,
            limit=float(cluster.activation_server_bytes),
            unit="bytes",
            where=f"cluster '{cluster.name}'",
            remedy="use a smaller micro-batch or more systems",
        )
    at_rest = 0.0 if spilled else resident
    return stated, recompute, spilled, min(capacity, at_rest + need.working)


@step("work", "phases")
def list_phases(
    stated: KernelGraph,
    prices: Prices,
    options: StreamingChoice,
    lanes: int,
    recompute: str,
    spilled_bytes: float,
) -> tuple[Sequence[Work], tuple[StreamedPhase, ...]]:
    """List the kernels of a micro-batch in order, with their cycles, weights, gradients and spill."""
    work = work_of(stated, recompute)
    return work, _phases(stated, recompute, prices, lanes, spilled_bytes, options.density)


@step("plan")
def state_plan(
    stated: KernelGraph,
    prices: Prices,
    system: StreamingSystem,
    lanes: int,
    recompute: str,
    spilled_bytes: float,
    activation_bytes: float,
    work: Sequence[Work],
    phases: tuple[StreamedPhase, ...],
) -> WeightStreamingPlan:
    """Assemble the plan."""
    optimizer, wafer, options = optimizer_of(stated), prices.wafer, system.options
    sent = what_is_sent(stated, options.send)
    return WeightStreamingPlan(
        graph=stated,
        wafer=wafer,
        cluster=system.cluster,
        systems=system.systems,
        batch=options.batch,
        batch_per_system=system.per_system,
        micro_batch=stated.samples,
        micro_batches=-(-system.per_system // stated.samples),
        lanes=lanes,
        recompute=recompute,
        phases=phases,
        memory=core_memory(work, prices, wafer, lanes, activation_bytes),
        spilled_bytes=spilled_bytes,
        optimizer_bytes_per_parameter=0.0 if optimizer is None else float(optimizer.traffic_bytes),
        weight_density=options.density,
        result_bytes_per_sample=sent_bytes(stated, sent) / stated.samples,
        notes=(*_notes(stated, wafer, recompute, spilled_bytes, lanes), *note_of(stated, sent, options.send)),
    )


@dataclass(frozen=True)
class StreamingSystem:
    """Distribution of the batch: the facts of the plan in addition to its phases."""

    cluster: Cluster
    systems: int
    per_system: int
    options: StreamingChoice


@step("system")
def share_batch(cluster: Cluster, systems: int, per_system: int, options: StreamingChoice) -> StreamingSystem:
    """Collect the facts of systems and batch that the plan states."""
    return StreamingSystem(cluster, systems, per_system, options)


STEPS = [check_request, fit_memoryx, try_micro_batches]
"""From graph, wafer, cluster, systems and options to the plan."""
ATTEMPT = [
    state_micro_batch,
    choose_lanes,
    fit_wafer,
    keep_recompute_or_spill,
    list_phases,
    share_batch,
    state_plan,
]
"""One micro-batch: from graph, wafer, cluster, systems, options, `per_system` and `micro_batch` to a plan."""


def _does_not_fit(graph: KernelGraph, need: MemoryNeed, micro_batch: int, capacity: float) -> Infeasible:
    return Infeasible(
        mode="weight-streaming",
        model=graph.name,
        binding="SRAM",
        need=need.largest_kernel,
        limit=capacity,
        unit="bytes",
        where=f"operands and results of one kernel at micro-batch {micro_batch}",
        remedy="use a smaller micro-batch, a shorter sequence or more systems",
    )


def _phases(
    graph: KernelGraph, recompute: str, prices: Prices, lanes: int, spilled: float, density: float
) -> tuple[StreamedPhase, ...]:
    wafer = prices.wafer
    spill = spilled_by_block(graph, block_numbers(graph), spilled) if spilled > 0 else {}
    phases = []
    out_done: set[int] = set()
    in_done: set[int] = set()
    split: dict[object, tuple[Mapping[str, float], float]] = {}  # of equal kernels, once
    on_way: dict[object, tuple[float, float]] = {}
    ways = [way_cycles(wafer, lanes, is_gradient=gradient) for gradient in (False, True)]
    for fact in facts_of(graph, recompute):
        item, kernel, number = fact.item, fact.item.kernel, fact.number
        spill_bytes = 0.0
        if number is not None and number in spill:
            forward_now = kernel.phase is Phase.FORWARD and not item.recompute
            done = out_done if forward_now else in_done
            if number not in done:
                done.add(number)
                spill_bytes = spill[number]
        gradient = kernel.phase is Phase.WEIGHT_GRADIENT
        thinned = density < 1 and fact.skips_zero_weights and not gradient and bool(kernel.parameters)
        key = (kernel.signature, thinned)
        if key not in split:
            cost = prices.cost(kernel, wafer.program_rows, wafer.program_cols, "streamed", lanes)
            priced = parts_of(cost)
            if thinned:
                priced["compute"] *= density  # a weight that is not sent triggers nothing
            split[key] = (frozen(priced), sum(priced.values()))
        parts, cycles = split[key]
        filled, ahead = 1.0, 0.0
        if fact.elements:
            if kernel.signature not in on_way:
                on_way[kernel.signature] = (
                    # A weight that is sent with its index needs no padding.
                    whole_words(kernel, wafer.program_cols // lanes) if density == 1 else 1.0,
                    0.0 if gradient else ahead_bytes(kernel, wafer, lanes),
                )
            filled, ahead = on_way[kernel.signature]
        streamed = fact.dense_bytes if density == 1 else streamed_bytes(fact.sizes, density)
        phases.append(
            StreamedPhase(
                name=fact.name,
                kernel=kernel.name,
                family=kernel.family,
                layer=kernel.layer,
                phase=kernel.phase,
                recompute=item.recompute,
                compute_cycles=cycles,
                parts=parts,
                weight_bytes=0.0 if gradient else streamed,
                gradient_bytes=fact.elements * STREAMED_WEIGHT_BYTES * density if gradient else 0.0,
                spill_bytes=spill_bytes,
                floor_s=wafer.launch_floor_s * fact.matmul_phases,
                flops=kernel.flops,
                output_elements=fact.output_elements,
                filled=filled,
                way_cycles=ways[gradient] if fact.elements else 0.0,
                ahead_bytes=ahead,
            )
        )
    return tuple(phases)


def _notes(graph: KernelGraph, wafer: Wafer, recompute: str, spilled: float, lanes: int) -> tuple[str, ...]:
    notes = [f"{lanes} lane{'s' * (lanes != 1)}: the number with the least compute time"]
    if graph.training:
        text = {
            "none": "all activations fit: nothing is recomputed",
            "attention": "activations fit without attention scores, which are recomputed",
            "full": "activations do not fit: every block runs forward again",
        }
        notes.append(text[recompute])
    if spilled > 0:
        notes.append(
            f"{spilled / 1e9:.1f} GB of block inputs are spilled to activation servers, not overlapped (assumed)"
        )
    notes.extend(graph.remembered("notes", lambda: notes_of(graph.kernels)))
    return (*graph.notes, *notes)
