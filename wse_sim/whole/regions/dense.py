"""A dense layer: inputs over the rows, outputs over the columns; bias, a residual and ReLU on the sums.

Symbols: T tokens of K inputs and N outputs, R rows and C columns; v = outputs of a column, even; k inputs of a row, over
R - 1 rows; B bundles of a residual::

    inlet of every row  >  its words of every token, one multicast  >
        first row    products; its sums leave with the bias in fp32
        other rows   products; their sums with those from above
        last row     ReLU of the sums that arrive, or a residual added to them, token by token; they leave along the row

All inlets receive all words of the stream, or of one bundle. They buffer two samples: they deal out their
row's words of one while the next arrives. So rows wait neither for each other's words nor for a producer that
sends in bursts.

The last row has no inputs, so neither bias nor ReLU nor residual is a separate instruction, unless ReLU follows a residual. A
residual arrives in bundles: each has its own stores in the moving cores, enters over its own row and is dealt out to its own
columns, token by token; a column with features of two bundles receives both, on two colors. No core works on a whole sample, so
stores hold parts of samples. Features are in order from the outlet, the last column, to the first. The bundles of a result have
equal numbers of features; a column with features of two bundles sends first into the one of which it is the outlet, then into the
one that it ends::

    row         T (k ceil(v / w) + v)
    last row    T (v / min(1, rate of maxima) + v / 2 [+ v / 2 of a residual [+ o + v / rate of ReLU]])
    store       T (3 N / 4 B + C / B + 1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Ports, stream_order
from wse_sim.whole.regions.dense_neighbours import DenseBeside
from wse_sim.whole.regions.shared_color import advance_of, place_kinds, receive_all, route_senders, send_all
from wse_sim.whole.regions.turns import alternate

SEND, RESIDUAL = 1, 2  # microthreads of the last row


Taken = tuple[int, int, int]
"""Part of a residual: 0 or 1 for its color, the first element, and the number of elements."""


class Sent(NamedTuple):
    """What a column sends of a token into a bundle: `length` elements from `first`; `advance` is the switch
    command of the last word."""

    color: int
    first: int
    length: int
    advance: str | None

    def emit(self, core: CoreClass, out: Buffer) -> None:
        """Send it concurrently with the main thread."""
        send_all(core, fabric_out(self.color, self.advance), out.dsd(self.first, self.length), SEND)


class Dense(DenseBeside):
    """A product with a weight; the first row adds the bias to the sums, the last row a residual, and it applies ReLU."""

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write inlets, store, rows of products, and the last row."""
        self._surround(b, ports, samples)
        for i in range(self.height - 1):
            core = b.core_class(f"{self.name} row {i}")
            self._row(core, i, ports, samples)
            b.place(core, (self.top + i, self.columns))
        self._outlet(b, ports, samples)

    def _outlet(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the last row in bundles of columns, each with a separate output route."""
        sends: dict[Cell, tuple[Sent, ...]] = {}
        for bundle, (color, towards) in enumerate(ports.results):
            cells = self.bundle_senders(bundle)
            route_senders(b, color, cells, towards)
            for i, cell in enumerate(cells):
                first, end = self._sent_into(bundle, self.senders.index(cell))
                # A column in two bundles is the outlet of the later one and the end of the earlier one.
                sends[cell] = (
                    Sent(color, first, end - first, advance_of(i, len(cells))),
                    *sends.get(cell, ()),
                )
        kinds = {cell: (each, self._takes(cell)) for cell, each in sends.items()}
        name = f"{self.name} last row, senders"
        place_kinds(b, kinds, name, lambda core, kind: self._last(core, ports, samples, *kind))

    def _takes(self, cell: Cell) -> tuple[Taken, ...]:
        """Return the parts of a residual that arrive at a cell of the last row."""
        return tuple(
            (bundle % 2, first, length)
            for bundle in range(self.residuals)
            for taker, first, length in self._taking(bundle)
            if taker == cell
        )

    def _surround(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write everything except the programs of the compute cores and the output routes."""
        feed, *sums = ports.own[:3]
        for color, queue in ((feed, 0), (sums[0], 2), (sums[1], 3)):
            b.input_queue(color, queue)
        self._declare(b)
        self._inlet(b, ports.inward, feed, samples)
        for i in range(self.height - 1):
            b.route(sums[i % 2], (self.top + i, self.columns), rx="R", tx="S")
            b.route(sums[i % 2], (self.top + i + 1, self.columns), rx="N", tx="R")
        if "residual" in self.items:
            self._store(b, ports.inward[-self.residuals :], ports, samples)

    def _declare(self, b: Builder) -> None:
        v = self.outputs
        cells = (self.rows, self.columns)
        self.y = b.buffer(f"{self.name}.y", v, "fp32", cells, bank=0)
        self.x = b.buffer(f"{self.name}.x", PAIR * max(self.words) * v, "fp16", cells, bank=2)
        last = (self.last, self.columns)
        self.outs = [b.buffer(f"{self.name}.out{i}", v, "fp16", last, bank=0) for i in (0, 1)]
        if "bias" in self.items:
            self.bias = b.buffer(f"{self.name}.bias", v, "fp32", (self.top, self.columns), bank=2)
        if "residual" in self.items:
            self.added = [b.buffer(f"{self.name}.residual{i}", v, "fp16", last, bank=2) for i in (0, 1)]

    def _products(self, core: CoreClass, feed: int, row: int) -> None:
        v = self.outputs
        core.fmac_vectors(
            self.y.dsd(), fabric_in(feed), self.x.dsd(0, v), v,
            b_stride=v, length=PAIR * self.words[row], dtype="mixed", wire="fp16x2", start="none",
            triggered=True, fresh=True,
        )  # fmt: skip

    def _row(self, core: CoreClass, row: int, ports: Ports, samples: int) -> None:
        """Write the program of a row above the last, for all samples."""
        with core.loop(samples * self.tokens):
            self._pass_on(core, row, ports)

    def _pass_on(self, core: CoreClass, row: int, ports: Ports) -> None:
        """Write one token of a row above the last: products, then the partial sums sent down, with the bias from the first row."""
        here, above = ports.own[1 + row % 2], ports.own[2 - row % 2]
        self._products(core, ports.own[0], row)
        if row:
            core.add(fabric_out(here), self.y.dsd(), fabric_in(above), start="none")
        elif "bias" in self.items:
            core.add(fabric_out(here), self.y.dsd(), self.bias.dsd(), start="none")
        else:
            core.mov(fabric_out(here), self.y.dsd(), start="none")

    def _last(
        self, core: CoreClass, ports: Ports, samples: int, sends: Sequence[Sent], takes: Sequence[Taken]
    ) -> None:
        """Write the last row, token by token in two buffers: while one leaves, the next arrives."""
        sums, threads = fabric_in(ports.own[1 + self.height % 2]), [RESIDUAL + i for i in range(len(takes))]

        def receive(turn: int) -> None:
            for thread, (odd, first, length) in zip(threads, takes, strict=True):
                receive_all(core, ports.own[3 + odd], self.added[turn].dsd(first, length), thread)

        def token(turn: int) -> None:
            out = self.outs[turn]
            if takes:
                core.add(out.dsd(), sums, self.added[turn].dsd(), start="none")
                if "relu" in self.items:
                    core.max(out.dsd(), out.dsd(), scalar(0.0), dtype="fp16")
            elif "relu" in self.items:
                core.max(out.dsd(), sums, scalar(0.0), start="none")
            else:
                core.mov(out.dsd(), sums, start="none")
            for part in sends:
                part.emit(core, out)

        alternate(core, samples * self.tokens, receive, token, threads)

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return weights (N, K) and bias (N,) as the buffers of the region."""
        v, most = self.outputs, PAIR * max(self.words)
        wide = np.zeros((self.cols * v, self.inputs), np.float32)
        weight = self._weight(weights)
        wide[: len(weight), : weight.shape[1]] = weight
        # The outlet has the first features.
        by_col = wide.reshape(self.cols, v, self.inputs)[::-1]
        x = np.zeros((self.height, self.cols, most, v), np.float32)
        for i, words in enumerate(self._dealt()):
            count = len(words)
            elements = (PAIR * words[:, None] + np.arange(PAIR)).reshape(-1)
            x[i, :, : PAIR * count] = by_col[:, :, elements].swapaxes(1, 2)
        out = {f"{self.name}.x": x.reshape(self.height, self.cols, -1)}
        if "bias" in self.items:
            bias, given = np.zeros(self.cols * v, np.float32), weights[self.kernel.parameters[1]]
            bias[: len(given)] = given
            out[f"{self.name}.bias"] = bias.reshape(1, self.cols, v)[:, ::-1]
        return out

    def _weight(self, weights: Mapping[str, Floats]) -> Floats:
        """Return the weight (N, K) with its inputs in stream order."""
        order = stream_order(self.graph, self.kernel.inputs[0])
        weight = weights[self.kernel.parameters[0]]
        return weight if order is None else weight[:, order]
