"""A decorator for functions that run once per process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def call_once() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that caches the result of the first call."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        results: list[Any] = []

        @functools.wraps(function)
        def wrapped(*args: object, **keywords: object) -> object:
            if not results:
                results.append(function(*args, **keywords))
            return results[0]

        return wrapped

    return decorate
