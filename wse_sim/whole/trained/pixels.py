"""Compute cores of a convolution that trains: slopes are kept as outputs leave, and gradients meet them as they arrive.

Forward as in :mod:`.streamed`.  Backward all pixels of an image meet the gradient of the image, then that of the weights
(:mod:`.products`), so the last row holds two images of gradients.  Symbols as there, p pixels of a group, l the start of an
instruction whose descriptors only advance; cycles of a sample on the last row::

    forward     T (v / m + v / 2) + T / p (l + p v / max) for the slope of ReLU
    backward    T v / 2 (1 + times sent up) + o + T v / w for the bias
"""

from __future__ import annotations

from collections.abc import Callable

from wse_sim.fabric.format.classes import CoreClass
from wse_sim.whole.trained.last_row import Leaving
from wse_sim.whole.trained.products import Products
from wse_sim.whole.trained.streamed import StreamedProducts

FILLING = 64
"""Bytes between buffers at most, which begin in the bank that they are meant for."""
GROUP = 16
"""Elements at least whose slope one instruction takes; sums of fewer wait in the queues above meanwhile."""


class PixelProducts(StreamedProducts):
    """A product that trains on the pixels of an image."""

    @property
    def tokens_at_once(self) -> int:
        """Pixels of a group: they divide the image."""
        enough = (p for p in range(1, self.tokens) if self.tokens % p == 0 and p * self.outputs >= GROUP)
        return next(enough, self.tokens)

    @property
    def tokens_summed(self) -> int:
        """All pixels: an image of gradients is added at once."""
        return self.tokens

    @property
    def outs_size(self) -> int:
        """Those of a group."""
        return self._group

    @property
    def rest_bytes(self) -> int:
        """What a core of the last row holds in addition to samples in flight: two images of gradients, two groups of outputs, sums for the bias."""
        size = self.tokens * self.outputs
        fp16, fp32 = 2, 4
        return (
            2 * fp16 * (size + self._group) + self.has_bias * (fp32 * (size + self.outputs) + fp32) + FILLING
        )

    def _back(self, core: CoreClass, row: int, west: Callable[[int], None], d: int) -> None:
        Products._back(self, core, row, west, d)

    def _all_gradients(self, core: CoreClass, leaving: Leaving, d: int) -> None:
        Products._all_gradients(self, core, leaving, d)
