"""Color assignment of streams: nets whose trees share a router need different colors.

Symbols: K colors of a router (24). The host copy uses 3 of them, and the kernels use 3 for each direction in
which data crosses a region (one for operands, two for sums, which alternate by parity). The streams use the
rest. A net with gradients needs two consecutive colors, one per direction.

1. The graph coloring tries several greedy orders and keeps the best. A net occupies its color in its complete
end regions, because the kernel decides where in a region it starts and ends.

2. Nets that have no color are rerouted, the longest first. For every color, the route avoids the routers
where other nets use that color.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.nets import Net, routers_of
from wse_sim.compiler.routing import Router
from wse_sim.compiler.routing_kernels import meeting_pairs

HOST_COLORS = 3  # routable colors that the host copy uses (vendor documentation)
KERNEL_COLORS = 3  # per direction, as in programs of triggered products: one for operands, two for sums
FAR = (-0.5, -0.25, -0.1, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.1, 1.25, 1.5)
"""Positions of the middle leg of a Z, as fractions of the distance between its ends, for nets that are
rerouted.
"""


def colors_for_streams(colors: int, training: bool) -> int:
    """Return the number of a router's colors that are left for streams between kernels."""
    return max(0, colors - HOST_COLORS - KERNEL_COLORS * (2 if training else 1))


