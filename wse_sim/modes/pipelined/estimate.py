"""How long one batch takes, by formula: what the compiler compares plans by.

Symbols: stage k with ``f_k`` cycles forward, ``b_k`` backward, ``u_k`` of the weight update, ``n_k`` rows per
sample and ``l_k`` cycles of fill; streams of ``h`` cycles; N samples of a batch on one replica; T cycles between
two samples.  One sample alone passes every stage as :mod:`wse_sim.modes.pipelined.region` says::

    begin        max over inputs of their first row + h; a barrier waits for their last row
    end          max(begin + f_k, max over inputs of their end + h + f_k / n_k)
    rows leave   from begin + (end - begin) / n_k + l_k to end + l_k

and comes back along the same streams with ``b_k``.  With E_k the end of its backward pass at stage k::

    step = max over k of E_k + (N - 1) T + u_k                training: fill, samples, drain, update
    step = N T                                                inference: batches follow without a gap

What this leaves out (forward and backward passes that meet in a region, limits of samples in flight) is in the
simulation, which has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from wse_sim.compiler.plan import Stage
from wse_sim.modes.pipelined.plan import PipelinedPlan

Link = tuple[str, str, float]
"""Producer, consumer, cycles of travel."""


def links_of(plan: PipelinedPlan) -> list[Link]:
    """The streams of a plan with their travel."""
    hop = plan.wafer.hop_cycles
    return [(stream.producer, stream.consumer, float(stream.hops * hop)) for stream in plan.streams]


def sample_latency(plan: PipelinedPlan) -> float:
    """Cycles from the first row of a lone sample to its last result, forward: the longest path."""
    return max(_forward(plan.stages, links_of(plan)).values(), default=0.0)


def step_cycles(plan: PipelinedPlan) -> float:
    """Cycles of one batch of a plan, whatever the host does."""
    samples = ceil(plan.batch / plan.replicas)
    return batch_cycles(plan.stages, links_of(plan), samples, plan.sample_cycles, plan.graph.training)


def batch_cycles(
    stages: Sequence[Stage], links: Iterable[Link], samples: int, sample_cycles: float, training: bool
) -> float:
    """Cycles of a batch of `samples` per replica that follow each other every `sample_cycles`."""
    if not training:
        return samples * sample_cycles
    links = list(links)
    ends = _backward(stages, links, _forward(stages, links))
    return (samples - 1) * sample_cycles + max(ends[stage.name] + stage.update_cycles for stage in stages)


def _forward(stages: Sequence[Stage], links: Iterable[Link]) -> dict[str, float]:
    """When the last row of a lone sample leaves each stage."""
    return _passes(stages, links, {stage.name: (0.0, 0.0) for stage in stages}, backward=False)


def _backward(stages: Sequence[Stage], links: list[Link], ends: dict[str, float]) -> dict[str, float]:
    """When the gradients of a lone sample are through each stage; the last stages start when it is there."""
    producers = {producer for producer, _, _ in links}
    begins = {
        stage.name: (0.0, 0.0) if stage.name in producers else (ends[stage.name], ends[stage.name])
        for stage in stages
    }
    turned = [(consumer, producer, travel) for producer, consumer, travel in links]
    return _passes(list(reversed(stages)), turned, begins, backward=True)


def _passes(
    stages: Sequence[Stage],  # producers before consumers
    links: Iterable[Link],
    begins: dict[str, tuple[float, float]],
    *,
    backward: bool,
) -> dict[str, float]:
    readers: dict[str, list[tuple[str, float]]] = {stage.name: [] for stage in stages}
    for producer, consumer, travel in links:
        readers[producer].append((consumer, travel))
    first = {name: begin for name, (begin, _) in begins.items()}
    last = {name: end for name, (_, end) in begins.items()}
    out = {}
    for stage in stages:
        cycles = stage.backward_cycles if backward else stage.forward_cycles
        start = last[stage.name] if stage.barrier else first[stage.name]
        done = max(start + cycles, last[stage.name] + cycles / stage.rows_per_sample)
        begun = start + (done - start) / stage.rows_per_sample
        for consumer, travel in readers[stage.name]:
            first[consumer] = max(first[consumer], begun + stage.latency_cycles + travel)
            last[consumer] = max(last[consumer], done + stage.latency_cycles + travel)
        out[stage.name] = done + (0.0 if backward else stage.latency_cycles)
    return out
