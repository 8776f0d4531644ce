"""Small helpers of the client library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["limit_mp_threads", "short_temp_dir", "unwrap_traceback", "version_check"]


@contextlib.contextmanager
def limit_mp_threads() -> Iterator[None]:
    """Do nothing: torch limits the threads of worker processes."""
    yield


@contextlib.contextmanager
def short_temp_dir() -> Iterator[None]:
    """Do nothing: the system chooses temporary folders."""
    yield


def version_check(*_: object, **__: object) -> None:
    """Do nothing: there is no cluster whose version could differ."""


def unwrap_traceback(*_: object, **__: object) -> None:
    """Do nothing."""
