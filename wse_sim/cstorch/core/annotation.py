"""Annotations: wrappers that attach hints to the captured code inside."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from wse_sim.cstorch import runtime
from wse_sim.cstorch.kinds import T
from wse_sim.frontend.hints import pin

PLACES = ("region", "rows", "cols", "replicas", "parts_in", "parts_out")
"""Fields of an annotation that place the kernels of a module."""

__all__ = ["AnnotationMode", "add_attribute", "annotate", "create_annotation", "wrap"]


class AnnotationMode:
    """Where an annotation applies: the forward or the backward pass."""

    @dataclasses.dataclass(kw_only=True)
    class Config:
        """Settings of an annotation, and its passes; programs derive their own."""

        enable_fwd: bool = True
        enable_bwd: bool = False
        fork_inputs: bool = False

    class Attribute(NamedTuple):
        """A name and a value for the compiler, without effect on the simulation."""

        name: str
        value: object

    def __init__(
        self,
        config: object = None,
        enable_fwd: bool = True,
        enable_bwd: bool = False,
        fork_inputs: bool = False,
        **_: object,
    ) -> None:
        self.config = config
        self.enable_fwd, self.enable_bwd, self.fork_inputs = enable_fwd, enable_bwd, fork_inputs


def annotate(annotation_mode: AnnotationMode) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Return a wrapper with the hint of a mode; see :func:`create_annotation`."""
    config = annotation_mode.config
    forward = getattr(config, "enable_fwd", annotation_mode.enable_fwd)
    backward = getattr(config, "enable_bwd", annotation_mode.enable_bwd)
    return _wrapper(config, forward, backward)


def create_annotation(
    config_class: object,
    set_attribute: object = None,
    *,
    enable_fwd: bool = True,
    enable_bwd: bool = False,
    **config: object,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper for callables whose hint reaches the plan.

    A config with a `level` sets the precision of what is captured inside.  One with fields of a pin (`region`, `rows` and
    `cols`, `replicas`, `parts_in`, `parts_out`; :mod:`wse_sim.frontend.hints`) places the kernels of a wrapped module.
    """
    if isinstance(config_class, type) and issubclass(config_class, AnnotationMode.Config):
        config = {"enable_fwd": enable_fwd, "enable_bwd": enable_bwd, **config}
    made = config_class(**config) if callable(config_class) else config
    return _wrapper(made, enable_fwd, enable_bwd)


def _wrapper(
    made: object, enable_fwd: bool, enable_bwd: bool
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    level = getattr(made, "level", None)
    where = {name: getattr(made, name, None) for name in PLACES}
    where = {name: value for name, value in where.items() if value is not None}

    def annotated(function: Callable[..., Any]) -> Callable[..., Any]:
        if where and isinstance(function, torch.nn.Module):
            pin(function, **where)

        @functools.wraps(function)
        def called(*args: object, **kwargs: object) -> object:
            with runtime.kernel_precision(level if enable_fwd else None, level if enable_bwd else None):
                return function(*args, **kwargs)

        return called

    return annotated


def wrap(enable_fwd: bool = True, enable_bwd: bool = False, **_: object) -> Callable[[T], T]:
    """Return a wrapper without effect."""
    return lambda function: function


@contextmanager
def add_attribute(
    tensor: object = None, name: str = "", value: object = None, **_: object
) -> Iterator[object]:
    """Enter a context without effect."""
    yield tensor
