"""Trainable attention in bands of rows, each for some of the heads: forward and backward on separate links.

A band is a region of :mod:`wse_sim.whole.trained.attention` itself, with its collectors; bundles are those of
:mod:`wse_sim.whole.regions.attention_bands`, and gradients have the bundles of their tensors.
"""

from __future__ import annotations

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.attention_bands import InBands
from wse_sim.whole.regions.contract import refused
from wse_sim.whole.trained.attention import TrainedAttention
from wse_sim.whole.trained.contract import Batch, TrainedKind, TrainedPorts


class TrainedBandedAttention(InBands[TrainedAttention], TrainedKind):
    """Attention with its heads in bands, for a batch of training."""

    collecting_rows = 1

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check the kernel as in inference; scores that train have no bound."""
        super().check(graph, kernel)
        if cap := AttentionAttributes.of(kernel.attrs).cap:
            raise refused(
                kernel, f"bounds its scores by {cap:g}, which trains on no program", "leave the bound out"
            )

    def band(self, kernel: Kernel, stage: Stage) -> TrainedAttention:
        """Return the region of one band."""
        return TrainedAttention(self.graph, kernel, stage, self.wafer, self.needs)

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Return the numbers of bands with room for the stated samples in flight, or else for one."""
        most = {count: min(band.most_in_flight() for band in bands) for count, bands in self._ways.items()}
        held = max(1, AttentionAttributes.of(self.kernel.attrs).held_samples)
        enough = [tuple(count for count in most if most[count] >= samples) for samples in (held, 1)]
        return enough[0] or enough[1] or tuple(most)

    def pace(self) -> float:
        """Return the cycles of a sample, both passes, with this number of bands."""
        count, passes = len(self.bands), (Phase.FORWARD, Phase.INPUT_GRADIENT)
        return sum(self.priced_cycles(phase, bands=count, least_bundles=count) for phase in passes)

    def gradient_senders(self, tensor: str, bundle: int) -> tuple[Cell, ...]:
        """Return the cores that send the gradient of an operand, of a band."""
        return self.bands[bundle].gradient_senders(tensor, 0)

    @property
    def moving(self) -> frozenset[Cell]:
        """Inlets and collectors of all bands."""
        return frozenset[Cell]().union(*(band.moving for band in self.bands))

    def most_in_flight(self) -> int:
        """Return the samples in flight that fit in a compute core of every band."""
        return min(band.most_in_flight() for band in self.bands)

    @property
    def too_large(self) -> str:
        """Words for the data that a core of a band has no room for."""
        return self.bands[0].too_large

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write every band with its streams."""
        for number, band in enumerate(self.bands):
            band.build_batch(b, ports.of_band(number), batch)
