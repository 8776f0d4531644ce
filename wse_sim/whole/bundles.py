"""Bundles of streams, and their ways.

A stream has as many bundles side by side as the plan gives it links, fewer where regions or colors leave no room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wse_sim.compiler.plan import Stream
from wse_sim.errors import ModelError
from wse_sim.graph import Kernel
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.layout import PAIR, RegionLayout, boundaries, lay, rows_for, share_of
from wse_sim.whole.paths import Cell, Grid


@dataclass(frozen=True)
class BundleWay:
    """One bundle on its way: from an outlet or the host to an inlet or the host."""

    stream: Stream
    bundle: int
    elements: tuple[int, ...]  # of a sample row, in the order in which they travel
    cells: tuple[Cell, ...]


@dataclass
class Choice:
    """How the bundles of a stream lie: their number, and the order in which the ways are sought.

    The first bundle feeds the top rows of the reader, or the lowest (`turned`): one of both may lie without crossings.
    """

    bundles: int
    turned: bool = False
    first_to_last: bool = False

    def next(self) -> bool:
        """Turn to the next choice; False if there is none."""
        if not self.first_to_last:
            self.first_to_last = True
        elif not self.turned:
            self.turned, self.first_to_last = True, False
        elif self.bundles > 1:
            self.bundles, self.turned, self.first_to_last = self.bundles - 1, False, False
        else:
            return False
        return True


def laid_out(
    plan: PipelinedPlan, kernels: Sequence[Kernel], streams: Sequence[Stream]
) -> tuple[tuple[RegionLayout, ...], tuple[BundleWay, ...]]:
    """Layouts and ways with as many bundles per stream as the plan has links, fewer where they do not fit."""
    choices = [Choice(stream.width) for stream in streams]
    while True:
        layouts, short = _layouts(plan, kernels, choices)
        if short < 0:
            ways, short = _ways(plan, layouts, streams, choices, kernels)
        if short < 0:
            return tuple(layouts), tuple(ways)
        if not choices[short].next():
            raise ModelError(
                f"tensor '{streams[short].tensor}' has no free route from '{streams[short].producer}' to "
                f"'{streams[short].consumer}' on color {streams[short].color}; use another placer or a larger wafer"
            )


def _starts(plan: PipelinedPlan, kernels: Sequence[Kernel], position: int, bundles: int) -> list[int]:
    """First element of every bundle of the stream before layer `position`."""
    if position:
        return boundaries(kernels[position - 1], plan.stages[position - 1], bundles)
    words = ceil_div(int(kernels[0].dims["k"]), PAIR)
    bundles = min(bundles, words)
    return [PAIR * (words * g // bundles) for g in range(bundles)]


def _layouts(
    plan: PipelinedPlan, kernels: Sequence[Kernel], choices: Sequence[Choice]
) -> tuple[list[RegionLayout], int]:
    """The layouts, or the stream that has too many bundles."""
    out: list[RegionLayout] = []
    for position, (kernel, stage) in enumerate(zip(kernels, plan.stages, strict=True)):
        starts = _starts(plan, kernels, position, choices[position].bundles)
        choices[position].bundles = len(starts)
        layout = lay(kernel, stage, starts, choices[position + 1].bundles, choices[position].turned)
        if layout is None:
            if len(starts) == 1:
                rows, _ = rows_for(starts, int(kernel.dims["k"]), share_of(kernel, stage), 0)
                raise ModelError(
                    f"stage '{stage.name}' needs {len(rows)} rows for {kernel.dims['k']} inputs, its region has "
                    f"{stage.region.rows}; use more cores"
                )
            return out, position
        out.append(layout)
    choices[-1].bundles = len(out[-1].outlets)
    return out, -1


def _ways(
    plan: PipelinedPlan,
    layouts: Sequence[RegionLayout],
    streams: Sequence[Stream],
    choices: Sequence[Choice],
    kernels: Sequence[Kernel],
) -> tuple[list[BundleWay], int]:
    """The ways of all bundles, or the stream that finds none."""
    wafer = plan.wafer
    grid = Grid(wafer.rows, wafer.cols)
    ends: list[list[tuple[Cell, Cell]]] = []
    for position, stream in enumerate(streams):
        count = choices[position].bundles
        before = layouts[position - 1] if position else None
        after = layouts[position] if position < len(layouts) else None
        if before is not None:
            row, left = before.last, before.left
            grid.take(stream.color, ((row, left + col) for col in range(before.cols)))
        sources = (
            [before.outlet(g) for g in range(count)] if before else _edge(stream.route[0], count, wafer.rows)
        )
        sinks = (
            [after.inlet(g) for g in range(count)] if after else _edge(stream.route[-1], count, wafer.rows)
        )
        grid.take(stream.color, [*sources, *sinks])
        ends.append(list(zip(sources, sinks, strict=True)))
    out: list[BundleWay] = []
    for position, stream in enumerate(streams):
        regions = [layouts[p].region for p in (position - 1, position) if 0 <= p < len(layouts)]
        planned = grid.planned(stream)
        starts = (
            _starts(plan, kernels, position, choices[position].bundles)
            if position < len(layouts)
            else boundaries(kernels[-1], plan.stages[-1], choices[position].bundles)
        )
        total = layouts[position].k if position < len(layouts) else layouts[-1].n
        stops = [*starts[1:], PAIR * ceil_div(total, PAIR)]
        before = layouts[position - 1] if position else None
        for bundle in range(choices[position].bundles)[:: 1 if choices[position].first_to_last else -1]:
            cells = grid.path(stream.color, *ends[position][bundle], planned, regions)
            if cells is None:
                return out, position
            elements = before.sends(bundle) if before else tuple(range(starts[bundle], stops[bundle]))
            out.append(BundleWay(stream, bundle, elements, tuple(cells)))
    return out, -1


def _edge(point: Cell, count: int, rows: int) -> list[Cell]:
    """Cells at the edge of the fabric around a channel, one per bundle."""
    first = min(max(0, point[0] - count // 2), rows - count)
    return [(first + i, point[1]) for i in range(count)]
