"""Routes of nets on the fabric: rectilinear multicast trees and the loads of all links.

Every consumer joins the tree of its net at one of the nearest points, by an L (one corner) or a Z (two
corners), whichever costs least::

    cost of a leg = sum over its links of 1 + CONGESTION u^2 + OVERLOAD max(0, u - 1) + CROWD (n / 8)^2

u is the load of the fullest of the w parallel links, divided by what a link carries at the pace; n is the
largest number of nets at one of their routers.

* Nets are removed and routed again at the loads of all others, in a few rounds; the best round is kept.
* A tensor with several consumers crosses a shared link once. Gradients return along the tree on the
  opposite links and are summed where branches join, so they cross a shared link once as well.
* Inside the regions at its ends a stream loads no links: :func:`add_region_load` adds that traffic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.nets import EAST, SOUTH, Net, Point
from wse_sim.compiler.plan import Region
from wse_sim.compiler.routing_kernels import add_legs, best_way, touches

ROUNDS = 3
DETOURS = (0.25, 0.5, 0.75)  # positions of the middle leg of a Z between its ends
NEAR_POINTS = 3  # points of the tree from which routes to a consumer are tried
OPEN = np.zeros((0, 0), np.bool_)  # no router is closed
NO_BOXES = np.zeros((0, 4), np.int64)


def add_region_load(loads: NDArray[np.float64], region: Region, bytes_in: float, bytes_out: float) -> None:
    """Add the traffic inside a region to `loads`: operands along one axis, fp32 partial sums along the other.

    Every line of the first axis carries its fraction of `bytes_in`, every line of the other its fraction of
    `bytes_out`. The kernel is oriented so that its busiest link carries less, as its cost assumes.
    """
    view = loads[region.row : region.row + region.rows, region.col : region.col + region.cols]
    upright = max(bytes_in / region.rows, bytes_out / region.cols)
    turned = max(bytes_in / region.cols, bytes_out / region.rows)
    east, south = (bytes_in, bytes_out) if upright <= turned else (bytes_out, bytes_in)
    view[:, : max(0, region.cols - 1), EAST] += east / region.rows
    view[: max(0, region.rows - 1), :, SOUTH] += south / region.cols


class Router:
    """Router of nets on a fabric of rows x cols.

    `loads` (rows, cols, 4) are the bytes per sample on each link, the traffic of kernels included.
    `capacity_bytes` are the bytes per sample that a link carries at the pace.
    """

    def __init__(self, loads: NDArray[np.float64], capacity_bytes: float) -> None:
        self.loads = loads
        self.capacity = max(capacity_bytes, 1e-9)
        self.rows, self.cols = loads.shape[:2]
        self.crowd = np.zeros((self.rows, self.cols), np.int32)
        # By net: the tree, end regions and legs whose bytes were added to the links last.
        self._laid: dict[int, tuple[object, NDArray[np.int64], NDArray[np.int64]]] = {}

    @property
    def use(self) -> float:
        """Load of the fullest link, as a fraction of its capacity at the pace."""
        return float(self.loads.max()) / self.capacity

    def route(self, nets: Sequence[Net]) -> None:
        """Route every net as a tree and add its bytes to the loads; the best of several rounds is kept."""
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
        """Add the bytes of a net to the links of its tree, or remove them if `sign` is -1."""
        parents, ends, legs = self._laid.get(id(net), (None, NO_BOXES, NO_BOXES))
        if parents != net.parents:  # a tree that grows again is often the same
            boxes = [(r.row, r.row + r.rows, r.col, r.col + r.cols) for r in net.ends.values()]
            ends = np.array(boxes, np.int64).reshape(-1, 4)
            legs = np.array(net.legs(), np.int64).reshape(-1, 4)
            self._laid[id(net)] = net.parents, ends, legs
        ways = 2 if net.with_gradients else 1
        add_legs(self.loads, self.crowd, legs, net.width, float(net.bytes_per_sample), ways, ends, sign)

    def grow(
        self, net: Net, closed: NDArray[np.bool_] | None = None, reach: Sequence[float] = DETOURS
    ) -> float:
        """Build the tree of a net and return its cost.

        The nearest sink is connected first; each sink joins the tree where that is cheapest. If the bundle is
        too wide for any route and no router is closed, its width is reduced.

        Parameters
        ----------
        closed
            Routers (rows, cols) that the tree may not touch. If a sink cannot be reached, the cost is infinite
            and the tree incomplete.
        reach
            Positions of the middle legs of Zs, as fractions of the distance between their ends.
        """
        total = self._grow(net, closed, reach)
        if total == np.inf and closed is None:
            net.narrow()
            total = self._grow(net, closed, reach)
        return total

    def _grow(self, net: Net, closed: NDArray[np.bool_] | None, reach: Sequence[float]) -> float:
        """Build the tree of a net at its present width and return its cost, infinite if a sink cannot be
        reached.
        """
        net.parents = {net.source: None}
        shut = OPEN if closed is None else closed
        if closed is not None and touches(closed, *net.source, net.width):
            return np.inf
        total = 0.0
        fractions = _fractions(tuple(reach))
        for sink in sorted(dict.fromkeys(net.sinks), key=lambda p: (_distance(p, net.source), p)):
            if sink in net.parents:
                continue
            points = self._near(net, sink)
            faces = np.array([_face(net, point) for point in (*points, sink)], np.int64)
            cost, corners, way = best_way(
                *(self.loads, self.crowd, shut, np.array(points, np.int64), faces, sink, fractions),
                *(net.width, float(net.bytes_per_sample), self.capacity),
            )
            if cost == np.inf:
                return np.inf
            total += cost
            net.attach([(row, col) for row, col in way[:corners].tolist()])
        return total

    def _near(self, net: Net, sink: Point) -> list[Point]:
        """Return the points of the tree that are nearest to a sink, at most `NEAR_POINTS` of them."""
        (row, col), (r, c) = sink, net.source
        points = {(abs(r - row) + abs(c - col), r, c)}
        for (r, c), start in net.parents.items():
            if start is not None:
                low, high = (r, start[0]) if r < start[0] else (start[0], r)
                r = low if row < low else high if row > high else row
                low, high = (c, start[1]) if c < start[1] else (start[1], c)
                c = low if col < low else high if col > high else col
                points.add((abs(r - row) + abs(c - col), r, c))
        return [(r, c) for _, r, c in sorted(points)[:NEAR_POINTS]]

    def _quality(self) -> tuple[float, float, float]:
        """Return three measures of the routes, most important first; less is better.

        They are the overload of all links, the fullest link in percent (at least 25), and the most nets at a
        router.
        """
        over, most = 0.0, float(self.loads.max())
        if most > self.capacity:
            above = self.loads - self.capacity
            over = float(np.maximum(above, 0.0, out=above).sum()) / self.capacity
        return (
            round(over, 6),
            max(float(np.ceil(100 * (most / self.capacity))), 25.0),
            float(self.crowd.max()),
        )


def _face(net: Net, point: Point) -> tuple[int, int]:
    """Return the rows and columns of the region whose middle is `point`; (-1, -1) if there is none."""
    region = net.ends.get(point)
    return (-1, -1) if region is None else (region.rows, region.cols)


@functools.cache
def _fractions(reach: tuple[float, ...]) -> NDArray[np.float64]:
    return np.array(reach, np.float64)


def _distance(a: Point, b: Point) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])
