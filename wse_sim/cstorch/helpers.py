"""Small public functions: current objects, constants, names for debugging."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from wse_sim.cstorch import runtime
from wse_sim.cstorch.tensors import WaferTensor

if TYPE_CHECKING:
    from wse_sim.cstorch.roles import BackendRole


def current_backend(raise_exception: bool = True, **_: object) -> BackendRole | None:
    """Return the backend of this process.

    Raises
    ------
    ProgramError
        If there is none and `raise_exception`.
    """
    return runtime.current_backend(required=raise_exception)


def current_torch_device() -> torch.device:
    """Return the device on which tensors of this backend live."""
    found = runtime.current_backend()
    return torch.device("cpu") if found is None else found.torch_device


def current_executor() -> object:
    """Return the executor whose loop is running, or None."""
    execution = runtime.current_execution()
    return None if execution is None else execution.executor


def make_constant(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is a constant of the compiled step instead of state."""
    if not runtime.use_cs() or isinstance(tensor, WaferTensor):
        return tensor
    return tensor.detach()


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """Return a tensor with the values of an array."""
    return torch.from_numpy(np.asarray(array))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return the values of a tensor, where they may be read.

    Raises
    ------
    ProgramError
        Outside of a step closure.
    """
    return runtime.host_value(tensor).detach().numpy()


def manual_seed(seed: int) -> None:
    """Seed torch's generator, which initialisation, dropout and shuffling draw from."""
    torch.manual_seed(seed)


_scope = ""


def set_debug_scope(name: str) -> None:
    """Set the prefix of names that are given later."""
    global _scope
    _scope = name or ""


def add_debug_name(module: torch.nn.Module, root_name: str | None = None) -> None:
    """Set names of a module and its children for reports."""
    root = root_name or type(module).__name__.lower()
    for path, child in module.named_modules():
        child.__dict__["_debug_name"] = ".".join(p for p in (_scope, root, path) if p)


def get_debug_name(module: torch.nn.Module) -> str:
    """Return the name that :func:`add_debug_name` gave."""
    return module.__dict__.get("_debug_name", type(module).__name__)


__all__ = [
    "add_debug_name", "current_backend", "current_executor", "current_torch_device", "from_numpy", "get_debug_name",
    "make_constant", "manual_seed", "set_debug_scope", "to_numpy",
]  # fmt: skip
