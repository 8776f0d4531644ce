"""Routes of streams between regions: L-shaped bands, link loads, colors.

A stream leaves its producer as a band of parallel links, wide enough to use a tenth of their rate at the
pipeline's pace, and takes the less loaded of the two L-shaped ways.  Gradients run back on the opposite
links.  Streams whose bands cross a common core need different colors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import Region

NORTH, EAST, SOUTH, WEST = range(4)
RESERVED_COLORS = 3  # host copy takes three of the routable colors
LINK_SHARE = 0.1  # of a link's rate that one stream plans to use: about ten streams can share it (assumed)


def links_needed(bytes_per_sample: float, pace_cycles: float, link_bytes_per_cycle: float) -> int:
    """Parallel links with which a stream of `bytes_per_sample` keeps the pace."""
    return max(1, ceil(bytes_per_sample / (pace_cycles * link_bytes_per_cycle * LINK_SHARE)))


def add_region_load(loads: NDArray[np.float32], region: Region, bytes_in: float, bytes_out: float) -> None:
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


@dataclass(frozen=True)
class Band:
    """A route: corner points and the number of links side by side."""

    route: tuple[tuple[int, int], ...]
    width: int
    hops: int

    def boxes(self, rows: int, cols: int) -> list[tuple[int, int, int, int, int]]:
        """Legs as (row0, row1, col0, col1, direction), half-open, clipped to the fabric."""
        out = []
        half = self.width // 2
        for (r0, c0), (r1, c1) in pairwise(self.route):
            if r0 == r1 and c0 != c1:
                a, b = max(0, r0 - half), min(rows, r0 - half + self.width)
                out.append((a, b, min(c0, c1), max(c0, c1), EAST if c1 > c0 else WEST))
            elif r0 != r1:
                a, b = max(0, c0 - half), min(cols, c0 - half + self.width)
                out.append((min(r0, r1), max(r0, r1), a, b, SOUTH if r1 > r0 else NORTH))
        return out


def bands_between(producer: Region, consumer: Region, links: int = 1) -> list[Band]:
    """The L-shaped bands of at most `links` links between two middles: row first, column first."""
    r0, c0 = (round(x) for x in producer.center)
    r1, c1 = (round(x) for x in consumer.center)
    width = max(1, min(links, producer.rows, producer.cols, consumer.rows, consumer.cols))
    hops = abs(r0 - r1) + abs(c0 - c1)
    out = []
    for corners in ([(r0, c0), (r0, c1), (r1, c1)], [(r0, c0), (r1, c0), (r1, c1)]):
        route = tuple(corner for i, corner in enumerate(corners) if i == 0 or corner != corners[i - 1])
        out.append(Band(route, width, hops))
    return out if out[0].route != out[1].route else out[:1]


def least_loaded(loads: NDArray[np.float32], bands: list[Band]) -> Band:
    """The band whose busiest link carries least so far."""
    return min(bands, key=lambda band: _busiest(loads, band))


def _busiest(loads: NDArray[np.float32], band: Band) -> float:
    most = 0.0
    for r0, r1, c0, c1, direction in band.boxes(*loads.shape[:2]):
        leg = loads[r0:r1, c0:c1, direction]
        if leg.size:
            most = max(most, float(leg.max()))
    return most


def add_load(loads: NDArray[np.float32], band: Band, bytes_per_sample: float) -> None:
    """Spread a stream's bytes over the links of its band; `loads` is (rows, cols, 4)."""
    for r0, r1, c0, c1, direction in band.boxes(*loads.shape[:2]):
        links = (r1 - r0) if direction in (EAST, WEST) else (c1 - c0)
        if links > 0:
            # a link belongs to the core it leaves: going west or north that is the farther one
            if direction == WEST:
                c0, c1 = c0 + 1, c1 + 1
            elif direction == NORTH:
                r0, r1 = r0 + 1, r1 + 1
            loads[r0:r1, c0:c1, direction] += bytes_per_sample / links


def reverse(band: Band) -> Band:
    """The same band run backward."""
    return Band(tuple(reversed(band.route)), band.width, band.hops)


def assign_colors(bands: list[Band], rows: int, cols: int) -> tuple[list[int], int]:
    """A color for every band, different where bands share a core; returns (colors, colors used).

    Greedy in the order given (dataflow), which is optimal for bands along a line.
    """
    boxes = [np.array([b[:4] for b in band.boxes(rows, cols)] or [(0, 0, 0, 0)]) for band in bands]
    colors: list[int] = []
    hulls = np.array([[b[:, 0].min(), b[:, 1].max(), b[:, 2].min(), b[:, 3].max()] for b in boxes]).reshape(
        -1, 4
    )
    for i, mine in enumerate(boxes):
        taken = set()
        h = hulls[:i]
        near = np.flatnonzero(
            (h[:, 0] <= hulls[i, 1])
            & (hulls[i, 0] <= h[:, 1])
            & (h[:, 2] <= hulls[i, 3])
            & (hulls[i, 2] <= h[:, 3])
        )
        for j in near:
            other = boxes[j]
            meet = (
                (mine[:, None, 0] < other[None, :, 1])
                & (other[None, :, 0] < mine[:, None, 1])
                & (mine[:, None, 2] < other[None, :, 3])
                & (other[None, :, 2] < mine[:, None, 3])
            )
            if meet.any():
                taken.add(colors[j])
        colors.append(next(c for c in range(len(bands) + 1) if c not in taken))
    return colors, max(colors, default=-1) + 1
