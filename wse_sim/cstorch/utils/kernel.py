"""Annotations that name the kernel wanted for a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from wse_sim.cstorch import summaries


def kernel_annotater(kernel: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: what the function captures is named for the kernel; the simulator matches kernels by itself."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if kernel is None:
            return function

        @functools.wraps(function)
        def wrapped(*args: object, **keywords: object) -> object:
            with summaries.name_scope(str(kernel)):
                return function(*args, **keywords)

        return wrapped

    return decorate
