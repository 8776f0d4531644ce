"""The pipelined compiler: stages, sizes, places, routes -> :class:`PipelinedPlan`.

One wafer stores the whole network: weights with gradient and optimizer state, and the activations of all samples in flight. If these do not fit, attention scores are recomputed instead of kept, then whole blocks. If the total still exceeds the SRAM, the result is :class:`Infeasible`.

The steps share one file, so that they can be read in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, TypeVar

import numpy as np

from wse_sim.compiler.block_recompute import NOTE, BlockRecompute, block_recompute
from wse_sim.compiler.compute_columns import ComputeColumns
from wse_sim.compiler.concatenations import concatenated_in_parts
from wse_sim.compiler.defects import Repair, repair, usable_cores
from wse_sim.compiler.flow import run_steps, step
from wse_sim.compiler.objectives import LATENCY, SHELVES, THROUGHPUT
from wse_sim.compiler.pins import check_pins, pinned_replicas, pinned_size, settle_parts, uneven_copies
from wse_sim.compiler.plan import Infeasible
from wse_sim.compiler.rounds import for_rounds, trains_in_rounds
from wse_sim.compiler.scores import without_scores
from wse_sim.compiler.shelves import Box, ShelfPlacer, area_bound_cycles, with_columns
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.compiler.stage_placement import place_stages, placements
from wse_sim.compiler.streams import route_streams
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.graph.optimizers import OPTIMIZERS, optimizer_of, stored_bytes
from wse_sim.graph.results import note_of, sent_bytes, what_is_sent
from wse_sim.hardware import Cluster, Wafer
from wse_sim.kernels.contract.registry import notes_of
from wse_sim.modes.pipelined.batches import reference_layouts
from wse_sim.modes.pipelined.compiled_schedule import quick_step_cycles
from wse_sim.modes.pipelined.defect_detours import with_detours
from wse_sim.modes.pipelined.estimate import links_of, lone_sample, sample_latency, step_cycles
from wse_sim.modes.pipelined.layout_cycles import LayoutCycles
from wse_sim.modes.pipelined.loss import with_loss
from wse_sim.modes.pipelined.narrow import narrow_note
from wse_sim.modes.pipelined.options import PipelinedOptions
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.regions import StageMaker, deepened
from wse_sim.modes.pipelined.repricing import sizer_for
from wse_sim.modes.pipelined.run import MIN_LEFT, allreduce_cycles, free_step_cycles

IN_STREAMS = "samples that wait in streams"
NO_MOMENTS = OPTIMIZERS["sgd"]  # a training graph without updates keeps weights and gradients only
RECOMPUTE = ("none", "attention", "full")
SMALL_FRACTION = 0.5  # of the wafer: a model below it, at its best pace, may be replicated
GPIPE = "gpipe"
FILL = 0.9  # of the wafer that all replicas may use; the rest is lost between rectangles


def compile_pipelined(
    graph: KernelGraph, wafer: Wafer, cluster: Cluster, *, batch: int, **options: Any
) -> PipelinedPlan | Infeasible:
    """Plan the pipeline for `graph`, which is converted to one sample; `options` are
    :class:`PipelinedOptions`.

    Raises
    ------
    ModelError
        If batch or replicas are out of range, or no placement satisfies a pin.
    ConfigError
        If the placer or the objective is unknown.
    """
    return plan_pipeline(graph, wafer, cluster, PipelinedOptions(batch=batch, **options))


def plan_pipeline(
    graph: KernelGraph, wafer: Wafer, cluster: Cluster, options: PipelinedOptions
) -> PipelinedPlan | Infeasible:
    """Run :data:`STEPS`."""
    return _plan_of(
        run_steps(
            STEPS,
            {"graph": settle_parts(graph, wafer), "wafer": wafer, "cluster": cluster, "options": options},
        )
    )


def _plan_of(values: dict[str, object] | Infeasible) -> PipelinedPlan | Infeasible:
    if isinstance(values, Infeasible):
        return values
    plan = values["plan"]
    assert isinstance(plan, PipelinedPlan)  # of the lists below; not a user option
    return plan


# The steps, in the order in which they run


@step("replicas")
def check_request(graph: KernelGraph, wafer: Wafer, options: PipelinedOptions) -> int | None:
    """Check that the options are in range; a pin may fix the number of replicas."""
    replicas = pinned_replicas(graph, options.replicas)
    if replicas is not None and not 1 <= replicas <= options.batch:
        raise ModelError(
            f"{replicas} replicas cannot share batch {options.batch}; ask for 1 to {options.batch}"
        )
    check_pins(graph, wafer, options.placer, SHELVES)
    return replicas


@step("mended", "whole_wafer")
def repair_wafer(wafer: Wafer) -> tuple[Repair, Wafer]:
    """Replace dead cores by spare ones where the generation of the wafer can."""
    mended = repair(wafer)
    return mended, mended.wafer


@step("sample_graph")
def state_one_sample(graph: KernelGraph, wafer: Wafer) -> KernelGraph:
    """Convert the graph to one sample, with concatenations of as many tensors as a region can receive."""
    return concatenated_in_parts(graph.with_samples(1), wafer)


@step("plan")
def try_what_is_kept(
    sample_graph: KernelGraph,
    whole_wafer: Wafer,
    cluster: Cluster,
    options: PipelinedOptions,
    replicas: int | None,
) -> PipelinedPlan | Infeasible:
    """Run :data:`ATTEMPT` with all activations stored, and with fewer of them as long as memory is the
    bottleneck.

    If memory limits the pace, storing activations may cost more than recomputing them. Without this choice a
    wafer with more SRAM could be slower than one that must recompute.
    """
    given = {"wafer": whole_wafer, "cluster": cluster, "replicas": replicas}

    def attempt(
        stated: KernelGraph, blocks: BlockRecompute | None, options: PipelinedOptions = options
    ) -> PipelinedPlan | Infeasible:
        found = _plan_of(run_steps(ATTEMPT, {**given, "options": options, "graph": stated, "again": blocks}))
        if isinstance(found, Infeasible) or blocks is None or not blocks.blocks:
            return found
        return dataclasses.replace(found, notes=(*found.notes, NOTE))

    # A placer that searches for seconds runs only once: quick shelves without a search decide what is kept.
    quick = options.replace(placer=SHELVES, layouts=False)
    return least_kept(
        sample_graph,
        options.recompute,
        attempt,
        binds=lambda plan: plan.binding == "sram",
        pace=lambda plan: plan.sample_cycles,
        quickly=None if options.placer == SHELVES else lambda graph, again: attempt(graph, again, quick),
    )


P = TypeVar("P")
Attempt = Callable[[KernelGraph, BlockRecompute | None], P | Infeasible]


def least_kept(
    graph: KernelGraph,
    recompute: str | None,
    attempt: Attempt[P],
    *,
    binds: Callable[[P], bool],
    pace: Callable[[P], float],
    quickly: Attempt[P] | None = None,
) -> P | Infeasible:
    """Return the best plan among the policies that `recompute` allows; fewer activations are stored as long
    as memory `binds`.

    With `quickly` the policies are compared by that function, and only the best is run with `attempt`.
    """
    lean, again = without_scores(graph), block_recompute(graph)
    if recompute == "full":
        return attempt(graph, again)
    if recompute == "attention":
        return attempt(lean, None)
    if recompute == "none":
        return attempt(graph, None)
    ways: list[tuple[KernelGraph, BlockRecompute | None]] = [(graph, None)]
    ways += [(lean, None)] if lean is not graph else []
    if again.blocks:
        ways += [(graph, again)] + ([(lean, block_recompute(lean))] if lean is not graph else [])
    compared = quickly or attempt
    chosen, best = ways[0], compared(*ways[0])
    for way in ways[1:]:
        if not isinstance(best, Infeasible) and not binds(best):
            break
        other = compared(*way)
        if isinstance(best, Infeasible) or (not isinstance(other, Infeasible) and pace(other) < pace(best)):
            chosen, best = way, other
    return best if quickly is None else attempt(*chosen)


@step("plan")
def add_detours(plan: PipelinedPlan, mended: Repair) -> PipelinedPlan:
    """Add extra hops: over shifted rows on a repaired wafer, otherwise over or around dead cores."""
    return with_detours(plan, mended)


@step("weights_bytes")
def fit_weights(graph: KernelGraph, wafer: Wafer, replicas: int | None) -> float | Infeasible:
    """Check that weights with gradients and optimizer state fit on the wafer."""
    capacity, weights = (
        _capacity(wafer),
        stored_bytes(graph, bytes_per_weight(graph), frozen=2) * (replicas or 1),
    )
    if weights > capacity:
        return _sram(graph, weights, capacity, "weights, gradients and optimizer state")
    return weights


@step("sizer")
def group_kernels(graph: KernelGraph, wafer: Wafer, again: BlockRecompute | None) -> Sizer:
    """Group every forward kernel with its gradients and its update; costs are computed on request."""
    return sizer_for(graph, wafer, again)


@step()
def count_replicas(sizer: Sizer, cluster: Cluster, options: PipelinedOptions, replicas: int | None) -> None:
    """Choose the number of replicas: as requested, or as many as the host can feed and the wafer can hold."""
    in_rounds = options.schedule == GPIPE and sizer.graph.training
    if in_rounds:
        sizer.in_flight = dict.fromkeys(sizer.in_flight, options.batch)
    sizer.replicas = replicas if replicas is not None else _replicas(sizer, cluster, options)
    if in_rounds:  # every stage holds all samples of its replica
        sizer.in_flight = dict.fromkeys(sizer.in_flight, ceil(options.batch / sizer.replicas))


@step("sizer")
def split_rounds(sizer: Sizer, options: PipelinedOptions) -> Sizer:
    """Choose the fraction of a sample's time for forward passes, if the programs of the fabric train in rounds."""
    return for_rounds(sizer) if options.schedule is None and trains_in_rounds(sizer.graph) else sizer


