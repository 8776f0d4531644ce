"""Annotations that name a kernel for a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from wse_sim.cstorch import summaries


def kernel_annotater(kernel: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that names the captured code for the kernel; the simulator matches kernels on its own."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if kernel is None:
            return function

        @functools.wraps(function)
        def wrapped(*args: object, **keywords: object) -> object:
            with summaries.name_scope(str(kernel)):
                return function(*args, **keywords)

        return wrapped

    return decorate
