"""Hides the weights of layers that a capture is going to copy.

torch.export treats every weight of a module several times, whether a traced operator reads it or not. So the
weights of layers that are expected to become copies of an equal layer leave the module during the capture, and
:func:`returned` inserts them into the captured program. If such a layer is traced after all, or another part of
the model reads its weights, :class:`SeenError` ends the capture, which is repeated with these weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

LEAST_HIDDEN = 4
"""Fewest equal layers for which weights are hidden; for fewer, a repeated capture would cost more than they do."""
LEAST_SHARE = 0.5
"""Least part of a module's weights that is hidden, for the same reason; less is not hidden at all."""


class SeenError(Exception):
    """A hidden weight is needed in the capture."""


class Hidden:
    """The weights of a module that are hidden during a capture.

    Parameters
    ----------
    module, groups
        The module, and its groups of equal layers, outermost first.
    shown
        Paths of layers whose weights are not hidden.
    """

    def __init__(
        self, module: nn.Module, groups: Sequence[Sequence[nn.Module]], shown: Collection[str]
    ) -> None:
        named = list(module.named_parameters(remove_duplicate=False))
        times = Counter(id(weight) for _, weight in named)
        self.order = [name for name, _ in named]
        self.seen: set[str] = set()
        self.weights: dict[str, nn.Parameter] = {}
        self.like: dict[str, str] = {}  # the weight of an equal layer with the same sizes, by name
        self.parts: list[tuple[nn.Module, dict[str, Any], str]] = []
        self.layers: set[int] = set()
        self.equal: dict[str, set[str]] = {}  # paths of the layers that equal a hidden one, by its path
        self.is_running = False
        paths = {id(part): path for path, part in module.named_modules()}
        for first, *others in (group for group in groups if len(group) >= LEAST_HIDDEN):
            equal = {paths[id(layer)] for layer in others}
            for layer in others:
                path = paths[id(layer)]
                self.equal[path] = equal
                if not any(f"{path}.".startswith(f"{one}." if one else "") for one in shown):
                    self._hide(layer, path, paths[id(first)], times)
        if len(self.weights) < LEAST_SHARE * len(named):
            for kept in (self.weights, self.like, self.parts, self.layers):
                kept.clear()

    def _hide(self, layer: nn.Module, path: str, first: str, times: Counter[int]) -> None:
        self.layers.add(id(layer))
        for inner, part in layer.named_modules():
            own = {key: weight for key, weight in part._parameters.items() if weight is not None}
            names = {key: ".".join(filter(None, (inner, key))) for key in own}
            if not own or f"{path}.{next(iter(names.values()))}" in self.weights:
                continue
            if any(times[id(weight)] > 1 for weight in own.values()):
                continue
            self.parts.append((part, part._parameters, path))
            for key, weight in own.items():
                self.weights[f"{path}.{names[key]}"] = weight
                self.like[f"{path}.{names[key]}"] = f"{first}.{names[key]}"

    @contextmanager
    def away(self) -> Iterator[None]:
        """Hide the weights within the block."""
        for part, kept, path in self.parts:
            vars(part)["_parameters"] = _Absent(self, kept, path)
        try:
            yield
        finally:
            for part, kept, _ in self.parts:
                vars(part)["_parameters"] = kept

    def enter(self, *_: object) -> None:
        """Begin to watch reads of hidden weights; a hook before forward()."""
        self.is_running = True

    def leave(self, *_: object) -> None:
        """End to watch reads; a hook after forward()."""
        self.is_running = False

    def show(self, path: str) -> NoReturn:
        """End the capture, because the weights of the layer `path` are needed.

        The next capture also has those of all layers that equal it: they are probably needed for the same reason, such as
        operands of another size at each scale.

        Raises
        ------
        SeenError
            Always.
        """
        self.seen |= self.equal[path]
        raise SeenError(f"the weights of '{path}' are needed")


class _Absent(dict[str, Any]):
    """The weights of a module while they are hidden: none, unless forward() reads them, which ends the capture."""

    def __init__(self, hidden: Hidden, kept: dict[str, Any], path: str) -> None:
        super().__init__()
        self.hidden, self.kept, self.path = hidden, kept, path

    def _read(self) -> None:
        if self.hidden.is_running:
            self.hidden.show(self.path)

    def __contains__(self, name: object) -> bool:
        if name in self.kept:
            self._read()
        return False

    def __iter__(self) -> Iterator[str]:
        self._read()
        return iter(())

    def items(self) -> Any:
        """Return no weights, or end the capture if forward() asks."""
        self._read()
        return {}.items()

    def values(self) -> Any:
        """Return no weights, or end the capture if forward() asks."""
        self._read()
        return {}.values()


def returned(program: torch.export.ExportedProgram, hidden: Hidden) -> None:
    """Insert the hidden weights into a captured program, in the order of the module."""
    if not hidden.weights:
        return
    graph, signature = program.graph_module.graph, program.graph_signature
    inputs = {spec.arg.name: spec for spec in signature.input_specs}
    places = [node for node in graph.nodes if node.op == "placeholder"]
    held = {inputs[node.name].target: node for node in places}
    last = None
    for name in hidden.order:
        if name in hidden.weights:
            like = name
            while like not in held:
                like = hidden.like[like]
            before = places[0] if last is None else last.next
            with graph.inserting_before(before):
                node = graph.placeholder(f"p_{name.replace('.', '_')}")
            node.meta = dict(held[like].meta)
            held[name] = node
            inputs[node.name] = InputSpec(InputKind.PARAMETER, TensorArgument(node.name), name)
        last = held.get(name, last)
    signature.input_specs[:] = [inputs[node.name] for node in graph.nodes if node.op == "placeholder"]
    program.state_dict.update(hidden.weights)
