"""Attention in bands of rows: each band is a region of attention for some of the heads, with separate links.

Bundle i of queries, keys, values and results has the features of the heads of band i, which are contiguous in
a token. Bands are independent, and a core has the scores of H / bands heads only. If the tensors do not
arrive in that many bundles, the region is that of :mod:`wse_sim.whole.regions.attention`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph, Phase, frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.kernels.families.attention.pairs import LEAST_ROWS, pair_cost, pair_footprint
from wse_sim.whole.areas import FabricPlace
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.attention import PORTS, Attention
from wse_sim.whole.regions.attention_pairs import AttentionByPairs
from wse_sim.whole.regions.contract import PAIR, Floats, Inlet, Ports

B = TypeVar("B", bound=AttentionByPairs)


def in_one_band(kernel: Kernel) -> Kernel:
    """Return the kernel without bands."""
    return replace(kernel, attrs=frozen({**kernel.attrs, "bands": 1}))


class InBands(AttentionByPairs, Generic[B]):
    """The bands of attention, which both passes have; each is a region of attention itself."""

    collecting_rows = 0
    """Rows of a band below those with pairs."""
    _ways: Mapping[int, tuple[B, ...]]

    @abstractmethod
    def band(self, kernel: Kernel, stage: Stage) -> B:
        """Return the region of one band."""

    def ways(self, kernel: Kernel, stage: Stage) -> dict[int, tuple[B, ...]]:
        """Return the bands by their number, for all numbers that the kernel states and the region has rows for."""
        most = AttentionAttributes.of(kernel.attrs).bands
        counts = [count for count in range(1, most + 1) if most % count == 0]
        rows = self.region.rows
        return {count: self._in_bands(stage, count) for count in counts if rows >= LEAST_ROWS * count}

    def _in_bands(self, stage: Stage, count: int) -> tuple[B, ...]:
        """Split a region into `count` bands from top to bottom, with equal numbers of heads."""
        dims = self.kernel.dims
        heads = {name: int(dims[name]) // count for name in ("heads", "kv_heads") if name in dims}
        part = replace(self.kernel, dims=frozen({**dims, **heads}))

        def band(number: int, rows: int) -> B:
            top, cores = self.region.row + number * rows, rows * self.compute_cols
            place = replace(self.region, row=top, rows=rows, compute_cores=cores)
            return self.band(part, replace(stage, name=f"{stage.name} {number}", region=place))

        rows = band(0, self.region.rows // count).height + self.collecting_rows
        return tuple(band(number, rows) for number in range(count))

    @property
    def bands(self) -> tuple[B, ...]:
        """The bands, one per bundle of the result."""
        return self._ways[self.bundles.get(self.kernel.outputs[0], 1)]

    @property
    def is_banded(self) -> bool:
        """Whether there are several bands."""
        return len(self.bands) > 1

    @property
    def tied(self) -> tuple[str, ...]:
        """All operands and the result have the same number of bundles."""
        return (*self.kernel.inputs, *self.kernel.outputs)

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Return the possible numbers of bundles: those for which bands exist."""
        return tuple(self._ways)

    @property
    def area(self) -> FabricPlace:
        """The rectangle that contains all bands."""
        if not self.is_banded:
            return super().area
        first, last = self.bands[0], self.bands[-1]
        return FabricPlace(self.name, slice(first.top, last.top + last.height), first.columns)

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """The inlets of all bands."""
        if not self.is_banded:
            return super().inlets
        return tuple(
            Inlet(one.tensor, one.cell, number)
            for number, band in enumerate(self.bands)
            for one in band.inlets
        )

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The cores that send results, band by band."""
        return (
            tuple(cell for band in self.bands for cell in band.senders) if self.is_banded else super().senders
        )

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """The busy links of all bands."""
        if not self.is_banded:
            return super().busy_links
        return frozenset[tuple[Cell, Cell]]().union(*(band.busy_links for band in self.bands))

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the masks of all bands."""
        if not self.is_banded:
            return super().values(weights)
        return {name: values for band in self.bands for name, values in band.values(weights).items()}


class BandedAttention(InBands[Attention], Attention):
    """Attention with its heads in bands, in inference."""

    def __init__(self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer) -> None:
        super().__init__(graph, in_one_band(kernel), stage, wafer)
        self._ways = self.ways(kernel, stage)

    def band(self, kernel: Kernel, stage: Stage) -> Attention:
        """Return the region of one band."""
        return Attention(self.graph, kernel, stage, self.wafer)

    def pace(self) -> float:
        """Return the planned cycles per sample with this number of bands, at least the time of an operand's
        words on their link; infinite if a core has no room for them."""
        count = len(self.bands)
        attrs = {**self.kernel.attrs, "bands": count}
        place = Tiling(self.region.rows, self.compute_cols, "stationary")
        if (
            pair_footprint(self.kernel.dims, place, self.wafer, attrs).total_bytes
            > self.wafer.sram_usable_bytes
        ):
            return math.inf
        cost = pair_cost(self.kernel.dims, place, self.wafer, Phase.FORWARD, attrs)
        words = self.tokens * self.features / PAIR / count
        return max(float(np.asarray(cost.total - cost.idle)), float(self.wafer.wavelet_cycles * words))

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write every band with its streams."""
        if not self.is_banded:
            super().build(b, ports, samples)
            return
        ways = [(ports.outward, ports.towards), *ports.others]
        for number, (band, way) in enumerate(zip(self.bands, ways, strict=True)):
            inward = ports.inward[PORTS * number : PORTS * (number + 1)]
            band.build(b, Ports(inward, *way, ports.own), samples)
