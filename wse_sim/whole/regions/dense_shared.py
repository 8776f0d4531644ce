"""A dense layer with a slow activation: the rows above the last finish the tokens of a sample, each some of them.

Symbols as in :mod:`wse_sim.whole.regions.dense`; F the largest divisor of T up to R - 1, r = T / F tokens of a row::

    last row    sums of a token, rounded, back up the column: the nearest row takes the first r tokens
    rows        bias and activation of their tokens, all rows at the same time; then down the column again
    last row    hands them on to the link, token by token

Without it, T v functions of a sample lie on the last row, e = special_element_cycles each::

    row         T (k ceil(v / w) + v) + r v + sum over items of (o + r v / rate)
    last row    T (k ceil(v / w) + v) + T v + 1
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Ports, divisor
from wse_sim.whole.regions.dense import Dense, work_cycles
from wse_sim.whole.regions.turns import advance_of, receive_all, route_senders, route_takers

SEND, TAKE, GIVE = 1, 1, 2  # microthreads: of the last row, of the others


class SharedDense(Dense):
    """A product with a weight whose outputs several rows finish."""

    own_colors = 5  # inputs, two of sums, sums back up, results down

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
        rows = slice(self.last - self.finishing, self.last)
        size = self.share * self.outputs
        self.bias = b.buffer(f"{self.name}.bias", size, "fp16", (rows, self.columns), bank=2)
        self.got = [
            b.buffer(f"{self.name}.got{i}", size, "fp16", (rows, self.columns), bank=0) for i in (0, 1)
        ]
        self.sum = b.buffer(f"{self.name}.sum", self.outputs, "fp16", (self.last, self.columns), bank=0)

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """The ways up and down the columns besides."""
        super().build(b, ports, samples)
        for col in range(self.left, self.left + self.cols):
            end, cells = (self.last, col), self._finishers(col)
            route_takers(b, ports.own[3], end, cells, 0, "E")
            route_senders(b, ports.own[4], cells, "S")
            b.route(ports.own[4], end, rx="N", tx="R")

    def _row(self, core: CoreClass, row: int, ports: Ports, samples: int) -> None:
        place = self.height - 2 - row
        if place >= self.finishing:
            super()._row(core, row, ports, samples)
            return
        advance = advance_of(place, self.finishing)

        def sample(got: Buffer) -> None:
            receive_all(core, ports.own[3], got.dsd(), TAKE)
            with core.loop(self.tokens):
                self._pass_on(core, row, ports)
            core.join(TAKE)
            self._finish(core, got)
            core.mov(
                fabric_out(ports.own[4], advance), got.dsd(), dtype="fp16", start="none", thread=GIVE,
                priority="high",
            )  # fmt: skip

        with core.loop(samples // 2):
            sample(self.got[0])
            sample(self.got[1])
        if samples % 2:
            sample(self.got[0])

    def _last(self, core: CoreClass, ports: Ports, samples: int, sends: tuple[int, str | None]) -> None:
        def send() -> None:
            core.join(SEND)
            core.mov(
                fabric_out(ports.outward, sends[1]), fabric_in(ports.own[4]), length=sends[0],
                dtype="fp16", start="none", thread=SEND,
            )  # fmt: skip

        def token(advance: str | None, *, first: bool) -> None:
            if not first:
                send()
            self._products(core, ports.own[0], self.height - 1)
            core.add(self.sum.dsd(), self.y.dsd(), fabric_in(ports.own[1 + self.height % 2]), start="none")
            core.mov(fabric_out(ports.own[3], advance), self.sum.dsd(), dtype="fp16", start="none")

        def sample(*, first: bool) -> None:
            for place in range(self.finishing):
                with core.loop(self.share - 1):
                    token(None, first=first)
                token("path" if place < self.finishing - 1 else None, first=first)
            if self.finishing > 1:
                core.control(ports.own[3], Command.RESET, start="none")

        sample(first=True)
        with core.loop(samples - 1):
            sample(first=False)
        with core.loop(self.tokens):
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
