"""Stores of modules that belong to one run: :func:`wse_sim.cstorch.runtime.reset` restores their initial content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Store = TypeVar("Store", dict[Any, Any], list[Any], set[Any])
_RESTORES: list[Callable[[], None]] = []


def of_run(store: Store) -> Store:
    """Return a dictionary, list or set that lasts as long as the run; returns it."""
    first = store.copy()

    def restore() -> None:
        store.clear()
        if isinstance(store, list):
            store.extend(first)
        else:
            store.update(first)

    _RESTORES.append(restore)
    return store


def restore_all() -> None:
    """Restore every store to its content when its module was imported."""
    for restore in _RESTORES:
        restore()
