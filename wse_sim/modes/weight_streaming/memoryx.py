"""MemoryX: stores the weights, streams them in layer order, receives gradients, runs the optimizer.

Symbols: for a phase of W weight bytes, G gradient bytes, M bytes/s out of MemoryX, U bytes/s of
optimizer traffic, a bytes of traffic per parameter, D phases of prefetch, d latency of SwarmX::

    first weights at the wafer   start + d
    last weights at the wafer    start + d + W / M
    start                        at most D phases are ahead of the wafer, one stream at a time
    update                       (G / 2) a / U       gradients cross the edge in 16 bits
    sum of a micro-batch         2 G / U             all but the last: read, add, write

* Prefetched weights wait in MemoryX and SwarmX, not on the wafer, which uses a weight on arrival.
* The forward weights of a step wait for their update in the previous step: the iteration boundary.
* Gradients of every micro-batch leave the wafer, which has no memory to sum them. At most D phases of gradients
  wait for MemoryX; then the wafer stalls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Generator

import simpy

from wse_sim.engine.result import Slice
from wse_sim.engine.trace import RunTrace
from wse_sim.graph import Phase
from wse_sim.modes.weight_streaming.plan import STREAMED_WEIGHT_BYTES, WeightStreamingPlan
from wse_sim.modes.weight_streaming.swarmx import SwarmX

Events = Generator[simpy.Event, object, None]
Gradient = tuple[int, float, bool, int, float]  # phase, bytes, is the last micro-batch, step, arrival


class MemoryX:
    """The weight servers as two processes: weights out, gradients in."""

    def __init__(
        self,
        env: simpy.Environment,
        plan: WeightStreamingPlan,
        swarmx: SwarmX,
        trace: RunTrace,
        *,
        steps: int,
        micro_batches: int,
    ) -> None:
        self.env = env
        self.sent_bytes = 0.0
        self.received_bytes = 0.0
        self.update_s = 0.0  # of the current step
        depth = plan.cluster.weight_prefetch_phases
        self.gradients = simpy.Store(env, capacity=depth)
        self._plan = plan
        self._trace = trace
        self._steps = steps
        self._micro_batches = micro_batches
        self._latency_s = swarmx.latency_s
        self._bytes_per_s = min(plan.cluster.memoryx_bytes_per_s, swarmx.bytes_per_s)
        self._free = depth
        self._slot: simpy.Event | None = None
        self._ahead: deque[tuple[float, float]] = deque()
        self._hungry: simpy.Event | None = None
        self._updates = updates_of(plan)
        self._needs: dict[int, int] = {}
        for targets in self._updates.values():
            for target in targets:
                self._needs[target] = self._needs.get(target, 0) + 1
        self._missing: dict[tuple[int, int], int] = {}
        self._fresh: dict[tuple[int, int], simpy.Event] = {}
        env.process(self._stream())
        if any(phase.gradient_bytes for phase in plan.phases):
            env.process(self._take())

    def next_weights(self) -> Generator[simpy.Event, object, tuple[float, float]]:
        """Wait for the stream of the next phase; return when its first and last words arrive at the wafer."""
        if not self._ahead:
            self._hungry = self.env.event()
            yield self._hungry
        times = self._ahead.popleft()
        self._trace.count("phases prefetched", self.env.now, len(self._ahead))
        return times

    def release(self) -> None:
        """Record that the wafer has used a stream, so that another one may be prefetched."""
        self._free += 1
        if self._slot is not None:
            self._slot.succeed()
            self._slot = None

    def _stream(self) -> Events:
        env = self.env
        weighted = [(i, p) for i, p in enumerate(self._plan.phases) if p.weight_bytes]
        for step in range(self._steps):
            for micro_batch in range(self._micro_batches):
                for index, phase in weighted:
                    if step and not micro_batch and index in self._needs:
                        yield self._updated(step - 1, index)
                    if not self._free:
                        self._slot = env.event()
                        yield self._slot
                    self._free -= 1
                    self.sent_bytes += phase.weight_bytes
                    first = env.now + self._latency_s
                    duration = phase.weight_bytes / self._bytes_per_s
                    self._ahead.append((first, first + duration))
                    if self._hungry is not None:
                        self._hungry.succeed()
                        self._hungry = None
                    yield env.timeout(duration)

    def _updated(self, step: int, target: int) -> simpy.Event:
        key = (step, target)
        if key not in self._fresh:
            self._fresh[key] = self.env.event()
        return self._fresh[key]

    def _take(self) -> Events:
        env, plan = self.env, self._plan
        rate = plan.cluster.memoryx_update_bytes_per_s
        while True:
            item: Gradient = yield self.gradients.get()  # type: ignore[assignment]
            index, size, is_last, step, arrival = item
            if arrival > env.now:
                yield env.timeout(arrival - env.now)
            self.received_bytes += size
            if is_last:
                traffic = size / STREAMED_WEIGHT_BYTES * plan.optimizer_bytes_per_parameter
            else:
                traffic = 2 * size
            name = plan.phases[index].name
            self._trace.span(
                Slice("memoryx update", name, "update", env.now, traffic / rate, size, role=name)
            )
            self.update_s += traffic / rate
            yield env.timeout(traffic / rate)
            if is_last:
                self._book_update(step, index)

    def _book_update(self, step: int, index: int) -> None:
        for target in self._updates.get(index, ()):
            key = (step, target)
            self._missing[key] = self._missing.get(key, self._needs[target]) - 1
            if not self._missing[key]:
                self._updated(step, target).succeed()


def updates_of(plan: WeightStreamingPlan) -> dict[int, list[int]]:
    """Return the forward phases that stream weights which a weight-gradient phase changes, by index of the
    phase.

    A phase may comprise several parallel products and is named after the first. A product whose name is not
    that of a forward phase belongs to the last forward phase that starts before it.
    """
    known = {kernel.name: kernel for kernel in plan.graph.kernels}
    order = {kernel.name: i for i, kernel in enumerate(plan.graph.kernels)}
    forward = [
        i
        for i, p in enumerate(plan.phases)
        if p.phase is Phase.FORWARD and not p.recompute and p.weight_bytes
    ]
    by_kernel = {plan.phases[i].kernel: i for i in forward}
    by_layer = {plan.phases[i].layer: i for i in forward if plan.phases[i].layer}
    by_parameter: dict[str, set[int]] = {}
    for i in forward:
        for name in known[plan.phases[i].kernel].parameters if plan.phases[i].kernel in known else ():
            by_parameter.setdefault(name, set()).add(i)
    begun = sorted((order[plan.phases[i].kernel], i) for i in forward if plan.phases[i].kernel in order)
    out: dict[int, list[int]] = {}
    for index, phase in enumerate(plan.phases):
        if not phase.gradient_bytes:
            continue
        targets: set[int] = set()
        kernel = known.get(phase.kernel)
        name = kernel.forward if kernel is not None and kernel.forward else phase.kernel
        if name in by_kernel:
            targets.add(by_kernel[name])
        elif name in order and begun:
            position = bisect_right(begun, (order[name], len(plan.phases)))
            if position:
                targets.add(begun[position - 1][1])
        elif phase.layer in by_layer:
            targets.add(by_layer[phase.layer])
        for parameter in kernel.parameters if kernel is not None else ():
            targets |= by_parameter.get(parameter, set())
        out[index] = sorted(targets)
    return out
