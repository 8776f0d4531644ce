"""Routes of tensors between regions: rectilinear multicast trees, link loads, colors.

Symbols: a *net* is one tensor with its producer and all its consumers; its tree is a set of legs (row or
column segments of the fabric) that start at the producer's middle; w links side by side carry it.

* Every consumer joins the tree at the nearest points, by an L or a Z, whichever costs least::

      cost of a leg = sum over its links of 1 + CONGESTION u^2 + CROWD (n / 8)^2

  u load of the fullest of the w links over what a link carries at the pace, n nets at the router.
* Nets are taken out and routed again at the loads of all others, a few rounds; the best round is kept.
* A tensor with several consumers crosses a shared link once.  Gradients run back along the tree on the
  opposite links and are summed where branches join, so they cross a shared link once as well.
* Nets whose trees share a router need different colors, one for each way they run: a graph coloring,
  by the best of several greedy orders.
* Host input enters at the channel rows of the west or east edge, results leave there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import Region

NORTH, EAST, SOUTH, WEST = range(4)
RESERVED_COLORS = 3  # host copy takes three of the routable colors
LINK_SHARE = 0.1  # of a link's rate that one stream plans to use: about ten streams can share it (assumed)
CONGESTION = 40.0
CROWD = 0.5
ROUNDS = 3
DETOURS = (0.25, 0.5, 0.75)  # where the middle leg of a Z lies between its ends
STRATEGIES = ("DSATUR", "largest_first", "smallest_last")

Point = tuple[int, int]


def links_needed(bytes_per_sample: float, pace_cycles: float, link_bytes_per_cycle: float) -> int:
    """Parallel links with which a stream of `bytes_per_sample` keeps the pace."""
    return max(1, ceil(bytes_per_sample / (pace_cycles * link_bytes_per_cycle * LINK_SHARE)))


def add_region_load(loads: NDArray[np.float64], region: Region, bytes_in: float, bytes_out: float) -> None:
    """Traffic inside a region: operands run along one axis, fp32 partial sums along the other.

    Every line of the first axis carries its share of `bytes_in`, every line of the other its share of
    `bytes_out`; the kernel lies so that the busier link carries less, as its cost assumes.
    """
    view = loads[region.row : region.row + region.rows, region.col : region.col + region.cols]
    upright = max(bytes_in / region.rows, bytes_out / region.cols)
    turned = max(bytes_in / region.cols, bytes_out / region.rows)
    east, south = (bytes_in, bytes_out) if upright <= turned else (bytes_out, bytes_in)
    view[:, : max(0, region.cols - 1), EAST] += east / region.rows
    view[: max(0, region.rows - 1), :, SOUTH] += south / region.cols


def middle(region: Region) -> Point:
    """The core in the middle of a region."""
    row, col = region.center
    return round(row), round(col)


@dataclass
class Net:
    """One tensor: where it starts, where it goes, and its tree once it is routed.

    `parents` maps every corner of the tree to the corner before it; `with_gradients` tells that
    gradients come back.
    """

    name: str
    source: Point
    sinks: tuple[Point, ...]
    bytes_per_sample: float
    width: int
    with_gradients: bool
    parents: dict[Point, Point | None] = field(default_factory=dict)

    def path(self, sink: Point) -> tuple[Point, ...]:
        """Corners from the source to a sink along the tree, straight runs in one."""
        points = [sink]
        while (before := self.parents[points[-1]]) is not None:
            points.append(before)
        points.reverse()
        kept = points[:1]
        for i, point in enumerate(points[1:], 1):
            last = i == len(points) - 1
            if last or not _is_straight(kept[-1], point, points[i + 1]):
                kept.append(point)
        return tuple(kept)

    def legs(self) -> list[tuple[Point, Point]]:
        """Legs of the tree, every link of the middle line once: parallel overlaps are joined."""
        lines: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for end, start in self.parents.items():
            if start is None or start == end:
                continue
            direction, line, low, high = _as_line(start, end)
            lines.setdefault((direction, line), []).append((low, high))
        out = []
        for (direction, line), spans in sorted(lines.items()):
            for low, high in _joined(spans):
                a, b = (low, high) if direction in (EAST, SOUTH) else (high, low)
                out.append(((line, a), (line, b)) if direction in (EAST, WEST) else ((a, line), (b, line)))
        return out

    def length(self) -> int:
        """Links of the tree's middle line."""
        return sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in self.legs())


