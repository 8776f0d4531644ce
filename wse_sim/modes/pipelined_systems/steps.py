"""The compiler of a pipeline over several systems.

Symbols: S systems, stage i with A_i(T) least cores at pace T (:mod:`wse_sim.compiler.sizing`), C cores of a wafer that
compute, x_c bytes (activations and gradients of one sample) over cut c, B bytes/s of a wafer's I/O::

    pace     the least T with which the stages, in order, fill at most S wafers:
             sum of A_i(T) on a wafer <= C,   x_c / B <= T at every cut

Each wafer gets stages in dataflow order as long as they fit, and ends between blocks, so no other cut has a
lower T. Samples in flight are counted to the end of the chain, not of the wafer. Every part is then placed
and routed as a separate pipeline, and buffers for samples in flight are enlarged over the whole chain.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.block_recompute import NOTE, BlockRecompute
from wse_sim.compiler.defects import Repair, usable_cores
from wse_sim.compiler.flow import run_steps, step
from wse_sim.compiler.pins import settle_parts
from wse_sim.compiler.plan import Infeasible
from wse_sim.compiler.sample_buffers import comes_back, readers_of, stream_depth
from wse_sim.compiler.sizing import Sizer
from wse_sim.compiler.streams import HOST
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph, Phase, TensorKind
from wse_sim.graph.blocks import block_numbers
from wse_sim.graph.kernel_graph import Tensor, frozen
from wse_sim.graph.optimizers import stored_bytes
from wse_sim.graph.results import note_of, sent_bytes, what_is_sent
from wse_sim.hardware import Wafer
from wse_sim.modes.base import System
from wse_sim.modes.pipelined.estimate import links_of, lone_sample
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.regions import deepened
from wse_sim.modes.pipelined.steps import (
    add_detours,
    bytes_per_weight,
    group_kernels,
    least_kept,
    place_and_route,
    repair_wafer,
    state_one_sample,
)
from wse_sim.modes.pipelined_systems.options import NAME, SystemsOptions
from wse_sim.modes.pipelined_systems.plan import Crossing, Cut, PipelinedSystemsPlan

FILLS = (
    1.0,
    0.94,
    0.86,
    0.75,
)  # fractions of a wafer that parts may fill; smaller ones allow for gaps between rectangles
KEPT = (
    1.0,
    0.5,
    0.25,
)  # fractions of the samples in flight that keep the pace; smaller ones if they do not fit
GRADIENT_BYTES = 4  # as over replicas: fp32


def plan_chain(
    graph: KernelGraph, system: System, options: SystemsOptions
) -> PipelinedSystemsPlan | Infeasible:
    """Run :data:`STEPS`."""
    given = {
        "graph": settle_parts(graph, system.wafer),
        "wafer": system.wafer,
        "system": system,
        "options": options,
    }
    values = run_steps(STEPS, given)
    if isinstance(values, Infeasible):
        return values
    plan = values["plan"]
    assert isinstance(plan, PipelinedSystemsPlan)  # of the list below; not a user option
    return plan


@step()
def check_request(system: System, options: SystemsOptions) -> None:
    """Check that the options are in range."""
    if system.systems > system.cluster.max_systems:
        raise ModelError(
            f"{system.systems} systems are more than the {system.cluster.max_systems} of cluster "
            f"{system.cluster.name}; ask for fewer or give another cluster"
        )


@step("plan")
def keep_the_least(
    sample_graph: KernelGraph, whole_wafer: Wafer, mended: Repair, system: System, options: SystemsOptions
) -> PipelinedSystemsPlan | Infeasible:
    """Cut with all activations stored, and with fewer of them as long as memory is the bottleneck; place
    every part."""

    def attempt(graph: KernelGraph, again: BlockRecompute | None) -> PipelinedSystemsPlan | Infeasible:
        whole: Sizer = group_kernels.run(graph=graph, wafer=whole_wafer, again=again)  # type: ignore[assignment]
        found: PipelinedSystemsPlan | Infeasible = _too_large(whole, system.systems)
        for kept, fill in itertools.product(KEPT if graph.training else KEPT[:1], FILLS):
            sizer = whole.holding(kept, options.batch)
            parts = cut_graph(sizer, system.systems, fill)
            if parts is None:
                continue
            found = _placed(sizer, parts, mended, system, options)
            if not isinstance(found, Infeasible):
                break
        if isinstance(found, Infeasible):
            return found
        notes = [NOTE] if again is not None and again.blocks else []
        if kept < 1:
            notes.append(
                f"stages hold {kept:g} of the samples in flight that the pace needs: more do not fit"
            )
        return dataclasses.replace(found, notes=(*found.notes, *notes))

    return least_kept(
        sample_graph,
        options.recompute,
        attempt,
        binds=lambda plan: any(part.binding == "sram" for part in plan.parts),
        pace=_pace_cycles,
    )


STEPS = [check_request, repair_wafer, state_one_sample, keep_the_least]
"""From graph, system and options to the plan."""


def _pace_cycles(plan: PipelinedSystemsPlan) -> float:
    """Return the cycles between two samples, limited by the slowest stage or link, or by samples in
    flight."""
    line = plan.line
    if not plan.graph.training:
        return line.sample_cycles
    return max(line.sample_cycles, lone_sample(line.stages, links_of(line)).loop_cycles())


def cut_graph(sizer: Sizer, systems: int, fill: float) -> list[KernelGraph] | None:
    """Return the graph in parts for the systems, each on at most a fraction `fill` of a wafer, with the least
    pace; or None."""
    wafer, graph = sizer.wafer, sizer.graph
    cores = fill * usable_cores(wafer) * wafer.pipeline_efficiency
    names = [group.name for group in sizer.groups]
    allowed = _ends_between_blocks(graph, names)
    over = _bytes_over(graph, names)
    link_cycles = [size / wafer.io_bytes_per_s * wafer.clock_hz for size in over]

    def ends(pace: float) -> list[int] | None:
        least = sizer.least_cores(pace)
        return None if least is None else _filled(least, cores, [
            ok and cycles <= pace for ok, cycles in zip(allowed, link_cycles, strict=True)
        ], systems)  # fmt: skip

    slow = max(float(sizer.candidates(group).time.max()) for group in sizer.groups)
    low, high = 1.0, max(slow, *link_cycles) if link_cycles else slow
    found = ends(high)
    if found is None:
        return None
    while high / low > 1.0005:
        middle = (low * high) ** 0.5
        better = ends(middle)
        low, high, found = (low, middle, better) if better is not None else (middle, high, found)
    starts = [0, *found[:-1]]
    return [_part(graph, set(names[a:b]), sizer) for a, b in zip(starts, found, strict=True)]


def _filled(
    least: NDArray[np.float64], cores: float, may_end: Sequence[bool], systems: int
) -> list[int] | None:
    """Return the ends of the parts if every wafer takes as many stages as fit: at most `systems` ends, or None."""
    total = np.concatenate([[0.0], np.cumsum(least)])
    count, start, ends = len(least), 0, list[int]()
    while start < count:
        if len(ends) == systems:
            return None
        most = int(np.searchsorted(total, total[start] + cores * (1 + 1e-12), side="right")) - 1
        end = most
        while start < end < count and not may_end[end - 1]:
            end -= 1
        if end <= start:
            return None
        ends.append(end)
        start = end
    return ends


def _ends_between_blocks(graph: KernelGraph, names: Sequence[str]) -> list[bool]:
    """Return, for every stage, whether a wafer may end after it: no repeated block may have stages on both
    sides."""
    numbers = block_numbers(graph)
    last = {numbers[name]: i for i, name in enumerate(names) if name in numbers}
    out, open_until = [], 0
    for i, name in enumerate(names):
        if name in numbers:
            open_until = max(open_until, last[numbers[name]])
        out.append(i >= open_until)
    return out


def _bytes_over(graph: KernelGraph, names: Sequence[str]) -> list[float]:
    """Return the bytes per sample, with gradients, that cross from the stages up to i to those after it."""
    index = {name: i for i, name in enumerate(names)}
    made = {t: k.name for k in graph.kernels if k.phase is Phase.FORWARD for t in k.outputs}
    last: dict[str, int] = {}
    for kernel in graph.kernels:
        if kernel.phase is Phase.FORWARD:
            for tensor in kernel.inputs:
                last[tensor] = max(last.get(tensor, 0), index[kernel.name])
    change = np.zeros(len(names) + 1)
    for tensor, end in last.items():
        if tensor in made and index[made[tensor]] < end:
            size = graph.tensors[tensor].bytes * (2.0 if comes_back(graph, tensor) else 1.0)
            change[index[made[tensor]]] += size
            change[end] -= size
    return [float(size) for size in np.cumsum(change)[:-1]]


def _part(graph: KernelGraph, stages: set[str], sizer: Sizer) -> KernelGraph:
    """Return the kernels of some stages as a graph; tensors from other stages are inputs."""
    names = {kernel.name for group in sizer.groups if group.name in stages for kernel in group.kernels}
    kernels = tuple(kernel for kernel in graph.kernels if kernel.name in names)
    made = {tensor for kernel in kernels for tensor in kernel.outputs}
    used = {t for k in kernels for t in (*k.inputs, *k.outputs, *k.parameters)}

    def stated(tensor: Tensor) -> Tensor:
        enters = tensor.name not in made and tensor.kind in (TensorKind.ACTIVATION, TensorKind.OUTPUT)
        return dataclasses.replace(tensor, kind=TensorKind.INPUT) if enters else tensor

    tensors = {name: stated(tensor) for name, tensor in graph.tensors.items() if name in used}
    repeats = tuple(
        dataclasses.replace(repeat, instances=inside)
        for repeat in graph.repeats
        if (inside := tuple(one for one in repeat.instances if names.issuperset(one)))
    )
    return dataclasses.replace(graph, kernels=kernels, tensors=frozen(tensors), repeats=repeats)


def _placed(
    sizer: Sizer, graphs: Sequence[KernelGraph], mended: Repair, system: System, options: SystemsOptions
) -> PipelinedSystemsPlan | Infeasible:
    """Place every part on a separate wafer, with the tensors that cross between them."""
    parts: list[PipelinedPlan] = []
    for number, graph in enumerate(graphs):
        found = place_and_route.run(sizer=sizer.part(graph), cluster=system.cluster, options=options.of_one)
        if isinstance(found, Infeasible):
            where = f"{found.where}, wafer {number + 1} of {len(graphs)}"
            return dataclasses.replace(
                found, mode=NAME, where=where, remedy="use more systems or weight streaming"
            )
        found = add_detours.run(plan=found, mended=mended)
        assert isinstance(found, PipelinedPlan)  # of the steps above
        parts.append(found)
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    sent = what_is_sent(sizer.graph, options.send)
    plan = PipelinedSystemsPlan(
        graph=sizer.graph,
        wafer=system.wafer,
        cluster=system.cluster,
        batch=options.batch,
        systems=system.systems,
        parts=tuple(parts),
        cuts=_cuts(sizer, parts),
        tied_bytes=_tied(sizer, parts),
        result_bytes_per_sample=sent_bytes(sizer.graph, sent),
    )
    notes = (*notes, *_notes(plan), *note_of(sizer.graph, sent, options.send))
    return dataclasses.replace(_deep(plan, sizer), notes=notes)


def _cuts(sizer: Sizer, parts: Sequence[PipelinedPlan]) -> tuple[Cut, ...]:
    graph = sizer.graph
    room = stream_depth(sizer.groups, sizer.edges, graph.training)
    rows = {group.name: group.rows_per_sample for group in sizer.groups}
    wafer_of = {stage.name: number for number, part in enumerate(parts) for stage in part.stages}
    readers = {
        (producer, tensor): [name for name in consumers if wafer_of[producer] < wafer_of[name]]
        for (producer, tensor), consumers in readers_of(graph, sizer.groups).items()
    }
    out = []
    for number in range(len(parts) - 1):
        items = []
        for (producer, tensor), consumers in readers.items():
            furthest = max((wafer_of[name] for name in consumers), default=-1)
            if not wafer_of[producer] <= number < furthest:
                continue
            starts_here = wafer_of[producer] == number
            here = tuple(name for name in consumers if wafer_of[name] == number + 1)
            size = float(graph.tensors[tensor].bytes)
            deepest = max(room[producer, name] for name in consumers)
            first = _edge_hops(parts[number], producer, HOST, tensor) if starts_here else 0
            items.append(
                Crossing(
                    tensor=tensor,
                    producer=producer if starts_here else "",
                    consumers=here,
                    goes_on=furthest > number + 1,
                    bytes_per_sample=size,
                    backward_bytes_per_sample=size if comes_back(graph, tensor) else 0.0,
                    hops=(first, *(_edge_hops(parts[number + 1], HOST, name, tensor) for name in here)),
                    room=(deepest, *(room[producer, name] for name in here)),
                )
            )
        makers = [item.producer for item in items if item.producer]
        out.append(Cut(tuple(items), min((rows[name] for name in makers), default=1)))
    return tuple(out)


def _edge_hops(part: PipelinedPlan, producer: str, consumer: str, tensor: str) -> int:
    """Return the hops between a stage and the edge of its wafer, on the part's route for the tensor."""
    return next(
        (
            s.hops
            for s in part.host_streams
            if (s.producer, s.consumer, s.tensor) == (producer, consumer, tensor)
        ),
        0,
    )


