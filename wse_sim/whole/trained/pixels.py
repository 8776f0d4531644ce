"""Compute cores of a trainable convolution: derivatives are stored as outputs leave, and applied to gradients
as they arrive.

Forward as in :mod:`.streamed`. Backward, all pixels of an image are used for the gradient of the image, then
for that of the weights (:mod:`.products`), so the last row stores two images of gradients. Symbols as there,
p pixels of a group, l the start of an instruction whose descriptors only advance; cycles per sample on the
last row::

    forward     T (v / m + v / 2) + T / p (l + p v / max) for the derivative of ReLU
    backward    T v / 2 (1 + times sent up) + o + T v / w for the bias
"""

from __future__ import annotations

from collections.abc import Callable

from wse_sim.fabric.format.classes import CoreClass
from wse_sim.whole.trained.last_row import Leaving
from wse_sim.whole.trained.products import Products
from wse_sim.whole.trained.streamed_products import StreamedProducts

GROUP = 16
"""Least elements per instruction for derivatives; meanwhile the sums of fewer elements wait in the queues
above."""


class PixelProducts(StreamedProducts):
    """A trainable product over the pixels of an image."""

    @property
    def tokens_at_once(self) -> int:
        """Pixels of a group, a divisor of the pixels of an image."""
        enough = (p for p in range(1, self.tokens) if self.tokens % p == 0 and p * self.outputs >= GROUP)
        return next(enough, self.tokens)

    @property
    def tokens_summed(self) -> int:
        """All pixels: the gradients of an image are added at once."""
        return self.tokens

    def _back(self, core: CoreClass, row: int, west: Callable[[int], None], d: int) -> None:
        Products._back(self, core, row, west, d)

    def _all_gradients(self, core: CoreClass, leaving: Leaving, d: int) -> None:
        Products._all_gradients(self, core, leaving, d)
