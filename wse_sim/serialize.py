"""Frozen dataclasses to a folder and back: JSON for structure, npz for arrays, a schema version, a checksum.

Rules: sequences are tuples, mappings are read-only, numpy arrays go to ``arrays.npz``; every class is
registered by name, so that a file can only make what the package defines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from wse_sim.atomic_files import settle, together
from wse_sim.errors import SerializationError
from wse_sim.files import JSON, read_json

SCHEMA = 5
MAX_ARRAY_BYTES = 2**32
"""Most bytes of arrays that are read from one archive: 4 GiB, some hundred times the largest result known."""

HEAD_BYTES = 4096  # of one array in an archive, at most: its name, type and shape
ROWS_FROM = 16  # rows of one class from which a sequence is kept by columns
_CLASSES: dict[str, type] = {}
# What the readers of zip archives and arrays raise on damaged files: all kinds, found by changing bytes at random.
_ARCHIVE_FAULTS = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    RuntimeError,
    MemoryError,
    EOFError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
C = TypeVar("C", bound=type)


def saved(cls: C) -> C:
    """Register a frozen dataclass, an enum or a pydantic model as one that files may hold."""
    _CLASSES[cls.__name__] = cls
    return cls


def encode(value: object, arrays: dict[str, np.ndarray]) -> JSON:
    """`value` as JSON data; arrays are put into `arrays` and named by number."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return {"~": type(value).__name__, "v": value.value}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {"~": "array", "v": _named(value, arrays)}
    if isinstance(value, BaseModel):
        return {"~": type(value).__name__, "v": value.model_dump(mode="json")}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            "~": type(value).__name__,
            "v": {
                f.name: encode(getattr(value, f.name), arrays) for f in dataclasses.fields(value) if f.init
            },
        }
    if isinstance(value, Mapping):
        return {"~": "map", "v": [[encode(k, arrays), encode(v, arrays)] for k, v in value.items()]}
    if isinstance(value, tuple | list):
        return _columns(value, arrays) or [encode(item, arrays) for item in value]
    raise SerializationError(
        f"a {type(value).__name__} cannot be saved; use tuples, mappings and registered classes"
    )


