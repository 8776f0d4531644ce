"""Color assignment of streams: nets whose trees share a router need different colors.

Symbols: K colors of a router (24), of which the host copy uses 3 and the kernels 3 for each direction in
which data runs through them (operands; sums, alternating by parity); the streams use the rest. A net with
gradients needs two consecutive colors, one per direction.

1. The graph coloring tries several greedy orders and keeps the best. A net occupies its color in its complete
end regions, because the kernel decides where in a region it starts and ends.

2. Nets left without a color are rerouted, the longest first: for every color, around the routers where other
nets use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.nets import Net, routers_of
from wse_sim.compiler.routing import Router

HOST_COLORS = 3  # of the routable colors, taken by host copy (vendor documentation)
KERNEL_COLORS = 3  # each way: as the programs of triggered products, operands and two for sums
FAR = (-0.5, -0.25, -0.1, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.1, 1.25, 1.5)
"""Positions of the middle leg of a Z when a net looks for a route on its color."""


def colors_for_streams(colors: int, training: bool) -> int:
    """Colors of a router that are left for streams between kernels."""
    return max(0, colors - HOST_COLORS - KERNEL_COLORS * (2 if training else 1))


def conflicts(nets: Sequence[Net], rows: int, cols: int, *, whole_ends: bool = True) -> nx.Graph:
    """Return the conflict graph of the nets (by position): an edge means that two of them use the same router."""
    owner, boxes = [], []
    for i, net in enumerate(nets):
        held = _boxes(net, rows, cols, whole_ends=whole_ends)
        owner += [i] * len(held)
        boxes += held
    graph: nx.Graph = nx.Graph()
    graph.add_nodes_from(range(len(nets)))
    if not boxes:
        return graph
    box, own = np.array(boxes), np.array(owner)
    for i in range(len(boxes)):
        r0, r1, c0, c1 = boxes[i]
        later = box[i + 1 :]
        meet = (later[:, 0] < r1) & (r0 < later[:, 1]) & (later[:, 2] < c1) & (c0 < later[:, 3])
        graph.add_edges_from((owner[i], int(j)) for j in own[i + 1 :][meet] if int(j) != owner[i])
    return graph


def _boxes(net: Net, rows: int, cols: int, *, whole_ends: bool = True) -> list[tuple[int, int, int, int]]:
    """Return the routers (row0, row1, col0, col1), half-open, at which a net occupies its color: those of its
    tree and its end regions."""
    legs = net.legs() or [(net.source, net.source)]
    held = [routers_of(start, end, net.width, rows, cols) for start, end in legs]
    ends = net.ends.values() if whole_ends else ()
    return held + [(r.row, r.row + r.rows, r.col, r.col + r.cols) for r in ends]


def assign_colors(
    router: Router, nets: Sequence[Net], limit: int, *, whole_ends: bool = True
) -> tuple[list[int], int]:
    """Return the first color of every net and the number of colors; nets that share a router get different
    colors.

    All nets get equally many colors, so that the pairs of different nets never overlap. Nets that find none
    below `limit` are rerouted, and keep a color above it if that fails. Without `whole_ends`, only the trees
    occupy colors.
    """
    per_net = 2 if any(net.with_gradients for net in nets) else 1
    found = _greedy(conflicts(nets, router.rows, router.cols, whole_ends=whole_ends))
    most = limit // per_net
    late = [i for i in range(len(nets)) if found[i] >= most]
    if late and most:
        _reroute(router, nets, found, late, most, whole_ends=whole_ends)
    used = (max(found.values(), default=-1) + 1) * per_net
    return [found[i] * per_net for i in range(len(nets))], used


def saturation_first(graph: nx.Graph, colors: Mapping[int, int]) -> Iterator[int]:
    """Nodes 0 to n - 1 in the order of DSATUR: next the one whose neighbours have most colors, then most neighbours, then the first.

    As networkx's own strategy, which looks at all edges again for every node.  `colors` grows between two nodes.
    """
    count = len(graph)
    degrees = np.array([graph.degree(node) for node in range(count)], np.int64)
    rank = degrees.copy()  # neighbours' colors before neighbours
    near: list[set[int]] = [set() for _ in range(count)]
    for _ in range(count):
        node = int(rank.argmax())
        yield node
        rank[node] = -1
        color = colors[node]
        for other in graph[node]:
            if rank[other] >= 0 and color not in near[other]:
                near[other].add(color)
                rank[other] += count


STRATEGIES = (saturation_first, "largest_first", "smallest_last")


def _greedy(graph: nx.Graph) -> dict[int, int]:
    """The coloring with fewest colors of several greedy ones."""
    best: dict[int, int] = {}
    for strategy in STRATEGIES:
        found = nx.greedy_color(graph, strategy=strategy)  # type: ignore[call-overload]
        if not best or max(found.values(), default=0) < max(best.values(), default=0):
            best = found
    return best


def _reroute(
    router: Router,
    nets: Sequence[Net],
    found: dict[int, int],
    late: Sequence[int],
    most: int,
    *,
    whole_ends: bool,
) -> None:
    """Reroute the nets in `late` so that each gets one of the first `most` colors, if any route is free."""
    taken = np.zeros((most, router.rows, router.cols), bool)
    waiting = set(late)
    for i, net in enumerate(nets):
        if i not in waiting:
            _paint(taken[found[i]], net, whole_ends=whole_ends)
    for i in sorted(late, key=lambda i: (-nets[i].length(), i)):
        net = nets[i]
        before = dict(net.parents)
        router.add(net, -1)
        best: tuple[float, int] = (np.inf, -1)
        for color in range(most):
            cost = router.grow(net, taken[color], FAR)
            if cost < best[0]:
                best, tree = (cost, color), dict(net.parents)
        net.parents = before if best[1] < 0 else tree
        router.add(net)
        if best[1] >= 0:
            found[i] = best[1]
            _paint(taken[best[1]], net, whole_ends=whole_ends)


def _paint(taken: NDArray[np.bool_], net: Net, *, whole_ends: bool) -> None:
    rows, cols = taken.shape
    for r0, r1, c0, c1 in _boxes(net, rows, cols, whole_ends=whole_ends):
        taken[r0:r1, c0:c1] = True