def _tied(sizer: Sizer, parts: Sequence[PipelinedPlan]) -> tuple[tuple[str, float, int], ...]:
    """Return trained weights that stages of several wafers read: (stage that updates them, bytes, wafers
    between)."""
    graph = sizer.graph
    if not graph.training:
        return ()
    wafer_of = {stage.name: number for number, part in enumerate(parts) for stage in part.stages}
    found = []
    for group in sizer.groups:
        for name in {p for kernel in group.update for p in kernel.parameters if graph.tensors[p].trains}:
            held = [wafer_of[other.name] for other in sizer.groups if name in other.forward.parameters]
            between = max(held, default=0) - min(held, default=0)
            if between:
                size = float(GRADIENT_BYTES * graph.tensors[name].elements)
                found.append((group.name, size, between))
    return tuple(sorted(found))


def _deep(plan: PipelinedSystemsPlan, sizer: Sizer) -> PipelinedSystemsPlan:
    """Return the plan with room for the samples in flight over the whole chain, as far as SRAM allows."""
    line = plan.line
    lone = lone_sample(line.stages, links_of(line))
    parts = []
    for part in plan.parts:
        stages = deepened(sizer.part(part.graph), part.stages, lone, line.sample_cycles, plan.batch)
        parts.append(dataclasses.replace(part, stages=stages, in_flight=max(s.in_flight for s in stages)))
    return dataclasses.replace(plan, parts=tuple(parts))


