"""Recomputation of attention scores: the pipeline keeps keys and values, not the scores.

Symbols: B samples, H heads, q queries, kv keys, s bytes per element.  An attention kernel that keeps its
scores holds ``B H q kv s`` bytes per sample in flight, and one bit per score with dropout.  Without
stored scores, the backward pass recomputes Q K^T and the softmax.
"""

from __future__ import annotations

import dataclasses

from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels import family

NOTE = "attention scores do not fit together with the weights: the backward pass recomputes them"


def score_bytes(kernel: Kernel) -> int:
    """Bytes per sample of the scores, and of the dropout mask, that a forward attention kernel keeps."""
    size = family(kernel.family).keeps(kernel, frozenset(), {}).again_bytes
    return size if size <= kernel.saved_bytes else 0


def works_out_again(kernel: Kernel) -> bool:
    """Whether a backward kernel repeats the scores and the softmax of its forward kernel."""
    return bool(kernel.attrs.get("recompute", False))


def _attributes(kernel: Kernel) -> set[str]:
    """Names of the attributes that the kernel's family reads."""
    return set(family(kernel.family).parameters())


def without_scores(graph: KernelGraph) -> KernelGraph:
    """The training graph with attention recomputed; the same object if no kernel keeps scores."""
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
