"""Source files, and the data that the two phases of a compilation collect.

The layout phase evaluates one `layout` block; a program phase evaluates the `comptime` blocks of one code
class. Every `@import_module` creates a new instance with its own variables and tasks, but a file is read and
parsed once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.colors import ColorRoute
from wse_sim.csl.diagnostics import NOWHERE, CslError
from wse_sim.csl.parse import parse
from wse_sim.csl.strict_forms import check_forms
from wse_sim.csl.tiles import Array, Tiles
from wse_sim.csl.values import Entry, Function, Instance, Ref, Value

ARCHES = ("wse2", "wse3")
SDKS = ("", "1.4", "2.10")


@dataclass(frozen=True)
class Options:
    """Options of the command line: ``arch`` wse2 or wse3, and the fabric's size and the rectangle's offsets
    as (columns, rows).

    ``sdk`` is the release whose rules apply: "1.4", "2.10", or "" to infer it from the sources
    (:func:`wse_sim.csl.release.release_of`).
    """

    arch: str = "wse2"
    fabric: tuple[int, int] = (0, 0)
    offsets: tuple[int, int] = (0, 0)
    memcpy: bool = False
    channels: int = 1
    max_inlined_iterations: int = 50
    fp16: str = "f16"
    import_paths: tuple[str, ...] = ()
    strict: bool = False
    sdk: str = ""

    @property
    def wse3(self) -> bool:
        return self.arch == "wse3"


MESSAGE_PASSING = (
    "the library <message_passing> is not simulated, because the rule by which it routes words is not public; send words on colors with "
    "routes, or use <collectives_2d>"
)


class Files:
    """Parsed files by path, and libraries by their name in angle brackets."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.home = Path()  # the folder of the layout file
        self.trees: dict[str, tree.File] = {}

    def load(self, name: str, importer: str, at: int) -> tuple[str, tree.File, bool]:
        """Return path and tree of a file, and whether it is a bundled library.

        Raises
        ------
        CslError
            If the file cannot be read or parsed, or there is no such library.
        """
        library = name.startswith("<") and name.endswith(">")
        path = name if library else str(Path(importer).parent / name)
        if library:
            path = self._library(name, at)
        else:
            path = self.find(name, importer)
        found = self.trees.get(path)
        if found is None:
            text = self._read(path, name, importer, at)
            found = self.trees[path] = parse(text, path)
            if self.options.strict and not path.startswith("<"):
                check_forms(found)
        return path, found, path.startswith("<")

    def find(self, name: str, importer: str) -> str:
        """Return the file that a name refers to: next to the importer, or else below the layout's folder;
        `.csl` may be omitted."""
        folders = (Path(importer).parent, self.home)
        places = [str(folder / f"{name}{end}") for folder in folders for end in ("", ".csl")]
        return next((p for p in places if os.path.isfile(p)), places[0])

    def _library(self, name: str, at: int) -> str:
        """Return a library's file in a search path, or else the name of a bundled library."""
        inner = name[1:-1]
        if inner.startswith("memcpy_multi/"):  # the name of older releases
            inner = inner.replace("memcpy_multi/", "memcpy/", 1)
            name = f"<{inner}>"
        for folder in self.options.import_paths:
            candidate = Path(folder) / f"{inner}.csl"
            if os.path.isfile(candidate):
                return str(candidate)
        if inner == "message_passing":
            raise CslError(
                at,
                MESSAGE_PASSING
                if self.options.wse3
                else f"the library {name} exists only on wse3; send words on colors with routes",
            )
        if not os.path.isfile(str(_bundled(inner))):
            known = ", ".join(f"<{n}>" for n in library_names())
            raise CslError(at, f"there is no library {name}; the libraries are {known}")
        return name

    def _read(self, path: str, name: str, importer: str, at: int) -> str:
        try:
            if path.startswith("<"):
                return _bundled(path[1:-1]).read_text(encoding="utf-8")
            return Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null byte in the name
            why = getattr(error, "strerror", None) or error
            raise CslError(at, f"cannot read '{name}' (as {path or name}): {why}") from error


def _bundled(inner: str) -> Traversable:
    found = resources.files("wse_sim.csl") / "lib"
    for part in f"{inner}.csl".split("/"):
        found = found / part
    return found


