"""Layouts and routes of a trainable plan.

A *leg* is one route of words from cell to cell on a color::

    host > inputs, a leg per inlet > region 0 > outputs, one leg > region 1 > ... > logits > host
                                     region 0 < gradients, one leg < region 1 < ...

Outputs leave the last row of a region westward, input gradients upward in the column that collects them:
there the cores send in sequence, and a switch of each router forwards what arrives from behind. A leg between
regions passes all inlets of the next one, and each receives every word.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product

import networkx as nx
import numpy as np

from wse_sim.compiler.plan import Stage, Stream
from wse_sim.compiler.streams import HOST
from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Builder, Switch
from wse_sim.graph import Kernel
from wse_sim.kernels.blocks.chain_rows import chain_rows
from wse_sim.kernels.contract.family import Tiling
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.layout import RegionLayout, items_of, lay_for_training
from wse_sim.whole.paths import BACK, Cell, Grid, direction

LEAST_LOSSES = 2  # cores of a loss, which receive samples in rotation


class NoWayError(ModelError):
    """A stream has no free route on its color."""


@dataclass(frozen=True)
class Leg:
    """One route of words from cell to cell on a color; `stream` names its ends."""

    stream: Stream
    color: int
    cells: tuple[Cell, ...]
    elements: range  # of a sample
    taps: tuple[Cell, ...] = ()  # cells on the route whose cores also receive the words


@dataclass(frozen=True)
class Legs:
    """All legs of a plan."""

    inputs: tuple[Leg, ...]  # of the host's samples, one per bundle
    forward: tuple[Leg, ...]  # outputs of every region
    backward: tuple[Leg, ...]  # gradients to every region but the last
    loss: tuple[
        Cell, ...
    ]  # cores of the loss: the one next to the last row, or several behind it that take samples in turn

    def into(self, layer: int, inlet: int) -> Leg:
        """Return the leg that brings an inlet of a layer its inputs."""
        return self.forward[layer - 1] if layer else self.inputs[inlet]


# ---- layouts and legs --------------------------------------------------------------------------------------------


def laid_out(
    plan: PipelinedPlan, kernels: Sequence[Kernel], streams: Sequence[Stream], losses: int = 1
) -> tuple[tuple[RegionLayout, ...], Legs]:
    """Return layouts and legs with as many inlets as can be routed, and at most `losses` cores for the loss."""
    wanted = [_inlets(plan, kernel, stage) for kernel, stage in zip(kernels, plan.stages, strict=True)]
    while True:
        layouts = _layouts(plan, kernels, wanted)
        wanted = [len(layout.fed) for layout in layouts]
        for around, order in product((True, False), (1, -1)):
            try:
                return layouts, _legs(plan, layouts, streams, order, losses, around)
            except NoWayError:
                if max(wanted) == 1 and order < 0 and not around:
                    raise
        fewer = max(1, max(wanted) - 1)
        wanted = [min(fewer, count) for count in wanted]


def _inlets(plan: PipelinedPlan, kernel: Kernel, stage: Stage) -> int:
    """Return the inlets of a layer, as many as its price counts (:mod:`wse_sim.kernels.blocks.chain_rows`)."""
    rows = stage.region.rows
    tiling = Tiling(max(1, rows - 1), stage.region.compute_cores // rows)
    has_dx = stage.name != plan.stages[0].name
    of = chain_rows(kernel.dims["k"], kernel.dims["n"], items_of(kernel), tiling, plan.wafer, has_dx=has_dx)
    return int(of.inlets)


def _layouts(
    plan: PipelinedPlan, kernels: Sequence[Kernel], wanted: Sequence[int]
) -> tuple[RegionLayout, ...]:
    """Return layouts with the wanted numbers of inlets, or fewer if there are not enough rows."""
    out = []
    for kernel, stage, most in zip(kernels, plan.stages, wanted, strict=True):
        tried = (lay_for_training(kernel, stage, n) for n in range(most, 0, -1))
        found = next((layout for layout in tried if layout is not None), None)
        if found is None:
            raise ModelError(
                f"stage '{stage.name}' has {stage.region.rows} rows, but a layer that trains needs one in addition to those "
                "of its inputs; use more cores"
            )
        out.append(found)
    return tuple(out)


def _legs(
    plan: PipelinedPlan,
    layouts: Sequence[RegionLayout],
    streams: Sequence[Stream],
    order: int,
    losses: int,
    around: bool,
) -> Legs:
    """Return the legs; input legs are routed from the first inlet to the last, or in reverse (`order` -1).

    With `around` they avoid compute cores where possible.
    """
    grid = Grid(plan.wafer.rows, plan.wafer.cols)
    computing = frozenset(chain.from_iterable(map(_computing, layouts))) if around else frozenset()
    edge = _taken_ends(grid, layouts, streams)
    for layout in layouts:  # outputs along the last row, gradients up the column that collects them
        along = [(layout.last, layout.left + col) for col in range(layout.cols - 1, -2, -1)]
        grid.links |= set(pairwise(along)) | set(pairwise(_collecting(layout)[::-1]))
    inputs = _input_legs(grid, layouts[0], streams[0], edge, order, computing)
    forward: list[Leg] = []
    backward: list[Leg] = []
    for p, layout in enumerate(layouts):
        beside = (layout.last, layout.left - 1)
        after = layouts[p + 1] if p + 1 < len(layouts) else None
        stream = streams[p + 1]
        outputs = range(sum(layout.sent(col) for col in range(layout.cols)))
        if after is None:
            edge_cell = grid.nearest_free(stream.color, stream.route[-1])
            grid.take(stream.color, (edge_cell,))  # no core of the loss is where the logits leave
            loss = _loss_cells(grid, layouts, stream.color, beside, losses)
            grid.take(stream.color, (beside, *loss))
            out = _leg(grid, stream, stream.color, (loss[-1], edge_cell), [layout], outputs, computing)
            before = (beside, *loss[:-1]) if loss != (beside,) else ()
            out = replace(out, cells=(*before, *out.cells), taps=loss)  # the loss receives the logits
        else:
            out = _leg_to_inlets(grid, stream, beside, (layout, after), outputs, computing)
            ends = ((after.top, after.collector), beside)
            backward.append(_leg(grid, stream, stream.color + 1, ends, [layout, after], outputs, computing))
        forward.append(replace(out, cells=((layout.last, layout.left), *out.cells)))
    return Legs(tuple(inputs), tuple(forward), tuple(backward), loss)


def _loss_cells(
    grid: Grid, layouts: Sequence[RegionLayout], color: int, beside: Cell, count: int
) -> tuple[Cell, ...]:
    """Return a path of up to `count` free cells that starts at the core next to the last row, or that core if
    none is free."""
    held = set(grid.taken(color))
    for one in layouts:
        held |= _computing(one).union(_collecting(one))
        held |= {one.inlet(g) for g in range(len(one.fed))} | {(one.last, one.left - 1)}
    free = grid.graph.subgraph({cell for cell in grid.graph if cell not in held} | {beside})
    lengths = nx.single_source_shortest_path(free, beside, cutoff=count)
    far = max(len(way) for way in lengths.values())
    if far < min(count, LEAST_LOSSES) + 1 or count < LEAST_LOSSES:
        return (beside,)
    return tuple(min(way for way in lengths.values() if len(way) == far)[1:])


def _taken_ends(grid: Grid, layouts: Sequence[RegionLayout], streams: Sequence[Stream]) -> list[Cell]:
    """Mark the cells at the ends of all routes as taken before routing; return the edge cells of the input."""
    for p, layout in enumerate(layouts):
        row, left = layout.last, layout.left
        grid.take(streams[p + 1].color, ((row, left - 1 + col) for col in range(layout.cols + 1)))
        if p:
            grid.take(streams[p].color + 1, _collecting(layout))
    count, point = len(layouts[0].fed), streams[0].route[0]
    top = min(max(0, point[0] - count // 2), grid.rows - count)
    edge = [(top + g, point[1]) for g in range(count)]
    grid.take(streams[0].color, edge)
    for p, layout in enumerate(layouts):
        held = [layout.inlet(0), *_below_first_inlet(layout)] if p else map(layout.inlet, range(count))
        grid.take(streams[p].color, held)
        if p + 1 < len(layouts):
            grid.take(streams[p + 1].color + 1, [(layout.last, layout.left - 1)])
    return edge


def _below_first_inlet(layout: RegionLayout) -> list[Cell]:
    """Return the cells from below the first inlet to the last."""
    (first, col), (last, _) = layout.inlet(0), layout.inlet(len(layout.fed) - 1)
    return [(row, col) for row in range(first + 1, last + 1)]


def _leg(
    grid: Grid,
    stream: Stream,
    color: int,
    ends: tuple[Cell, Cell],
    at: Sequence[RegionLayout],
    elements: range,
    computing: AbstractSet[Cell],
) -> Leg:
    """Return the cheapest route between two cells on a color, through the regions `at` and along the planned
    stream."""
    cells = grid.way(color, *ends, grid.planned(stream), [layout.region for layout in at], computing)
    if cells is None:
        raise _no_way(stream, color)
    grid.take(color, cells)
    grid.links |= set(pairwise(cells))
    return Leg(stream, color, tuple(cells), elements)


def _no_way(stream: Stream, color: int) -> NoWayError:
    """Return the error for a stream without a route."""
    return NoWayError(
        f"tensor '{stream.tensor}' has no free route from '{stream.producer}' to '{stream.consumer}' on color "
        f"{color}; use another placer or a larger wafer"
    )


def _leg_to_inlets(
    grid: Grid,
    stream: Stream,
    start: Cell,
    at: tuple[RegionLayout, RegionLayout],
    elements: range,
    computing: AbstractSet[Cell],
) -> Leg:
    """Return the route from the core next to the last row to all inlets of the next region, downward or upward."""
    after = at[1]
    inlets = tuple(after.inlet(g) for g in range(len(after.fed)))
    column = [inlets[0], *_below_first_inlet(after)]
    planned, regions = grid.planned(stream), [layout.region for layout in at]
    found: list[tuple[Cell, ...]] = []
    for cells in (column, column[::-1]):
        way = grid.way(stream.color, start, cells[0], planned, regions, computing)
        found += [] if way is None else [(*way, *cells[1:])]
    if not found:
        raise _no_way(stream, stream.color)
    best = min(found, key=len)
    grid.take(stream.color, best)
    grid.links |= set(pairwise(best))
    return Leg(stream, stream.color, best, elements, inlets)


def _collecting(layout: RegionLayout) -> list[Cell]:
    """Return the cores that collect input gradients, from the top."""
    return [(row, layout.collector) for row in range(layout.top, layout.last)]


def _computing(layout: RegionLayout) -> set[Cell]:
    """Return the compute cores of a region."""
    rows, cols = range(layout.top, layout.last + 1), range(layout.left, layout.left + layout.cols)
    return {(row, col) for row in rows for col in cols}


def _input_legs(
    grid: Grid,
    layout: RegionLayout,
    stream: Stream,
    edge: Sequence[Cell],
    order: int,
    computing: AbstractSet[Cell],
) -> list[Leg]:
    """Return one leg per bundle, from the edge of the fabric to its inlet."""
    bundles = range(len(layout.fed))
    sizes = [sum(len(layout.rows[i].inputs) for i in layout.fed[g]) for g in bundles]
    offsets = np.cumsum([0, *sizes]).tolist()
    found = {
        g: _leg(
            grid,
            stream,
            stream.color,
            (edge[g], layout.inlet(g)),
            [layout],
            range(offsets[g], offsets[g + 1]),
            computing,
        )
        for g in bundles[::order]
    }
    return [found[g] for g in bundles]


# ---- routes of streams -------------------------------------------------------------------------------------------


def route_cells(
    b: Builder, color: int, cells: Sequence[Cell], arriving: str, last: str, taps: Sequence[Cell] = ()
) -> None:
    """Route the cells in order: `arriving` into the first, `last` out of the last one; also to the cores at
    `taps`."""
    steps = [direction(a, c) for a, c in pairwise(cells)]
    came = [arriving, *(BACK[step] for step in steps)]
    for cell, rx, tx in zip(cells, came, [*steps, last], strict=True):
        b.route(color, cell, rx=rx, tx=tx + ("R" if cell in taps and tx != "R" else ""))


def route_forward(b: Builder, layout: RegionLayout, leg: Leg, cols: int) -> None:
    """Route the columns of the last row, which send westward in sequence, the first column first; then the
    rest of the leg."""
    for col in range(layout.cols):
        passing = Switch([{"rx": "E"}], ring=True) if col < layout.cols - 1 else None
        b.route(leg.color, (layout.last, layout.left + col), rx="R", tx="W", switch=passing)
    last = "R"
    if leg.stream.consumer == HOST:
        last = "E" if leg.cells[-1][1] == cols - 1 else "W"
    route_cells(b, leg.color, leg.cells[1:], "E", last, leg.taps)


def route_backward(b: Builder, layout: RegionLayout, leg: Leg) -> None:
    """Route the rows that send their gradients upward in sequence, the top row first; then the rest of the leg."""
    steps = [direction(a, c) for a, c in pairwise(leg.cells)]
    count = len(layout.rows) - 1  # the last row has no inputs
    for i in range(count):
        passing = Switch([{"rx": "S"}], ring=True) if i < count - 1 else None
        onward = "N" if i else steps[0]
        b.route(leg.color, (layout.top + i, layout.collector), rx="R", tx=onward, switch=passing)
    route_cells(b, leg.color, leg.cells[1:], BACK[steps[0]], "R")
