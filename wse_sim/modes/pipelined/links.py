"""Traffic on the links of a pipelined run: limit of the busiest link, wavelets per step, queues.

The timeline of a pipelined run shows the bundles of links that streams occupy longest. A slice is the time in
which the words of one sample leave the producer, from its first row to its last, but at least the time that
the bundle needs for them::

    end      max(begin + s, max over inputs of (their end + h) + s / n) + fill      (as in the region, rotation too)
    start    min(start of the pass + (end of the pass - start) / n + fill, end - bytes / (width B))
"""

from __future__ import annotations

from collections import defaultdict
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wse_sim.engine.result import QueueUse, Slice
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.units import BYTES_PER_WAVELET, cycles_to_s

if TYPE_CHECKING:
    from wse_sim.compiler.plan import Stream
    from wse_sim.modes.pipelined.region import Lane
    from wse_sim.modes.pipelined.run import PipelinedRun

MAX_BUNDLES = 8  # streams whose links the timeline of a pipelined run shows


def busiest_link_s(plan: PipelinedPlan) -> float:
    """Return the seconds per sample that the busiest link of the fabric is occupied."""
    return cycles_to_s(plan.link_cycles, plan.wafer.clock_hz) / plan.replicas


def pipelined_wavelets(plan: PipelinedPlan) -> NDArray[np.float32]:
    """Return the wavelets (rows, cols, 4) per step; every sample crosses the links of its replica."""
    samples = plan.batch / plan.replicas
    return (plan.link_bytes_per_sample * np.float32(samples / BYTES_PER_WAVELET)).astype(np.float32)


def queue_uses(run: PipelinedRun) -> tuple[QueueUse, ...]:
    """Return the largest queue in front of every region, from the starts of all passes.

    If reader and producer start samples in the same cycle, the reader counts as first.
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
    """Add the link bundles of the busiest streams to the timeline."""
    plan, trace = run.plan, run.trace
    begins: dict[tuple[str, str], list[float]] = defaultdict(list)
    for span in trace.spans():
        begins[span.track, span.direction].append(span.start_s)
    ends = _pass_ends(run, begins)
    by_name = {region.stage.name: region for region in run.regions}
    rate = plan.wafer.link_bytes_per_cycle / plan.wafer.wavelet_cycles
    categories = {"forward": "activations", "backward": "gradients"}
    rows: list[Slice] = []
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
                fill = lane.fill
                first = start + sender.stage.first_cycles(end - start, lane.row_cycles, fill)
                begin = max(min(first, end - least + fill), free)
                free = max(end + fill, begin)
                name, kind = f"{stream.tensor} {sample}", categories[lane.name]
                rows.append(
                    Slice(
                        track, name, kind, begin, free - begin, size, sample, lane.name, stream.tensor, sample
                    )
                )
    for span in sorted(rows, key=lambda row: (row.start_s, row.track, row.name, row.direction)):
        trace.span(span, is_resource=True)


def _busiest_streams(plan: PipelinedPlan) -> list[Stream]:
    """Return streams sorted by the time that a sample occupies their links; one per pair of stages."""
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
    """Return the end of every pass in the timeline, from the start of its cycles and the end of its
    inputs."""
    before = {lane: {link.other for link in lane.before} for region in run.regions for lane in region.lanes}
    for region in run.regions:
        if run.training and region.is_sink:
            before[region.backward].add(region.forward)
    ends: dict[Lane, list[float]] = {}
    for lane in TopologicalSorter(before).static_order():
        stage = lane.region.stage
        found, starts = [], _starts(lane)
        for sample, begin in enumerate(begins[stage.name, lane.name]):
            arrivals = [ends[k.other][sample] + k.other.fill + k.travel for k in lane.before]
            if lane is lane.region.backward and lane.region.is_sink:
                arrivals.append(ends[lane.region.forward][sample] + stage.latency_cycles)
            last = max(arrivals, default=0.0)
            alone = stage.rotation * lane.cycles
            end = max(begin + lane.cycles, starts[sample] + alone)
            found.append(max(end, last + lane.row_cycles) if arrivals else end)
        ends[lane] = found
    return ends
