"""A dense layer whose rows share the work on the outputs, and send their tokens themselves.

Symbols as in :mod:`wse_sim.whole.regions.dense`; F the largest divisor of T up to R, r = T / F tokens of a row; row b counts from
the last one::

    first row   its sums leave with the bias
    last row    token t of a sample: keeps the sums if t mod F = 0, else sends them up the column as they come, to row t mod F
    row b       takes its r tokens in beside the products; residual and activation; sends each when it is its turn

The tokens of a sample are finished after m tokens of the next, when their last sums have come back.  Token t leaves before
token m + t of the next sample: rows send in turn, so that few words wait in the output queue of a core for those of another
row, where they would hold up sums.  Rows are ahead of those below them, and m grows with it.  Cores of a row send in turn::

    row         T (k ceil(v / w) + v) + r v + r v / 2 sent [+ r v / 2 received] + sum over items of (o + r v / rate)
    last row    the same, with r control words in place of r v
"""

from __future__ import annotations

from math import ceil

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Ports, divisor
from wse_sim.whole.regions.dense import Dense, work_cycles
from wse_sim.whole.regions.turns import (
    deal,
    receive_all,
    route_rows_of_senders,
    route_takers,
    route_winding,
)

SEND, TAKE, RESIDUAL = 1, (2, 3), 4  # microthreads; sums of even and odd samples
HOP_CYCLES = 8  # of sums from a row to the next, through both queues


