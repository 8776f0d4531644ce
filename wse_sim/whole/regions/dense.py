"""A dense layer: inputs over the rows, outputs over the columns; bias, activation and a residual on the sums.

Symbols: T tokens of K inputs and N outputs, R rows and C columns; v = outputs of a column, even::

    inlet of every row  >  its words of every token, one multicast  >
                           sums of the rows run down the columns
                           last row: sums of all T tokens, then bias, residual, activation at once; they leave along it

All inlets hear all words of the stream, or of their bundle of it.  They hold two samples: they deal out their row's words of one
while the next comes in.  So rows do not wait for each other's words, nor for a producer that sends in bursts.

The last row finishes the T tokens of a sample with one start per item.  While it sums the tokens of a sample up, those
of the sample before leave, one by one.  A residual arrives beside the last row in a store of two samples, which
deals it out to the columns as they take their turns.  Features lie in order from the outlet, the last column, to
the first.  A result of several bundles has as many features in each; a column with features of two sends first into the one of
which it is the outlet, then into the one that it ends::

    per sample    T (k ceil(v / w) + v) + T v / 2 sent [+ T v / 2 received] + sum over items of (o + T v / rate)

One file, because inlet, rows, last row and outlet of a layer are timed against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    PAIR,
    Floats,
    Inlet,
    IntArray,
    Ports,
    RegionKind,
    links_between,
    refused,
    stream_order,
)
from wse_sim.whole.regions.turns import (
    advance_of,
    alternate,
    deal,
    receive_all,
    route_senders,
    route_takers,
)

SEND, RESIDUAL, STORE, RECEIVE = 1, 2, 1, 1  # microthreads: of the last row, of the store, of an inlet
DEALT = 3  # words that a row takes at a time; its queue holds twice as many
STORES = 3  # cores in which a residual waits, where the region has room
TURN_CYCLES = 2  # from the last word of an instruction that hands words on to the first word of the next
QUEUED_WORDS = 14  # of sums between two cores: output queue, router, input queue
FUNCTIONS = ("gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
ITEMS = ("bias", "residual", "relu", *FUNCTIONS)


class Sent(NamedTuple):
    """What a column sends of a token into a bundle: `length` elements from `first` on; the last word's effect on the switches."""

    color: int
    first: int
    length: int
    advance: str | None

    def emit(self, core: CoreClass, out: Buffer, step: int = 0) -> None:
        """Send it beside the main thread."""
        core.mov(
            fabric_out(self.color, self.advance), out.dsd(self.first, self.length, step=step),
            dtype="fp16", start="none", thread=SEND, priority="high",
        )  # fmt: skip


class Way(NamedTuple):
    """How words of a row come in: `length` of the `each` elements of a token that arrive, from `first` on."""

    color: int
    slots: Sequence[Buffer]
    first: int
    length: int
    each: int


