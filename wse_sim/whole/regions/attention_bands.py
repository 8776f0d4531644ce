"""Attention in bands of rows: each band is a region of attention for some of the heads, with separate links.

Bundle i of queries, keys, values and results has the features of the heads of band i, which are contiguous in
a token. Bands are independent, and a core has the scores of H / bands heads only. Attention in one
bundle has one band, the region of :mod:`wse_sim.whole.regions.attention`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Generic, TypeVar

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, frozen
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.kernels.families.attention.pairs import LEAST_ROWS, pair_footprint
from wse_sim.whole.areas import FabricPlace
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.attention import Attention
from wse_sim.whole.regions.attention_pairs import AttentionByPairs
from wse_sim.whole.regions.contract import Floats, Inlet, Ports, RegionKind

B = TypeVar("B", bound=AttentionByPairs)


class InBands(AttentionByPairs, Generic[B]):
    """The bands of attention, which both passes have; each is a region of attention itself, a single one as well."""

    collecting_rows = 0
    """Rows of a band below those with pairs."""

    @abstractmethod
    def band(self, kernel: Kernel, stage: Stage) -> B:
        """Return the region of one band."""

    @cached_property
    def _ways(self) -> Mapping[int, tuple[B, ...]]:
        """The bands by their number, for all numbers that the kernel states and the region has rows for."""
        most = AttentionAttributes.of(self.kernel.attrs).bands
        counts = [count for count in range(1, most + 1) if most % count == 0]
        rows = self.region.rows
        return {count: self._in_bands(count) for count in counts if count == 1 or rows >= LEAST_ROWS * count}

    def _in_bands(self, count: int) -> tuple[B, ...]:
        """Split the region into `count` bands from top to bottom, with equal numbers of heads."""
        dims = self.kernel.dims
        heads = {name: int(dims[name]) // count for name in ("heads", "kv_heads") if name in dims}
        attrs = frozen({**self.kernel.attrs, "bands": 1})
        part = replace(self.kernel, dims=frozen({**dims, **heads}), attrs=attrs)

        def band(number: int, rows: int) -> B:
            top, cores = self.region.row + number * rows, rows * self.compute_cols
            place = replace(self.region, row=top, rows=rows, compute_cores=cores)
            name = self.name if count == 1 else f"{self.name} {number}"
            return self.band(part, replace(self.stage, name=name, region=place))

        if count == 1:
            return (band(0, self.region.rows),)
        rows = band(0, self.region.rows // count).height + self.collecting_rows
        return tuple(band(number, rows) for number in range(count))

    @property
    def bands(self) -> tuple[B, ...]:
        """The bands, one per bundle of the result."""
        return self._ways[self.result_bundles]

    @property
    def own_colors(self) -> int:
        """Colors that every band uses."""
        return self.bands[0].own_colors

    @property
    def tied(self) -> tuple[str, ...]:
        """All operands and the result have the same number of bundles."""
        return (*self.kernel.inputs, *self.kernel.outputs)

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Return the possible numbers of bundles: those for which bands exist."""
        return tuple(self._ways)

    def extent(self) -> tuple[int, int]:
        """Return the rows from the first to the last with pairs, and the columns."""
        first, last = self.bands[0], self.bands[-1]
        self.left = first.left
        return last.top + last.height - first.top, first.cols

    @property
    def area(self) -> FabricPlace:
        """The rectangle that contains all bands."""
        first, last = self.bands[0], self.bands[-1]
        return FabricPlace(self.name, slice(first.top, last.top + last.height), first.columns)

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """The inlets of all bands."""
        return tuple(
            Inlet(one.tensor, one.cell, number)
            for number, band in enumerate(self.bands)
            for one in band.inlets
        )

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The cores that send results, band by band."""
        return tuple(cell for band in self.bands for cell in band.senders)

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Return the cores that send the results of a band."""
        return self.bands[bundle].senders

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """The busy links of all bands."""
        return frozenset[tuple[Cell, Cell]]().union(*(band.busy_links for band in self.bands))

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the masks of all bands: each has the rows of a mask per head that belong to its heads."""
        found = dict[str, Floats]()
        for number, band in enumerate(self.bands):
            first = number * band.heads
            held = {name: weights[name] for name in self.kernel.parameters}
            held |= {
                name: mask[first : first + band.heads]
                for name, whole in held.items()
                if len(mask := whole.reshape(-1, self.tokens, self.tokens)) > 1
            }
            found |= band.values(held)
        return found


class BandedAttention(InBands[Attention], RegionKind):
    """Attention with its heads in bands, in inference."""

    def band(self, kernel: Kernel, stage: Stage) -> Attention:
        """Return the region of one band."""
        return Attention(self.graph, kernel, stage, self.wafer)

    def pace(self) -> float:
        """Return the planned cycles per sample with this number of bands; infinite if a core has no room for them."""
        stated = {**self.kernel.attrs, "bands": len(self.bands)}
        place = Tiling(self.region.rows, self.compute_cols, "stationary")
        need = pair_footprint(self.kernel.dims, place, self.wafer, stated).total_bytes
        if need > self.wafer.sram_usable_bytes:
            return math.inf
        return self.priced_cycles(bands=len(self.bands))

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write every band with its streams."""
        for number, band in enumerate(self.bands):
            band.build(b, ports.of_band(number), samples)
