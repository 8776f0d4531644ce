"""Debug arguments: an object whose attributes, at any depth, exist and take values."""

from __future__ import annotations

import os
from typing import Any

from wse_sim.cstorch.debug_args import DebugArgs

__all__ = ["DebugArgs", "get_debug_args", "get_debug_mgr", "set_default_ini", "set_ini", "update_debug_args_from_keys",
           "update_debug_args_with_autogen_policy", "update_debug_args_with_job_labels", "update_debug_args_with_mem_limits",
           "write_debug_args"]  # fmt: skip


def get_debug_args(path: object = None, *_: object, **__: object) -> DebugArgs:
    """Return debug arguments; if they come from a file, the run's record names it."""
    made = DebugArgs()
    if path is not None:
        made.__dict__["path"] = str(path)
    return made


def get_debug_mgr(*_: object, **__: object) -> DebugArgs:
    """Return the debug settings of the cluster's manager."""
    return DebugArgs()


def set_ini(debug_args: DebugArgs, **settings: object) -> None:
    """Store compiler settings, without effect."""
    for key, value in settings.items():
        setattr(debug_args.ini, key, value)


def set_default_ini(debug_args: DebugArgs, **settings: object) -> None:
    """Set compiler settings that are not set yet."""
    for key, value in settings.items():
        debug_args.ini.__dict__.setdefault(key, value)


def update_debug_args_from_keys(debug_args: object, flat: dict[str, Any] | None) -> None:
    """Set attributes by dotted names."""
    for path, value in (flat or {}).items():
        target = debug_args
        *parts, last = path.split(".")
        for part in parts:
            target = getattr(target, part)
        setattr(target, last, value)


def update_debug_args_with_autogen_policy(debug_args: DebugArgs, policy: object = None, *_: object) -> None:
    """Store the policy of generated kernels, without effect."""
    vars(debug_args)["autogen_policy"] = policy


def update_debug_args_with_job_labels(debug_args: DebugArgs, labels: object = None, *_: object) -> None:
    """Store the labels of the job, without effect."""
    vars(debug_args)["job_labels"] = labels


def update_debug_args_with_mem_limits(debug_args: DebugArgs, limits: object = None, *_: object) -> None:
    """Store the limits of the servers' memory, without effect."""
    vars(debug_args)["mem_limits"] = limits


def write_debug_args(debug_args: DebugArgs, path: str | os.PathLike[str]) -> None:
    """Write debug arguments as text."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(debug_args))
