"""Results of work that is done once and kept in the user's cache: kernel graphs, plans.

A file is named by a hash of everything that its content follows from, in a folder named by a hash of the sources that
make it.  It holds a checksum; one that does not agree, or does not fit this version, is as if it were not there.  It is
written under another name and then renamed, so writers at the same time do no harm; a folder that cannot be written is
left alone.  Folders of other sources are removed a month after their last use.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim import serialize
from wse_sim.atomic_files import write_whole
from wse_sim.errors import WseError
from wse_sim.files import CACHE, NOWHERE, cache_folder
from wse_sim.timings import spent

OWN = "wse_sim."  # modules of the library
OWN_NAME = re.compile("[0-9a-f]{16}")  # what `sources` gives: nothing else is ever removed
KEEP_S = 30 * 24 * 3600.0  # folders of other sources, since their last use
FAULTS = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error, WseError)


_IS_PAUSED = ContextVar("_IS_PAUSED", default=False)


def is_used() -> bool:
    """Whether anything is kept: ``$WSE_SIM_CACHE`` is not "none", and this is not inside :func:`paused`."""
    return os.environ.get(CACHE) != NOWHERE and not _IS_PAUSED.get()


@contextmanager
def paused() -> Iterator[None]:
    """Disable the store in this block: neither keep nor look up anything; for many runs that have their own store."""
    token = _IS_PAUSED.set(True)
    try:
        yield
    finally:
        _IS_PAUSED.reset(token)


def are_own(items: Iterable[Any]) -> bool:
    """Whether all functions and classes are the library's, and no package offers families to it."""
    return not metadata.entry_points(group="wse_sim.kernels") and all(
        i.__module__.startswith(OWN) for i in items
    )


def named(data: object) -> str:
    """The key of plain data: the first 32 digits of its SHA-256."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=repr).encode()).hexdigest()[:32]


@cache
def versions(*packages: str) -> str:
    """Installed versions, as one text."""
    found = []
    for name in packages:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


@cache
def sources(*packages: str) -> str:
    """Hash of the sources of packages, of folders that are links (kernels in a checkout) as well."""
    total = hashlib.sha256()
    for package in packages:
        root = Path(str(resources.files(package)))
        files = [Path(at) / name for at, _, names in os.walk(root, followlinks=True) for name in names]
        for file in sorted(file for file in files if file.suffix == ".py"):
            total.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return total.hexdigest()[:16]


def folder_of(kind: str, made_by: str) -> Path:
    """Where values of a kind are kept that the sources `made_by` make."""
    return cache_folder() / f"wse_sim_{kind}" / made_by


def get(folder: Path, key: str) -> Any:
    """The kept value; None if there is none that reads."""
    with spent("look into the cache"):
        return _read(folder, key)


def _read(folder: Path, key: str) -> Any:
    try:
        summed, packed = (folder / key).read_bytes().split(b"\n", 1)
        if summed.decode() != hashlib.sha256(packed).hexdigest():
            return None
        return from_json(zlib.decompress(packed))
    except FAULTS:
        return None


def from_json(text: bytes) -> object:
    """The value whose :func:`as_json` is `text`; raises one of :data:`FAULTS` if there is none."""
    data = json.loads(text)
    arrays = {
        name: np.frombuffer(base64.b64decode(item["data"]), item["type"]).reshape(item["shape"])
        for name, item in data["arrays"].items()
    }
    return serialize.decode(data["value"], arrays)


def as_json(value: object) -> bytes:
    """A value as JSON, with its arrays."""
    arrays: dict[str, np.ndarray] = {}
    body = serialize.encode(value, arrays)
    held = {
        name: {
            "type": array.dtype.str,
            "shape": array.shape,
            "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
        }
        for name, array in arrays.items()
    }
    return json.dumps({"value": body, "arrays": held}).encode()


def put(folder: Path, key: str, value: object) -> None:
    """Keep a value, if the folder can be written."""
    with spent("write to the cache"):
        _write(folder, key, value)


def _write(folder: Path, key: str, value: object) -> None:
    packed = zlib.compress(as_json(value), 1)
    try:
        write_whole(folder / key, hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed, durable=False)
        _forget_old(folder)
    except (
        OSError,
        WseError,
    ):  # a full disk, a folder of another user: the value is recomputed next time
        return


def _forget_old(mine: Path) -> None:
    os.utime(mine)
    for folder in mine.parent.iterdir():
        old = OWN_NAME.fullmatch(folder.name) and time.time() - folder.stat().st_mtime > KEEP_S
        if folder != mine and old:
            shutil.rmtree(folder, ignore_errors=True)
