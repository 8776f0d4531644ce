"""Annotations: wrappers that attach hints to what is captured inside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from wse_sim.cstorch import runtime

__all__ = ["AnnotationMode", "add_attribute", "create_annotation", "wrap"]


class AnnotationMode:
    """Where an annotation applies: the forward or the backward pass."""

    def __init__(
        self,
        config: Any = None,
        enable_fwd: bool = True,
        enable_bwd: bool = False,
        fork_inputs: bool = False,
        **_: Any,
    ) -> None:
        self.config = config
        self.enable_fwd, self.enable_bwd, self.fork_inputs = enable_fwd, enable_bwd, fork_inputs


def create_annotation(
    config_class: Any,
    set_attribute: Any = None,
    *,
    enable_fwd: bool = True,
    enable_bwd: bool = False,
    **config: Any,
) -> Any:
    """A wrapper for callables that keeps the hint in the run's record."""
    made = config_class(**config) if callable(config_class) else config
    level = getattr(made, "level", None)

    def annotated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with runtime.kernel_precision(level if enable_fwd else None, level if enable_bwd else None):
                return function(*args, **kwargs)

        return called

    return annotated


def wrap(enable_fwd: bool = True, enable_bwd: bool = False, **_: Any) -> Any:
    """A wrapper that changes nothing."""
    return lambda function: function


@contextmanager
def add_attribute(tensor: Any = None, name: str = "", value: Any = None, **_: Any) -> Any:
    """A context that changes nothing."""
    yield tensor
