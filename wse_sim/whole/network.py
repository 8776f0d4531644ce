"""One fabric program from a plan whose regions are of several kinds, with tensors that several regions read.

Regions come first with their own colors: those of the kernels, and streams' colors where they need more.  Then every
tensor finds its tree.  This is inference; training (:mod:`wse_sim.whole.trained`) stands on the same trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.coloring import HOST_COLORS, KERNEL_COLORS
from wse_sim.compiler.plan import Stream
from wse_sim.compiler.streams import HOST
from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.graph import KernelGraph
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.areas import FabricArea, StreamLinks
from wse_sim.whole.covered import forward_kernel
from wse_sim.whole.paths import BACK, Cell, Grid, direction
from wse_sim.whole.regions import Ports, RegionKind, region_of
from wse_sim.whole.regions.contract import PAIR, PlacedKernel, stream_order
from wse_sim.whole.trees import Tree, grown

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Network:
    """A plan as one program; `samples` of `tokens` rows pass through."""

    plan: PipelinedPlan
    program: Program
    config: FabricConfig
    regions: tuple[RegionKind, ...]
    trees: tuple[Tree, ...]
    samples: int

    @property
    def tokens(self) -> int:
        """Rows of a sample."""
        first = self.regions[0]
        return first.tokens_of(first.graph, first.kernel)

    @property
    def areas(self) -> tuple[FabricArea, ...]:
        """The regions in the order of the plan's stages."""
        return tuple(region.area for region in self.regions)

    @property
    def stream_links(self) -> tuple[StreamLinks, ...]:
        """The streams: one link wide, to every region that reads them."""
        return links_of(self.trees)

    def inputs(self, weights: Mapping[str, Floats], values: Floats) -> dict[str, Floats]:
        """Buffers of a run: parameters of the graph by name, and the rows of all samples (samples T, K)."""
        out: dict[str, Floats] = {}
        for region in self.regions:
            out |= region.values(weights)
        return out | host_inputs(self.plan.graph, self.trees, values)

    def outputs(self, read: Mapping[str, Floats]) -> NDArray[np.float16]:
        """(samples T, N) from what the host collected."""
        return host_outputs(self.plan.graph, self.trees, read, self.samples * self.tokens)


def links_of(trees: Sequence[Tree]) -> tuple[StreamLinks, ...]:
    """Links side by side and ways of trees, beside those of the plan."""
    out = []
    for tree in trees:
        hops = [tree.hops(sink) for sink in tree.sinks]
        first = tree.streams[0]
        planned = max(stream.hops for stream in tree.streams)
        out.append(StreamLinks(tree.tensor, first.width, 1, planned, min(hops), max(hops)))
    return tuple(out)


def host_inputs(graph: KernelGraph, trees: Sequence[Tree], values: Floats) -> dict[str, Floats]:
    """Buffers of the host's streams from the rows of all samples (samples T, K)."""
    out = {}
    for i, tree in enumerate(trees):
        if tree.producer == HOST:
            order = stream_order(graph, tree.tensor)
            rows = values if order is None else values[:, order]
            words = np.ascontiguousarray(rows.astype(np.float16)).reshape(-1).view(np.float32)
            out[f"host in {i}"] = words[None, None]
    return out


def host_outputs(
    graph: KernelGraph, trees: Sequence[Tree], read: Mapping[str, Floats], rows: int
) -> NDArray[np.float16]:
    """(rows, N) from what the host collected."""
    words = np.ascontiguousarray(next(iter(read.values())).reshape(-1))
    found = words.view(np.float16).reshape(rows, -1)
    last = next(tree for tree in trees if any(stream.consumer == HOST for stream in tree.streams))
    order = stream_order(graph, last.tensor)
    return found if order is None else found[:, np.argsort(order)]


def network_program(plan: PipelinedPlan, samples: int) -> Network:
    """The program through which `samples` pass.

    Raises
    ------
    ModelError
        If the plan cannot be laid out.
    """
    wafer, graph = plan.wafer, plan.graph
    config = FabricConfig.from_wafer(wafer)
    b, grid = Builder(wafer.rows, wafer.cols, config), Grid(wafer.rows, wafer.cols)
    regions = tuple(region_of(graph, forward_kernel(plan, stage.name), stage, wafer) for stage in plan.stages)
    own = {region.name: own_colors(grid, region, wafer.colors) for region in regions}
    trees = trees_of(plan, grid, regions, {})
    by_output = {(tree.tensor, tree.producer): tree for tree in trees}
    for region in regions:
        leaving = by_output[region.kernel.outputs[0], region.name]
        inward = [tree_into(trees, region.name, inlet.tensor).color for inlet in region.inlets]
        # An outlet at the edge is the host's end as well: its core does not listen.
        towards = leaving.ports(leaving.source).replace("R", "")
        towards += off_edge(leaving, leaving.source, wafer.cols)
        region.build(b, Ports(inward, leaving.color, towards, own[region.name]), samples)
    for i, tree in enumerate(trees):
        route_tree(b, tree, wafer.cols)
        host_streams(b, tree, i, graph.tensors[tree.tensor].shape, samples, wafer.cols)
    return Network(plan, b.build(), config, regions, trees, samples)


