"""The cores next to a dense layer: inlets, and stores of a residual.

Symbols as in :mod:`wse_sim.whole.regions.dense`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Ports, elements_of
from wse_sim.whole.regions.dense_shape import DenseShape
from wse_sim.whole.regions.shared_color import deal, receive_all, route_rows, route_takers
from wse_sim.whole.regions.stores import write_stores
from wse_sim.whole.regions.turns import alternate

RECEIVE = 1  # microthread of an inlet


class WayIn(NamedTuple):
    """How words of a row arrive: of `each` received elements of a token, the row uses `length` from `first`."""

    color: int
    slots: Sequence[Buffer]
    first: int
    length: int
    each: int


class DenseBeside(DenseShape):
    """Programs of all cores next to the compute cores."""

    def _inlet(self, b: Builder, colors: Sequence[int], feed: int, samples: int) -> None:
        """Write the inlets: each receives all words of some tokens, and deals out those of its row while the
        next arrive."""
        bundles = self.heard
        for color in dict.fromkeys(colors[: sum(map(len, bundles))]):
            # Inlets receive a word at the same time: a deep queue lets one deal out while the others
            # continue.
            b.input_queue(color, 1)
        incoming = iter(colors)
        for i, heard in enumerate(bundles):
            inlet = b.core_class(f"{self.name} inlet {i}")
            ways = [self._way(b, i, g, next(incoming)) for g in heard]
            threads = [RECEIVE + at for at in range(len(ways))]

            def receive(
                turn: int,
                inlet: CoreClass = inlet,
                ways: Sequence[WayIn] = ways,
                threads: Sequence[int] = threads,
            ) -> None:
                # Words arrive while the inlet deals out; dealing has priority, so a row does not wait for the
                # words of others.
                for thread, way in zip(threads, ways, strict=True):
                    receive_all(inlet, way.color, way.slots[turn].dsd(), thread, "low")

            def work(turn: int, inlet: CoreClass = inlet, ways: Sequence[WayIn] = ways) -> None:
                with inlet.loop(self.tokens):
                    for way in ways:
                        own = way.slots[turn].dsd(way.first, way.length, step=way.each)
                        inlet.mov(fabric_out(feed), own, dtype="fp16", start="none")

            alternate(inlet, samples, receive, work, threads)
            b.place(inlet, (self.top + i, self.left - 1))
        route_rows(b, feed, range(self.top, self.top + self.fed), self.left, self.cols)

    def _way(self, b: Builder, row: int, bundle: int, color: int) -> WayIn:
        """Return how the words of a row in a bundle arrive: among all words of the bundle."""
        first, count = self._part(row, bundle)
        each = len(elements_of(self.inputs, bundle, self.streams))
        cell = (self.top + row, self.left - 1)
        slots = [
            b.buffer(f"{self.name}.arriving {row} {bundle} {turn}", self.tokens * each, "fp16", cell)
            for turn in (0, 1)
        ]
        return WayIn(color, slots, first, count, each)

    def _store(self, b: Builder, colors: Sequence[int], ports: Ports, samples: int) -> None:
        """Write the stores of every bundle of a residual, starting with the one that deals it out: each
        receives a part of a sample while it passes on the one before."""
        count = samples * self.tokens // self.unit
        for bundle, color in enumerate(colors):
            cells, dealing = self.stores_of(bundle), ports.own[3 + bundle % 2]
            # Colors of sums are free next to the compute cores.
            inward = [*(ports.own[1 + i % 2] for i in range(len(cells) - 1)), color]
            stored = self.unit * len(self.part_of_residual(bundle))

            def deal_out(store: CoreClass, slot: Buffer, color: int = dealing, bundle: int = bundle) -> None:
                self._deal_residual(store, slot, color, bundle)

            name = f"{self.name} residual {bundle}"
            write_stores(b, name, cells, inward, stored, self.slots, count, deal_out)
            self._route_residual(b, dealing, bundle)

    def _taking(self, bundle: int) -> list[tuple[Cell, int, int]]:
        """Return the cells of the last row that take features of a bundle of the residual, from the first
        column, with the first element in the column and their number."""
        out = []
        for position in reversed(range(self.cols)):
            first, end = self._sent_into(bundle, position, self.residuals)
            if first < end:
                out.append((self.senders[position], first, end - first))
        return out

    def _route_residual(self, b: Builder, color: int, bundle: int) -> None:
        """Route a bundle of the residual from its first store along a row, down the first of its columns, and
        along the last row."""
        takers = {cell for cell, *_ in self._taking(bundle)}
        store, *cells = self._residual_way(bundle)
        route_takers(b, color, store, cells, passing=set(cells) - takers)

    def _residual_way(self, bundle: int) -> list[Cell]:
        """Return the cells from the store that deals out a bundle of the residual to the last one that takes of it."""
        (row, col), takers = self.stores_of(bundle)[0], [cell for cell, *_ in self._taking(bundle)]
        first = takers[0][1]
        way = [(row, c) for c in range(col, first + 1)]
        return [*way, *((r, first) for r in range(row + 1, self.last)), *(t for t in takers if t not in way)]

    @property
    def inner_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Words per sample of inputs, sums, and residuals with a control word behind each token."""
        found = dict(super().inner_words)
        for bundle in range(self.residuals):
            taken = {cell: ceil(length / PAIR) for cell, _, length in self._taking(bundle)}
            words = float(len(taken) > 1)
            for here, there in reversed([*pairwise(self._residual_way(bundle))]):
                words += taken.get(there, 0)
                found[here, there] = found.get((here, there), 0.0) + self.tokens * words
        return found

    def _deal_residual(self, store: CoreClass, slot: Buffer, color: int, bundle: int) -> None:
        """Deal each column its part of every token."""
        part, taking = self.part_of_residual(bundle), self._taking(bundle)
        shares = []
        for cell, first, length in taking:
            at = self.senders.index(cell) * self.outputs + first - part.start
            shares.append([(slot.dsd(at, length, step=len(part)), length)])
        with store.loop(self.unit):
            deal(store, color, shares, len(shares))
