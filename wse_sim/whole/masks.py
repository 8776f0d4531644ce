"""Masks of attention that depend on no input, as values on the cores that have the scores.

A model adds a mask to its scores, or hides keys: sliding windows, distances between tokens (ALiBi). On the fabric every core has the
numbers for its pairs of a query and a key, as under a causal mask.
"""

from __future__ import annotations

import dataclasses

from wse_sim.frontend.masks import MASK
from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.whole.host_part import with_kernels


def with_masks(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph in which attention has its constant masks as one, (heads or 1, queries, keys); a note states how
    many do."""
    tensors, kernels, count = dict(graph.tensors), list(graph.kernels), 0
    for place, kernel in enumerate(kernels):
        if not _is_masked(graph, kernel):
            continue
        name, held = kernel.name + MASK, [tensors[one] for one in kernel.parameters]
        dims = {key: int(kernel.dims[key]) for key in ("heads", "q", "kv")}
        is_each = any(one.elements % dims["heads"] == 0 and dims["heads"] in one.shape[:-2] for one in held)
        shape = (dims["heads"] if is_each else 1, dims["q"], dims["kv"])
        tensors[name] = dataclasses.replace(held[0], name=name, shape=shape, dtype="fp32", per_sample=False)
        kernels[place] = dataclasses.replace(kernel, parameters=(name,))
        count += 1
    what = "1 mask of attention rests" if count == 1 else f"{count} masks of attention rest"
    return (
        with_kernels(graph, kernels, tensors, f"{what} on the cores that have the scores") if count else graph
    )


def _is_masked(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether attention has masks, and they are constants."""
    return (
        kernel.family == "attention"
        and bool(AttentionAttributes.of(kernel.attrs).mask)
        and len(kernel.inputs) in (1, 3)
        and bool(kernel.parameters)
        and all(graph.tensors[name].kind is TensorKind.CONSTANT for name in kernel.parameters)
    )
