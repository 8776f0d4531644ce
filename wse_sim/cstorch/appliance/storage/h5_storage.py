"""Checkpoints in files of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from wse_sim.cstorch.appliance.storage import base_storage

__all__ = ["H5Deleter", "H5Reader", "H5Writer"]


class _File:
    @classmethod
    def is_valid_path(cls, path: base_storage.Path) -> bool:
        """Accept paths without a scheme, which are files."""
        return "://" not in os.fspath(path)

    @classmethod
    def path_exists(cls, path: base_storage.Path) -> bool:
        """Return whether the file is there."""
        return Path(path).exists()


class H5Reader(_File, base_storage.StorageReader, kind_of=base_storage.StorageReader):
    """Reads a checkpoint file."""

    @property
    def fstat(self) -> os.stat_result:
        """Return size and time of the file."""
        return os.stat(self.path)

    @property
    def global_metadata(self) -> dict[str, object]:
        """Return the attributes of the file."""
        from wse_sim.cstorch import checkpoint

        with checkpoint.opened(self.path) as file:
            return dict(file.attrs)


class H5Writer(_File, base_storage.StorageWriter, kind_of=base_storage.StorageWriter):
    """Writes a checkpoint file."""


class H5Deleter(_File, base_storage.StorageDeleter, kind_of=base_storage.StorageDeleter):
    """Deletes a checkpoint file."""

    def delete(self) -> None:
        """Delete the file."""
        Path(self.path).unlink()
