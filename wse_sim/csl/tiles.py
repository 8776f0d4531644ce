"""Code and parameters of every core, in columns.

Numbers among the parameters are columns. All other parameters (names, types, functions, the shape of
structures) select the table: calls of `@set_tile_code` with the same file and equal other parameters are rows
of one :class:`TileTable`.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from wse_sim.csl import types as ty
from wse_sim.csl.lanes import LIMIT, Lanes
from wse_sim.csl.values import Dsr, Range, Ref, Value

Array = npt.NDArray[Any]
Leaf = int | Lanes
BUFFERED_ROWS = 4096
RADIX_LIMIT = 1 << 62


def freeze(value: Value) -> Hashable:
    """Return a hashable key of a value; values with equal keys compile to the same code."""
    data = value.data
    if isinstance(data, (int, float, str, bool)) or data is None:
        return (value.type.name, data)
    if isinstance(data, dict):
        return ("{}", tuple((k, freeze(v)) for k, v in data.items()))
    if isinstance(data, list):
        return (value.type, repr(data))
    if isinstance(data, (ty.Type, Dsr, Range)):
        return data
    if isinstance(data, Ref):
        return (value.type, data.key())
    return id(data)


class Shape:
    """Parameters without their numbers, and functions that insert numbers again."""

    def __init__(self, params: dict[str, Value]) -> None:
        self.leaves: list[Leaf] = []
        self.slots: dict[str, range] = {}
        key: list[Hashable] = []
        self.makers: dict[str, Callable[[Iterator[int]], Value]] = {}
        for name, value in params.items():
            first = len(self.leaves)
            part, self.makers[name] = self._take(value)
            key.append((name, part))
            self.slots[name] = range(first, len(self.leaves))
        self.key = tuple(key)

    def _take(self, value: Value) -> tuple[Hashable, Callable[[Iterator[int]], Value]]:
        t, data = value.type, value.data
        if isinstance(data, (bool, int, Lanes)) and not (isinstance(data, int) and abs(data) >= LIMIT):
            truth = isinstance(data, bool) or (isinstance(data, Lanes) and data.array.dtype == bool)
            self.leaves.append(data)
            kind = bool if truth else int
            return (t, kind), lambda numbers: Value(t, kind(next(numbers)))
        if isinstance(data, float):
            self.leaves.append(int.from_bytes(struct.pack("<d", data), "little", signed=True))
            return (t, float), lambda numbers: Value(
                t, struct.unpack("<d", next(numbers).to_bytes(8, "little", signed=True))[0]
            )
        if isinstance(data, dict):
            parts = {k: self._take(v) for k, v in data.items()}
            makers = {k: m for k, (_, m) in parts.items()}
            return ("{}", tuple((k, p) for k, (p, _) in parts.items())), lambda numbers: Value(
                t, {k: m(numbers) for k, m in makers.items()}
            )
        if isinstance(data, list) and any(isinstance(x, Lanes) for x in data):
            inner = [self._take(Value(t, x)) for x in data]
            return ("[]", t, tuple(p for p, _ in inner)), lambda numbers: Value(
                t, [m(numbers).data for _, m in inner]
            )
        return freeze(value), lambda _: value


@dataclass
class TileTable:
    """Cores whose `@set_tile_code` calls differ only in numbers; `slots` of the shape are the columns of each
    parameter."""

    path: str
    at: int
    shape: Shape
    places: list[Array] = field(default_factory=list)
    pieces: list[list[int | Array]] = field(default_factory=list)
    single: list[tuple[int, ...]] = field(default_factory=list)
    columns: list[int | Array] = field(default_factory=list)
    where: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, where: Array, leaves: list[Leaf]) -> None:
        """Add rows for the cores `where` (row-major indices); a leaf is one number for all, or one per
        core."""
        if len(where) == 1 and not any(isinstance(x, Lanes) for x in leaves):
            self.single.append((int(where[0]), *(int(x) for x in cast("list[int]", leaves))))
            if len(self.single) >= BUFFERED_ROWS:
                self.flush()
            return
        self.places.append(where)
        self.pieces.append([small(x.array) if isinstance(x, Lanes) else int(x) for x in leaves])

    def flush(self) -> None:
        """Move buffered single rows to a piece."""
        if self.single:
            rows = np.array(self.single, np.int64)
            self.places.append(rows[:, 0])
            self.pieces.append([small(rows[:, j]) for j in range(1, rows.shape[1])])
            self.single = []

    def finish(self) -> None:
        """Join the pieces to columns; a column in which all cores agree becomes one number."""
        self.flush()
        self.where = np.concatenate(self.places)
        for parts in zip(*self.pieces, strict=True) if self.pieces[0] else ():
            first = parts[0] if isinstance(parts[0], int) else int(parts[0][0])
            if all(p == first if isinstance(p, int) else (p == first).all() for p in parts):
                self.columns.append(first)
                continue
            whole = [
                small(np.full(len(w), p, np.int64)) if isinstance(p, int) else p
                for p, w in zip(parts, self.places, strict=True)
            ]
            self.columns.append(np.concatenate(whole))
        self.pieces, self.places = [], []

    def column(self, j: int) -> Array:
        """Return a column in which cores differ."""
        found = self.columns[j]
        assert not isinstance(found, int)
        return found

    def params(self, row: int) -> dict[str, Value]:
        """Return the parameters of the core in a row."""
        numbers = [c if isinstance(c, int) else int(c[row]) for c in self.columns]
        return {
            name: self.shape.makers[name](iter([numbers[j] for j in self.shape.slots[name]]))
            for name in self.shape.slots
        }

    def read(self, names: frozenset[str]) -> list[int]:
        """Return the columns of the named parameters that differ between cores."""
        found = {j for n in names if n in self.shape.slots for j in self.shape.slots[n]}
        return [j for j in sorted(found) if not isinstance(self.columns[j], int)]

    def split(self, rows: Array, columns: list[int]) -> list[Array]:
        """Split `rows` into groups that agree in the columns, each in ascending order."""
        key = np.zeros(len(rows), np.int64)
        radix = 1
        for j in columns:
            values = self.column(j)[rows].astype(np.int64)
            low, high = int(values.min()), int(values.max())
            if radix * (high - low + 1) >= RADIX_LIMIT:
                _, key = np.unique(key, return_inverse=True)
                radix = int(key.max()) + 1
                if radix * (high - low + 1) >= RADIX_LIMIT:
                    _, values = np.unique(values, return_inverse=True)
                    low, high = 0, int(values.max())
            key = key * (high - low + 1) + (values - low)
            radix *= high - low + 1
        order = np.argsort(key, kind="stable")
        return np.split(rows[order], np.flatnonzero(np.diff(key[order])) + 1)


def small(array: Array) -> Array:
    """Return the same integers in the narrowest type."""
    if array.dtype == bool:
        return array
    low, high = int(array.min()), int(array.max())
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


class Tiles:
    """Tables of a layout, and which cores have code."""

    def __init__(self, cores: int) -> None:
        self.tables: dict[Hashable, TileTable] = {}
        self.given = np.zeros(cores, bool)

    def add(self, path: str, params: dict[str, Value], where: Array, at: int) -> int:
        """Set the program of cores; return the first core that already has one, or -1."""
        twice = np.flatnonzero(self.given[where])
        if len(twice):
            return int(where[twice[0]])
        self.given[where] = True
        shape = Shape(params)
        table = self.tables.setdefault((path, shape.key), TileTable(path, at, shape))
        table.add(where, shape.leaves)
        return -1

    def missing(self) -> int:
        """Return the first core without code, or -1."""
        found = int(np.argmin(self.given))
        return -1 if self.given[found] else found


@dataclass
class Group:
    """Cores of one table that agree in the parameters `names`."""

    table: TileTable
    rows: Array
    names: frozenset[str]


@dataclass
class CodeClass:
    """Cores that run the same code; `places` are their row-major indices."""

    path: str
    params: dict[str, Value]
    at: int
    places: list[Array] = field(default_factory=list)


def code_classes(tiles: Tiles, build: Callable[[CodeClass], frozenset[str]]) -> list[CodeClass]:
    """Return the cores grouped by their code, in the order of their first core.

    `build` compiles a class and returns the parameters that were read. A program depends only on those: cores
    that agree with a compiled core in these parameters share its code. A group whose cores differ in a
    parameter that was read is split.
    """
    queue: list[tuple[int, int, Group]] = []
    known: dict[Hashable, CodeClass] = {}
    reads: dict[int, list[frozenset[str]]] = {}
    found: list[CodeClass] = []
    serial = 0
    for table in tiles.tables.values():
        table.finish()
        rows = np.argsort(table.where, kind="stable")
        queue.append((int(table.where[rows[0]]), serial, Group(table, rows, frozenset())))
        serial += 1
    heapq.heapify(queue)
    while queue:
        _, _, group = heapq.heappop(queue)
        table, first = group.table, int(group.rows[0])

        def key(names: frozenset[str], table: TileTable = table, row: int = first) -> Hashable:
            return id(table), names, tuple(int(table.column(j)[row]) for j in table.read(names))

        ready = next((k for n in reads.get(id(table), ()) if (k := key(n)) in known), None)
        if ready is None:
            made = CodeClass(table.path, table.params(first), table.at)
            names = build(made)
            ready = key(names)
            known[ready] = made
            found.append(made)
            if names not in reads.setdefault(id(table), []):
                reads[id(table)].append(names)
        else:
            names = cast("tuple[int, frozenset[str], object]", ready)[1]
        rows = group.rows
        if not names <= group.names:
            parts = table.split(rows, table.read(names | group.names))
            for part in parts:
                if part[0] == first:
                    rows = part
                    continue
                serial += 1
                heapq.heappush(
                    queue, (int(table.where[part[0]]), serial, Group(table, part, names | group.names))
                )
        known[ready].places.append(table.where[rows])
    return found
