"""Routes of streams between regions: L-shaped bands, link loads, colors.

A stream leaves its producer as a band of parallel links, as many as carry it at half their rate at the
pipeline's pace, runs along the row first, then along the column.  Gradients run back on the opposite
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
LINK_SHARE = 0.5  # a band is planned to use half of its links' rate: room for gradients and jitter (assumed)


def links_needed(bytes_per_sample: float, pace_cycles: float, link_bytes_per_cycle: float) -> int:
    """Parallel links with which a stream of `bytes_per_sample` keeps the pace."""
    return max(1, ceil(bytes_per_sample / (pace_cycles * link_bytes_per_cycle * LINK_SHARE)))


def add_region_load(loads: NDArray[np.float32], region: Region, bytes_in: float, bytes_out: float) -> None:
    """Traffic inside a region: operands enter from the west and run east over every row, sums run south.

    A row carries its share ``bytes_in / rows``, a column its share of the partial sums, fp32.
    """
    r, c = region.row, region.col
    loads[r : r + region.rows, c : c + max(0, region.cols - 1), EAST] += bytes_in / region.rows
    loads[r : r + max(0, region.rows - 1), c : c + region.cols, SOUTH] += bytes_out / region.cols


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


def band_between(producer: Region, consumer: Region, links: int = 1) -> Band:
    """The L-shaped band of at most `links` links from the middle of `producer` to that of `consumer`."""
    r0, c0 = (round(x) for x in producer.center)
    r1, c1 = (round(x) for x in consumer.center)
    corners = [(r0, c0), (r0, c1), (r1, c1)]
    route = tuple(corner for i, corner in enumerate(corners) if i == 0 or corner != corners[i - 1])
    width = max(1, min(links, producer.rows, producer.cols, consumer.rows, consumer.cols))
    return Band(route, width, abs(r0 - r1) + abs(c0 - c1))


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