def hops_of(path: Sequence[Point]) -> int:
    """Links along a path of corners."""
    return sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in pairwise(path))


def _is_straight(a: Point, b: Point, c: Point) -> bool:
    """Whether the way a, b, c goes on in one direction."""
    along_row = a[0] == b[0] == c[0] and (b[1] - a[1]) * (c[1] - b[1]) >= 0
    along_col = a[1] == b[1] == c[1] and (b[0] - a[0]) * (c[0] - b[0]) >= 0
    return along_row or along_col


def _as_line(start: Point, end: Point) -> tuple[int, int, int, int]:
    """(direction, row or column of the line, low end, high end)."""
    if start[0] == end[0]:
        return (EAST if end[1] > start[1] else WEST, start[0], *sorted((start[1], end[1])))  # type: ignore[return-value]
    return (SOUTH if end[0] > start[0] else NORTH, start[1], *sorted((start[0], end[0])))  # type: ignore[return-value]


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def box_of(start: Point, end: Point, width: int, rows: int, cols: int) -> tuple[int, int, int, int, int]:
    """Cores that a leg's links leave: (row0, row1, col0, col1, direction), half-open, clipped to the fabric."""
    half = width // 2
    direction, line, low, high = _as_line(start, end)
    if direction in (EAST, WEST):
        first = min(max(0, line - half), max(0, rows - width))
        # a link belongs to the core it leaves: going west that is the farther one
        shift = 1 if direction == WEST else 0
        return first, min(rows, first + width), low + shift, high + shift, direction
    first = min(max(0, line - half), max(0, cols - width))
    shift = 1 if direction == NORTH else 0
    return low + shift, high + shift, first, min(cols, first + width), direction


OPPOSITE = {NORTH: SOUTH, SOUTH: NORTH, EAST: WEST, WEST: EAST}


class Router:
    """Routes nets on a fabric of rows x cols; `loads` (rows, cols, 4) are bytes per sample, kernels' own included."""

    def __init__(self, loads: NDArray[np.float64], capacity_bytes: float) -> None:
        self.loads = loads
        self.capacity = max(capacity_bytes, 1e-9)
        self.rows, self.cols = loads.shape[:2]
        self.crowd = np.zeros((self.rows, self.cols), np.int32)

    def route(self, nets: Sequence[Net]) -> None:
        """Give every net its tree, and the links their loads."""
        for net in nets:
            self._grow(net)
            self.add(net)
        best = (self._quality(), [dict(net.parents) for net in nets])
        for _ in range(ROUNDS):
            for net in nets:
                self.add(net, -1)
                self._grow(net)
                self.add(net)
            quality = self._quality()
            if quality >= best[0]:
                break
            best = (quality, [dict(net.parents) for net in nets])
        for net, parents in zip(nets, best[1], strict=True):
            self.add(net, -1)
            net.parents = parents
            self.add(net)

    def add(self, net: Net, sign: int = 1) -> None:
        """Add a net's bytes to the links of its tree, or take them away."""
        for start, end in net.legs():
            for a, b in ((start, end), (end, start))[: 2 if net.with_gradients else 1]:
                r0, r1, c0, c1, direction = box_of(a, b, net.width, self.rows, self.cols)
                links = (r1 - r0) if direction in (EAST, WEST) else (c1 - c0)
                self.loads[r0:r1, c0:c1, direction] += sign * net.bytes_per_sample / links
            r0, r1, c0, c1 = _cores(start, end, net.width, self.rows, self.cols)
            self.crowd[r0:r1, c0:c1] += sign

    def _quality(self) -> tuple[float, float]:
        """Fullest link in hundredths of its capacity, then the most nets at a router, less is better."""
        full = float(np.ceil(100 * self.loads.max() / self.capacity))
        return max(full, 25.0), float(self.crowd.max())

    def _grow(self, net: Net) -> None:
        """Build the tree: the nearest sink first, each joined where it is cheapest."""
        net.parents = {net.source: None}
        ends = sorted(
            dict.fromkeys(net.sinks), key=lambda p: (abs(p[0] - net.source[0]) + abs(p[1] - net.source[1]), p)
        )
        for sink in ends:
            if sink in net.parents:
                continue
            best: tuple[float, int, list[Point]] | None = None
            for number, way in enumerate(self._ways(net, sink)):
                cost = sum(self._cost(a, b, net) for a, b in pairwise(way))
                if best is None or (cost, number) < best[:2]:
                    best = (cost, number, way)
            if best is not None:
                _attach(net, best[2])

    def _ways(self, net: Net, sink: Point) -> list[list[Point]]:
        """Ways from the nearest points of the tree to a sink: both Ls and some Zs."""
        points = {net.source}
        for end, start in net.parents.items():
            if start is not None:
                rows, cols = sorted((start[0], end[0])), sorted((start[1], end[1]))
                points.add((min(max(sink[0], rows[0]), rows[1]), min(max(sink[1], cols[0]), cols[1])))
        near = sorted(points, key=lambda p: (abs(p[0] - sink[0]) + abs(p[1] - sink[1]), p))[:3]
        out = []
        for r, c in near:
            out += [[(r, c), (r, sink[1]), sink], [(r, c), (sink[0], c), sink]]
            for share in DETOURS if r != sink[0] and c != sink[1] else ():
                row, col = round(r + share * (sink[0] - r)), round(c + share * (sink[1] - c))
                out += [[(r, c), (row, c), (row, sink[1]), sink], [(r, c), (r, col), (sink[0], col), sink]]
        return [list(dict.fromkeys(way)) for way in out]

    def _cost(self, start: Point, end: Point, net: Net) -> float:
        r0, r1, c0, c1, direction = box_of(start, end, net.width, self.rows, self.cols)
        across = 0 if direction in (EAST, WEST) else 1
        fullest = self.loads[r0:r1, c0:c1, direction].max(axis=across)
        own = net.bytes_per_sample / max(1, (r1 - r0, c1 - c0)[across])
        use = (fullest + own) / self.capacity
        crowd = self.crowd[r0:r1, c0:c1].max(axis=across) / 8.0
        return float(use.size + CONGESTION * np.sum(use * use) + CROWD * np.sum(crowd * crowd))


