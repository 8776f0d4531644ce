"""The trees of streams: a tensor from its outlet to all of its inlets, on a color that lies free.

Words fork in the routers, so a tensor crosses a link once however many read it.  A tree keeps to the plan's color
where that is free on some way, and takes another one of the streams' colors where it is not.
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


@dataclass(frozen=True)
class Way:
    """The cells from a source to all sinks on one color: `parents` of all cells but the source."""

    color: int
    source: Cell
    sinks: tuple[Cell, ...]
    parents: dict[Cell, Cell]

    def ports(self, cell: Cell) -> str:
        """Ports by which a router sends on."""
        onward = "".join(direction(cell, child) for child, parent in self.parents.items() if parent == cell)
        return onward + ("R" if cell in self.sinks else "")

    def hops(self, sink: Cell) -> int:
        """Links from the outlet to a sink."""
        count = 0
        while sink != self.source:
            sink, count = self.parents[sink], count + 1
        return count


@dataclass(frozen=True)
class Tree(Way):
    """The way of one tensor, or of one of its `bundles`; `host` is the cell at the edge at which it ends, if it does."""

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
    """The tree of a tensor of `words` a sample, its cells and `senders` taken, on the first of `colors` that has room.

    It goes around the cells of `beside` where it can, and around links that cannot carry its words as well.

    Raises
    ------
    ModelError
        If none has.
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
    raise ModelError(
        f"tensor '{streams[0].tensor}' has no free route from '{streams[0].producer}' to {ends} on any of {len(colors)} colors; use "
        "another placer or a larger wafer"
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
    """The way on the first of `colors` that has room, its cells and `senders` taken; None if none has."""
    for color in colors:
        parents = _parents(grid, color, source, sinks, set(senders[1:]), cost, words)
        if parents is not None:
            grid.take(color, [source, *senders, *parents])
            links = {(parent, cell) for cell, parent in parents.items()}
            grid.links |= links
            grid.words |= {link: grid.words.get(link, 0.0) + words for link in links}
            return Way(color, source, tuple(sinks), parents)
    return None


def cheapest_way(
    grid: Grid,
    source: Cell,
    sink: Cell,
    senders: Sequence[Cell],
    cost: Callable[[Cell], float],
    colors: Sequence[int],
) -> Way | None:
    """The way on that color on which it costs least, the first of those; its cells and `senders` taken.  None if none has room.

    The first color with any way may make a long detour, over links that others fill.
    """
    least, best = math.inf, None
    free = _parents(grid.without_colors(), 0, source, [sink], set(senders[1:]), cost)
    bound = _cost_of(grid, free, cost)
    for color in colors:
        parents = _parents(grid, color, source, [sink], set(senders[1:]), cost)
        if parents is not None and (found := _cost_of(grid, parents, cost)) < least:
            least, best = found, color
        if least <= bound:
            break
    return None if best is None else found_way(grid, source, [sink], senders, cost, [best])


def _cost_of(grid: Grid, parents: Mapping[Cell, Cell] | None, cost: Callable[[Cell], float]) -> float:
    """Of all cells of a way; of none, nothing."""
    links = ((parent, cell) for cell, parent in (parents or {}).items())
    return sum(cost(cell) + SHARED * ((parent, cell) in grid.links) for parent, cell in links)


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
    """Cell before every cell of a tree that avoids closed and taken cells; None if there is none."""
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
