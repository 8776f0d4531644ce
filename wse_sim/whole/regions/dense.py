"""A dense layer: inputs over the rows, outputs over the columns; bias, activation and a residual on the sums.

Symbols: T tokens of K inputs and N outputs, R rows and C columns; v = outputs of a column, even::

    inlet of every row  >  its words of every token, one multicast  >
                           sums of the rows run down the columns
                           last row: sums of all T tokens, then bias, residual, activation at once; they leave along it

All inlets hear all words.  They keep those of half a sample, and deal out their row's while the next half comes in: so rows do not
wait for each other's words, nor for a producer that sends in bursts.

The last row finishes the T tokens of a sample with one start per item.  While it sums the tokens of a sample up, those
of the sample before leave, one by one.  A residual arrives beside the last row in a store of two samples, which
deals it out to the columns as they take their turns.  Features lie in order from the outlet, the last column, to
the first::

    per sample    T (k ceil(v / w) + v) + T v / 2 sent [+ T v / 2 received] + sum over items of (o + T v / rate)

One file, because inlet, rows, last row and outlet of a layer are timed against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import ceil

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
    divisor,
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
FUNCTIONS = ("gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
ITEMS = ("bias", "residual", "relu", *FUNCTIONS)


class Dense(RegionKind):
    """A product with a weight, and the work fused to it, on the last row."""

    family = "gemm"
    title = "dense layers"

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
    def can_share(self) -> bool:
        """Whether several rows can finish the tokens of a sample."""
        return "residual" not in self.items and self.height > 1 and divisor(self.tokens, self.height) > 1

    @cached_property
    def words(self) -> list[int]:
        """Words of a token that every row takes: the last one fewer, by the work on the outputs that it has besides."""
        words, others = self.inputs // PAIR, self.height - 1
        if not others:
            return [words]
        each = self.tokens * PAIR * ceil_div(self.outputs, self.wafer.fma_mixed_per_cycle)
        less = max(0, ceil(self._last_more() / each))
        most = next(m for m in range(1, words + 1) if m * others + max(1, m - less) >= words)
        last = max(1, min(most - less, words // self.height), words - most * others)
        whole, rest = divmod(words - last, others)
        return [*(whole + (i < rest) for i in range(others)), last]

    @property
    def fed(self) -> int:
        """Rows that take inputs."""
        return self.height

    @property
    def _fills_columns(self) -> bool:
        """Whether all columns have as many outputs."""
        return "residual" in self.items

    @property
    def outputs(self) -> int:
        """Of a column: whole words; a divisor of N where a residual is dealt out."""
        found = PAIR * ceil_div(ceil_div(self.features, self.compute_cols), PAIR)
        while self._fills_columns and self.features % found:
            found += PAIR
        return int(found)

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
        rows = 1 if self.is_narrow else self.fed
        here = tuple(Inlet(self.kernel.inputs[0], (self.top + i, self.left - 1)) for i in range(rows))
        if "residual" not in self.items:
            return here
        return (*here, Inlet(self.kernel.inputs[1], self.stores[-1]))

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
    def own_colors(self) -> int:
        """Inputs, sums of even and of odd rows; a residual."""
        return 3 + ("residual" in self.items)

    def sent(self, position: int) -> int:
        """Elements that the column at a position from the outlet sends."""
        return min(self.outputs, self.features - position * self.outputs)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Inlet, store, rows of products, last row."""
        feed, *sums = ports.own[:3]
        for color, queue in ((feed, 0), (sums[0], 2), (sums[1], 3)):
            b.input_queue(color, queue)
        self._declare(b)
        self._inlet(b, ports.inward[0], feed, samples)
        for i in range(self.height - 1):
            core = b.core_class(f"{self.name} row {i}")
            self._row(core, i, ports, samples)
            b.place(core, (self.top + i, self.columns))
            b.route(sums[i % 2], (self.top + i, self.columns), rx="R", tx="S")
            b.route(sums[i % 2], (self.top + i + 1, self.columns), rx="N", tx="R")
        if "residual" in self.items:
            self._store(b, ports.inward[-1], ports, samples)
        self._outlet(b, ports, samples)

    def _outlet(self, b: Builder, ports: Ports, samples: int) -> None:
        """The last row, and the way out of it."""
        route_senders(b, ports.outward, self.senders, ports.towards)
        kinds = [(self.sent(p), advance_of(p, self.cols)) for p in range(self.cols)]
        for length, advance in dict.fromkeys(kinds):
            core = b.core_class(f"{self.name} last row, {length} {advance or ''}")
            self._last(core, ports, samples, (length, advance))
            for position, cell in enumerate(self.senders):
                if kinds[position] == (length, advance):
                    b.place(core, cell)

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

    def _inlet(self, b: Builder, color: int, feed: int, samples: int) -> None:
        """Every row's inlet hears all words of some tokens, and deals out those of its row while the next come in."""
        if self.is_narrow:
            self._only_inlet(b, color, feed, samples)
            return
        rows = slice(self.top, self.top + self.fed)
        slots = [
            b.buffer(f"{self.name}.arriving{i}", self.held * self.inputs, "fp16", (rows, self.left - 1))
            for i in (0, 1)
        ]
        for i, words in enumerate(self._dealt()[: self.fed]):
            inlet = b.core_class(f"{self.name} inlet {i}")

            def receive(turn: int, inlet: CoreClass = inlet) -> None:
                receive_all(inlet, color, slots[turn].dsd(), RECEIVE)

            def work(turn: int, inlet: CoreClass = inlet, words: IntArray = words) -> None:
                own = slots[turn].dsd(PAIR * int(words[0]), PAIR * len(words), step=self.inputs)
                with inlet.loop(self.held):
                    inlet.mov(fabric_out(feed), own, dtype="fp16", start="none")

            alternate(inlet, samples * self.tokens // self.held, receive, work, (RECEIVE,))
            b.place(inlet, self.inlets[i].cell)
        self._route_rows(b, feed)

    @property
    def held(self) -> int:
        """Tokens that come in while as many are dealt out."""
        return divisor(self.tokens, max(1, self.tokens // 2))

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
        starts = [position * self.outputs for position in reversed(range(self.cols))]
        links = [
            ports.own[1 + i % 2] for i in range(count - 1)
        ]  # colors of sums, free beside the compute cores
        for i, cell in enumerate(self.stores):
            store = b.core_class(f"{self.name} store {i}")
            slots = [b.buffer(f"{self.name}.slot{i} {turn}", size, "fp16", cell) for turn in (0, 1)]
            self._keep(
                store,
                slots,
                [*links, color][i],
                ports.own[3] if i == 0 else links[i - 1],
                samples,
                starts if i == 0 else None,
            )
            b.place(store, cell)
            if i:
                b.route(links[i - 1], cell, rx="R", tx="S")
                b.route(links[i - 1], self.stores[i - 1], rx="N", tx="R")
        route_takers(b, ports.own[3], self.stores[0], tuple(reversed(self.senders)), 0, "E")

    def _keep(
        self,
        store: CoreClass,
        slots: Sequence[Buffer],
        inward: int,
        outward: int,
        samples: int,
        starts: Sequence[int] | None,
    ) -> None:
        """One store: a whole sample to the next one, or with `starts` a token's shares to the columns."""

        def receive(turn: int) -> None:
            receive_all(store, inward, slots[turn].dsd(), STORE)

        def hand_out(turn: int) -> None:
            slot = slots[turn]
            if starts is None:
                store.mov(fabric_out(outward), slot.dsd(), dtype="fp16", start="none")
                return
            with store.loop(self.tokens):
                shares = [[(slot.dsd(at, self.outputs, step=self.features), self.outputs)] for at in starts]
                deal(store, outward, shares, self.cols)

        alternate(store, samples, receive, hand_out, (STORE,))

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

    def _last(self, core: CoreClass, ports: Ports, samples: int, sends: tuple[int, str | None]) -> None:
        """All samples: while the tokens of one are summed up, those of the one before leave."""

        def send(out: Buffer) -> None:
            core.join(SEND)
            core.mov(
                fabric_out(ports.outward, sends[1]), out.dsd(0, sends[0], step=self.outputs),
                dtype="fp16", start="none", thread=SEND, priority="high",
            )  # fmt: skip

        def sample(now: int, *, first: bool = False) -> None:
            out = self.outs[now]
            if "residual" in self.items:
                receive_all(core, ports.own[3], self.residual.dsd(), RESIDUAL)
            with core.loop(self.tokens):
                if not first:
                    send(self.outs[1 - now])
                self._products(core, ports.own[0], self.height - 1)
                each = out.dsd(0, self.outputs, step=self.outputs)
                if self.height > 1:
                    core.add(each, self.y.dsd(), fabric_in(ports.own[1 + self.height % 2]), start="none")
                else:
                    core.mov(each, self.y.dsd())
            self._finish(core, out, out)

        sample(0, first=True)
        with core.loop((samples - 1) // 2):
            sample(1)
            sample(0)
        if (samples - 1) % 2:
            sample(1)
        with core.loop(self.tokens):
            send(self.outs[(samples - 1) % 2])

    def _finish(self, core: CoreClass, sums: Buffer, to: Buffer) -> None:
        """The items, the first one from the sums."""
        value, out = sums.dsd(), to.dsd()
        for item in self.items:
            if item == "bias":
                core.add(out, value, self.bias.dsd(), dtype="fp16")
            elif item == "residual":
                core.join(RESIDUAL)
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
        # The outlet, the last column, has the first features.
        by_col = wide.reshape(self.cols, v, self.inputs)[::-1]
        x = np.zeros((self.height, self.cols, most, v), np.float32)
        for i, words in enumerate(self._dealt()):
            count = len(words)
            elements = (PAIR * words[:, None] + np.arange(PAIR)).reshape(-1)
            x[i, :, : PAIR * count] = by_col[:, :, elements].swapaxes(1, 2)
        out = {f"{self.name}.x": x.reshape(self.height, self.cols, -1)}
        if "bias" in self.items:
            bias = np.zeros(self.cols * v, np.float32)
            bias[: self.features] = weights[self.kernel.parameters[1]]
            out[f"{self.name}.bias"] = self._biases(bias.reshape(self.cols, v)[::-1])
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