class Meeting:
    """The pairs of nets that share a router: item i lists the positions of the nets that meet net i.

    Nets before net i come first in its list.
    """

    def __init__(self, near: list[list[int]]) -> None:
        self._near = near

    def __len__(self) -> int:
        return len(self._near)

    def __getitem__(self, net: int) -> list[int]:
        return self._near[net]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Pairs of nets that share a router, each pair once."""
        return [(i, j) for i, others in enumerate(self._near) for j in others if i < j]


def conflicts(nets: Sequence[Net], rows: int, cols: int, *, whole_ends: bool = True) -> Meeting:
    """Return which nets occupy a color in a common router: on their trees and, with `whole_ends`, in their
    end regions.
    """
    owner, boxes = [], []
    for i, net in enumerate(nets):
        held = _boxes(net, rows, cols, whole_ends=whole_ends)
        owner += [i] * len(held)
        boxes += held
    met = np.zeros((len(nets), len(nets)), np.bool_)
    after: list[list[int]] = [[] for _ in nets]
    if boxes:
        for net_of, other in meeting_pairs(np.array(boxes), np.array(owner), met).tolist():
            after[net_of].append(other)
    return Meeting([np.flatnonzero(met[:, i]).tolist() + after[i] for i in range(len(nets))])


def _boxes(net: Net, rows: int, cols: int, *, whole_ends: bool = True) -> list[tuple[int, int, int, int]]:
    """Return the routers in which a net occupies its color, as half-open ranges (row0, row1, col0, col1).

    These are the routers of its tree and, with `whole_ends`, those of its end regions.
    """
    legs = net.legs() or [(net.source, net.source)]
    held = [routers_of(start, end, net.width, rows, cols) for start, end in legs]
    ends = net.ends.values() if whole_ends else ()
    return held + [(r.row, r.row + r.rows, r.col, r.col + r.cols) for r in ends]


def assign_colors(
    router: Router, nets: Sequence[Net], limit: int, *, whole_ends: bool = True
) -> tuple[list[int], int]:
    """Assign colors to nets so that nets that share a router have different colors.

    All nets get the same number of colors, so that the color pairs of different nets never overlap. Nets that
    find no color below `limit` are rerouted, which changes their trees and the loads of `router`. They keep a
    color above the limit if that fails. Without `whole_ends`, nets occupy colors on their trees only. Returns
    the first color of every net and the number of colors used.
    """
    per_net = 2 if any(net.with_gradients for net in nets) else 1
    found = _greedy(conflicts(nets, router.rows, router.cols, whole_ends=whole_ends))
    most = limit // per_net
    late = [i for i in range(len(nets)) if found[i] >= most]
    if late and most:
        _reroute(router, nets, found, late, most, whole_ends=whole_ends)
    used = (max(found.values(), default=-1) + 1) * per_net
    return [found[i] * per_net for i in range(len(nets))], used


class Neighbours(Protocol):
    """A graph of the nodes 0 to n - 1, as a sequence of the neighbours of each node."""

    def __len__(self) -> int: ...
    def __getitem__(self, node: int) -> Iterable[int]: ...


def saturation_first(graph: Neighbours, colors: Mapping[int, int]) -> Iterator[int]:
    """Yield the nodes in the order of DSATUR.

    The next node is the one whose neighbours have the most different colors, then the one with the most
    neighbours, then the first. The caller adds each node's color to `colors` before it takes the next node.
    """
    count = len(graph)
    degrees = np.array([len([*graph[node]]) for node in range(count)], np.int64)
    rank = degrees.copy()  # grows by `count` with each color, so that colors outweigh neighbours
    near: list[set[int]] = [set() for _ in range(count)]
    for _ in range(count):
        node = int(rank.argmax())
        yield node
        rank[node] = -1
        color = colors[node]
        for other in graph[node]:
            if color not in near[other] and rank[other] >= 0:
                near[other].add(color)
                rank[other] += count


def largest_first(graph: Neighbours, colors: Mapping[int, int]) -> Iterator[int]:
    """Yield the nodes with the most neighbours first; equal ones in ascending order."""
    degrees = [len([*graph[node]]) for node in range(len(graph))]
    yield from sorted(range(len(graph)), key=lambda node: -degrees[node])


def smallest_last(graph: Neighbours, colors: Mapping[int, int]) -> Iterator[int]:
    """Yield the nodes in smallest-last order.

    The last node is one with the fewest neighbours; the one before it has the fewest neighbours among the
    others, and so on. Ties are broken in the order of ``set.pop``, as in networkx, because results of plans
    depend on it.
    """
    left = [len([*graph[node]]) for node in range(len(graph))]
    by_left: dict[int, set[int]] = {}
    for node, degree in enumerate(left):
        by_left.setdefault(degree, set()).add(node)
    order: list[int] = []
    least = min(left, default=0)
    for _ in left:
        while least not in by_left:
            least += 1
        node = _taken(by_left, least)
        order.append(node)
        left[node] = -1
        for other in graph[node]:
            if (degree := left[other]) < 0:
                continue
            _taken(by_left, degree, other)
            by_left.setdefault(degree - 1, set()).add(other)
            left[other] = degree - 1
        least -= 1
    yield from reversed(order)


def _taken(sets: dict[int, set[int]], key: int, item: int | None = None) -> int:
    """Remove an item from ``sets[key]`` and return it: `item`, or any one. A set that becomes empty is
    deleted.
    """
    found = sets[key]
    if item is None:
        item = found.pop()
    else:
        found.remove(item)
    if not found:
        del sets[key]
    return item


STRATEGIES = (saturation_first, largest_first, smallest_last)


def _greedy(graph: Neighbours) -> dict[int, int]:
    """Return the greedy coloring with the fewest colors over all strategies."""
    best: dict[int, int] = {}
    for strategy in STRATEGIES:
        found: dict[int, int] = {}
        for node in strategy(graph, found):
            taken = {found[other] for other in graph[node] if other in found}
            found[node] = next(color for color in itertools.count() if color not in taken)
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
    """Reroute the nets in `late`, the longest first, to give each one of the first `most` colors.

    A net that finds no free route in any color keeps its route and its color.
    """
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
    """Mark the routers in which a net occupies its color as taken."""
    rows, cols = taken.shape
    for r0, r1, c0, c1 in _boxes(net, rows, cols, whole_ends=whole_ends):
        taken[r0:r1, c0:c1] = True
