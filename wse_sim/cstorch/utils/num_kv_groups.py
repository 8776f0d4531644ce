"""Annotation of grouped-query attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def groups_annotater(num_kv_groups: int | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that states how many groups share keys and values; the shapes say so too, so the function is as it was."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    return decorate
