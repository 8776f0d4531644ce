"""Attention: queries over the rows, keys and values over the columns; every core has the scores of its pairs.

Symbols: T tokens, H heads of d features; t = ceil(T / rows) queries and n = ceil(T / columns) keys of the
fullest core, for all heads, on R = ceil(T / t) rows and C = ceil(T / n) columns; the last rows and columns
have one less if T is not divisible::

    inlet of queries          > token by token, one multicast per row
    inlets of keys, of values > token by token, one multicast per column
    core     scores  H t n products of d features, scaled, masked; softmax with a maximum and a sum along the row
             values  H t n multiples of d features, summed along the row
    first column: results of its queries, to a core next to each row, which sends them in row order

Token i is a query of row i mod R and a key of column i mod C, so in a last round the first rows and columns
have one token each. The last row of that round sends a control word after its token, which switches the rows
before it back.

A core has one output queue. If the first column sent the results itself, results that wait for earlier rows
would block the maxima and sums of its row (head-of-line blocking), and rows would drift apart. So a separate
core per row sends them. With only one moving column, the first column sends them itself.

Keys and values of a sample arrive before its first score is computed; those of the next sample arrive
meanwhile. Regions of two rows have one inlet for both, pair by pair. Scores take the calibrated cycles of a
special element, as in the family's program: the part that their vector instructions do not issue is scalar
code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wse_sim.fabric.format.builder import Buffer, Builder, Place, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Command
from wse_sim.graph import Phase
from wse_sim.kernels.blocks.line_stages import Lines, RowLayout, Sharing
from wse_sim.kernels.families.attention.cost import special_cycles
from wse_sim.kernels.families.attention.pairs import SHAPES, SOFTMAX
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.attention_pairs import (
    KEYS,
    QUERIES,
    SEND,
    VALUES,
    AttentionByPairs,
    PairBuffers,
    part_of,
)
from wse_sim.whole.regions.contract import (
    Inlet,
    Ports,
    RegionKind,
    links_between,
)
from wse_sim.whole.regions.shared_color import (
    advance_of,
    deal,
    receive_all,
    route_senders,
    route_takers,
    send_all,
)
from wse_sim.whole.regions.turns import alternate

PORTS = 3  # operands; each may enter on a separate row


class Sends(NamedTuple):
    """How a row sends: full rounds, and the switch command of its last word.

    In a partial last round, `ends` is the command of a row that has a token; the row `closes` the round if it
    is the last of several.
    """

    rounds: int
    advance: str | None
    has_more: bool
    ends: str | None
    closes: bool

    @classmethod
    def of(cls, tokens: int, row: int, rows: int) -> Sends:
        """Return how row `row` of `rows` sends when `tokens` tokens are dealt round-robin."""
        full, left = divmod(tokens, rows)
        closes = left > 1 and row == left - 1
        ends = "local" if row < left - 1 else None
        return cls(full, advance_of(row, rows), row < left, ends, closes)


class Attention(AttentionByPairs, RegionKind):
    """Attention on its region, in inference."""

    own_colors = 6
    """Colors for queries; keys; values; sums of even columns and results of the first; sums of odd columns;
    and the multicast back."""

    @property
    def is_collected(self) -> bool:
        """Whether separate cores send the results; they need a free column behind the inlets that is not at
        the edge of the fabric."""
        return self.left - 2 >= max(self.region.col, 1)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """Cells that send the results, from the top: a core next to every row, or the first column."""
        return tuple((self.top + i, self.left - 2 * self.is_collected) for i in range(self.height))

    @property
    def is_apart(self) -> bool:
        """Whether queries, keys and values each enter on a separate row."""
        return self.height >= PORTS

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Inlets of queries (first row), keys (last row, or below the only one) and values (the row above),
        which share few links.

        Queries go down the first column, where results go up; keys and values go along their rows, then along
        the columns.
        """
        queries, keys, values = self.kernel.inputs
        low = max(self.last, self.top + 1)
        ends = [(row, self.left - 1) for row in (self.top, low, low - self.is_apart)]
        return Inlet(queries, ends[0]), Inlet(keys, ends[1]), Inlet(values, ends[2])

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Links of the rows on which operands arrive, of the column next to them, and of the first column."""
        rows = {inlet.cell[0] for inlet in self.inlets}
        first = self.left - 1 - self.is_collected
        along = {(row, col) for row in rows for col in range(first, self.left + self.cols)}
        return links_between(along | {(row, self.left) for row in range(self.top, self.last + 1)})

    def _place(self, keys: int, key: int, first: int) -> int:
        return (first * keys + key) * self.key_features if self.is_apart else super()._place(keys, key, first)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the inlets, and one core class per column and send order."""
        self._inlets(b, ports, samples)
        ((outward, towards),) = ports.results
        route_senders(b, outward, self.senders, towards, pop="never")
        self._declare(b)
        if self.is_collected:
            self._collect(b, ports, samples)
        sharing = self._sharing(b, ports.own[3:6])
        queries = [len(tokens) for tokens in self.parts(self.height)]
        for col, keys in enumerate(self.parts(self.cols)):
            sends = col == 0 and not self.is_collected
            kinds: dict[tuple[int, Sends | None], CoreClass] = {}
            for i, count in enumerate(queries):
                kind = (count, Sends.of(self.tokens, i, self.height) if sends else None)
                if kind not in kinds:
                    kinds[kind] = b.core_class(f"{self.name} column {col} {len(kinds)}")
                    self._core(kinds[kind], sharing, col, (count, len(keys)), ports, samples, kind[1])
                b.place(kinds[kind], (self.top + i, self.left + col))

    def _declare(self, b: Builder) -> None:
        cells, first = (self.rows, self.columns), (self.rows, self.left)
        t, n, width = self.queries, self.keys, self.features

        def pair(name: str, size: int, where: Place, bank: int) -> list[Buffer]:
            return [b.buffer(f"{self.name}.{name}{i}", size, "fp16", where, bank=bank) for i in (0, 1)]

        self.q, self.kv = pair("q", t * width, cells, 0), pair("kv", 2 * n * self.key_features, cells, 2)
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
        """Write a core that deals the operands of each token to the `takers` round-robin."""
        inward, outward = colors
        features = self.features if what == "queries" else self.key_features
        core = b.core_class(f"{self.name} {what}")
        share = [(fabric_in(color), features) for color in inward]
        full, left = divmod(self.tokens, takers)
        with core.loop(samples):
            with core.loop(full):
                deal(core, outward, [share] * takers, takers)
            if left:
                deal(core, outward, [share] * left, left)
        b.place(core, cell)

    def _core(
        self, core: CoreClass, sharing: Sharing, col: int, size: tuple[int, int], ports: Ports, samples: int, sends: Sends | None
    ) -> None:  # fmt: skip
        t, n = size
        count, half = self.heads * t, n * self.key_features
        q, kv = (
            [part_of(one, length) for one in pair]
            for pair, length in ((self.q, t * self.features), (self.kv, 2 * half))
        )
        scores, weights, mask = (part_of(one, count * n) for one in (self.scores, self.weights, self.mask))
        out, statistic = part_of(self.out, t * self.features), part_of(self.statistic, count)
        layout = RowLayout(count, n, by_row=True)
        lines = Lines(
            SHAPES, {"scores": scores, "statistic": statistic}, layout, sharing, self.wafer, apart=n
        )
        cycles = special_cycles(self.wafer, self.kernel.attrs, Phase.FORWARD) * count * n

        def receive(turn: int) -> None:
            receive_all(core, ports.own[0], q[turn].dsd(), QUERIES)
            if self.is_apart:
                receive_all(core, ports.own[1], kv[turn].dsd(0, half), KEYS)
                receive_all(core, ports.own[2], kv[turn].dsd(half, half), VALUES)
            else:
                receive_all(core, ports.own[1], kv[turn].dsd(), KEYS)

        def work(turn: int) -> None:
            held = PairBuffers(t, n, q[turn], kv[turn], scores, weights, mask, out)
            self._scores(core, held)
            lines.scalar_rest(core, SOFTMAX, cycles, count)
            lines.emit(core, SOFTMAX, col)
            self._values(core, held)
            if col:
                sharing.reduce(core, col, "add", out)
            else:
                self._send(core, out, self.sent[turn], ports, sends)

        threads = (QUERIES, KEYS, VALUES) if self.is_apart else (QUERIES, KEYS)
        alternate(core, samples, receive, work, threads)

    def _collect(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the cores that send results: each receives a sample's results while it sends those of the
        sample before."""
        color = ports.own[3]
        for port, onward, col in (("R", "W", 0), ("E", "W", 1), ("E", "R", 2)):
            b.route(color, (self.rows, self.left - col), rx=port, tx=onward)
        cells, size = (self.rows, self.left - 2), self.queries * self.features
        slots = [b.buffer(f"{self.name}.result{turn}", size, "fp16", cells) for turn in (0, 1)]
        kinds: dict[Sends, CoreClass] = {}
        for i, cell in enumerate(self.senders):
            sends = Sends.of(self.tokens, i, self.height)
            if sends not in kinds:
                core = kinds[sends] = b.core_class(f"{self.name} results {len(kinds)}")
                tokens = (sends.rounds + sends.has_more) * self.features

                def receive(turn: int, core: CoreClass = core, tokens: int = tokens) -> None:
                    receive_all(core, color, slots[turn].dsd(0, tokens), SEND)

                def work(turn: int, core: CoreClass = core, sends: Sends = sends) -> None:
                    self._send_tokens(core, ports.results[0][0], slots[turn], sends)

                alternate(core, samples, receive, work, (SEND,))
            b.place(kinds[sends], cell)

    def _send(self, core: CoreClass, out: Buffer, sent: Buffer, ports: Ports, sends: Sends | None) -> None:
        """Combine the results of the first column with those of its row, and send them."""
        sent = part_of(sent, out.length)
        if self.cols > 1:
            core.add(sent.dsd(), out.dsd(), fabric_in(ports.own[4]))
        else:
            core.mov(sent.dsd(), out.dsd(), dtype="mixed")
        if sends is not None:
            self._send_tokens(core, ports.results[0][0], sent, sends, SEND)
            return
        with core.loop(out.length // self.features):
            core.join(SEND)
            token = sent.dsd(0, self.features, step=self.features)
            send_all(core, fabric_out(ports.own[3]), token, SEND)

    def _send_tokens(
        self, core: CoreClass, color: int, sent: Buffer, sends: Sends, thread: int | None = None
    ) -> None:
        """Send the results token by token, each when the switches select this row."""

        def send(advance: str | None, token: Operand) -> None:
            if thread is None:
                core.mov(fabric_out(color, advance), token, dtype="fp16", start="none")
                return
            core.join(thread)
            send_all(core, fabric_out(color, advance), token, thread)

        with core.loop(sends.rounds):
            send(sends.advance, sent.dsd(0, self.features, step=self.features))
        if sends.has_more:
            send(sends.ends, sent.dsd(sends.rounds * self.features, self.features))
        if sends.closes:
            if thread is not None:
                core.join(thread)
            core.control(color, Command.RESET, start="none")

    # ---- cycles ------------------------------------------------------------------------------------------
