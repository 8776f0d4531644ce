"""Builder of fabric programs, in terms of color, route, switch, task, DSD, microthread and queue.

A place (``where``) is ``None`` (all cores), a pair of int/slice ``(rows, cols)``, or a bool mask (rows, cols); host
columns are not part of it.  Everything per core is vectorised numpy; only distinct classes are Python objects.

Example
-------
A chain reduce of 64 words over 8 cores, two colors alternating by parity (the root is core 0)::

    b = Builder(1, 8)
    x = b.buffer("x", 64)
    for i, name in enumerate(("root", "middle_odd", "middle_even", "tail")):
        ...                                   # see tests/fabric/kernels.py: chain_reduce
    k = b.core_class("middle_odd")
    k.busy(b.config.task_start_cycles)
    k.add(fabric_out(0), fabric_in(1), x.dsd(), start="none")
    b.place(k, (0, slice(1, 7, 2)))
    b.route(0, (0, slice(1, 7, 2)), rx="R", tx="W")
    program = b.build()

One file, because it is one class: the vocabulary in which programs are written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.classes import (
    CoreClass,
    Operand,
    Param,
    Task,
    fabric_in,
    fabric_out,
    memory,
    scalar,
)
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import BufferInfo, Program
from wse_sim.fabric.format.validate import validate
from wse_sim.hardware.wafer import load_wafer

__all__ = [
    "Buffer",
    "Builder",
    "CoreClass",
    "Param",
    "Place",
    "Switch",
    "Task",
    "fabric_in",
    "fabric_out",
    "scalar",
]

Index = int | slice
Place = tuple[Index, Index] | npt.NDArray[np.bool_] | None


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A declared buffer: `length` elements in each core of the rectangle (row, col, rows, cols)."""

    name: str
    length: int
    dtype: str
    rect: tuple[int, int, int, int]
    bank: int | None = None
    address: int | None = None

    def dsd(
        self,
        offset: int = 0,
        length: int | None = None,
        stride: int = 1,
        *,
        step: int = 0,
        outer_step: int = 0,
    ) -> Operand:
        """A memory DSD: elements offset, offset + stride, ...; steps are added per turn of the loops around."""
        return memory(self.name, self.length, offset, length, stride, step, outer_step)


@dataclasses.dataclass(frozen=True)
class Switch:
    """Switch positions 1 to 3 of a route: each overrides rx, tx or both of position 0."""

    positions: Sequence[dict[str, str]]
    ring: bool = False
    pop: str = "always"  # "never", "always", "on_advance"
    initial: int = 0


def _mask(ports: str, color: int) -> int:
    try:
        return sum(P.PORT_BIT[port] for port in set(ports.upper()))
    except KeyError as fault:
        raise ProgramError(
            f"color {color}: port {fault.args[0]!r} is unknown; ports are letters of 'NESWR'"
        ) from fault


