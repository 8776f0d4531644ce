"""Detours around dead cores without redundant links (``defect_links: around`` of the wafer).

A leg of a stream is a bundle of straight lines, one link each. Where a line crosses a run of dead cores, its
words leave it at the last living core before the run and return at the first one after it, on a shortest path
over living cores::

    extra hops of a run      length of that path minus the length of the straight one
    extra hops of a stream   over its legs, the sum for the line with the most
    loads                    traffic through a run moves from its links to those of the path, in each direction

A single dead core costs two hops. A dead core at a corner of a stream costs none: the corner is cut. Words
pass over a run that has no path around it (at the edge, between dead rows), and over dead rows. Whether the
color is free in the routers of the path is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.nets import EAST, NORTH, SOUTH, WEST, Point, routers_of
from wse_sim.compiler.plan import Stream
from wse_sim.hardware import Wafer

AROUND = "around"
STEPS = ((NORTH, -1, 0), (EAST, 0, 1), (SOUTH, 1, 0), (WEST, 0, -1))


@dataclass(frozen=True)
class Run:
    """A run of adjacent dead cores in a row or a column, the living cores at its ends, and a shortest path
    around it.
    """

    before: Point
    behind: Point
    way: tuple[Point, ...]  # all routers of the path; empty if there is none

    @property
    def along_row(self) -> bool:
        """Whether the run is in a row, so that words along that row cross it."""
        return self.before[0] == self.behind[0]

    @property
    def straight(self) -> tuple[Point, ...]:
        """The straight path over the dead cores, both living ends included."""
        (r0, c0), (r1, c1) = self.before, self.behind
        if self.along_row:
            return tuple((r0, c) for c in range(c0, c1 + 1))
        return tuple((r, c0) for r in range(r0, r1 + 1))

    @property
    def extra_hops(self) -> int:
        """Extra hops of the detour compared with the straight path; 0 if there is no detour."""
        return len(self.way) - len(self.straight) if self.way else 0


def runs_of(wafer: Wafer) -> tuple[Run, ...]:
    """Return all runs of dead cores, along rows and along columns, that have a living core at both ends."""
    dead = {(r, c) for r, c in wafer.dead_cores if r not in wafer.dead_rows}
    closed = np.zeros((wafer.rows, wafer.cols), bool)
    closed[list(wafer.dead_rows), :] = True
    for core in dead:
        closed[core] = True
    found = []
    for down, right in ((0, 1), (1, 0)):
        for row, col in sorted(dead):
            before = (row - down, col - right)
            if before in dead:
                continue  # not the first of its run
            length = 1
            while (row + length * down, col + length * right) in dead:
                length += 1
            behind = (row + length * down, col + length * right)
            if _is_open(closed, before) and _is_open(closed, behind):
                way = shortest_way(closed, before, behind, most_hops=length + 2 * len(dead) + 4)
                found.append(Run(before, behind, way))
    return tuple(found)


def shortest_way(closed: NDArray[np.bool_], start: Point, end: Point, most_hops: int) -> tuple[Point, ...]:
    """Return the routers of a shortest path over open routers, both ends included.

    The path is empty if there is none with at most `most_hops` hops.
    """
    came: dict[Point, Point] = {start: start}
    front = [start]
    for _ in range(most_hops):
        following = []
        for row, col in front:
            for _, down, right in STEPS:
                place = (row + down, col + right)
                if place not in came and _is_open(closed, place):
                    came[place] = (row, col)
                    following.append(place)
        if end in came:
            way = [end]
            while way[-1] != start:
                way.append(came[way[-1]])
            return tuple(reversed(way))
        front = following
    return ()


def runs_met(stream: Stream, runs: Sequence[Run], rows: int, cols: int) -> Iterator[list[Run]]:
    """Yield, for each leg of a stream that crosses runs, the runs of its line with the most extra hops."""
    for start, end in pairwise(stream.route):
        r0, r1, c0, c1 = routers_of(start, end, stream.width, rows, cols)
        along_row = start[0] == end[0]
        lines: dict[int, list[Run]] = {}
        for run in runs:
            inside = all(r0 <= row < r1 and c0 <= col < c1 for row, col in (run.before, run.behind))
            if inside and run.along_row == along_row:
                lines.setdefault(run.before[0 if along_row else 1], []).append(run)
        if lines:
            yield max(lines.values(), key=lambda line: sum(run.extra_hops for run in line))


def extra_hops(stream: Stream, runs: Sequence[Run], rows: int, cols: int) -> int:
    """Return the extra hops of a stream: over its legs, the sum for the line with the most."""
    return sum(run.extra_hops for line in runs_met(stream, runs, rows, cols) for run in line)


def moved_loads(loads: NDArray[np.float32], runs: Sequence[Run]) -> NDArray[np.float32]:
    """Return the loads (rows, cols, 4) of all links after traffic straight through a run has moved to its
    detour.
    """
    moved = loads.astype(np.float64)
    for run in runs:
        if not run.way:
            continue
        for straight, way in ((run.straight, run.way), (run.straight[::-1], run.way[::-1])):
            through = min(float(loads[link]) for link in links_of_way(straight))
            for link in links_of_way(straight):
                moved[link] -= through
            for link in links_of_way(way):
                moved[link] += through
    return moved.astype(np.float32)


def links_of_way(way: Sequence[Point]) -> Iterator[tuple[int, int, int]]:
    """Yield the links of a path as (row, column, direction) of the core that each link leaves."""
    direction = {(down, right): port for port, down, right in STEPS}
    for (r0, c0), (r1, c1) in pairwise(way):
        yield r0, c0, direction[r1 - r0, c1 - c0]


def _is_open(closed: NDArray[np.bool_], place: Point) -> bool:
    """Return whether a router is on the fabric and not closed."""
    row, col = place
    return 0 <= row < closed.shape[0] and 0 <= col < closed.shape[1] and not closed[place]
