"""Attention that trains: queries over the rows, keys and values over the columns, forward and backward.

Symbols: T tokens, H heads of d features; R rows and C columns, the largest divisors of T that fit; t = T / R queries and
n = T / C keys of a core, blocks of tokens that follow each other; p softmax of the scores, m a number per query::

    forward    as in inference; queries, keys, values and p (fp16) rest in the slot of their sample
    backward   dp = do v     a product of d features per pair            do: gradient of the result, dealt like queries
               m  = sum of p dp, along the row and back; meanwhile dv    dv = sum of p do    down the columns
               ds = scale p (dp - m)
               dq = sum of ds k                                          along the row to the first column
               dk = sum of ds q                                          up the columns

The first column sends dq, the first row dk, the last row dv, token by token, each core in its turn.  Sums along columns run
in microthreads; the last core of a column sends them while it works on the next sample.

Order: every core puts the words of a sample into its one output queue in the order dq, dk, dv, and none of the next
sample's dq before; sums along columns end in a slot of their own.  So words only wait for those of the same or of
earlier samples, whichever of the three streams its reader takes first.

Weighed: a core per query (and head), which hears all keys and values, has no sums along the row.  But the scalar code of the
softmax (240 cycles per score forward, 60 backward) is most of the work: T scores on a core take longer than H on one with
a pair of tokens (8 tokens, 2 heads: 1,920 cycles against 480), and the words of all keys come to each core as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.graph import Phase
from wse_sim.kernels.blocks.line_stages import Lines, RowLayout, Sharing
from wse_sim.kernels.families.attention.cost import special_cycles
from wse_sim.kernels.families.attention.pairs import (
    GRADIENT,
    GRADIENT_SHAPES,
    SHAPES,
    pair_backward,
    pair_busy,
)
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.attention import (
    KEYS,
    MASKED,
    QUERIES,
    SEND,
    AttentionByPairs,
    Held,
    Vectors,
    weighted,
)
from wse_sim.whole.regions.contract import Floats
from wse_sim.whole.regions.turns import advance_of, deal, receive_all, route_senders, route_takers
from wse_sim.whole.trained.contract import HELD_FRACTION, Batch, TrainedKind, TrainedPorts

QUERY, KEY, VALUES = range(3)  # operands
SHARED = 2  # place of the collective among the instructions of the gradient
UP, DOWN = 4, 5  # microthreads: sums of dk, of dv
SLOT_ELEMENTS = 4  # a slot begins in the bank in which the first does
FP16_BYTES, FP32_BYTES = 2, 4


@dataclass(frozen=True)
class Slotted:
    """A buffer of samples: the slot of number `first`, or that much after the one which the loop over samples counts.

    Instructions with a step stand in a loop of their own inside that loop.
    """

    buffer: Buffer
    size: int
    first: int = 0
    moves: bool = False

    @staticmethod
    def pitch(size: int) -> int:
        """Elements from slot to slot."""
        return SLOT_ELEMENTS * -(-size // SLOT_ELEMENTS)

    def dsd(self, offset: int = 0, length: int | None = None, stride: int = 1, *, step: int = 0) -> Operand:
        """Elements of the slot."""
        apart = self.pitch(self.size)
        moving = apart if self.moves else 0
        length = self.size - offset if length is None else length
        at = self.first * apart + offset
        if step:
            return self.buffer.dsd(at, length, stride, step=step, outer_step=moving)
        return self.buffer.dsd(at, length, stride, step=moving)


@dataclass(frozen=True)
class _Turn:
    """A sample of a round: its slot, whether a loop moves it on, whether it is the first or the last of its part."""

    first: int
    moves: bool = False
    is_first: bool = False
    is_last: bool = False

    def of(self, held: Slotted, more: int = 0) -> Slotted:
        """The slot of this sample, or of one that comes `more` later."""
        return replace(held, first=self.first + more, moves=self.moves)


@dataclass(frozen=True)
class _Role:
    """What a core is: its row and column, the marks of its last words to the three outlets."""

    row: int
    col: int
    is_top: bool
    is_last: bool
    column_turn: str | None  # of the first column
    row_turn: str | None  # of the first and of the last row


class TrainedAttention(AttentionByPairs, TrainedKind):
    """The region of a batch."""

    own_colors = 9  # queries and do; keys and values; sums along rows and back; sums up columns, down columns
    reads = ()

    @property
    def gradient_inlet(self) -> Cell:
        """The inlet of the queries."""
        return self.inlets[0].cell

    def gradient_senders(self, tensor: str) -> tuple[Cell, ...]:
        """The first column, the first row, the last row."""
        queries, keys, _ = self.kernel.inputs
        if tensor == queries:
            return self.senders
        row = self.top if tensor == keys else self.last
        return tuple((row, self.left + j) for j in range(self.cols))

    # ---- memory ----------------------------------------------------------------------------------------------------

    @property
    def query_elements(self) -> int:
        """Of a core and sample."""
        return self.queries * self.features

    @property
    def key_elements(self) -> int:
        """Of a core and sample."""
        return self.keys * self.features

    @property
    def pairs(self) -> int:
        """Scores of a core and sample."""
        return self.heads * self.queries * self.keys

    def most_in_flight(self) -> int:
        """By the first core of the first column and row, which sends as well."""
        a, b, s = self.query_elements, self.key_elements, self.pairs
        numbers = FP32_BYTES * (a + 2 * b + s * (1 + self.is_causal) + self.heads * self.queries)
        slots = sum(map(Slotted.pitch, (a, a, a, 2 * b, s, b, *([b] if self.height == 1 else []))))
        room = HELD_FRACTION * FabricConfig.from_wafer(self.wafer).sram_usable_bytes
        return int((room - numbers - FP16_BYTES * s) // (FP16_BYTES * slots))

    def _declare(self, b: Builder, slots: int) -> None:
        cells = (self.rows, self.columns)
        a, n, s = self.query_elements, self.key_elements, self.pairs

        def held(name: str, size: int, where: object, bank: int) -> Slotted:
            length = slots * Slotted.pitch(size)
            return Slotted(b.buffer(f"{self.name}.{name}", length, "fp16", where, bank=bank), size)  # type: ignore[arg-type]

        def numbers(name: str, size: int, bank: int) -> Buffer:
            return b.buffer(f"{self.name}.{name}", size, "fp32", cells, bank=bank)

        self.q, self.do = held("q", a, cells, 0), held("do", a, cells, 0)
        self.kv, self.p = held("kv", 2 * n, cells, 2), held("p", s, cells, 2)
        self.sent = held("sent", a, (self.rows, self.left), 0)
        self.sent_keys = held("sent keys", n, (self.top, self.columns), 0)
        self.sent_values = held("sent values", n, (self.last, self.columns), 0)
        self.scores, self.mask = numbers("scores", s, 0), numbers("mask", s, 2)
        self.statistic = numbers("statistic", self.heads * self.queries, 2)
        self.out, self.dk, self.dv = numbers("out", a, 0), numbers("dk", n, 2), numbers("dv", n, 2)
        self.ds = b.buffer(f"{self.name}.ds", s, "fp16", cells, bank=0)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Two inlets, and a class for every kind of core."""
        self._inlets(b, ports, batch)
        route_senders(b, ports.outward, self.senders, ports.towards)
        for tensor, (color, towards) in ports.gradient_out.items():
            route_senders(b, color, self.gradient_senders(tensor), towards)
        self._declare(b, batch.in_flight)
        writer = _Writer(
            self, ports, batch, self._sharing(b, ports.own[2:5]), self._columns(b, ports.own[5:])
        )
        classes: dict[tuple[object, ...], CoreClass] = {}
        for i, j in np.ndindex(self.height, self.cols):
            ends = (i == 0, i == self.height - 1, i % 2, j == 0, j == self.cols - 1, j % 2)
            if ends not in classes:
                classes[ends] = b.core_class(f"{self.name} row {i} column {j}")
                turns = advance_of(i, self.height), advance_of(j, self.cols)
                writer.write(classes[ends], _Role(i, j, *ends[:2], *turns))
            b.place(classes[ends], (self.top + i, self.left + j))

    def _inlets(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        queries, pairs, _ = self.inlets
        core = b.core_class(f"{self.name} queries and gradients")
        with core.loop(batch.rounds):
            for color in (ports.inward[0], ports.gradient_in):
                share = [(fabric_in(color), self.query_elements)]
                with core.loop(batch.in_flight):
                    deal(core, ports.own[0], [share] * self.height, self.height)
        b.place(core, queries.cell)
        route_takers(b, ports.own[0], queries.cell, self.senders, self.cols - 1, "E")
        core = b.core_class(f"{self.name} keys and values")
        share = [(fabric_in(color), self.features) for color in ports.inward[1:]] * self.keys
        with core.loop(batch.samples):
            deal(core, ports.own[1], [share] * self.cols, self.cols)
        b.place(core, pairs.cell)
        takers = [(self.top, self.left + j) for j in range(self.cols)]
        route_takers(b, ports.own[1], pairs.cell, takers, self.height - 1, "S")

    def _columns(self, b: Builder, colors: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Routes of sums along the columns; by microthread, the colors that even rows and odd rows send on."""
        found = {UP: (colors[0], colors[1]), DOWN: (colors[2], colors[3])}
        for i in range(self.height - 1):
            above, below = (self.top + i, self.columns), (self.top + i + 1, self.columns)
            b.route(found[DOWN][i % 2], above, rx="R", tx="S")
            b.route(found[DOWN][i % 2], below, rx="N", tx="R")
            b.route(found[UP][(i + 1) % 2], below, rx="R", tx="N")
            b.route(found[UP][(i + 1) % 2], above, rx="S", tx="R")
        return found

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """The mask of every core."""
        if not self.is_causal:
            return {}
        query = np.arange(self.tokens).reshape(self.height, 1, 1, self.queries, 1)
        key = np.arange(self.tokens).reshape(1, self.cols, 1, 1, self.keys)
        shape = (self.height, self.cols, self.heads, self.queries, self.keys)
        mask = np.broadcast_to(np.where(key > query, MASKED, 0.0), shape)
        return {f"{self.name}.mask": mask.reshape(self.height, self.cols, -1).astype(np.float32)}

    def read(self, buffers: Mapping[str, Floats]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """It has no parameters."""
        return {}, {}

    def issued_cycles(self) -> float:
        """Of the first core, which sends dq and dk; forward and backward."""
        how = (self.kernel.dims, self.queries, self.keys, self.wafer, self.kernel.attrs)
        forward = pair_busy(*how)
        backward = pair_backward(*how)
        return float(forward.total + backward.total)

    def update_cycles(self) -> float:
        """It has no parameters."""
        return 0.0


@dataclass(frozen=True)
class _Writer:
    """Writes the classes of cores."""

    region: TrainedAttention
    ports: TrainedPorts
    batch: Batch
    sharing: Sharing
    columns: Mapping[int, tuple[int, int]]

    def write(self, core: CoreClass, role: _Role) -> None:
        """All rounds of a core: a sample comes in while the one before is worked on."""
        at, d, own = self.region, self.batch.in_flight, self.ports.own

        def operands(turn: _Turn) -> None:
            receive_all(core, own[0], turn.of(at.q).dsd(), QUERIES)
            receive_all(core, own[1], turn.of(at.kv).dsd(), KEYS)

        def forward(turn: _Turn) -> None:
            core.join(QUERIES)
            core.join(KEYS)
            if not turn.is_last:
                operands(replace(turn, first=turn.first + 1))
            self._forward(core, role, turn)

        def gradient(turn: _Turn) -> None:
            receive_all(core, own[0], turn.of(at.do).dsd(), QUERIES)

        def backward(turn: _Turn) -> None:
            core.join(QUERIES)
            if not turn.is_last:
                gradient(replace(turn, first=turn.first + 1))
            self._backward(core, role, turn)

        with core.loop(self.batch.rounds):
            operands(_Turn(0))
            if d > 1:
                with core.loop(d - 1):
                    forward(_Turn(0, moves=True))
            forward(_Turn(d - 1, is_last=True))
            gradient(_Turn(0))
            if d > 1:
                backward(_Turn(0, is_first=True))
            if d > 2:
                with core.loop(d - 2):
                    backward(_Turn(1, moves=True))
            last = _Turn(d - 1, is_first=d == 1, is_last=True)
            backward(last)
            self._join(core, self._columns_at_work(UP, DOWN))
            self._send_keys(core, role, last)
            self._send_values(core, role, last)

    # ---- forward ---------------------------------------------------------------------------------------------------

    def _forward(self, core: CoreClass, role: _Role, turn: _Turn) -> None:
        at = self.region
        held = Held(turn.of(at.q), turn.of(at.kv), turn.of(at.p))
        layout = RowLayout(at.heads * at.queries, at.keys, by_row=True)
        buffers = {"scores": at.scores, "statistic": at.statistic}
        lines = Lines(SHAPES, buffers, layout, self.sharing, at.wafer, apart=at.keys)
        at._scores(core, held)
        at._softmax(core, lines, role.col)
        at._values(core, held)
        self._along_row(core, role, turn, self.ports.outward)

    def _along_row(
        self, core: CoreClass, role: _Role, turn: _Turn, color: int, after: Sequence[int] = ()
    ) -> None:
        """Sums of `out` to the first column, which sends them on a color when the microthreads `after` are done."""
        at, sent = self.region, turn.of(self.region.sent)
        if role.col:
            self.sharing.reduce(core, role.col, "add", at.out)
            return
        if self.batch.in_flight == 1:
            core.join(SEND)  # the sample before has the same slot
        if at.cols > 1:
            core.add(sent.dsd(), at.out.dsd(), fabric_in(self.ports.own[3]))
        else:
            core.mov(sent.dsd(), at.out.dsd(), dtype="mixed")
        self._join(core, after)
        self._send(core, color, role.column_turn, sent)

    def _send(self, core: CoreClass, color: int, turn: str | None, sent: Slotted) -> None:
        core.mov(
            fabric_out(color, turn), sent.dsd(), dtype="fp16", start="none", thread=SEND, priority="high"
        )

    # ---- backward --------------------------------------------------------------------------------------------------

    def _backward(self, core: CoreClass, role: _Role, turn: _Turn) -> None:
        at = self.region
        q, do, kv, p = (turn.of(held) for held in (at.q, at.do, at.kv, at.p))
        layout = RowLayout(at.heads * at.queries, at.keys, by_row=True)
        buffers = {"y": p, "g": at.scores, "statistic": at.statistic}
        lines = Lines(GRADIENT_SHAPES, buffers, layout, self.sharing, at.wafer, apart=at.keys)
        before = replace(turn, first=turn.first - 1)

        at._products(core, do, kv, first=1)
        cycles = special_cycles(at.wafer, at.kernel.attrs, Phase.INPUT_GRADIENT) * at.pairs
        lines.scalar_rest(core, GRADIENT, cycles, at.heads * at.queries)
        lines.emit(core, GRADIENT[:SHARED], role.col)
        self._join(core, self._columns_at_work(UP, DOWN))
        if not turn.is_first:
            self._send_keys(core, role, before)
        self.sharing.reduce(core, role.col, "add", at.statistic)
        if self._is_needed(VALUES):
            self._to_keys(core, at.dv, do, p)
            self._along_column(core, role, DOWN, at.dv, turn.of(at.sent_values))
        self.sharing.multicast(core, role.col, at.statistic)
        lines.emit(core, GRADIENT[SHARED + 1 :], role.col)
        core.mul(at.ds.dsd(), at.scores.dsd(), scalar(at.scale), dtype="mixed")
        if self._is_needed(QUERY):
            at._to_queries(core, kv, at.ds, first=0)
        if not turn.is_first:
            self._send_values(core, role, before)
        if self._is_needed(QUERY):
            # Words of dq that wait for their turn would hold up the sums which the row above waits for.
            self._along_row(core, role, turn, self._leaving(QUERY), self._columns_at_work(DOWN))
        if self._is_needed(KEY):
            self._to_keys(core, at.dk, q, at.ds)
            self._along_column(core, role, UP, at.dk, turn.of(at.sent_keys))

    def _is_needed(self, operand: int) -> bool:
        return self.region.kernel.inputs[operand] in self.ports.gradient_out

    def _leaving(self, operand: int) -> int:
        return self.ports.gradient_out[self.region.kernel.inputs[operand]][0]

    def _to_keys(self, core: CoreClass, target: Buffer, rows: Slotted, weights: Vectors) -> None:
        """The sum of rows of queries, weighted, for every key."""
        at = self.region
        t, n, d = at.queries, at.keys, at.width
        core.busy(round(at.wafer.vector_start_cycles))
        for key, a in np.ndindex(n, t):
            with core.loop(at.heads):
                out = target.dsd(key * at.features, d, step=d)
                row = rows.dsd(a * at.features, d, step=d)
                weight = weights.dsd(a * n + key, 1, 0, step=t * n)
                weighted(core, out, row, weight, d, is_first=a == 0)

    def _along_column(self, core: CoreClass, role: _Role, thread: int, own: Buffer, sent: Slotted) -> None:
        """Sums of `own` up or down the column; its last core puts them into the slot from which they leave."""
        even, odd = self.columns[thread]
        here, behind = (odd, even) if role.row % 2 else (even, odd)
        starts, ends = (role.is_last, role.is_top) if thread == UP else (role.is_top, role.is_last)
        if starts and ends:
            core.mov(sent.dsd(), own.dsd(), dtype="mixed")
        elif starts:
            core.mov(fabric_out(here), own.dsd(), start="none", thread=thread, priority="high")
        else:
            target = sent.dsd() if ends else fabric_out(here)
            core.add(target, own.dsd(), fabric_in(behind), start="none", thread=thread, priority="high")

    def _join(self, core: CoreClass, threads: Sequence[int]) -> None:
        for thread in threads:
            core.join(thread)

    def _columns_at_work(self, *threads: int) -> list[int]:
        """Those of the microthreads of sums along columns that there are."""
        used = {UP: self._is_needed(KEY), DOWN: self._is_needed(VALUES)}
        return [thread for thread in threads if used[thread] and self.region.height > 1]

    def _send_keys(self, core: CoreClass, role: _Role, turn: _Turn) -> None:
        if role.is_top and self._is_needed(KEY):
            self._send(core, self._leaving(KEY), role.row_turn, turn.of(self.region.sent_keys))

    def _send_values(self, core: CoreClass, role: _Role, turn: _Turn) -> None:
        if role.is_last and self._is_needed(VALUES):
            self._send(core, self._leaving(VALUES), role.row_turn, turn.of(self.region.sent_values))
