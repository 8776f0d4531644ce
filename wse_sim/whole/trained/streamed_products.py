"""Compute cores of a product whose gradients stream: each token is used for the input gradient, then for the
weight gradient.

Symbols as in :mod:`.products`; p tokens of a group, l the start of an instruction whose descriptors only
advance::

    row         backward  T times  p = W g + p of the core east, sent west;  dW += x g
    last row    forward   groups of p tokens: act(y) as the sums arrive, token by token; then the derivative
                backward  groups of p tokens: g = g * derivative as they arrive; each goes up its column twice; db += g

A link carries the input gradients of a token while the cores work on the next one. If all tokens of a sample
went through one product first and then through the other (:mod:`.products`), this link would be idle half of
the time and the bottleneck in the other half. The input gradient goes first: it does not need the inputs,
which arrive when those of the token before have left (a layer 128-32 of 8 tokens on 12 x 8 cores: 560 cycles
per sample backward, 720 in the other order).

The last row stores two groups of gradients instead of two samples. Its cycles per sample::

    T (v / m + v / 2) + T v / 2 (1 + times sent up) + T v / 2 of a residual [+ T v / 2 of its gradient]
    + T / p (l + p v) for the derivative of ReLU + T / p (l + p v / 2) for the bias
"""

from __future__ import annotations

from collections.abc import Callable

from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.whole.regions.shared_color import receive_all
from wse_sim.whole.trained.last_row import CAST, SEND, TAKE, Leaving, alternate, in_pairs
from wse_sim.whole.trained.products import Products

GROUP = 8
"""Least elements of a group: with fewer, instruction starts would cost more than the work."""


class StreamedProducts(Products):
    """A trainable product, token by token."""

    @property
    def tokens_at_once(self) -> int:
        """Tokens of a group, a divisor of the tokens of a sample."""
        return next(
            p
            for p in range(1, self.tokens + 1)
            if self.tokens % p == 0 and (p * self.outputs >= GROUP or p == self.tokens)
        )

    @property
    def _group(self) -> int:
        """Elements of a group."""
        return self.tokens_at_once * self.outputs

    # ---- rows with inputs ------------------------------------------------------------------------------------------

    def _back(self, core: CoreClass, row: int, west: Callable[[int], None], d: int) -> None:
        """Write the backward pass of d samples, token by token."""

        def token(turn: int) -> None:
            if self.has_dx:
                west(turn)
            self._weight_gradient(core, row)

        alternate(core, d * self.tokens, token)

    # ---- the last row ----------------------------------------------------------------------------------------------

    def _all_gradients(self, core: CoreClass, leaving: Leaving, d: int) -> None:
        """Write the backward pass of d samples."""
        slope = None if self.slopes is None else self.last_row["slope"]
        self._groups(core, leaving, slope, d * self.tokens // self.tokens_at_once)
        core.join(CAST)

    def _groups(self, core: CoreClass, leaving: Leaving, slopes: Buffer | None, count: int) -> None:
        """Write the work on the gradients of `count` groups: while one goes up, the next arrives and is multiplied by its
        derivatives."""
        v, size = self.outputs, self._group

        def arrive(turn: int, number: int, step: int) -> None:
            target = self.taken[turn].dsd(0, size)
            if slopes is None:
                receive_all(core, self.deal, target, TAKE)
            else:
                slope = slopes.dsd(number * size, size, step=step * size)
                core.mul(
                    target,
                    fabric_in(self.deal),
                    slope,
                    dtype="fp16",
                    start="none",
                    thread=TAKE,
                    priority="high",
                )

        def group(turn: int, number: int, step: int, *, more: bool = True) -> None:
            core.join(TAKE)
            core.join(CAST)  # the previous group is complete: its place is free
            if more:
                arrive(1 - turn, number + 1, step)
            with core.loop(self.tokens_at_once):
                if leaving.beside is not None:
                    leaving.token(leaving.beside, self.taken[turn], 0, 0)
                for _ in range(1 + self.has_dx):
                    up = self.taken[turn].dsd(0, v, step=v)
                    core.mov(
                        fabric_out(self.cast), up, dtype="fp16", start="none", thread=CAST, priority="high"
                    )
            if self.has_bias:
                total = self.sums_of_tokens.dsd()
                core.add(total, total, self.taken[turn].dsd(0, size), dtype="mixed", start="loaded")
            core.join(SEND)

        arrive(0, 0, 0)
        in_pairs(core, count - 1, group)
        group((count - 1) % 2, count - 1, 0, more=False)
