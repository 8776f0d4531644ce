"""Functions that are called when a result of a step reaches the client."""

from __future__ import annotations

from collections.abc import Callable

from wse_sim.cstorch import hooks

__all__ = ["register_after_tensor_to_cpu"]


def register_after_tensor_to_cpu(function: Callable[..., None]) -> hooks.Handle:
    """Call a function with each tensor that a closure is given, and the name of the tensor."""
    return hooks.Handle(hooks.received, function)
