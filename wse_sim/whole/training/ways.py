"""Layouts and ways of a plan that trains, and the routes of its streams.

Symbols: g bundles side by side; a *leg* is one way of words from cell to cell on a color::

    host > inputs, g bundles > region 0 > outputs, one bundle > region 1 > ... > logits > host
                               region 0 < gradients, one bundle < region 1 < ...

Outputs leave the last row of a region westward, gradients of the inputs its first column upward: there the cores send in
turn, and a switch of each router passes on what comes from behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np

from wse_sim.compiler.plan import Stream
from wse_sim.compiler.streams import HOST
from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Builder, Switch
from wse_sim.graph import Kernel
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.layout import PAIR, RegionLayout, lay_for_training
from wse_sim.whole.paths import BACK, Cell, Grid, direction

INLET_FRACTION = 0.8  # of a sample's time that an inlet may work, so that cores do not wait for it


class NoWayError(ModelError):
    """A stream finds no way on its color."""


@dataclass(frozen=True)
class Leg:
    """One way of words from cell to cell on a color; `stream` tells between whom."""

    stream: Stream
    color: int
    cells: tuple[Cell, ...]
    elements: range  # of a sample


@dataclass(frozen=True)
class Legs:
    """All legs of a plan."""

    inputs: tuple[Leg, ...]  # of the host's samples, one per bundle
    forward: tuple[Leg, ...]  # outputs of every region
    backward: tuple[Leg, ...]  # gradients to every region but the last

    def into(self, layer: int) -> tuple[Leg, ...]:
        """The legs that bring a layer its inputs."""
        return (self.forward[layer - 1],) if layer else self.inputs


# ---- layouts and legs --------------------------------------------------------------------------------------------


def laid_out(
    plan: PipelinedPlan, kernels: Sequence[Kernel], streams: Sequence[Stream]
) -> tuple[tuple[RegionLayout, ...], Legs]:
    """Layouts and ways with as many bundles of the input as find a way."""
    # An inlet issues three times the words of its bundle: in, out forward, out backward.
    issued = 3 * ceil_div(int(kernels[0].dims["k"]), PAIR)
    links = min(streams[0].width, ceil(issued / (INLET_FRACTION * plan.stages[0].cycles_per_sample)))
    while True:
        layouts = _layouts(plan, kernels, links)
        links = len(layouts[0].fed)
        for order in (1, -1):
            try:
                return layouts, _legs(plan, layouts, streams, order)
            except NoWayError:
                if links == 1 and order < 0:
                    raise
        links -= 1


def _layouts(plan: PipelinedPlan, kernels: Sequence[Kernel], links: int) -> tuple[RegionLayout, ...]:
    """Layouts with one bundle between regions, and as many of the input as find rows."""
    out = []
    for p, (kernel, stage) in enumerate(zip(kernels, plan.stages, strict=True)):
        words = ceil_div(int(kernel.dims["k"]), PAIR)
        tried = (lay_for_training(kernel, stage, n) for n in range(1 if p else min(links, words), 0, -1))
        found = next((layout for layout in tried if layout is not None), None)
        if found is None:
            raise ModelError(
                f"stage '{stage.name}' has {stage.region.rows} rows, and a layer that trains has one beside those "
                "of its inputs; use more cores"
            )
        out.append(found)
    return tuple(out)


def _legs(
    plan: PipelinedPlan, layouts: Sequence[RegionLayout], streams: Sequence[Stream], order: int
) -> Legs:
    """The legs; those of the input are sought from the first bundle to the last, or the other way round (`order` -1)."""
    grid = Grid(plan.wafer.rows, plan.wafer.cols)
    edge = _taken_ends(grid, layouts, streams)
    inputs = _input_legs(grid, layouts[0], streams[0], edge, order)
    forward: list[Leg] = []
    backward: list[Leg] = []
    for p, layout in enumerate(layouts):
        beside = (layout.last, layout.left - 1)
        after = layouts[p + 1] if p + 1 < len(layouts) else None
        stream = streams[p + 1]
        outputs = range(sum(layout.sent(col) for col in range(layout.cols)))
        if after is None:
            out = _leg(grid, stream, stream.color, (beside, stream.route[-1]), [layout], outputs)
        else:
            out = _leg(grid, stream, stream.color, (beside, after.inlet(0)), [layout, after], outputs)
            ends = ((after.top, after.left), beside)
            backward.append(_leg(grid, stream, stream.color + 1, ends, [layout, after], outputs))
        forward.append(replace(out, cells=((layout.last, layout.left), *out.cells)))
    return Legs(tuple(inputs), tuple(forward), tuple(backward))


def _taken_ends(grid: Grid, layouts: Sequence[RegionLayout], streams: Sequence[Stream]) -> list[Cell]:
    """Take the cells where ways begin and end, before ways are sought; the cells at the edge for the input."""
    for p, layout in enumerate(layouts):
        row, left = layout.last, layout.left
        grid.take(streams[p + 1].color, ((row, left - 1 + col) for col in range(layout.cols + 1)))
        if p:
            grid.take(streams[p].color + 1, ((layout.top + i, left) for i in range(len(layout.rows) - 1)))
    count, point = len(layouts[0].fed), streams[0].route[0]
    top = min(max(0, point[0] - count // 2), grid.rows - count)
    edge = [(top + g, point[1]) for g in range(count)]
    grid.take(streams[0].color, edge)
    for p, layout in enumerate(layouts):
        grid.take(streams[p].color, (layout.inlet(g) for g in range(len(layout.fed))))
        if p + 1 < len(layouts):
            grid.take(streams[p + 1].color + 1, [(layout.last, layout.left - 1)])
    return edge


def _leg(
    grid: Grid,
    stream: Stream,
    color: int,
    ends: tuple[Cell, Cell],
    at: Sequence[RegionLayout],
    elements: range,
) -> Leg:
    """The shortest way between two cells on a color, through the regions `at` and along the planned stream."""
    cells = grid.path(color, *ends, grid.planned(stream), [layout.region for layout in at])
    if cells is None:
        raise NoWayError(
            f"tensor '{stream.tensor}' finds no way from '{stream.producer}' to '{stream.consumer}' on color "
            f"{color}; use another placer or a larger wafer"
        )
    return Leg(stream, color, tuple(cells), elements)


def _input_legs(
    grid: Grid, layout: RegionLayout, stream: Stream, edge: Sequence[Cell], order: int
) -> list[Leg]:
    """A leg per bundle from the edge of the fabric to its inlet."""
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
        )
        for g in bundles[::order]
    }
    return [found[g] for g in bundles]


# ---- routes of streams -------------------------------------------------------------------------------------------


def route_cells(
    b: Builder, color: int, cells: Sequence[Cell], arriving: str, last: str, extra: str = ""
) -> None:
    """The cells of a way: `arriving` into the first, `last` out of the last one; the first also to `extra`."""
    steps = [direction(a, c) for a, c in pairwise(cells)]
    came = [arriving, *(BACK[step] for step in steps)]
    for n, (cell, rx, tx) in enumerate(zip(cells, came, [*steps, last], strict=True)):
        b.route(color, cell, rx=rx, tx=tx + (extra if n == 0 else ""))


def route_forward(b: Builder, layout: RegionLayout, leg: Leg, cols: int, *, to_loss: bool) -> None:
    """The columns of the last row send westward in turn, the first first; then the way; the loss core listens."""
    for col in range(layout.cols):
        passing = Switch([{"rx": "E"}], ring=True) if col < layout.cols - 1 else None
        b.route(leg.color, (layout.last, layout.left + col), rx="R", tx="W", switch=passing)
    last = "R"
    if leg.stream.consumer == HOST:
        last = "E" if leg.cells[-1][1] == cols - 1 else "W"
    route_cells(b, leg.color, leg.cells[1:], "E", last, "R" if to_loss else "")


def route_backward(b: Builder, layout: RegionLayout, leg: Leg) -> None:
    """The rows of the first column send upward in turn, the top one first; then the way."""
    steps = [direction(a, c) for a, c in pairwise(leg.cells)]
    count = len(layout.rows) - 1  # the last row has no inputs
    for i in range(count):
        passing = Switch([{"rx": "S"}], ring=True) if i < count - 1 else None
        onward = "N" if i else steps[0]
        b.route(leg.color, (layout.top + i, layout.left), rx="R", tx=onward, switch=passing)
    route_cells(b, leg.color, leg.cells[1:], BACK[steps[0]], "R")