def own_colors(grid: Grid, region: PlacedKernel, colors: int) -> list[int]:
    """Colors of a region: those of kernels first, then the last of the streams'."""
    last = colors - HOST_COLORS
    order = [*range(last - KERNEL_COLORS, last), *reversed(range(last - KERNEL_COLORS))]
    found = order[: region.own_colors]
    place = region.region
    cells = [
        (r, c)
        for r in range(place.row, place.row + place.rows)
        for c in range(place.col, place.col + place.cols)
    ]
    for color in found:
        grid.take(color, cells)
    return found


def trees_of(
    plan: PipelinedPlan,
    grid: Grid,
    regions: Sequence[PlacedKernel],
    further: Mapping[str, Sequence[Cell]],
) -> tuple[Tree, ...]:
    """All tensors: between regions, from the host (one for each that reads it), to the host and to `further` cells."""
    by_name = {region.name: region for region in regions}
    groups: dict[tuple[str, ...], list[Stream]] = {}
    for stream in (*plan.streams, *plan.host_streams):
        reader = stream.consumer if stream.producer == HOST else ""
        groups.setdefault((stream.tensor, stream.producer, reader), []).append(stream)
    wafer, edges = plan.wafer, set[Cell]()
    streams_colors = range(wafer.colors - HOST_COLORS - KERNEL_COLORS)
    out = []
    for streams in groups.values():
        first = streams[0]
        source_region = by_name.get(first.producer)
        senders = source_region.senders if source_region else (_edge(first.route[0], edges, wafer.rows),)
        sinks: list[Cell] = []
        for stream in streams:
            if stream.consumer == HOST:
                sinks.append(stream.route[-1])
            else:
                inlets = by_name[stream.consumer].inlets
                sinks += [inlet.cell for inlet in inlets if inlet.tensor == stream.tensor]
        sinks += further.get(first.tensor, ())
        ends = [by_name[name].region for s in streams for name in (s.producer, s.consumer) if name in by_name]
        order = [first.color, *(color for color in streams_colors if color != first.color)]
        out.append(grown(grid, streams, senders[0], sinks, senders, ends, order))
    return tuple(out)


def _edge(point: Cell, taken: set[Cell], rows: int) -> Cell:
    """The cell at the edge nearest to a channel that feeds no other stream: a host core sends its words in one order."""
    free = [(row, point[1]) for row in range(rows) if (row, point[1]) not in taken]
    found = min(free, key=lambda cell: abs(cell[0] - point[0]))
    taken.add(found)
    return found


def tree_into(trees: Sequence[Tree], name: str, tensor: str) -> Tree:
    for tree in trees:
        if tree.tensor == tensor and any(stream.consumer == name for stream in tree.streams):
            return tree
    raise ModelError(
        f"tensor '{tensor}' has no stream into '{name}' in this plan; make the plan from the graph of the model"
    )


def off_edge(tree: Tree, cell: Cell, cols: int) -> str:
    """The port over the edge of the fabric, at the cell where a tree ends with the host."""
    to_host = any(stream.consumer == HOST and stream.route[-1] == cell for stream in tree.streams)
    return ("E" if cell[1] == cols - 1 else "W") if to_host else ""


def route_tree(b: Builder, tree: Tree, cols: int) -> None:
    """Routes of all cells but a region's outlet, which the region sets."""
    to_host = {stream.route[-1] for stream in tree.streams if stream.consumer == HOST}

    def onward(cell: Cell) -> str:
        ports = tree.ports(cell)
        return (ports.replace("R", "") if cell in to_host else ports) + off_edge(tree, cell, cols)

    if tree.producer == HOST:
        b.route(tree.color, tree.source, rx="W" if tree.source[1] == 0 else "E", tx=onward(tree.source))
    for cell, parent in tree.parents.items():
        b.route(tree.color, cell, rx=BACK[direction(parent, cell)], tx=onward(cell))


def host_streams(
    b: Builder, tree: Tree, number: int, shape: tuple[int, ...], samples: int, cols: int
) -> None:
    """The stream over the edge at the host's end of a tree."""
    words = samples * int(np.prod(shape)) // PAIR
    if tree.producer == HOST:
        row, col = tree.source
        b.host_in(f"host in {number}", tree.color, words, row, "W" if col == 0 else "E")
    for stream in tree.streams:
        if stream.consumer == HOST:
            row, col = stream.route[-1]
            b.host_out(f"host out {number}", tree.color, words, row, "E" if col == cols - 1 else "W")
