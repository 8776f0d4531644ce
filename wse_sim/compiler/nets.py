"""Nets: tensors that move between regions, as bundles of links along rectilinear trees.

Symbols: a *net* is one tensor with its producer and all its consumers. Its tree is a set of legs (row or
column segments of the fabric) that starts at the producer's middle; w parallel links carry it.

A bundle enters and leaves a region through one side: over w rows at the west or east side, over w columns at
the north or south side. A stream wider than a side has to use another one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

from wse_sim.compiler.plan import Region

NORTH, EAST, SOUTH, WEST = range(4)
Point = tuple[int, int]


def links_needed(
    bytes_per_sample: float, pace_cycles: float, link_bytes_per_cycle: float, fraction: float
) -> int:
    """Return the number of parallel links with which a stream keeps the pace, using at most `fraction` of
    each.
    """
    return max(1, ceil(bytes_per_sample / (pace_cycles * link_bytes_per_cycle * fraction)))


def middle(region: Region) -> Point:
    """Return the core in the middle of a region."""
    row, col = region.center
    return round(row), round(col)


def bundle_width(regions: Sequence[Region], links: int, over: Sequence[str] = ()) -> int:
    """Return the number of parallel links of a bundle: at most `links`, and at most what every region admits.

    `over` gives, for each region, the cores over which the stream enters or leaves
    (:class:`wse_sim.kernels.contract.family.Lay`)::

        width = min(links, R of "rows", C computing columns of "cols", max(R, W) of "")
    """
    sides = over or ("",) * len(regions)
    return max(1, min(links, *(_ways_in(region, side) for region, side in zip(regions, sides, strict=True))))


def _ways_in(region: Region, over: str) -> int:
    """Return the number of links that can enter or leave a region over its rows, its compute columns or
    either side.
    """
    ways = {"rows": region.rows, "cols": region.compute_cores // region.rows}
    return ways.get(over, max(region.rows, region.cols))


@dataclass
class Net:
    """One tensor: its source, its sinks, and its tree once it is routed.

    `ends` maps the middles of the regions at its source and sinks to these regions. `parents` maps every
    corner of the tree to the corner before it. `with_gradients` states whether gradients return along the
    tree.
    """

    name: str
    source: Point
    sinks: tuple[Point, ...]
    bytes_per_sample: float
    width: int
    with_gradients: bool
    ends: Mapping[Point, Region] = field(default_factory=dict)
    parents: dict[Point, Point | None] = field(default_factory=dict)

    def passes(self, way: Sequence[Point]) -> bool:
        """Return whether the bundle fits through the sides of the end regions at which a route starts and
        ends.
        """
        if len(way) < 2:
            return True
        return self._fits(way[0], way[1]) and self._fits(way[-1], way[-2])

    def _fits(self, end: Point, neighbour: Point) -> bool:
        """Return whether the bundle fits through the side of an end's region that faces a neighbouring
        corner.
        """
        region = self.ends.get(end)
        return region is None or self.width <= (region.rows if end[0] == neighbour[0] else region.cols)

    def narrow(self) -> None:
        """Reduce the width to the number of links that fits through every side of every end region."""
        self.width = max(1, min(self.width, *(min(r.rows, r.cols) for r in self.ends.values())))

    def path(self, sink: Point) -> tuple[Point, ...]:
        """Return the corners from the source to a sink along the tree; points within a straight run are left
        out.
        """
        points = [sink]
        while (before := self.parents[points[-1]]) is not None:
            points.append(before)
        points.reverse()
        kept = points[:1]
        for i, point in enumerate(points[1:], 1):
            last = i == len(points) - 1
            if last or not is_straight(kept[-1], point, points[i + 1]):
                kept.append(point)
        return tuple(kept)

    def legs(self) -> list[tuple[Point, Point]]:
        """Return the legs of the tree; overlapping legs are joined, so that every link of the middle line
        occurs once.
        """
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
        """Return the number of links on the tree's middle line."""
        return sum(hops_of(leg) for leg in self.legs())

    def attach(self, way: Sequence[Point]) -> None:
        """Add a route to the tree. It starts at a corner of the tree or within a leg, which is then split."""
        start = way[0]
        if start not in self.parents:
            for end, before in list(self.parents.items()):
                if before is not None and is_straight(before, start, end):
                    self.parents[start] = before
                    self.parents[end] = start
                    break
        for before, point in pairwise(way):
            if point not in self.parents:
                self.parents[point] = before


def hops_of(path: Sequence[Point]) -> int:
    """Return the number of links along a path of corners."""
    return sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in pairwise(path))


def is_straight(a: Point, b: Point, c: Point) -> bool:
    """Return whether the path a, b, c continues in one direction."""
    along_row = a[0] == b[0] == c[0] and (b[1] - a[1]) * (c[1] - b[1]) >= 0
    along_col = a[1] == b[1] == c[1] and (b[0] - a[0]) * (c[0] - b[0]) >= 0
    return along_row or along_col


def _as_line(start: Point, end: Point) -> tuple[int, int, int, int]:
    """Return the direction of a leg, the row or column of its line, and its low and high end."""
    if start[0] == end[0]:
        return (EAST if end[1] > start[1] else WEST, start[0], *sorted((start[1], end[1])))  # type: ignore[return-value]
    return (SOUTH if end[0] > start[0] else NORTH, start[1], *sorted((start[0], end[0])))  # type: ignore[return-value]


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans in ascending order, with overlapping and adjacent ones joined."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def links_of(start: Point, end: Point, width: int, rows: int, cols: int) -> tuple[int, int, int, int, int]:
    """Return the cores that a leg's links leave, as (row0, row1, col0, col1, direction).

    The ranges are half-open and clipped to the fabric.
    """
    half = width // 2
    direction, line, low, high = _as_line(start, end)
    if direction in (EAST, WEST):
        first = min(max(0, line - half), max(0, rows - width))
        # a link belongs to the core that it leaves: for a leg to the west, the eastern one
        shift = 1 if direction == WEST else 0
        return first, min(rows, first + width), low + shift, high + shift, direction
    first = min(max(0, line - half), max(0, cols - width))
    shift = 1 if direction == NORTH else 0
    return low + shift, high + shift, first, min(cols, first + width), direction


def routers_of(start: Point, end: Point, width: int, rows: int, cols: int) -> tuple[int, int, int, int]:
    """Return the routers that a leg crosses, ends included, as half-open ranges (row0, row1, col0, col1)."""
    r0, r1, c0, c1, direction = links_of(start, end, width, rows, cols)
    if direction in (EAST, WEST):
        return r0, r1, min(start[1], end[1]), max(start[1], end[1]) + 1
    return min(start[0], end[0]), max(start[0], end[0]) + 1, c0, c1


def edge_channel(
    target: Point, rows: int, cols: int, channels: int, taken: Collection[Point] = frozenset()
) -> Point:
    """Return the core of the I/O channel nearest to a core.

    The west and the east edge each have `channels` I/O rows, spread evenly. Channels in `taken` are avoided
    while the edge has others: a core at the edge sends its words in one order, so two readers of one channel
    would wait for each other.
    """
    nearest = min(channels - 1, int(target[0] * channels / rows))
    col = 0 if target[1] < cols / 2 else cols - 1
    points = [(min(rows - 1, int((index + 0.5) * rows / channels)), col) for index in range(channels)]
    free = [index for index, point in enumerate(points) if point not in taken]
    return points[min(free, key=lambda index: abs(index - nearest), default=nearest)]
