"""Build one fabric program from a plan with regions of several kinds and tensors that several regions read.

Regions are placed first and take their own colors: those reserved for kernels, then stream colors if they
need more. Then every tensor is routed as a tree. This module covers inference; training
(:mod:`wse_sim.whole.trained`) uses the same trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.coloring import HOST_COLORS, KERNEL_COLORS
from wse_sim.compiler.plan import Stream
from wse_sim.compiler.streams import HOST
from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.result import FabricResult
from wse_sim.graph import KernelGraph, Phase
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.units import BYTES_PER_WAVELET
from wse_sim.whole.areas import FabricPlace, StreamLinks
from wse_sim.whole.bundles import FEWER, bundles_of, split
from wse_sim.whole.coverage import forward_kernel
from wse_sim.whole.paths import BACK, Cell, Grid, direction
from wse_sim.whole.regions import Ports, RegionKind, region_of
from wse_sim.whole.regions.contract import (
    PAIR,
    POINTWISE,
    Inlet,
    K,
    Out,
    PlacedKernel,
    bundle_elements,
    part_of,
    token_words,
)
from wse_sim.whole.regions.dense_shape import DensePlace
from wse_sim.whole.regions.pointwise_place import PointwisePlace
from wse_sim.whole.regions.shared_color import KEEP
from wse_sim.whole.skips import as_laid, make_room
from wse_sim.whole.stream_routes import Controls, Cycles, Links, link_map, tree_cycles, way_links
from wse_sim.whole.trees import NoRouteError, Tree, grown

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class LaidNetwork:
    """A plan as one fabric program for `samples` samples: its regions, and the trees of its tensors."""

    plan: PipelinedPlan
    program: Program
    config: FabricConfig
    regions: Sequence[PlacedKernel]
    trees: tuple[Tree, ...]
    samples: int

    @property
    def tokens(self) -> int:
        """Rows per sample of the output."""
        last = leaving_region(self.plan, self.regions)
        return last.tokens_of(last.graph, last.kernel)

    @property
    def rows(self) -> int:
        """Rows of all samples of the output."""
        return self.samples * self.tokens

    @property
    def areas(self) -> tuple[FabricPlace, ...]:
        """The regions in the order of the plan's stages."""
        return tuple(region.area for region in self.regions)

    @property
    def stream_links(self) -> tuple[StreamLinks, ...]:
        """Links and route lengths of every stream of the forward pass."""
        return links_of(self.trees)

    @property
    def tree_cycles(self) -> Cycles:
        """Travel cycles of a word between regions, of the forward pass."""
        return tree_cycles(self.trees, inlet_cells(self.regions), self.plan.wafer)

    def values(self, weights: Mapping[str, Floats], rows: Floats) -> dict[str, Floats]:
        """Return the input buffers of a run by name: the graph's parameters, and the rows of all samples (samples T, K)."""
        out: dict[str, Floats] = {}
        for region in self.regions:
            out |= region.values(weights)
        return out | host_inputs(self.plan.graph, self.trees, rows)

    def outputs(self, result: FabricResult) -> NDArray[np.float16]:
        """Return the outputs (rows, N) of a run."""
        read = {name: result.read(name) for name in self.program.buffers if name.startswith("host out")}
        return host_outputs(self.plan.graph, self.trees, read, self.rows)

    def links(self, controls: Controls) -> Links:
        """Return the words per sample on all links between regions, with control words."""
        yield from tree_links(self.plan.graph, self.trees, self.regions, controls, self.plan.wafer.cols)

    @property
    def laid_words(self) -> NDArray[np.float64]:
        """Words per sample on every link, summed over all streams: (rows, cols, 4), in the order N, E, S, W."""
        wafer = self.plan.wafer
        return link_map(self.links(Controls(self.program, self.samples)), wafer.rows, wafer.cols)


@dataclass(frozen=True)
class Network(LaidNetwork):
    """A plan of inference."""

    regions: tuple[RegionKind, ...]

    def laid_plan(self) -> PipelinedPlan:
        """Return the plan with the routes, the words on every link, buffers and timing of this program."""
        loads = (self.laid_words * BYTES_PER_WAVELET).astype(np.float32)
        laid = as_laid(self.plan, self.regions, self.tree_cycles)
        return replace(laid, link_bytes_per_sample=loads)


def inlet_cells(regions: Sequence[PlacedKernel]) -> dict[str, dict[str, list[Cell]]]:
    """Return the cells of the inlets, by reader and tensor."""
    found: dict[str, dict[str, list[Cell]]] = {}
    for region in regions:
        for inlet in region.inlets:
            found.setdefault(region.name, {}).setdefault(inlet.tensor, []).append(inlet.cell)
    return found


