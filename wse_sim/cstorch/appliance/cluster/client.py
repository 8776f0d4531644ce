"""Accepts messages of loggers to a cluster's management and keeps them in memory, where a program may read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

__all__ = ["TelemetryClient"]


class TelemetryClient:
    """Accepts values as a cluster's management would; the newest `max_buffer_size` pushes are kept in :attr:`kept`."""

    def __init__(
        self,
        mgmt_client: object = None,
        max_buffer_size: int = 128,
        max_buffer_seconds: float = 150,
        **_: object,
    ) -> None:
        self.max_buffer_seconds = max_buffer_seconds
        self.kept: deque[tuple[dict[str, object], dict[str, str]]] = deque(maxlen=max_buffer_size)

    def push(
        self, metrics: Mapping[str, object], labels: Mapping[str, str] | None = None, **_: object
    ) -> None:
        """Accept values with their labels."""
        self.kept.append((dict(metrics), dict(labels or {})))

    def flush(self) -> None:
        """Do nothing: no message is sent."""

    def __enter__(self) -> TelemetryClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