def library_names() -> list[str]:
    """Return the names of the bundled libraries, without angle brackets."""
    found: list[str] = []

    def walk(folder: Traversable, lead: str) -> None:
        for item in folder.iterdir():
            if item.is_dir():
                walk(item, f"{lead}{item.name}/")
            elif item.name.endswith(".csl"):
                found.append(lead + item.name[:-4])

    walk(resources.files("wse_sim.csl") / "lib", "")
    return sorted(found)


class Scope:
    """Names of a block; `instance` is the module that contains it."""

    __slots__ = ("instance", "names", "parent", "result")

    def __init__(self, instance: Instance, parent: Scope | None = None) -> None:
        self.names: dict[str, Entry] = {}
        self.parent = parent
        self.instance = instance
        self.result: ty.Type | None = parent.result if parent is not None else None


@dataclass
class ExportedName:
    """Name that `@export_name` exports to the host, with its type."""

    name: str
    type: ty.Type
    mutable: bool
    at: int


@dataclass
class LayoutState:
    """Result of the layout block.

    Cores are row-major indices. `colors` contains, for every core, 1 + its row of `routes`, or 0 without a
    configuration.
    """

    width: int = 0
    height: int = 0
    rectangle_at: int = NOWHERE
    tiles: Tiles = field(default_factory=lambda: Tiles(0))
    colors: dict[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    routes: list[ColorRoute] = field(default_factory=list)
    names: dict[str, ExportedName] = field(default_factory=dict)
    numbers: dict[ColorRoute, int] = field(default_factory=dict)

    def set_rectangle(self, width: int, height: int, at: int) -> None:
        """Set the size of the rectangle, in columns and rows."""
        self.width, self.height, self.rectangle_at = width, height, at
        self.tiles = Tiles(width * height)

    def place(self, core: int) -> tuple[int, int]:
        """Return the column and row of a core."""
        return core % self.width, core // self.width

    def set_code(self, path: str, params: dict[str, Value], where: Array, at: int) -> None:
        """Set the program of cores.

        Raises
        ------
        CslError
            If a core already has one.
        """
        twice = self.tiles.add(path, params, where, at)
        if twice >= 0:
            raise CslError(
                at, f"PE {self.place(twice)} already has its code; call @set_tile_code once per PE"
            )

    def set_color(self, color: int, route: ColorRoute, where: Array, at: int) -> None:
        """Set the configuration of a color at cores.

        Raises
        ------
        CslError
            If the color of a core is already configured.
        """
        if color not in self.colors:
            self.colors[color] = np.zeros(self.width * self.height, np.int32)
        config = self.colors[color]
        twice = np.flatnonzero(config[where])
        if len(twice):
            raise CslError(
                at,
                f"color {color} of PE {self.place(int(where[twice[0]]))} is already configured",
            )
        if route not in self.numbers:
            self.routes.append(route)
            self.numbers[route] = len(self.routes)
        config[where] = self.numbers[route]


@dataclass
class BoundTask:
    """Task bound to an id; `group` lists the tasks of a rotating pair."""

    function: Function
    kind: str
    id: int
    at: int
    group: tuple[Function, ...] = ()


@dataclass
class ExportedSymbol:
    """Variable or function of a class that `@export_symbol` exports under a name."""

    name: str
    target: Ref | Function
    at: int


@dataclass
class ProgramState:
    """Result of evaluating the comptime blocks of a code class."""

    tasks: dict[tuple[str, int], BoundTask] = field(default_factory=dict)
    active: list[tuple[Value, int]] = field(default_factory=list)
    blocked: list[tuple[Value, bool, int]] = field(
        default_factory=list
    )  # (id, blocked or unblocked, position)
    symbols: dict[str, ExportedSymbol] = field(default_factory=dict)
    queues: dict[tuple[str, int], tuple[int | None, int, int]] = field(default_factory=dict)
    colors: dict[int, tuple[ColorRoute, int]] = field(default_factory=dict)
    teardown: dict[int, tuple[Function, int]] = field(default_factory=dict)
    empty_handlers: dict[int, tuple[Function, int]] = field(default_factory=dict)
    dsr_loads: list[tuple[Any, ...]] = field(default_factory=list)
    startup: list[tuple[tree.Builtin, Scope]] = field(default_factory=list)
    priorities: dict[str, int] = field(default_factory=dict)
    has_control_table: bool = False
    registers: dict[int, int] = field(
        default_factory=dict
    )  # values that comptime blocks wrote with @set_config
