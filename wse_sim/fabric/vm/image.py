"""A compiled program: one structure of arrays that the register cores run.

One pool of code serves all classes (functions that are equal are stored once).  What differs between classes is in their constants and
tables.  Arrays are (rows, cols) of the program rectangle, row-major core index; ports N, E, S, W, RAMP are mask bits 1, 2, 4, 8, 16.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError, SerializationError
from wse_sim.fabric.vm import opcodes as O
from wse_sim.serialize import read_arrays

Array = npt.NDArray[Any]
TASK_IDS = 64
COLORS = 24
LOCAL, DATA, CONTROL = "local", "data", "control"


@dataclasses.dataclass(frozen=True)
class Task:
    """A row of a class's task table; ``id`` 0..63 (a data task: color on WSE-2, input queue on WSE-3)."""

    id: int
    kind: str  # LOCAL, DATA, CONTROL
    entry: int
    name: str
    high_priority: bool = False


@dataclasses.dataclass(frozen=True)
class Fifo:
    """A ring over `words` words from word address `base`; elements of `element_words` (1 or 2).  Task ids -1: none."""

    base: int
    words: int
    element_words: int = 1
    activate_push: int = -1
    activate_pop: int = -1
    priority: int = 0
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A name of the program: `kind` var or function; address in words (var) or row of code (function).

    ``type`` is the language's spelling for the host; ``words`` the memory of a variable; ``arguments`` u32 words of a function.
    """

    name: str
    kind: str  # "var" or "function"
    address: int
    words: int = 0
    type: str = ""
    arguments: int = 0
    exported: bool = True


@dataclasses.dataclass(frozen=True)
class CoreClass:
    """Cores of one file and parameter set.

    ``memory`` is a list of (word address, uint16 words); the rest of the memory is zero.  ``registers`` is the deepest sum of windows,
    ``call_depth`` the longest chain of calls.  ``input_colors`` and ``output_colors``: queue -> color (WSE-3; WSE-2 where
    ``@initialize_queue`` says so).  ``reads`` (WSE-2): color -> input queue that some fabin DSD or data task of the class names; a color with a
    data task and no queue is left out and gets one of its own.  ``active`` and ``blocked``: task ids at the start.
    """

    name: str
    tasks: tuple[Task, ...] = ()
    active: tuple[int, ...] = ()
    blocked: tuple[int, ...] = ()
    blocked_threads: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    memory: tuple[tuple[int, Array], ...] = ()
    initial: tuple[
        tuple[int, int], ...
    ] = ()  # (word address, words) that have a value at the start, zeros too
    registers: int = 32
    call_depth: int = 16
    dsrs: int = 0  # registers per file in use
    fifos: tuple[Fifo, ...] = ()
    input_colors: tuple[tuple[int, int], ...] = ()
    output_colors: tuple[tuple[int, int], ...] = ()
    reads: tuple[tuple[int, int], ...] = ()
    teardown: tuple[tuple[int, int], ...] = ()  # (color, entry)
    empty_handlers: tuple[tuple[int, int], ...] = ()  # (output queue, or input queue + QUEUES; entry)
    symbols: tuple[Symbol, ...] = ()
    main_priority: int = O.Priority.DEFAULT
    start: int = -1  # entry of code that runs before everything else, -1: none
    code_words: int = 0
    data_words: int = 0
    constant_words: int = 0  # of the data
    frame_words: int = 0  # of the data: the largest sum of frames on a chain of calls
    deepest: tuple[tuple[str, int], ...] = ()  # that chain: (function, words)


@dataclasses.dataclass(frozen=True)
class ColorConfig:
    """Routes of one (core, color): position 0..3 as (rx mask, tx mask); (0, 0) = invalid.

    ``position`` at the start; ``swap`` bit 0 x, bit 1 y; ``filter`` a row of image.filters or -1.
    """

    positions: tuple[tuple[int, int], ...]
    position: int = 0
    ring: bool = False
    pop: int = O.Pop.NEVER
    teardown: bool = False
    swap: int = 0
    filter: int = -1


def _pool(width: int, dtype: npt.DTypeLike = np.int32) -> Callable[[], Array]:
    return lambda: np.zeros((0, width), dtype)


class FieldPlace(NamedTuple):
    """A field of a structure: its name, the spelling of its type, and its offset in words; of an enum a case and its value.

    A field that shares words with others (of a packed structure) begins at bit `first` of its word and has `bits` bits; `first` is -1 for others.
    """

    name: str
    type: str
    at: int
    first: int = -1
    bits: int = 0


@dataclasses.dataclass
class Image:
    """A program for `rows` x `cols` cores of generation ``arch`` ("wse2" or "wse3").

    ``core_class`` int32 (R,), -1 = a router without program; ``code`` int32 (n, 4); ``cost_class`` uint8 (n,); ``source`` int32 (n,) row of
    ``positions`` = (file, line, column, function) or -1; ``config`` uint16 (24, R): 0 = color not in use at the core, else 1 + index in ``configs``;
    ``prints``: (format, argument formats); see :mod:`opcodes` for the integer tables.
    """

    arch: str
    rows: int
    cols: int
    core_class: Array
    classes: tuple[CoreClass, ...]
    code: Array
    cost_class: Array
    source: Array
    positions: tuple[tuple[str, int, int, str], ...] = ()
    vector_issues: Array = dataclasses.field(default_factory=_pool(O.VECTOR_FIELDS))
    dsr_loads: Array = dataclasses.field(default_factory=_pool(O.LOAD_FIELDS))
    shapes: Array = dataclasses.field(default_factory=_pool(O.SHAPE_FIELDS))
    rings: Array = dataclasses.field(default_factory=_pool(O.RING_FIELDS))
    filters: Array = dataclasses.field(default_factory=_pool(O.FILTER_FIELDS, np.int64))
    configs: tuple[ColorConfig, ...] = ()
    config: Array = dataclasses.field(default_factory=lambda: np.zeros((COLORS, 0), np.uint16))
    host_colors: tuple[int, ...] = ()  # words of these colors come from and go to the host at the core
    prints: tuple[tuple[str, str], ...] = ()
    asserts: tuple[str, ...] = ()
    offset: tuple[int, int] = (0, 0)  # (x, y) of the rectangle on the fabric
    fabric: tuple[int, int] = (0, 0)  # (width, height)
    half: str = "f16"  # format of 16-bit floats: one of opcodes.HALF_FORMATS
    local_names: tuple[tuple[str, str, int, int, int, int], ...] = ()
    """For debuggers: (name, type, register of the function or -1, word address or -1, first row and end of the rows that see it)."""
    structures: tuple[tuple[str, str, tuple[FieldPlace, ...]], ...] = ()
    """For debuggers: (type, "struct", "packed", "union" or "enum", its fields or cases)."""

    @property
    def n_cores(self) -> int:
        """Cores of the rectangle."""
        return self.rows * self.cols

    def place(self, pc: int) -> tuple[str, int, int, str] | None:
        """File, line, column and function of a row of code; None if it has no source."""
        row = int(self.source[pc]) if 0 <= pc < len(self.source) else -1
        return self.positions[row] if 0 <= row < len(self.positions) else None

    def where(self, pc: int) -> str:
        """``file:line (function)`` of a row of code, for messages."""
        place = self.place(pc)
        if place is None:
            return f"row {pc} of the code"
        file, line, _, function = place
        return f"{file}:{line} ({function})" if function else f"{file}:{line}"

    def validate(self) -> None:
        """Raise :class:`ProgramError` with what is wrong: sizes, references, memory over 48 KiB (the sum is shown)."""
        n = len(self.code)
        if self.half not in O.HALF_FORMATS:
            raise ProgramError(
                f"its 16-bit floats are '{self.half}'; they must be {', '.join(O.HALF_FORMATS)}"
            )
        self._check_arrays()
        if self.code.shape != (n, 4) or len(self.cost_class) != n or len(self.source) != n:
            raise ProgramError(
                f"code of {n} rows needs as many cost classes and source rows; the image has {len(self.cost_class)} and {len(self.source)}"
            )
        for cls in self.classes:
            total = 2 * (cls.code_words + cls.data_words)
            if total > 2 * O.WORDS:
                raise ProgramError(
                    f"class '{cls.name}' needs {2 * cls.code_words} bytes of code and {2 * cls.data_words} bytes of data, {total} in all, "
                    f"and a core has {2 * O.WORDS}; use smaller arrays or fewer functions"
                )
            for address, words in cls.memory:
                if address < 0 or address + len(words) > O.WORDS:
                    raise ProgramError(
                        f"class '{cls.name}' places {len(words)} words at word {address}; the memory ends at word {O.WORDS}"
                    )
            for task in cls.tasks:
                if not 0 <= task.id < TASK_IDS or not 0 <= task.entry < n:
                    raise ProgramError(
                        f"task '{task.name}' of class '{cls.name}' has id {task.id} and entry {task.entry}; ids go to 63, rows to {n - 1}"
                    )

    def _check_arrays(self) -> None:
        """Every array has its type and shape, and every number that names a row of a table names one."""
        n, cores = len(self.code), self.n_cores
        colors = self.config.shape[1] if self.config.ndim == 2 else -1
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "core_class": ("i", (cores,)), "code": ("i", (n, 4)), "cost_class": ("u", (n,)), "source": ("i", (n,)),
            "vector_issues": ("i", (len(self.vector_issues), O.VECTOR_FIELDS)),
            "dsr_loads": ("i", (len(self.dsr_loads), O.LOAD_FIELDS)),
            "shapes": ("i", (len(self.shapes), O.SHAPE_FIELDS)), "rings": ("i", (len(self.rings), O.RING_FIELDS)),
            "filters": ("i", (len(self.filters), O.FILTER_FIELDS)),
            "config": ("u", (COLORS, cores if colors else 0)),
        }  # fmt: skip
        for name, (kind, shape) in shapes.items():
            array = getattr(self, name)
            if array.dtype.kind != kind or array.shape != shape:
                raise ProgramError(f"its {name} are {array.dtype} {array.shape}; they must be {kind} {shape}")
        entries = [entry for c in self.classes for _, entry in (*c.teardown, *c.empty_handlers)]
        entries += [c.start for c in self.classes if c.start != -1]
        ranges = {
            "core_class": (self.core_class, -1, len(self.classes)), "config": (self.config, 0, len(self.configs) + 1),
            "source": (self.source, -1, len(self.positions)), "entries": (np.array(entries, int), 0, n),
            "filters of its colors": (np.array([c.filter for c in self.configs], int), -1, len(self.filters)),
        }  # fmt: skip
        for name, (numbers, low, end) in ranges.items():
            if numbers.size and not low <= int(numbers.min()) <= int(numbers.max()) < end:
                raise ProgramError(
                    f"its {name} go from {numbers.min()} to {numbers.max()}; there are {low} to {end - 1}"
                )

    def save(self, path: Path) -> None:
        """Write the image to `path` (npz); the same image gives the same bytes."""
        arrays, plain = {}, {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                arrays[field.name] = value
            else:
                plain[field.name] = value
        plain["classes"] = []
        for k, cls in enumerate(self.classes):
            row = {f.name: getattr(cls, f.name) for f in dataclasses.fields(cls)}
            row["memory"] = [int(address) for address, _ in cls.memory]
            for i, (_, words) in enumerate(cls.memory):
                arrays[f"memory_{k}_{i}"] = np.asarray(words, np.uint16)
            for name in ("tasks", "fifos", "symbols"):
                row[name] = [dataclasses.asdict(item) for item in row[name]]
            plain["classes"].append(row)
        plain["configs"] = [dataclasses.asdict(c) for c in self.configs]
        text = json.dumps(plain, sort_keys=True, default=int)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, text=np.frombuffer(text.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
        path.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Image:
        """Read an image that :meth:`save` wrote."""
        try:
            arrays: dict[str, Any] = dict(read_arrays(path))
            plain = json.loads(arrays.pop("text").tobytes().decode())
            classes = []
            for k, row in enumerate(plain.pop("classes")):
                row["memory"] = tuple((a, arrays.pop(f"memory_{k}_{i}")) for i, a in enumerate(row["memory"]))
                row["tasks"] = tuple(Task(**t) for t in row["tasks"])
                row["fifos"] = tuple(Fifo(**t) for t in row["fifos"])
                row["symbols"] = tuple(Symbol(**t) for t in row["symbols"])
                classes.append(
                    CoreClass(
                        **{
                            key: _tuples(value) if isinstance(value, list) else value
                            for key, value in row.items()
                        }
                    )
                )
            configs = tuple(
                ColorConfig(**{**c, "positions": _tuples(c["positions"])}) for c in plain.pop("configs")
            )
            plain = {
                key: _tuples(value) if isinstance(value, list) else value for key, value in plain.items()
            }
            plain["structures"] = tuple(
                (name, kind, tuple(FieldPlace(*field) for field in fields))
                for name, kind, fields in plain["structures"]
            )
            image = cls(classes=tuple(classes), configs=configs, **plain, **arrays)
            image.validate()
            return image
        except (
            ProgramError,
            OSError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise SerializationError(
                f"'{path}' contains no compiled program ({error}); compile it again"
            ) from error


def _tuples(value: object) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def dsd(kind: int, **fields: int) -> int:
    """A DSD value from its fields (names of the DSD_* bit fields in lower case, e.g. ``base=``, ``length=``)."""
    word = 0
    for name, value in {"kind": int(kind), **fields}.items():
        low, width = getattr(O, f"DSD_{name.upper()}")
        if not -(1 << (width - 1)) <= value < 1 << width:
            raise ProgramError(f"field {name} of a DSD is {value}; it has {width} bits")
        word |= (value & ((1 << width) - 1)) << low
    return word - (1 << 64) if word >> 63 else word
