"""Regions of frozen layers (:mod:`wse_sim.whole.frozen_layers`): the program of inference for all samples of a batch.

Such a region runs ahead of the rounds of those behind it, as far as their inlets take words.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions import RegionKind, region_of
from wse_sim.whole.trained.contract import ANY, Batch, TrainedKind, TrainedPorts


class WithoutGradients(TrainedKind):
    """Additions to a kind of inference, so that a network that trains can have it."""

    @property
    def gradient_inlets(self) -> tuple[Cell, ...]:
        """Return no cell: no gradient arrives."""
        return ()

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Return one: its tensors have one link each."""
        return (1,)

    @property
    def moving(self) -> frozenset[Cell]:
        """All cells of the region, since some may hold samples that wait."""
        place = self.region
        rows, cols = (
            range(first, first + count) for first, count in ((place.row, place.rows), (place.col, place.cols))
        )
        return frozenset((row, col) for row in rows for col in cols)

    def most_in_flight(self) -> int:
        """Return any number: nothing is kept for a backward pass."""
        return ANY

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write the program of inference for all samples."""
        cast("RegionKind", self).build(b, ports, batch.samples)


def region_without_gradients(graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer) -> TrainedKind:
    """Return the region of a frozen layer, of the kind that inference takes."""
    kind = type(region_of(graph, kernel, stage, wafer))
    return _without_gradients(kind)(graph, kernel, stage, wafer, frozenset())


@cache
def _without_gradients(kind: type[RegionKind]) -> type[TrainedKind]:
    """Return the kind with what a network that trains needs."""
    return cast("type[TrainedKind]", type(f"Frozen{kind.__name__}", (WithoutGradients, kind), {}))