@step()
def fit_samples(sizer: Sizer, weights_bytes: float) -> Infeasible | None:
    """Check that activations of all samples in flight, and samples in streams, fit together with the
    weights."""
    capacity = _capacity(sizer.wafer)
    activations = sizer.replicas * sum(sizer.activation_bytes(group) for group in sizer.groups)
    streams = sizer.replicas * sum(sizer.stream_bytes(group) for group in sizer.groups)
    for need, what in (
        (streams, IN_STREAMS),
        (weights_bytes + activations, "weights and activations of all samples in flight"),
        (
            weights_bytes + activations + streams,
            f"weights, activations of all samples in flight and {IN_STREAMS}",
        ),
    ):
        if need > capacity:
            return _sram(sizer.graph, need, capacity, what)
    return None


@step("plan")
def place_and_route(sizer: Sizer, cluster: Cluster, options: PipelinedOptions) -> PipelinedPlan | Infeasible:
    """Place the stages, route and color their streams; try the next placement if links are the bottleneck.

    If the streams of all placements of the default placer need too many colors, other placers are tried.
    """
    first = _best_routed(sizer, cluster, options)
    pinned = any("pin_region" in group.forward.attrs for group in sizer.groups)  # other placers part them
    if not isinstance(first, Infeasible) or first.binding != "colors" or options.placer != SHELVES or pinned:
        return first
    if _is_hopeless(first):
        return first
    for placer in IF_COLORS_BIND:
        plan = _best_routed(sizer, cluster, options.replace(placer=placer))
        if not isinstance(plan, Infeasible):
            note = (
                f"placed by '{placer}': where the default placer '{SHELVES}' puts the kernels, streams need "
                f"{first.need:.0f} colors at one router, and {first.limit:.0f} are free"
            )
            return dataclasses.replace(plan, notes=(*plan.notes, note))
    return first


