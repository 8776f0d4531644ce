"""Time of one batch by formula, which the compiler uses to compare plans.

Symbols: stage k with ``f_k`` cycles forward, ``b_k`` backward, ``u_k`` of the weight update, ``n_k`` rows per
sample, ``l_k`` cycles of fill and room for ``F_k`` samples between their two passes; streams of ``h`` cycles
with room for ``c`` samples; N samples of a batch on one replica; T cycles between two samples without stalls.
A single sample passes every stage as in :mod:`wse_sim.modes.pipelined.region`::

    begin        max over inputs of their first row + h; a barrier waits for their last row
    end          max(begin + f_k, max over inputs of their end + h + f_k / n_k); parallel: w_k for the second f_k
    rows leave   from begin + (end - begin) / n_k + l_k to end + l_k; parallel: from begin + w_k / n_k, the
                 work of its core

and returns along the same streams with ``b_k``. R cores in rotation take R times as long for one sample. With s_k the start of its forward pass at stage k, t_k of its
backward pass and E_k the end of that, samples follow each other at the pace of the slowest loop::

    hold_k = E_k - s_k                                        time that a stage stores a sample
    P = max(hold_k / F_k, (s_consumer - s_producer) / c, (t_producer - t_consumer) / c)
    E = max over k of E_k + u_k
    high = E + (N - 1) max(T, P)                              no stage works on before the first gradient is back
    low  = max(E + (N - 1) max(P, f_k, b_k), s_k + N (f_k + b_k) + max(E - E_k, u_k))      none ever waits
    step = (high + low) / 2                                   training: fill, samples, drain, update
    step = r E' + (N - r) max(max f_k + max b_k, link) + max u_k       training in r rounds; E' is E without updates
    step = N T                                                inference: batches follow without a gap

The formula ignores conflicts of forward and backward passes in a region. The simulation includes them and
determines the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from wse_sim.compiler.plan import Stage
from wse_sim.modes.pipelined.plan import PipelinedPlan

Link = tuple[str, str, float, int]
"""Producer, consumer, cycles of travel, samples that fit between them."""


@dataclass(frozen=True)
class LoneSample:
    """Start and end of the passes of a single sample, in cycles by stage; streams as links."""

    stages: Sequence[Stage]
    links: Sequence[Link]
    forward_begin: dict[str, float]
    backward_begin: dict[str, float]
    backward_end: dict[str, float]

    def hold_cycles(self, stage: str) -> float:
        """Cycles from the start of the forward pass to the end of the backward pass, by stage."""
        return self.backward_end[stage] - self.forward_begin[stage]

    def loop_cycles(self) -> float:
        """Least cycles between two samples that the buffers of stages and streams allow."""
        forward, backward = self.forward_begin, self.backward_begin
        held = (self.hold_cycles(stage.name) / stage.in_flight for stage in self.stages)
        there = ((forward[b] - forward[a]) / room for a, b, _, room in self.links)
        back = ((backward[a] - backward[b]) / room for a, b, _, room in self.links)
        return max(*held, max(there, default=0.0), max(back, default=0.0))

    def rounds_cycles(self, samples: int, round_samples: int, link_cycles: float) -> float:
        """Return the cycles of a batch in rounds: fill, forward passes, backward passes, at the pace of the
        slowest stage of each."""
        end = max(self.backward_end[stage.name] for stage in self.stages)
        forward = max(stage.forward_cycles for stage in self.stages)
        backward = max(stage.backward_cycles for stage in self.stages)
        rounds = ceil(samples / round_samples)
        update = max(stage.update_cycles for stage in self.stages)
        return rounds * end + (samples - rounds) * max(forward + backward, link_cycles) + update

    def batch_cycles(self, samples: int, sample_cycles: float) -> float:
        """Return the cycles of a training batch of `samples` samples, at least `sample_cycles` apart."""
        updates = {stage.name: stage.update_cycles for stage in self.stages}
        end = max(self.backward_end[name] + update for name, update in updates.items())
        loop = self.loop_cycles()
        high = end + (samples - 1) * max(sample_cycles, loop)
        passes = max(max(stage.forward_cycles, stage.backward_cycles) for stage in self.stages)
        low = max(
            self.forward_begin[stage.name]
            + samples * stage.cycles_per_sample
            + max(end - self.backward_end[stage.name], updates[stage.name])
            for stage in self.stages
        )
        return (high + max(low, end + (samples - 1) * max(loop, passes))) / 2


def links_of(plan: PipelinedPlan) -> list[Link]:
    """Return the streams of a plan with their travel times and buffer sizes."""
    return [(s.producer, s.consumer, s.travel_cycles(plan.wafer), s.capacity_samples) for s in plan.streams]


def sample_latency(plan: PipelinedPlan) -> float:
    """Return the forward latency of a single sample, from its first row to its last result: the longest
    path."""
    _, ends = _forward(plan.stages, links_of(plan))
    return max((ends[stage.name] + stage.latency_cycles for stage in plan.stages), default=0.0)


def lone_sample(stages: Sequence[Stage], links: Sequence[Link]) -> LoneSample:
    """Simulate a single sample through the stages and back; `stages` are in dataflow order."""
    forward_begin, forward_end = _forward(stages, links)
    backward_begin, backward_end = _backward(stages, links, forward_end)
    return LoneSample(stages, links, forward_begin, backward_begin, backward_end)


def step_cycles(plan: PipelinedPlan) -> float:
    """Return the cycles of one batch of a plan without host limits; sums over replicas are left out."""
    samples = ceil(plan.batch / plan.replicas)
    if plan.round_samples:
        lone = lone_sample(plan.stages, links_of(plan))
        return lone.rounds_cycles(samples, plan.round_samples, plan.link_cycles)
    return batch_cycles(plan.stages, links_of(plan), samples, plan.sample_cycles, plan.graph.training)


def batch_cycles(
    stages: Sequence[Stage], links: Sequence[Link], samples: int, sample_cycles: float, training: bool
) -> float:
    """Return the cycles of a batch of `samples` samples per replica, at least `sample_cycles` apart."""
    if not training:
        return samples * sample_cycles
    return lone_sample(stages, links).batch_cycles(samples, sample_cycles)


Times = tuple[dict[str, float], dict[str, float]]
"""Begin and end of a pass, by stage; the fill follows the end."""


def _forward(stages: Sequence[Stage], links: Iterable[Link]) -> Times:
    return _passes(stages, links, {stage.name: (0.0, 0.0) for stage in stages}, backward=False)


def _backward(stages: Sequence[Stage], links: Sequence[Link], ends: dict[str, float]) -> Times:
    """Return the backward passes of a single sample; the last stages start when its forward pass ends."""
    producers = {link[0] for link in links}
    begins = {
        stage.name: (0.0, 0.0) if stage.name in producers else (ends[stage.name] + stage.latency_cycles,) * 2
        for stage in stages
    }
    turned = [(consumer, producer, travel, room) for producer, consumer, travel, room in links]
    return _passes(list(reversed(stages)), turned, begins, backward=True)


def _passes(
    stages: Sequence[Stage],  # producers before consumers
    links: Iterable[Link],
    begins: dict[str, tuple[float, float]],
    *,
    backward: bool,
) -> Times:
    readers: dict[str, list[tuple[str, float]]] = {stage.name: [] for stage in stages}
    for producer, consumer, travel, _ in links:
        readers[producer].append((consumer, travel))
    first = {name: begin for name, (begin, _) in begins.items()}
    last = {name: end for name, (_, end) in begins.items()}
    begin, end = {}, {}
    for stage in stages:
        cycles = stage.backward_cycles if backward else stage.forward_cycles
        fill = stage.fill_cycles(backward=backward)
        cycles *= stage.rotation
        start = last[stage.name] if stage.barrier else first[stage.name]
        row = stage.row_cycles(backward=backward)
        done = max(start + cycles, last[stage.name] + row)
        begun = start + stage.first_cycles(done - start, row, fill)
        for consumer, travel in readers[stage.name]:
            first[consumer] = max(first[consumer], begun + travel)
            last[consumer] = max(last[consumer], done + fill + travel)
        begin[stage.name], end[stage.name] = start, done
    return begin, end
