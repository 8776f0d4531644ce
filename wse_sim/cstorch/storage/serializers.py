"""How files of checkpoints hold tensors: always by value, whatever a program asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["cache_deferred_tensors", "use_external_link"]


@contextmanager
def use_external_link(value: bool = True) -> Iterator[None]:
    """Values stay in their own file: a checkpoint that leads to other files is refused when it is read."""
    yield


@contextmanager
def cache_deferred_tensors(value: bool = True) -> Iterator[None]:
    """Handles of tensors in files keep no copy, so there is nothing to switch off."""
    yield