@step("plan")
def add_loss(plan: PipelinedPlan, options: PipelinedOptions) -> PipelinedPlan | Infeasible:
    """Add a stage for the loss, if one is requested."""
    if options.loss is None:
        return plan
    plan = with_loss(plan, options.loss)
    fullest = max(plan.stages, key=lambda stage: stage.memory.total_bytes)
    need, limit = fullest.memory.total_bytes, float(plan.wafer.sram_usable_bytes)
    return plan if need <= limit else _sram(plan.graph, need, limit, f"a core of '{fullest.name}'")


STEPS = [check_request, repair_wafer, state_one_sample, try_what_is_kept, add_detours, add_loss]
"""From graph, wafer, cluster and options to the plan."""
ATTEMPT = [fit_weights, group_kernels, count_replicas, split_rounds, fit_samples, place_and_route]
"""Steps for one recomputation policy: from graph, wafer, cluster, options, replicas and `again` to a plan."""


IF_COLORS_BIND = ("peel", "snake")
"""Placers of the library that use few seconds, in the order in which they are tried."""
HOPELESS = 4.0
"""Colors needed over those that a router has, from which no other placement is tried, since routing takes most of the time
then. The largest difference seen between placements of one model is a factor of 2.4."""


def _is_hopeless(plan: Infeasible) -> bool:
    return plan.binding == "colors" and plan.need > HOPELESS * plan.limit


