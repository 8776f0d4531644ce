"""The schedule of weight streaming as a recurrence: the step time without events, for ratios and for studies.

All waits between the processes of :mod:`run` and :mod:`memoryx` can be written as maxima.  Symbols: n the
n-th stream of weights, j the j-th gradient, D phases of prefetch, d latency of SwarmX, W / M seconds of a stream::

    stream      s_n = max(s_{n-1} + W_{n-1} / M, update of its weights, end of the phase of stream n - D)
    phase       b   = max(end before, s_n + d)
                a   = min(P / B, max(0, b - max(s_n + d, last of the weights before)))
                e   = b + max(c / f, W / B - a + v / f, s_n + d + W / M - b + v / f, G / B + v / f, t) + X / A
    gradient    put_j  = max(e, get_{j-D})         the wafer continues
                get_j  = max(put_j, done_{j-1})
                done_j = max(get_j, e + d) + update
    input       batch n is there at max(batch n - 1 there, begin of n - 2) + samples / rate

The result equals that of the simulation up to rounding; jitter and skew are not included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wse_sim.engine.host import InputPath
from wse_sim.hardware import Cluster, Wafer
from wse_sim.jit import kernel
from wse_sim.modes.weight_streaming.memoryx import updates_of
from wse_sim.modes.weight_streaming.plan import STREAMED_WEIGHT_BYTES, WeightStreamingPlan
from wse_sim.modes.weight_streaming.run import INPUT_PREFETCH, SIMULATED_MICRO_BATCHES
from wse_sim.modes.weight_streaming.swarmx import SwarmX

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class PhaseColumns:
    """Fields of the phases that the recurrence reads: one array (phases,) each."""

    compute_cycles: FloatArray
    weight_bytes: FloatArray
    gradient_bytes: FloatArray
    edge_weight_bytes: FloatArray
    edge_gradient_bytes: FloatArray
    floor_s: FloatArray
    spill_bytes: FloatArray
    way_cycles: FloatArray
    ahead_bytes: FloatArray

    @classmethod
    def of(cls, plan: WeightStreamingPlan) -> PhaseColumns:
        """Return the columns of a plan."""
        return cls(
            *(np.array([getattr(phase, name) for phase in plan.phases]) for name in cls.__dataclass_fields__)
        )

    def changed(self, **columns: FloatArray) -> PhaseColumns:
        """Return a copy with other columns."""
        return replace(self, **columns)


def step_seconds(
    plan: WeightStreamingPlan,
    path: InputPath,
    steps: int = 3,
    columns: PhaseColumns | None = None,
    wafer: Wafer | None = None,
    cluster: Cluster | None = None,
) -> float:
    """Return the seconds of the last of `steps` steps, equal to
    :func:`wse_sim.modes.weight_streaming.result.collect`.

    `columns`, `wafer` and `cluster` override those of the plan.
    """
    of, wafer, cluster = columns or PhaseColumns.of(plan), wafer or plan.wafer, cluster or plan.cluster
    swarmx = SwarmX.of(cluster, plan.systems)
    weights, gradients = of.weight_bytes, of.gradient_bytes
    edge = min(wafer.io_bytes_per_s, swarmx.bytes_per_s)
    seconds = np.array(
        (
            of.compute_cycles / wafer.clock_hz,
            of.edge_weight_bytes / edge,
            weights / min(cluster.memoryx_bytes_per_s, swarmx.bytes_per_s),
            of.edge_gradient_bytes / edge,
            of.floor_s,
            of.spill_bytes / min(cluster.activation_server_bytes_per_s, wafer.io_bytes_per_s),
            gradients
            / STREAMED_WEIGHT_BYTES
            * plan.optimizer_bytes_per_parameter
            / cluster.memoryx_update_bytes_per_s,
            2 * gradients / cluster.memoryx_update_bytes_per_s,
            of.way_cycles / wafer.clock_hz,
            of.ahead_bytes / edge,
        )
    )
    first, targets = _update_lists(plan)
    shown = min(plan.micro_batches, SIMULATED_MICRO_BATCHES)
    skipped = plan.micro_batches - shown
    found = 0.0
    for batch_s in (plan.micro_batch / path.samples_per_s, 0.0):  # the host in the loop; input that is free
        ends, added_s = _schedule(
            seconds, weights > 0, gradients > 0, first, targets, steps, shown, skipped,
            cluster.weight_prefetch_phases, swarmx.latency_s, batch_s, cluster.step_overhead_s,
        )  # fmt: skip
        found = max(found, ends[-1] - (ends[-2] if steps > 1 else 0.0) + added_s)
    return max(found, plan.batch_per_system / path.samples_per_s)


def _update_lists(plan: WeightStreamingPlan) -> tuple[IntArray, IntArray]:
    """Return the phases whose weights the update after a phase refreshes, as rows: first[i] to first[i + 1]
    of targets."""

    def make() -> tuple[IntArray, IntArray]:
        lists = updates_of(plan)
        counts = [len(lists.get(i, ())) for i in range(len(plan.phases))]
        flat = [target for i in range(len(plan.phases)) for target in lists.get(i, ())]
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), np.array(flat, np.int64)

    # Phases depend only on the graph and the recomputation, not on the constants.
    return plan.graph.remembered(("updates", plan.recompute, len(plan.phases)), make)


@kernel
def _schedule(
    seconds: FloatArray,  # (10, phases): compute, weights at the edge, stream, gradients, floor, spill, update, sum, way, ahead
    has_weights: NDArray[np.bool_],
    has_gradients: NDArray[np.bool_],
    first: IntArray,
    targets: IntArray,
    steps: int,
    micro_batches: int,
    skipped: int,
    depth: int,
    latency_s: float,
    batch_s: float,
    overhead_s: float,
) -> tuple[FloatArray, float]:
    """Return the ends of the steps (steps,), and the seconds of the parts of the last step that are not simulated."""
    phases = has_weights.shape[0]
    ends = np.zeros(steps)
    needs = np.zeros(phases, np.int64)
    for target in targets:
        needs[target] += 1
    fresh, coming = np.zeros(phases), np.zeros(phases)
    released, got = np.zeros(depth), np.zeros(depth)  # of the last `depth` streams and gradients, in a ring
    streams = taken = batches = 0
    stream_free = taker_free = now = added_s = edge_free = 0.0
    there = before = 0.0  # when the host gave the last batch; when the wafer began the one before it
    begun = 0.0
    for step in range(steps):
        for micro_batch in range(micro_batches):
            begin = now
            if batch_s > 0.0:
                there = max(there + batch_s, before if batches >= INPUT_PREFETCH else 0.0)
                now = max(now, there)
                before, begun = begun, now
                batches += 1
            is_last = micro_batch == micro_batches - 1
            for i in range(phases):
                first_word, last_word = now, now
                if has_weights[i]:
                    start = max(stream_free, released[streams % depth])
                    if step > 0 and micro_batch == 0 and needs[i] > 0:
                        start = max(start, fresh[i])
                    stream_free = start + seconds[2, i]
                    first_word, last_word = start + latency_s, start + latency_s + seconds[2, i]
                start_s = max(now, first_word)
                stream_s = last_word - start_s if has_weights[i] else 0.0
                busy_s = max(seconds[0, i], seconds[4, i])
                if has_weights[i]:
                    ahead_s = min(seconds[9, i], max(0.0, start_s - max(first_word, edge_free)))
                    weights_s = max(seconds[1, i] - ahead_s, stream_s)
                    edge_free = start_s + weights_s
                    busy_s = max(busy_s, weights_s + seconds[8, i])
                if has_gradients[i]:
                    busy_s = max(busy_s, seconds[3, i] + seconds[8, i])
                now = start_s + busy_s + seconds[5, i]
                if has_weights[i]:
                    released[streams % depth] = now
                    streams += 1
                if has_gradients[i]:
                    arrival = now + latency_s
                    now = max(now, got[taken % depth])
                    get = max(now, taker_free)
                    got[taken % depth] = get
                    taken += 1
                    taker_free = max(get, arrival) + (seconds[6, i] if is_last else seconds[7, i])
                    if is_last:
                        for k in range(first[i], first[i + 1]):
                            coming[targets[k]] = taker_free
            if skipped > 0 and micro_batch == micro_batches - 2:
                added_s = skipped * (now - begin)
        for i in range(phases):
            fresh[i] = coming[i]
        now += overhead_s
        ends[step] = now
    return ends, added_s