def links_of(trees: Sequence[Tree]) -> tuple[StreamLinks, ...]:
    """Return parallel links and route lengths of trees, and the plan's values for both."""
    out = []
    for first in trees:
        if first.bundle:
            continue
        same = [tree for tree in trees if (tree.tensor, tree.streams) == (first.tensor, first.streams)]
        hops = [tree.hops(sink) for tree in same for sink in tree.sinks]
        planned = max(stream.hops for stream in first.streams)
        width = first.streams[0].width
        out.append(StreamLinks(first.tensor, width, first.bundles, planned, min(hops), max(hops)))
    return tuple(out)


def tree_links(
    graph: KernelGraph,
    trees: Sequence[Tree],
    regions: Sequence[PlacedKernel],
    controls: Controls,
    cols: int,
) -> Links:
    """Return the words per sample on the links of trees, including those over the edge to the host."""
    senders = {region.name: region.bundle_senders for region in regions}
    for tree in trees:
        words: float = words_in(graph, tree.tensor, tree.bundle, tree.bundles)
        if tree.producer != HOST:
            words += controls.of(tree.color, senders[tree.producer](tree.bundle))
        yield from way_links(tree, words)
        if tree.host is not None:
            yield tree.host, off_edge(tree, tree.host, cols), words


def words_of(graph: KernelGraph, tensor: str) -> int:
    """Return the words per sample of a tensor, including the padding of its rows to whole words."""
    return (graph.tensors[tensor].elements // graph.samples + filled(graph, tensor)) // PAIR


def words_in(graph: KernelGraph, tensor: str, bundle: int, of: int) -> int:
    """Return the words per sample of one of `of` bundles of a tensor."""
    words = words_of(graph, tensor)
    if of == 1:
        return words
    of_token = token_words(graph, tensor)
    return words // of_token * len(part_of(of_token, bundle, of))


def host_inputs(graph: KernelGraph, trees: Sequence[Tree], values: Floats) -> dict[str, Floats]:
    """Return the host's input buffers by name, from the rows of all samples (samples x T, K)."""
    out = {}
    for i, tree in enumerate(trees):
        if tree.producer == HOST:
            wide = np.pad(values, ((0, 0), (0, values.shape[1] % PAIR)))  # whole words
            elements = bundle_elements(graph, tree.tensor, wide.shape[1], tree.bundle, tree.bundles)
            rows = wide[:, elements]
            words = np.ascontiguousarray(rows.astype(np.float16)).reshape(-1).view(np.float32)
            out[f"host in {i}"] = words[None, None]
    return out


def host_outputs(
    graph: KernelGraph, trees: Sequence[Tree], read: Mapping[str, Floats], rows: int
) -> NDArray[np.float16]:
    """Return the outputs (rows, N), given the host's output buffers by name."""
    parts = []
    for i, tree in enumerate(trees):
        if tree.host is not None:
            words = np.ascontiguousarray(read[f"host out {i}"].reshape(-1))
            parts.append((tree, words.view(np.float16).reshape(rows, -1)))
    features = sum(part.shape[1] for _, part in parts)
    out = np.zeros((rows, features), np.float16)
    for tree, part in parts:
        out[:, bundle_elements(graph, tree.tensor, features, tree.bundle, tree.bundles)] = part
    return out[:, : features - bool(filled(graph, parts[0][0].tensor))]


def filled(graph: KernelGraph, tensor: str) -> int:
    """Return the padding elements per sample: one per row if the tensor of a dense layer, or of work on its elements, has an
    odd number of features, else 0."""
    for kernel in graph.kernels:
        is_end = kernel.phase is Phase.FORWARD and tensor in (*kernel.inputs, *kernel.outputs)
        if is_end and (kernel.family == "gemm" or kernel.family in POINTWISE):
            kind = DensePlace if kernel.family == "gemm" else PointwisePlace
            rows = kind.tokens_of(graph, kernel)
            return rows * (graph.tensors[tensor].elements // graph.samples // rows % PAIR)
    return 0


def network_program(plan: PipelinedPlan, samples: int) -> Network:
    """Build the program that runs `samples` samples.

    Raises
    ------
    ModelError
        If the plan cannot be laid out.
    """
    wafer, graph = plan.wafer, plan.graph
    config = FabricConfig.from_wafer(wafer)
    regions = tuple(region_of(graph, forward_kernel(plan, stage.name), stage, wafer) for stage in plan.stages)
    make_room(plan, regions)
    own, trees = _laid(plan, regions)
    b = Builder(wafer.rows, wafer.cols, config)
    for region in regions:
        inward = [tree_into(trees, region.name, inlet.tensor, inlet.bundle).color for inlet in region.inlets]
        ways = outlets(trees, region, wafer.cols)
        region.build(b, Ports(inward, own[region.name], ways), samples)
    for i, tree in enumerate(trees):
        route_tree(b, tree, wafer.cols)
        host_streams(b, tree, i, graph, samples, wafer.cols)
    return Network(plan, b.build(), config, regions, trees, samples)


def _laid(
    plan: PipelinedPlan, regions: Sequence[RegionKind]
) -> tuple[dict[str, list[int]], tuple[Tree, ...]]:
    """Return the colors of each region and all trees.

    A tensor without a free route is routed before all others; if that does not help, it gets
    fewer bundles.
    """
    first: list[str] = []
    most: dict[str, int] = {}
    while True:
        split(plan, regions, most)
        grid = Grid(plan.wafer.rows, plan.wafer.cols)
        own = {region.name: own_colors(grid, region, plan.wafer.colors) for region in regions}
        grid.links |= frozenset[tuple[Cell, Cell]]().union(*(region.busy_links for region in regions))
        grid.limit = max(stage.cycles_per_sample for stage in plan.stages) / plan.wafer.wavelet_cycles
        for region in regions:
            grid.words |= region.link_words
        try:
            return own, trees_of(plan, grid, regions, {}, first)
        except NoRouteError as told:
            if told.tensor not in first:
                first.insert(0, told.tensor)
                continue
            bundles = bundles_of(told.tensor, regions)
            if bundles == 1:
                raise
            most[told.tensor] = bundles - max(1, bundles // FEWER)


def own_colors(grid: Grid, region: PlacedKernel, colors: int) -> list[int]:
    """Return the colors of a region and mark them as taken: those reserved for kernels first, then the last
    stream colors."""
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
    earliest: Sequence[str] = (),
) -> tuple[Tree, ...]:
    """Route all tensors: between regions, from the host (one tree per reader), to the host, and to `further`
    cells.

    The tensors `earliest` are routed before the others, in this order; trees are returned in the order of the plan.

    Raises
    ------
    NoRouteError
        If a tensor has no free route.
    """
    by_name = {region.name: region for region in regions}
    groups: dict[tuple[str, ...], list[Stream]] = {}
    for stream in (*plan.streams, *plan.host_streams):
        reader = stream.consumer if stream.producer == HOST else ""
        groups.setdefault((stream.tensor, stream.producer, reader), []).append(stream)
    wafer = plan.wafer
    # A core at the edge moves one word per cycle, so it serves one stream and one bundle only.
    edges = {stream.route[-1] for stream in plan.host_streams if stream.consumer == HOST}
    streams_colors = range(wafer.colors - HOST_COLORS - KERNEL_COLORS)
    # Stable: tensors in `earliest` by their place there, all others behind them.
    ranks = {tensor: rank for rank, tensor in enumerate(earliest)}
    out: dict[tuple[str, ...], list[Tree]] = {key: [] for key in groups}
    for key, streams in sorted(groups.items(), key=lambda one: ranks.get(one[0][0], len(ranks))):
        first = streams[0]
        source_region = by_name.get(first.producer)
        ends = [by_name[name].region for s in streams for name in (s.producer, s.consumer) if name in by_name]
        order = [first.color, *(color for color in streams_colors if color != first.color)]
        inlets = [inlet for s in streams if s.consumer != HOST for inlet in by_name[s.consumer].inlets]
        inlets = [inlet for inlet in inlets if inlet.tensor == first.tensor]
        given = source_region.bundles.get(first.tensor, 1) if source_region is not None else 1
        bundles = max(given, 1 + max((inlet.bundle for inlet in inlets), default=0))
        out_point = next((s.route[-1] for s in streams if s.consumer == HOST), None)
        words = plan.graph.tensors[first.tensor].elements / plan.graph.samples / PAIR / bundles
        rows = next((stage.rows_per_sample for stage in plan.stages if stage.name == first.producer), 0)
        beside: set[Cell] = set()  # routes of the previous bundles, with which links should not be shared
        fed = _edges(first.route[0], edges, wafer.rows, inlets, bundles) if source_region is None else {}
        for bundle in range(bundles):
            if source_region is None:
                senders: tuple[Cell, ...] = (fed[bundle],)
            else:
                senders = source_region.bundle_senders(bundle)
            host = out_point
            if out_point and bundles > 1:  # each bundle leaves at the row of its outlet, or near it
                edges -= {out_point} if bundle == 0 else set()
                host = _edge((senders[0][0], out_point[1]), edges, wafer.rows)
            sinks = [host] if host else []
            sinks += [inlet.cell for inlet in inlets if inlet.bundle == bundle]
            sinks += further.get(first.tensor, ())
            # Senders in sequence end a row with a control word, which resets their switches.
            sent = words + rows * (len(senders) > 1)
            tree = grown(grid, streams, senders[0], sinks, senders, ends, order, beside, sent)
            beside |= {tree.source, *senders, *tree.parents}
            out[key].append(replace(tree, bundle=bundle, bundles=bundles, host=host))
    return tuple(tree for trees in out.values() for tree in trees)


def _edge(point: Cell, taken: set[Cell], rows: int) -> Cell:
    """Take the free edge cell nearest to a channel: a host core sends its words in one order, so it feeds one
    stream only."""
    free = [(row, point[1]) for row in range(rows) if (row, point[1]) not in taken]
    if not free:
        raise ModelError(
            f"the streams of the host take more than the {rows} cells of an edge, one each; use a larger wafer"
        )
    found = min(free, key=lambda cell: abs(cell[0] - point[0]))
    taken.add(found)
    return found


def _edges(
    point: Cell, taken: set[Cell], rows: int, inlets: Sequence[Inlet], bundles: int
) -> dict[int, Cell]:
    """Return one edge cell per bundle: the free ones nearest to the rows of their inlets, sorted like these from
    north to south so that routes need not cross."""
    tops = {one: min((i.cell for i in inlets if i.bundle == one), default=point) for one in range(bundles)}
    cells = sorted(_edge((row, point[1]), taken, rows) for row, _ in sorted(tops.values()))
    return dict(zip(sorted(tops, key=lambda one: (tops[one], one)), cells, strict=True))


def leaving_of(plan: PipelinedPlan) -> Stream:
    """Return the stream that carries the output to the host.

    Raises
    ------
    ModelError
        If there is none.
    """
    leaving = next((stream for stream in plan.host_streams if stream.consumer == HOST), None)
    if leaving is None:
        raise ModelError(
            f"no stream of '{plan.graph.name}' goes to the host, so nothing on the fabric would give its output; let a layer "
            "without an activation come last"
        )
    return leaving


def leaving_region(plan: PipelinedPlan, regions: Sequence[K]) -> K:
    """Return the region that makes the output."""
    output = leaving_of(plan).tensor
    return next(region for region in regions if output in region.kernel.outputs)


def tree_into(trees: Sequence[Tree], name: str, tensor: str, bundle: int = 0) -> Tree:
    for tree in trees:
        if (tree.tensor, tree.bundle) == (tensor, bundle) and any(
            stream.consumer == name for stream in tree.streams
        ):
            return tree
    raise ModelError(
        f"tensor '{tensor}' has no stream into '{name}' in this plan; make the plan from the graph of the model"
    )


def off_edge(tree: Tree, cell: Cell, cols: int) -> str:
    """Return the port over the edge of the fabric if the tree ends at the host in this cell, else ""."""
    return ("E" if cell[1] == cols - 1 else "W") if cell == tree.host else ""


def outlets(trees: Sequence[Tree], region: PlacedKernel, cols: int) -> list[Out]:
    """Return color and ports of every bundle of a region's result.

    At an outlet on the edge, the host's end and the source share a router, so its core does not receive the words.
    """
    result = region.kernel.outputs[0], region.name
    return [
        (tree.color, tree.ports(tree.source).replace("R", "") + off_edge(tree, tree.source, cols))
        for tree in trees
        if (tree.tensor, tree.producer) == result
    ]


def route_tree(b: Builder, tree: Tree, cols: int) -> None:
    """Set the routes of a tree at all cells except a region's outlet, which the region sets."""

    def onward(cell: Cell) -> str:
        ports = tree.ports(cell)
        return (ports.replace("R", "") if cell == tree.host else ports) + off_edge(tree, cell, cols)

    if tree.producer == HOST:
        b.route(tree.color, tree.source, rx="W" if tree.source[1] == 0 else "E", tx=onward(tree.source))
    for cell, parent in tree.parents.items():
        b.route(tree.color, cell, rx=BACK[direction(parent, cell)], tx=onward(cell), switch=KEEP)


def host_streams(b: Builder, tree: Tree, number: int, graph: KernelGraph, samples: int, cols: int) -> None:
    """Add the host streams at the ends of a tree."""
    words = samples * words_in(graph, tree.tensor, tree.bundle, tree.bundles)
    if tree.producer == HOST:
        row, col = tree.source
        b.host_in(f"host in {number}", tree.color, words, row, "W" if col == 0 else "E")
    if tree.host is not None:
        row, col = tree.host
        b.host_out(f"host out {number}", tree.color, words, row, "E" if col == cols - 1 else "W")
