"""A dense layer with a residual whose rows finish tokens in rotation, each next to a core that stores its
part of the residual.

Symbols as in :mod:`wse_sim.whole.regions.dense`; F rows as in :mod:`wse_sim.whole.regions.dense_shared`, r =
T / F::

    residual > dealing core > tokens to the stores of every row, round-robin > keeper > along the row
    result   < in sequence over the column of the first stores < keeper < columns of the row in sequence

The keeper is the store next to the row. It also receives the results of its row and sends them in sequence
with the other keepers: in the single output queue of a core that multiplies, waiting results would block
sums. So rows finish and send at the same time, and only the columns of one row wait for each other, which
takes N / 2 cycles per round; the queues of sums hide 14 / v tokens of it::

    row          T (k ceil(v / w) + v) + r (v + v / 2 sent + v / 2 received + sum over operations of (o + v / rate))
    keeper       r (3 N / 2 + C v / 2 + 1)
    handed       (T + r) (N / 2 + 2): the link next to the last row's keeper also carries the results of that row
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from wse_sim.fabric.format.builder import Buffer, Builder, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.blocks.word_rows import has_keepers, kept_cycles, waits_for_columns
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Ports, divisor
from wse_sim.whole.regions.dense import Sent
from wse_sim.whole.regions.dense_beside import STORE
from wse_sim.whole.regions.dense_shape import LAST_SLOTS, STORES
from wse_sim.whole.regions.dense_shared import RESIDUAL, Finisher, SharedDense
from wse_sim.whole.regions.turns import KEEP, advance_of, deal, receive_all, route_senders, route_takers

COLLECT = 2  # microthread of a keeper


class KeptDense(SharedDense):
    """A product with a weight and a residual, finished by several rows."""

    apart = 1
    """One cell of the stores is without samples: it distributes tokens over the rows."""

    @property
    def own_colors(self) -> int:
        """Colors for inputs, two for sums, sums sent back up in even and odd rounds, the residual, and
        results to the keepers."""
        return 7

    @property
    def is_possible(self) -> bool:
        """Whether there is room for keepers and stores, and a row above those that finish tokens."""
        if "residual" not in self.items or not has_keepers(self.compute_cols, self.wafer):
            return False
        return self.height > 1 and self.finishing > 1 and self.depth > 1

    @property
    def store_room(self) -> int:
        """Cores per row that may be stores."""
        return self.left - self.region.col - 1

    @property
    def depth(self) -> int:
        """Stores next to a row, including the keeper, each with two samples of the row's tokens."""
        return min(max(STORES, self.wanted_stores), self.store_room)

    @property
    def finishing(self) -> int:
        """Rows that finish outputs, including the last; the core that deals out the residual is next to a row
        above them."""
        return divisor(self.tokens, self.height - 1)

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Return 1 for the result, which leaves over one link."""
        return (1,) if tensor == self.kernel.outputs[0] else super().splits(tensor)

    @property
    def is_westward(self) -> bool:
        """True: the first column sends first."""
        return True

    def late(self, place: int) -> int:
        """Return the number of tokens of the next round after which a row finishes its token."""
        return min(self.finishing - 1, self._back(place))

    @property
    def stores(self) -> tuple[Cell, ...]:
        """The stores of the last row from its keeper on, then the core that deals tokens to all rows."""
        here = [(self.last, self.left - 2 - i) for i in range(self.depth)]
        return (*here, (self.last - self.finishing, self.left - self.depth))

    @property
    def _kept_rows(self) -> range:
        """Fabric rows with keepers, from the last."""
        return range(self.last, self.last - self.finishing, -1)

    @property
    def _way_out(self) -> int:
        """Fabric column in which results leave: that of the first stores."""
        return self.left - 1 - self.depth

    @cached_property
    def senders(self) -> tuple[Cell, ...]:
        """The cells of the output column from the last row up, then those between every keeper and that
        column."""
        ends = [(row, self._way_out) for row in self._kept_rows]
        return (*ends, *((row, col) for row in self._kept_rows for col in self._between))

    @property
    def _between(self) -> range:
        """Columns from the keepers to the output column."""
        return range(self.left - 2, self._way_out, -1)

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Return all senders: there is one bundle."""
        return self.senders

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Links of dealt tokens and of results next to the rows, of sums sent back up the columns, and of the
        last row."""
        top, down, out = self.stores[-1][0], self.stores[-1][1], self._way_out
        pairs = list(pairwise(range(top, self.last + 1)))
        beside = {((a, col), (b, col)) for a, b in pairs for col in (down, out)}
        columns = (out, *range(self.left, self.left + self.cols))
        back = {((b, col), (a, col)) for a, b in pairs[1:] for col in columns}
        along = {((self.last, col), (self.last, col + 1)) for col in (self.left - 2, self.left - 1)}
        return frozenset(beside | back | along | {((self.last, down), (self.last, out))})

    # ---- program ---------------------------------------------------------------------------------------------------

    def _declare_finish(self, b: Builder) -> None:
        super()._declare_finish(b)
        rows = slice(self.last - self.finishing + 1, self.last + 1)
        self.residual = b.buffer(f"{self.name}.residual", self.outputs, "fp16", (rows, self.columns), bank=2)

    def _routed(self, b: Builder, ports: Ports) -> dict[Cell, tuple[Sent, ...]]:
        """Route the results of every row to its keeper, first column first, and those of the keepers in
        sequence to the output."""
        color, count = ports.own[6], self.cols
        sends: dict[Cell, tuple[Sent, ...]] = {}
        for row in self._rows_of_senders():
            route_senders(b, color, row, "W")
            at, first = row[0]
            b.route(color, (at, first - 1), rx="E", tx="W")
            b.route(color, (at, first - 2), rx="E", tx="R")
            for i, cell in enumerate(row):
                sends[cell] = (Sent(color, 0, self.sent(i), advance_of(i, count)),)
        for place, at in enumerate(self._kept_rows):
            for col in self._between:
                b.route(
                    ports.outward, (at, col), rx="R" if col == self.left - 2 else "E", tx="W", switch=KEEP
                )
            is_first = place == self.finishing - 1
            behind = KEEP if is_first else Switch([{"rx": "N"}], pop="never")
            onward = "S" if place else ports.towards
            b.route(ports.outward, (at, self._way_out), rx="E", tx=onward, switch=behind)
        return sends

    def _finisher(self, core: CoreClass, ports: Ports, place: int, sends: Sequence[Sent]) -> Finisher:
        return KeptFinisher(self, core, ports, place, sends)

    def _store(self, b: Builder, color: int, ports: Ports, samples: int) -> None:
        """Write the core that deals tokens to the rows, and the stores of each row, which buffer them and
        pass them along the row."""
        # Colors of sums are free next to the compute cores.
        onward, links, hands_on = ports.own[3], ports.own[1:3], b.core_class(f"{self.name} hands on")
        with hands_on.loop(samples * self.share):
            shares = [[(fabric_in(color), self.features)]] * self.finishing
            deal(hands_on, onward, shares, self.finishing)
        b.place(hands_on, self.stores[-1])
        self._route_hand_on(b, onward)
        size = self.share * self.features + self.cols * self.outputs - self.features
        rows = slice(self.last - self.finishing + 1, self.last + 1)
        for i in range(self.depth):
            col = self.left - 2 - i
            slots = [
                b.buffer(f"{self.name}.slot{i} {turn}", size, "fp16", (rows, col))
                for turn in range(self.slots if i else LAST_SLOTS)
            ]
            inward = onward if i == self.depth - 1 else links[i % 2]
            if i:
                outward = links[(i - 1) % 2]
                store = b.core_class(f"{self.name} store {i}")
                self._keep(store, slots, inward, outward, samples, is_last=False)
                b.place(store, (rows, col))
                b.route(outward, (rows, col), rx="R", tx="E")
                b.route(outward, (rows, col + 1), rx="W", tx="R")
            else:
                self._keepers(b, slots, inward, ports, samples)
        for row in self._rows_of_senders():
            route_takers(b, ports.own[5], (row[0][0], self.left - 2), row, 0, "E")

    def _route_hand_on(self, b: Builder, color: int) -> None:
        """Route tokens down to the last row, and up from its store: tokens arrive in the order of rows."""
        top, col = self.stores[-1]
        b.route(color, (top, col), rx="R", tx="S", switch=KEEP)
        for row in range(top + 1, self.last):
            b.route(color, (row, col), rx="N", tx="S", switch=KEEP)
        b.route(color, (self.last, col), rx="N", tx="W", switch=KEEP)
        for place, row in enumerate(self._kept_rows):
            is_end = place == self.finishing - 1
            onward = KEEP if is_end else Switch([{"tx": "N"}], pop="never")
            b.route(color, (row, col - 1), rx="S" if place else "E", tx="R", switch=onward)

    @property
    def stored(self) -> int:
        """Elements of a sample in one store."""
        return self.share * self.features

    def _keepers(self, b: Builder, slots: Sequence[Buffer], inward: int, ports: Ports, samples: int) -> None:
        rows = slice(self.last - self.finishing + 1, self.last + 1)
        cells = (rows, self.left - 2)
        results = [b.buffer(f"{self.name}.result {turn}", self.features, "fp16", cells) for turn in (0, 1)]
        for is_end in (False, True):
            keeper = b.core_class(f"{self.name} keeper{' at the end' * is_end}")
            _Keeper(self, keeper, slots, results, inward, ports, is_end).program(samples)
            top = self.last - self.finishing + 1
            b.place(
                keeper, (top, self.left - 2) if is_end else (slice(top + 1, self.last + 1), self.left - 2)
            )

    # ---- cycles ----------------------------------------------------------------------------------------------------

    def handed_cycles(self) -> float:
        """Return the cycles per sample of the core that deals tokens out, or of a keeper."""
        return float(kept_cycles(self.tokens, self.features, self.finishing, self.outputs, self.wafer))

    def ahead_cycles(self) -> float:
        """Return the cycles to receive the residual of the tokens of a row."""
        return self.share * self.outputs / PAIR

    def held_up_cycles(self) -> float:
        """Return the cycles in which columns of a row wait for each other to send."""
        each = max(self._products_cycles())
        return float(self.share * waits_for_columns(self.features, self.outputs, each))

    @property
    def is_spaced(self) -> bool:
        """True: no row waits for another row to send."""
        return True


class KeptFinisher(Finisher):
    """Program of a core that finishes outputs next to a keeper."""

    def program(self, rounds: int) -> None:
        """Write all rounds; the residual of the next round arrives meanwhile."""
        self._receive_residual()
        super().program(rounds)

    def _round(
        self, turn: int, *, is_there: bool = True, finishes: bool = True, has_older: bool = True
    ) -> None:
        layer = self.layer
        if is_there:
            self._take_sums(turn)
        for number in range(layer.finishing):
            if finishes and number == self.late:
                self._finish(1 - turn, more=is_there)
                self._emit(1 - turn)
            if is_there:
                self._token(turn, number)

    def _finish(self, turn: int, *, more: bool) -> None:
        super()._finish(turn, more=more)
        if more:
            self._receive_residual()

    def _receive_residual(self) -> None:
        receive_all(self.core, self.ports.own[5], self.layer.residual.dsd(), RESIDUAL)


class _Keeper:
    """Program of a keeper: deals the residual to the columns of its row, and collects and forwards the
    results in sequence.

    A result leaves after the residual of the next token, which the row may need earlier.
    """

    def __init__(
        self,
        layer: KeptDense,
        core: CoreClass,
        slots: Sequence[Buffer],
        results: Sequence[Buffer],
        inward: int,
        ports: Ports,
        is_end: bool,
    ) -> None:
        self.layer, self.core, self.slots, self.results = layer, core, slots, results
        self.inward, self.ports, self.is_end = inward, ports, is_end

    def program(self, samples: int) -> None:
        """Write all samples; the first token has no result before it."""
        core = self.core
        self._receive(0)
        self._sample(0, more=samples > 1, is_first=True)
        if samples > 1:
            with core.loop((samples - 2) // 2):
                self._sample(1)
                self._sample(0)
            if samples % 2:
                self._sample(1)
            self._sample((samples - 1) % 2, more=False)
        last = (samples * self.layer.share - 1) % 2
        core.join(COLLECT)
        self._send(last)

    def _receive(self, turn: int) -> None:
        receive_all(self.core, self.inward, self.slots[turn].dsd(0, self.layer.stored), STORE, "low")

    def _sample(self, now: int, *, more: bool = True, is_first: bool = False) -> None:
        core, share = self.core, self.layer.share
        core.join(STORE)
        if more:
            self._receive(1 - now)
        begin = 0
        if is_first:
            self._deal(now, 0, 1)
            self._collect(0)
            begin = 1
        pairs, rest = divmod(share - begin, 2)
        with core.loop(pairs):
            for number in (begin, begin + 1) if pairs else ():
                self._token(now, number, 2)
        if rest:
            self._token(now, share - 1, 1)

    def _token(self, now: int, number: int, step: int) -> None:
        """Write the residual of a token and the result of the one before, advancing by `step` tokens per loop
        iteration."""
        turn = (now * self.layer.share + number) % 2
        self._deal(now, number, step)
        self.core.join(COLLECT)
        self._collect(turn)
        self._send(1 - turn)

    def _deal(self, now: int, number: int, step: int) -> None:
        layer, v = self.layer, self.layer.outputs
        first = number * layer.features
        shares = [
            [(self.slots[now].dsd(first + col * v, v, step=step * layer.features), v)]
            for col in range(layer.cols)
        ]
        deal(self.core, self.ports.own[5], shares, layer.cols)

    def _collect(self, turn: int) -> None:
        receive_all(self.core, self.ports.own[6], self.results[turn].dsd(), COLLECT)

    def _send(self, turn: int) -> None:
        out = fabric_out(self.ports.outward, None if self.is_end else "path")
        self.core.mov(out, self.results[turn].dsd(), dtype="fp16", start="none")
        if self.is_end:
            self.core.control(self.ports.outward, Command.RESET, start="none")
