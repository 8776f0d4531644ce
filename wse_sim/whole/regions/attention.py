"""Attention: queries over the rows, keys and values over the columns; every core has the scores of its pairs.

Symbols: T tokens, H heads of d features; R rows and C columns, the largest divisors of T that fit; t = T / R
queries and n = T / C keys of a core, for all heads::

    inlet of queries          > token by token, one multicast per row
    inlets of keys, of values > token by token, one multicast per column
    core     scores  H t n products of d features, scaled, masked; softmax with a maximum and a sum along the row
             values  H t n multiples of d features, summed up along the row
    first column: results of its queries, to a core beside each row, which sends them when it is their turn

A core has one output queue, so words of a first column that wait for their turn would hold up maxima and sums of its row, and rows
would be apart by the time that all results take.  Where there is one moving column only, first columns send themselves.

Keys and values of a sample are there before its first score; those of the next arrive meanwhile.  Regions of two rows have one inlet
for both, pair by pair.  Scores take the
calibrated cycles of a special element, as in the family's program: what their instructions do not issue is scalar code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import NamedTuple, Protocol

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, Place, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.kernels.blocks.line_stages import Lines, RowLayout, Sharing
from wse_sim.kernels.blocks.lines import ReductionStep
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.kernels.families.attention.cost import special_cycles
from wse_sim.kernels.families.attention.pairs import SHAPES, SOFTMAX, pair_busy
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    Floats,
    Inlet,
    PlacedKernel,
    Ports,
    RegionKind,
    divisor,
    links_between,
    refused,
)
from wse_sim.whole.regions.turns import (
    advance_of,
    alternate,
    deal,
    receive_all,
    route_senders,
    route_takers,
)

QUERIES, KEYS, SEND, VALUES = 1, 2, 3, 4  # microthreads
PORTS = 3  # operands, each of which may have a row of its own to come in
MASKED = -3e4  # below every score; its exponential is zero


class Vectors(Protocol):
    """A buffer, or the part of one that belongs to a sample."""

    def dsd(self, offset: int = 0, length: int | None = None, stride: int = 1, *, step: int = 0) -> Operand:
        """Elements of it, as :meth:`wse_sim.fabric.format.builder.Buffer.dsd`."""


class Held(NamedTuple):
    """What a core holds of a sample: queries; keys and values, pair by pair; scores; weights in fp16."""

    q: Vectors
    kv: Vectors
    scores: Vectors
    weights: Vectors


class AttentionByPairs(PlacedKernel):
    """Softmax of scaled products of queries and keys, times values: where it lies, and the work on a core's pairs."""

    family = "attention"
    title = "attention"
    mask: Buffer
    out: Buffer

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Rows of a sample."""
        return int(kernel.dims["q"])

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Queries, keys and values of one sample, as many heads each, no mask but a causal one."""
        dims, attrs = kernel.dims, AttentionAttributes.of(kernel.attrs)
        if len(set(kernel.inputs)) != 3:
            raise refused(
                kernel,
                f"reads {len(set(kernel.inputs))} tensors, attention on the fabric queries, keys and values",
                "give each its own layer",
            )
        if not attrs.pairs:
            raise refused(
                kernel, "may lie in several ways in its region", "plan the graph of inputs_over_rows(graph)"
            )
        if kernel.parameters or attrs.dropout or attrs.mask:
            raise refused(
                kernel, "has a mask or dropout besides its operands", "leave them out, or use is_causal"
            )
        if attrs.unusual:
            what = {
                "scores": "changes its scores by more than a factor and a mask",
                "order": "reads features that do not lie head by head",
            }[attrs.unusual]
            raise refused(
                kernel, what, "use torch.nn.functional.scaled_dot_product_attention on (B, T, H, d)"
            )
        tokens, features = int(dims["q"]), int(dims["heads"] * dims["d"])
        same = dims["q"] == dims["kv"] and dims["heads"] == dims.get("kv_heads", dims["heads"])
        shapes = [graph.tensors[name].shape for name in kernel.inputs]
        size = int(dims["b"]) * tokens * features
        if not same or any(prod(shape) != size for shape in shapes):
            raise refused(
                kernel,
                f"has operands of shapes {', '.join(map(str, shapes))}, attention on the fabric three of {tokens} tokens of "
                f"{features} features",
                "give queries, keys and values as many tokens and heads each",
            )

    def extent(self) -> tuple[int, int]:
        """Divisors of the number of tokens."""
        if self.region.rows < 2:
            raise refused(self.kernel, "has a region of one row, limit 2", "use more cores")
        return divisor(self.tokens, self.region.rows), divisor(self.tokens, self.compute_cols)

    @property
    def heads(self) -> int:
        """H."""
        return int(self.kernel.dims["heads"])

    @property
    def width(self) -> int:
        """Features of a head."""
        return int(self.kernel.dims["d"])

    @property
    def features(self) -> int:
        """Of a token."""
        return self.heads * self.width

    @property
    def queries(self) -> int:
        """Of a core."""
        return self.tokens // self.height

    @property
    def keys(self) -> int:
        """Of a core."""
        return self.tokens // self.cols

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.kernel.attrs.get("scale", 0.0)) or 1 / sqrt(self.width)

    @property
    def is_causal(self) -> bool:
        """Whether a query sees no later keys."""
        return bool(self.kernel.attrs.get("causal", False))

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Queries beside the second row; keys and values beside the first."""
        queries, keys, values = self.kernel.inputs
        here = (self.top, self.left - 1)
        return Inlet(queries, (self.top + 1, self.left - 1)), Inlet(keys, here), Inlet(values, here)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The first column, from the top."""
        return tuple((self.top + i, self.left) for i in range(self.height))

    # ---- pieces of the program ------------------------------------------------------------------------------------

    def _sharing(self, b: Builder, colors: Sequence[int]) -> Sharing:
        """Along the rows: a chain to the first column on two colors, a multicast back on a third."""
        if self.cols == 1:
            return Sharing(1, (), 0, 0)
        back, steps = colors[2], []
        for j in range(self.cols):
            here, behind = colors[j % 2], colors[(j + 1) % 2]
            at, more = (self.rows, self.left + j), j < self.cols - 1
            if j:
                b.route(here, at, rx="R", tx="W")
                b.route(here, (self.rows, self.left + j - 1), rx="E", tx="R")
            b.route(back, at, rx="W" if j else "R", tx=("R" if j else "") + ("E" if more else ""))
            steps.append(ReductionStep((behind,) if more else (), here if j else None, None))
        return Sharing(self.cols, tuple(steps), back, len(colors))

    def _scores(self, core: CoreClass, held: Held) -> None:
        self._products(core, held.scores, held.q, held.kv)
        core.mul(held.scores.dsd(), held.scores.dsd(), scalar(self.scale))
        if self.is_causal:
            core.add(held.scores.dsd(), held.scores.dsd(), self.mask.dsd())

    def _place(self, key: int, first: int) -> int:
        """Where a key (`first`: 0) or a value (1) lies: pair by pair."""
        return (2 * key + first) * self.features

    def _products(self, core: CoreClass, scores: Vectors, rows: Vectors, kv: Vectors, first: int = 0) -> None:
        """The product of every row of a query with every key (`first` token of a pair: 0), or with every value (1)."""
        t, n, d = self.queries, self.keys, self.width
        core.mov(scores.dsd(), scalar(0.0))
        core.busy(round(self.wafer.vector_start_cycles))
        for a, key in np.ndindex(t, n):
            with core.loop(self.heads):
                core.mac(
                    scores.dsd(a * n + key, 1, 0, step=t * n),
                    rows.dsd(a * self.features, d, step=d),
                    kv.dsd(self._place(key, first), d, step=d),
                    length=d, dtype="mixed", start="none",
                )  # fmt: skip

    def _softmax(self, core: CoreClass, lines: Lines, col: int) -> None:
        cycles = special_cycles(self.wafer, self.kernel.attrs, Phase.FORWARD)
        count = self.heads * self.queries
        lines.scalar_rest(core, SOFTMAX, cycles * count * self.keys, count)
        lines.emit(core, SOFTMAX, col)

    def _values(self, core: CoreClass, held: Held) -> None:
        core.mov(held.weights.dsd(), held.scores.dsd(), dtype="mixed")
        self._to_queries(core, held.kv, held.weights, first=1)

    def _to_queries(self, core: CoreClass, kv: Vectors, weights: Vectors, first: int) -> None:
        """The sum of keys (`first` token of a pair: 0) or of values (1), weighted, for every query."""
        t, n, d = self.queries, self.keys, self.width
        core.busy(round(self.wafer.vector_start_cycles))
        for a, key in np.ndindex(t, n):
            with core.loop(self.heads):
                out = self.out.dsd(a * self.features, d, step=d)
                token = kv.dsd(self._place(key, first), d, step=d)
                weight = weights.dsd(a * n + key, 1, 0, step=t * n)
                weighted(core, out, token, weight, d, is_first=key == 0)


