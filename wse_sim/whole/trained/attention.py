"""Trainable attention: queries over the rows, keys and values over the columns, forward and backward.

Symbols: T tokens, H heads of d features; t queries and n keys of the fullest core; p softmax of the scores, m a number
per query::

    forward    as in inference; queries, keys, values and p (fp16) stay in the slot of their sample
    backward   dp = do v     a product of d features per pair            do: gradient of the result, dealt like queries
               m  = sum of p dp                                          along the row and back
               ds = scale p (dp - m)
               dq = sum of ds k                                          along the row, to a core next to it
               dk = sum of ds q,  dv = sum of p do                       down the column, to a core below it; over all heads
                                                                         of queries that share a head of keys

Collectors next to the rows send results and dq, those below the columns dk and dv, token by token, in
sequence. They do nothing else: a core has one output queue, in which waiting words block the words behind
them. (If the first column sent dq, and the last row dk and dv, sums of the next sample would wait behind
them: 2,240 cycles per sample instead of the 1,400 that the cores need, on 16 x 16 cores.) Sums along columns
run in a microthread, during the next sample's work.

Order: sums of a sample wait only for words of the same or of earlier samples. Sums end in collectors, which
buffer two samples, and a core starts no third sample before its sums down the column are on their way. So
whichever of the three streams a reader takes first, the others advance as far as that one needs.

Alternatives that were measured: with sums along rows that return while a core works on the next sample, a
sample takes 1,390 cycles instead of 1,680, on 16 x 16 cores. But then a result waits for the operands of the
next sample, and a skip around attention would have to buffer one more: two transformer blocks deadlocked.
With one core per query (and head) that receives all keys and values, there are no sums along the row. But the
scalar code of the softmax (240 cycles per score forward, 60 backward) dominates: T scores on one core take
longer than H on a core with one pair of tokens (8 tokens, 2 heads: 1,920 cycles against 480), and each core
would receive the words of all keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Phase
from wse_sim.kernels.families.attention.pairs import (
    AHEAD,
    GRADIENT,
    GRADIENT_SHAPES,
    collected_bytes,
    slot_elements,
)
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.attention import CoreRole, ForwardAttention
from wse_sim.whole.regions.attention_pairs import (
    KEYS,
    QUERIES,
    PairBuffers,
    Vectors,
    part_of,
    weighted,
)
from wse_sim.whole.regions.collectors import Collected, write_collectors
from wse_sim.whole.regions.shared_color import receive_all, route_senders
from wse_sim.whole.regions.turns import slot_by_slot
from wse_sim.whole.room import room_bytes
from wse_sim.whole.trained.contract import Batch, TrainedKind, TrainedPorts, beyond
from wse_sim.whole.trained.rows import Slots

QUERY, KEY, VALUES = range(3)  # operands
DOWN = 3  # microthread: sums of dk and dv


class TrainedAttention(ForwardAttention, TrainedKind):
    """Attention on its region, for a batch of training."""

    own_colors = 7  # queries and do; keys and values; sums along rows, and back; sums down columns

    collecting_rows = 1

    def gradient_senders(self, tensor: str, bundle: int) -> tuple[Cell, ...]:
        """Return the collectors next to the rows (queries) or below the columns (keys, values)."""
        if tensor == self.kernel.inputs[QUERY]:
            return self.senders
        return tuple((self.last + 1, self.left + j) for j in range(self.cols))

    @property
    def moving(self) -> frozenset[Cell]:
        """Inlets and collectors."""
        return super().moving | set(self.senders)

    # ---- memory ----------------------------------------------------------------------------------------------------

    @property
    def query_elements(self) -> int:
        """Query elements of the fullest core per sample."""
        return self.queries * self.features

    @property
    def key_elements(self) -> int:
        """Key elements of the fullest core per sample."""
        return self.keys * self.key_features

    @property
    def pairs(self) -> int:
        """Scores of the fullest core per sample."""
        return self.heads * self.queries * self.keys

    def most_in_flight(self) -> int:
        """Return the samples in flight that fit in a compute core."""
        fixed, each, room = self._bytes
        return int((room - fixed) // each)

    @property
    def too_large(self) -> str:
        """Queries, keys, values and scores of a sample, with their bytes."""
        fixed, each, room = self._bytes
        return f"queries, keys, values and scores of a sample: {beyond(fixed + each, room)}"

    @property
    def _bytes(self) -> tuple[int, int, int]:
        """Bytes of a compute core: fixed ones, those of each sample in flight, and the limit of both together."""
        fixed, each = collected_bytes(
            self.kernel.dims, self.queries, self.keys, self.wafer, self.kernel.attrs
        )
        return int(fixed), int(each), room_bytes(self.wafer)

    def _declare(self, b: Builder, slots: int) -> None:
        cells = (self.rows, self.columns)
        a, n, s = self.query_elements, self.key_elements, self.pairs

        def held(name: str, size: int, bank: int, more: int = 0) -> Buffer:
            length = (slots + more) * int(slot_elements(size))
            return b.buffer(f"{self.name}.{name}", length, "fp16", cells, bank=bank)

        def numbers(name: str, size: int, bank: int) -> Buffer:
            return b.buffer(f"{self.name}.{name}", size, "fp32", cells, bank=bank)

        # The gradient of sample i has the slot in which the queries of sample i - AHEAD were.
        self.q, self.kv, self.p = held("q", a, 0, AHEAD), held("kv", 2 * n, 2), held("p", s, 2)
        self.scores, self.statistic = (
            numbers("scores", s, 0),
            numbers("statistic", self.heads * self.queries, 2),
        )
        self.mask, self.out, self.dkv = (
            numbers("mask", s if self.masks else 1, 2),
            numbers("out", a, 0),
            numbers("dkv", 2 * n, 2),
        )
        self.ds = b.buffer(f"{self.name}.ds", s, "fp16", cells, bank=0)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write the inlets, one core class per kind of core, and the collectors."""
        rounds, samples = batch.rounds, batch.in_flight
        self._deal_queries(
            b, ports.own[0], (ports.inward[0], *ports.arriving), rounds, samples, "queries and gradients"
        )
        self._deal_pairs(b, ports.own[1], ports.inward[1:], batch.samples)
        ((outward, towards),) = ports.results
        route_senders(b, outward, self.senders, towards)
        for tensor, ((color, towards),) in ports.leaving.items():
            route_senders(b, color, self.gradient_senders(tensor, 0), towards)
        self._declare(b, batch.in_flight)
        self._route_sums(b, ports.own[2:5])
        writer = _Writer(self, ports, batch)
        queries, keys = ([len(part) for part in self.parts(lines)] for lines in (self.height, self.cols))
        classes: dict[tuple[object, ...], CoreClass] = {}
        for i, j in np.ndindex(self.height, self.cols):
            kind = (i == 0, i % 2, j == 0, j == self.cols - 1, j % 2, queries[i], keys[j])
            if kind not in classes:
                classes[kind] = b.core_class(f"{self.name} row {i} column {j}")
                writer.write(classes[kind], CoreRole(i, j, queries[i], keys[j]))
            b.place(classes[kind], (self.top + i, self.left + j))
        self._collect_rows(b, ports.own[2], [outward, *self._leaving(QUERY, ports)], rounds, samples)
        self._collect_columns(b, ports, batch)

    def _collect_columns(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write the collectors of key and value gradients."""
        streams = [*self._leaving(KEY, ports), *self._leaving(VALUES, ports)]
        if not streams:
            return
        for i in range(self.height):
            color = ports.own[5 + i % 2]
            b.route(color, (self.top + i, self.columns), rx="R", tx="S")
            b.route(color, (self.top + i + 1, self.columns), rx="N", tx="R")
        passes = [
            (Collected(color, tuple((stream, size) for stream in streams)),)
            for size in self.elements(self.cols, self.key_features)
        ]
        cells = self.gradient_senders(self.kernel.inputs[KEY], 0)
        write_collectors(
            b,
            f"{self.name}.gradients",
            cells,
            (self.last + 1, self.columns),
            batch.rounds,
            batch.in_flight,
            passes,
        )

    def is_needed(self, operand: int) -> bool:
        """Return whether the gradient of an operand is needed."""
        return self.kernel.inputs[operand] in self.needs

    @property
    def pairs_needed(self) -> int:
        """Number of gradients needed of keys and values: 0 to 2."""
        return self.is_needed(KEY) + self.is_needed(VALUES)

    def _leaving(self, operand: int, ports: TrainedPorts) -> tuple[int, ...]:
        """Return the color on which the gradient of an operand leaves, as a tuple that is empty if it is not
        needed."""
        return tuple(color for color, _ in ports.leaving.get(self.kernel.inputs[operand], ()))


def _slots(buffer: Buffer, size: int) -> Slots:
    """Return the slots of samples of `size` elements."""
    return Slots(buffer, int(slot_elements(size)), size)


@dataclass(frozen=True)
class _Writer:
    """Writes the programs of the compute cores."""

    region: TrainedAttention
    ports: TrainedPorts
    batch: Batch

    def write(self, core: CoreClass, role: CoreRole) -> None:
        """Write all rounds of a core: a sample arrives while the one before is processed."""
        own = self.ports.own

        def operands(first: int, step: int) -> None:
            held = self._held(role, first, step)
            receive_all(core, own[0], held.q.dsd(), QUERIES)
            receive_all(core, own[1], held.kv.dsd(), KEYS)

        def gradient(first: int, step: int) -> None:
            receive_all(core, own[0], self._gradient(role, first, step).dsd(), QUERIES)

        def forward(first: int, step: int, more: bool) -> None:
            core.join(KEYS)
            core.join(QUERIES)
            if more:
                operands(first + 1, step)
            self.region._forward(core, role, self._held(role, first, step))

        def backward(first: int, step: int, more: bool) -> None:
            core.join(QUERIES)
            if more:
                gradient(first + 1, step)
            self._backward(core, role, self._held(role, first, step), self._gradient(role, first, step))

        with core.loop(self.batch.rounds):
            operands(0, 0)
            slot_by_slot(core, self.batch.in_flight, forward)
            gradient(0, 0)
            slot_by_slot(core, self.batch.in_flight, backward)

    def _held(self, role: CoreRole, first: int, step: int) -> PairBuffers:
        """Return a core's buffers for a sample: their first elements, since buffers have the size of the fullest core."""
        at, t, n = self.region, role.queries, role.keys
        pairs = at.heads * t * n

        def slot(buffer: Buffer, size: int, ahead: int = 0) -> Slots:
            return _slots(buffer, size).of_turn(first + ahead, step)

        scores, mask, out = (
            part_of(at.scores, pairs),
            part_of(at.mask, pairs),
            part_of(at.out, t * at.features),
        )
        q, kv = slot(at.q, t * at.features, AHEAD), slot(at.kv, 2 * n * at.key_features)
        return PairBuffers(t, n, q, kv, scores, slot(at.p, pairs), mask, out)

    def _gradient(self, role: CoreRole, first: int, step: int) -> Slots:
        """Return the buffer for the gradient of a sample's results: the queries that were there are done with."""
        return _slots(self.region.q, role.queries * self.region.features).of_turn(first, step)

    # ---- backward --------------------------------------------------------------------------------------------------

    def _backward(self, core: CoreClass, role: CoreRole, held: PairBuffers, do: Slots) -> None:
        at = self.region
        ds = part_of(at.ds, at.heads * role.queries * role.keys)
        at._products(core, held, do, first=1)
        buffers = {"y": held.weights, "g": held.scores}
        at._row_work(core, role, GRADIENT, GRADIENT_SHAPES, buffers, Phase.INPUT_GRADIENT)
        if at.pairs_needed:
            core.join(DOWN)
        if at.is_needed(VALUES):
            self._to_keys(core, role, VALUES, do, held.weights)
        core.mul(ds.dsd(), held.scores.dsd(), scalar(at.scale), dtype="mixed")
        if at.is_needed(QUERY):
            at._to_queries(core, held, ds, first=0)
            at._along_row(core, role, held)
        if at.is_needed(KEY):
            self._to_keys(core, role, KEY, held.q, ds)
        self._along_column(core, role)

    def _to_keys(
        self, core: CoreClass, role: CoreRole, operand: int, rows: Vectors, weights: Vectors
    ) -> None:
        """Sum the query rows, weighted, for every key: the gradient of keys or values, over the queries of all heads that
        share them."""
        at = self.region
        t, n, d = role.queries, role.keys, at.width
        first = n * at.key_features if operand == VALUES and at.is_needed(KEY) else 0
        core.busy(round(at.wafer.vector_start_cycles))
        for key, a, one in np.ndindex(n, t, at.group):
            with core.loop(at.heads // at.group):
                out = at.dkv.dsd(first + key * at.key_features, d, step=d)
                row = rows.dsd(a * at.features + one * d, d, step=at.group * d)
                weight = weights.dsd(one * t * n + a * n + key, 1, 0, step=at.group * t * n)
                weighted(core, out, row, weight, d, is_first=a == one == 0)

    def _along_column(self, core: CoreClass, role: CoreRole) -> None:
        """Send the sums down the column, to the collector."""
        own = self.region.dkv.dsd(0, role.keys * self.region.key_features * self.region.pairs_needed)
        here, behind = (self.ports.own[5 + (role.row + odd) % 2] for odd in (0, 1))
        if not own.length:
            return
        if role.row:
            core.add(fabric_out(here), own, fabric_in(behind), start="none", thread=DOWN, priority="high")
        else:
            core.mov(fabric_out(here), own, start="none", thread=DOWN, priority="high")