class SharedDense(Dense):
    """A product with a weight whose outputs several rows finish."""

    @property
    def own_colors(self) -> int:
        """Inputs, two of sums, sums back up of even and odd samples; a residual."""
        return 5 + ("residual" in self.items)

    @property
    def is_possible(self) -> bool:
        """Whether several rows can finish the tokens of a sample, each has an inlet, and the work is long.

        Where it is short, rows that wait for their turns to send lose more than the last row has less to do.
        """
        if SPECIAL_FUNCTIONS.isdisjoint(self.items):
            return False
        return self.height > 1 and self.finishing > 1 and not self.is_narrow

    @property
    def finishing(self) -> int:
        """Rows that finish outputs, the last one among them."""
        return divisor(self.tokens, self.height)

    @property
    def share(self) -> int:
        """Tokens that such a row finishes."""
        return self.tokens // self.finishing

    def _shares(self, words: int, rows: int, *, has_last: bool) -> list[int]:
        return super()._shares(words, rows, has_last=False)

    def splits(self, tensor: str) -> tuple[int, ...]:
        """The result leaves over one link."""
        return (1,) if tensor == self.kernel.outputs[0] else super().splits(tensor)

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """All: there is one."""
        return self.senders

    def late(self, place: int) -> int:
        """Tokens of the next sample after which a row has its sums back, and the row below has sent its token.

        A row is so many hops of sums ahead of the last one as it lies above it; its sums come back over as many links.
        """
        each = max(self._products_cycles())
        ahead = place * (HOP_CYCLES + max(0.0, self.features / PAIR - each))
        return min(self.tokens - 1, 1 + ceil((ahead + 2 * HOP_CYCLES + place) / each))

    @property
    def senders(self) -> tuple[Cell, ...]:
        """Row by row from the last, each from its end."""
        return tuple(cell for row in self._rows_of_senders() for cell in row)

    @property
    def is_westward(self) -> bool:
        """At the lower edge of the fabric: there is no way out below the last row."""
        return self.last == self.wafer.rows - 1

    def _rows_of_senders(self) -> list[list[Cell]]:
        columns = [self.left + col for col in range(self.cols)][:: 1 if self.is_westward else -1]
        return [[(self.last - place, col) for col in columns] for place in range(self.finishing)]

    # ---- program ---------------------------------------------------------------------------------------------------

    def _declare_finish(self, b: Builder) -> None:
        size = self.share * self.outputs
        rows = (slice(self.last - self.finishing + 1, self.last + 1), self.columns)
        self.got = [b.buffer(f"{self.name}.got{i}", size, "fp16", rows, bank=0) for i in (0, 1)]
        self.given = b.buffer(f"{self.name}.given", size, "fp16", rows, bank=0)
        if "bias" in self.items:
            self.bias = b.buffer(f"{self.name}.bias", self.outputs, "fp32", (self.top, self.columns), bank=2)
        if "residual" in self.items:
            self.residual = b.buffer(f"{self.name}.residual", size, "fp16", rows, bank=2)

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Inlets, store, rows of products, of which the lowest finish outputs and send."""
        self._surround(b, ports, samples)
        for col in range(self.left, self.left + self.cols):
            takers = [(self.last - place, col) for place in range(1, self.finishing)]
            for color in ports.own[3:5]:
                route_takers(b, color, (self.last, col), takers, 0, "E")
        rows = self._rows_of_senders()
        route_rows_of_senders(b, ports.outward, rows, ports.towards)
        for i in range(self.height - self.finishing):
            core = b.core_class(f"{self.name} row {i}")
            self._row(core, i, ports, samples)
            b.place(core, (self.top + i, self.columns))
        for place, row in enumerate(rows):
            for position, cell in enumerate(row):
                # All but the ends of a row do the same; the last column may have fewer outputs.
                if position in (0, self.cols - 1):
                    core = b.core_class(f"{self.name} row {self.height - 1 - place}, column {position}")
                    _Finisher(self, core, ports, place, position).program(samples)
                elif position == 1:
                    core = b.core_class(f"{self.name} row {self.height - 1 - place}")
                    _Finisher(self, core, ports, place, position).program(samples)
                b.place(core, cell)

    def _pass_on(self, core: CoreClass, row: int, ports: Ports) -> None:
        if row or "bias" not in self.items:
            super()._pass_on(core, row, ports)
            return
        self._products(core, ports.own[0], row)
        core.add(fabric_out(ports.own[1]), self.y.dsd(), self.bias.dsd(), start="none")

    def _residual_cells(self) -> list[Cell]:
        """Finishing cores in the order in which the store feeds them: forth along the last row, back along the next."""
        rows = [sorted(row) for row in self._rows_of_senders()]
        return [cell for place, row in enumerate(rows) for cell in (row[::-1] if place % 2 else row)]

    def _deal_residual(self, store: CoreClass, slot: Buffer, color: int) -> None:
        v, cells, shares = self.outputs, self._residual_cells(), []
        rows = self._rows_of_senders()
        for cell in cells:
            place = self.last - cell[0]
            first = place * self.features + rows[place].index(cell) * v
            starts = range(first, self.tokens * self.features, self.finishing * self.features)
            shares.append([(slot.dsd(at, v), v) for at in starts])
        deal(store, color, shares, len(cells))

    def _route_residual(self, b: Builder, color: int) -> None:
        route_winding(b, color, self.stores[0], self._residual_cells())

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def _biases(self, each: Floats) -> Floats:
        return each[None]

    @property
    def work(self) -> tuple[str, ...]:
        """Items that rows do on their tokens."""
        return tuple(item for item in self.items if item != "bias")

    def _products_cycles(self) -> list[float]:
        """Of every row and a token: products and sums."""
        v = self.outputs
        each = int(ceil_div(v, self.wafer.fma_mixed_per_cycle))
        return [float(PAIR * words * each + v) for words in self.words]

    def held_up_cycles(self) -> float:
        """No row is busy for long between two tokens, or all are."""
        return 0.0

    def issued_cycles(self) -> float:
        """As the module says; without work on the outputs they are moved at the pace of additions."""
        size, each = self.share * self.outputs, self._products_cycles()
        work = work_cycles(self.work, size, self.wafer) or ceil(size / self.wafer.mov_fp16_per_cycle)
        work += size / PAIR * (1 + ("residual" in self.items))
        last = self.tokens * each[-1] + self.share * (self.finishing > PAIR) + work
        first = (
            self.height - self.finishing
        )  # the first row that finishes outputs: its last column resets the way out
        rows = self.tokens * max(each[first:-1]) + size + work
        ends = self.tokens * each[first] + size + work + self.share
        return float(max(self.tokens * max(each), last, rows, ends))


class _Finisher:
    """The program of a core that finishes outputs: in row `place` from the last, at a position from the row's end."""

    def __init__(self, layer: SharedDense, core: CoreClass, ports: Ports, place: int, position: int) -> None:
        self.layer, self.core, self.ports, self.place = layer, core, ports, place
        self.row = layer.height - 1 - place
        self.length = layer.sent(position)
        is_end, is_last = position == layer.cols - 1, place == layer.finishing - 1
        self.late = layer.late(place)
        self.resets = is_end and is_last
        self.advance = None if self.resets else ("path" if is_end and layer.cols > 1 else "local")

    def program(self, samples: int) -> None:
        """All samples; the last of them leave without products beside them."""
        if "residual" in self.layer.items:
            self._receive_residual()
        self._sample(0, finishes=False, has_older=False)
        if samples > 1:
            self._sample(1, has_older=False)
        with self.core.loop(max(0, samples - 2) // 2):
            self._sample(0)
            self._sample(1)
        if samples > 1 and samples % 2:
            self._sample(0)
        self._sample(samples % 2, is_there=False, has_older=samples > 1)
        self._sample((samples + 1) % 2, is_there=False, finishes=False)

    def _sample(
        self, turn: int, *, is_there: bool = True, finishes: bool = True, has_older: bool = True
    ) -> None:
        """The products of a sample, while the one before is finished and leaves, and the rest of the one before that."""
        layer, core = self.layer, self.core
        if is_there and self.place:
            sums = fabric_in(self.ports.own[3 + turn])
            core.mov(layer.got[turn].dsd(), sums, start="none", thread=TAKE[turn], priority="high")
        for number in range(layer.tokens):
            left = number - self.late
            if left == 0:
                if has_older and self.resets:
                    self._reset()
                if finishes:
                    self._finish(layer.got[1 - turn], TAKE[1 - turn], more=is_there)
            if finishes if left >= 0 else has_older:
                self._send(left % layer.tokens, is_first=left == 0)
            if is_there:
                self._token(turn, number)

    def _token(self, turn: int, number: int) -> None:
        layer, core = self.layer, self.core
        if self.place:
            layer._pass_on(core, self.row, self.ports)
            return
        layer._products(core, self.ports.own[0], self.row)
        above = fabric_in(self.ports.own[1 + layer.height % 2])
        owner, v, back = number % layer.finishing, layer.outputs, self.ports.own[3 + turn]
        if owner == 0:
            kept = layer.got[turn].dsd(number // layer.finishing * v, v)
            core.add(kept, layer.y.dsd(), above, start="none")
            return
        advance = "path" if owner < layer.finishing - 1 else None
        core.add(fabric_out(back, advance), layer.y.dsd(), above, start="none")
        if advance is None and layer.finishing > PAIR:
            core.control(back, Command.RESET, start="none")

    def _send(self, token: int, *, is_first: bool) -> None:
        """Before a token of the next sample: the token of this row whose turn it is."""
        layer, core = self.layer, self.core
        turn, owner = divmod(token, layer.finishing)
        if self.resets and owner == 0 and not is_first:
            self._reset()
        if owner == self.place:
            core.join(SEND)
            core.mov(
                fabric_out(self.ports.outward, self.advance), layer.given.dsd(turn * layer.outputs, self.length),
                dtype="fp16", start="none", thread=SEND, priority="high",
            )  # fmt: skip

    def _reset(self) -> None:
        """Behind the last row's token: all rows from the first again."""
        self.core.join(SEND)
        self.core.control(self.ports.outward, Command.RESET, start="none")

    def _receive_residual(self) -> None:
        receive_all(self.core, self.ports.own[-1], self.layer.residual.dsd(), RESIDUAL)

    def _finish(self, got: Buffer, thread: int, *, more: bool) -> None:
        layer, core = self.layer, self.core
        if self.place:
            core.join(thread)
        core.join(SEND)
        if not layer.work:
            core.mov(layer.given.dsd(), got.dsd(), dtype="fp16", start="none")
        layer._finish(core, got, layer.given, layer.work, RESIDUAL)
        if more and "residual" in layer.work:
            self._receive_residual()
