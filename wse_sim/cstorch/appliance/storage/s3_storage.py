"""Checkpoints in cloud storage: recognised by their scheme, and rejected with an error on use."""

from __future__ import annotations

import os
from typing import NoReturn

from wse_sim.cstorch import faults
from wse_sim.cstorch.appliance.storage import base_storage

__all__ = ["S3Deleter", "S3Reader", "S3Writer"]


class _Cloud:
    def __init__(self, path: base_storage.Path) -> None:
        self.path_exists(path)

    @classmethod
    def is_valid_path(cls, path: base_storage.Path) -> bool:
        """Return whether a path has the scheme ``s3``."""
        return os.fspath(path).startswith("s3://")

    @classmethod
    def path_exists(cls, path: base_storage.Path) -> NoReturn:
        """Raise an error: storage outside this machine is not supported."""
        raise faults.program_error(
            f"{os.fspath(path)[:80]!r} is cloud storage, which is not part of this simulator; give a local path"
        )


class S3Reader(_Cloud, base_storage.StorageReader, kind_of=base_storage.StorageReader):
    """Reads from the cloud: refused."""


class S3Writer(_Cloud, base_storage.StorageWriter, kind_of=base_storage.StorageWriter):
    """Writes to the cloud: refused."""


class S3Deleter(_Cloud, base_storage.StorageDeleter, kind_of=base_storage.StorageDeleter):
    """Deletes in the cloud: refused."""
