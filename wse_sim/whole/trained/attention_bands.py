"""Trainable attention in bands of rows, each for some of the heads: forward and backward on separate links.

A band is a region of :mod:`wse_sim.whole.trained.attention` itself, with its collectors; bundles are those of
:mod:`wse_sim.whole.regions.attention_bands`, and gradients have the bundles of their tensors.
"""

from __future__ import annotations

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.kernels.families.attention.pairs import pair_cost
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.attention import PORTS
from wse_sim.whole.regions.attention_bands import InBands, in_one_band
from wse_sim.whole.trained.attention import TrainedAttention
from wse_sim.whole.trained.contract import Batch, TrainedPorts


class TrainedBandedAttention(InBands[TrainedAttention], TrainedAttention):
    """Attention with its heads in bands, for a batch of training."""

    collecting_rows = 1

    def __init__(
        self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
    ) -> None:
        super().__init__(graph, in_one_band(kernel), stage, wafer, needs)
        self._ways = self.ways(kernel, stage)

    def band(self, kernel: Kernel, stage: Stage) -> TrainedAttention:
        """Return the region of one band."""
        return TrainedAttention(self.graph, kernel, stage, self.wafer, self.needs)

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Return the numbers of bands with room for the stated samples in flight, or else for one."""
        most = {count: min(band.most_in_flight() for band in bands) for count, bands in self._ways.items()}
        held = AttentionAttributes.of(self.kernel.attrs).held_samples
        enough = [tuple(count for count in most if most[count] >= samples) for samples in (held, 1)]
        return enough[0] or enough[1] or tuple(most)

    def extent(self) -> tuple[int, int]:
        """Return the rows from the first to the last with pairs, and the columns."""
        if not self.bundles or not self.is_banded:
            return super().extent()
        first, last = self.bands[0], self.bands[-1]
        return last.top + last.height - first.top, first.cols

    def pace(self) -> float:
        """Return the cycles of a sample, both passes, with this number of bands."""
        count = len(self.bands)
        attrs = {**self.kernel.attrs, "bands": count, "least_bundles": count}
        place = Tiling(self.region.rows, self.compute_cols, "stationary")
        passes = (
            pair_cost(self.kernel.dims, place, self.wafer, phase, attrs)
            for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT)
        )
        return sum(float(np.asarray(cost.total - cost.idle)) for cost in passes)

    @property
    def gradient_inlet(self) -> Cell:
        """The inlet of the queries, of the first band."""
        return self.gradient_inlets[0]

    @property
    def gradient_inlets(self) -> tuple[Cell, ...]:
        """The inlets of the queries."""
        return tuple(band.gradient_inlet for band in self.bands)

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Return the cores that send the results of a band."""
        return self.bands[bundle].senders

    def gradient_senders(self, tensor: str) -> tuple[Cell, ...]:
        """Return the cores that send the gradient of an operand, of the first band."""
        return self.bundle_gradient_senders(tensor, 0)

    def bundle_gradient_senders(self, tensor: str, bundle: int) -> tuple[Cell, ...]:
        """Return the cores that send the gradient of an operand, of a band."""
        return self.bands[bundle].gradient_senders(tensor)

    @property
    def moving(self) -> frozenset[Cell]:
        """Inlets and collectors of all bands."""
        return frozenset[Cell]().union(*(band.moving for band in self.bands))

    def most_in_flight(self) -> int:
        """Return the samples in flight that fit in a compute core of every band."""
        return min(band.most_in_flight() for band in self.bands)

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write every band with its streams."""
        if not self.is_banded:
            super().build_batch(b, ports, batch)
            return
        ways = zip(self.bands, ports.results, ports.arriving, strict=True)
        for number, (band, (outward, towards), arriving) in enumerate(ways):
            leaving = {tensor: ports.leaving(tensor)[number] for tensor in ports.gradient_out}
            inward = ports.inward[PORTS * number : PORTS * (number + 1)]
            band.build_batch(b, TrainedPorts(inward, outward, towards, arriving, leaving, ports.own), batch)
