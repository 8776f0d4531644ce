"""Row-wise kernels along lines of cores: their cost, fabric program and probes from one list of instructions.

The list and its equation are :mod:`wse_sim.kernels.blocks.line_stages`. The program finds its operands in memory. Waiting for
operands over the west edge of a pipelined region is part of the cost only.

streamed, stationary   a compiled training kernel: its cycles per element, which include scalar code
grid                   written by hand: the instructions alone, of rows over the rows of cores and features over the columns;
                       statistics along the fastest tree of a row of cores, not along a chain
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
from wse_sim.kernels.blocks.trees import LineTree, candidates, multicast_back, reduce_cost, reduce_cycles
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, words
from wse_sim.kernels.contract.family import (
    Array,
    Asked,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    Probe,
    Size,
    Tiling,
    asked,
)

FP16_BYTES = 2


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

    @property
    def by_hand(self) -> RowWork:
        """The same work without scalar code."""
        return replace(self, special=0.0, starts=0.0)

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


def grid_tile(dims: Dims, tiling: Tiling) -> LineTile:
    """Return the lines of a program on a grid: rows over the rows of cores, features over the columns."""
    lines, cores = int(tiling.rows), int(tiling.cols)
    return LineTile(lines, cores, int(ceil_div(dims["rows"], lines)), int(ceil_div(dims["cols"], cores)))


def grid_tree(work: RowWork, tile: LineTile, wafer: Wafer) -> LineTree:
    """Return the fastest tree for the statistics of a row of cores, of those whose routes serve several of them."""
    count = int(words(max(_statistics(work, tile), default=1), "fp32"))
    trees = [tree for tree in candidates(tile.cores, "auto") if not 1 < tree.group < tree.cores]
    return min(trees, key=lambda tree: float(reduce_cycles(tree, count, wafer)[0]))


def grid_cost(work: RowWork, tile: LineTile, wafer: Wafer) -> Cost:
    """Return the cost of the instructions on a grid."""
    found = work.cost(tile.t, tile.f, 1, tile.lines, wafer)
    if tile.cores == 1:
        return found
    tree = grid_tree(work, tile, wafer)
    for size in _statistics(work, tile):
        up, back = reduce_cost(tree, size, wafer, "fp32"), multicast_back(size, tree, wafer, "fp32")
        found = found + up + back + Cost(startup=wafer.vector_start_cycles)
    return found


def grid_footprint(work: RowWork, tile: LineTile, wafer: Wafer) -> Footprint:
    """Return the bytes of a core on a grid: its buffers, with gaps between their banks, and code."""
    layout, found = work.layout(tile.t, tile.f, wafer), 0
    for shape in (shape for shape in work.shapes.values() if not shape.within):
        is_matrix = shape.kind == MATRIX
        count = layout.rounds * pitch(layout.length) if is_matrix else layout.elements(shape.kind)
        found += count * bytes_of(shape.dtype) + FP16_BYTES * wafer.sram_banks
    return Footprint(activations_bytes=float(found), code_bytes=wafer.kernel_code_bytes)


def _statistics(work: RowWork, tile: LineTile) -> list[int]:
    """Return the elements of each all-reduce along a line."""
    names, layout = [one.to for one in work.vectors if one.collective == "share"], RowLayout(tile.t, tile.f)
    return [layout.elements(work.shapes[name].kind) for name in names]


def line_program(
    work: RowWork,
    tile: LineTile,
    wafer: Wafer,
    inputs: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    at_first: bool = False,
    tree: LineTree | None = None,
) -> Case:
    """Return the program; arrays are matrices (rows, cols), or have one value per row or per feature of the
    matrix.

    `at_first`: results per row are compared on the first core of a line, results per feature on the first
    core of a column. Sums along a line take the `tree`, by default a chain.
    """
    layout = work.layout(tile.t, tile.f, wafer)
    b = new_builder(tile.lines, tile.cores, wafer)
    buffers = _buffers(b, work.shapes, layout)
    row = Sharing.along(Line(b, vertical=False), tile.cores, 0, tree)
    needs_down = any(vector.collective == "sink" for vector in work.vectors)
    down = Sharing.along(Line(b, vertical=True), tile.lines, row.colors) if needs_down else None
    lines = Lines(work.shapes, buffers, layout, row, wafer, down)
    for i, j in np.ndindex(tile.lines if down else 1, tile.cores):
        core = b.core_class(f"core {i} {j}")
        if work.special:
            cycles = work.special * tile.t * tile.f + work.starts
            lines.scalar_rest(core, work.vectors, cycles, layout.rounds)
        lines.emit(core, work.vectors, j, row=i)
        b.place(core, (i if down else slice(None), j))
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

    def asked(self, tiling: Tiling, how: How, dtype: str = "") -> Asked:
        """Return the arguments with defaults filled in: on a grid, values are fp32."""
        return super().asked(tiling, how, dtype or ("fp32" if tiling.mapping == "grid" else "fp16"))

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