def _columns(rows: Sequence[Any], arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """Many objects of one class by columns: numbers as arrays, texts as numbers of their distinct values; else None."""
    if len(rows) < ROWS_FROM or not dataclasses.is_dataclass(rows[0]) or isinstance(rows[0], type):
        return None
    kind = type(rows[0])
    if any(type(row) is not kind for row in rows):
        return None
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    columns = {name: _column([getattr(row, name) for row in rows], arrays) for name in names}
    return {"~": "rows", "v": {"kind": kind.__name__, "count": len(rows), "columns": columns}}


def _named(array: np.ndarray, arrays: dict[str, np.ndarray]) -> str:
    """The name under which an array is kept."""
    key = f"a{len(arrays)}"
    arrays[key] = array
    return key


def _column(values: list[Any], arrays: dict[str, np.ndarray]) -> JSON:
    kinds = {type(value) for value in values}
    if kinds == {float}:
        return {"~": "numbers", "v": _named(np.array(values, np.float64), arrays)}
    if kinds == {int} and max(map(abs, values)) < 2**31:
        return {"~": "numbers", "v": _named(np.array(values, np.int32), arrays)}
    if kinds == {str}:
        words = list(dict.fromkeys(values))
        number = {word: index for index, word in enumerate(words)}
        index = np.array([number[value] for value in values], np.int32)
        return {"~": "words", "v": [words, _named(index, arrays)]}
    return [encode(value, arrays) for value in values]


def _read_rows(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
    kind = _CLASSES.get(data["kind"])
    if kind is None:
        raise SerializationError(
            f"the file holds an unknown type '{data['kind']}'; it was written by another version"
        )
    columns = {name: decode(column, arrays) for name, column in data["columns"].items()}
    if any(len(column) != data["count"] for column in columns.values()):
        raise ValueError("columns of unequal length")
    names = list(columns)
    return tuple(kind(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True))


def _decoders(arrays: Mapping[str, np.ndarray]) -> dict[str, Callable[[Any], Any]]:
    return {
        "array": lambda key: arrays[key],
        "numbers": lambda key: tuple(arrays[key].tolist()),
        "words": lambda held: tuple(held[0][index] for index in arrays[held[1]].tolist()),
        "rows": lambda data: _read_rows(data, arrays),
        "map": lambda items: MappingProxyType({decode(k, arrays): decode(v, arrays) for k, v in items}),
    }


def decode(data: object, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of :func:`encode`."""
    if isinstance(data, list):
        return tuple(decode(item, arrays) for item in data)
    if not isinstance(data, dict):
        return data
    kind, value = data["~"], data["v"]
    special = _decoders(arrays).get(kind)
    if special:
        return special(value)
    cls = _CLASSES.get(kind)
    if cls is None:
        raise SerializationError(
            f"the file holds an unknown type '{kind}'; it was written by another version"
        )
    if issubclass(cls, Enum):
        return cls(value)
    if issubclass(cls, BaseModel):
        return cls.model_validate(value)
    return cls(**{name: decode(item, arrays) for name, item in value.items()})


def save(value: object, folder: Path, name: str) -> None:
    """Write `value` as ``name.json`` and ``name.npz`` into `folder`, both or none."""
    arrays: dict[str, np.ndarray] = {}
    body = encode(value, arrays)
    sizes = {key: array.nbytes for key, array in arrays.items()}
    data = {"schema": SCHEMA, "sha256": _check_sum(body, arrays), "bytes": sizes, "body": body}
    with together(folder) as part:
        (part / f"{name}.json").write_text(json.dumps(data, sort_keys=True) + "\n", encoding="utf-8")
        np.savez_compressed(part / f"{name}.npz", **arrays)  # type: ignore[arg-type]


def load(folder: Path, name: str) -> Any:
    """Read what :func:`save` wrote.

    Raises
    ------
    SerializationError
        If the files are missing, damaged, changed since they were written, or of another schema version.
    """
    settle(folder)
    file = folder / f"{name}.json"
    data = read_json(file, "the saved file", SerializationError)
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int) or "body" not in data:
        raise SerializationError(f"{file} contains no saved {name}; give a folder that a run wrote")
    if data["schema"] != SCHEMA:
        raise SerializationError(
            f"{file} has schema {data['schema']}, this version reads {SCHEMA}; run the command again"
        )
    stated = data.get("bytes")
    arrays = read_arrays(folder / f"{name}.npz", stated if isinstance(stated, dict) else {})
    is_whole = stated == {key: array.nbytes for key, array in arrays.items()}
    if not is_whole or data.get("sha256") != _check_sum(data["body"], arrays):
        raise SerializationError(
            f"{file} or its .npz was damaged or changed after it was written; run the command again"
        )
    try:
        return decode(data["body"], arrays)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as fault:
        raise SerializationError(
            f"{file} does not fit this version ({type(fault).__name__}: {' '.join(str(fault).split())[:120]}); "
            "run the command again"
        ) from fault


def read_arrays(file: Path, stated: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
    """All arrays of an archive; the sizes in its directory are looked at before any is unpacked.

    Raises
    ------
    SerializationError
        If it cannot be read, holds other sizes than the `stated` bytes by name, or more than :data:`MAX_ARRAY_BYTES`.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            sizes = {item.filename.removesuffix(".npy"): item.file_size for item in archive.infolist()}
        over = stated is not None and any(
            size > int(stated.get(key, 0)) + HEAD_BYTES for key, size in sizes.items()
        )
        if over or sum(sizes.values()) > MAX_ARRAY_BYTES:
            limit = "than its .json says" if over else f"than {MAX_ARRAY_BYTES:,} bytes"
            raise SerializationError(f"{file} unpacks to more {limit}; give a folder that a run wrote")
        with np.load(file) as stored:
            found = {key: stored[key] for key in stored.files}
        if other := next((key for key, array in found.items() if not isinstance(array, np.ndarray)), None):
            raise SerializationError(
                f"{file} holds '{other[:80]}', which is not an array; give a folder that a run wrote"
            )
        return found
    except _ARCHIVE_FAULTS as fault:
        raise SerializationError(
            f"{file} cannot be read ({type(fault).__name__}: {' '.join(str(fault).split())[:120]}); "
            "give a folder that a run wrote"
        ) from fault


def _check_sum(body: object, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the structure and every array: name, type, shape and content."""
    total = hashlib.sha256(json.dumps(body, sort_keys=True).encode())
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        total.update(f"{key} {array.dtype.str} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def content_digest(value: object) -> str:
    """SHA-256 of a savable value, arrays included: equal for equal contents, in every process."""
    arrays: dict[str, np.ndarray] = {}
    return _check_sum(encode(value, arrays), arrays)


def same(one: object, other: object) -> bool:
    """Whether two savable values are equal, arrays compared bit by bit."""
    arrays_one: dict[str, np.ndarray] = {}
    arrays_other: dict[str, np.ndarray] = {}
    if encode(one, arrays_one) != encode(other, arrays_other):
        return False
    return all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(arrays_one.values(), arrays_other.values(), strict=True)
    )
