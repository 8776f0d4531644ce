"""Access to single tensors of a checkpoint file, for converters."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wse_sim.cstorch import checkpoint, faults


@dataclass(frozen=True)
class Version:
    """Of the format of a file."""

    ckpt_version: float


class PyTorchH5Saver:
    """Reads and writes checkpoint files."""

    def __init__(self, max_store: int | None = None) -> None:
        self.max_store = max_store

    @staticmethod
    def is_valid_checkpoint(path: str | os.PathLike[str]) -> bool:
        """Whether the file is a checkpoint in HDF5."""
        return Path(path).is_file() and checkpoint._is_hdf5(Path(path))

    @staticmethod
    def extract_version(path: str | os.PathLike[str]) -> Version | None:
        """The format's version, or None for files of another kind."""
        if not PyTorchH5Saver.is_valid_checkpoint(path):
            return None
        with checkpoint._hdf5().File(path, "r") as file:
            version = file.attrs.get("version")
        return None if version is None else Version(float(version))

    @staticmethod
    def tensor_names(path: str | os.PathLike[str]) -> list[str]:
        return list(checkpoint.names(path))

    def load_tensor(self, path: str | os.PathLike[str], name: str) -> torch.Tensor:
        """One tensor.

        Raises:
            ProgramError: the file has no such tensor.
        """
        source = checkpoint._Source(Path(path))
        if name not in source.file:
            raise faults.program_error(
                f"{path} has no tensor '{name}'; its tensors are listed by tensor_names()"
            )
        return source.read(name)

    def save_tensor(self, path: str | os.PathLike[str], name: str, value: Any) -> None:
        """Add one tensor to a file (made if it is not there), or replace it."""
        with checkpoint._hdf5().File(path, "a") as file:
            if "version" not in file.attrs:
                file.attrs["format"], file.attrs["version"] = checkpoint.FORMAT, checkpoint.VERSION
            if name in file:
                del file[name]
            checkpoint._write_tensor(file, name, checkpoint._fetched(torch.as_tensor(value)), None)

    @staticmethod
    def flatten_state_dict(state_dict: Any) -> tuple[dict[str, torch.Tensor], Any]:
        """(tensors by name, the structure)."""
        flat = checkpoint._Flat()
        spec = flat.walk(state_dict, ())
        return flat.tensors, spec

    def save_spec(self, path: str | os.PathLike[str], spec: Any) -> None:
        """Write the structure of a file."""
        with checkpoint._hdf5().File(path, "a") as file:
            if checkpoint.SPEC in file:
                del file[checkpoint.SPEC]
            file.create_dataset(checkpoint.SPEC, data=json.dumps(spec))

    def save(self, path: str | os.PathLike[str], state_dict: Any) -> None:
        checkpoint.save(state_dict, path, asynchronous=False)

    def load(self, path: str | os.PathLike[str]) -> Any:
        return checkpoint.load(path, map_location="cpu")
