"""Listeners: tensors of a captured step, given to a function or to the summaries at every step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from wse_sim.cstorch import faults, runtime, summaries


class Listener:
    """Reports outputs of modules whose name matches.

    Args:
        tensor_names: regular expressions of module names.
        kind: "summary" (to the writer) or "numpy" (kept in :attr:`values`).
    """

    def __init__(self, tensor_names: list[str] | str = ".*", kind: str = "summary") -> None:
        wanted = [tensor_names] if isinstance(tensor_names, str) else list(tensor_names)
        self.patterns = [re.compile(p) for p in wanted]
        self.kind = kind
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
            summaries.summarize_tensor(name, tensor)
        else:
            runtime.step_output(tensor.detach(), lambda host: self.values.__setitem__(name, host))


def create_listener(
    listener_type: str = "summary", tensor_names: list[str] | str = ".*", **_: object
) -> Listener:
    """A listener by its kind: "summary" or "numpy".

    Raises:
        ProgramError: another kind.
    """
    kind = {"summarize": "summary", "summary": "summary", "numpy": "numpy"}.get(listener_type)
    if kind is None:
        raise faults.program_error(f"unknown listener '{listener_type}'; the kinds are summary and numpy")
    return Listener(tensor_names, kind)


def register_traced_tensor_hook(
    function: Callable[[str, torch.Tensor], None], tensor: torch.Tensor, name: str = "tensor"
) -> None:
    """Call a function with the values of a tensor at every step."""
    runtime.step_output(tensor.detach(), lambda host: function(name, host))
