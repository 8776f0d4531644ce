"""Training of a plan as one fabric program: regions, forward trees, backward routes of gradients, sums, loss.

Forward, every tensor has its tree (:mod:`wse_sim.whole.network`), and the tree of the output also ends at the
loss. Backward, every reader of a tensor sends a gradient on a separate route to the region that made the
tensor, or to a nearby core that sums the gradients. Order and freedom from deadlock:
:mod:`wse_sim.whole.trained.order`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.coloring import HOST_COLORS
from wse_sim.compiler.plan import Stream
from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.result import FabricResult
from wse_sim.modes.pipelined.loss import LOSS, loss_cores
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.areas import FabricPlace
from wse_sim.whole.bundles import bundles_of
from wse_sim.whole.network import (
    LaidNetwork,
    host_streams,
    leaving_of,
    leaving_region,
    outlets,
    own_colors,
    route_tree,
    tree_into,
    trees_of,
    words_in,
)
from wse_sim.whole.paths import BACK, SHARED, Cell, Grid, direction
from wse_sim.whole.regions.contract import PAIR, divisor, stream_order
from wse_sim.whole.regions.stores import LAST_SLOTS, write_stores
from wse_sim.whole.room import fewest_bundles
from wse_sim.whole.stream_routes import (
    Controls,
    Cycles,
    Ends,
    Links,
    cells_to,
    legs_cycles,
    way_links,
)
from wse_sim.whole.trained.contract import Batch, Floats, TrainedKind, TrainedPorts
from wse_sim.whole.trained.coverage import check_trained
from wse_sim.whole.trained.loss import LossPlace, check_loss, core_counts, mean_of, place_loss
from wse_sim.whole.trained.order import SentGradient, by_tensor, gradients_of
from wse_sim.whole.trained.rounds import most_of_all, regions_of
from wse_sim.whole.trained.sums import MOST_STORES, write_sum
from wse_sim.whole.trees import Tree, Way, found_way, way_cost


@dataclass(frozen=True)
class Waiting:
    """Stores and routes between the reader that sends a gradient and its destination; the last route ends at
    a sum or a region."""

    sent: SentGradient
    stores: tuple[Cell, ...]  # colors of the routes, the reader's first
    ways: tuple[Way, ...]  # one more than stores


@dataclass(frozen=True)
class Back:
    """A bundle of the gradient of a tensor: what its readers send, and the core that sums them with its route, if
    there are several."""

    tensor: str
    bundle: int
    parts: tuple[Waiting, ...]
    sum: tuple[Cell, Way] | None

    @property
    def color(self) -> int:
        """Color on which it reaches the region that made the tensor."""
        return self.sum[1].color if self.sum else self.parts[0].ways[-1].color


@dataclass(frozen=True)
class TrainedNetwork(LaidNetwork):
    """A plan that trains as one program over a batch of samples of `tokens` rows."""

    regions: tuple[TrainedKind, ...]
    backs: tuple[Back, ...]
    from_loss: tuple[Way, ...]  # by bundle
    loss_place: LossPlace
    loss: str
    batch: Batch

    @property
    def ways(self) -> tuple[Cycles, Cycles]:
        """Travel cycles of a word between regions: forward, and of gradients."""
        wafer, makers = self.plan.wafer, {one.kernel.outputs[0]: one.name for one in self.regions}
        back: dict[Ends, float] = {}
        for one in self.backs:
            onward = [one.sum[1]] if one.sum else []
            for part in one.parts:
                legs = [cells_to(way, way.sinks[0]) for way in (*part.ways, *onward)]
                ends = one.tensor, makers[one.tensor], part.sent.reader
                back[ends] = max(back.get(ends, 0.0), legs_cycles(legs, wafer))
        return self.tree_cycles, back

    def links(self, controls: Controls) -> Links:
        """Return the words per sample on all links between regions, of gradients too, with control words."""
        yield from super().links(controls)
        graph = self.plan.graph
        by_name = {region.name: region for region in self.regions}
        output = leaving_of(self.plan).tensor
        for bundle, way in enumerate(self.from_loss):
            words = words_in(graph, output, bundle, len(self.from_loss))
            yield from way_links(way, words + controls.of(way.color, self.loss_place.cores))
        for back in self.backs:
            words = words_in(graph, back.tensor, back.bundle, bundles_of(back.tensor, self.regions))
            for part in back.parts:
                senders = by_name[part.sent.reader].gradient_senders(back.tensor, back.bundle)
                for way in part.ways:
                    yield from way_links(way, words + controls.of(way.color, senders))
            if back.sum:
                yield from way_links(back.sum[1], words + controls.of(back.sum[1].color, ()))

    @property
    def loss_cells(self) -> tuple[Cell, ...]:
        """All cores of the loss."""
        return self.loss_place.cells

    @property
    def loss_area(self) -> FabricPlace:
        """The cores of the loss, one column."""
        (first, col), (last, _) = min(self.loss_place.cores), max(self.loss_place.cores)
        return FabricPlace(LOSS, slice(first, last + 1), slice(col, col + 1))

    def inputs(
        self, weights: Mapping[str, Floats], values: Floats, labels: NDArray[np.int64]
    ) -> dict[str, Floats]:
        """Return the input buffers of a run by name, from parameters by name, rows of all samples (rows, K)
        and labels (rows,)."""
        order = stream_order(self.plan.graph, leaving_of(self.plan).tensor)
        return self.loss_place.values(labels, order) | self.values(weights, values)

    def learned(self, result: FabricResult) -> tuple[float, dict[str, Floats], dict[str, Floats]]:
        """Return mean loss, and mean gradients and new weights by parameter."""
        gradients: dict[str, Floats] = {}
        updated: dict[str, Floats] = {}
        for region in self.regions:
            sums, weights = region.read({name: result.read(name) for name in region.reads})
            gradients |= {name: value / np.float32(self.rows) for name, value in sums.items()}
            updated |= weights
        return mean_of(self.loss, result.read("loss.total"), self.rows), gradients, updated


def trained_network(
    plan: PipelinedPlan,
    samples: int,
    rate: float = 0.0,
    loss: str = "cross entropy",
    most_in_flight: int | None = None,
) -> TrainedNetwork:
    """Build the program that trains on a batch of `samples` with learning rate `rate` (of the mean loss over
    their rows).

    Raises
    ------
    ModelError
        If the model is not supported, the plan cannot be laid out, or a core cannot store a sample.
    """
    check_loss(loss)
    check_trained(plan.graph)
    wafer, graph = plan.wafer, plan.graph
    config = FabricConfig.from_wafer(wafer)
    regions, laid, fit = _with_routes(plan, loss, samples, most_in_flight)
    batch = _batch(laid.place, config, samples, rate, fit)
    b = Builder(wafer.rows, wafer.cols, config)
    _write_regions(b, plan, regions, laid, batch)
    for back in laid.backs:
        words = words_in(graph, back.tensor, back.bundle, bundles_of(back.tensor, regions))
        _write_back(b, back, PAIR * words, samples)
    logits = [tree.color for tree in laid.trees if tree.tensor == laid.output]  # bundles in order
    gradients = [(way.color, way.ports(way.source)) for way in laid.from_loss]
    laid.place.write(b, loss, batch, logits, laid.feed, gradients)
    for way in laid.from_loss:
        _route_way(b, way)
    for i, tree in enumerate(laid.trees):
        route_tree(b, tree, wafer.cols)
        host_streams(b, tree, i, graph, samples, wafer.cols)
    return TrainedNetwork(
        plan,
        b.build(),
        config,
        regions,
        laid.trees,
        samples,
        laid.backs,
        laid.from_loss,
        laid.place,
        loss,
        batch,
    )


@dataclass(frozen=True)
class _Laid:
    """Colors of the regions, the loss with its internal color, and all trees and routes."""

    output: str
    own: dict[str, list[int]]
    place: LossPlace
    feed: int
    trees: tuple[Tree, ...]
    from_loss: tuple[Way, ...]
    backs: tuple[Back, ...]


def _with_routes(
    plan: PipelinedPlan, loss: str, samples: int, most_in_flight: int | None
) -> tuple[tuple[TrainedKind, ...], _Laid, int]:
    """Return the regions with the bundles that the pace needs, their routes, and the samples that all of them can store;
    while a tensor has no route, all tensors have half as many bundles, but not fewer than their cores have room for.

    Raises
    ------
    ModelError
        If the fewest bundles that cores have room for are too many.
    """
    most, least = dict[str, int](), fewest_bundles(plan.graph, plan.wafer)
    while True:
        regions = regions_of(plan, plan.stages, most)
        fit = most_of_all(plan, regions)
        fit = fit if most_in_flight is None else min(fit, most_in_flight)
        counts = _loss_cores(plan, regions, loss, divisor(samples, fit))
        try:
            return regions, _laid(plan, regions, counts), fit
        except ModelError:
            chosen = {name: count for one in regions for name, count in one.bundles.items()}
            several = {name: count for name, count in chosen.items() if count > least.get(name, 1)}
            if not several:
                raise
            most = {name: max(least.get(name, 1), count // 2) for name, count in chosen.items()}


def _loss_cores(plan: PipelinedPlan, regions: Sequence[TrainedKind], loss: str, in_flight: int) -> list[int]:
    """Return the numbers of cores that the loss can have, the preferred one first."""
    tokens, features = _leaving_tokens(plan, regions)
    return core_counts(tokens, in_flight, loss_cores(plan, loss, features))


def _leaving_tokens(plan: PipelinedPlan, regions: Sequence[TrainedKind]) -> tuple[int, int]:
    """Return the tokens of a sample's outputs, and their features; an image is one token."""
    graph, last = plan.graph, leaving_region(plan, regions)
    tokens = last.tokens_of(graph, last.kernel)
    return tokens, graph.tensors[last.kernel.outputs[0]].elements // graph.samples // tokens


