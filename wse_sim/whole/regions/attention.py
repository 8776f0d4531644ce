"""Attention: queries over the rows, keys and values over the columns; every core has the scores of its pairs.

Symbols: T tokens, H heads of d features; t = ceil(T / rows) queries and n = ceil(T / columns) keys of the
fullest core, contiguous blocks of tokens for all heads, on R = ceil(T / t) rows and C = ceil(T / n) columns; the
last rows and columns have one less if T is not divisible::

    inlet of queries          > block by block, one multicast per row
    inlet of keys and values  > block by block, token by token, one multicast per column
    core     scores  H t n products of d features, scaled, masked; softmax with a maximum and a sum along the row
             values  H t n multiples of d features, summed along the row
    first column: results of its queries, to a collector next to each row, which sends them in row order

Keys and values of a sample arrive before its first score is computed; those of the next sample arrive
meanwhile. Scores take the calibrated cycles of a special element, as in the family's program: the part that their
vector instructions do not issue is scalar code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Phase
from wse_sim.kernels.blocks.line_stages import Lines, RowLayout, Shapes, Vector
from wse_sim.kernels.families.attention.cost import special_cycles
from wse_sim.kernels.families.attention.pairs import SHAPES, SOFTMAX
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.attention_pairs import (
    KEYS,
    QUERIES,
    AttentionByPairs,
    PairBuffers,
    Vectors,
    part_of,
)
from wse_sim.whole.regions.collectors import Collected, write_collectors
from wse_sim.whole.regions.contract import Inlet, Ports, RegionKind, links_between, refused
from wse_sim.whole.regions.shared_color import deal, receive_all, route_lanes, route_senders, route_takers
from wse_sim.whole.regions.turns import alternate

BESIDE = 2  # moving columns in use: inlets, collectors
LEAST_ROWS = 2  # the inlets are in two rows


@dataclass(frozen=True)
class CoreRole:
    """A core's row and column in the region, and its numbers of queries and keys."""

    row: int
    col: int
    queries: int
    keys: int


class ForwardAttention(AttentionByPairs):
    """The inlets, the collectors of results and the forward pass of a core, which inference and training have."""

    collecting_rows = 0
    """Rows of the region below those with pairs."""
    statistic: Buffer
    """A number per query and head."""

    def make_room(self) -> None:
        """Make room for inlets and collectors; the extent has as many columns less."""
        self.left = max(self.left, self.region.col + BESIDE)

    def extent(self) -> tuple[int, int]:
        """Return the rows and columns that the partition needs, without those that deal and collect."""
        cols = min(self.compute_cols, self.region.cols - BESIDE)
        if self.region.rows < LEAST_ROWS or cols < 1:
            raise refused(
                self.kernel,
                f"has a region of {self.region.rows} x {self.region.cols} cores, limit {LEAST_ROWS} x {BESIDE + 1}",
                "use more cores",
            )
        return self.parted(cols)

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Inlets west of the collectors: queries next to the first row, keys and values next to the second, so that they share
        no link on their way to the rows."""
        queries, keys, values = self.kernel.inputs
        first, col = self.top, self.left - BESIDE
        return Inlet(queries, (first, col)), Inlet(keys, (first + 1, col)), Inlet(values, (first + 1, col))

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The collectors next to the rows."""
        return tuple((self.top + i, self.left - 1) for i in range(self.height))

    def elements(self, lines: int, features: int) -> list[int]:
        """Return the elements in the tokens, of `features` each, of every row or of every column."""
        return [len(part) * features for part in self.parts(lines)]

    def _deal_queries(
        self, b: Builder, own: int, colors: Sequence[int], rounds: int, samples: int, what: str
    ) -> None:
        """Write the inlet of queries, and of what else has their rows: in every round `samples` samples of each."""
        cell = self.inlets[0].cell
        core = b.core_class(f"{self.name} {what}")
        with core.loop(rounds):
            for color in colors:
                shares = [[(fabric_in(color), size)] for size in self.elements(self.height, self.features)]
                with core.loop(samples):
                    deal(core, own, shares, self.height)
        b.place(core, cell)
        takers = [(self.top + i, self.left) for i in range(self.height)]
        route_takers(b, own, cell, takers, self.cols - 1, "E")

    def _deal_pairs(self, b: Builder, own: int, colors: Sequence[int], samples: int) -> None:
        """Write the inlet of keys and values."""
        cell = self.inlets[1].cell
        core = b.core_class(f"{self.name} keys and values")
        token = [(fabric_in(color), self.key_features) for color in colors]
        with core.loop(samples):
            deal(core, own, [token * len(part) for part in self.parts(self.cols)], self.cols)
        b.place(core, cell)
        second = int(self.height > 1)
        takers = [(self.top + second, self.left + j) for j in range(self.cols)]
        route_takers(b, own, cell, takers, self.height - 1 - second, "S", behind="N" * second)

    def _collect_rows(
        self, b: Builder, color: int, streams: Sequence[int], rounds: int, samples: int
    ) -> None:
        """Write the collectors of sums along rows, which leave on `streams` in sequence."""
        where = (self.rows, self.left - 1)
        b.route(color, (self.rows, self.left), rx="R", tx="W")
        b.route(color, where, rx="E", tx="R")
        passes = [
            tuple(Collected(color, ((stream, size),)) for stream in streams)
            for size in self.elements(self.height, self.features)
        ]
        write_collectors(b, f"{self.name}.results", self.senders, where, rounds, samples, passes)

    def _route_sums(self, b: Builder, colors: Sequence[int]) -> None:
        """Route sums along the rows to the first column on two colors, and a multicast back on a third."""
        even, odd, back = colors
        self.sums = even, odd
        self.sharing = route_lanes(b, self.rows, self.left, self.cols, (odd, even, back))

    def _forward(self, core: CoreClass, role: CoreRole, held: PairBuffers) -> None:
        """Write the forward pass of a sample."""
        self._scores(core, held)
        self._row_work(core, role, SOFTMAX, SHAPES, {"scores": held.scores}, Phase.FORWARD)
        self._values(core, held)
        self._along_row(core, role, held)

    def _row_work(
        self, core: CoreClass, role: CoreRole, vectors: Sequence[Vector], shapes: Shapes, buffers: Mapping[str, Vectors], phase: Phase
    ) -> None:  # fmt: skip
        """Write instructions on the scores of every query and head, with the scalar code of special elements that they do
        not cover, and their statistics along the row."""
        rows = self.heads * role.queries
        buffers = {**buffers, "statistic": part_of(self.statistic, rows)}
        layout = RowLayout(rows, role.keys, by_row=True)
        lines = Lines(shapes, buffers, layout, self.sharing, self.wafer, apart=role.keys)
        cycles = special_cycles(self.wafer, self.kernel.attrs, phase) * rows * role.keys
        lines.scalar_rest(core, vectors, cycles, rows)
        lines.emit(core, vectors, role.col)

    def _along_row(self, core: CoreClass, role: CoreRole, held: PairBuffers) -> None:
        """Send the sums of `out` along the row to the collector."""
        here, behind = self.sums[role.col % 2], self.sums[(role.col + 1) % 2]
        if role.col < self.cols - 1:
            core.add(fabric_out(here), held.out.dsd(), fabric_in(behind))
        else:
            core.mov(fabric_out(here), held.out.dsd())


