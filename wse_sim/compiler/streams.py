"""Streams of a pipelined plan: tensors as nets with routes and colors, and host I/O from the edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.coloring import HOST_COLORS, assign_colors, colors_for_streams, conflicts
from wse_sim.compiler.nets import Net, Point, bundle_width, edge_channel, hops_of, links_needed, middle
from wse_sim.compiler.plan import Infeasible, Stage, Stream
from wse_sim.compiler.routing import Router, add_region_load
from wse_sim.compiler.sample_buffers import comes_back, readers_of, stream_depth
from wse_sim.compiler.sizing import Sizer
from wse_sim.graph import KernelGraph, TensorKind
from wse_sim.hardware import Wafer
from wse_sim.kernels import family
from wse_sim.kernels.contract.family import Lay
from wse_sim.units import BYTES_PER_WAVELET

HOST = "host"
SUM_BYTES = 4  # partial sums travel in fp32


LINK_FRACTIONS = (0.1, 0.25, 0.5)
"""Fractions of a link's rate that one stream may use (assumed), tried in order.

A larger fraction gives narrower streams, which need fewer colors.
"""


@dataclass(frozen=True)
class Routed:
    """The streams between stages, the streams from and to the host, and the loads of all links."""

    streams: tuple[Stream, ...]
    host_streams: tuple[Stream, ...]
    loads: NDArray[np.float32]  # (rows, cols, 4) bytes per sample
    colors: int  # at the busiest router
    shares_ends: bool = False  # whether streams cross end regions of other streams of their color


@dataclass(frozen=True)
class _Attempt:
    """The routes and colors of all nets for one fraction of a link's rate."""

    routes: list[_Route]
    router: Router
    given: dict[int, int]  # first color of a route by its position; other routes have the host's colors
    colors: int
    shares_ends: bool


@dataclass(frozen=True)
class _Route:
    """A net with the names of the stages at its ends; HOST represents the host machines at the edge of the
    wafer.
    """

    net: Net
    tensor: str
    producer: str
    consumers: tuple[tuple[str, tuple[int, int]], ...]  # (stage, its middle)

    @property
    def is_host(self) -> bool:
        """Whether one end is the host."""
        return HOST in (self.producer, self.consumers[0][0])


def route_streams(
    sizer: Sizer, stages: tuple[Stage, ...], pace_cycles: float, mode: str
) -> Routed | Infeasible:
    """Route every tensor of every replica at the pace of the slowest stage.

    Wide streams spread their load but cross more other streams. If there are too few colors, all streams are
    routed again with fewer links each. Returns :class:`Infeasible` if the colors never suffice; `mode`
    appears in its message.
    """
    graph, wafer = sizer.graph, sizer.wafer
    more = max(group.lay.more_colors for group in sizer.groups)
    limit = max(0, colors_for_streams(wafer.colors, graph.training) - more)
    inner_loads = np.zeros((wafer.rows, wafer.cols, 4), np.float64)
    _add_inner_loads(graph, sizer, stages, inner_loads)
    tries: list[_Attempt] = []
    for fraction in LINK_FRACTIONS:
        tries.append(_attempt(sizer, stages, pace_cycles, fraction, limit, inner_loads.copy()))
        if tries[-1].colors <= limit and not tries[-1].shares_ends:
            break
    best = min(tries, key=lambda found: (found.colors > limit, found.shares_ends, found.colors))
    if best.colors > limit:
        return _too_many_colors(sizer, best, limit, mode)
    room = stream_depth(sizer.groups, sizer.edges, graph.training)
    inner: list[Stream] = []
    host: list[Stream] = []
    for i, route in enumerate(best.routes):
        # The host copy uses two of the last colors: one inward, one outward.
        color = best.given.get(i, wafer.colors - HOST_COLORS + int(route.producer != HOST))
        (host if route.is_host else inner).extend(_streams_of(route, color, room))
    by_name = {stage.name: stage for stage in stages}
    inner = [with_way(stream, by_name, pace_cycles, wafer) for stream in inner]
    return Routed(
        tuple(inner), tuple(host), best.router.loads.astype(np.float32), best.colors, best.shares_ends
    )


