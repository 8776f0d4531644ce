"""Adds training to a forward graph: backward kernels, optimizer kernels, and the bytes that are kept.

The forward graph is walked backwards once. The family of each kernel writes its gradient kernels on the tape
(:class:`wse_sim.kernels.contract.tape.Tape`). Inputs of the model, integers, and parameters that do not train
have no gradient.
"""

from __future__ import annotations

import dataclasses

from wse_sim.errors import ModelError
from wse_sim.frontend.obstacles import met
from wse_sim.frontend.repeats import find_repeats
from wse_sim.frontend.saved_bytes import saved_bytes
from wse_sim.graph import KernelGraph, TensorKind, frozen
from wse_sim.graph.optimizers import optimizer_named
from wse_sim.kernels import family
from wse_sim.kernels.blocks.updates import update_kernels
from wse_sim.kernels.contract.registry import flops_of
from wse_sim.kernels.contract.tape import Tape

RECOMPUTE = ("none", "full", "attention")

FLOPS_CHECKED = "training_flops"
"""Fact of a captured training graph: "as torch counts", "differ from torch's" or "not compared"."""
FLOPS_NOTE = "training FLOPs"
"""Beginning of a note on a difference from torch's FLOPs."""

_FLOAT = ("fp32", "fp16", "bf16", "cbfloat16")


def add_training(graph: KernelGraph, *, optimizer: str = "adamw", recompute: str = "none") -> KernelGraph:
    """Return the training graph of a forward graph.

    Parameters
    ----------
    graph
        A forward graph; its outputs are the loss, or values from which the loss is computed.
    optimizer
        "sgd", "momentum", "adam" or "adamw".
    recompute
        "none" keeps everything that gradients need, "attention" recomputes attention weights, "full" leaves
        the choice of recomputed blocks to the compiler (the graph states it only as a fact).

    Raises
    ------
    ModelError
        If the graph is a training graph, a name is unknown, nothing can be trained, or the family of a kernel has
        no gradient.
    """
    if graph.training:
        raise ModelError(f"model '{graph.name}' is a training graph already; give its forward graph")
    optimizer_named(optimizer)
    if recompute not in RECOMPUTE:
        raise ModelError(f"recompute policy '{recompute}' is unknown; use {', '.join(RECOMPUTE)}")
    wanted = frozenset(_wanted(graph))
    tape = Tape(graph, wanted, flops_of, recompute)
    if not any(t.kind is TensorKind.PARAMETER and t.name in tape.wanted for t in graph.tensors.values()):
        raise ModelError(
            f"model '{graph.name}' has no parameters that train; ask for inference (training=False), or let some require gradients"
        )
    for tensor in graph.tensors.values():
        if tensor.kind is TensorKind.OUTPUT and tensor.name in tape.wanted:
            tape.start(tensor)
    for kernel in reversed(graph.kernels):
        totals = [t for t in (tape.total(out) for out in kernel.outputs) if t is not None]
        found = family(kernel.family)
        tape.wanted = wanted.difference(kernel.stops)
        if totals and found.has_gradient(kernel):
            try:
                found.gradients(kernel, totals[0], tape)
            except ModelError as fault:
                met(fault, "gradient", kernel.source, node=kernel.name)
    forward = saved_bytes(graph, wanted, recompute)
    updates = update_kernels(graph.kernels, tape.tensors, tape.weight_parts, optimizer)
    kernels = (*forward, *tape.kernels, *updates)
    tensors = frozen({name: t for name, t in tape.tensors.items() if name not in tape.ones})
    return dataclasses.replace(
        graph,
        kernels=kernels,
        tensors=tensors,
        training=True,
        repeats=find_repeats(kernels, tensors),
        facts=frozen({**graph.facts, "optimizer": optimizer, "recompute": recompute}),
    )


def _wanted(graph: KernelGraph) -> set[str]:
    """Return the tensors with a gradient: trained parameters, and floating-point results that use them."""
    wanted = {
        t.name
        for t in graph.tensors.values()
        if t.kind is TensorKind.PARAMETER and t.trains and t.dtype in _FLOAT
    }
    for kernel in graph.kernels:
        reads = not wanted.isdisjoint((*kernel.inputs, *kernel.parameters))
        if reads and family(kernel.family).has_gradient(kernel):
            made = (graph.tensors[t] for t in kernel.outputs)
            wanted.update(t.name for t in made if t.trains and t.dtype in _FLOAT)
    return wanted