def _capacity(wafer: Wafer) -> float:
    return float(usable_cores(wafer) * wafer.sram_usable_bytes)


def _best_routed(sizer: Sizer, cluster: Cluster, options: PipelinedOptions) -> PipelinedPlan | Infeasible:
    """Return the first placement with enough colors and links for its streams, else the one with the best rate.

    For the objective "latency", return the placement in which a single sample leaves first.
    """
    for_latency = options.objective == LATENCY
    merit: Callable[[PipelinedPlan], float] = (
        sample_latency if for_latency else lambda plan: plan.sample_cycles
    )
    best: PipelinedPlan | None = None
    refused: Infeasible | None = None
    found = placements(
        sizer,
        options.placer,
        objective=options.objective,
        seed=options.seed,
        time_limit_s=options.time_limit_s,
    )
    for _, boxes in found:
        plan = _routed(sizer, cluster, options, boxes)
        if isinstance(plan, Infeasible):
            refused = refused or plan
            if _is_hopeless(plan):
                break
            continue
        if best is None or merit(plan) < merit(best):
            best = plan
        if plan.link_cycles <= plan.pace_cycles and not for_latency:
            break
    if best is None:
        return refused or _no_rectangles(sizer)
    return best if for_latency else _fastest_batch(sizer, cluster, options, best)


NOTICEABLE = 0.02  # of a step that is fill, drain and update: below it, throughput alone decides
GAIN = 0.0005  # of the cycles of a batch; layouts with a smaller gain are not routed
MOST_ROUTED, ROUTED_STAGES = (
    24,
    400,
)  # layouts of a compilation; their stages together, but three layouts always
SCHEDULED = 40_000  # stages times samples up to which a plan's batch is scheduled by compiled code


