"""Compute cores of a trainable product with an expensive activation, which all rows share.

Symbols as in :mod:`.products`; n = T v sums of a sample in a column, c of them in the part of a row, e cycles
for value and derivative of an element::

    last row     sums of the T tokens, rounded                                             sent up the column
    rows         each takes its part: values and derivatives; forwards those of the rows above     down the column
    last row     receives them; tokens leave during the sums of the next sample

It reuses colors that are idle at that time: those of gradients upward, and those of sums downward. Cycles per
sample forward, in addition to those of :mod:`.streamed`::

    row          n / 2 received + e c + starts + n forwarded
    last row     n / 2 sent up + n received, instead of the activation
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.kernels.blocks.activation_slopes import STEPS
from wse_sim.kernels.blocks.rounds import even
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.trained.contract import Batch
from wse_sim.whole.trained.last_row import ADDED, SEND, TAKE, Leaving, alternate, in_pairs
from wse_sim.whole.trained.products import DOWN
from wse_sim.whole.trained.streamed_products import StreamedProducts


def products_for(items: Sequence[str]) -> type[StreamedProducts]:
    """Return the class of compute cores for a layer: rows share an activation that takes many cycles."""
    return SharedProducts if any(item in STEPS for item in items) else StreamedProducts


class SharedProducts(StreamedProducts):
    """A trainable product whose rows share the work on its outputs."""

    def part(self, row: int) -> tuple[int, int]:
        """Return (first, number) of the sums of a sample that a row takes; the last rows may have none."""
        size = self.tokens * self.outputs
        each = int(even(ceil_div(size, len(self.inputs))))
        first = min(row * each, size)
        return first, min(each, size - first)

    def _declare(self, b: Builder, batch: Batch) -> None:
        super()._declare(b, batch)
        rows, (_, most) = (slice(self.top, self.last), self.columns), self.part(0)
        name, size = f"{self.name}.shared", self.tokens * self.outputs
        banks = () if self.slopes is None else self.slopes.scratch
        self._value = b.buffer(f"{name} value", most, "fp16", rows, bank=0)
        self._slopes = b.buffer(f"{name} slope", most, "fp16", rows, bank=2)
        self._between = [
            b.buffer(f"{name} {i}", most, "fp32", rows, bank=bank) for i, bank in enumerate(banks)
        ]
        self._others = b.buffer(f"{name} others", size, "fp16", rows)

    # ---- rows with inputs ------------------------------------------------------------------------------------------

    def _forth(self, core: CoreClass, row: int, sums: Callable[[int], None], d: int) -> None:
        """Write the forward pass: sums of a sample, then the row's part of the outputs."""
        with core.loop(d):
            alternate(core, self.tokens, sums)
            core.join(DOWN)
            self._share(core, row)

    def _share(self, core: CoreClass, row: int) -> None:
        first, count = self.part(row)
        value, slope = self._value.dsd(0, count), self._slopes.dsd(0, count)
        after = self.tokens * self.outputs - first - count
        for target in (self._others.dsd(0, first), value, self._others.dsd(0, after)):
            if target.length:
                core.mov(target, fabric_in(self.cast), dtype="fp16", start="none")
        if count and self.slopes is not None:
            parts = [one.dsd(0, count) for one in self._between]
            self.slopes.emit(core, value, slope, parts, is_done=False)
        below, above = fabric_out(self.sums[row % 2]), fabric_in(self.sums[(row + 1) % 2])
        if first:
            core.mov(below, above, length=2 * first, dtype="fp16", start="none")
        for source in (value, slope):
            if count:
                core.mov(below, source, dtype="fp16", start="none")

    # ---- the last row ----------------------------------------------------------------------------------------------

    def _all_samples(self, core: CoreClass, out: int, leaving: Leaving, d: int) -> None:
        """Write the forward pass of d samples: tokens of one leave while the sums of the next arrive."""

        def arrive(turn: int) -> None:
            core.join(ADDED)
            added = self.added[turn].dsd() if waits else None
            self._arrive(core, self.outs[turn].dsd(), added, TAKE)

        def sample(turn: int, slot: int, step: int, *, more: bool = True) -> None:
            """Process a sample; sums of the next one arrive while it leaves, or afterwards if a residual is
            added to them."""
            result = self.outs[turn]
            core.join(TAKE)
            core.mov(fabric_out(self.cast), result.dsd(), dtype="fp16", start="none")
            self._take_parts(core, turn, slot, step)
            if "residual" in self.finishing:
                core.join(ADDED)
                core.add(result.dsd(), result.dsd(), self.added[turn].dsd(), dtype="fp16")
            if more:
                self._expect(core, 1 - turn)
            if more and not waits:
                self._arrive(core, self.outs[1 - turn].dsd(), None, TAKE)
            with core.loop(self.tokens):
                leaving.token(out, result, 0, 0)
            if more and waits:
                arrive(1 - turn)
            core.join(SEND)

        waits = self.arriving == "residual"
        self._expect(core, 0)
        if waits:
            arrive(0)
        else:
            self._arrive(core, self.outs[0].dsd(), None, TAKE)
        in_pairs(core, d - 1, sample)
        sample((d - 1) % 2, d - 1, 0, more=False)

    def _take_parts(self, core: CoreClass, turn: int, slot: int, step: int) -> None:
        """Receive values and derivatives from all rows, the topmost first."""
        size, above = self.tokens * self.outputs, fabric_in(self.sums[(len(self.inputs) + 1) % 2])
        for row in range(len(self.inputs)):
            first, count = self.part(row)
            if count:
                slope = self.slope.dsd(slot * size + first, count, step=step * size)
                for target in (self.outs[turn].dsd(first, count), slope):
                    core.mov(target, above, dtype="fp16", start="none")
