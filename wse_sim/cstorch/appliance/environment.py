"""Environment variables of the client library."""

from __future__ import annotations

import os

__all__ = ["EnvironmentVariable", "appliance_environ"]


class _Environment(dict[str, str]):
    """Variables that would be sent to the cluster; they are stored without effect."""


appliance_environ = _Environment()


class EnvironmentVariable:
    """A variable with a default."""

    def __init__(self, name: str, default: str | None = None, *_: object, **__: object) -> None:
        self.name, self.default = name, default

    def get(self) -> str | None:
        """Return its value."""
        return os.environ.get(self.name, self.default)
