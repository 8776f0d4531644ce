"""Environment variables of the client library."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["EnvironmentVariable", "appliance_environ"]


class _Environment(dict[str, str]):
    """Variables that would go to the cluster: kept, without effect."""


appliance_environ: Any = _Environment()


class EnvironmentVariable:
    """A variable with a default."""

    def __init__(self, name: str, default: object = None, *_: object, **__: object) -> None:
        self.name, self.default = name, default

    def get(self) -> Any:
        """Its value."""
        return os.environ.get(self.name, self.default)
