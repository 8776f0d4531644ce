"""Storage in the cloud, which the simulator does not have; using one of these names raises an error."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NoReturn

from wse_sim.cstorch import faults


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        raise faults.program_error(
            f"cstorch.storage.{name} is not part of this simulator; write to a local path"
        )

    refused.__name__ = name
    return refused


S3Reader, S3Writer = _refuse("S3Reader"), _refuse("S3Writer")
StorageReader, StorageWriter = _refuse("StorageReader"), _refuse("StorageWriter")
DeferredStorage = _refuse("DeferredStorage")


def __getattr__(name: str) -> object:
    if name in ("constants", "serializers"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
