"""Makes the result of a generation run: a sample is a token, a step is one token of every request.

The link map counts the words of decoding's all-reduces. In a layer each all-reduce of n words crosses every
link of its line twice toward the middle (inside groups, then between their roots) and once back::

    down the columns   statistics, values, and the products of the residual stream (q, k, v; gate, up)
    along the rows     scores; attention output, down projection

The map leaves out the words that travel between regions (hidden x 2 bytes per token).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import Region
from wse_sim.engine.result import KernelUse, Result, areas_of, tracks_of
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.contract.family import Role
from wse_sim.kernels.contract.registry import role_of
from wse_sim.modes.generation.plan import GenerationPlan, LayerRegion
from wse_sim.modes.generation.run import GenerationRun

NORTH, EAST, SOUTH, WEST = range(4)
TOKEN_BYTES = 4  # number of a token, from and to the host


def collect(run: GenerationRun) -> Result:
    """Return the result of a run."""
    plan, step_s = run.plan, run.round_s
    kernels = tuple(_use(plan, item, step_s) for item in plan.regions)
    here = [item for item in plan.regions if item.wafer == 0]
    areas = areas_of(kernels)
    timeline = run.trace.slices()
    flops = _flops_per_token(plan) * plan.batch
    tokens_per_s = plan.batch / step_s
    bindings = {"latency": plan.latency_s, "stage": plan.batch * plan.stage_s}
    io_tokens = plan.wafer.io_bytes_per_s / TOKEN_BYTES
    notes = [*plan.notes, *run.trace.notes(), "a sample is a token, a step one token of every request"]
    if len(here) < len(plan.regions):
        notes.append(f"maps show the first of {plan.regions[-1].wafer + 1} wafers")
    return Result(
        model=plan.graph.name,
        mode=plan.mode,
        phase="decode",
        systems=plan.systems,
        batch=plan.batch,
        samples_per_s=tokens_per_s,
        compute_samples_per_s=tokens_per_s,
        transmission_samples_per_s=io_tokens,
        active_pe_fraction=sum(item.region.cores for item in plan.regions)
        / (plan.systems * plan.wafer.cores),
        compute_utilization=sum(use.utilization for use in kernels) / len(kernels),
        step_s=step_s,
        mfu=flops / step_s / (plan.systems * plan.wafer.peak_fp16_flops_per_s),
        binding="latency" if plan.latency_s >= plan.batch * plan.stage_s else "stage",
        bindings=frozen(bindings),
        kernels=kernels,
        timeline=timeline,
        link_wavelets=_wavelets(plan, here),
        conservation=frozen(
            {
                "hidden_states_sent_bytes": 2.0 * plan.hidden * run.sent,
                "hidden_states_received_bytes": 2.0 * plan.hidden * run.received,
            }
        ),
        plan=plan,
        flops_per_step=flops,
        events=run.env.events,
        extrapolated_samples=0,
        notes=tuple(notes),
        areas=areas,
        tracks=tracks_of(timeline, areas),
        figures=frozen(
            {
                "tokens_per_s_per_user": 1.0 / step_s,
                "tokens_per_s": tokens_per_s,
                "time_to_first_token_s": run.first_token_s,
                "chunk": float(plan.reading.chunk),
                "prefill_tokens_per_s": plan.prefill_tokens_per_s,
                "max_context": float(plan.max_context),
                "max_context_wafer": float(plan.max_context_wafer),
                "cache_bytes_per_token": float(plan.cache_bytes_per_token),
            }
        ),
    )


def _use(plan: GenerationPlan, item: LayerRegion, step_s: float) -> KernelUse:
    """Return the time use of a region: busy with its layers, stalled while a token leaves, else waiting for
    one."""
    busy = plan.batch * plan.token_work_s(item)
    away = plan.batch * item.token_handover_s
    times = plan.batch * item.layers / plan.wafer.clock_hz
    ends = plan.batch / plan.wafer.clock_hz * item.has_ends
    parts = {
        cause: cycles * times + plan.end_parts[cause] * ends for cause, cycles in plan.decode_parts.items()
    }
    bound = max(parts, key=lambda cause: parts[cause])
    return KernelUse(
        name=item.name,
        family="decoder layer" if item.layers else "embedding and head",
        layer="",
        phase="decode",
        count=plan.batch * item.layers,
        cores=item.region.cores,
        busy_s=busy,
        stalled_input_s=max(0.0, step_s - busy - away),
        stalled_output_s=away,
        idle_s=0.0,
        flops=_flops(plan, item) * plan.batch,
        utilization=parts.get("compute", 0.0) / step_s,
        bound=bound,
        bound_fraction=min(1.0, parts[bound] / step_s),
        parts=frozen(parts),
        memory=plan.memory,
        region=item.region if item.wafer == 0 else None,
        block=f"{item.layers} layers",
    )


def _flops(plan: GenerationPlan, item: LayerRegion) -> float:
    """Return the FLOPs of one token in a region: its fraction of the layers, and the head if it is there."""
    head = (
        sum(k.flops for k in plan.graph.kernels if role_of(k) is Role.PRODUCT and not k.layer.count("."))
        / plan.context
    )
    layers = (_flops_per_token(plan) - head) * item.layers / plan.layers
    return layers + (head if item.has_ends else 0.0)


def _flops_per_token(plan: GenerationPlan) -> float:
    """Return the FLOPs of one token that attends to the whole context, including the head."""
    return sum(kernel.flops for kernel in plan.graph.kernels) / plan.context


def _wavelets(plan: GenerationPlan, regions: list[LayerRegion]) -> NDArray[np.float32]:
    """Return the wavelets (rows, cols, 4) per step of the first system."""
    out = np.zeros((plan.wafer.rows, plan.wafer.cols, 4), np.float32)
    work, s = plan.layer, -(-plan.context // plan.grid)
    d, values = -(-plan.hidden // plan.grid), -(-work.query // plan.cols)
    across = sum(p.times * d for p in work.products if p.n == plan.hidden and p.k != plan.hidden)
    square = sum(p.times for p in work.products if p.n == p.k == plan.hidden)
    down = sum(p.times * -(-p.n // plan.cols) for p in work.products if p.n != plan.hidden)
    # One of the square products is the projection of attention's result, if that is as wide as the stream.
    output = 1.0 if square and work.query == plan.hidden else 0.0
    down += (square - output) * -(-plan.hidden // plan.cols)
    for item in regions:
        runs = plan.batch * item.layers
        _add_line(out, item.region, runs * (work.statistics + values + down), is_column=True)
        _add_line(out, item.region, runs * (s + across + output * d), is_column=False)
    return out


def _add_line(out: NDArray[np.float32], area: Region, words: float, *, is_column: bool) -> None:
    """Add the words of an all-reduce on every column (or row) of a region: two reductions to the middle, one broadcast back."""
    view = out[area.row : area.row + area.rows, area.col : area.col + area.cols]
    forward, back = (SOUTH, NORTH) if is_column else (EAST, WEST)
    if not is_column:
        view = view.transpose(1, 0, 2)
    half = view.shape[0] // 2
    view[:half, :, forward] += 2 * words
    view[1 : half + 1, :, back] += words
    view[half + 1 :, :, back] += 2 * words
    view[half:-1, :, forward] += words
