"""Caches files of constants per process; a file is read again when it, or a base that it uses, has changed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from wse_sim.hardware.constants import ConstantSet

MOST_KEPT = 32
Read = TypeVar("Read")
Stamp = tuple[str, int, int, int]
"""A file as it was: path, time of its last change (ns), bytes, number in the file system."""


class ReadOnce(Generic[Read]):
    """A reader of sets of constants that caches them as long as the files do not change."""

    def __init__(self, constants: ConstantSet, read: Callable[[str], Read]) -> None:
        self._constants, self._read = constants, read
        self._kept: dict[str, tuple[list[Stamp], Read]] = {}
        functools.update_wrapper(self, read)

    def __call__(self, name_or_path: str) -> Read:
        """Return the set of a name or a path. Raises what the reader raises."""
        name = os.path.abspath(
            self._constants.path_of(name_or_path)
        )  # a path is another one in another folder
        kept = self._kept.get(name)
        if kept is not None and kept[0] == [_stamp(stamp[0]) for stamp in kept[0]]:
            return kept[1]
        before = _stamp(name)
        found = self._read(name)
        files = [_stamp(os.path.abspath(file)) for file in self._constants.bases_of(Path(name))]
        if before == files[0]:  # else it changed while it was read
            if len(self._kept) >= MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[name] = files, found
        return found

    def cache_clear(self) -> None:
        """Empty the cache."""
        self._kept.clear()


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # a null byte: the reader reports it
        return path, 0, 0, 0
    return path, status.st_mtime_ns, status.st_size, status.st_ino


def read_once(constants: ConstantSet) -> Callable[[Callable[[str], Read]], ReadOnce[Read]]:
    """Decorate a reader of a path: it takes a name or a path, and reads a changed file again."""
    return lambda read: ReadOnce(constants, read)
