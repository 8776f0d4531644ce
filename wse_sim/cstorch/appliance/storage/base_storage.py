"""Kinds of storage, and the kind of a path."""

from __future__ import annotations

import os
from typing import ClassVar, Self

from wse_sim.cstorch import faults

__all__ = ["StorageDeleter", "StorageReader", "StorageWriter"]

Path = str | os.PathLike[str]


class _Storage:
    """One kind of storage; the base class chooses among its kinds."""

    kinds: ClassVar[list[type[_Storage]]]

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)

    def __init_subclass__(cls, kind_of: type[_Storage] | None = None) -> None:
        if kind_of is None:
            cls.kinds = []
        else:
            kind_of.kinds.append(cls)

    @classmethod
    def is_valid_path(cls, path: Path) -> bool:
        """Return whether a path belongs to this kind of storage (for the base class: to any kind)."""
        return any(kind.is_valid_path(path) for kind in cls.kinds)

    @classmethod
    def get_type(cls, path: Path) -> type[_Storage]:
        """Return the kind of storage that a path belongs to.

        Raises
        ------
        ProgramError
            If there is none.
        """
        for kind in cls.kinds:
            if kind.is_valid_path(path):
                return kind
        raise faults.program_error(
            f"{os.fspath(path)[:80]!r} is not a path of a checkpoint; give a path of a file"
        )

    @classmethod
    def get(cls, path: Path) -> _Storage:
        """Return the storage of a path."""
        return cls.get_type(path)(path)

    @classmethod
    def path_exists(cls, path: Path) -> bool:
        """Return whether the path exists."""
        return cls.get_type(path).path_exists(path)


class StorageReader(_Storage):
    """Reads checkpoints."""


class StorageWriter(_Storage):
    """Writes checkpoints."""


class StorageDeleter(_Storage):
    """Deletes checkpoints."""

    @classmethod
    def get(cls, path: Path) -> Self:
        """Return the deleter of a path."""
        made = cls.get_type(path)(path)
        assert isinstance(made, cls)
        return made

    def delete(self) -> None:
        """Delete the object."""
        raise NotImplementedError
