"""Repeated blocks of a graph: which block a kernel belongs to, and what equal kernels of all blocks are called."""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.graph.kernel_graph import KernelGraph, Phase


def block_numbers(graph: KernelGraph) -> dict[str, int]:
    """Block number of every forward kernel that belongs to a repeat."""
    numbers: dict[str, int] = {}
    count = 0
    for repeat in graph.repeats:
        for instance in repeat.instances:
            for name in instance:
                numbers.setdefault(name, count)
            count += 1
    return numbers


def block_input_bytes(graph: KernelGraph, blocks: dict[str, int]) -> dict[int, float]:
    """Bytes that enter each block from outside it, per-sample tensors only."""
    made_in: dict[str, int | None] = {}
    inputs: dict[int, set[str]] = {}
    for kernel in graph.kernels:
        if kernel.phase is not Phase.FORWARD:
            continue
        number = blocks.get(kernel.name)
        if number is not None:
            entering = {name for name in kernel.inputs if name in made_in and made_in[name] != number}
            inputs.setdefault(number, set()).update(entering)
        for name in kernel.outputs:
            made_in[name] = number
    return {
        number: float(sum(graph.tensors[name].bytes for name in names if graph.tensors[name].per_sample))
        for number, names in inputs.items()
    }


def common_names(graph: KernelGraph) -> dict[str, str]:
    """The name that equal kernels of all blocks share: ``h.*.mlp.up`` of ``h.0.mlp.up``, ``h.1.mlp.up``, ...

    Gradients and updates follow their forward kernel.  A kernel of no repeat is not in the answer.
    """
    shared: dict[str, str] = {}
    for repeat in graph.repeats:
        for equal in zip(*repeat.instances, strict=True):
            shared.update(dict.fromkeys(equal, common(equal)))
    for kernel in graph.kernels:
        if kernel.forward in shared and kernel.name.startswith(kernel.forward):
            shared[kernel.name] = shared[kernel.forward] + kernel.name[len(kernel.forward) :]
    return shared


def common(names: Sequence[str]) -> str:
    """Components of module paths that all names share; ``*`` where they differ; the first if lengths differ."""
    paths = [name.split(".") for name in names]
    if len({len(path) for path in paths}) > 1:
        return names[0]
    return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*paths, strict=True))