def _attempt(
    sizer: Sizer,
    stages: tuple[Stage, ...],
    pace_cycles: float,
    fraction: float,
    limit: int,
    loads: NDArray[np.float64],
) -> _Attempt:
    """Route and color all nets with streams that use `fraction` of a link's rate; their bytes are added to
    `loads`.
    """
    wafer = sizer.wafer
    count = len(sizer.groups)
    copies: list[list[_Route]] = []
    fed: set[Point] = set()
    for replica in range(sizer.replicas):
        own = stages[replica * count : (replica + 1) * count]
        copies.append(_routes(sizer, own, pace_cycles, fraction, fed))
    routes = [route for copy in copies for route in copy]
    router = Router(loads, pace_cycles * wafer.link_bytes_per_cycle / wafer.wavelet_cycles)
    router.route([route.net for route in routes])
    ours = {id(route) for copy in copies for route in _meeting(copy, wafer)}
    colored = [i for i, route in enumerate(routes) if not route.is_host or id(route) in ours]
    nets = [routes[i].net for i in colored]
    given, used = assign_colors(router, nets, limit)
    shares = used > limit
    if shares:
        given, used = assign_colors(router, nets, limit, whole_ends=False)
    return _Attempt(routes, router, dict(zip(colored, given, strict=True)), used, shares)


def _meeting(routes: Sequence[_Route], wafer: Wafer) -> list[_Route]:
    """Return the host streams of one replica that share a router with an earlier one of the same direction.

    The host copy has one color per direction, and a router passes a color on one route. So the later streams
    use colors of the streams between kernels.
    """
    out = []
    for inward in (True, False):
        same = [route for route in routes if route.is_host and (route.producer == HOST) is inward]
        meets = conflicts([route.net for route in same], wafer.rows, wafer.cols)
        keeping: set[int] = set()
        for i, route in enumerate(same):
            if keeping.isdisjoint(meets[i]):
                keeping.add(i)
            else:
                out.append(route)
    return out


def _too_many_colors(sizer: Sizer, attempt: _Attempt, limit: int, mode: str) -> Infeasible:
    """Return the answer for streams that need more colors than a router has, with the most crowded router."""
    for route in attempt.routes:
        if route.is_host:
            attempt.router.add(route.net, -1)
    crowd = attempt.router.crowd
    row, col = (int(v) for v in np.unravel_index(int(crowd.argmax()), crowd.shape))
    return Infeasible(
        mode=mode,
        model=sizer.graph.name,
        binding="colors",
        need=float(attempt.colors),
        limit=float(limit),
        unit="colors",
        where=f"the streams around the router in row {row}, column {col}",
        remedy="place with another placer or fewer replicas, or use weight streaming",
    )


def _streams_of(route: _Route, color: int, room: Mapping[tuple[str, str], int]) -> list[Stream]:
    """Return one stream per consumer of a route."""
    net = route.net
    out = []
    for consumer, sink in route.consumers:
        path = net.path(sink)
        out.append(
            Stream(
                tensor=route.tensor,
                producer=route.producer,
                consumer=consumer,
                bytes_per_sample=net.bytes_per_sample,
                backward_bytes_per_sample=net.bytes_per_sample if net.with_gradients else 0.0,
                route=path,
                hops=hops_of(path),
                width=net.width,
                color=color,
                # What the host sends or receives waits on the host.
                capacity_samples=room.get((plain_name(route.producer), plain_name(consumer)), 2),
            )
        )
    return out


def with_way(stream: Stream, stages: Mapping[str, Stage], pace_cycles: float, wafer: Wafer) -> Stream:
    """Return the stream with room for its samples in flight, ``ceil((fill + travel) / T)`` of them.

    These samples are in the producer's rectangle and in the queues of routers, not in the reader's SRAM, so
    their number is limited by what those hold: w links pass w words per cycle while the rectangle fills, and
    hold 2 w h words on a route of h cycles. Without this room, the two samples of buffer space would throttle
    models that keep the pace of their slowest region on the whole fabric.
    """
    fill = stages[stream.producer].latency_cycles
    if stream.backward_bytes_per_sample:
        fill = min(fill, stages[stream.consumer].latency_cycles)
    travel = stream.travel_cycles(wafer)
    held = (
        stream.width
        * (fill / wafer.wavelet_cycles + 2 * travel)
        * BYTES_PER_WAVELET
        / stream.bytes_per_sample
    )
    on_way = int(min(ceil((fill + travel) / pace_cycles), held))
    room = stream.capacity_samples - stream.on_way_samples + on_way
    return replace(stream, capacity_samples=room, on_way_samples=on_way)


def copy_name(name: str, replica: int) -> str:
    """Return the name of a stage in a replica; in the first replica it is the kernel's name."""
    return f"{name}@{replica}" if replica else name


def plain_name(name: str) -> str:
    """Return the name of a stage without the number of its replica."""
    head, mark, tail = name.rpartition("@")
    return head if mark and tail.isdigit() else name


