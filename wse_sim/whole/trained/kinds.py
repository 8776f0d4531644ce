"""The trainable kinds of regions, by kernel family."""

from wse_sim.compiler.plan import Stage
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.regions.contract import POINTWISE, Kinds
from wse_sim.whole.trained.attention_bands import TrainedBandedAttention
from wse_sim.whole.trained.contract import TrainedKind
from wse_sim.whole.trained.convolution import TrainedConvolution
from wse_sim.whole.trained.dense import TrainedDense
from wse_sim.whole.trained.element_work import TrainedWork
from wse_sim.whole.trained.leading_rows import TrainedLeadingRows
from wse_sim.whole.trained.norm import TrainedNorm
from wse_sim.whole.trained.pointwise import TrainedPointwise
from wse_sim.whole.trained.pooling import TrainedPooling
from wse_sim.whole.trained.without_gradients import region_without_gradients

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


def trained_region_of(
    graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
) -> TrainedKind:
    """Return the region of a stage; `needs` are the operands whose gradients are needed. A frozen layer has that of inference."""
    if kernel.name in frozen_layers(graph):
        return region_without_gradients(graph, kernel, stage, wafer)
    return TRAINED[kernel.family](graph, kernel, stage, wafer, needs)