class Dense(RegionKind):
    """A product with a weight, and the work fused to it, on the last row."""

    family = "gemm"
    title = "dense layers"
    relays = True
    """Whether its colors suffice for cores that hand words on."""

    def __init__(self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer) -> None:
        super().__init__(graph, kernel, stage, wafer)
        if "residual" in self.items and self.height == 1 and self.left - 2 < self.region.col:
            # The store takes the place of a compute column.
            if self.compute_cols == 1:
                raise refused(
                    kernel, "adds a residual in a region of one row and two columns", "use more cores"
                )
            self.left, self.compute_cols = self.left + 1, self.compute_cols - 1
            self.height, self.cols = self.extent()

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Rows of a sample."""
        return int(kernel.dims["m"]) // graph.samples

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """One activation and one weight (N, K), inputs over the rows; items that have a program."""
        for item in items_of(kernel):
            if item not in ITEMS:
                raise refused(
                    kernel,
                    f"fuses '{item}' to its product",
                    f"a whole model on the fabric does {', '.join(ITEMS)}",
                )
        items = items_of(kernel)
        if len(kernel.inputs) != 1 + ("residual" in items) or len(kernel.parameters) != 1 + ("bias" in items):
            raise refused(
                kernel,
                "is not a product of one activation with one weight",
                "make the model of torch.nn.Linear",
            )
        shape = graph.tensors[kernel.parameters[0]].shape
        wanted = (int(kernel.dims["n"]), int(kernel.dims["k"]))
        if shape != wanted:
            raise refused(
                kernel,
                f"holds its weight as {shape}, a whole model on the fabric as {wanted}",
                "use torch.nn.Linear",
            )
        if kernel.attrs.get("orientation", "best") != "kn":
            raise refused(
                kernel, "may lie either way in its region", "plan the graph of inputs_over_rows(graph)"
            )

    @property
    def inputs(self) -> int:
        """K."""
        return int(self.kernel.dims["k"])

    @property
    def features(self) -> int:
        """N."""
        return int(self.kernel.dims["n"])

    @property
    def items(self) -> tuple[str, ...]:
        """Work on the outputs."""
        return items_of(self.kernel)

    @property
    def streams(self) -> int:
        """Bundles in which the inputs come in."""
        return self.bundles.get(self.kernel.inputs[0], 1)

    @property
    def words(self) -> list[int]:
        """Words of a token that every row takes: the last one fewer, by the work on the outputs that it has besides."""
        return self._shares(self.inputs // PAIR, self.fed, has_last=True)

    @property
    def heard(self) -> list[list[int]]:
        """Bundles of the inputs that the inlet of every row hears: those in which it has words."""
        each = self.inputs // PAIR // self.streams
        rows = self._dealt()[: self.fed]
        return [list(range(int(words[0]) // each, int(words[-1]) // each + 1)) for words in rows]

    def _shares(self, words: int, rows: int, *, has_last: bool) -> list[int]:
        """Words of each of some rows, with the last one of the region among them or not."""
        others = rows - has_last
        if not others:
            return [words]
        last = 0
        if has_last:
            each = self.tokens * PAIR * ceil_div(self.outputs, self.wafer.fma_mixed_per_cycle)
            less = max(0, ceil(self._last_more() / each))
            most = next(m for m in range(1, words + 1) if m * others + max(1, m - less) >= words)
            last = max(1, min(most - less, words // rows), words - most * others)
        whole, rest = divmod(words - last, others)
        return [*(whole + (i < rest) for i in range(others)), *([last] if has_last else [])]

    @property
    def fed(self) -> int:
        """Rows that take inputs."""
        return self.height

    @property
    def outputs(self) -> int:
        """Of a column: whole words."""
        return int(PAIR * ceil_div(ceil_div(self.features, self.compute_cols), PAIR))

    def extent(self) -> tuple[int, int]:
        """Rows with at least a word, columns with at least an output."""
        return min(self.region.rows, self.inputs // PAIR), int(ceil_div(self.features, self.outputs))

    @property
    def is_narrow(self) -> bool:
        """Whether a residual leaves room for one inlet only: there is one moving column."""
        return "residual" in self.items and self.height > 1 and self.left - 2 < self.region.col

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Beside every row that takes inputs, or beside the first; of a residual at the last store."""
        name, rows = self.kernel.inputs[0], [[0]] if self.is_narrow else self.heard
        if self.is_relayed:
            first = [next(i for i, heard in enumerate(rows) if g in heard) for g in range(self.streams)]
            return tuple(Inlet(name, (self.top + i, self.left - 2), g) for g, i in enumerate(first))
        here = tuple(
            Inlet(name, (self.top + i, self.left - 1), bundle)
            for i, bundles in enumerate(rows)
            for bundle in bundles
        )
        if "residual" not in self.items:
            return here
        return (*here, Inlet(self.kernel.inputs[1], self.stores[-1]))

    @property
    def is_relayed(self) -> bool:
        """Whether cores behind those beside the rows hear the bundles, and hand every row its words: where hearing all takes too long."""
        has_room = self.relays and self.left - 2 >= self.region.col and "residual" not in self.items
        if not has_room or self.fed == 1:
            return False
        return self._hearing_cycles() > max(self.issued_cycles(), self._relay_cycles())

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Between cells beside the rows and those that hand words on to them."""
        if not self.is_relayed:
            return frozenset()
        beside = {(self.top + i, self.left - 1) for i in range(self.fed)}
        return links_between(beside | {inlet.cell for inlet in self.inlets})

    @property
    def stores(self) -> tuple[Cell, ...]:
        """Where a residual waits, two samples in each: the one beside the last row deals it out, others stand above it.

        They stand behind the inlets, or below the only one.
        """
        if self.is_narrow:
            return tuple((self.last - i, self.left - 1) for i in range(min(STORES, self.height - 1)))
        return tuple((self.last - i, self.left - 2) for i in range(min(STORES, self.height)))

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The last row, from its end."""
        return tuple((self.last, self.left + col) for col in reversed(range(self.cols)))

    @property
    def is_westward(self) -> bool:
        """Whether the outlet is the first column, beside the moving ones."""
        return False

    @property
    def own_colors(self) -> int:
        """Inputs, sums of even and of odd rows; a residual, or words of even and of odd bundles on their way to the rows."""
        return 3 + ("residual" in self.items) + 2 * self.is_relayed

    def sent(self, position: int) -> int:
        """Elements that the column at a position from the outlet sends."""
        return min(self.outputs, self.features - position * self.outputs)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Inlets, store, rows of products, last row."""
        self._surround(b, ports, samples)
        for i in range(self.height - 1):
            core = b.core_class(f"{self.name} row {i}")
            self._row(core, i, ports, samples)
            b.place(core, (self.top + i, self.columns))
        self._outlet(b, ports, samples)

    def _outlet(self, b: Builder, ports: Ports, samples: int) -> None:
        """The last row in bundles of columns, each with its own way out."""
        sends: dict[Cell, tuple[Sent, ...]] = {}
        for bundle, (color, towards) in enumerate([(ports.outward, ports.towards), *ports.others]):
            cells = self.bundle_senders(bundle)
            route_senders(b, color, cells, towards)
            for i, cell in enumerate(cells):
                first, end = self._sent_into(bundle, self.senders.index(cell))
                # A column in two bundles is the outlet of the later one, and the last of the earlier one.
                sends[cell] = (
                    Sent(color, first, end - first, advance_of(i, len(cells))),
                    *sends.get(cell, ()),
                )
        for number, kind in enumerate(dict.fromkeys(sends.values())):
            core = b.core_class(f"{self.name} last row, senders {number}")
            self._last(core, ports, samples, kind)
            for cell, each in sends.items():
                if each == kind:
                    b.place(core, cell)

    def _sent_into(self, bundle: int, position: int) -> tuple[int, int]:
        """First element that the column at a position from the outlet sends into a bundle, and the one behind its last."""
        each = self.features // self.bundles.get(self.kernel.outputs[0], 1)
        before = position * self.outputs
        return max(0, bundle * each - before), min(self.sent(position), (bundle + 1) * each - before)

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Columns that have features of a bundle."""
        spans = [self._sent_into(bundle, position) for position in range(self.cols)]
        return tuple(cell for cell, (first, end) in zip(self.senders, spans, strict=True) if first < end)

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Of inputs and result: bundles of as many whole words; of the result no more than columns have outputs for."""
        if tensor == self.kernel.outputs[0]:
            most = self.features // self.outputs
            return tuple(count for count in range(1, most + 1) if self.features % (PAIR * count) == 0) or (1,)
        if self.kernel.inputs.count(tensor) != 1 or tensor != self.kernel.inputs[0]:
            return (1,)
        if self.is_narrow or stream_order(self.graph, tensor) is not None:
            return (1,)
        words = self.inputs // PAIR
        return tuple(count for count in range(1, min(words, self.fed) + 1) if words % count == 0)

    def held_up_cycles(self) -> float:
        """Cycles per sample that rows wait for the last one: it finishes outputs while queues between cores fill with sums."""
        if self.height == 1:
            return 0.0
        each = self.issued_cycles() / self.tokens
        return max(0.0, self._finish_cycles() - each * QUEUED_WORDS / self.outputs)

    def pace(self) -> float:
        """An inlet hears a bundle and deals out its row's words; all columns of a bundle send over one link.

        What is dealt out counts twice: a word goes on when the last of its readers takes it, and they deal at different times.
        """
        each = self.wafer.wavelet_cycles
        heard = self._relay_cycles() if self.is_relayed else self._hearing_cycles()
        sent = each * self.features / PAIR / self.bundles.get(self.kernel.outputs[0], 1)
        return max(self.issued_cycles() + self.held_up_cycles(), heard, self.tokens * sent)

    def _relay_cycles(self) -> float:
        """Of a sample, in a core that hands a bundle on: an instruction a row and one that turns the rows back."""
        most = max(sum(g in heard for heard in self.heard) for g in range(self.streams))
        words = self.inputs / PAIR / self.streams
        return self.tokens * (self.wafer.wavelet_cycles * words + TURN_CYCLES * (most + 1))

    def _hearing_cycles(self) -> float:
        """Of a sample, in a core beside a row that hears its bundles and deals out its words."""
        most = 1 if self.is_narrow else max(map(len, self.heard))
        words = self.inputs / PAIR / self.streams
        return self.tokens * (max(self.wafer.wavelet_cycles, most) * words + 2 * max(self.words))

    def _surround(self, b: Builder, ports: Ports, samples: int) -> None:
        """All but the programs of the compute cores and the way out."""
        feed, *sums = ports.own[:3]
        self.relayed = ports.own[-2:]
        for color, queue in ((feed, 0), (sums[0], 2), (sums[1], 3)):
            b.input_queue(color, queue)
        self._declare(b)
        self._inlet(b, ports.inward, feed, samples)
        for i in range(self.height - 1):
            b.route(sums[i % 2], (self.top + i, self.columns), rx="R", tx="S")
            b.route(sums[i % 2], (self.top + i + 1, self.columns), rx="N", tx="R")
        if "residual" in self.items:
            self._store(b, ports.inward[-1], ports, samples)

    def _declare(self, b: Builder) -> None:
        v = self.outputs
        cells = (self.rows, self.columns)
        self.y = b.buffer(f"{self.name}.y", v, "fp32", cells, bank=0)
        self.x = b.buffer(f"{self.name}.x", PAIR * max(self.words) * v, "fp16", cells, bank=2)
        self._declare_finish(b)

    def _declare_finish(self, b: Builder) -> None:
        last, size = (self.last, self.columns), self.tokens * self.outputs
        self.outs = [b.buffer(f"{self.name}.out{i}", size, "fp16", last, bank=0) for i in (0, 1)]
        self.bias = b.buffer(f"{self.name}.bias", size, "fp16", last, bank=2)
        if "residual" in self.items:
            self.residual = b.buffer(f"{self.name}.residual", size, "fp16", last, bank=2)

    def _inlet(self, b: Builder, colors: Sequence[int], feed: int, samples: int) -> None:
        """Every row's inlet hears all words of some tokens, and deals out those of its row while the next come in."""
        if self.is_narrow:
            self._only_inlet(b, colors[0], feed, samples)
            return
        bundles = self.heard
        if self.is_relayed:
            colors = self._relay(b, colors, samples)
        for color in dict.fromkeys(colors[: sum(map(len, bundles))]):
            # Inlets hear a word together: a deep queue lets one deal out while the others go on.
            b.input_queue(color, 1)
        incoming = iter(colors)
        for i, heard in enumerate(bundles):
            inlet = b.core_class(f"{self.name} inlet {i}")
            ways = [self._way(b, i, g, next(incoming)) for g in heard]
            threads = [RECEIVE + at for at in range(len(ways))]

            def receive(
                turn: int,
                inlet: CoreClass = inlet,
                ways: Sequence[Way] = ways,
                threads: Sequence[int] = threads,
            ) -> None:
                # Beside the deals, which go first: a row does not wait for the words of others.
                for thread, way in zip(threads, ways, strict=True):
                    receive_all(inlet, way.color, way.slots[turn].dsd(), thread, "low")

            def work(turn: int, inlet: CoreClass = inlet, ways: Sequence[Way] = ways) -> None:
                with inlet.loop(self.held):
                    for way in ways:
                        own = way.slots[turn].dsd(way.first, way.length, step=way.each)
                        inlet.mov(fabric_out(feed), own, dtype="fp16", start="none")

            alternate(inlet, samples * self.tokens // self.held, receive, work, threads)
            b.place(inlet, (self.top + i, self.left - 1))
        self._route_rows(b, feed)

    def _way(self, b: Builder, row: int, bundle: int, color: int) -> Way:
        """How the words of a row in a bundle come: among all of the bundle, or alone."""
        first, count = self._part(row, bundle)
        each = count if self.is_relayed else self.inputs // self.streams
        cell = (self.top + row, self.left - 1)
        slots = [
            b.buffer(f"{self.name}.arriving {row} {bundle} {turn}", self.held * each, "fp16", cell)
            for turn in (0, 1)
        ]
        return Way(color, slots, 0 if self.is_relayed else first, count, each)

    def _part(self, row: int, bundle: int) -> tuple[int, int]:
        """First element of a row in a bundle of a token, and how many it has there."""
        words, size = self._dealt()[row], self.inputs // self.streams
        first, end = PAIR * int(words[0]) - bundle * size, PAIR * int(words[-1]) + PAIR - bundle * size
        return max(0, first), min(end, size) - max(0, first)

    def _relay(self, b: Builder, colors: Sequence[int], samples: int) -> list[int]:
        """The cores that hear a bundle each and hand every row its words; the colors on which inlets take them, row by row."""
        rows = self.heard
        for g, (inlet, color) in enumerate(zip(self.inlets, colors, strict=False)):
            onward = self.relayed[g % 2]
            takers = [i for i, heard in enumerate(rows) if g in heard]
            core = b.core_class(f"{self.name} bundle {g}")
            with core.loop(samples * self.tokens):
                shares = [[(fabric_in(color), self._part(i, g)[1])] for i in takers]
                deal(core, onward, shares, len(takers))
            b.place(core, inlet.cell)
            cells = [(self.top + i, self.left - 1) for i in takers]
            route_takers(b, onward, inlet.cell, cells, 0, "E")
            b.input_queue(color, 1)
        return [self.relayed[g % 2] for heard in rows for g in heard]

    @property
    def held(self) -> int:
        """Tokens that come in while as many are dealt out."""
        return self.tokens

    def _route_rows(self, b: Builder, feed: int) -> None:
        """From every inlet along its row."""
        rows = slice(self.top, self.top + self.fed)
        b.route(feed, (rows, self.left - 1), rx="R", tx="E")
        for col in range(self.cols):
            onward = "E" if col < self.cols - 1 else ""
            b.route(feed, (rows, self.left + col), rx="W", tx="R" + onward)

    def _only_inlet(self, b: Builder, color: int, feed: int, samples: int) -> None:
        inlet, cell = b.core_class(f"{self.name} inlet"), self.inlets[0].cell
        with inlet.loop(samples * self.tokens):
            for count, words in self._deals():
                deal(inlet, feed, [[(fabric_in(color), PAIR * words)]] * count, self.fed)
        b.place(inlet, cell)
        takers = [(self.top + i, self.left) for i in range(self.fed)]
        route_takers(b, feed, cell, takers, self.cols - 1, "E")

    def _deals(self) -> list[tuple[int, int]]:
        """How a token is dealt out: to so many rows, so many words each; no more than wait in a row's queue."""
        out, done = [], 0
        for level in sorted(set(self.words)):
            takers = sum(count >= level for count in self.words)
            while done < level:
                words = min(level - done, DEALT)
                out.append((takers, words))
                done += words
        return out

    def _store(self, b: Builder, color: int, ports: Ports, samples: int) -> None:
        """The stores from the one beside the last row: each receives a sample while it hands out the one before."""
        size, count = self.tokens * self.features, len(self.stores)
        beyond = (
            self.cols * self.outputs - self.features
        )  # the last column's share of the last token reaches so far
        links = [
            ports.own[1 + i % 2] for i in range(count - 1)
        ]  # colors of sums, free beside the compute cores
        for i, cell in enumerate(self.stores):
            store = b.core_class(f"{self.name} store {i}")
            slots = [b.buffer(f"{self.name}.slot{i} {turn}", size + beyond, "fp16", cell) for turn in (0, 1)]
            self._keep(
                store,
                slots,
                [*links, color][i],
                ports.own[-1] if i == 0 else links[i - 1],
                samples,
                is_last=i == 0,
            )
            b.place(store, cell)
            if i:
                b.route(links[i - 1], cell, rx="R", tx="S")
                b.route(links[i - 1], self.stores[i - 1], rx="N", tx="R")
        self._route_residual(b, ports.own[-1])

    def _route_residual(self, b: Builder, color: int) -> None:
        """From the last store along the last row."""
        route_takers(b, color, self.stores[0], tuple(reversed(self.senders)), 0, "E")

    def _keep(
        self,
        store: CoreClass,
        slots: Sequence[Buffer],
        inward: int,
        outward: int,
        samples: int,
        *,
        is_last: bool,
    ) -> None:
        """One store: a whole sample to the next one, or the last one's to the columns."""

        def receive(turn: int) -> None:
            receive_all(store, inward, slots[turn].dsd(0, self.tokens * self.features), STORE)

        def hand_out(turn: int) -> None:
            if is_last:
                self._deal_residual(store, slots[turn], outward)
            else:
                sample = slots[turn].dsd(0, self.tokens * self.features)
                store.mov(fabric_out(outward), sample, dtype="fp16", start="none")

        alternate(store, samples, receive, hand_out, (STORE,))

    def _deal_residual(self, store: CoreClass, slot: Buffer, color: int) -> None:
        """Of every token a share to each column."""
        v = self.outputs
        starts = [position * v for position in reversed(range(self.cols))]
        with store.loop(self.tokens):
            deal(store, color, [[(slot.dsd(at, v, step=self.features), v)] for at in starts], len(starts))

    def _products(self, core: CoreClass, feed: int, row: int) -> None:
        v = self.outputs
        core.fmac_vectors(
            self.y.dsd(), fabric_in(feed), self.x.dsd(0, v), v,
            b_stride=v, length=PAIR * self.words[row], dtype="mixed", wire="fp16x2", start="none",
            triggered=True, fresh=True,
        )  # fmt: skip

    def _row(self, core: CoreClass, row: int, ports: Ports, samples: int) -> None:
        """A row above the last, all samples."""
        with core.loop(samples * self.tokens):
            self._pass_on(core, row, ports)

    def _pass_on(self, core: CoreClass, row: int, ports: Ports) -> None:
        """A token of a row above the last: products, and sums on the way down."""
        here, above = ports.own[1 + row % 2], ports.own[2 - row % 2]
        self._products(core, ports.own[0], row)
        if row:
            core.add(fabric_out(here), self.y.dsd(), fabric_in(above), start="none")
        else:
            core.mov(fabric_out(here), self.y.dsd(), start="none")

    def _last(self, core: CoreClass, ports: Ports, samples: int, sends: Sequence[Sent]) -> None:
        """All samples: while the tokens of one are summed up, those of the one before leave."""

        def send(out: Buffer) -> None:
            core.join(SEND)
            for part in sends:
                part.emit(core, out, self.outputs)

        def sample(now: int, *, first: bool = False) -> None:
            out = self.outs[now]
            if "residual" in self.items:
                receive_all(core, ports.own[-1], self.residual.dsd(), RESIDUAL)
            with core.loop(self.tokens):
                if not first:
                    send(self.outs[1 - now])
                self._products(core, ports.own[0], self.height - 1)
                each = out.dsd(0, self.outputs, step=self.outputs)
                if self.height > 1:
                    core.add(each, self.y.dsd(), fabric_in(ports.own[1 + self.height % 2]), start="none")
                else:
                    core.mov(each, self.y.dsd())
            self._finish(core, out, out, self.items)

        sample(0, first=True)
        with core.loop((samples - 1) // 2):
            sample(1)
            sample(0)
        if (samples - 1) % 2:
            sample(1)
        with core.loop(self.tokens):
            send(self.outs[(samples - 1) % 2])

    def _finish(
        self, core: CoreClass, sums: Buffer, to: Buffer, items: Sequence[str], thread: int = RESIDUAL
    ) -> None:
        """The items, the first one from the sums; the residual has come in on `thread`."""
        value, out = sums.dsd(), to.dsd()
        for item in items:
            if item == "bias":
                core.add(out, value, self.bias.dsd(), dtype="fp16")
            elif item == "residual":
                core.join(thread)
                core.add(out, value, self.residual.dsd(), dtype="fp16")
            elif item == "relu":
                core.max(out, value, scalar(0.0), dtype="fp16")
            else:
                period = round(1000 * self.wafer.special_element_cycles)
                core.map(Fn[item.upper()], out, value, dtype="fp16", period=period)
            value = out

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Weights (N, K) and bias (N,) as the buffers of the region."""
        v, most = self.outputs, PAIR * max(self.words)
        wide = np.zeros((self.cols * v, self.inputs), np.float32)
        wide[: self.features] = self._weight(weights)
        # The outlet has the first features.
        turned = slice(None, None, 1 if self.is_westward else -1)
        by_col = wide.reshape(self.cols, v, self.inputs)[turned]
        x = np.zeros((self.height, self.cols, most, v), np.float32)
        for i, words in enumerate(self._dealt()):
            count = len(words)
            elements = (PAIR * words[:, None] + np.arange(PAIR)).reshape(-1)
            x[i, :, : PAIR * count] = by_col[:, :, elements].swapaxes(1, 2)
        out = {f"{self.name}.x": x.reshape(self.height, self.cols, -1)}
        if "bias" in self.items:
            bias = np.zeros(self.cols * v, np.float32)
            bias[: self.features] = weights[self.kernel.parameters[1]]
            out[f"{self.name}.bias"] = self._biases(bias.reshape(self.cols, v)[turned])
        return out

    def _weight(self, weights: Mapping[str, Floats]) -> Floats:
        """The weight (N, K), its inputs in the order in which they come."""
        order = stream_order(self.graph, self.kernel.inputs[0])
        weight = weights[self.kernel.parameters[0]]
        return weight if order is None else weight[:, order]

    def _biases(self, each: Floats) -> Floats:
        """The bias (columns, v) of all tokens of a sample in the last row."""
        return np.tile(each, (1, self.tokens))[None]

    def _dealt(self) -> list[IntArray]:
        """The words that every row takes of a token, by their places in the stream."""
        if not self.is_narrow:
            ends = np.cumsum([0, *self.words])
            return [np.arange(first, end) for first, end in pairwise(ends)]
        rows = np.concatenate([np.repeat(np.arange(count), words) for count, words in self._deals()])
        return [np.flatnonzero(rows == i) for i in range(self.height)]

    def issued_cycles(self) -> float:
        """As the module says; a region of one row moves its sums in place of adding to those from above."""
        v, wafer = self.outputs, self.wafer
        each = [PAIR * words * ceil_div(v, wafer.fma_mixed_per_cycle) + v for words in self.words]
        o = ceil(wafer.vector_start_cycles)
        last = self.tokens * each[-1] + self._finish_cycles()
        if self.height == 1:
            last += self.tokens * (o + ceil(v / wafer.mov_fp32_per_cycle) - v)
        return float(max(self.tokens * max(each), last))

    def ahead_cycles(self) -> float:
        """A residual, on the last row."""
        return self.tokens * self.outputs / PAIR * ("residual" in self.items)

    def _last_more(self) -> float:
        """What the last row issues per sample beyond the others."""
        return self._finish_cycles()

    def _finish_cycles(self) -> float:
        """What the last row issues per sample beside products and sums."""
        size = self.tokens * self.outputs
        return size / PAIR * (1 + ("residual" in self.items)) + work_cycles(self.items, size, self.wafer)


def work_cycles(items: Sequence[str], size: int, wafer: Wafer) -> float:
    """The work on `size` outputs: one start per item."""
    cycles = 0.0
    for item in items:
        cycles += ceil(wafer.vector_start_cycles)
        if item in SPECIAL_FUNCTIONS:
            cycles += size * wafer.special_element_cycles
        else:
            cycles += ceil(size / (wafer.max_fp16_per_cycle if item == "relu" else wafer.add_fp16_per_cycle))
    return cycles


def items_of(kernel: Kernel) -> tuple[str, ...]:
    """The work fused to a product."""
    parts = (part.strip() for part in str(kernel.attrs.get("fused", "")).split(","))
    return tuple(part for part in parts if part)