def _routes(
    sizer: Sizer, stages: Sequence[Stage], pace_cycles: float, fraction: float, fed: set[Point]
) -> list[_Route]:
    """Return the nets of one replica: those between stages in dataflow order, then those from and to the
    host.
    """
    graph, wafer = sizer.graph, sizer.wafer
    by_group = {group.name: stage for group, stage in zip(sizer.groups, stages, strict=True)}
    lays = {group.name: group.lay for group in sizer.groups}
    out = []
    for (producer, tensor), consumers in readers_of(graph, sizer.groups).items():
        size = float(graph.tensors[tensor].bytes)
        regions = [by_group[producer].region, *(by_group[c].region for c in consumers)]
        over = [lays[producer].gives_over, *(lays[c].takes_over for c in consumers)]
        links = links_needed(size, pace_cycles, wafer.link_bytes_per_cycle, fraction)
        links = _limited(links, [lays[producer], *(lays[c] for c in consumers)])
        gradients = comes_back(graph, tensor)
        net = Net(
            tensor,
            middle(regions[0]),
            tuple(middle(region) for region in regions[1:]),
            size,
            bundle_width(regions, links, over),
            gradients,
            {middle(region): region for region in regions},
        )
        ends_at = tuple((by_group[c].name, middle(by_group[c].region)) for c in consumers)
        out.append(_Route(net, tensor, by_group[producer].name, ends_at))
    return out + _host_routes(sizer, by_group, pace_cycles, fraction, fed)


def _limited(links: int, lays: Sequence[Lay]) -> int:
    """Return the number of parallel links that the kernels at all ends can use, at most `links`."""
    return min(links, *(lay.most_links or links for lay in lays))


def _host_routes(
    sizer: Sizer, by_group: dict[str, Stage], pace_cycles: float, fraction: float, fed: set[Point]
) -> list[_Route]:
    """Return the nets of input tensors from the edge to their readers, and of results that no kernel reads to
    the edge.

    Every reader of an input has a separate I/O channel while the edge has free ones; channels that feed a
    reader are added to `fed`.
    """
    graph, wafer = sizer.graph, sizer.wafer
    read = {name for kernel in graph.kernels for name in kernel.inputs}
    rows, cols = wafer.program_rows, wafer.cols
    out = []
    for group in sizer.groups:
        stage = by_group[group.name]
        here = middle(stage.region)
        inputs = [n for n in dict.fromkeys(group.forward.inputs) if graph.tensors[n].kind is TensorKind.INPUT]
        results = [n for n in group.forward.outputs if n not in read and graph.tensors[n].per_sample]
        for tensor in (*inputs, *results):
            size = float(graph.tensors[tensor].bytes)
            links = links_needed(size, pace_cycles, wafer.link_bytes_per_cycle, fraction)
            links = _limited(links, [group.lay])
            is_result = tensor in results
            over = group.lay.gives_over if is_result else group.lay.takes_over
            width = bundle_width([stage.region], links, [over])
            edge = edge_channel(
                here, rows, cols, wafer.io_channels_per_edge, frozenset() if is_result else fed
            )
            net = Net(tensor, edge, (here,), size, width, False, {here: stage.region})
            if is_result:
                net.source, net.sinks = here, (edge,)
            else:
                fed.add(edge)
            ends = ((HOST, edge),) if is_result else ((stage.name, here),)
            out.append(_Route(net, tensor, stage.name if is_result else HOST, ends))
    return out


def _add_inner_loads(
    graph: KernelGraph, sizer: Sizer, stages: Sequence[Stage], loads: NDArray[np.float64]
) -> None:
    """Add the traffic of the kernels inside their regions to `loads`.

    Products multicast operands along one axis and add up fp32 sums along the other. Other kernels distribute
    operands and collect results along one axis: the link at fraction x of a line carries ``in (1 - x) + out
    x``, at most the larger of the two.
    """
    passes = 2.0 if graph.training else 1.0  # gradients cross a region as activations do
    for group, stage in zip(sizer.copies, stages, strict=True):
        kernel = group.forward
        size_in = sum(graph.tensors[name].bytes for name in kernel.inputs if graph.tensors[name].per_sample)
        if family(kernel.family).flow(kernel.dims, kernel.attrs).sums_on_links:
            sums = sum(graph.tensors[name].elements * SUM_BYTES for name in kernel.outputs)
        else:
            size_in, sums = max(size_in, sum(graph.tensors[name].bytes for name in kernel.outputs)), 0
        add_region_load(loads, stage.region, passes * size_in, passes * sums)
