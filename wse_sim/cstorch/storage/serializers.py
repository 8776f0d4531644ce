"""Storage of tensors in checkpoint files: tensors are always stored by value, whatever a program requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["cache_deferred_tensors", "use_external_link"]


@contextmanager
def use_external_link(value: bool = True) -> Iterator[None]:
    """Enter a context without effect: values stay in the file, because checkpoints with links to other files
    are rejected on reading."""
    yield


@contextmanager
def cache_deferred_tensors(value: bool = True) -> Iterator[None]:
    """Do nothing: handles of tensors in files keep no copy."""
    yield
