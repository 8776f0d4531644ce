"""Traffic on the fabric's links: what the busiest link allows, and maps of wavelets per step.

Weight streaming has no routes in its plan; its traffic follows from the mapping (hidden over columns,
tokens over rows, L lanes of ``c = C // L`` columns on R rows) and is stated here, per step and system:

* Weights: W bytes enter half at the west and half at the east edge, evenly over the rows; along a row
  they pass column x of their half (half width H) as long as a column beyond x needs them, a share
  ``min(1, (H - x) / c)``; inside a column, words that entered at row e run north and south to all rows.
* Gradients: the same paths backwards (sums run to the rows of the edge where they leave).
* Partial sums: a product (M, K) x (K, N) adds up over the c columns of a lane along each row:
  ``M N / (R L)`` fp32 words on every eastward link inside a lane, in every forward and input-gradient
  phase with streamed weights.
* Spilled activations and input: evenly over the rows, to and from the columns of their half.

The timeline of a pipelined run shows the bundles of links that streams take longest.  A slice is the time
in which the words of one sample leave the producer, from its first row to its last; at least the time the
bundle needs for them::

    end      max(begin + s, max over inputs of (their end + h) + s / n) + fill      (as in the region)
    start    min(start of the pass + (end of the pass - start) / n + fill, end - bytes / (width B))
"""

from __future__ import annotations

from collections import defaultdict
from math import sqrt
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import PipelinedPlan, Region, StreamedPhase, WeightStreamingPlan
from wse_sim.engine.result import QueueUse
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.units import BYTES_PER_WAVELET, cycles_to_s

if TYPE_CHECKING:
    from wse_sim.compiler.plan import Stream
    from wse_sim.engine.pipelined import PipelinedRun
    from wse_sim.engine.region import Lane

NORTH, EAST, SOUTH, WEST = range(4)
STREAMED_WEIGHT_BYTES = 2
MAX_BUNDLES = 8  # streams whose links the timeline of a pipelined run shows


def busiest_link_s(plan: PipelinedPlan) -> float:
    """Seconds per sample of the whole model that the busiest link of the fabric is taken."""
    return cycles_to_s(plan.link_cycles, plan.wafer.clock_hz) / plan.replicas


def pipelined_wavelets(plan: PipelinedPlan) -> NDArray[np.float32]:
    """(rows, cols, 4) wavelets per step: every sample crosses the links of its replica."""
    samples = plan.batch / plan.replicas
    return (plan.link_bytes_per_sample * np.float32(samples / BYTES_PER_WAVELET)).astype(np.float32)


