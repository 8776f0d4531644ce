"""Partial training: selection of the parameters that train, and low-rank adapters of linear layers (LoRA).

Symbols: a linear layer y = x W^T with n inputs and m outputs, rank r::

    y = x W^T + (x A^T) B^T          A (r, n), B (m, r): trained; W: frozen

The scale of an adapter is part of B.

A pattern is a list of shell patterns separated by commas. It matches a parameter if one of them matches its
name or the path of a module around it: ``h.3``, ``*.ln_*``, ``lm_head.bias``. A frozen parameter has no
weight gradient, no gradient stream and no update; input gradients stop where no parameter before them trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from wse_sim.errors import ModelError

if TYPE_CHECKING:
    import torch

    from wse_sim.frontend.trace import Trace

ADAPTED = "*attn*,*attention*"
"""Default pattern of the linear layers that get an adapter: those inside attention."""
SHOWN = 6  # most names in a message


def matches(name: str, pattern: str) -> bool:
    """Return whether a dotted name, or a prefix of its path, matches one of the patterns."""
    parts = name.split(".")
    paths = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    wanted = [item.strip() for item in pattern.split(",") if item.strip()]
    return any(fnmatchcase(path, item) for path in paths for item in wanted)


def train_only(trace: Trace, pattern: str) -> None:
    """Freeze the parameters of a trace that do not match `pattern`; frozen ones stay frozen.

    Raises
    ------
    ModelError
        If no parameter is left that trains.
    """
    parameters = [node for node in trace.nodes.values() if node.kind == "parameter"]
    if not any(node.trains and matches(node.name, pattern) for node in parameters):
        raise ModelError(
            _nothing("train", pattern, "parameter that trains", [node.name for node in parameters])
        )
    for node in parameters:
        node.trains = node.trains and matches(node.name, pattern)


@contextmanager
def adapted(module: torch.nn.Module, rank: int, layers: str, train: str | None) -> Iterator[None]:
    """Add adapters of `rank` to the linear layers of a module that match `layers`, within the block.

    All other parameters are frozen, except those that `train` matches. The module is restored afterwards.

    Raises
    ------
    ModelError
        If no linear layer matches.
    """
    import torch

    linear = {name: layer for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)}
    chosen = {name: layer for name, layer in linear.items() if name and _found(name, layers)}
    if not chosen:
        raise ModelError(_nothing("lora-on", layers, "linear layer", linear))
    named = dict(module.named_parameters())
    before = {name: parameter.requires_grad for name, parameter in named.items()}
    try:
        for name, parameter in named.items():
            trains = train is not None and _found(name, train)
            parameter.requires_grad_(before[name] and trains)
        for name, layer in chosen.items():
            _replace(module, name, _adapter(layer, min(rank, *layer.weight.shape)))
        yield
    finally:
        for name, layer in chosen.items():
            _replace(module, name, layer)
        for name, parameter in named.items():
            parameter.requires_grad_(before[name])


def _found(name: str, pattern: str) -> bool:
    """Return whether a name matches, with or without the prefix of the wrapper that adds the loss."""
    return matches(name, pattern) or matches(name.removeprefix("model."), pattern)


def _replace(module: torch.nn.Module, path: str, layer: torch.nn.Module) -> None:
    owner, _, leaf = path.rpartition(".")
    setattr(module.get_submodule(owner), leaf, layer)


def _adapter(layer: torch.nn.Linear, rank: int) -> torch.nn.Module:
    """Return a linear layer with its adapter, with the names of the peft library."""
    import torch

    class Adapter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer = layer
            with torch.device(layer.weight.device):
                self.lora_A = torch.nn.Linear(layer.in_features, rank, bias=False, dtype=layer.weight.dtype)
                self.lora_B = torch.nn.Linear(rank, layer.out_features, bias=False, dtype=layer.weight.dtype)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x))
            return y

    return Adapter()


def _nothing(option: str, pattern: str, what: str, names: Iterable[str]) -> str:
    known = list(names)
    near = get_close_matches(pattern.split(",", maxsplit=1)[0], known, n=SHOWN, cutoff=0.3) or known[:SHOWN]
    shown = ", ".join(name.removeprefix("model.") for name in near) or "none"
    return f"--{option} {pattern} names no {what}; there are for example {shown}"
