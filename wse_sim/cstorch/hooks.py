"""Hooks of programs: functions that run around every traced step, or with every tensor that a module makes in
one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch.utils import _pytree as pytree

TensorHook = Callable[[torch.Tensor, str], None]

_numbers = itertools.count()


class Handle:
    """Handle of a registered function, with which it can be removed."""

    def __init__(self, where: dict[int, Callable[..., None]], function: Callable[..., None]) -> None:
        self._where, self._number = where, next(_numbers)
        where[self._number] = function

    def remove(self) -> None:
        """Remove the function, so that it is no longer called."""
        self._where.pop(self._number, None)


tensor_hooks: dict[int, Callable[..., None]] = {}
before_step: dict[int, Callable[..., None]] = {}
after_step: dict[int, Callable[..., None]] = {}
received: dict[int, Callable[..., None]] = {}


def key() -> tuple[int, ...]:
    """Return a key that changes with the registered functions; a step captured with other functions is
    recaptured."""
    return tuple(tensor_hooks)


def called(functions: dict[int, Callable[..., None]]) -> None:
    """Call functions without arguments."""
    for function in list(functions.values()):
        function()


def made(path: str, output: object) -> None:
    """Pass the outputs of a module to the hooks, under the module's path; several tensors are numbered."""
    if not tensor_hooks or not path:
        return
    found = [t for t in pytree.tree_leaves(output) if isinstance(t, torch.Tensor)]
    for n, tensor in enumerate(found):
        name = path if len(found) == 1 else f"{path}.{n}"
        for function in list(tensor_hooks.values()):
            function(tensor, name)