def _span(index: Index, size: int) -> tuple[int, int]:
    if isinstance(index, int):
        index = slice(index, index + 1) if index >= 0 else slice(size + index, size + index + 1)
    start, stop, step = index.indices(size)
    return start, max(0, -(-(stop - start) // step)) * step - step + 1 if stop > start else 0


class Builder:
    """Collects rectangles and classes; :meth:`build` validates and freezes them.

    Parameters
    ----------
    rows, cols : int
        Region of user cores; core (0, 0) is the north-west corner.
    config : FabricConfig, optional
        Limits (colors, SRAM, queues) and cost constants; WSE-2 by default.
    """

    def __init__(self, rows: int, cols: int, config: FabricConfig | None = None) -> None:
        self.config = config or FabricConfig.from_wafer(load_wafer("wse2"))
        if not (1 <= rows <= self.config.rows and 1 <= cols <= self.config.cols):
            raise ProgramError(
                f"region of {rows} x {cols} cores does not fit the fabric of {self.config.rows} x "
                f"{self.config.cols} of {self.config.name}; make the region smaller"
            )
        self.rows, self.cols = rows, cols
        self._class_of = np.zeros((rows, cols + 2), np.int32)  # column 0 and the last: host columns
        self._classes: list[CoreClass] = []
        self._route: dict[int, npt.NDArray[np.uint16]] = {}
        self._cfg: dict[tuple[tuple[int, ...], tuple[int, ...], int, int, int, int], int] = {
            ((0, 0, 0, 0), (0, 0, 0, 0), 1, 0, 0, 0): 0
        }
        self._buffers: dict[str, Buffer] = {}
        self._params: list[npt.NDArray[np.int32]] = []
        self._queue_of: dict[int, int] = {}
        self._streams: dict[tuple[str, int], list[tuple[int, Buffer, bool]]] = {}

    # ---- memory and parameters -------------------------------------------------------------

    def buffer(
        self,
        name: str,
        length: int,
        dtype: str = "fp32",
        where: Place = None,
        *,
        bank: int | None = None,
        address: int | None = None,
    ) -> Buffer:
        """Declare `length` elements of `dtype` ("fp32", "fp16") in every core of a rectangle.

        `bank` pads the address until the first 16-bit word is in that bank (0..7); `address` (bytes) fixes it.
        """
        if isinstance(where, np.ndarray):
            hit = np.argwhere(where)
            if hit.size == 0:
                raise ProgramError(f"buffer '{name}': the mask selects no core; declare it where it is used")
            (row, col), (last_row, last_col) = hit.min(axis=0), hit.max(axis=0)
            rect = (int(row), int(col), int(last_row - row + 1), int(last_col - col + 1))
        else:
            rows, cols = where if where is not None else (slice(None), slice(None))
            (row, n_rows), (col, n_cols) = _span(rows, self.rows), _span(cols, self.cols)
            rect = (row, col, n_rows, n_cols)
        return self._declare(Buffer(name, length, dtype, rect, bank, address))

    def _declare(self, buffer: Buffer) -> Buffer:
        if buffer.name in self._buffers:
            raise ProgramError(f"buffer '{buffer.name}' is declared twice; give every buffer its own name")
        if buffer.dtype not in ("fp32", "fp16"):
            raise ProgramError(f"buffer '{buffer.name}': dtype '{buffer.dtype}' is unknown; use fp32 or fp16")
        if buffer.length < 1 or buffer.rect[2] < 1 or buffer.rect[3] < 1:
            raise ProgramError(
                f"buffer '{buffer.name}': {buffer.length} elements on {buffer.rect[2]} x {buffer.rect[3]} cores; "
                "all must be at least 1"
            )
        self._buffers[buffer.name] = buffer
        return buffer

    def param(self, values: npt.ArrayLike) -> Param:
        """Declare a per-core integer (rows, cols) for lengths, loop counts and busy cycles."""
        plane = np.zeros((self.rows, self.cols + 2), np.int32)
        plane[:, 1:-1] = values
        self._params.append(plane)
        return Param(len(self._params) - 1)

    # ---- routes ------------------------------------------------------------------------------

    def route(self, color: int, where: Place, rx: str, tx: str, switch: Switch | None = None) -> None:
        """Set the route of `color` in a place: inputs `rx` to outputs `tx`, letters of "NESWR" (R = ramp)."""
        self._cells(self._plane(color), where)[...] = self._config_id(color, rx, tx, switch)

    def route_mask(self, color: int, where: npt.NDArray[np.bool_], rx: str, tx: str) -> None:
        """Set routes like :meth:`route`, for a bool mask (rows, cols)."""
        self._plane(color)[:, 1:-1][where] = self._config_id(color, rx, tx, None)

    def input_queue(self, color: int, queue: int) -> None:
        """Bind `color` to a documented input queue: its depth replaces the default of 2 words."""
        if not 0 <= queue < len(self.config.input_queue_wavelets):
            raise ProgramError(
                f"color {color}: input queue {queue} is not in 0..{len(self.config.input_queue_wavelets) - 1}; "
                "use one of these"
            )
        self._queue_of[color] = queue

    def _plane(self, color: int) -> npt.NDArray[np.uint16]:
        if not 0 <= color < self.config.colors:
            raise ProgramError(f"color {color} is not in 0..{self.config.colors - 1}; use a routable color")
        if color not in self._route:
            self._route[color] = np.zeros((self.rows, self.cols + 2), np.uint16)
        return self._route[color]

    def _config_id(self, color: int, rx: str, tx: str, switch: Switch | None) -> int:
        rx0, tx0 = _mask(rx, color), _mask(tx, color)
        switch = switch or Switch(())
        if len(switch.positions) >= P.MAX_POSITIONS:
            raise ProgramError(
                f"color {color}: {len(switch.positions)} switch positions after position 0, limit "
                f"{P.MAX_POSITIONS - 1}; use a second color"
            )
        positions = [(rx0, tx0)]
        for entry in switch.positions:
            positions.append(
                (
                    _mask(entry["rx"], color) if "rx" in entry else rx0,
                    _mask(entry["tx"], color) if "tx" in entry else tx0,
                )
            )
        n = len(positions)
        if not 0 <= switch.initial < n:
            raise ProgramError(
                f"color {color}: initial switch position {switch.initial} of {n}; use 0..{n - 1}"
            )
        positions += [(0, 0)] * (P.MAX_POSITIONS - n)
        pop = {"never": 0, "always": 1, "on_advance": 2}.get(switch.pop)
        if pop is None:
            raise ProgramError(
                f"color {color}: pop mode '{switch.pop}' is unknown; use never, always, on_advance"
            )
        key = (
            tuple(r for r, _ in positions),
            tuple(t for _, t in positions),
            n,
            switch.initial,
            int(switch.ring),
            pop,
        )
        return self._cfg.setdefault(key, len(self._cfg))

    def _cells(self, plane: npt.NDArray, where: Place) -> npt.NDArray:
        inner = plane[:, 1:-1]
        if where is None:
            return inner
        if isinstance(where, np.ndarray):
            raise ProgramError("a mask cannot be assigned here; use route_mask or place with the mask")
        rows, cols = (slice(i, i + 1 or None) if isinstance(i, int) else i for i in where)
        for index, size, axis in ((where[0], self.rows, "row"), (where[1], self.cols, "column")):
            if isinstance(index, int) and not -size <= index < size:
                raise ProgramError(
                    f"{axis} {index} is outside the region of {self.rows} x {self.cols}; use 0..{size - 1}"
                )
        return inner[rows, cols]

    # ---- cores -------------------------------------------------------------------------------

    def core_class(self, name: str) -> CoreClass:
        """Create a class of cores; add instructions, then :meth:`place` it."""
        self._classes.append(CoreClass(name, len(self._classes) + 1))
        return self._classes[-1]

    def place(self, core_class: CoreClass, where: Place) -> None:
        """Let the cores of a place run `core_class`; the last placement counts."""
        if isinstance(where, np.ndarray):
            self._class_of[:, 1:-1][where] = core_class.index
        else:
            self._cells(self._class_of, where)[...] = core_class.index

    # ---- host streams ------------------------------------------------------------------------

    def host_in(
        self, name: str, color: int, words: int, rows: Index = slice(None), edge: str = "W"
    ) -> Buffer:
        """Stream `words` fp32 wavelets per row into the region over its edge; data: ``inputs[name]`` (rows, 1, words)."""
        return self._host(name, color, words, rows, edge, True)

    def host_out(
        self, name: str, color: int, words: int, rows: Index = slice(None), edge: str = "E"
    ) -> Buffer:
        """Collect `words` fp32 wavelets per row that leave the region over its edge; read back by `name`."""
        return self._host(name, color, words, rows, edge, False)

    def _host(self, name: str, color: int, words: int, rows: Index, edge: str, inward: bool) -> Buffer:
        if edge not in ("W", "E"):
            raise ProgramError(f"host stream '{name}': edge '{edge}' has no channels; use W or E")
        row, n_rows = _span(rows, self.rows)
        column = 0 if edge == "W" else self.cols + 1
        buffer = self._declare(Buffer(name, words, "fp32", (row, column - 1, n_rows, 1)))
        rx, tx = ("R", "E" if edge == "W" else "W") if inward else ("E" if edge == "W" else "W", "R")
        self._plane(color)[row : row + n_rows, column] = self._config_id(color, rx, tx, None)
        for r in range(row, row + n_rows):
            self._streams.setdefault((edge, r), []).append((color, buffer, inward))
        return buffer

    def _host_classes(self) -> None:
        made: dict[tuple[str, tuple[tuple[int, str, bool], ...]], CoreClass] = {}
        for (edge, row), streams in self._streams.items():
            key = (edge, tuple((color, buffer.name, inward) for color, buffer, inward in streams))
            if key not in made:
                k = self.core_class(f"host {edge}")
                for thread, (color, buffer, inward) in enumerate(streams, 1):
                    source, target = (
                        (buffer.dsd(), fabric_out(color)) if inward else (fabric_in(color), buffer.dsd())
                    )
                    k.mov(target, source, start="none", thread=thread, period=self.config.io_milli)
                for thread in range(1, len(streams) + 1):
                    k.join(thread)
                made[key] = k
            self._class_of[row, 0 if edge == "W" else self.cols + 1] = made[key].index
        self._streams = {}

    # ---- build -------------------------------------------------------------------------------

    def build(self) -> Program:
        """Validate and freeze.

        Raises
        ------
        ProgramError
            One sentence with core, color or class, and the limit.
        """
        west = int(any(edge == "W" for edge, _ in self._streams) or bool(self._class_of[:, 0].any()))
        east = int(any(edge == "E" for edge, _ in self._streams) or bool(self._class_of[:, -1].any()))
        self._host_classes()
        cut = slice(1 - west, self.cols + 1 + east)
        cols = self.cols + west + east
        colors = sorted(self._route)
        for color in {c for k in self._classes for c in k.colors()} - set(colors):
            raise ProgramError(f"color {color} is used by a class but has no route; add route({color}, ...)")
        slot_of = {color: slot for slot, color in enumerate(colors)}
        buffers, table, elements = self._layout(west)
        parts = [k.assemble(slot_of, buffers) for k in self._classes]
        code, tasks, entries, class_tasks = _join(parts)
        cfg = list(self._cfg)
        depth = [
            self.config.input_queue_wavelets[self._queue_of[c]]
            if c in self._queue_of
            else self.config.default_input_wavelets
            for c in colors
        ]
        route = np.zeros((len(colors), self.rows * cols), np.uint16)
        for color in colors:
            route[slot_of[color]] = self._route[color][:, cut].reshape(-1)
        params = np.zeros((len(self._params), self.rows * cols), np.int32)
        for i, plane in enumerate(self._params):
            params[i] = plane[:, cut].reshape(-1)
        vector = code[:, P.OP] >= P.FIRST_VECTOR_OP
        arrays: dict[str, Any] = {
            "core_class": np.ascontiguousarray(self._class_of[:, cut]).reshape(-1),
            "class_entry": np.array(entries, np.int32),
            "class_tasks": np.array(class_tasks, np.int32),
            "tasks": tasks,
            "code": code,
            "params": params,
            "route": route,
            "cfg_rx": np.array([c[0] for c in cfg], np.uint8),
            "cfg_tx": np.array([c[1] for c in cfg], np.uint8),
            "cfg_positions": np.array([c[2] for c in cfg], np.uint8),
            "cfg_initial": np.array([c[3] for c in cfg], np.uint8),
            "cfg_ring": np.array([c[4] for c in cfg], np.uint8),
            "cfg_pop": np.array([c[5] for c in cfg], np.uint8),
            "slot_color": np.array(colors, np.int32),
            "input_depth": np.array(depth, np.int32),
            "buffer_table": table,
            "die_edges": np.repeat(die_edges(self.rows, self.config), cols),
        }
        program = Program(
            rows=self.rows,
            cols=cols,
            west=west,
            east=east,
            class_names=("router", *(k.name for k in self._classes)),
            buffers=buffers,
            arena_elements=elements,
            # A microthread that is only waited for has a record as well.
            n_threads=1 + int(code[vector | (code[:, P.OP] == P.Op.JOIN), P.THREAD].max(initial=0)),
            has_control=bool((code[:, P.OP] == P.Op.CONTROL).any() or (code[vector, P.ADVANCE] > 0).any()),
            has_switches=bool((arrays["cfg_positions"] > 1).any()),
            **arrays,
        )
        validate(program, self.config)
        return program

    def _layout(self, west: int) -> tuple[dict[str, BufferInfo], npt.NDArray[np.int64], int]:
        """SRAM addresses (first fit after every overlapping buffer) and places in the arena."""
        infos: dict[str, BufferInfo] = {}
        table = np.zeros((len(self._buffers), 8), np.int64)
        base = 0
        ends: list[tuple[tuple[int, int, int, int], int]] = []
        for index, buffer in enumerate(self._buffers.values()):
            row, col, n_rows, n_cols = buffer.rect
            size = buffer.length * (2 if buffer.dtype == "fp16" else 4)
            address = buffer.address
            if address is None:
                address = max((end for rect, end in ends if _overlap(rect, buffer.rect)), default=0)
                address += -address % 4
                if buffer.bank is not None:
                    address += 2 * ((buffer.bank - address // 2) % self.config.sram_banks)
            is_host = not 0 <= col < self.cols
            if address + size > self.config.sram_usable_bytes and not is_host:
                raise ProgramError(
                    f"buffer '{buffer.name}' ends at byte {address + size} of core ({row}, {col}) but a core has "
                    f"{self.config.sram_usable_bytes} bytes; use smaller tiles"
                )
            ends.append((buffer.rect, address + size))
            infos[buffer.name] = BufferInfo(
                buffer.name, index, buffer.dtype, buffer.length, row, col, n_rows, n_cols, address, base
            )
            table[index] = (
                base, row, col + west, n_rows, n_cols, buffer.length, int(buffer.dtype == "fp16"), address
            )  # fmt: skip
            base += buffer.length * n_rows * n_cols
        return infos, table, base


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def _join(
    parts: list[tuple[npt.NDArray[np.int64], list[list[int]], int]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], list[int], list[int]]:
    """Concatenate the code and the tasks of all classes; class 0 is empty."""
    entries, class_tasks, tasks = [-1], [0, 0], []
    blocks = []
    pc = 0
    for code, class_rows, entry in parts:
        shifted = code.copy()
        loops = (shifted[:, P.OP] == P.Op.LOOP) | (shifted[:, P.OP] == P.Op.ENDLOOP)
        shifted[loops, P.TARGET] += pc
        entries.append(entry + pc if entry >= 0 else -1)
        tasks += [[row[0], row[1], row[2] + pc, row[3], row[4]] for row in class_rows]
        class_tasks.append(len(tasks))
        blocks.append(shifted)
        pc += len(code)
    code_all = np.concatenate(blocks) if blocks else np.zeros((0, P.N_FIELDS), np.int64)
    return code_all, np.array(tasks, np.int32).reshape(-1, 5), entries, class_tasks


def die_edges(rows: int, config: FabricConfig) -> npt.NDArray[np.uint8]:
    """Return a port mask (rows,): the vertical links that lead over the edge of a die."""
    edges = np.zeros(rows, np.uint8)
    if config.die_crossing_cycles:
        first = np.array([row for row in config.die_edge_rows if 0 < row < rows], np.int64)
        edges[first] |= P.PORT_BIT["N"]
        edges[first - 1] |= P.PORT_BIT["S"]
    return edges
