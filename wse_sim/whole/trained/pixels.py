"""Compute cores of a trainable convolution: derivatives are stored as outputs leave, and applied to gradients
as they arrive.

Forward as in :mod:`.products`. Backward, all pixels of an image are used for the gradient of the image, then
for that of the weights, so the last row stores two images of gradients. Symbols as there,
p pixels of a group, l the start of an instruction whose descriptors only advance; cycles per sample on the
last row::

    forward     T (v / m + v / 2) + T / p (l + p v / max) for the derivative of ReLU
    backward    T v / 2 (1 + times sent up) + o + T v / w for the bias
"""

from __future__ import annotations

from collections.abc import Callable

from wse_sim.fabric.format.builder import Builder, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.whole.regions.shared_color import send_all
from wse_sim.whole.regions.turns import in_pairs, with_next
from wse_sim.whole.trained.last_row import CAST, SEND, TAKE, Leaving
from wse_sim.whole.trained.products import WEST, Products

MOST_PARTS = 7  # of a sample
LEAST_PART = 64  # elements: starts of instructions cost as much
VECTOR = 4  # fp16 elements


class PixelProducts(Products):
    """A trainable product over the pixels of an image."""

    group_elements = 16
    """Meanwhile the sums of fewer elements wait in the queues above."""

    together = 1
    """The input gradients of each pixel run west alone: those of the next one wait for no weight gradient."""

    @property
    def tokens_summed(self) -> int:
        """All pixels: the gradients of an image are added at once."""
        return self.tokens

    def _back(self, core: CoreClass, row: int, west: Callable[[int], None], d: int) -> None:
        """Write the backward pass of d samples: all pixels for the gradient of the image, then all for that of the weights."""

        def pixel(turn: int, _first: int, _step: int) -> None:
            self._input_gradient(core, row, turn)
            west(turn)

        with core.loop(d):
            if self.has_dx:
                core.join(WEST)
                in_pairs(core, self.tokens, pixel)
            with core.loop(self.tokens):
                self._weight_gradient(core, row)

    def _route_out(self, b: Builder, row: int) -> None:
        """Route input gradients to the core next to the row, which adds them to the gradient of the image."""
        b.route(self.along[0], (row, self.left - 1), rx="E", tx="R")

    def _all_gradients(self, core: CoreClass, leaving: Leaving, d: int) -> None:
        """Write the backward pass of d samples, part by part: while one part goes up, the next arrives."""
        parts, size = self.parts, self.tokens * self.outputs
        part = size // parts

        def arrive(turn: int, i: int, slot: int, step: int) -> None:
            slope = None
            if self.has_relu:
                slope = self.last_row["slope"].dsd(slot * size + i * part, part, step=step * size)
            self._take(core, self.taken[turn].dsd(i * part, part), slope)

        def rise(turn: int, first: int, count: int) -> None:
            source, up = self.taken[turn].dsd(first, count), fabric_out(self.cast)
            send_all(core, up, source, CAST)

        def sample(turn: int, slot: int, step: int, *, more: bool) -> None:
            for i in range(parts):
                core.join(TAKE)
                if i < parts - 1:
                    arrive(turn, i + 1, slot, step)
                elif parts > 1 and more:
                    arrive(1 - turn, 0, slot + 1, step)
                rise(turn, i * part, part)  # when everything before is complete: its place is free
                if parts == 1 and more:
                    arrive(1 - turn, 0, slot + 1, step)
            if self.has_dx:
                rise(turn, 0, size)
            if self.has_bias:
                total = self.sums_of_tokens.dsd()
                core.add(total, total, self.taken[turn].dsd(), dtype="mixed")
            core.join(SEND)

        arrive(0, 0, 0, 0)
        with_next(core, d, sample)
        core.join(CAST)

    @property
    def parts(self) -> int:
        """Number of parts of a sample whose gradients are multiplied by their derivative at once."""
        size = self.tokens * self.outputs
        # Each part starts at a SIMD vector boundary.
        found = [n for n in range(1, MOST_PARTS + 1) if self.tokens % n == 0 and size // n % VECTOR == 0]
        return max((n for n in found if size // n >= LEAST_PART), default=1)