def _laid(plan: PipelinedPlan, regions: Sequence[TrainedKind], counts: Sequence[int]) -> _Laid:
    """Place and route; the loss goes next to the gradient inlet of the last region, or elsewhere if that
    blocks a route.

    Raises
    ------
    ModelError
        If no route is left.
    """
    last = leaving_region(plan, regions)
    middle = (plan.wafer.rows // 2, plan.wafer.cols // 2)
    for near in (last.gradient_inlets[0], last.senders[0], last.senders[-1]):
        with contextlib.suppress(ModelError):
            return _laid_beside(plan, regions, last, near, counts)
    return _laid_beside(plan, regions, last, middle, counts)


def _laid_beside(
    plan: PipelinedPlan, regions: Sequence[TrainedKind], last: TrainedKind, near: Cell, counts: Sequence[int]
) -> _Laid:
    """Place and route with the loss near a cell."""
    wafer, output = plan.wafer, last.kernel.outputs[0]
    grid = Grid(wafer.rows, wafer.cols)
    own = {region.name: own_colors(grid, region, wafer.colors) for region in regions}
    free = _free_cells(plan, regions)
    place = place_loss(free, near, *_leaving_tokens(plan, regions), counts)
    free -= set(place.cells)
    grid.links |= set(pairwise(place.cells)).union(*(region.busy_links for region in regions))
    feed = _free_color(grid, place.cells, wafer.colors)
    # All forward passes of a round precede the backward passes, so words of both do not meet on a link.
    grid.limit = max(stage.forward_cycles for stage in plan.stages) / wafer.wavelet_cycles
    trees = trees_of(plan, grid, regions, {output: [place.inlet]})
    grid.limit, grid.words = max(stage.backward_cycles for stage in plan.stages) / wafer.wavelet_cycles, {}
    ways = _Ways(plan, grid, free, wafer.colors - HOST_COLORS, {region.name: region for region in regions})
    from_loss = tuple(ways.found(output, place.cores, cell) for cell in last.gradient_inlets)
    backs = tuple(
        ways.back(tensor, bundle, sent)
        for tensor, sent in by_tensor(gradients_of(regions, output)).items()
        for bundle in range(ways.makers[tensor].bundles.get(tensor, 1))
    )
    return _Laid(output, own, place, feed, trees, from_loss, backs)


def _free_cells(plan: PipelinedPlan, regions: Sequence[TrainedKind]) -> set[Cell]:
    """Return the cells without a program; those at the edges stay reserved for host streams."""
    wafer = plan.wafer
    free = {(row, col) for row in range(wafer.rows) for col in range(1, wafer.cols - 1)}
    for region in regions:
        rows, cols = region.rows, region.columns
        free -= {(r, c) for r in range(rows.start, rows.stop) for c in range(cols.start, cols.stop)}
        free -= region.moving
    return free


def _free_color(grid: Grid, cells: Sequence[Cell], colors: int) -> int:
    """Take the last color that is free at all of the cells."""
    for color in reversed(range(colors - HOST_COLORS)):
        if grid.taken(color).isdisjoint(cells):
            grid.take(color, cells)
            return color
    raise ModelError(
        f"no color is free at the {len(cells)} cores of the loss; use another placer or a larger wafer"
    )


def _batch(place: LossPlace, config: FabricConfig, samples: int, rate: float, fit: int) -> Batch:
    """Return the batch with as many samples in flight as the loss and all regions can store: the regions `fit`."""
    fit = min(fit, place.most_in_flight(config, samples))
    shared = [n for n in range(1, fit + 1) if samples % n == 0 and n * place.tokens % len(place.cores) == 0]
    return Batch(samples, max(shared), -rate / (samples * place.tokens))


class _Ways:
    """Finds the routes of gradients, one after the other."""

    def __init__(
        self,
        plan: PipelinedPlan,
        grid: Grid,
        free: set[Cell],
        colors: int,
        regions: Mapping[str, TrainedKind],
    ) -> None:
        self.grid, self.free, self.colors, self.regions = grid, free, colors, regions
        self.streams: dict[str, list[Stream]] = {}
        for stream in (*plan.streams, *plan.host_streams):
            self.streams.setdefault(stream.tensor, []).append(stream)
        self.makers = {region.kernel.outputs[0]: region for region in regions.values()}
        self.computing = {
            (row, col)
            for one in regions.values()
            for row in range(one.rows.start, one.rows.stop)
            for col in range(one.columns.start, one.columns.stop)
        }

    def found(self, tensor: str, senders: Sequence[Cell], sink: Cell) -> Way:
        """Return the route of a gradient of a tensor; it avoids compute cores, whose links carry their sums.

        Raises
        ------
        ModelError
            If there is none.
        """
        streams = self.streams[tensor]
        planned = set().union(*(self.grid.planned(stream) for stream in streams))
        ends = [self.makers[tensor].region]
        ends += [self.regions[s.consumer].region for s in streams if s.consumer in self.regions]
        first = streams[0].color + 1  # the plan's color of gradients
        order = sorted(range(self.colors), key=lambda color: color != first)
        cost = way_cost(planned, ends)

        def around(cell: Cell) -> float:
            return cost(cell) + SHARED * (cell in self.computing)

        words = self._words(tensor)
        way = found_way(self.grid, senders[0], [sink], senders, around, order, words)
        if way is None:
            raise ModelError(
                f"the gradient of tensor '{tensor}' has no free route from core {senders[0]} to core {sink} on any of "
                f"{self.colors} colors; use another placer or a larger wafer"
            )
        # Words of all senders meet on the links between them.
        for behind, link in enumerate(pairwise(reversed(senders)), 1):
            self.grid.links.add(link)
            self.grid.words[link] = self.grid.words.get(link, 0.0) + words * behind / len(senders)
        return way

    def _words(self, tensor: str) -> float:
        """Return the words per sample of a bundle of a gradient."""
        maker = self.makers[tensor]
        elements = maker.graph.tensors[tensor].elements / maker.graph.samples
        return elements / PAIR / maker.bundles.get(tensor, 1)

    def back(self, tensor: str, bundle: int, sent: Sequence[SentGradient]) -> Back:
        """Return a bundle of the gradient of a tensor from what its readers send, in order of arrival."""
        end = self.makers[tensor].gradient_inlets[bundle]
        if len(sent) == 1:
            senders = self.regions[sent[0].reader].gradient_senders(tensor, bundle)
            way = self.found(tensor, senders, end)
            return Back(tensor, bundle, (Waiting(sent[0], (), (way,)),), None)
        cell = self._taken_near(end)
        if cell is None:
            raise ModelError(
                f"no core is free to sum the gradients of tensor '{tensor}'; use fewer cores for the layers or a "
                "larger wafer"
            )
        onward = self.found(tensor, [cell], end)
        deepest = max(one.depth for one in sent)
        parts = [self._waiting(tensor, bundle, one, cell, deepest - one.depth) for one in sent]
        return Back(tensor, bundle, tuple(parts), (cell, onward))

    def _waiting(self, tensor: str, bundle: int, sent: SentGradient, end: Cell, earlier: int) -> Waiting:
        """Return stores and routes of one gradient, which arrives `earlier` by that many regions."""
        near = (self._taken_near(end) for _ in range(min(earlier, MOST_STORES)))
        stores = [cell for cell in near if cell is not None][::-1]
        senders = self.regions[sent.reader].gradient_senders(tensor, bundle)
        ways = []
        for store in (*stores, end):
            ways.append(self.found(tensor, senders, store))
            senders = (store,)
        return Waiting(sent, tuple(stores), tuple(ways))

    def _taken_near(self, cell: Cell) -> Cell | None:
        """Take the free cell nearest to another cell; None if there is none."""
        found = min(
            self.free, key=lambda one: (abs(one[0] - cell[0]) + abs(one[1] - cell[1]), one), default=None
        )
        self.free.discard(found or cell)
        return found


def _write_regions(
    b: Builder, plan: PipelinedPlan, regions: Sequence[TrainedKind], laid: _Laid, batch: Batch
) -> None:
    """Write all regions with their streams."""
    trees = laid.trees
    into: dict[str, list[int]] = {laid.output: [way.color for way in laid.from_loss]}
    out: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for back in laid.backs:  # bundles in order
        into.setdefault(back.tensor, []).append(back.color)
        for part in back.parts:
            way = part.ways[0]
            out.setdefault((back.tensor, part.sent.reader), []).append((way.color, way.ports(way.source)))
    for region in regions:
        result = region.kernel.outputs[0]
        ports = TrainedPorts(
            [tree_into(trees, region.name, inlet.tensor, inlet.bundle).color for inlet in region.inlets],
            laid.own[region.name],
            outlets(trees, region, plan.wafer.cols),
            arriving=into.get(result, []),  # a frozen layer takes no gradient
            leaving={tensor: out[tensor, region.name] for tensor in region.gradient_order},
        )
        region.build_batch(b, ports, batch)


def _write_back(b: Builder, back: Back, size: int, samples: int) -> None:
    """Write the stores, the sum and the routes of a gradient."""
    for part in back.parts:
        for i, (cell, (before, after)) in enumerate(
            zip(part.stores, zip(part.ways, part.ways[1:], strict=False), strict=True)
        ):

            def hand_on(store: CoreClass, slot: Buffer, color: int = after.color) -> None:
                store.mov(fabric_out(color), slot.dsd(), dtype="fp16", start="none")

            name = f"{back.tensor} {back.bundle} from {part.sent.reader}, {i}"
            write_stores(b, name, [cell], [before.color], size, LAST_SLOTS, samples, hand_on, "fp16x2")
            b.route(after.color, cell, rx="R", tx=after.ports(cell))
        for way in part.ways:
            _route_way(b, way)
    if back.sum:
        cell, onward = back.sum
        inward = [part.ways[-1].color for part in back.parts]
        write_sum(b, f"{back.tensor} {back.bundle} sum", cell, inward, onward.color, size, samples)
        b.route(onward.color, cell, rx="R", tx=onward.ports(cell))
        _route_way(b, onward)


def _route_way(b: Builder, way: Way) -> None:
    """Set the routes of all cells but the source."""
    for cell, parent in way.parents.items():
        b.route(way.color, cell, rx=BACK[direction(parent, cell)], tx=way.ports(cell))
