"""Finds parts of forward() without gradients, during the capture of a training step and in exported programs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx.traceback as marks

FROZEN = "wse_frozen"
"""Key of the mark of operators that ran without gradients, in torch's custom metadata of a node."""


@contextlib.contextmanager
def frozen_marked() -> Iterator[list[str]]:
    """Mark (:data:`FROZEN`) the operators that forward() runs without gradients, within the block.

    The capture itself builds no gradients, so the program would not show them. Operators inside a
    torch.autograd.Function are not marked, because its backward pass defines their gradient. Yields a list
    that receives the names of such functions of the model.
    """
    function: Any = torch.autograd.Function
    modes: dict[Any, bool | None] = {
        torch.no_grad: True,
        torch.enable_grad: False,
        torch.set_grad_enabled: None,  # the mode is its argument
        torch.inference_mode: None,
    }
    apply = function.__dict__["apply"]
    before = {kind: (kind.__init__, kind.__enter__, kind.__exit__) for kind in modes}
    seen: list[str] = []
    within = 0

    def applied(cls: type, *args: object, **kwargs: object) -> object:
        nonlocal within
        if not cls.__module__.startswith("torch."):
            seen.append(cls.__qualname__)
        within += 1
        try:
            return apply.__func__(cls, *args, **kwargs)
        finally:
            within -= 1

    def wrapped(kind: Any, frozen: bool | None) -> tuple[Callable[..., None], ...]:
        init, enter, leave = before[kind]

        def made(self: Any, *args: object, **kwargs: object) -> None:
            self._wse_before = is_frozen()
            init(self, *args, **kwargs)
            if kind is torch.set_grad_enabled and not within:  # it is in effect even if it is not entered
                set_frozen(not self.mode)

        def entered(self: Any) -> None:
            if kind is not torch.set_grad_enabled:
                self._wse_before = is_frozen()
            enter(self)
            own = frozen if frozen is not None else self.mode is (kind is torch.inference_mode)
            set_frozen(self._wse_before if within else own)

        def left(self: Any, *fault: object) -> None:
            leave(self, *fault)
            set_frozen(self._wse_before)

        return made, entered, left

    for kind, frozen in modes.items():
        kind.__init__, kind.__enter__, kind.__exit__ = wrapped(kind, frozen)
    function.apply = classmethod(applied)
    try:
        with marks.preserve_node_meta():
            yield seen
    finally:
        function.apply = apply
        for kind, (init, enter, leave) in before.items():
            kind.__init__, kind.__enter__, kind.__exit__ = init, enter, leave


@contextlib.contextmanager
def marked_frozen() -> Iterator[None]:
    """Mark the operators of the block as running without gradients."""
    before = is_frozen()
    set_frozen(True)
    try:
        yield
    finally:
        set_frozen(before)


def is_frozen() -> bool:
    """Return whether the code under capture is marked as running without gradients."""
    return bool((marks.current_meta.get("custom") or {}).get(FROZEN))


def set_frozen(value: bool) -> None:
    """Set whether the following code is marked as running without gradients."""
    marks.current_meta["custom"] = {**(marks.current_meta.get("custom") or {}), FROZEN: value}


def without_regions(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return the program with regions of disabled or enabled gradients inlined and their operators marked."""
    if not any(map(_is_region, program.graph.nodes)):
        return program
    module = copy.deepcopy(program.graph_module)
    graph = module.graph
    while regions := [node for node in graph.nodes if _is_region(node)]:
        for region in regions:
            enabled, inner, *operands = region.args
            held = module.get_submodule(str(inner.target))
            at = dict(zip([n for n in held.graph.nodes if n.op == "placeholder"], operands, strict=True))
            with graph.inserting_before(region):
                for node in held.graph.nodes:
                    if node.op == "get_attr":
                        at[node] = graph.get_attr(f"{inner.target}.{node.target}")
                    elif node.op == "call_function":
                        at[node] = graph.node_copy(node, at.__getitem__)
                        mark = {} if _is_region(node) else {FROZEN: not enabled}
                        at[node].meta["custom"] = {**(node.meta.get("custom") or {}), **mark}
                results = held.graph.output_node().args[0]
            for taken in list(region.users):
                taken.target, taken.args = torch.ops.aten.alias.default, (at[results[taken.args[1]]],)
                taken.meta["custom"] = {**(taken.meta.get("custom") or {}), FROZEN: not enabled}
            graph.erase_node(region)
            if not inner.users:
                graph.erase_node(inner)
    module.recompile()
    return program._update(module, program.graph_signature)


def _is_region(node: torch.fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "wrap_with_set_grad_enabled"
