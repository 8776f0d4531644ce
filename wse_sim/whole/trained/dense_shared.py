"""Compute cores of a trainable product with an expensive activation, which all rows share.

Symbols as in :mod:`.products`; n = T v sums of a sample in a column, c of them in the part of a row, e cycles
for value and derivative of an element::

    forward    last row   sums of the T tokens, rounded                                       sent up the column
               rows       each takes its part: values and derivatives; forwards the values of those above    down
               last row   receives them; tokens leave during the sums of the next sample
    backward   rows       forward the derivatives of those above, then their own             down the column
               last row   receives them for the next sample during the work on one

Derivatives of samples in flight stay on the rows, which have d c of them each; the last row has those of two
samples, in the place of outputs. It reuses colors that are idle at that time: those of gradients upward, and those of sums downward. Cycles per
sample, in addition to those of :mod:`.products`::

    row          forward   n / 2 received + e c + starts + n / 2 forwarded        backward   n / 2 forwarded
    last row     forward   n / 2 sent up + n / 2 received, not the activation     backward   n / 2 received
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Issue, Operand
from wse_sim.kernels.blocks.activation_slopes import STEPS
from wse_sim.kernels.blocks.rounds import even
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.regions.shared_color import send_all
from wse_sim.whole.regions.turns import Item, in_pairs, with_next
from wse_sim.whole.trained.contract import Batch
from wse_sim.whole.trained.last_row import (
    ADDED,
    BANK_WORDS,
    CAST,
    FP16_BYTES,
    SEND,
    TAKE,
    WORD_BYTES,
    Leaving,
)
from wse_sim.whole.trained.products import DOWN, WEST, Products

ROW_BUFFERS = ("y", "p", "dw", "master", "x", "g", "db", "bias", "value", "slopes", "others")
"""Buffers of a row besides those between value and derivative."""


def products_for(items: Sequence[str]) -> type[Products]:
    """Return the class of compute cores for a layer: rows share an activation that takes many cycles."""
    return SharedProducts if any(item in STEPS for item in items) else Products


class SharedProducts(Products):
    """A trainable product whose rows share the work on its outputs."""

    def part(self, row: int) -> tuple[int, int]:
        """Return (first, number) of the sums of a sample that a row takes; the last rows may have none."""
        size = self.tokens * self.outputs
        each = int(even(ceil_div(size, len(self.inputs))))
        first = min(row * each, size)
        return first, min(each, size - first)

    def last_row_buffers(self, in_flight: int) -> dict[str, tuple[int, str, int]]:
        """Return the buffers of a core of the last row; outputs, in another bank than gradients and residuals, give their
        room to derivatives in the backward pass."""
        found = super().last_row_buffers(in_flight)
        found.pop("slope")
        banks = {"out": 2, "add": 0}
        return {
            name: (length, dtype, banks.get(name[:3], bank)) for name, (length, dtype, bank) in found.items()
        }

    def _declare(self, b: Builder, batch: Batch) -> None:
        super()._declare(b, batch)
        rows, (_, most) = (slice(self.top, self.last), self.columns), self.part(0)
        name = f"{self.name}.shared"
        banks = () if self.slopes is None else self.slopes.scratch
        self._value = b.buffer(f"{name} value", most, "fp16", rows, bank=0)
        self._held = b.buffer(f"{name} slopes", batch.in_flight * even(most), "fp16", rows, bank=2)
        self._between = [
            b.buffer(f"{name} {i}", most, "fp32", rows, bank=bank) for i, bank in enumerate(banks)
        ]
        self._others = b.buffer(f"{name} others", self.tokens * self.outputs, "fp16", rows)

    def most_in_flight(self, limit_bytes: int) -> int:
        """Return the samples in flight whose derivatives fit on a row, if the last row fits."""
        v, inputs, (_, most) = self.outputs, max(self.inputs), self.part(0)
        tiles = inputs * v * (FP16_BYTES + 2 * WORD_BYTES)
        rings = (
            2 * WORD_BYTES * (v + self.together * inputs + 2 * BANK_WORDS) + (FP16_BYTES + 2 * WORD_BYTES) * v
        )
        banks = 0 if self.slopes is None else len(self.slopes.scratch)
        gaps = (len(ROW_BUFFERS) + banks) * FP16_BYTES * (self.wafer.sram_banks + 1)
        fixed = tiles + rings + most * (FP16_BYTES + banks * WORD_BYTES) + gaps
        fixed += FP16_BYTES * self.tokens * v
        held = max(0, limit_bytes - fixed) // (FP16_BYTES * int(even(most)))
        return min(held, super().most_in_flight(limit_bytes))

    # ---- rows with inputs ------------------------------------------------------------------------------------------

    def _forth(self, core: CoreClass, row: int, sums: Item, d: int) -> None:
        """Write the forward pass: sums of a sample, then the row's part of the outputs."""
        with core.loop(d):
            in_pairs(core, self.tokens, sums)
            core.join(DOWN)
            self._share(core, row)

    def _share(self, core: CoreClass, row: int) -> None:
        first, count = self.part(row)
        value, slope = self._value.dsd(0, count), self._slopes_of(row, 0, 1)
        after = self.tokens * self.outputs - first - count
        for target in (self._others.dsd(0, first), value, self._others.dsd(0, after)):
            if target.length:
                core.mov(target, fabric_in(self.cast), dtype="fp16", start="none")
        if count and self.slopes is not None:
            parts = [one.dsd(0, count) for one in self._between]
            self.slopes.emit(core, value, slope, parts, is_done=False)
        self._pass_down(core, row, value)

    def _slopes_of(self, row: int, slot: int, step: int) -> Operand:
        """Return the derivatives of a row for one sample; the loop over samples advances `step` slots."""
        _, count = self.part(row)
        each = int(even(self.part(0)[1]))
        return self._held.dsd(slot * each, count, step=step * each)

    def _pass_down(self, core: CoreClass, row: int, own: Operand, thread: int = 0) -> None:
        """Forward the parts of the rows above, then the row's own."""
        first, _ = self.part(row)
        below, above = fabric_out(self.sums[row % 2]), fabric_in(self.sums[(row + 1) % 2])
        for source, length in ((above, first), (own, own.length)):
            if length:
                how = Issue(length=length, dtype="fp16", start="none", thread=thread, priority="high")
                core.mov(below, source, **how)

    def _back(self, core: CoreClass, row: int, west: Callable[[int], None], d: int) -> None:
        """Write the backward pass of d samples: the derivatives of the next sample go down during the work on one."""
        count = self.tokens // self.together

        def sample() -> None:
            in_pairs(core, count, self._tokens(core, row, west))
            if self.has_dx and count % 2:
                core.join(WEST)  # the next sample begins with the same buffer

        self._pass_down(core, row, self._slopes_of(row, 0, 0))
        if d > 1:
            with core.loop(d - 1):
                self._pass_down(core, row, self._slopes_of(row, 1, 1), DOWN)
                sample()
        sample()
        core.join(DOWN)

    # ---- the last row ----------------------------------------------------------------------------------------------

    def _all_samples(self, core: CoreClass, out: int, leaving: Leaving, d: int) -> None:
        """Write the forward pass of d samples: tokens of one leave while the sums of the next arrive."""

        def arrive(turn: int) -> None:
            core.join(ADDED)
            added = self.added[turn].dsd() if waits else None
            self._arrive(core, self.outs[turn].dsd(), added, TAKE)

        def sample(turn: int, slot: int, step: int, *, more: bool) -> None:
            """Process a sample; sums of the next one arrive while it leaves, or afterwards if a residual is
            added to them."""
            result = self.outs[turn]
            core.join(TAKE)
            core.mov(fabric_out(self.cast), result.dsd(), dtype="fp16", start="none")
            core.mov(result.dsd(), above, dtype="fp16", start="none")
            if "residual" in self.finishing:
                core.join(ADDED)
                core.add(result.dsd(), result.dsd(), self.added[turn].dsd(), dtype="fp16")
            if more:
                self._expect(core, 1 - turn)
            if more and not waits:
                self._arrive(core, self.outs[1 - turn].dsd(), None, TAKE)
            with core.loop(self.tokens):
                leaving.token(out, result)
            if more and waits:
                arrive(1 - turn)
            core.join(SEND)

        above, waits = fabric_in(self.sums[(len(self.inputs) + 1) % 2]), self.arriving == "residual"
        self._expect(core, 0)
        if waits:
            arrive(0)
        else:
            self._arrive(core, self.outs[0].dsd(), None, TAKE)
        with_next(core, d, sample)

    def _all_gradients(self, core: CoreClass, leaving: Leaving, d: int) -> None:
        """Write the backward pass of d samples: their derivatives arrive during the work on the sample before."""
        above = fabric_in(self.sums[(len(self.inputs) + 1) % 2])

        def expect(turn: int) -> None:
            send_all(core, self.outs[turn].dsd(), above, ADDED)

        def sample(turn: int, slot: int, step: int, *, more: bool) -> None:
            core.join(ADDED)
            if more:
                expect(1 - turn)
            if groups % 2:
                core.join(CAST)  # the next group has the same buffer as the one before
            self._groups(core, leaving, self.outs[turn], groups)

        groups = self.tokens // self.tokens_at_once
        expect(0)
        with_next(core, d, sample)
        core.join(CAST)
