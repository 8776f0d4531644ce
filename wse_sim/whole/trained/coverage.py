"""Checks of what can train on the fabric as a network of regions, before compilation."""

from __future__ import annotations

from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.whole.coverage import (
    check_graph,
    check_kinds,
    check_updates,
    forward_kernels,
)
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.trained.kinds import TRAINED


def check_any(graph: KernelGraph) -> None:
    """Check that inference or training supports the graph.

    Raises
    ------
    ModelError
        Naming the first kernel that is not covered.
    """
    (check_trained if graph.training else check_graph)(graph)


def check_trained(graph: KernelGraph) -> None:
    """Check that the graph can train: frozen layers, then a network of trainable kinds, updated by sgd.

    Raises
    ------
    ModelError
        Naming the first kernel that is not covered.
    """
    kernels = forward_kernels(graph)
    check_kinds(graph, kernels, TRAINED)
    check_updates(graph, [kernel for kernel in kernels if kernel.name not in frozen_layers(graph)])
    readers: dict[str, str] = {}
    for kernel in kernels:
        for tensor in set(kernel.inputs):
            if kernel.inputs.count(tensor) > 1:
                raise ModelError(
                    f"kernel '{kernel.name}' reads tensor '{tensor}' twice, and its region sends one gradient of a "
                    "tensor in training; put a layer between"
                )
            readers.setdefault(tensor, kernel.name)
    for kernel in kernels:
        for tensor in kernel.outputs:
            if tensor in readers and any(tensor == name for name in _outputs(graph)):
                raise ModelError(
                    f"model '{graph.name}' returns tensor '{tensor}', which kernel '{readers[tensor]}' reads as well; in "
                    "training, return one that nothing else reads"
                )


def _outputs(graph: KernelGraph) -> list[str]:
    return [name for name, tensor in graph.tensors.items() if tensor.kind.name == "OUTPUT"]