def _notes(plan: PipelinedSystemsPlan) -> tuple[str, ...]:
    rate = plan.wafer.io_bytes_per_s / 1e9
    notes = [
        f"the blocks are on {len(plan.parts)} of {plan.systems} systems; maps show wafer {plan.slowest + 1}, the slowest",
        f"a cut between two systems carries its activations and gradients one after the other at {rate:g} GB/s (the "
        f"wafer's I/O: both directions at once, shared by two neighbours) and {plan.cluster.swarmx_hop_s * 1e6:g} us "
        f"later (one switch); samples of the host use the same links (assumed)",
    ]  # fmt: skip
    if plan.tied_bytes:
        notes.append(
            "a weight on several systems: its gradients go to one of them once per step, and the new weight comes back"
        )
    return tuple(notes)


def _too_large(sizer: Sizer, systems: int) -> Infeasible:
    """Return why no cut exists: too many bytes or cores for all systems, or a block too large for one."""
    graph, wafer = sizer.graph, sizer.wafer
    cores, room = usable_cores(wafer), wafer.sram_usable_bytes
    samples = sum(sizer.held_bytes(group) for group in sizer.groups)
    need = stored_bytes(graph, bytes_per_weight(graph), frozen=2) + samples
    least = sizer.least_cores(max(float(sizer.candidates(group).time.max()) for group in sizer.groups))
    worst = sizer.worst_memory()
    if need > cores * room * systems:
        where = f"weights, activations of all samples in flight and those in streams on {systems} systems"
        return _refusal(
            graph, "SRAM", need, cores * room * systems, "bytes", where, ceil(need / (cores * room))
        )
    if least is None and worst is not None:
        return _refusal(
            graph, "SRAM", worst[1], room, "bytes", f"a core of '{worst[0].name}' on its best rectangle", 0
        )
    total = inf if least is None else float(np.sum(least)) / wafer.pipeline_efficiency
    if total > cores * systems:
        where = f"{len(sizer.groups)} stages at any pace on {systems} systems"
        return _refusal(graph, "cores", ceil(total), cores * systems, "cores", where, ceil(total / cores))
    where = f"whole blocks, which one wafer must hold, on {systems} systems"
    return _refusal(graph, "cores", ceil(total), cores * systems, "cores", where, systems + 1)


def _refusal(
    graph: KernelGraph, binding: str, need: float, limit: float, unit: str, where: str, enough: int
) -> Infeasible:
    more = f", or at least {enough} systems" if enough else ""
    return Infeasible(
        NAME, graph.name, binding, float(need), float(limit), unit, where, f"use weight streaming{more}"
    )
