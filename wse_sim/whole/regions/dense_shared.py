"""A dense layer with much work on its outputs: the last rows finish the tokens of a sample, each some of them.

Symbols as in :mod:`wse_sim.whole.regions.dense`; F the largest divisor of T up to R, r = T / F tokens of a row::

    last row    keeps the sums of its r tokens, the first ones; others go back up the column, rounded
    rows        bias and activation of their tokens, all rows at the same time; then down the column again
    last row    sends its own, and hands the others on, token by token

Sums need a while down the column and up again.  So a row finishes the tokens of one sample after the products of the
next, and sends them during those of the one after it; sums of even and odd samples go up on colors of their own.

Without it, T v functions of a sample lie on the last row, e = special_element_cycles each::

    row         T (k ceil(v / w) + v) + r v + sum over items of (o + r v / rate)
    last row    the same with 2 (T - r) v / 2 + 1 words and a control word on their way up and out in place of r v / 2
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
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
        """Rows that finish outputs, the last one among them."""
        return divisor(self.tokens, self.height)

    @property
    def share(self) -> int:
        """Tokens that such a row finishes."""
        return self.tokens // self.finishing

    @property
    def is_safe(self) -> bool:
        """Whether the results of a row wait in its router for their turn down the column.

        More would wait in the output queue of the core, which its sums for the last row go through as well; and the
        last row takes results only between sums, so all would stop.
        """
        return self.share * self.outputs / PAIR <= self.wafer.router_queue_wavelets

    def _finishers(self, col: int) -> tuple[Cell, ...]:
        """Those above the last row, from below."""
        return tuple((self.last - 1 - i, col) for i in range(self.finishing - 1))

    def _declare_finish(self, b: Builder) -> None:
        size, v = self.share * self.outputs, self.outputs
        rows = (slice(self.last - self.finishing + 1, self.last + 1), self.columns)
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
        if place >= self.finishing - 1:
            super()._row(core, row, ports, samples)
            return
        advance = advance_of(place, self.finishing - 1)

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
        v = self.outputs

        def send(source: Operand) -> None:
            core.join(SEND)
            core.mov(
                fabric_out(ports.outward, sends[1]), source, length=sends[0],
                dtype="fp16", start="none", thread=SEND, priority="high",
            )  # fmt: skip

        def products(sums: Operand) -> None:
            self._products(core, ports.own[0], self.height - 1)
            core.add(sums, self.y.dsd(), fabric_in(ports.own[1 + self.height % 2]), start="none")

        def others(up: int, advance: str | None, *, early: bool) -> None:
            if not early:
                send(fabric_in(ports.own[3]))
            products(self.sum.dsd())
            core.mov(fabric_out(up, advance), self.sum.dsd(), dtype="fp16", start="none")

        def sample(turn: int, *, early: bool = False, first: bool = False) -> None:
            up = ports.own[4 + turn]
            with core.loop(self.share):
                if not early:
                    send(self.given.dsd(0, v, step=v))
                products(self.got[turn].dsd(0, v, step=v))
            for place in range(1, self.finishing):
                with core.loop(self.share - 1):
                    others(up, None, early=early)
                others(up, "path" if place < self.finishing - 1 else None, early=early)
            if self.finishing > 2:
                core.control(up, Command.RESET, start="none")
            if not first:
                finish(1 - turn)

        def finish(turn: int) -> None:
            core.join(SEND)
            self._finish(core, self.got[turn], self.given)

        def send_all() -> None:
            with core.loop(self.share):
                send(self.given.dsd(0, v, step=v))
            with core.loop(self.tokens - self.share):
                send(fabric_in(ports.own[3]))

        sample(0, early=True, first=True)
        if samples > 1:
            sample(1, early=True)
            with core.loop((samples - 2) // 2):
                sample(0)
                sample(1)
            if samples % 2:
                sample(0)
            send_all()
        finish((samples - 1) % 2)
        send_all()

    def _biases(self, each: Floats) -> Floats:
        return np.broadcast_to(
            np.tile(each, (1, self.share)), (self.finishing, self.cols, each.shape[1] * self.share)
        )

    def _last_more(self) -> float:
        """Words that it sends up and takes back, and its own, beyond one that a row takes and gives per token."""
        up = (self.tokens - self.share) * self.outputs
        return up + self.share * self.outputs / PAIR + (self.finishing > 2) - self.share * self.outputs

    def issued_cycles(self) -> float:
        """As the module says."""
        v = self.outputs
        each = [PAIR * words * ceil_div(v, self.wafer.fma_mixed_per_cycle) + v for words in self.words]
        size = self.share * v
        rows = self.tokens * max(each[:-1]) + size
        last = self.tokens * each[-1] + size + self._last_more()
        return float(max(rows, last) + work_cycles(self.items, size, self.wafer))
