"""Access to single tensors of a checkpoint file, for converters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from wse_sim.cstorch import checkpoint, faults


@dataclass(frozen=True)
class Version:
    """Version of the format of a file."""

    ckpt_version: float


class PyTorchH5Saver:
    """Reads and writes checkpoint files."""

    def __init__(
        self,
        max_store: int | None = None,
        loaded_checkpoint: str | os.PathLike[str] | None = None,
        is_pretrained_checkpoint: bool = False,
    ) -> None:
        self.max_store = max_store
        # Values of this file are in front of those that `save` is given; of a pretrained one, the model's only.
        self.loaded, self.model_only = loaded_checkpoint, is_pretrained_checkpoint

    @staticmethod
    def is_valid_checkpoint(path: str | os.PathLike[str]) -> bool:
        """Return whether the file is a checkpoint in HDF5."""
        return os.path.isfile(path) and checkpoint._is_hdf5(Path(path))

    @staticmethod
    def extract_version(path: str | os.PathLike[str]) -> Version | None:
        """Return the format's version, or None for files of another kind."""
        if not PyTorchH5Saver.is_valid_checkpoint(path):
            return None
        with checkpoint.opened(path) as file:
            version = file.attrs.get("version")
        return None if version is None else Version(float(version))

    @staticmethod
    def tensor_names(path: str | os.PathLike[str]) -> list[str]:
        """Return the names of the tensors and of the plain numbers of a file."""
        return [*checkpoint.names(path), *_numbers(path)]

    def load_tensor(self, path: str | os.PathLike[str], name: str) -> torch.Tensor | float:
        """Load one tensor, or a plain number of the structure.

        Raises:
            ProgramError: the file has no such tensor.
        """
        source = checkpoint._Source(Path(path))
        if name not in source.file:
            numbers = _numbers(path)
            if name in numbers:
                return numbers[name]
            raise faults.program_error(
                f"{path} has no tensor '{name}'; its tensors are listed by tensor_names()"
            )
        return source.read(name)

    def save_tensor(self, path: str | os.PathLike[str], name: str, value: object) -> None:
        """Add one tensor to a file, or replace it; the file is created if necessary."""
        self.save_tensors(path, {name: torch.as_tensor(value)})

    def save_tensors(self, path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor]) -> None:
        """Add tensors to a file, or replace them; a file that refers to others is refused."""
        if os.path.exists(path):
            checkpoint.opened(path).close()
        with checkpoint._hdf5().File(path, "a") as file:
            if "version" not in file.attrs:
                file.attrs["format"], file.attrs["version"] = checkpoint.FORMAT, checkpoint.VERSION
            for name, value in tensors.items():
                if name in file:
                    del file[name]
                checkpoint._write_tensor(file, name, checkpoint._fetched(value), None)

    @staticmethod
    def flatten_state_dict(state_dict: object) -> tuple[dict[str, torch.Tensor], Any]:
        """Return (tensors by name, the structure)."""
        flat = checkpoint._Flat()
        spec = flat.walk(state_dict, ())
        return flat.tensors, spec

    def save_spec(self, path: str | os.PathLike[str], spec: object) -> None:
        """Write the structure of a file."""
        with checkpoint._hdf5().File(path, "a") as file:
            if checkpoint.SPEC in file:
                del file[checkpoint.SPEC]
            file.create_dataset(checkpoint.SPEC, data=json.dumps(spec))

    def save(self, path: str | os.PathLike[str], state_dict: object) -> None:
        checkpoint.save(state_dict, path, asynchronous=False)
        if self.loaded is None:
            return
        saved = set(checkpoint.names(path))
        kept = {
            name: cast(torch.Tensor, self.load_tensor(self.loaded, name))
            for name in checkpoint.names(self.loaded)
            if name in saved and (not self.model_only or name.startswith("model."))
        }
        self.save_tensors(path, kept)

    def load(self, path: str | os.PathLike[str]) -> object:
        return checkpoint.load(path, map_location="cpu")


def _numbers(path: str | os.PathLike[str]) -> dict[str, int | float]:
    """Plain numbers of the structure of a file, by dotted name."""
    with checkpoint.opened(path) as file:
        spec = file.get(checkpoint.SPEC)
        structure = json.loads(spec[()]) if spec is not None else {"d": []}
    found: dict[str, int | float] = {}

    def walk(node: Mapping[str, Any], path: tuple[str, ...]) -> None:
        for key, inner in node.get("d", ()):
            walk(inner, (*path, str(key)))
        for i, inner in enumerate(node.get("l", ())):
            walk(inner, (*path, str(i)))
        if type(node.get("v")) in (int, float):
            found[".".join(path)] = node["v"]

    walk(structure, ())
    return found


class CerebrasStateDict(dict[str, Any]):
    """A checkpoint file as a dictionary; tensors are read when they are used."""

    @classmethod
    def create(cls, spec: object, path: str | os.PathLike[str]) -> CerebrasStateDict:
        """Return the dictionary of a file, whose structure is in the file itself."""
        return cls(checkpoint.load(path))


class CheckpointReader:
    """A checkpoint file to read, as converters of earlier releases open it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path

    @property
    def spec(self) -> dict[str, object]:
        """The nested structure of the saved state, parsed from JSON; tensors are replaced by references."""
        with checkpoint.opened(self.path) as file:
            return cast(dict[str, object], json.loads(file[checkpoint.SPEC][()]))

    @property
    def tensor_names(self) -> list[str]:
        """Names of the tensors and of the plain numbers of the file."""
        return PyTorchH5Saver.tensor_names(self.path)
