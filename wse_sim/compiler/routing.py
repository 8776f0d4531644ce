"""Routes of nets on the fabric: rectilinear multicast trees and the loads of all links.

Every consumer joins the tree of its net at the nearest points, by an L or a Z, whichever costs least::

    cost of a leg = sum over its links of 1 + CONGESTION u^2 + OVERLOAD max(0, u - 1) + CROWD (n / 8)^2

u load of the fullest of the w links over what a link carries at the pace, n nets at the router.

* Nets are taken out and routed again at the loads of all others, a few rounds; the best round is kept.
* A tensor with several consumers crosses a shared link once.  Gradients run back along the tree on the
  opposite links and are summed where branches join, so they cross a shared link once as well.
* Inside the regions at its ends a stream loads no links: :func:`add_region_load` has that traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.nets import EAST, SOUTH, WEST, Net, Point, links_of, routers_of
from wse_sim.compiler.plan import Region

CONGESTION = 40.0
OVERLOAD = 2000.0
CROWD = 0.5
ROUNDS = 3
DETOURS = (0.25, 0.5, 0.75)  # where the middle leg of a Z lies between its ends
NEAR_POINTS = 3  # of the tree, from which ways to a consumer are tried


def add_region_load(loads: NDArray[np.float64], region: Region, bytes_in: float, bytes_out: float) -> None:
    """Traffic inside a region: operands run along one axis, fp32 partial sums along the other.

    Every line of the first axis carries its fraction of `bytes_in`, every line of the other its fraction of
    `bytes_out`; the kernel lies so that the busier link carries less, as its cost assumes.
    """
    view = loads[region.row : region.row + region.rows, region.col : region.col + region.cols]
    upright = max(bytes_in / region.rows, bytes_out / region.cols)
    turned = max(bytes_in / region.cols, bytes_out / region.rows)
    east, south = (bytes_in, bytes_out) if upright <= turned else (bytes_out, bytes_in)
    view[:, : max(0, region.cols - 1), EAST] += east / region.rows
    view[: max(0, region.rows - 1), :, SOUTH] += south / region.cols


class Router:
    """Routes nets on a fabric of rows x cols; `loads` (rows, cols, 4) are bytes per sample, kernels' own included."""

    def __init__(self, loads: NDArray[np.float64], capacity_bytes: float) -> None:
        self.loads = loads
        self.capacity = max(capacity_bytes, 1e-9)
        self.rows, self.cols = loads.shape[:2]
        self.crowd = np.zeros((self.rows, self.cols), np.int32)

    @property
    def use(self) -> float:
        """Load of the fullest link over what it carries at the pace."""
        return float(self.loads.max()) / self.capacity

    def route(self, nets: Sequence[Net]) -> None:
        """Give every net its tree, and the links their loads."""
        for net in nets:
            self.grow(net)
            self.add(net)
        best = (self._quality(), [dict(net.parents) for net in nets])
        for _ in range(ROUNDS):
            for net in nets:
                self.add(net, -1)
                self.grow(net)
                self.add(net)
            quality = self._quality()
            if quality < best[0]:
                best = (quality, [dict(net.parents) for net in nets])
            elif quality[0] == 0.0:
                break
        for net, parents in zip(nets, best[1], strict=True):
            self.add(net, -1)
            net.parents = parents
            self.add(net)

    def add(self, net: Net, sign: int = 1) -> None:
        """Add a net's bytes to the links of its tree, or take them away."""
        for start, end in net.legs():
            for a, b in ((start, end), (end, start))[: 2 if net.with_gradients else 1]:
                r0, r1, c0, c1, direction = links_of(a, b, net.width, self.rows, self.cols)
                links = (r1 - r0) if direction in (EAST, WEST) else (c1 - c0)
                load = sign * net.bytes_per_sample / links
                self.loads[r0:r1, c0:c1, direction] += load
                for region in net.ends.values():
                    self.loads[_overlap((r0, r1, c0, c1), region)][..., direction] -= load
            r0, r1, c0, c1 = routers_of(start, end, net.width, self.rows, self.cols)
            self.crowd[r0:r1, c0:c1] += sign

    def grow(
        self, net: Net, closed: NDArray[np.bool_] | None = None, reach: Sequence[float] = DETOURS
    ) -> float:
        """Build the tree, the nearest sink first, each joined where it is cheapest; return what it costs.

        Parameters
        ----------
        closed
            Routers (rows, cols) that the tree may not touch.  If a sink cannot be reached the cost is
            infinite and the tree incomplete.
        reach
            Where the middle legs of Zs lie, in fractions of the way between their ends.
        """
        total = self._grow(net, closed, reach)
        if total == np.inf and closed is None:
            net.narrow()
            total = self._grow(net, closed, reach)
        return total

    def _grow(self, net: Net, closed: NDArray[np.bool_] | None, reach: Sequence[float]) -> float:
        net.parents = {net.source: None}
        if closed is not None and self._touches(closed, net.source, net.source, net.width):
            return np.inf
        total = 0.0
        for sink in sorted(dict.fromkeys(net.sinks), key=lambda p: (_distance(p, net.source), p)):
            if sink in net.parents:
                continue
            best: tuple[float, int, list[Point]] | None = None
            for number, way in enumerate(self._ways(net, sink, reach)):
                bound = best[0] if best is not None else np.inf
                cost = self._way_cost(way, net, closed, bound)
                if cost < bound:
                    best = (cost, number, way)
            if best is None:
                return np.inf
            total += best[0]
            net.attach(best[2])
        return total

    def _quality(self) -> tuple[float, float, float]:
        """Overload of all links, fullest link in hundredths, most nets at a router: less is better."""
        over = 0.0
        if self.loads.max() > self.capacity:
            above = self.loads - self.capacity
            over = float(np.maximum(above, 0.0, out=above).sum()) / self.capacity
        return round(over, 6), max(float(np.ceil(100 * self.use)), 25.0), float(self.crowd.max())

    def _ways(self, net: Net, sink: Point, reach: Sequence[float]) -> Iterable[list[Point]]:
        """Ways from the nearest points of the tree to a sink that its bundle can take: Ls, Zs, Us."""
        points, gap = {net.source}, net.width + 1
        for end, start in net.parents.items():
            if start is not None:
                rows, cols = sorted((start[0], end[0])), sorted((start[1], end[1]))
                points.add((min(max(sink[0], rows[0]), rows[1]), min(max(sink[1], cols[0]), cols[1])))
        for r, c in sorted(points, key=lambda p: (_distance(p, sink), p))[:NEAR_POINTS]:
            ways = [[(r, c), (r, sink[1]), sink], [(r, c), (sink[0], c), sink]]
            for row in _between(r, sink[0], abs(c - sink[1]), reach, gap, self.rows):
                ways.append([(r, c), (row, c), (row, sink[1]), sink])
            for col in _between(c, sink[1], abs(r - sink[0]), reach, gap, self.cols):
                ways.append([(r, c), (r, col), (sink[0], col), sink])
            for way in ways:
                corners = list(dict.fromkeys(way))
                if net.passes(corners):
                    yield corners

    def _way_cost(
        self, way: Sequence[Point], net: Net, closed: NDArray[np.bool_] | None, bound: float
    ) -> float:
        """Sum over the legs; infinite if it is not below `bound` or the way is closed."""
        total = 0.0
        for a, b in pairwise(way):
            if closed is not None and self._touches(closed, a, b, net.width):
                return np.inf
            total += self._cost(a, b, net)
            if total >= bound:
                return np.inf
        return total

    def _touches(self, closed: NDArray[np.bool_], start: Point, end: Point, width: int) -> bool:
        r0, r1, c0, c1 = routers_of(start, end, width, self.rows, self.cols)
        return bool(closed[r0:r1, c0:c1].any())

    def _cost(self, start: Point, end: Point, net: Net) -> float:
        r0, r1, c0, c1, direction = links_of(start, end, net.width, self.rows, self.cols)
        across = 0 if direction in (EAST, WEST) else 1
        fullest = self.loads[r0:r1, c0:c1, direction].max(axis=across)
        own = net.bytes_per_sample / max(1, (r1 - r0, c1 - c0)[across])
        use = (fullest + own) / self.capacity
        crowd = self.crowd[r0:r1, c0:c1].max(axis=across) / 8.0
        over = np.maximum(use - 1.0, 0.0)
        return float(use.size + CONGESTION * (use @ use) + OVERLOAD * over.sum() + CROWD * (crowd @ crowd))


def _overlap(box: tuple[int, int, int, int], region: Region) -> tuple[slice, slice]:
    """Rows and columns that a box of cores shares with a region."""
    r0, r1 = max(box[0], region.row), min(box[1], region.row + region.rows)
    c0, c1 = max(box[2], region.col), min(box[3], region.col + region.cols)
    return slice(r0, max(r0, r1)), slice(c0, max(c0, c1))


def _distance(a: Point, b: Point) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _between(start: int, end: int, across: int, reach: Sequence[float], gap: int, size: int) -> list[int]:
    """Lines for the middle leg of a way: between its ends, and just behind the start on the far side.

    Ends in one line are gone around, by fractions of the length `across`.
    """
    if start != end:
        lines = [round(start + fraction * (end - start)) for fraction in reach]
    else:
        lines = [start + sign * round(fraction * across) for fraction in reach for sign in (-1, 1)]
    if start <= end:
        lines.append(start - gap)
    if start >= end:
        lines.append(start + gap)
    return [line for line in dict.fromkeys(lines) if 0 <= line < size and line not in (start, end)]
