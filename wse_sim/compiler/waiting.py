"""Samples that wait on the wafer: between the two passes of a stage, and in the streams between stages.

A stream of S bytes a sample holds so many samples that its reader has not started::

    c = 2 + max(0, d(reader) - d(producer))

d(k) is the number of whole samples that stages hold on the longest path to k: a barrier gathers one before it
starts, a stage whose rows come out together holds one until it is through.  So a skip connection waits for the samples
that the stages beside it hold, and two more let producer and reader work at the same time.  Activations lie with
their reader, gradients, which take the stream backwards, with its producer::

    bytes of stage k = sum over streams into k of c S + sum over streams out of k that bring gradients of c S

One tensor that a stage reads twice comes, and waits, once.  What a training returns has two samples of its gradient
wait likewise: a loss may stand behind it.  All cores of the region share these bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.kernels.contract.family import Flow

Edges = Sequence[tuple[str, str]]
"""(producer, consumer), names of stages."""


class Group(Protocol):
    """What is asked of the kernels of a stage (:class:`wse_sim.compiler.sizing.Group`)."""

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
        """Whether the first row comes out only after the last has gone in."""
        ...


def samples_in_flight(groups: Sequence[Group], edges: Edges, training: bool) -> dict[str, int]:
    """Samples whose activations a stage holds: those between its forward and its backward pass.

    At the steady pace a sample needs about one period at every barrier and ``1 / rows`` of one at the
    other stages, forward and again backward, so stage i holds ``2 d_i + 2`` samples, d_i the longest
    such path from i to the end.
    """
    if not training:
        return {group.name: 2 for group in groups}
    delay = {g.name: 1.0 if g.is_barrier else 1.0 / g.rows_per_sample for g in groups}
    consumers: dict[str, list[str]] = {g.name: [] for g in groups}
    for producer, consumer in edges:
        consumers[producer].append(consumer)
    below: dict[str, float] = {}
    for group in reversed(groups):
        below[group.name] = delay[group.name] + max(
            (below.get(c, 0.0) for c in consumers[group.name]), default=0.0
        )
    return {name: int(np.ceil(2 * depth)) + 2 for name, depth in below.items()}


def streams_room(groups: Sequence[Group], edges: Edges) -> dict[tuple[str, str], int]:
    """Samples c that wait in the stream of each edge; those on their way take other room."""
    producers: dict[str, list[str]] = {g.name: [] for g in groups}
    for producer, consumer in edges:
        producers[consumer].append(producer)
    depth: dict[str, int] = {}
    for group in groups:
        before = max((depth.get(p, 0) for p in producers[group.name]), default=0)
        depth[group.name] = before + int(group.is_barrier) + int(group.flow.at_once)
    return {(a, b): 2 + max(0, depth[b] - depth[a]) for a, b in edges}


def readers_of(graph: KernelGraph, groups: Sequence[Group]) -> dict[tuple[str, str], list[str]]:
    """The stages that read each tensor of a stage, by (producer, tensor): every reader has a stream of it."""
    names = {group.name for group in groups}
    readers: dict[tuple[str, str], list[str]] = {}
    for producer, consumer, tensor in graph.edges():
        if producer in names and consumer in names:
            ends = readers.setdefault((producer, tensor), [])
            if consumer not in ends:
                ends.append(consumer)
    return readers


def comes_back(graph: KernelGraph, tensor: str) -> bool:
    """Whether the gradient of a tensor takes its streams backwards."""
    return graph.training and graph.tensors[tensor].kind is TensorKind.ACTIVATION


def stream_bytes(graph: KernelGraph, groups: Sequence[Group], edges: Edges) -> dict[str, float]:
    """Bytes that wait with each stage; `graph` is stated for one sample."""
    room = streams_room(groups, edges)
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
    """Bytes that wait with each of the stages `inside` for the line to another wafer, besides :func:`stream_bytes`.

    What is on a line's far side waits there, with its reader; before the line activations wait with their producer,
    gradients with their reader.  What only passes through a wafer has no place on it.
    """
    room = streams_room(groups, edges)
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
