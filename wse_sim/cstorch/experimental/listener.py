"""Listeners: tensors of a captured step, given to a function or to the summaries at every step."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from wse_sim.cstorch import faults, hooks, runtime, summaries


class Listener:
    """Reports outputs of modules whose name matches.

    Args:
        tensor_names: regular expressions of module names.
        kind: "summary" or "norm" (to the writer), or "numpy" (kept in :attr:`values`).
        name: before the names of tensors in the writer.
    """

    def __init__(
        self, tensor_names: list[str] | str = ".*", kind: str = "summary", name: str | None = None
    ) -> None:
        wanted = [tensor_names] if isinstance(tensor_names, str) else list(tensor_names)
        self.patterns = [re.compile(_pattern(p)) for p in wanted]
        self.kind, self.prefix = kind, f"{name}/" if name else ""
        self.values: dict[str, torch.Tensor] = {}

    def wants(self, name: str) -> bool:
        return any(p.search(name) for p in self.patterns)

    def watch(self, model: torch.nn.Module) -> list[Any]:
        """Hook the modules of a model; handles that remove the hooks."""
        return [
            module.register_forward_hook(lambda _m, _i, out, n=name: self.receive(n, out))
            for name, module in model.named_modules()
            if name and self.wants(name)
        ]

    def receive(self, name: str, tensor: object) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        if self.kind == "summary":
            summaries.summarize_tensor(self.prefix + name, tensor)
        elif self.kind == "norm":
            summaries.summarize_scalar(self.prefix + name, torch.linalg.vector_norm(tensor.detach().float()))
        else:
            runtime.step_output(tensor.detach(), lambda host: self.values.__setitem__(name, host))


def _pattern(text: str) -> str:
    """Return a regular expression; text that is none (``*.attn``) is treated as a file-name pattern."""
    try:
        re.compile(text)
    except re.error:
        return fnmatch.translate(text)
    return text


KINDS = {"summarize": "summary", "summary": "summary", "norm": "norm", "numpy": "numpy"}


def create_listener(
    listener_type: str = "summary",
    tensor_names: list[str] | str = ".*",
    listener_name: str | None = None,
    **_: object,
) -> Listener:
    """Return a listener by its kind: "summary" (or "summarize"), "norm" or "numpy".

    Raises:
        ProgramError: another kind.
    """
    kind = KINDS.get(listener_type)
    if kind is None:
        raise faults.program_error(f"unknown listener '{listener_type}'; the kinds are {', '.join(KINDS)}")
    return Listener(tensor_names, kind, listener_name)


class ListenerMode:
    """Passes the tensors of steps captured inside the context to listeners."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self.listeners = list(listeners)
        self._handle: hooks.Handle | None = None

    def __enter__(self) -> ListenerMode:
        self._handle = self._handle or register_traced_tensor_hook(self._given)
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the handle, so that a captured step stays the same from batch to batch."""

    def _given(self, tensor: torch.Tensor, name: str) -> None:
        for listener in self.listeners:
            if listener.wants(name):
                listener.receive(name, tensor)


def register_traced_tensor_hook(function: Callable[[torch.Tensor, str], None]) -> hooks.Handle:
    """Call a function with every tensor that a module makes while a step is captured, and the module's path.

    What the function computes of the tensor belongs to the step, so values reach it through a step closure.
    ``.remove()`` of what it gives ends that.
    """
    return hooks.Handle(hooks.tensor_hooks, function)