class Attention(ForwardAttention, RegionKind):
    """Attention on its region, in inference."""

    own_colors = 5  # queries; keys and values; sums along rows (two), and back

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """All links of the region, its inlets and collectors: operands, sums along the rows and results use them."""
        cols = range(self.left - BESIDE, self.left + self.cols)
        return links_between({(row, col) for row in range(self.top, self.last + 1) for col in cols})

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the inlets, one core class per kind of core, and the collectors."""
        self._deal_queries(b, ports.own[0], ports.inward[:1], 1, samples, "queries")
        self._deal_pairs(b, ports.own[1], ports.inward[1:], samples)
        ((outward, towards),) = ports.results
        route_senders(b, outward, self.senders, towards)
        self._declare(b)
        self._route_sums(b, ports.own[2:5])
        queries, keys = ([len(part) for part in self.parts(lines)] for lines in (self.height, self.cols))
        for j, held_keys in enumerate(keys):
            classes: dict[int, CoreClass] = {}
            for i, count in enumerate(queries):
                if count not in classes:
                    classes[count] = b.core_class(f"{self.name} column {j} {len(classes)}")
                    self._core(classes[count], CoreRole(i, j, count, held_keys), ports, samples)
                b.place(classes[count], (self.top + i, self.left + j))
        self._collect_rows(b, ports.own[2], [outward], 1, samples)

    def _declare(self, b: Builder) -> None:
        cells = (self.rows, self.columns)
        t, n, width = self.queries, self.keys, self.features

        def pair(name: str, size: int, bank: int) -> list[Buffer]:
            return [b.buffer(f"{self.name}.{name}{i}", size, "fp16", cells, bank=bank) for i in (0, 1)]

        self.q, self.kv = pair("q", t * width, 0), pair("kv", 2 * n * self.key_features, 2)
        self.scores = b.buffer(f"{self.name}.scores", self.heads * t * n, "fp32", cells, bank=0)
        self.mask = b.buffer(f"{self.name}.mask", self.heads * t * n, "fp32", cells, bank=2)
        self.statistic = b.buffer(f"{self.name}.statistic", self.heads * t, "fp32", cells, bank=2)
        self.weights = b.buffer(f"{self.name}.weights", self.heads * t * n, "fp16", cells, bank=0)
        self.out = b.buffer(f"{self.name}.out", t * width, "fp32", cells, bank=0)

    def _core(self, core: CoreClass, role: CoreRole, ports: Ports, samples: int) -> None:
        t, n = role.queries, role.keys
        pairs = self.heads * t * n
        q = [part_of(one, t * self.features) for one in self.q]
        kv = [part_of(one, 2 * n * self.key_features) for one in self.kv]
        scores, weights, mask = (part_of(one, pairs) for one in (self.scores, self.weights, self.mask))
        out = part_of(self.out, t * self.features)

        def receive(turn: int) -> None:
            receive_all(core, ports.own[0], q[turn].dsd(), QUERIES)
            receive_all(core, ports.own[1], kv[turn].dsd(), KEYS)

        def work(turn: int) -> None:
            held = PairBuffers(t, n, q[turn], kv[turn], scores, weights, mask, out)
            self._forward(core, role, held)

        alternate(core, samples, receive, work, (QUERIES, KEYS))
