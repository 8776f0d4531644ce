"""Multicast trees of streams: routes of a tensor from its outlet to all of its inlets, on a free color.

Routers fork words, so a tensor crosses a link once, however many regions read it. A tree uses the plan's
color if some route on it is free, and another stream color otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from wse_sim.compiler.plan import Region, Stream
from wse_sim.errors import ModelError
from wse_sim.whole.paths import COMPUTE, OFF_PLAN, SHARED, Cell, Grid, direction


class NoRouteError(ModelError):
    """No color has a free route for `tensor`."""

    def __init__(self, tensor: str, message: str) -> None:
        super().__init__(message)
        self.tensor = tensor


@dataclass(frozen=True)
class Way:
    """Routes from a source to all sinks on one color; `parents` maps every cell but the source to the cell
    before it."""

    color: int
    source: Cell
    sinks: tuple[Cell, ...]
    parents: dict[Cell, Cell]

    def ports(self, cell: Cell) -> str:
        """Return the output ports of a router."""
        onward = "".join(direction(cell, child) for child, parent in self.parents.items() if parent == cell)
        return onward + ("R" if cell in self.sinks else "")

    def hops(self, sink: Cell) -> int:
        """Return the links from the source to a sink."""
        count = 0
        while sink != self.source:
            sink, count = self.parents[sink], count + 1
        return count


@dataclass(frozen=True)
class Tree(Way):
    """The tree of one tensor, or of one of its `bundles`; `host` is the edge cell at which it leaves to the
    host, if it does."""

    tensor: str
    producer: str
    streams: tuple[Stream, ...]
    bundle: int = 0
    bundles: int = 1
    host: Cell | None = None


def grown(
    grid: Grid,
    streams: Sequence[Stream],
    source: Cell,
    sinks: Sequence[Cell],
    senders: Sequence[Cell],
    regions: Sequence[Region],
    colors: Sequence[int],
    beside: Set[Cell] = frozenset(),
    words: float = 0.0,
) -> Tree:
    """Route a tensor of `words` per sample on the first of `colors` with a free route, and mark its cells and
    `senders` as taken.

    The route avoids the cells of `beside` and links that lack capacity for its words where it can.

    Raises
    ------
    NoRouteError
        If no color has a free route.
    """
    planned = set().union(*(grid.planned(stream) for stream in streams))
    cost = way_cost(planned, regions)

    def around(cell: Cell) -> float:
        return cost(cell) + SHARED * (cell in beside)

    way = found_way(grid, source, sinks, senders, around, colors, words)
    if way is not None:
        first = streams[0]
        return Tree(way.color, source, way.sinks, way.parents, first.tensor, first.producer, tuple(streams))
    ends = ", ".join(f"'{stream.consumer}'" for stream in streams)
    raise NoRouteError(
        streams[0].tensor,
        f"tensor '{streams[0].tensor}' has no free route from '{streams[0].producer}' to {ends} on any of {len(colors)} colors; use "
        "another placer or a larger wafer",
    )


def found_way(
    grid: Grid,
    source: Cell,
    sinks: Sequence[Cell],
    senders: Sequence[Cell],
    cost: Callable[[Cell], float],
    colors: Sequence[int],
    words: float = 0.0,
) -> Way | None:
    """Return a route on the first of `colors` that is free and whose links can carry the words, else the one with
    the fewest words beyond that; mark its cells and `senders` as taken. None if there is no free route."""
    least, best = math.inf, None
    for color in colors:
        parents = _parents(grid, color, source, sinks, set(senders[1:]), cost, words)
        if parents is None:
            continue
        beyond = _beyond(grid, parents, words)
        if beyond < least:
            least, best = beyond, (color, parents)
        if beyond == 0:
            break
    if best is None:
        return None
    color, parents = best
    grid.take(color, [source, *senders, *parents])
    links = {(parent, cell) for cell, parent in parents.items()}
    grid.links |= links
    grid.words |= {link: grid.words.get(link, 0.0) + words for link in links}
    return Way(color, source, tuple(sinks), parents)


def _beyond(grid: Grid, parents: Mapping[Cell, Cell], words: float) -> float:
    """Return the words per sample on the busiest link of a route beyond what a link carries at the pace."""
    loads = (grid.words.get((parent, cell), 0.0) + words for cell, parent in parents.items())
    return max(0.0, max(loads, default=0.0) - grid.limit)


def way_cost(planned: set[Cell], regions: Sequence[Region]) -> Callable[[Cell], float]:
    def cost(cell: Cell) -> float:
        for region in regions:
            if region.holds(*cell):
                moving = region.cols - region.compute_cores // region.rows
                return 1.0 if cell[1] < region.col + moving else COMPUTE
        return 1.0 if cell in planned else OFF_PLAN

    return cost


def _parents(
    grid: Grid,
    color: int,
    source: Cell,
    sinks: Sequence[Cell],
    closed: set[Cell],
    cost: Callable[[Cell], float],
    words: float = 0.0,
) -> dict[Cell, Cell] | None:
    """Return the predecessor of every cell in a tree that avoids closed and taken cells; None if there is no
    such tree."""
    taken = grid.taken(color) | closed
    if source in taken or not taken.isdisjoint(sinks) or not grid.taken(color).isdisjoint(closed):
        return None
    parents: dict[Cell, Cell] = {}
    for sink in sorted(set(sinks), key=lambda cell: abs(cell[0] - source[0]) + abs(cell[1] - source[1])):
        if sink == source or sink in parents:
            continue
        starts = {source, *parents}

        def weight(here: Cell, to: Cell, _: object) -> float | None:
            return None if to in taken else cost(to) + grid.sharing((here, to), words)

        try:
            _, path = nx.multi_source_dijkstra(grid.graph, starts, target=sink, weight=weight)
        except nx.NetworkXNoPath:
            return None
        parents |= {b: a for a, b in pairwise(path)}
    return parents