def _attach(net: Net, way: list[Point]) -> None:
    """Add a way to the tree; it starts on a corner or within a leg, which is then split."""
    start = way[0]
    if start not in net.parents:
        for end, before in list(net.parents.items()):
            if before is not None and _is_straight(before, start, end):
                net.parents[start] = before
                net.parents[end] = start
                break
    for before, point in pairwise(way):
        if point not in net.parents:
            net.parents[point] = before


def _cores(start: Point, end: Point, width: int, rows: int, cols: int) -> tuple[int, int, int, int]:
    """Routers that a leg crosses, ends included: (row0, row1, col0, col1)."""
    r0, r1, c0, c1, direction = box_of(start, end, width, rows, cols)
    if direction in (EAST, WEST):
        return r0, r1, min(start[1], end[1]), max(start[1], end[1]) + 1
    return min(start[0], end[0]), max(start[0], end[0]) + 1, c0, c1


def assign_colors(nets: Sequence[Net], rows: int, cols: int) -> tuple[list[int], int]:
    """First color of every net and the colors used; trees that share a router get different ones.

    A net with gradients takes two colors in a row, one for each way; all nets are given as many, so
    that the pairs of different nets never overlap.
    """
    per_net = 2 if any(net.with_gradients for net in nets) else 1
    graph = conflicts(nets, rows, cols)
    best: dict[int, int] = {}
    for strategy in STRATEGIES:
        found = nx.greedy_color(graph, strategy=strategy)  # type: ignore[call-overload]
        if not best or max(found.values(), default=0) < max(best.values(), default=0):
            best = found
    used = (max(best.values(), default=-1) + 1) * per_net
    return [best[i] * per_net for i in range(len(nets))], used


def conflicts(nets: Sequence[Net], rows: int, cols: int) -> nx.Graph:
    """Graph of the nets (by position) with an edge where two trees share a router."""
    owner, boxes = [], []
    for i, net in enumerate(nets):
        for start, end in net.legs() or [(net.source, net.source)]:
            owner.append(i)
            boxes.append(_cores(start, end, net.width, rows, cols))
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


def edge_channel(target: Point, rows: int, cols: int, channels: int) -> Point:
    """The I/O channel nearest to a core: `channels` rows, spread evenly, on the west and the east edge."""
    index = min(channels - 1, int(target[0] * channels / rows))
    row = min(rows - 1, int((index + 0.5) * rows / channels))
    return row, 0 if target[1] < cols / 2 else cols - 1
