"""Finds classes by their base classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["retrieve_all_subclasses"]

T = TypeVar("T")


def retrieve_all_subclasses(
    cls: type[T], condition: Callable[[type[T]], bool] | None = None
) -> Iterator[type[T]]:
    """Yield all non-abstract subclasses of a class, each once, without the class itself."""
    seen: set[type[T]] = set()
    waiting = list(cls.__subclasses__())
    while waiting:
        found = waiting.pop(0)
        if found in seen:
            continue
        seen.add(found)
        waiting.extend(found.__subclasses__())
        if not inspect.isabstract(found) and (condition is None or condition(found)):
            yield found
