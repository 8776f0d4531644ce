"""Keys and values that a model returns next to its result: a cache for later tokens, which stays on the wafer."""

from __future__ import annotations

import dataclasses

from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.whole.host_part import with_kernels


def without_caches(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph without the results that attention reads as keys or values, if the model has another one; a note
    states how many there are.

    Their values are those of the model; a run returns the other result alone.
    """
    outputs = {name for name, tensor in graph.tensors.items() if tensor.kind is TensorKind.OUTPUT}
    attention = [kernel for kernel in graph.kernels if kernel.family == "attention"]
    read = {name for kernel in attention for name in (kernel.inputs[1:] or kernel.inputs)}
    caches = outputs & read
    if not caches or caches == outputs:
        return graph
    tensors = dict(graph.tensors)
    tensors |= {name: dataclasses.replace(tensors[name], kind=TensorKind.ACTIVATION) for name in caches}

    def kept(kernel: Kernel) -> Kernel:
        left = tuple(
            name for name in kernel.access.reordered if name not in caches.intersection(kernel.outputs)
        )
        access = dataclasses.replace(kernel.access, reordered=left, view=kernel.access.view if left else "")
        return dataclasses.replace(kernel, access=access) if caches.intersection(kernel.outputs) else kernel

    count = len(caches)
    note = (
        f"{count} results with keys and values for later tokens stay"
        if count > 1
        else f"'{caches.pop()}' has keys or values for later tokens and stays"
    )
    return with_kernels(graph, map(kept, graph.kernels), tensors, f"{note} on the wafer")
