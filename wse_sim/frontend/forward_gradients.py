"""Captures modules whose forward() computes a gradient (``torch.func.grad``, ``torch.autograd.grad``).

Torch's usual capture, above autograd, does not contain the operators that autograd runs. Such a module is
captured below autograd, with gradients enabled during forward(). The gradients are then part of the program:
forces as derivatives of energies, gradient penalties, inner training steps. Convolutions and other operators
appear in their low-level ATen form, and attention is decomposed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch.export._trace import _export
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from wse_sim.frontend.regions import marked_frozen, set_frozen

DETACHED = "wse_detached"
"""Mark of a detach() that the model itself calls."""
_CREATES_GRAPH = 4  # position of create_graph in the arguments of torch.autograd.grad


def captured(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> torch.export.ExportedProgram:
    """Export a module including the autograd calls inside forward()."""
    hooks = (module.register_forward_pre_hook(_on), module.register_forward_hook(_off))
    try:
        with sdpa_kernel(SDPBackend.MATH):
            program = _export(module, args, kwargs, strict=False, pre_dispatch=False)
    finally:
        for hook in hooks:
            hook.remove()
    return _without_saved(program)


def gradient(func: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Run torch.autograd.grad; unless it creates a graph, mark its operators as running without gradients."""
    creates = kwargs.get("create_graph", args[_CREATES_GRAPH] if len(args) > _CREATES_GRAPH else False)
    with contextlib.nullcontext() if creates else marked_frozen():
        return func(*args, **kwargs)


def _on(*_: object) -> None:
    torch._C._set_grad_enabled(True)
    set_frozen(False)  # torch captures under no_grad, which set the mark


def _off(_: torch.nn.Module, __: object, made: object) -> object:
    torch._C._set_grad_enabled(False)
    return pytree.tree_map_only(torch.Tensor, torch.ops.aten.detach.default, made)


@contextlib.contextmanager
def own_detach() -> Iterator[None]:
    """Mark the operators of the block as detached by the model itself."""
    marks = torch.fx.traceback.current_meta
    before = marks.get("custom")
    marks["custom"] = {**(before or {}), DETACHED: True}
    try:
        yield
    finally:
        if before is None:
            del marks["custom"]
        else:
            marks["custom"] = before


def _without_saved(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace the detach() of tensors that autograd saved by an alias, so that gradients pass through them.

    A detach() that the model itself calls does not change.
    """
    graph = program.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach.default and not (node.meta.get("custom") or {}).get(DETACHED):
            node.target = torch.ops.aten.alias.default
    program.graph_module.recompile()
    return program
