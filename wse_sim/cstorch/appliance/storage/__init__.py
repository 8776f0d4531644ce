"""Storage of checkpoints: local files; cloud storage is recognised by its scheme and rejected."""

from __future__ import annotations

from wse_sim.cstorch.appliance.storage.base_storage import StorageDeleter, StorageReader, StorageWriter
from wse_sim.cstorch.appliance.storage.h5_storage import H5Deleter, H5Reader, H5Writer
from wse_sim.cstorch.appliance.storage.s3_storage import S3Deleter, S3Reader, S3Writer

__all__ = [
    "H5Deleter",
    "H5Reader",
    "H5Writer",
    "S3Deleter",
    "S3Reader",
    "S3Writer",
    "StorageDeleter",
    "StorageReader",
    "StorageWriter",
]
