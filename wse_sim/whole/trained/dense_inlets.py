"""Cores next to a trainable dense layer: two per row of inputs, and one that deals words along the last row.

Symbols: T tokens of K inputs and N outputs; k inputs of a row; d samples in flight::

    next to a row    forward   receives all K inputs of a token, stores its k of d samples     > row
                    backward  the same again                                                  > row
    west of it      backward  sums of the row, of some tokens                                 > in sequence with the other rows
    end of the last row   forward  the residual, of which it buffers some samples;  backward  the gradients

Words per token that such a core issues: K / 2 + k / 2 forward and k / 2 backward, or k + k / 2 backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.shared_color import advance_of, deal, route_takers, send_all
from wse_sim.whole.regions.turns import in_pairs
from wse_sim.whole.trained.contract import Batch
from wse_sim.whole.trained.products import Products

DEAL, SEND = 1, 1  # microthreads of the two cores next to a row
RECEIVERS = 7  # microthreads that receive samples of the residual, in order
PRIORITIES = ("high", "medium", "low")  # of microthreads, in order


@dataclass
class Beside:
    """The column of cores next to the compute cores."""

    b: Builder
    products: Products
    batch: Batch
    slots: int  # samples of a bundle of the residual that fit where it is dealt out

    def write_row(self, row: int, group: range, arriving: int, back: int | None) -> None:
        """Write the cores next to a row of inputs, one of a group with the same bundle; `back` is the color on
        which their gradients leave, if they are needed."""
        products, batch = self.products, self.batch
        name, cell = f"{products.name} inlet {row}", (products.top + row, products.left - 1)
        own, before = products.inputs[row], sum(products.inputs[group.start : row])
        after, size = sum(products.inputs[row + 1 : group.stop]), products.tokens * own
        core = self.b.core_class(name)
        held = self.b.buffer(f"{name} held", batch.in_flight * size, "fp16", cell)
        others = self.b.buffer(f"{name} others", max(before, after, 1), "fp16", cell)

        def give(part: Operand) -> None:
            send_all(core, fabric_out(products.feed), part, DEAL)

        def hear(part: Operand) -> None:
            if part.length:
                core.mov(part, fabric_in(arriving), dtype="fp16", start="none")

        with core.loop(batch.rounds):
            with core.loop(batch.in_flight * products.tokens):
                hear(others.dsd(0, before))
                hear(held.dsd(0, own, step=own))
                hear(others.dsd(0, after))
                give(held.dsd(0, own, step=own))
            give(held.dsd())
            core.join(DEAL)
        self.b.place(core, cell)
        if back is not None:
            self._write_collector(row, (back, advance_of(row - group.start, len(group))))

    def _write_collector(self, row: int, back: tuple[int, str | None]) -> None:
        """Write the core that sends the gradients of a row's inputs in sequence with those of the other rows. It is not
        the inlet: a core has one output queue, in which inputs that wait for the row would block the gradients."""
        products, batch = self.products, self.batch
        name, cell = f"{products.name} sums {row}", (products.top + row, products.left - 2)
        own, together = products.inputs[row], products.together
        core = self.b.core_class(name)
        sums = [self.b.buffer(f"{name} {turn}", together * own, "fp16", cell) for turn in (0, 1)]

        def tokens(turn: int, _first: int, _step: int) -> None:
            core.mov(sums[turn].dsd(), fabric_in(products.along[0]), start="none")
            with core.loop(together):
                send_all(core, fabric_out(*back), sums[turn].dsd(0, own, step=own), SEND)

        count = batch.in_flight * products.tokens // together
        with core.loop(batch.rounds):
            in_pairs(core, count, tokens)
            if count % 2:
                core.join(SEND)  # the next round begins with the same buffer
        self.b.place(core, cell)

    # ---- the end of the last row -----------------------------------------------------------------------------------

    def write_bundle(self, columns: range, cell: Cell, gradients: int, residual: int | None) -> None:
        """Write the core that deals out one bundle of the residual, if there is one, then of the gradients."""
        products, b, batch = self.products, self.b, self.batch
        core = b.core_class(f"{products.name} gradients in {columns.start}")
        self._zeros = self._filled(columns, cell)
        with core.loop(batch.rounds):
            if residual is not None:
                self._deal_residual(core, columns, cell, residual)
            with core.loop(batch.in_flight * products.tokens):
                self._deal(core, columns, [fabric_in(gradients)] * len(columns))
        b.place(core, cell)
        takers = products.senders[columns.start : columns.stop]
        route_takers(b, products.deal, cell, takers)

    def _filled(self, columns: range, cell: Cell) -> Buffer | None:
        """Return zeros that pad the features of a bundle to equal parts on its columns."""
        products = self.products
        count = products.outputs - products.sent(columns[-1])
        name = f"{products.name}.filling {columns.start}"
        return self.b.buffer(name, count, "fp16", cell) if count else None

    def _deal(self, core: CoreClass, columns: range, parts: list[Operand]) -> None:
        """Deal a token to columns."""
        products = self.products
        shares = [[(part, products.sent(col))] for col, part in zip(columns, parts, strict=True)]
        if self._zeros is not None:
            shares[-1].append((self._zeros.dsd(), self._zeros.length))
        deal(core, products.deal, shares, len(columns))

    def _deal_residual(self, core: CoreClass, columns: range, cell: Cell, arriving: int) -> None:
        """Deal out the residual of all samples of a round: they arrive in order during the work, as far as
        microthreads suffice.

        Microthreads receive words in the order of priority, then of number. So a free microthread waits for a
        later sample at the next lower priority; after the lowest priority, all start again.
        """
        products, d = self.products, self.batch.in_flight
        features, count = sum(map(products.sent, columns)), min(d, self.slots)
        name = f"{products.name}.residual {columns.start}"
        slots: list[Buffer] = [
            self.b.buffer(f"{name} {i}", products.tokens * features, "fp16", cell) for i in range(count)
        ]

        def receive(sample: int) -> None:
            turn, i = divmod(sample, count)
            core.mov(
                slots[i].dsd(), fabric_in(arriving),
                dtype="fp16", start="none", thread=i + 1, priority=PRIORITIES[turn],
            )  # fmt: skip

        def samples(number: int) -> None:
            for sample in range(min(number, count)):
                receive(sample)
            for sample in range(number):
                i = sample % count
                core.join(i + 1)
                with core.loop(products.tokens):
                    self._deal(
                        core,
                        columns,
                        [
                            slots[i].dsd(place * products.outputs, products.sent(col), step=features)
                            for place, col in enumerate(columns)
                        ],
                    )
                if sample + count < number:
                    receive(sample + count)

        most = count * len(PRIORITIES)
        if d >= most:
            with core.loop(d // most):
                samples(most)
        samples(d % most)