def weighted(
    core: CoreClass, out: Operand, vector: Operand, weight: Operand, length: int, *, is_first: bool
) -> None:
    """A vector times a weight, added to `out` unless it is the first."""
    if is_first:
        core.mul(out, vector, weight, length=length, dtype="mixed", start="none")
    else:
        core.fmac(out, out, vector, weight, length=length, dtype="mixed", start="none")


class Attention(AttentionByPairs, RegionKind):
    """The region in inference."""

    own_colors = 6
    """Queries; keys; values; sums of even columns, and results of the first one, which has none; of odd columns; and back."""

    @property
    def is_collected(self) -> bool:
        """Whether there is room for cores that send results, behind the inlets; a column at the edge is left to the host's streams."""
        return self.left - 2 >= max(self.region.col, 1)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """A core beside every row, or the first column, from the top."""
        return tuple((self.top + i, self.left - 2 * self.is_collected) for i in range(self.height))

    @property
    def is_apart(self) -> bool:
        """Whether there is a row each for queries, keys and values."""
        return self.height >= PORTS

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Queries beside the first row, keys beside the last (or below the only one), values beside the one above: they share few links.

        Queries go down the first column, where results go up; keys and values go along their rows, then along the columns.
        """
        queries, keys, values = self.kernel.inputs
        low = max(self.last, self.top + 1)
        ends = [(row, self.left - 1) for row in (self.top, low, low - self.is_apart)]
        return Inlet(queries, ends[0]), Inlet(keys, ends[1]), Inlet(values, ends[2])

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Rows along which operands come, the way out beside one of them, and the first column."""
        rows = {inlet.cell[0] for inlet in self.inlets}
        first = self.left - 1 - self.is_collected
        along = {(row, col) for row in rows for col in range(first, self.left + self.cols)}
        return links_between(along | {(row, self.left) for row in range(self.top, self.last + 1)})

    def _place(self, key: int, first: int) -> int:
        return (first * self.keys + key) * self.features if self.is_apart else super()._place(key, first)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Two inlets, and a class for every column and turn."""
        self._inlets(b, ports, samples)
        route_senders(b, ports.outward, self.senders, ports.towards)
        self._declare(b)
        if self.is_collected:
            self._collect(b, ports, samples)
        sharing = self._sharing(b, ports.own[3:6])
        layout = RowLayout(self.heads * self.queries, self.keys, by_row=True)
        buffers = {"scores": self.scores, "statistic": self.statistic}
        lines = Lines(SHAPES, buffers, layout, sharing, self.wafer, apart=self.keys)
        for col in range(self.cols):
            sends = col == 0 and not self.is_collected
            turns = [advance_of(i, self.height) if sends else None for i in range(self.height)]
            for advance in dict.fromkeys(turns):
                core = b.core_class(f"{self.name} column {col} {advance or ''}")
                self._core(core, lines, col, ports, samples, advance)
                for i in range(self.height):
                    if turns[i] == advance:
                        b.place(core, (self.top + i, self.left + col))

    def _declare(self, b: Builder) -> None:
        cells, first = (self.rows, self.columns), (self.rows, self.left)
        t, n, width = self.queries, self.keys, self.features

        def pair(name: str, size: int, where: Place, bank: int) -> list[Buffer]:
            return [b.buffer(f"{self.name}.{name}{i}", size, "fp16", where, bank=bank) for i in (0, 1)]

        self.q, self.kv = pair("q", t * width, cells, 0), pair("kv", 2 * n * width, cells, 2)
        self.scores = b.buffer(f"{self.name}.scores", self.heads * t * n, "fp32", cells, bank=0)
        self.mask = b.buffer(f"{self.name}.mask", self.heads * t * n, "fp32", cells, bank=2)
        self.statistic = b.buffer(f"{self.name}.statistic", self.heads * t, "fp32", cells, bank=2)
        self.weights = b.buffer(f"{self.name}.weights", self.heads * t * n, "fp16", cells, bank=0)
        self.out = b.buffer(f"{self.name}.out", t * width, "fp32", cells, bank=0)
        self.sent = pair("sent", t * width, first, 0)

    def _inlets(self, b: Builder, ports: Ports, samples: int) -> None:
        queries, keys, values = (inlet.cell for inlet in self.inlets)
        own, inward = ports.own, ports.inward
        self._inlet(b, "queries", queries, (inward[:1], own[0]), self.height, samples)
        takers = [(self.top + i, self.left) for i in range(self.height)]
        route_takers(b, own[0], queries, takers, self.cols - 1, "E")
        takers = [(self.last, self.left + j) for j in range(self.cols)]
        route_takers(b, own[1], keys, takers, self.height - 1, "N")
        if not self.is_apart:
            self._inlet(b, "keys and values", keys, (inward[1:], own[1]), self.cols, samples)
            return
        self._inlet(b, "keys", keys, (inward[1:2], own[1]), self.cols, samples)
        self._inlet(b, "values", values, (inward[2:], own[2]), self.cols, samples)
        takers = [(self.last - 1, self.left + j) for j in range(self.cols)]
        route_takers(b, own[2], values, takers, self.height - 2, "N", beside="S")

    def _inlet(
        self, b: Builder, what: str, cell: Cell, colors: tuple[Sequence[int], int], takers: int, samples: int
    ) -> None:
        """A core that hands the operands of a token to each of the cells that take them in turn."""
        inward, outward = colors
        core = b.core_class(f"{self.name} {what}")
        share = [(fabric_in(color), self.features) for color in inward]
        with core.loop(samples * self.tokens // takers):
            deal(core, outward, [share] * takers, takers)
        b.place(core, cell)

    def _core(
        self, core: CoreClass, lines: Lines, col: int, ports: Ports, samples: int, advance: str | None
    ) -> None:
        def receive(turn: int) -> None:
            receive_all(core, ports.own[0], self.q[turn].dsd(), QUERIES)
            kv, half = self.kv[turn], self.keys * self.features
            if self.is_apart:
                receive_all(core, ports.own[1], kv.dsd(0, half), KEYS)
                receive_all(core, ports.own[2], kv.dsd(half, half), VALUES)
            else:
                receive_all(core, ports.own[1], kv.dsd(), KEYS)

        def work(turn: int) -> None:
            held = Held(self.q[turn], self.kv[turn], self.scores, self.weights)
            self._scores(core, held)
            self._softmax(core, lines, col)
            self._values(core, held)
            if col:
                lines.sharing.reduce(core, col, "add", self.out)
            else:
                self._send(core, turn, ports, advance)

        threads = (QUERIES, KEYS, VALUES) if self.is_apart else (QUERIES, KEYS)
        alternate(core, samples, receive, work, threads)

    def _collect(self, b: Builder, ports: Ports, samples: int) -> None:
        """Cores beside the rows: each takes the results of a sample while it sends those of the one before."""
        color = ports.own[3]
        for port, onward, col in (("R", "W", 0), ("E", "W", 1), ("E", "R", 2)):
            b.route(color, (self.rows, self.left - col), rx=port, tx=onward)
        cells, size = (self.rows, self.left - 2), self.queries * self.features
        slots = [b.buffer(f"{self.name}.result{turn}", size, "fp16", cells) for turn in (0, 1)]
        turns = [advance_of(i, self.height) for i in range(self.height)]
        for advance in dict.fromkeys(turns):
            core = b.core_class(f"{self.name} results {advance or ''}")

            def receive(turn: int, core: CoreClass = core) -> None:
                receive_all(core, color, slots[turn].dsd(), SEND)

            def work(turn: int, core: CoreClass = core, advance: str | None = advance) -> None:
                with core.loop(self.queries):
                    token = slots[turn].dsd(0, self.features, step=self.features)
                    core.mov(fabric_out(ports.outward, advance), token, dtype="fp16", start="none")

            alternate(core, samples, receive, work, (SEND,))
            for i, cell in enumerate(self.senders):
                if turns[i] == advance:
                    b.place(core, cell)

    def _send(self, core: CoreClass, turn: int, ports: Ports, advance: str | None) -> None:
        sent, color = self.sent[turn], ports.own[3] if self.is_collected else ports.outward
        if self.cols > 1:
            core.add(sent.dsd(), self.out.dsd(), fabric_in(ports.own[4]))
        else:
            core.mov(sent.dsd(), self.out.dsd(), dtype="mixed")
        with core.loop(self.queries):
            core.join(SEND)
            core.mov(
                fabric_out(color, advance), sent.dsd(0, self.features, step=self.features),
                dtype="fp16", start="none", thread=SEND, priority="high",
            )  # fmt: skip

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """The mask of every core: query a of row i is token a R + i, key b of column j is token b C + j."""
        if not self.is_causal:
            return {}
        query = np.arange(self.queries)[None] * self.height + np.arange(self.height)[:, None]
        key = np.arange(self.keys)[None] * self.cols + np.arange(self.cols)[:, None]
        hidden = key[None, :, None, None, :] > query[:, None, None, :, None]
        shape = (self.height, self.cols, self.heads, self.queries, self.keys)
        mask = np.broadcast_to(np.where(hidden, MASKED, 0.0), shape)
        return {f"{self.name}.mask": mask.reshape(self.height, self.cols, -1).astype(np.float32)}

    def issued_cycles(self) -> float:
        """Of a core of the first column; words of collectives and operands are a cycle each."""
        busy = pair_busy(self.kernel.dims, self.queries, self.keys, self.wafer, self.kernel.attrs)
        return float(busy.total)
