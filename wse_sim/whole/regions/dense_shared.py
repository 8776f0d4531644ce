"""A dense layer whose rows share the work on the outputs and send their tokens themselves.

Symbols as in :mod:`wse_sim.whole.regions.dense`; F the largest divisor of T up to R; a round is F tokens, one
for each of F rows; row b counts from the last one::

    first row   adds the bias to its sums
    last row    token t of a round: keeps the sums if t = 0, else sends them up the column to row t as they arrive
    row b       receives its token during the products; applies the activation; sends it when its turn comes

The tokens of a round are finished after m tokens of the next, when their last sums have come back. Rows send
in sequence, and a core has one output queue: waiting results would block sums. So token t leaves before token
m + t of the next round, if products take at least as long as its words on their link. Otherwise all rows send
what they have before they finish the next round: the work on the outputs sends no sums. Rows run ahead of
those below them, and m grows accordingly, up to F - 1. If sums come back later than that, the first of the
rows waits for them, and all rows wait for it (`return_wait_cycles`). Cores of a row send in sequence, for every bundle of the result; r
= T / F::

    row         T (k ceil(v / w) + v) + r (v + v / 2 sent + sum over operations of (o + v / rate))
    last row    the same, with r control words instead of r v
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.blocks.products import relay_cycles
from wse_sim.kernels.blocks.word_rows import return_wait_cycles
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Ports, divisor
from wse_sim.whole.regions.dense import SEND, Dense, Sent
from wse_sim.whole.regions.fused_work import work_cycles
from wse_sim.whole.regions.shared_color import (
    route_rows_of_senders,
    route_takers,
)

TAKE, RESIDUAL = (2, 3), 4  # microthreads; sums of even and odd rounds


class SharedDense(Dense):
    """A product with a weight whose outputs are finished by several rows."""

    relays = False
    has_even_rows = True

    @property
    def own_colors(self) -> int:
        """Colors for inputs, two for sums, and sums sent back up in even and odd rounds."""
        return 5

    @property
    def is_possible(self) -> bool:
        """Whether several rows can finish the tokens of a sample, and the work on the outputs is long enough
        to share.

        For short work, rows lose more by waiting to send than the last row gains.
        """
        if SPECIAL_FUNCTIONS.isdisjoint(self.items) or "residual" in self.items:
            return False
        return self.height > 1 and self.finishing > 1

    @property
    def finishing(self) -> int:
        """Number of rows that finish outputs, including the last."""
        return divisor(self.tokens, self.height)

    @property
    def late_fraction(self) -> float:
        """Tokens of a round leave during the next one."""
        return self.finishing / self.tokens

    @property
    def share(self) -> int:
        """Rounds of a sample: the number of tokens that each finishing row finishes."""
        return self.tokens // self.finishing

    def _shares(self, words: int, rows: int, *, has_last: bool) -> list[int]:
        return super()._shares(words, rows, has_last=False)

    def splits(self, tensor: str) -> Sequence[int]:
        """Return 1 for a result that leaves next to its region, over one link."""
        return (1,) if tensor == self.kernel.outputs[0] and self.is_westward else super().splits(tensor)

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Return the cells with features of a bundle, row by row from the last, each from its end."""
        return tuple(cell for row in self._rows_of(bundle) for cell in row)

    def _rows_of(self, bundle: int) -> list[list[Cell]]:
        spans = [self._sent_into(bundle, position) for position in range(self.cols)]
        has = [first < end for first, end in spans]
        return [
            [cell for cell, is_in in zip(row, has, strict=True) if is_in] for row in self._rows_of_senders()
        ]

    @property
    def link_cycles(self) -> float:
        """Cycles that a token occupies its link."""
        words = ceil_div(self.features // PAIR, self.bundles.get(self.kernel.outputs[0], 1))
        return float(self.wafer.wavelet_cycles * words)

    @property
    def is_spaced(self) -> bool:
        """Whether rows send during their products, one token after the other: all tokens of a round leave
        before it ends."""
        return self._late(self.finishing - 1) <= self.finishing - 1

    def late(self, place: int) -> int:
        """Return the number of tokens of the next round after which a row finishes its token."""
        return min(self.finishing - 1, self._late(place) if self.is_spaced else self._back(place))

    def _back(self, place: int) -> int:
        """Return the number of tokens after which a row has its sums back; they travel one link per row above
        the last."""
        each = max(self._products_cycles())
        return 1 + ceil((place * self._row_cycles + 2 * self._row_cycles + place) / each)

    @property
    def _row_cycles(self) -> float:
        """Cycles of sums from a row to the next and of the links there and back."""
        return relay_cycles(self.wafer) + 2 * self.wafer.hop_cycles

    def _late(self, place: int) -> int:
        """Return the number of tokens after which a row has its sums back and the row below has sent its
        token."""
        each = max(self._products_cycles())
        ahead = place * (self._row_cycles + max(0.0, self.link_cycles - each))
        return 1 + ceil((ahead + 2 * self._row_cycles + place) / each)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The cells of all finishing rows, row by row from the last, each from its end."""
        return tuple(cell for row in self._rows_of_senders() for cell in row)

    @property
    def is_westward(self) -> bool:
        """Whether results leave westward, because there is no row below the last one."""
        return self.last == self.wafer.rows - 1

    def _rows_of_senders(self) -> list[list[Cell]]:
        columns = [self.left + col for col in range(self.cols)][:: 1 if self.is_westward else -1]
        return [[(self.last - place, col) for col in columns] for place in range(self.finishing)]

    # ---- program ---------------------------------------------------------------------------------------------------

    def _declare_finish(self, b: Builder) -> None:
        v = self.outputs
        rows = (slice(self.last - self.finishing + 1, self.last + 1), self.columns)
        self.got = [b.buffer(f"{self.name}.got{i}", v, "fp16", rows, bank=0) for i in (0, 1)]
        self.given = [b.buffer(f"{self.name}.given{i}", v, "fp16", rows, bank=0) for i in (0, 1)]
        if "bias" in self.items:
            self.bias = b.buffer(f"{self.name}.bias", v, "fp32", (self.top, self.columns), bank=2)

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write inlets and rows of products; the lowest rows also finish outputs and send them."""
        self._surround(b, ports, samples)
        self._route_back(b, ports)
        sends = self._routed(b, ports)
        for i in range(self.height - self.finishing):
            core = b.core_class(f"{self.name} row {i}")
            self._row(core, i, ports, samples)
            b.place(core, (self.top + i, self.columns))
        for place, row in enumerate(self._rows_of_senders()):
            for number, kind in enumerate(dict.fromkeys(sends[cell] for cell in row)):
                core = b.core_class(f"{self.name} row {self.height - 1 - place}, senders {number}")
                self._finisher(core, ports, place, kind).program(samples * self.share)
                for cell in row:
                    if sends[cell] == kind:
                        b.place(core, cell)

    def _route_back(self, b: Builder, ports: Ports) -> None:
        """Route sums from the last row up the columns to the rows in sequence."""
        for col in range(self.left, self.left + self.cols):
            takers = [(self.last - place, col) for place in range(1, self.finishing)]
            for color in ports.own[3:5]:
                route_takers(b, color, (self.last, col), takers, 0, "E")

    def _finisher(self, core: CoreClass, ports: Ports, place: int, sends: Sequence[Sent]) -> Finisher:
        return Finisher(self, core, ports, place, sends)

    def _routed(self, b: Builder, ports: Ports) -> dict[Cell, tuple[Sent, ...]]:
        """Route all senders; return what each sends of a token. A column in two bundles sends into the later
        one first."""
        sends: dict[Cell, tuple[Sent, ...]] = {}
        for bundle, (color, towards) in enumerate([(ports.outward, ports.towards), *ports.others]):
            rows = self._rows_of(bundle)
            route_rows_of_senders(b, color, rows, towards)
            for place, row in enumerate(rows):
                for i, cell in enumerate(row):
                    position = self._rows_of_senders()[place].index(cell)
                    first, end = self._sent_into(bundle, position)
                    is_end, is_last = i == len(row) - 1, place == self.finishing - 1
                    if is_end and is_last:
                        advance = None
                    else:
                        advance = "path" if is_end and len(row) > 1 else "local"
                    sends[cell] = (Sent(color, first, end - first, advance), *sends.get(cell, ()))
        return sends

    def _pass_on(self, core: CoreClass, row: int, ports: Ports) -> None:
        if row or "bias" not in self.items:
            super()._pass_on(core, row, ports)
            return
        self._products(core, ports.own[0], row)
        core.add(fabric_out(ports.own[1]), self.y.dsd(), self.bias.dsd(), start="none")

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def _biases(self, each: Floats) -> Floats:
        return each[None]

    @property
    def work(self) -> tuple[str, ...]:
        """Fused operations that the finishing rows run on their tokens."""
        return tuple(item for item in self.items if item != "bias")

    def _products_cycles(self) -> list[float]:
        """Return the cycles per token of every row for products and sums."""
        v = self.outputs
        each = int(ceil_div(v, self.wafer.fma_mixed_per_cycle))
        return [float(PAIR * words * each + v) for words in self.words]

    def held_up_cycles(self) -> float:
        """Return the cycles per sample that the first of the finishing rows waits for its sums."""
        each = max(self._products_cycles())
        return self.share * float(return_wait_cycles(self.finishing, each, self.wafer))

    def issued_cycles(self) -> float:
        """Return the issue cycles per sample; without operations on the outputs, moving them costs as much as
        an addition."""
        size, each = self.share * self.outputs, self._products_cycles()
        work = self.share * (
            work_cycles(self.work, self.outputs, self.wafer)
            or ceil(self.outputs / self.wafer.mov_fp16_per_cycle)
        )
        work += size / PAIR * (1 + ("residual" in self.items))
        last = self.tokens * each[-1] + self.share * (self.finishing > PAIR) + work
        # The first row that finishes outputs: its last column resets the output route.
        first = self.height - self.finishing
        rows = self.tokens * max(each[first:-1]) + size + work
        ends = self.tokens * each[first] + size + work + self.share
        return float(max(self.tokens * max(each), last, rows, ends))

    def pace(self) -> float:
        """Return the cycles per sample; rows that send before they finish wait if sending a round takes
        longer than the work on it."""
        found, round_cycles = super().pace(), self.finishing * self.link_cycles
        if self.is_spaced:
            return found
        work = work_cycles(self.work, self.outputs, self.wafer)
        return max(found, self.issued_cycles() + self.share * max(0.0, round_cycles - work))


class Finisher:
    """Program of a core that finishes outputs: in row `place` counted from the last, with its outputs
    `sends`."""

    def __init__(
        self, layer: SharedDense, core: CoreClass, ports: Ports, place: int, sends: Sequence[Sent]
    ) -> None:
        self.layer, self.core, self.ports, self.place, self.sends = layer, core, ports, place, sends
        self.row = layer.height - 1 - place
        self.late = layer.late(place)
        self.resets = [one.color for one in sends if one.advance is None]

    def program(self, rounds: int) -> None:
        """Write all rounds; the results of the last round leave after all products."""
        self._round(0, finishes=False, has_older=False)
        if rounds > 1:
            self._round(1, has_older=False)
        with self.core.loop(max(0, rounds - 2) // 2):
            self._round(0)
            self._round(1)
        if rounds > 1 and rounds % 2:
            self._round(0)
        self._round(rounds % 2, is_there=False, has_older=rounds > 1)
        self._round((rounds + 1) % 2, is_there=False, finishes=False)

    def _take_sums(self, turn: int) -> None:
        """Receive the sums of this row's token during the products of the round; the last row makes its own."""
        if self.place:
            sums = fabric_in(self.ports.own[3 + turn])
            self.core.mov(self.layer.got[turn].dsd(), sums, start="none", thread=TAKE[turn], priority="high")

    def _round(
        self, turn: int, *, is_there: bool = True, finishes: bool = True, has_older: bool = True
    ) -> None:
        """Write the products of a round; meanwhile the round before is finished and its results leave."""
        layer = self.layer
        if is_there:
            self._take_sums(turn)
        for number in range(layer.finishing):
            left = number - self.late
            if left == 0:
                if layer.is_spaced:
                    if has_older and self.resets:
                        self._reset()
                elif has_older:
                    self._emit(turn)
                if finishes:
                    self._finish(1 - turn, more=is_there)
                if has_older and self.resets and not layer.is_spaced:
                    self._reset()
            if layer.is_spaced and (finishes if left >= 0 else has_older):
                self._send(left % layer.finishing, turn=1 - turn if left >= 0 else turn, is_first=left == 0)
            if is_there:
                self._token(turn, number)

    def _token(self, turn: int, number: int) -> None:
        layer, core = self.layer, self.core
        if self.place:
            layer._pass_on(core, self.row, self.ports)
            return
        layer._products(core, self.ports.own[0], self.row)
        above = fabric_in(self.ports.own[1 + layer.height % 2])
        back = self.ports.own[3 + turn]
        if number == 0:
            core.add(layer.got[turn].dsd(), layer.y.dsd(), above, start="none")
            return
        advance = "path" if number < layer.finishing - 1 else None
        core.add(fabric_out(back, advance), layer.y.dsd(), above, start="none")
        if advance is None and layer.finishing > PAIR:
            core.control(back, Command.RESET, start="none")

    def _send(self, token: int, *, turn: int, is_first: bool) -> None:
        """Before a token of the next round, send this row's token if it is next in sequence."""
        if self.resets and token == 0 and not is_first:
            self._reset()
        if token == self.place:
            self._emit(turn)

    def _emit(self, turn: int) -> None:
        """Send the finished results concurrently with the main thread."""
        self.core.join(SEND)
        for part in self.sends:
            part.emit(self.core, self.layer.given[turn])

    def _reset(self) -> None:
        """Reset the switches after the last row's token, so that the first row sends next."""
        self.core.join(SEND)
        for color in self.resets:
            self.core.control(color, Command.RESET, start="none")

    def _finish(self, turn: int, *, more: bool) -> None:
        layer, core = self.layer, self.core
        got, given = layer.got[turn], layer.given[turn]
        if self.place:
            core.join(TAKE[turn])
        if not layer.work:
            core.mov(given.dsd(), got.dsd(), dtype="fp16", start="none")
        layer._finish(core, got, given, layer.work, RESIDUAL)
