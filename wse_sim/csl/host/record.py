"""Record of a run after stop(): symbols and traces of the cores, and figures for reports.

The last run of every folder stays in memory for this process. Other processes read ``stopped.npz`` in the
program's folder, which is written if the memory of all cores has at most 64 MiB.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wse_sim.atomic_files import whole
from wse_sim.csl.compiler import CompiledProgram
from wse_sim.csl.host.arrays import HostError
from wse_sim.errors import SerializationError
from wse_sim.fabric.vm.image import Image, Symbol
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer
from wse_sim.serialize import read_arrays

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_STATE_BYTES = 64 * 2**20
STATE_FILE = "stopped.npz"
FIGURES_VARIABLE = "WSE_SIM_CSL_FIGURES"
"""Environment variable with a file to which every stopped run appends one line of JSON."""

THREADS_VARIABLE = "WSE_SIM_CSL_THREADS"
"""Environment variable with the number of threads that simulate the fabric."""


def initial_values(path: Path) -> list[tuple[int, int, str, npt.NDArray[np.uint16]]]:
    """Return the values that a Python layout assigns to variables of single cores: (x, y, name, 16-bit
    words).

    Raises
    ------
    HostError
        If an entry of the file is not such a value.
    """
    found = []
    for key, value in read_arrays(path).items():
        try:
            x, y, name = key.split(" ", 2)
            found.append((int(x), int(y), name, np.ascontiguousarray(value).view(np.uint16).ravel()))
        except (ValueError, TypeError):
            raise HostError(
                f"'{path}' holds '{key[:80]}', which is no variable of a core; compile the program again"
            ) from None
    return found


@dataclass
class Record:
    """Program, session, traces and wall time of a run that has stopped."""

    folder: Path
    program: CompiledProgram
    session: Session
    traces: dict[tuple[int, int, str], list[object]]
    seconds: float


_KEPT: dict[Path, Record] = {}


def keep(record: Record) -> None:
    """Store a run for readers, append its figures if requested, and print its cycles to standard error."""
    _KEPT[record.folder.resolve()] = record
    image = record.program.image
    figures = {
        "program": str(record.folder), "arch": image.arch, "cols": image.cols, "rows": image.rows,
        "cycles": record.session.cycle, "seconds": record.seconds, "warnings": record.session.warnings,
    }  # fmt: skip
    path = os.environ.get(FIGURES_VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")
    _save_state(record)
    clock = load_wafer(image.arch).program_clock_hz
    print(
        f"wse-sim: {record.session.cycle:,} cycles on {image.cols} x {image.rows} cores of {image.arch} "
        f"({1e6 * record.session.cycle / clock:,.1f} us at {clock / 1e6:g} MHz), host copies included",
        file=sys.stderr,
    )
    for warning in record.session.warnings[:4]:
        print(f"wse-sim: warning: {warning}", file=sys.stderr)


def _save_state(record: Record) -> None:
    if record.session.machine.memory.nbytes <= MAX_STATE_BYTES:
        save_state(record.folder / STATE_FILE, record.program, record.session, record.traces)


def save_state(
    path: Path, program: CompiledProgram, session: Session, traces: dict[tuple[int, int, str], list[object]]
) -> None:
    """Write the memory of all cores and their traces to an ``.npz`` file."""
    rows = json.dumps([[*key, values] for key, values in traces.items()])
    with whole(path) as part, part.open("wb") as file:  # given a name, numpy would append .npz
        np.savez_compressed(
            file,
            memory=session.machine.memory.reshape(program.image.n_cores, -1),
            traces=np.frombuffer(rows.encode(), np.uint8),
        )


def kept(folder: str | os.PathLike[str]) -> Record | None:
    """Return the last run of a folder in this process, or None."""
    return _KEPT.get(Path(folder).resolve())


def address_of(program: CompiledProgram, core_class: int, name: str) -> tuple[int, bool] | None:
    """Return (word address, whether it holds a pointer) of a variable of a class, or None if the class has
    none of that name."""
    if core_class < 0:
        return None
    for symbol in program.image.classes[core_class].symbols:
        if symbol.name == name and symbol.kind == "var":
            return symbol.address, symbol.type.startswith(("[*]", "*"))
    return None


def find_symbol(program: CompiledProgram, x: int, y: int, name: str) -> Symbol:
    """Return the variable `name` of core (x, y) of the rectangle.

    Raises
    ------
    HostError
        If the core or its variable does not exist.
    """
    image = program.image
    if not (0 <= x < image.cols and 0 <= y < image.rows):
        raise HostError(f"core ({x}, {y}) is outside the rectangle of {image.cols} x {image.rows}")
    k = int(image.core_class[y * image.cols + x])
    for symbol in image.classes[k].symbols if k >= 0 else ():
        if symbol.name == name and symbol.kind == "var":
            return symbol
    raise HostError(f"core ({x}, {y}) has no symbol '{name}'")


def symbol_values(
    program: CompiledProgram,
    session: Session | None,
    x: int,
    y: int,
    name: str,
    dtype: npt.DTypeLike,
    memory: np.ndarray | None = None,
) -> np.ndarray:
    """Return all values of a variable of core (x, y) of the rectangle as `dtype`, from the session or else
    from `memory`.

    Raises
    ------
    HostError
        If the core or the variable does not exist, or its size is not a multiple of that of `dtype`.
    """
    symbol = find_symbol(program, x, y, name)
    core = y * program.image.cols + x
    if session is not None:
        words = session.peek(x, y, symbol.address, symbol.words)
    else:
        assert memory is not None
        words = memory[core, symbol.address : symbol.address + symbol.words].copy()
    kind = np.dtype(dtype)
    if symbol.words * 2 % kind.itemsize:
        raise HostError(
            f"'{name}' has {2 * symbol.words} bytes, which is not an integer number of {kind} elements"
        )
    return words.view(kind)


def trace_values(image: Image, kinds: str, values: tuple[int, ...]) -> list[object]:
    """Convert traced words to Python values by their kinds (as in
    :func:`wse_sim.fabric.vm.report.value_text`)."""
    found: list[object] = []
    for kind, value in zip(kinds, values, strict=False):
        if kind == "f":
            found.append(np.array(value & 0xFFFFFFFF, np.uint32).view(np.float32).item())
        elif kind == "h":
            found.append(float(np.array(value & 0xFFFF, np.uint16).view(np.float16)))
        elif kind == "s":
            found.append(image.prints[value][0])
        elif kind == "b":
            found.append(bool(value))
        else:
            found.append(int(value))
    return found


class DebugUtil:
    """Reader of symbols and traces of a folder's last stopped run; coordinates are those of the fabric,
    offsets included."""

    def __init__(self, artifact_dir: str | os.PathLike[str], cmaddr: str | None = None, **_: object) -> None:
        if cmaddr:
            raise HostError(f"cmaddr '{cmaddr}' names a real system; this is a simulator: leave it out")
        self.folder = Path(artifact_dir)
        self._session: Session | None = None
        self._memory: np.ndarray | None = None
        self._traces: dict[tuple[int, int, str], list[object]] | None = None
        record = kept(self.folder)
        self.program = CompiledProgram.read(self.folder) if record is None else record.program

    def _traced(self) -> dict[tuple[int, int, str], list[object]]:
        """Return the traces of the last run, read at the first call: scripts may create this object before
        the run."""
        if self._traces is not None:
            return self._traces
        record = kept(self.folder)
        if record is not None:
            self.program, self._session, self._traces = record.program, record.session, record.traces
            return self._traces
        try:
            data = read_arrays(self.folder / STATE_FILE)
            self._memory = data["memory"]
            rows = json.loads(data["traces"].tobytes().decode())
            self._traces = {(row[0], row[1], row[2]): row[3] for row in rows}
        except (SerializationError, ValueError, LookupError, TypeError) as fault:
            raise HostError(
                f"no stopped run of '{self.folder}' was found ({fault}); run it and call stop() first"
            ) from None
        return self._traces

    def _inside(self, x: int, y: int) -> tuple[int, int]:
        dx, dy = self.program.options.offsets
        return int(x) - dx, int(y) - dy

    def read_trace(self, px: int, py: int, name: str) -> list[object]:
        """Return the values that core (px, py) traced under the key `name`, in order; empty if it traced
        none."""
        x, y = self._inside(px, py)
        return list(self._traced().get((x, y, name), []))

    def get_symbol(self, col: int, row: int, symbol: str, dtype: npt.DTypeLike) -> np.ndarray:
        """Return the values of a symbol of one core as `dtype`.

        Raises
        ------
        HostError
            If there is no stopped run, or no such core or symbol.
        """
        self._traced()
        x, y = self._inside(col, row)
        return symbol_values(self.program, self._session, x, y, symbol, dtype, self._memory)

    def get_symbol_rect(
        self, rectangle: tuple[tuple[int, int], tuple[int, int]], symbol: str, dtype: npt.DTypeLike
    ) -> np.ndarray:
        """Return the values of a symbol on a rectangle of cores ((col, row), (width, height)), as an array
        (columns, rows, n)."""
        (col, row), (width, height) = rectangle
        return np.array(
            [[self.get_symbol(col + i, row + j, symbol, dtype) for j in range(height)] for i in range(width)]
        )
