"""The routers and links of a fabric for routes cell by cell, and what a cell or a link costs a route.

A route avoids routers at which its color is taken. A cell costs 1 in the planned bundle and in the moving
columns of the regions at its ends, COMPUTE among compute cores, OFF_PLAN elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import networkx as nx

from wse_sim.compiler.nets import routers_of
from wse_sim.compiler.plan import Stream

Cell = tuple[int, int]
COMPUTE, OFF_PLAN = 2.0, 8.0
SHARED = 24.0  # cost of a cell that another bundle of the tensor uses, and of a link that another route uses
FULL = 10_000.0  # cost of a link that cannot carry the words of all who use it at the pace of the plan: more than any detour
STEPS = {(-1, 0): "N", (0, 1): "E", (1, 0): "S", (0, -1): "W"}
PORTS = "NESW"
BACK = {"N": "S", "E": "W", "S": "N", "W": "E"}


class Grid:
    """The routers of a fabric, with the colors taken at each and the load of the links."""

    def __init__(self, rows: int, cols: int) -> None:
        self.rows, self.cols = rows, cols
        self.graph: nx.Graph = nx.grid_2d_graph(rows, cols)
        self._taken: dict[int, set[Cell]] = {}
        self.links: set[tuple[Cell, Cell]] = (
            set()
        )  # that trees use, on any color: a link carries a word a cycle
        self.words: dict[tuple[Cell, Cell], float] = {}  # of a sample, on links where they are known
        self.limit = math.inf  # words of a sample that a link carries at the pace of the plan

    def sharing(self, link: tuple[Cell, Cell], words: float) -> float:
        """Return the cost of a link for `words` per sample, in addition to that of its cell: 0 if no other
        route uses it."""
        held = self.words.get(link, -math.inf)
        return SHARED * (link in self.links) + FULL * (held + words > self.limit)

    def take(self, color: int, cells: Iterable[Cell]) -> None:
        """Mark a color as taken at these routers."""
        self._taken.setdefault(color, set()).update(cells)

    def taken(self, color: int) -> set[Cell]:
        """Return the routers at which a color is taken."""
        return self._taken.get(color, set())

    def planned(self, stream: Stream) -> set[Cell]:
        """Return the routers of the planned bundle of a stream."""
        cells: set[Cell] = set()
        legs = list(pairwise(stream.route)) or [(stream.route[0], stream.route[0])]
        for start, end in legs:
            r0, r1, c0, c1 = routers_of(start, end, stream.width, self.rows, self.cols)
            cells |= {(r, c) for r in range(r0, r1) for c in range(c0, c1)}
        return cells


def direction(a: Cell, b: Cell) -> str:
    """Return the port of `a` that leads to its neighbour `b`."""
    return STEPS[b[0] - a[0], b[1] - a[1]]
