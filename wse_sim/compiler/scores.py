"""Recomputation of attention scores: the pipeline keeps keys and values, but not the scores.

Symbols: B sequences of a sample, H heads, q queries, kv keys, s bytes per element. An attention kernel that
keeps its scores stores ``B H q kv s`` bytes per sample in flight, and one more bit per score with dropout. If
the scores are not kept, the backward pass recomputes Q K^T and the softmax.
"""

from __future__ import annotations

import dataclasses

from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels import family

NOTE = "attention scores do not fit together with the weights: the backward pass recomputes them"


def score_bytes(kernel: Kernel) -> int:
    """Return the bytes per sample of the scores and the dropout mask that a forward attention kernel keeps.

    Returns 0 if the kernel does not keep its scores.
    """
    size = family(kernel.family).keeps(kernel, frozenset(), {}).again_bytes
    return size if size <= kernel.saved_bytes else 0


def works_out_again(kernel: Kernel) -> bool:
    """Return whether a backward kernel recomputes the scores and softmax of its forward kernel."""
    return bool(kernel.attrs.get("recompute", False))


def _attributes(kernel: Kernel) -> set[str]:
    """Return the names of the attributes that the kernel's family reads."""
    return set(family(kernel.family).parameters())


def without_scores(graph: KernelGraph) -> KernelGraph:
    """Return the training graph with recomputed attention scores; the same object if no kernel keeps scores."""
    backward = {k.forward: k for k in graph.kernels if k.forward and "recompute" in _attributes(k)}
    kept = {
        k.name
        for k in graph.kernels
        if k.phase is Phase.FORWARD
        and k.name in backward
        and not backward[k.name].attrs.get("recompute", False)
        and score_bytes(k)
    }
    if not graph.training or not kept:
        return graph
    kernels = []
    for kernel in graph.kernels:
        if kernel.name in kept:
            kernel = dataclasses.replace(kernel, saved_bytes=kernel.saved_bytes - score_bytes(kernel))
        elif kernel.forward in kept and "recompute" in _attributes(kernel):
            kernel = dataclasses.replace(kernel, attrs=frozen({**kernel.attrs, "recompute": True}))
        kernels.append(kernel)
    return dataclasses.replace(graph, kernels=tuple(kernels), notes=(*graph.notes, NOTE))