def program_region(wafer: Wafer, lanes: int) -> Region:
    """The rectangle of cores that weight streaming uses: whole lanes only, in the middle of the fabric."""
    cols = lanes * (wafer.program_cols // lanes)
    return Region(
        (wafer.rows - wafer.program_rows) // 2,
        (wafer.cols - wafer.program_cols) // 2,
        wafer.program_rows,
        cols,
        wafer.program_rows * cols,
    )


def product_outputs(plan: WeightStreamingPlan, phase: StreamedPhase) -> float:
    """Elements that a product with streamed weights makes: M N."""
    weights = phase.weight_bytes / STREAMED_WEIGHT_BYTES
    if weights <= 0 or phase.flops <= 0:
        return 0.0
    # flops = 2 M K N and weights = K N give M; N is near sqrt(K N): the plan's merged products have no
    # single kernel to ask.
    return phase.flops / (2 * weights) * sqrt(weights)


def streaming_wavelets(plan: WeightStreamingPlan, input_bytes: float) -> NDArray[np.float32]:
    """(rows, cols, 4) wavelets per step of one system; `input_bytes` enter per step."""
    wafer = plan.wafer
    area = program_region(wafer, plan.lanes)
    out = np.zeros((wafer.rows, wafer.cols, 4), np.float32)
    view = out[area.row : area.row + area.rows, area.col : area.col + area.cols]
    times = plan.micro_batches
    weights = times * sum(p.weight_bytes for p in plan.phases) / BYTES_PER_WAVELET
    gradients = times * sum(p.gradient_bytes for p in plan.phases) / BYTES_PER_WAVELET
    local = (times * sum(p.spill_bytes for p in plan.phases) + input_bytes) / BYTES_PER_WAVELET
    _add_broadcast(view, weights, plan.lanes, is_reduced=False)
    _add_broadcast(view, gradients, plan.lanes, is_reduced=True)
    _add_local(view, local)
    sums = times * sum(
        product_outputs(plan, p)
        for p in plan.phases
        if p.phase in (Phase.FORWARD, Phase.INPUT_GRADIENT) and p.weight_bytes
    )
    lane = area.cols // plan.lanes
    inner = np.arange(area.cols) % lane != lane - 1
    view[:, inner, EAST] += sums / (area.rows * plan.lanes)
    return out


def _add_broadcast(view: NDArray[np.float32], wavelets: float, lanes: int, *, is_reduced: bool) -> None:
    rows, cols = view.shape[:2]
    lane = cols // lanes
    half = cols // 2
    steps = np.arange(cols)
    per_row = wavelets / rows
    # One half of the columns is fed from the west edge, the other from the east edge; each half carries
    # every weight that one of its columns needs.
    eastward = np.where(steps < half - 1, np.clip((half - 1 - steps) / lane, 0, 1), 0) * per_row
    beyond = steps - half
    westward = np.where(beyond > 0, np.clip(beyond / lane, 0, 1), 0) * per_row
    per_column = wavelets / lane
    row = np.arange(rows)
    south = per_column * (row + 1) / rows * (row < rows - 1)
    north = per_column * (rows - row) / rows * (row > 0)
    if is_reduced:
        # The link from a to b of the broadcast is the link from b to a of the reduction.
        view[:, 1:, WEST] += eastward[:-1]
        view[:, :-1, EAST] += westward[1:]
        view[1:, :, NORTH] += south[:-1, None]
        view[:-1, :, SOUTH] += north[1:, None]
    else:
        view[:, :, EAST] += eastward
        view[:, :, WEST] += westward
        view[:, :, SOUTH] += south[:, None]
        view[:, :, NORTH] += north[:, None]


def _add_local(view: NDArray[np.float32], wavelets: float) -> None:
    rows, cols = view.shape[:2]
    half = cols // 2
    steps = np.arange(cols)
    per_row = wavelets / rows / cols
    view[:, :, EAST] += np.where(steps < half, half - 1 - steps, 0) * per_row
    view[:, :, WEST] += np.where(steps >= half, steps - half, 0) * per_row


# Queues and the timeline of pipelined runs


def queue_uses(run: PipelinedRun) -> tuple[QueueUse, ...]:
    """High water in front of every region, from the starts of all passes.

    A reader that starts a sample in the same cycle as the producer starts another has taken it before.
    """
    fullest: dict[str, tuple[int, int]] = {}
    moves: dict[str, list[tuple[float, float]]] = defaultdict(list)  # time, bytes
    by_name = {region.stage.name: region for region in run.regions}
    for stream in run.plan.streams:
        producer, reader = by_name[stream.producer], by_name[stream.consumer]
        ways = [(producer.forward, reader.forward, stream.bytes_per_sample)]
        if run.training:
            ways.append((reader.backward, producer.backward, stream.backward_bytes_per_sample))
        for sender, receiver, size in ways:
            sent, taken = _starts(sender), _starts(receiver)
            waiting = np.arange(1, len(sent) + 1) - np.searchsorted(taken, sent, side="right")
            name = receiver.region.stage.name
            found = (int(waiting.max(initial=0)), stream.capacity_samples)
            fullest[name] = max(fullest.get(name, found), found)
            moves[name] += [(time, size) for time in sent] + [(time, -size) for time in taken]
    uses = []
    for name in by_name:
        samples, capacity = fullest.get(name, (0, 0))
        steps = np.cumsum([size for _, size in sorted(moves[name])])
        uses.append(QueueUse(name, samples, capacity, float(steps.max(initial=0.0))))
    return tuple(uses)


def add_link_spans(run: PipelinedRun) -> None:
    """Write the busiest streams' bundles of links into the timeline."""
    plan, trace = run.plan, run.trace
    begins: dict[tuple[str, str], list[float]] = defaultdict(list)
    for track, name, start, _ in trace.spans():
        begins[track, name.split(" ", 1)[0]].append(start)
    ends = _pass_ends(run, begins)
    by_name = {region.stage.name: region for region in run.regions}
    rate = plan.wafer.link_bytes_per_cycle / plan.wafer.wavelet_cycles
    rows: list[tuple[float, str, str, str, float, float, int]] = []
    for stream in _busiest_streams(plan):
        for backward in (False, True)[: 1 + plan.graph.training]:
            sender = by_name[stream.consumer if backward else stream.producer]
            lane = sender.backward if backward else sender.forward
            size = stream.backward_bytes_per_sample if backward else stream.bytes_per_sample
            least = size / (stream.width * rate)
            receiver = stream.producer if backward else stream.consumer
            track = f"links {sender.stage.name} > {receiver}"
            free, kept = 0.0, ends[lane]
            for sample, (start, end) in enumerate(zip(_starts(lane)[: len(kept)], kept, strict=True)):
                fill = sender.stage.latency_cycles
                first = start + (end - start) / sender.stage.rows_per_sample
                begin = max(min(first, end - least) + fill, free)
                free = max(end + fill, begin)
                rows.append(
                    (begin, track, f"{stream.tensor} {sample}", lane.name, free - begin, size, sample)
                )
    categories = {"forward": "activations", "backward": "gradients"}
    for begin, track, name, direction, length, size, sample in sorted(rows):
        trace.span(track, name, categories[direction], begin, length, size, sample, is_resource=True)


def _busiest_streams(plan: PipelinedPlan) -> list[Stream]:
    """Streams by the time that a sample holds their links; one of each pair of stages."""
    streams = sorted(
        plan.streams,
        key=lambda s: (-(s.bytes_per_sample + s.backward_bytes_per_sample) / s.width, s.producer, s.consumer),
    )
    found: dict[tuple[str, str], Stream] = {}
    for stream in streams:
        found.setdefault((stream.producer, stream.consumer), stream)
    return list(found.values())[:MAX_BUNDLES]


def _starts(lane: Lane) -> list[float]:
    return [start for step in lane.starts for start in step]


def _pass_ends(run: PipelinedRun, begins: dict[tuple[str, str], list[float]]) -> dict[Lane, list[float]]:
    """When every pass in the timeline ended, from when its cycles began and when its inputs ended."""
    order: nx.DiGraph = nx.DiGraph()
    for region in run.regions:
        order.add_nodes_from(region.lanes)
        if run.training and region.is_sink:
            order.add_edge(region.forward, region.backward)
    for region in run.regions:
        for lane in region.lanes:
            order.add_edges_from((link.other, lane) for link in lane.before)
    ends: dict[Lane, list[float]] = {}
    for lane in nx.topological_sort(order):
        stage = lane.region.stage
        found = []
        for sample, begin in enumerate(begins[stage.name, lane.name]):
            arrivals = [
                ends[k.other][sample] + k.other.region.stage.latency_cycles + k.travel for k in lane.before
            ]
            if lane is lane.region.backward and lane.region.is_sink:
                arrivals.append(ends[lane.region.forward][sample] + stage.latency_cycles)
            last = max(arrivals, default=0.0)
            end = begin + lane.cycles
            found.append(max(end, last + lane.cycles / stage.rows_per_sample) if arrivals else end)
        ends[lane] = found
    return ends
