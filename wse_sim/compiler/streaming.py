"""The weight streaming compiler: phases of one step, recomputation, spill, lanes, micro-batches.

Symbols: B batch per system, b micro-batch, L lanes, C capacity of the wafer for activations
(program cores x usable SRAM), A bytes the backward pass needs, I bytes of the inputs of the repeated
blocks, W bytes in use while one block runs.

Rules, each a documented or a fitted mechanism:

* one kernel at a time on the whole program rectangle; weights stream in, activations rest;
* parallel products that read one tensor (query, key, value; gate, up) run as one phase;
* keep everything if ``A + W <= C``; else keep only the inputs of the blocks and run each block forward
  again before its backward pass; what of ``I`` exceeds ``C - W`` is spilled to the activation servers;
* one number of lanes for the whole model, the one of least compute time;
* a phase of matrix products takes at least the launch floor; attention holds two products forward and
  four backward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from wse_sim.compiler.plan import CoreMemory, Infeasible, StreamedPhase, WeightStreamingPlan
from wse_sim.compiler.pricing import Prices, parts_of
from wse_sim.errors import ModelError
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer
from wse_sim.kernels import family

STREAMED_WEIGHT_BYTES = 2  # weights and gradients cross the wafer's edge in a 16-bit type
INDEX_BYTES = 2  # a sparse weight carries its 16-bit index in the other half of its wavelet
MAX_LANES = 32
# fp32 master weight, and fp32 moments, that MemoryX reads and writes per parameter and step.
OPTIMIZER_TRAFFIC_BYTES = {"sgd": 10, "momentum": 18, "adamw": 26, "adam": 26}
OPTIMIZER_STATE_BYTES = {"sgd": 4, "momentum": 8, "adamw": 12, "adam": 12}


@dataclass(frozen=True)
class StreamingChoice:
    """What a user may fix; None leaves it to the compiler."""

    micro_batch: int | None = None
    lanes: int | None = None
    recompute: str | None = None
    weight_density: float = 1.0
    search_micro_batch: bool = False


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
        If batch, systems, micro-batch or density are impossible.
    """
    choice = choice or StreamingChoice()
    _check(batch, systems, cluster, choice)
    state_bytes = graph.parameters * (4 + OPTIMIZER_STATE_BYTES.get(_optimizer(graph), 0))
    if state_bytes > cluster.memoryx_bytes:
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
    per_system = -(-batch // systems)
    if choice.search_micro_batch and choice.micro_batch is None:
        return _best_micro_batch(graph, wafer, cluster, batch, systems, choice)
    micro_batch = min(choice.micro_batch or per_system, per_system)
    while True:
        plan = _plan(graph, wafer, cluster, batch, systems, micro_batch, choice)
        if isinstance(plan, WeightStreamingPlan) or choice.micro_batch or micro_batch == 1:
            return plan
        micro_batch = -(-micro_batch // 2)


def _check(batch: int, systems: int, cluster: Cluster, choice: StreamingChoice) -> None:
    if batch < 1 or systems < 1:
        raise ModelError(f"batch {batch} on {systems} systems is impossible; both must be at least 1")
    if systems > cluster.max_systems:
        raise ModelError(
            f"{systems} systems exceed the {cluster.max_systems} of cluster '{cluster.name}'; use fewer systems"
        )
    if not 0 < choice.weight_density <= 1:
        raise ModelError(
            f"weight density {choice.weight_density} is outside (0, 1]; give the share of non-zero weights"
        )
    if choice.micro_batch is not None and choice.micro_batch < 1:
        raise ModelError(f"micro-batch {choice.micro_batch} is not positive; give at least 1")
    if choice.lanes is not None and not 1 <= choice.lanes <= MAX_LANES:
        raise ModelError(
            f"{choice.lanes} lanes are outside 1 to {MAX_LANES}; choose within or leave it to the compiler"
        )
    if choice.recompute not in (None, "none", "full"):
        raise ModelError(f"recompute '{choice.recompute}' is unknown; use none or full")


def _optimizer(graph: KernelGraph) -> str:
    for kernel in graph.kernels:
        if kernel.phase is Phase.UPDATE:
            return str(kernel.attrs.get("algorithm", "adamw"))
    return ""


def _best_micro_batch(
    graph: KernelGraph, wafer: Wafer, cluster: Cluster, batch: int, systems: int, choice: StreamingChoice
) -> WeightStreamingPlan | Infeasible:
    """Try divisors of the batch per system and keep the plan of least estimated time."""
    per_system = -(-batch // systems)
    best: tuple[float, WeightStreamingPlan | Infeasible] | None = None
    for micro_batch in [d for d in range(1, per_system + 1) if per_system % d == 0][-12:]:
        plan = _plan(graph, wafer, cluster, batch, systems, micro_batch, choice)
        time_s = float("inf") if isinstance(plan, Infeasible) else estimate_step_s(plan)
        if best is None or time_s <= best[0]:
            best = (time_s, plan)
    if best is None:
        raise ModelError(f"batch {batch} leaves no micro-batch; ask for at least one sample per system")
    return best[1]


def estimate_step_s(plan: WeightStreamingPlan) -> float:
    """Time of a step if phases follow each other without waiting for the first weights."""
    clock, io = plan.wafer.clock_hz, plan.wafer.io_bytes_per_s
    spill_rate = plan.cluster.activation_server_bytes_per_s
    one = sum(
        max(p.compute_cycles / clock, p.weight_bytes / io, p.gradient_bytes / io, p.floor_s)
        + p.spill_bytes / spill_rate
        for p in plan.phases
    )
    return one * plan.micro_batches


def _plan(
    graph: KernelGraph,
    wafer: Wafer,
    cluster: Cluster,
    batch: int,
    systems: int,
    micro_batch: int,
    choice: StreamingChoice,
) -> WeightStreamingPlan | Infeasible:
    per_system = -(-batch // systems)
    stated = graph.with_samples(micro_batch)
    capacity = float(wafer.program_cores * wafer.sram_usable_bytes)
    need = _memory_need(stated)
    recompute = choice.recompute or (
        "none" if not stated.training or need.kept + need.working <= capacity else "full"
    )
    resident = need.kept if recompute == "none" else need.block_inputs
    if need.working > capacity:
        return _does_not_fit(graph, need, micro_batch, capacity)
    spilled = max(0.0, resident + need.working - capacity)
    if spilled > cluster.activation_server_bytes:
        return Infeasible(
            mode="weight-streaming",
            model=graph.name,
            binding="activation server capacity",
            need=spilled,
            limit=float(cluster.activation_server_bytes),
            unit="bytes",
            where=f"cluster '{cluster.name}'",
            remedy="use a smaller micro-batch or more systems",
        )
    work = _with_recompute(stated, recompute)
    prices = Prices(wafer, {"training": stated.training})
    lanes = choice.lanes or _best_lanes(work, prices, wafer)
    phases = _phases(stated, work, prices, wafer, lanes, spilled, recompute, choice.weight_density)
    resident_kept = resident - spilled
    return WeightStreamingPlan(
        graph=stated,
        wafer=wafer,
        cluster=cluster,
        systems=systems,
        batch=batch,
        batch_per_system=per_system,
        micro_batch=micro_batch,
        micro_batches=-(-per_system // micro_batch),
        lanes=lanes,
        recompute=recompute,
        phases=phases,
        memory=_core_memory(work, prices, wafer, lanes, resident_kept + need.working),
        spilled_bytes=spilled,
        optimizer_bytes_per_parameter=float(OPTIMIZER_TRAFFIC_BYTES.get(_optimizer(graph), 0)),
        weight_density=choice.weight_density,
        notes=_notes(graph, recompute, spilled, lanes),
    )


@dataclass(frozen=True)
class _Need:
    """Bytes of activations of one micro-batch: all that backward needs, block inputs, one block at work."""

    kept: float
    block_inputs: float
    working: float


def _blocks(graph: KernelGraph) -> dict[str, int]:
    """Block number of every forward kernel that belongs to a repeat."""
    numbers: dict[str, int] = {}
    count = 0
    for repeat in graph.repeats:
        for instance in repeat.instances:
            for name in instance:
                numbers.setdefault(name, count)
            count += 1
    return numbers


def _memory_need(graph: KernelGraph) -> _Need:
    blocks = _blocks(graph)
    forward = [k for k in graph.kernels if k.phase is Phase.FORWARD]
    kept = float(sum(k.saved_bytes for k in forward))
    per_block: dict[int, float] = {}
    outside = 0.0
    for kernel in forward:
        number = blocks.get(kernel.name)
        if number is None:
            outside += kernel.saved_bytes
        else:
            per_block[number] = per_block.get(number, 0.0) + _working_bytes(kernel)
    largest_tensor = max(
        (t.bytes for k in forward for name in k.outputs if (t := graph.tensors.get(name)) is not None),
        default=0,
    )
    if not graph.training:
        return _Need(0.0, 0.0, 3.0 * largest_tensor)
    inputs = outside + sum(_block_input_bytes(graph, blocks).values())
    # While a block runs backward its saved tensors and the gradient of its largest tensor are in use.
    return _Need(kept, inputs, max(per_block.values(), default=0.0) + largest_tensor)


def _working_bytes(kernel: Kernel) -> float:
    """What a kernel holds while its block is at work: scores of attention exist for one head at a time."""
    scores = float(kernel.attrs.get("score_bytes", 0))
    heads = max(1, int(kernel.dims.get("heads", 1)))
    return kernel.saved_bytes - scores + scores / heads


def _block_input_bytes(graph: KernelGraph, blocks: dict[str, int]) -> dict[int, float]:
    """Bytes that enter each block from outside it, per-sample tensors only."""
    made_in: dict[str, int | None] = {}
    inputs: dict[int, set[str]] = {}
    for kernel in graph.kernels:
        if kernel.phase is not Phase.FORWARD:
            continue
        number = blocks.get(kernel.name)
        if number is not None:
            entering = {name for name in kernel.inputs if name in made_in and made_in[name] != number}
            inputs.setdefault(number, set()).update(entering)
        for name in kernel.outputs:
            made_in[name] = number
    return {
        number: float(sum(graph.tensors[name].bytes for name in names if graph.tensors[name].per_sample))
        for number, names in inputs.items()
    }


def _does_not_fit(graph: KernelGraph, need: _Need, micro_batch: int, capacity: float) -> Infeasible:
    return Infeasible(
        mode="weight-streaming",
        model=graph.name,
        binding="SRAM",
        need=need.working,
        limit=capacity,
        unit="bytes",
        where=f"one block at micro-batch {micro_batch}",
        remedy="use a smaller micro-batch, a shorter sequence or more systems",
    )


@dataclass(frozen=True)
class _Work:
    """A kernel to run: merged from `members`, perhaps a second forward run."""

    kernel: Kernel
    members: tuple[str, ...]
    recompute: bool = False


def merge_parallel(kernels: Sequence[Kernel]) -> list[_Work]:
    """Make one product of parallel ones: gemms of one phase that read the same tensor.

    Forward ``(m, k) x (k, n_i)`` becomes ``n = sum n_i``; their input gradients add up in one product
    with ``k = sum n_i``; their weight gradients become one of ``n = sum n_i``.
    """
    group_of: dict[str, tuple[object, ...]] = {}
    for kernel in kernels:
        if kernel.family == "gemm" and kernel.phase is Phase.FORWARD and kernel.inputs:
            group_of[kernel.name] = (
                kernel.layer.rpartition(".")[0],
                kernel.inputs[0],
                kernel.dims["m"],
                kernel.dims["k"],
            )
    grouped: dict[tuple[object, ...], list[Kernel]] = {}
    order: list[tuple[object, ...]] = []
    for kernel in kernels:
        forward = kernel.name if kernel.phase is Phase.FORWARD else kernel.forward
        group = group_of.get(forward) if kernel.family == "gemm" else None
        key = (kernel.phase, group) if group is not None else (kernel.name,)
        if key not in grouped:
            order.append(key)
        grouped.setdefault(key, []).append(kernel)
    return [_merged(grouped[key]) for key in order]


def _merged(members: Sequence[Kernel]) -> _Work:
    first = members[0]
    if len(members) == 1:
        return _Work(first, (first.name,))
    wide = "k" if first.phase is Phase.INPUT_GRADIENT else "n"
    total = sum(member.dims[wide] for member in members)
    kernel = dataclasses.replace(
        first,
        dims=frozen({**first.dims, wide: total}),
        flops=sum(member.flops for member in members),
        saved_bytes=sum(member.saved_bytes for member in members),
        parameters=tuple(dict.fromkeys(name for member in members for name in member.parameters)),
        outputs=tuple(dict.fromkeys(name for member in members for name in member.outputs)),
    )
    return _Work(kernel, tuple(member.name for member in members))


def _with_recompute(graph: KernelGraph, recompute: str) -> list[_Work]:
    """The step's work in order; with full recomputation each block runs forward again before backward."""
    blocks = _blocks(graph)
    work = merge_parallel([k for k in graph.kernels if k.phase is not Phase.UPDATE])
    if recompute == "none":
        return work
    forward_of: dict[int, list[_Work]] = {}
    for item in work:
        number = blocks.get(item.kernel.name)
        if item.kernel.phase is Phase.FORWARD and number is not None:
            forward_of.setdefault(number, []).append(item)
    out: list[_Work] = []
    again: set[int] = set()
    for item in work:
        number = blocks.get(item.kernel.forward) if item.kernel.phase is not Phase.FORWARD else None
        if number is not None and number not in again:
            again.add(number)
            out += [dataclasses.replace(w, recompute=True) for w in forward_of.get(number, [])]
        out.append(item)
    return out


def _floor_s(kernel: Kernel, wafer: Wafer) -> float:
    return wafer.launch_floor_s * family(kernel.family).matmul_phases(kernel.phase)


def _best_lanes(work: Iterable[_Work], prices: Prices, wafer: Wafer) -> int:
    lanes = np.arange(1, MAX_LANES + 1)
    rows = np.full(lanes.shape, wafer.program_rows)
    cols = np.full(lanes.shape, wafer.program_cols)
    total_s = np.zeros(lanes.shape)
    for item in work:
        cost = prices.cost(item.kernel, rows, cols, "streamed", lanes)
        total_s += np.maximum(np.asarray(cost.total) / wafer.clock_hz, _floor_s(item.kernel, wafer))
    return int(lanes[np.argmin(total_s)])


def _weight_elements(graph: KernelGraph, kernel: Kernel) -> int:
    return sum(graph.tensors[name].elements for name in kernel.parameters)


def _phases(
    graph: KernelGraph,
    work: Sequence[_Work],
    prices: Prices,
    wafer: Wafer,
    lanes: int,
    spilled: float,
    recompute: str,
    density: float,
) -> tuple[StreamedPhase, ...]:
    blocks = _blocks(graph)
    spill = _spill_shares(graph, blocks, spilled)
    weight_bytes = STREAMED_WEIGHT_BYTES * density + (INDEX_BYTES * density if density < 1 else 0.0)
    phases = []
    out_done: set[int] = set()
    in_done: set[int] = set()
    for item in work:
        kernel = item.kernel
        number = blocks.get(kernel.forward or kernel.name)
        spill_bytes = 0.0
        if number is not None and number in spill:
            forward_now = kernel.phase is Phase.FORWARD and not item.recompute
            done = out_done if forward_now else in_done
            if number not in done:
                done.add(number)
                spill_bytes = spill[number]
        cost = prices.cost(kernel, wafer.program_rows, wafer.program_cols, "streamed", lanes)
        parts = parts_of(cost)
        sparse = (
            kernel.family in ("gemm", "conv2d", "grouped_gemm") and kernel.phase is not Phase.WEIGHT_GRADIENT
        )
        if density < 1 and sparse and kernel.parameters:
            parts["compute"] *= density  # a weight that is not sent triggers nothing
        elements = _weight_elements(graph, kernel)
        gradient = kernel.phase is Phase.WEIGHT_GRADIENT
        phases.append(
            StreamedPhase(
                name=f"{kernel.name}{' (again)' if item.recompute else ''}",
                kernel=kernel.name,
                family=kernel.family,
                layer=kernel.layer,
                phase=kernel.phase,
                recompute=item.recompute,
                compute_cycles=sum(parts.values()),
                parts=frozen(parts),
                weight_bytes=0.0 if gradient else elements * weight_bytes,
                gradient_bytes=elements * STREAMED_WEIGHT_BYTES * density if gradient else 0.0,
                spill_bytes=spill_bytes,
                floor_s=_floor_s(kernel, wafer),
                flops=kernel.flops,
            )
        )
    return tuple(phases)


def _spill_shares(graph: KernelGraph, blocks: dict[str, int], spilled: float) -> dict[int, float]:
    """Spilled bytes of each block: the earliest blocks are needed last, so they go first."""
    shares: dict[int, float] = {}
    left = spilled
    for number, size in sorted(_block_input_bytes(graph, blocks).items()):
        if left <= 0:
            break
        shares[number] = min(size, left)
        left -= shares[number]
    if left > 0 and shares:  # kept tensors beyond block inputs (no recomputation) spill evenly
        extra = left / len(shares)
        shares = {number: size + extra for number, size in shares.items()}
    return shares


def _core_memory(
    work: Sequence[_Work], prices: Prices, wafer: Wafer, lanes: int, activations: float
) -> CoreMemory:
    buffers = code = weights = 0.0
    seen: set[object] = set()
    for item in work:
        if item.kernel.signature in seen:
            continue
        seen.add(item.kernel.signature)
        print_ = prices.footprint(item.kernel, wafer.program_rows, wafer.program_cols, "streamed", lanes)
        weights = max(weights, float(np.asarray(print_.weights_bytes)))
        buffers = max(buffers, float(np.asarray(print_.buffers_bytes)))
        code = max(code, float(np.asarray(print_.code_bytes)))
    return CoreMemory(weights, activations / wafer.program_cores, buffers, code)


def _notes(graph: KernelGraph, recompute: str, spilled: float, lanes: int) -> tuple[str, ...]:
    notes = [f"{lanes} lanes: the number of least compute time"]
    if graph.training:
        text = {
            "none": "all activations fit: nothing is recomputed",
            "full": "activations do not fit: every block runs forward again",
        }
        notes.append(text[recompute])
    if spilled > 0:
        notes.append(
            f"{spilled / 1e9:.1f} GB of block inputs are spilled to activation servers, not overlapped (assumed)"
        )
    if any(k.family == "attention" and k.attrs.get("causal") for k in graph.kernels):
        notes.append("causal attention computes all scores")
    return (*graph.notes, *notes)
