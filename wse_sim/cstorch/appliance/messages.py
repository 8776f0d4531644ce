"""Messages of the cluster's protocol that scripts name: enumerations and records without effect."""

from __future__ import annotations

from enum import IntEnum

from wse_sim.cstorch.appliance.run_utils import DebugArgs

__all__ = ["AP_DISABLED", "DebugArgs", "ExecutionStrategy", "FullConfig"]


class ExecutionStrategy(IntEnum):
    """The execution strategy: pipelined execution or weight streaming."""

    ES_UNKNOWN = 0
    ES_PIPELINE = 1
    ES_WEIGHT_STREAMING = 2

    @classmethod
    def Name(cls, value: int) -> str:  # noqa: N802  (the public name)
        """Return the name of a value."""
        return cls(value).name

    @classmethod
    def Value(cls, name: str) -> int:  # noqa: N802  (the public name)
        """Return the value of a name."""
        return cls[name].value


AP_DISABLED = 0


class FullConfig(DebugArgs):
    """A compiler's configuration, which is stored without effect."""


def __getattr__(name: str) -> type[DebugArgs]:
    if name.startswith("__") or not name[:1].isupper():
        raise AttributeError(name)
    return type(name, (DebugArgs,), {"__doc__": "A message without effect."})
