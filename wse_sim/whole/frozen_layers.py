"""Frozen layers: those before the first parameter that trains. Training runs their forward pass alone.

No gradient reaches them, so their regions are those of inference, with one link per tensor, and their weights stay.
"""

from __future__ import annotations

from wse_sim.graph import Derived, KernelGraph, Phase, TensorKind


def frozen_layers(graph: KernelGraph) -> frozenset[str]:
    """Return the forward kernels of a training graph whose results no gradient reaches: they depend on no parameter
    that trains, or the model computes them without gradients; none in inference."""
    return graph.remembered("frozen layers", lambda: _found(graph)) if graph.training else frozenset()


def frozen_parameters(graph: KernelGraph) -> set[str]:
    """Return the parameters of the module that do not train, by name."""
    names = set[str]()
    for tensor in graph.tensors.values():
        source: str | Derived = tensor.derived or tensor.name
        while isinstance(source, Derived):
            source = source.source
        if tensor.kind is TensorKind.PARAMETER and not tensor.trains:
            names.add(source)
    return names


def _found(graph: KernelGraph) -> frozenset[str]:
    """Walk the forward kernels once."""
    with_gradient, names = set[str](), set[str]()
    for kernel in graph.kernels:
        if kernel.phase is not Phase.FORWARD:
            continue
        held = (graph.tensors[name] for name in kernel.parameters)
        trains = any(one.kind is TensorKind.PARAMETER and one.trains for one in held)
        reached = {name for name in kernel.outputs if graph.tensors[name].trains}  # not under torch.no_grad()
        if reached and (trains or with_gradient.intersection(kernel.inputs)):
            with_gradient |= reached
        else:
            names.add(kernel.name)
    return frozenset(names)
