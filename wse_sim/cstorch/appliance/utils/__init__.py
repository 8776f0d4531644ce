"""Small helpers of the client library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["limit_mp_threads", "short_temp_dir", "unwrap_traceback", "version_check"]


@contextlib.contextmanager
def limit_mp_threads() -> Iterator[None]:
    """Threads of worker processes are torch's matter."""
    yield


@contextlib.contextmanager
def short_temp_dir() -> Iterator[None]:
    """Temporary folders are the system's matter."""
    yield


def version_check(*_: object, **__: object) -> None:
    """Versions are not compared: there is no cluster."""


def unwrap_traceback(*_: object, **__: object) -> None:
    """Do nothing."""
