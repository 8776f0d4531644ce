"""Resources that the cores of a trainable layer share: colors and buffers.

Symbols: d samples in flight; k inputs and v outputs of a core.
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.fabric.format.builder import Buffer, Builder
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.layout import RegionLayout
from wse_sim.whole.training.samples_in_flight import Chains, Flight

BANK_WORDS = 4
"""fp32 words over all banks of a core."""


@dataclass
class TrainedLayer:
    """One layer that is written into a builder."""

    b: Builder
    wafer: Wafer
    layout: RegionLayout
    rows: int  # samples
    flight: Flight
    colors: tuple[int, ...]
    has_dx: bool  # its inputs have gradients
    chains: Chains

    def __post_init__(self) -> None:
        self.slots = self.flight.rows
        self.feed, *sums, self.cast, east, west = self.colors
        self.sums, self.along = (sums[0], sums[1]), (east, west)
        self.last = len(self.layout.rows) - 1
        # Gradients along the last row: none of its cores sends sums on this color.
        self.deal = self.sums[self.last % 2]
        self.has_bias = "bias" in self.layout.items
        self.sums_bias_above = self.has_bias and "relu" in self.layout.items
        self._declare()

    def _declare(self) -> None:
        """Declare the buffers of all compute cores."""
        lay, b = self.layout, self.b
        rows, cols = slice(lay.top, lay.last + 1), slice(lay.left, lay.left + lay.cols)
        most, v = max(len(row.inputs) for row in lay.rows), lay.outputs

        def over(name: str, length: int, dtype: str, bank: int) -> Buffer:
            return b.buffer(f"{lay.name}.{name}", length, dtype, (rows, cols), bank=bank)

        # Slots start in the same bank: one that starts in another would conflict with the weights.
        self.y_ring, self.p_ring = (BANK_WORDS * ceil_div(each, BANK_WORDS) for each in (v, most))
        self.y = over("y", self.slots * self.y_ring, "fp32", 0)
        self.p = over("p", self.slots * self.p_ring, "fp32", 0)
        # Sums are two banks away from what is added to them, and weights two away from their copy.
        self.x, self.g = over("x", most * v, "fp16", 2), over("g", v, "fp16", 0)
        self.dw, self.master = over("dw", most * v, "fp32", 2), over("master", most * v, "fp32", 0)
        end = (lay.last, cols)
        self.out = b.buffer(f"{lay.name}.out", self.slots * v, "fp16", end, bank=0)
        self.own = b.buffer(f"{lay.name}.own", v, "fp16", end, bank=0)
        self.bias = b.buffer(f"{lay.name}.bias", v, "fp16", end, bank=2)
        self.db = over("db", v, "fp32", 2)
        self.slope = b.buffer(f"{lay.name}.slope", v, "fp16", end, bank=2)
        self.master_bias = b.buffer(f"{lay.name}.master bias", v, "fp32", end, bank=0)
        self.dx = b.buffer(f"{lay.name}.dx", self.slots * self.p_ring, "fp16", (rows, lay.left), bank=0)

    def lag(self, col: int) -> int:
        """Return the passes by which sums of input gradients lag behind in a column."""
        return min(self.flight.lag, self.chains.passes(self.layout, col)) if self.has_dx else 0
