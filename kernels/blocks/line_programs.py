"""Row-wise kernels along lines of cores: their cost, fabric program and probes from one list of instructions.

Mappings streamed and stationary; the list and its equation are :mod:`wse_sim.kernels.blocks.line_stages`.
The program finds its operands in memory. Waiting for operands over the west edge of a pipelined region is
part of the cost only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnRows
from wse_sim.kernels.blocks.line_stages import (
    FEATURE,
    MATRIX,
    Lines,
    RowLayout,
    Shapes,
    Sharing,
    Vector,
    collective_cost,
    issued,
    vectors_cost,
)
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.probes import ELEMENTS, SIDE, steady
from wse_sim.kernels.blocks.rounds import pitch
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Array, Case, Cost, Dims, How, Probe, Size, Tiling, asked


@dataclass(frozen=True)
class RowWork:
    """Work of a kernel on its rows: instructions, buffer shapes, and total cycles per element.

    `special` cycles per element and `starts` are those of a compiled training kernel; the part that the
    instructions do not issue is scalar code. Zero means that the instructions are the whole kernel.
    """

    vectors: tuple[Vector, ...]
    shapes: Shapes
    special: float = 0.0
    starts: float = 0.0

    def layout(self, t: int, f: int, wafer: Wafer) -> RowLayout[int]:
        """Return the faster layout of one tile: feature-major or row-major."""
        ways = [RowLayout(t, f), RowLayout(t, f, by_row=True)]
        return min(ways, key=lambda way: float(sum(issued(self.vectors, self.shapes, way, wafer))))

    def cost(self, t: Size, f: Size, line: Size, column: Size, wafer: Wafer) -> Cost:
        """Return the cost of the instructions on tiles of t rows and f features; arrays choose the faster
        layout elementwise."""
        first, second = (
            vectors_cost(self.vectors, self.shapes, RowLayout(t, f, by_row), line, column, wafer)
            for by_row in (False, True)
        )
        return first.or_faster(second)

    def collectives(self, t: Size, f: Size, line: Size, column: Size, wafer: Wafer) -> Cost:
        """Return the cost of the collectives among the instructions."""
        wanted = [vector for vector in self.vectors if vector.collective]
        parts = (
            collective_cost(vector, self.shapes, RowLayout(t, f), line, column, wafer) for vector in wanted
        )
        return sum(parts, Cost())


@dataclass(frozen=True)
class LineTile:
    """Rows of cores and cores per line of a program, `t` rows and `f` features per core."""

    lines: int
    cores: int
    t: int
    f: int

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return self.lines * self.t

    @property
    def cols(self) -> int:
        """Features of a row."""
        return self.cores * self.f


def spread(dims: Dims, tiling: Tiling) -> tuple[Any, Any, Any]:
    """Return (cores per row, rows per core, features per core) if elements are spread over all cores of the
    rectangle."""
    cores = tiling.rows * tiling.cols
    p = np.minimum(tiling.cols // tiling.lanes, np.maximum(1, cores // dims["rows"]))
    p = p if np.ndim(p) else int(p)
    return p, ceil_div(dims["rows"] * p, cores), ceil_div(dims["cols"], p)


def spread_tile(dims: Dims, tiling: Tiling) -> LineTile:
    """Return the lines of a program whose elements are spread over all cores, one line per row of cores."""
    p, t, f = (int(v) for v in spread(dims, tiling))
    return LineTile(int(min(int(tiling.rows), ceil_div(int(dims["rows"]), t))), p, t, f)


def lane_tile(dims: Dims, tiling: Tiling) -> tuple[Any, Any, Any]:
    """Return (cores of a lane, rows per core, features per core) if rows are spread along the lanes."""
    lane = tiling.cols // tiling.lanes
    return lane, ceil_div(dims["rows"], tiling.lanes * tiling.rows), ceil_div(dims["cols"], lane)


def line_program(
    work: RowWork,
    tile: LineTile,
    wafer: Wafer,
    inputs: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    at_first: bool = False,
) -> Case:
    """Return the program; arrays are matrices (rows, cols), or have one value per row or per feature of the
    matrix.

    `at_first`: results per row are compared on the first core of a line, results per feature on the first
    core of a column.
    """
    layout = work.layout(tile.t, tile.f, wafer)
    b = new_builder(tile.lines, tile.cores, wafer)
    buffers = _buffers(b, work.shapes, layout)
    row = Sharing.along(Line(b, vertical=False), tile.cores, 0)
    needs_down = any(vector.collective == "sink" for vector in work.vectors)
    down = Sharing.along(Line(b, vertical=True), tile.lines, row.colors) if needs_down else None
    lines = Lines(work.shapes, buffers, layout, row, wafer, down)
    for i, j in np.ndindex(tile.lines, tile.cores):
        core = b.core_class(f"core {i} {j}")
        if work.special:
            cycles = work.special * tile.t * tile.f + work.starts
            lines.scalar_rest(core, work.vectors, cycles, layout.rounds)
        lines.emit(core, work.vectors, j, row=i)
        b.place(core, (i, j))
    found = {name: _tiles(values, work.shapes[name].kind, tile, layout) for name, values in inputs.items()}
    wanted = _results(work.shapes, expected, tile, layout, at_first)
    size = max(float(np.nanmax(np.abs(values))) for values in wanted.values())
    narrow = any(shape.dtype == "fp16" for shape in work.shapes.values())
    return Case(b.build(), b.config, found, wanted, tolerance=(4e-3 if narrow else 1e-4) * size)


def _buffers(b: Builder, shapes: Shapes, layout: RowLayout[int]) -> dict[str, Any]:
    """Declare the buffers; matrices alternate between two banks that do not conflict."""
    found: dict[str, Any] = {}
    banks = iter((0, 2, 0, 2))
    for name, shape in shapes.items():
        if shape.within:
            continue
        if shape.kind == MATRIX:
            found[name] = b.buffer(name, layout.rounds * pitch(layout.length), shape.dtype, bank=next(banks))
        else:
            found[name] = b.buffer(name, layout.elements(shape.kind), shape.dtype, bank=shape.bank)
    return found


def _tiles(values: Array, kind: str, tile: LineTile, layout: RowLayout[int]) -> Array:
    """Return an operand tile by tile: (lines, cores, elements)."""
    lines, cores, t, f = tile.lines, tile.cores, tile.t, tile.f
    if kind == FEATURE:
        return np.broadcast_to(np.reshape(values, (1, cores, f)), (lines, cores, f))
    if kind != MATRIX:
        return np.broadcast_to(np.reshape(values, (lines, 1, t)), (lines, cores, t))
    order = (0, 2, 1, 3) if layout.by_row else (0, 2, 3, 1)
    tiles = np.reshape(values, (lines, t, cores, f)).transpose(order)
    wide = np.pad(tiles, [(0, 0)] * 3 + [(0, pitch(layout.length) - layout.length)])
    return wide.reshape(lines, cores, -1)


def _results(
    shapes: Shapes, expected: Mapping[str, Any], tile: LineTile, layout: RowLayout[int], at_first: bool
) -> dict[str, Any]:
    """Return the expected buffers; results that share a buffer are concatenated."""
    found: dict[str, Any] = {}
    for name, values in expected.items():
        tiles = _wanted(values, shapes[name].kind, tile, layout, at_first)
        holder = shapes[name].within or name
        if shapes[name].within:
            tiles = np.pad(tiles, [(0, 0)] * 2 + [(0, tiles.shape[-1] % 2)], constant_values=np.nan)
        found[holder] = np.concatenate([found[holder], tiles], axis=-1) if holder in found else tiles
    return found


def _wanted(values: Array, kind: str, tile: LineTile, layout: RowLayout[int], at_first: bool) -> Array:
    """Return a result tile by tile, with NaN where it is not compared."""
    if kind == MATRIX:
        marked = _tiles(np.ones_like(values), kind, tile, layout)
        return np.where(marked > 0, _tiles(values, kind, tile, layout), np.nan)
    tiles = np.array(_tiles(values, kind, tile, layout), np.float32)
    if at_first:
        tiles[(slice(1, None),) if kind == FEATURE else (slice(None), slice(1, None))] = np.nan
    return tiles


class OnLines(OnRows):
    """A family whose rows are spread along lines of cores."""

    def tile(self, dims: Dims, tiling: Tiling) -> tuple[Any, Any, Any]:
        """Return (cores per row, rows per core, elements of a row per core): by default over all cores."""
        return spread(dims, tiling)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on one line of a few cores with the tile of the plan, on a few lines for a weight gradient; none
        on a grid. Fill and operand streams keep their formula."""
        if tiling.mapping == "grid":
            return ()
        phase, dtype, attrs = asked(how)
        in_place = replace(tiling, mapping="streamed")
        p, t, f = (int(v) for v in self.tile(dims, in_place))
        cost = self.cost(dims, in_place, wafer, **how)
        # A longer line only adds latency, which is not measured here.
        cores = min(p, SIDE)
        sizes = {name: int(value) for name, value in dims.items()} | {"rows": t, "cols": cores * f}
        whole = t * f <= ELEMENTS
        step = "" if whole else ("rows" if p == 1 and f <= ELEMENTS // 2 and t > 1 else "cols")
        start = 1
        if step:
            start = (
                int(ceil_div(ELEMENTS // 2, f)) if step == "rows" else cores * int(ceil_div(ELEMENTS // 2, t))
            )
            del sizes[step]
        lines = SIDE if phase is Phase.WEIGHT_GRADIENT else 1
        if lines > 1 and "rows" in sizes:
            sizes["rows"] *= lines
        return (
            Probe(
                part="rows",
                family=self.name,
                dims=sizes,
                tiling=Tiling(lines, cores, "streamed"),
                step=step,
                start=start,
                cost=steady(cost) if whole else replace(steady(cost), startup=0.0 * cost.total),
                tile=f"{t} rows of {f} features",
                dtype=dtype,
                phase=phase,
                attrs=dict(attrs),
            ),
        )
