"""Handles tensors in lists, tuples and dictionaries that a module keeps in plain attributes.

torch.export lifts parameters and buffers into the program, but not tensors in containers. So each of these
tensors is registered as a buffer, and while forward() runs the container has torch's versions of these
buffers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributions import Distribution
from torch.utils import _pytree as pytree

_PREFIX = "held_in_"
_ABSENT = object()


@dataclass(frozen=True)
class _Slot:
    """A placeholder for a tensor of a container, with the name of the buffer that has the tensor."""

    buffer: str


@dataclass(frozen=True)
class _Size:
    """The shape and type of a tensor that was in a container."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def decomposed_result(made: object) -> object:
    """Return a result with every object of a dataclass, a namespace or a distribution as a dictionary of its fields.

    Of a distribution of torch.distributions only tensors and the distributions that it is made of count.

    torch decomposes lists, tuples, dictionaries and classes that are registered.

    >>> from types import SimpleNamespace
    >>> decomposed_result((1, SimpleNamespace(loss=2, logits=[3])))
    (1, {'loss': 2, 'logits': [3]})
    """

    def fields(leaf: object) -> object:
        if isinstance(leaf, SimpleNamespace):
            return decomposed_result(vars(leaf))
        if isinstance(leaf, Distribution):
            held = {key: x for key, x in vars(leaf).items() if isinstance(x, (torch.Tensor, Distribution))}
            return decomposed_result(held)
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            return decomposed_result({one.name: getattr(leaf, one.name) for one in dataclasses.fields(leaf)})
        return leaf

    return pytree.tree_map(fields, made)


def hold(part: torch.nn.Module, key: str, container: object) -> None:
    """Register the tensors of a container, an attribute of a module, as buffers.

    :class:`Containers` fills the container with these buffers during a call.
    """
    leaves, spec = pytree.tree_flatten(container)
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            name = f"{_PREFIX}{key}_{number}"
            part.register_buffer(name, leaf, persistent=False)
            leaves[number] = _Slot(name)
    vars(part).setdefault("_held", {})[key] = pytree.tree_unflatten(leaves, spec)
    setattr(part, key, container)


def release(part: torch.nn.Module, key: str) -> None:
    """Undo :func:`hold`; the attribute itself does not change."""
    held = vars(part)["_held"]
    for leaf in pytree.tree_leaves(held.pop(key)):
        if isinstance(leaf, _Slot):
            delattr(part, leaf.buffer)
    if not held:
        del part._held


class Containers:
    """Hooks around forward() that fill containers with the tensors of the program while it runs.

    After a run, `sizes` has the shapes and types of the tensors in each attribute at the end of forward().
    """

    def __init__(self) -> None:
        self.filled: list[tuple[torch.nn.Module, str, Any, Any]] = []
        self.given: dict[int, list[Any]] = {}
        self.sizes: dict[tuple[str, str], Any] = {}

    def enter(self, module: torch.nn.Module, *_: object) -> None:
        """Fill the containers of a module with its buffers, before forward()."""
        self.filled, self.given = [], {}
        for part in module.modules():
            for key, slots in vars(part).get("_held", {}).items():
                now = _filled(part, slots)
                self.filled.append((part, key, getattr(part, key), now))
                self.given[id(now)] = pytree.tree_leaves(now)
                setattr(part, key, now)

    def leave(self, module: torch.nn.Module, *_: object) -> None:
        """Restore the containers that forward() did not change and record the sizes of all, after forward()."""
        for part, key, before, now in self.filled:
            if getattr(part, key, None) is now and _leaves_are(now, self.given[id(now)]):
                setattr(part, key, before)
        self.sizes = {
            (path, key): pytree.tree_map_only(torch.Tensor, lambda x: _Size(tuple(x.shape), x.dtype), value)
            for path, part in module.named_modules()
            for key, value in vars(part).items()
            if not key.startswith("_") and any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(value))
        }

    @contextmanager
    def left_behind(
        self, module: torch.nn.Module, names: Collection[str], mode: AbstractContextManager[object]
    ) -> Iterator[None]:
        """Replace the tensors in the attributes `names` by others of the recorded sizes within the block.

        The new tensors are created in the context `mode`.
        """
        roots = {root_of(name) for name in names}
        done: list[tuple[torch.nn.Module, str, Any]] = []
        for (path, key), sizes in self.sizes.items():
            part = module.get_submodule(path)
            if f"{path}.{key}".lstrip(".") not in roots:
                continue
            done.append((part, key, vars(part).get(key, _ABSENT)))
            if key in vars(part).get("_held", {}):
                release(part, key)
            with mode:
                hold(
                    part,
                    key,
                    pytree.tree_map_only(_Size, lambda s: torch.empty(s.shape, dtype=s.dtype), sizes),
                )
        try:
            yield
        finally:
            for part, key, before in done:
                release(part, key)
                if before is _ABSENT:
                    delattr(part, key)
                else:
                    setattr(part, key, before)


def unread(program: torch.export.ExportedProgram, names: Collection[str]) -> set[str]:
    """Return the attributes among `names` whose tensors from before the call the program does not read.

    The attribute of ``self.a.b[0]`` is ``a.b``.
    """
    nodes = {node.name: node for node in program.graph.nodes}
    read = [s.target for s in program.graph_signature.input_specs if s.target and nodes[s.arg.name].users]
    found = set()
    for root in {root_of(name) for name in names}:
        path, _, key = root.rpartition(".")
        prefix = ".".join(filter(None, (path, f"{_PREFIX}{key}_")))
        if not any(target.startswith(prefix) for target in read):
            found.add(root)
    return found


def root_of(name: str) -> str:
    """Return the attribute to which the name of a tensor belongs: ``a.b`` for ``self.a.b[0]``."""
    return name.removeprefix("self.").partition("[")[0]


def _filled(part: torch.nn.Module, slots: object) -> object:
    def tensor(slot: _Slot) -> torch.Tensor | None:
        return part._buffers[slot.buffer]

    return pytree.tree_map_only(_Slot, tensor, slots)


def _leaves_are(these: object, leaves: list[Any]) -> bool:
    found = pytree.tree_leaves(these)
    return len(found) == len(leaves) and all(x is y for x, y in zip(found, leaves, strict=True))
