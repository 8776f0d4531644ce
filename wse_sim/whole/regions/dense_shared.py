"""A dense layer with a slow activation: the rows above the last finish the tokens of a sample, each some of them.

Symbols as in :mod:`wse_sim.whole.regions.dense`; F the largest divisor of T up to R - 1, r = T / F tokens of a row::

    last row    sums of a token, rounded, back up the column: the nearest row takes the first r tokens
    rows        bias and activation of their tokens, all rows at the same time; then down the column again
    last row    hands them on to the link, token by token

Sums need a while down the column and up again.  So a row finishes the tokens of one sample after the products of the
next, and sends them during those of the one after it; sums of even and odd samples go up on colors of their own.

Without it, T v functions of a sample lie on the last row, e = special_element_cycles each::

    row         T (k ceil(v / w) + v) + r v + sum over items of (o + r v / rate)
    last row    T (k ceil(v / w) + v) + T v + 1
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Ports, divisor
from wse_sim.whole.regions.dense import Dense, work_cycles
from wse_sim.whole.regions.turns import advance_of, receive_all, route_senders, route_takers

SEND, TAKE, GIVE = 1, (1, 2), 3  # microthreads: of the last row; of the others, of even and odd samples


class SharedDense(Dense):
    """A product with a weight whose outputs several rows finish."""

    own_colors = 6  # inputs, two of sums, results down the columns, sums up of even and odd samples

    @property
    def _fills_columns(self) -> bool:
        return True

    @property
    def finishing(self) -> int:
        """Rows that finish outputs."""
        return divisor(self.tokens, self.height - 1)

    @property
    def share(self) -> int:
        """Tokens that such a row finishes."""
        return self.tokens // self.finishing

    def _finishers(self, col: int) -> tuple[Cell, ...]:
        return tuple((self.last - 1 - i, col) for i in range(self.finishing))

    def _declare_finish(self, b: Builder) -> None:
        size, v = self.share * self.outputs, self.outputs
        rows = (slice(self.last - self.finishing, self.last), self.columns)
        self.bias = b.buffer(f"{self.name}.bias", size, "fp16", rows, bank=2)
        self.got = [b.buffer(f"{self.name}.got{i}", size, "fp16", rows, bank=0) for i in (0, 1)]
        self.given = b.buffer(f"{self.name}.given", size, "fp16", rows, bank=0)
        self.sum = b.buffer(f"{self.name}.sum", v, "fp16", (self.last, self.columns), bank=0)

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """The ways up and down the columns besides."""
        super().build(b, ports, samples)
        for col in range(self.left, self.left + self.cols):
            end, cells = (self.last, col), self._finishers(col)
            for color in ports.own[4:]:
                route_takers(b, color, end, cells, 0, "E")
            route_senders(b, ports.own[3], cells, "S")
            b.route(ports.own[3], end, rx="N", tx="R")

    def _row(self, core: CoreClass, row: int, ports: Ports, samples: int) -> None:
        place = self.height - 2 - row
        if place >= self.finishing:
            super()._row(core, row, ports, samples)
            return
        advance = advance_of(place, self.finishing)

        def finish(turn: int) -> None:
            core.join(TAKE[turn])
            core.join(GIVE)
            self._finish(core, self.got[turn], self.given)
            core.mov(
                fabric_out(ports.own[3], advance), self.given.dsd(), dtype="fp16", start="none", thread=GIVE,
                priority="high",
            )  # fmt: skip

        def sample(turn: int, *, first: bool = False) -> None:
            receive_all(core, ports.own[4 + turn], self.got[turn].dsd(), TAKE[turn])
            with core.loop(self.tokens):
                self._pass_on(core, row, ports)
            if not first:
                finish(1 - turn)

        sample(0, first=True)
        with core.loop((samples - 1) // 2):
            sample(1)
            sample(0)
        if (samples - 1) % 2:
            sample(1)
        finish((samples - 1) % 2)

    def _last(self, core: CoreClass, ports: Ports, samples: int, sends: tuple[int, str | None]) -> None:
        def send() -> None:
            core.join(SEND)
            core.mov(
                fabric_out(ports.outward, sends[1]), fabric_in(ports.own[3]), length=sends[0],
                dtype="fp16", start="none", thread=SEND, priority="high",
            )  # fmt: skip

        def token(up: int, advance: str | None, *, early: bool) -> None:
            if not early:
                send()
            self._products(core, ports.own[0], self.height - 1)
            core.add(self.sum.dsd(), self.y.dsd(), fabric_in(ports.own[1 + self.height % 2]), start="none")
            core.mov(fabric_out(up, advance), self.sum.dsd(), dtype="fp16", start="none")

        def sample(turn: int, *, early: bool = False) -> None:
            up = ports.own[4 + turn]
            for place in range(self.finishing):
                with core.loop(self.share - 1):
                    token(up, None, early=early)
                token(up, "path" if place < self.finishing - 1 else None, early=early)
            if self.finishing > 1:
                core.control(up, Command.RESET, start="none")

        first = min(samples, 2)
        for turn in range(first):
            sample(turn, early=True)
        with core.loop((samples - first) // 2):
            sample(0)
            sample(1)
        if (samples - first) % 2:
            sample(0)
        with core.loop(first * self.tokens):
            send()

    def _biases(self, each: Floats) -> Floats:
        return np.broadcast_to(
            np.tile(each, (1, self.share)), (self.finishing, self.cols, each.shape[1] * self.share)
        )

    def _row_more(self) -> float:
        size = self.share * self.outputs
        return size + work_cycles(self.items, size, self.wafer)

    def _last_more(self) -> float:
        return self.tokens * self.outputs + 1 - self._row_more()

    def issued_cycles(self) -> float:
        """As the module says."""
        v = self.outputs
        each = [PAIR * words * ceil_div(v, self.wafer.fma_mixed_per_cycle) + v for words in self.words]
        rows = self.tokens * max(each[:-1]) + self._row_more()
        last = self.tokens * (each[-1] + v) + (self.finishing > 1)
        return float(max(rows, last))