def _fastest_batch(
    sizer: Sizer, cluster: Cluster, options: PipelinedOptions, plan: PipelinedPlan
) -> PipelinedPlan:
    """Return a plan that is faster for this batch than `plan`, which is made for endless batches; or `plan`
    itself.

    The layouts are the same for all constants of the wafer (:mod:`wse_sim.modes.pipelined.batches`). Straight
    streams bound the time of each layout from below, so layouts are routed and scheduled in that order until
    no other can be faster.
    """
    samples = ceil(plan.batch / plan.replicas)
    step = step_cycles(plan)
    if (
        options.placer != SHELVES
        or not options.layouts
        or options.objective != THROUGHPUT
        or not plan.graph.training
        or plan.round_samples
        or sizer.forward_fraction is not None
        or step - samples * plan.sample_cycles < NOTICEABLE * step
    ):
        return plan
    cycles = LayoutCycles(sizer, samples)
    found: list[tuple[float, Sequence[Box]]] = []
    for searched in reference_layouts(sizer, samples):
        few, most = with_columns(searched, sizer.columns)
        found += [(cycles(boxes), boxes) for boxes in ((few,) if few == most else (few, most))]
    found.sort(key=lambda one: one[0])
    best, least = plan, _batch_cycles(plan)
    for bound, boxes in found[: max(3, min(MOST_ROUTED, ROUTED_STAGES // len(plan.stages)))]:
        if bound > (1 - GAIN) * least:
            break
        other = _routed(sizer, cluster, options, boxes)
        if isinstance(other, PipelinedPlan) and (time := _batch_cycles(other)) < least:
            best, least = other, time
    return best


def _batch_cycles(plan: PipelinedPlan) -> float:
    """Return the cycles of one batch without host limits: those of its schedule, or of its busiest link if
    that takes longer."""
    samples = ceil(plan.batch / plan.replicas)
    if len(plan.stages) * samples <= SCHEDULED and (plan.replicas == 1 or _is_scheduled(plan)):
        sums = _sums_cycles(plan) if plan.replicas > 1 else ()
        return max(quick_step_cycles(plan.stages, links_of(plan), samples, sums), samples * plan.link_cycles)
    return max(free_step_cycles(plan), samples * plan.link_cycles)


def _is_scheduled(plan: PipelinedPlan) -> bool:
    """Return whether the compiled schedule of a plan with replicas is that of its events, none of them left out."""
    is_whole = plan.batch % plan.replicas == 0 and plan.batch // plan.replicas <= MIN_LEFT
    return is_whole and plan.link_cycles <= plan.pace_cycles


def _sums_cycles(plan: PipelinedPlan) -> list[float]:
    """Return the cycles in which the replicas sum the gradients of each stage."""
    own = len(plan.stages) // plan.replicas
    return [allreduce_cycles(plan, list(plan.stages[k::own])) for k in range(own)]


def _round(graph: KernelGraph, sizer: Sizer, options: PipelinedOptions) -> int:
    """Return the samples whose forward passes precede the first backward pass: those of a batch, or 0."""
    return ceil(options.batch / sizer.replicas) if options.schedule == GPIPE and graph.training else 0


SHARED_ENDS = (
    "there are too few colors: some streams cross regions that use the same color, so the kernels there must receive "
    "and send their words on other links"
)


def _routed(
    sizer: Sizer, cluster: Cluster, options: PipelinedOptions, boxes: Sequence[Box]
) -> PipelinedPlan | Infeasible:
    graph, wafer = sizer.graph, sizer.wafer
    stages = StageMaker(sizer).stages(boxes, sizer.replicas)
    pace = max(stage.cycles_per_sample for stage in stages)
    routed = route_streams(sizer, stages, pace, "pipelined")
    if isinstance(routed, Infeasible):
        return routed
    alternating = sizer if sizer.forward_fraction is None else sizer.in_rounds(None)
    bound, sent = area_bound_cycles(alternating), what_is_sent(graph, options.send)
    bound_by_memory = alternating.memory_bound_fraction(pace) > 0.5
    plan = PipelinedPlan(
        graph=graph,
        wafer=wafer,
        cluster=cluster,
        batch=options.batch,
        replicas=sizer.replicas,
        stages=stages,
        streams=routed.streams,
        link_bytes_per_sample=routed.loads,
        input_bytes_per_sample=float(graph.input_bytes),
        result_bytes_per_sample=sent_bytes(graph, sent),
        in_flight=max(sizer.in_flight.values()),
        binding="sram" if bound_by_memory else "cores",
        lower_bound_cycles=bound if bound is not None else float("nan"),
        notes=(
            *_notes(graph, wafer),
            *note_of(graph, sent, options.send),
            *_defect_notes(alternating, pace, options.placer, options.objective),
            *narrow_note(alternating, stages, _fed_per_s(sizer, cluster, options)),
            *((SHARED_ENDS,) if routed.shares_ends else ()),
            *uneven_copies(graph, sizer.replicas, options.batch),
            *_worker_note(cluster, sizer.replicas),
        ),
        host_streams=routed.host_streams,
        placer=options.placer,
        round_samples=_round(graph, sizer, options),
    )
    samples = ceil(plan.batch / plan.replicas)
    stages = deepened(sizer, stages, lone_sample(stages, links_of(plan)), plan.sample_cycles, samples)
    plan = dataclasses.replace(plan, stages=stages, in_flight=max(stage.in_flight for stage in stages))
    if plan.link_cycles <= plan.pace_cycles:
        return plan
    return dataclasses.replace(plan, binding="links", notes=(*plan.notes, _link_note(plan)))


def _link_note(plan: PipelinedPlan) -> str:
    """Return a note: which link limits the pace, what crosses it, and how to relieve it."""
    loads = plan.link_bytes_per_sample
    row, col, way = (int(v) for v in np.unravel_index(int(loads.argmax()), loads.shape))
    name = ("north", "east", "south", "west")[way]
    inside = [s.name for s in plan.stages if s.region.holds(row, col)]
    where = f" in the region of '{inside[0]}'" if inside else ""
    return (
        f"links bind: the link {name} of core (row {row}, column {col}){where} is occupied for "
        f"{plan.link_cycles:.6g} cycles per sample, {plan.link_cycles / plan.pace_cycles:.3g} times the slowest "
        f"kernel; a larger region there (a pin) or another placer relieves it"
    )


def _worker_note(cluster: Cluster, replicas: int) -> tuple[str, ...]:
    """Return a note if replicas need more input workers than the cluster file states."""
    stated = cluster.input_workers_per_system
    if replicas <= stated:
        return ()
    return (
        f"each of {replicas} replicas has an input worker: {replicas} instead of input_workers_per_system ({stated})",
    )


def _replicas(sizer: Sizer, cluster: Cluster, options: PipelinedOptions) -> int:
    """Return the copies of a small model: as many as the host feeds and the wafer has room for; one for others."""
    wafer = sizer.wafer
    cores = usable_cores(wafer) * wafer.pipeline_efficiency
    pace = sizer.pace_for(cores)
    least = sizer.least_cores(pace) if pace is not None else None
    if pace is None or least is None or float(least.sum()) > SMALL_FRACTION * cores:
        return 1
    wanted = ceil(_fed_per_s(sizer, cluster, options) * pace / wafer.clock_hz * (1 - 1e-9))
    most = max(1, min(wanted, int(FILL * cores / float(least.sum())), options.batch))
    return ceil(
        options.batch / ceil(options.batch / most)
    )  # the fewest with which the largest part of the batch is as small as with `most`


def _fed_per_s(sizer: Sizer, cluster: Cluster, options: PipelinedOptions) -> float:
    """Return the samples per second that the host can send, and whose results it can receive."""
    size = max(float(sizer.graph.input_bytes), 1e-9)
    worker = min(cluster.worker_samples_per_s, cluster.worker_bytes_per_s / size)
    sent = sent_bytes(sizer.graph, what_is_sent(sizer.graph, options.send))
    return min(cluster.input_workers_per_system * worker, sizer.wafer.io_bytes_per_s / max(size, sent))


def bytes_per_weight(graph: KernelGraph) -> int:
    """Return the bytes in SRAM per weight, with gradient and optimizer state if the graph trains."""
    return (optimizer_of(graph) or NO_MOMENTS).resident_bytes if graph.training else 2


def _sram(graph: KernelGraph, need: float, limit: float, what: str) -> Infeasible:
    return Infeasible(
        mode="pipelined",
        model=graph.name,
        binding="SRAM",
        need=need,
        limit=limit,
        unit="bytes",
        where=what,
        remedy="use weight streaming or a smaller model",
    )


def _no_rectangles(sizer: Sizer) -> Infeasible:
    """Return why no placement exists at any pace: a stage larger than any rectangle, or too many rows."""
    graph, wafer = sizer.graph, sizer.wafer
    worst = sizer.worst_memory()
    if worst is not None:
        group, need = worst
        pin = pinned_size(group.forward)
        on = "its best rectangle" if pin is None else f"the {pin[0]} x {pin[1]} cores it is pinned to"
        return _sram(
            graph,
            need,
            float(wafer.sram_usable_bytes),
            f"{_mostly(sizer, group, need)}a core of '{group.name}' on {on}",
        )
    tight = ShelfPlacer(sizer).tightest()
    if tight is not None:
        group, need = tight
        what = f"{_mostly(sizer, group, need)}a core of '{group.name}' on its best rectangle"
        return _sram(graph, need, float(wafer.sram_usable_bytes), what)
    slow = max(float(sizer.candidates(group).time.max()) for group in sizer.groups)
    rows = ShelfPlacer(sizer).rows_needed(slow)
    limit = usable_cores(wafer) / wafer.program_cols
    return Infeasible(
        mode="pipelined",
        model=graph.name,
        binding="cores",
        need=max(rows, limit),
        limit=limit,
        unit="rows",
        where=f"{len(sizer.copies)} stages at any pace on {wafer.program_cols} columns",
        remedy="use weight streaming, fewer replicas or a smaller model",
    )


def _mostly(sizer: Sizer, group: Group, need: float) -> str:
    """Return a remark if most of a core's bytes are samples in streams, even when spread over all cores."""
    pin = pinned_size(group.forward)
    cores = usable_cores(sizer.wafer) if pin is None else pin[0] * pin[1]
    shared = sizer.stream_bytes(group) / cores
    return f"{IN_STREAMS} on " if shared > need / 2 else ""


def _defect_notes(sizer: Sizer, pace: float, placer: str, objective: str) -> tuple[str, ...]:
    """Return notes on the cost of dead rows and cores: the pace here compared with that of a wafer without
    defects."""
    wafer = sizer.wafer
    rows, cores = len(set(wafer.dead_rows)), len(set(wafer.dead_cores))
    if not rows and not cores:
        return ()
    whole = wafer.model_copy(update={"dead_rows": (), "dead_cores": ()})
    ideal = place_stages(sizer.with_wafer(whole), SHELVES)
    text = (
        f"{rows} dead rows and {cores} dead cores leave {usable_cores(wafer)} of {wafer.program_cores} cores"
    )
    if ideal is None or placer != SHELVES or objective != THROUGHPUT:
        return (text,)
    return (
        f"{text}: slowest kernel {pace:.6g} cycles per sample, {ideal[0]:.6g} without defects "
        f"({100 * (pace / ideal[0] - 1):+.1f} %)",
    )


def _notes(graph: KernelGraph, wafer: Wafer) -> tuple[str, ...]:
    columns = ComputeColumns.of_plan(graph, wafer)
    notes = [
        f"at most {columns.most_moving} columns of a region move data, as programs need; {1 - columns.efficiency:.0%} of a narrow one"
        if columns.most_moving
        else f"{columns.efficiency:.0%} of a region's cores compute: an efficiency fitted to two published rates, not explained"
    ]
    notes.extend(notes_of(graph.kernels))
    return (*graph.notes, *notes)
