"""Samples buffered on the wafer: between the two passes of a stage, and in the streams between stages.

Every stage passes n rows per sample at the pace T. Let s be the time at which a single sample starts::

    s(v) = max over streams u -> v of  s(u) + T / n(u)  to the first row, or to the last one if v is a barrier

In steady state v starts sample j at ``s(v) + j T``. The producer starts its sample i at ``s(u) + i T``, and
it never waits for room if the reader has started sample ``i - c`` by then. So the stream u -> v needs room
for::

    c = 1 + floor((s(v) - s(u)) / T)

samples: one for rows that continue at once; two into a barrier, which gathers one sample while it works on
another; and, in a skip connection around a barrier, as many as the barrier holds. Gradients obey the same
rule on the reversed graph; c is the larger of both numbers. Activations are stored with their reader.
Gradients use the stream backwards and are stored with its producer, so, with S bytes per sample::

    bytes of stage k = sum over streams into k of c S + sum over streams out of k that carry gradients of c S

A tensor that a stage reads twice arrives, and is buffered, once. For an output of a training graph, two
samples of its gradient are buffered as well, because a loss may follow it. The bytes are spread over all
cores of the region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.kernels.contract.family import Flow
from wse_sim.kernels.contract.parameters import Attributes

Edges = Sequence[tuple[str, str]]
"""Pairs (producer, consumer) of stage names."""


class Group(Protocol):
    """The properties of a stage's kernels that this module reads (:class:`wse_sim.compiler.sizing.Group`)."""

    name: str
    forward: Kernel

    @property
    def flow(self) -> Flow:
        """How a sample flows through the forward kernel."""
        ...

    @property
    def rows_per_sample(self) -> int:
        """Rows in which a sample flows through the stage."""
        ...

    @property
    def is_barrier(self) -> bool:
        """Whether the first row leaves only after the last one has arrived."""
        ...


def samples_in_flight(groups: Sequence[Group], edges: Edges, training: bool) -> dict[str, int]:
    """Return the number of samples whose activations each stage stores; 2 in inference.

    In training these are the samples between their forward and their backward pass. At the steady pace a
    sample takes about one period at every barrier and ``1 / rows`` of one at other stages, forward and again
    backward. Where cores work on different rows, a row takes the cycles of one pass each way, so one period in all,
    after the barrier if there is one. So stage i stores ``2 d_i + 2`` samples, where d_i is the longest such path from i to the end. A kernel may state another
    number (`held_samples`).
    """
    if not training:
        return {group.name: 2 for group in groups}
    delay = {g.name: float(g.is_barrier) for g in groups}
    for g in groups:
        if g.flow.parallel or not g.is_barrier:
            delay[g.name] += (0.5 if g.flow.parallel else 1.0) / g.rows_per_sample
    consumers: dict[str, list[str]] = {g.name: [] for g in groups}
    for producer, consumer in edges:
        consumers[producer].append(consumer)
    below: dict[str, float] = {}
    for group in reversed(groups):
        below[group.name] = delay[group.name] + max(
            (below.get(c, 0.0) for c in consumers[group.name]), default=0.0
        )
    stated = {group.name: Attributes.of(group.forward.attrs).held_samples for group in groups}
    return {name: stated[name] or int(np.ceil(2 * depth)) + 2 for name, depth in below.items()}


def stream_depth(groups: Sequence[Group], edges: Edges, training: bool) -> dict[tuple[str, str], int]:
    """Return the number of samples c that wait in the stream of each edge, samples in flight not included."""
    begin = _starts(groups, edges)
    delays = {(a, b): begin[b] - begin[a] for a, b in edges}
    if training:
        back = _starts(groups[::-1], [(b, a) for a, b in edges])
        delays = {(a, b): max(delay, back[a] - back[b]) for (a, b), delay in delays.items()}
    return {edge: 1 + int(delay + 1e-9) for edge, delay in delays.items()}


def _starts(groups: Sequence[Group], edges: Edges) -> dict[str, float]:
    """Return when a single sample starts at each stage, in periods; `groups` are in dataflow order."""
    readers: dict[str, list[str]] = {group.name: [] for group in groups}
    for producer, consumer in edges:
        readers[producer].append(consumer)
    first, last = dict.fromkeys(readers, 0.0), dict.fromkeys(readers, 0.0)
    starts = {}
    for group in groups:
        rows = 1 if group.flow.parallel else group.rows_per_sample  # a core has one row, or more
        start = last[group.name] if group.is_barrier else first[group.name]
        end = max(start + 1, last[group.name] + 1 / rows)
        for reader in readers[group.name]:
            first[reader] = max(first[reader], start + (end - start) / rows)
            last[reader] = max(last[reader], end)
        starts[group.name] = start
    return starts


def readers_of(graph: KernelGraph, groups: Sequence[Group]) -> dict[tuple[str, str], list[str]]:
    """Return the stages that read each tensor of a stage, by (producer, tensor); each reader has a stream of
    the tensor.
    """
    names = {group.name for group in groups}
    readers: dict[tuple[str, str], list[str]] = {}
    for producer, consumer, tensor in graph.edges():
        if producer in names and consumer in names:
            ends = readers.setdefault((producer, tensor), [])
            if consumer not in ends:
                ends.append(consumer)
    return readers


def comes_back(graph: KernelGraph, tensor: str) -> bool:
    """Return whether the gradient of a tensor takes its streams backwards."""
    return graph.training and graph.tensors[tensor].kind is TensorKind.ACTIVATION


def stream_bytes(graph: KernelGraph, groups: Sequence[Group], edges: Edges) -> dict[str, float]:
    """Return the bytes that wait with each stage; the sizes in `graph` are those of one sample."""
    room = stream_depth(groups, edges, graph.training)
    held = {group.name: 0.0 for group in groups}
    for (producer, tensor), consumers in readers_of(graph, groups).items():
        for consumer in consumers:
            size = float(room[producer, consumer] * graph.tensors[tensor].bytes)
            held[consumer] += size
            if comes_back(graph, tensor):
                held[producer] += size
    if graph.training:
        read = {tensor for kernel in graph.kernels for tensor in kernel.inputs}
        for group in groups:
            held[group.name] += 2.0 * sum(
                graph.tensors[tensor].bytes
                for tensor in group.forward.outputs
                if tensor not in read and graph.tensors[tensor].per_sample
            )
    return held


def bytes_at_cut(
    graph: KernelGraph, groups: Sequence[Group], edges: Edges, inside: frozenset[str]
) -> dict[str, float]:
    """Return the bytes that wait with each of the stages `inside` for the link to another wafer, in addition
    to :func:`stream_bytes`.

    Data from the other wafer waits with its reader. Data for the other wafer waits with the stage that makes
    it: activations with their producer, gradients with the reader of the tensor. Data that only passes
    through a wafer is not stored on it.
    """
    room = stream_depth(groups, edges, graph.training)
    held = dict.fromkeys(inside, 0.0)
    for (producer, tensor), consumers in readers_of(graph, groups).items():
        size = graph.tensors[tensor].bytes
        beyond = [c for c in consumers if (c in inside) is not (producer in inside)]
        if beyond and producer in inside:
            held[producer] += max(room[producer, c] for c in beyond) * size
        elif comes_back(graph, tensor):
            for consumer in beyond:
                held[consumer] += room[producer, consumer] * size
    return held
