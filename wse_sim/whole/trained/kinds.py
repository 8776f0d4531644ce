"""The kinds of regions of a network that trains, by kernel family: trainable ones, and those of frozen layers.

A frozen layer (:mod:`wse_sim.whole.frozen_layers`) has the program of inference for all samples of a batch. Such a region runs
ahead of the rounds of those behind it, as far as their inlets take words.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions import RegionKind, region_of
from wse_sim.whole.regions.contract import POINTWISE, Kinds
from wse_sim.whole.trained.attention_bands import TrainedBandedAttention
from wse_sim.whole.trained.contract import ANY, Batch, TrainedKind, TrainedPorts
from wse_sim.whole.trained.convolution import TrainedConvolution
from wse_sim.whole.trained.dense import TrainedDense
from wse_sim.whole.trained.element_work import TrainedWork
from wse_sim.whole.trained.leading_rows import TrainedLeadingRows
from wse_sim.whole.trained.norm import TrainedNorm
from wse_sim.whole.trained.pointwise import TrainedPointwise
from wse_sim.whole.trained.pooling import TrainedPooling

TRAINED: Kinds[TrainedKind] = Kinds(
    {
        kind.family: kind
        for kind in (
            TrainedBandedAttention,
            TrainedConvolution,
            TrainedDense,
            TrainedNorm,
            TrainedPooling,
            TrainedLeadingRows,
        )
    }
    | dict.fromkeys(POINTWISE, TrainedPointwise),
    TrainedWork,
)
"""Trainable kinds of regions, by kernel family."""


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


@cache
def _without_gradients(kind: type[RegionKind]) -> type[TrainedKind]:
    """Return the kind with what a network that trains needs."""
    return cast("type[TrainedKind]", type(f"Frozen{kind.__name__}", (WithoutGradients, kind), {}))


def trained_region_of(
    graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
) -> TrainedKind:
    """Return the region of a stage; `needs` are the operands whose gradients are needed. A frozen layer has that of inference."""
    if kernel.name in frozen_layers(graph):
        kind = type(region_of(graph, kernel, stage, wafer))
        return _without_gradients(kind)(graph, kernel, stage, wafer, frozenset())
    return TRAINED[kernel.family](graph, kernel, stage, wafer, needs)
