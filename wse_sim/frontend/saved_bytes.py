"""Counts the bytes of the forward pass that the backward pass needs, each tensor once.

A kernel claims the tensors and the bytes that its family keeps
(:class:`wse_sim.kernels.contract.family.Kept`). A tensor that several kernels need is counted for the first
of them.
"""

from __future__ import annotations

import dataclasses

from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.kernels import family


def saved_bytes(graph: KernelGraph, wanted: frozenset[str], recompute: str) -> list[Kernel]:
    """Return the forward kernels with their `saved_bytes` set; `wanted` are the tensors with gradients.

    Bytes that can be recomputed are included only if `recompute` is "none".
    """
    claimed: set[str] = set()
    kernels = []
    for kernel in graph.kernels:
        if wanted.isdisjoint((*kernel.inputs, *kernel.parameters)):
            kernels.append(kernel)
            continue
        kept = family(kernel.family).keeps(kernel, wanted, graph.tensors)
        total = kept.own_bytes + (kept.again_bytes if recompute == "none" else 0)
        for tensor in kept.tensors:
            t = graph.tensors[tensor]
            if tensor not in claimed and t.kind not in (TensorKind.PARAMETER, TensorKind.CONSTANT):
                claimed.add(tensor)
                total += t.bytes
        kernels.append(dataclasses.replace(kernel, saved_bytes=total))
    return kernels
