"""Regions of a whole model on the fabric, one kind per kernel family.

contract.py    what a kind of region is: inlets, an outlet, programs of its cores, cycles that they issue
turns.py       cells that take words in turn, cells that send in turn
dense.py       products with weights, and the work fused to them
dense_shared.py  the same where rows share the work on the outputs
dense_kept.py  the same with a residual, which waits next to the rows
norm.py        layer and RMS norm
softmax.py     softmax of every token
joined.py      rows of a parameter in front of the tokens
attention.py   softmax attention
attention_bands.py  the same with heads in bands of rows
pointwise.py   elementwise work and activations
flowing.py     dense layers whose results leave as they are summed
windows.py     what the windows of a convolution meet in an image at rest
convolution.py  convolutions: a dense layer on unfolded pixels
pooling.py     maximum or mean of windows
depthwise.py   convolutions with a filter for every channel
"""

from wse_sim.compiler.plan import Stage
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.whole.regions.attention import Attention
from wse_sim.whole.regions.attention_bands import BandedAttention
from wse_sim.whole.regions.contract import POINTWISE, Inlet, Ports, RegionKind
from wse_sim.whole.regions.convolution import Convolution, FlowingConvolution
from wse_sim.whole.regions.dense import Dense
from wse_sim.whole.regions.dense_kept import KeptDense
from wse_sim.whole.regions.dense_shared import SharedDense
from wse_sim.whole.regions.depthwise import Depthwise
from wse_sim.whole.regions.flowing import Flowing
from wse_sim.whole.regions.joined import JoinedRows
from wse_sim.whole.regions.norm import NormRegion
from wse_sim.whole.regions.pointwise import Pointwise
from wse_sim.whole.regions.pooling import Pooling
from wse_sim.whole.regions.softmax import SoftmaxRegion

KINDS: dict[str, type[RegionKind]] = {
    kind.family: kind
    for kind in (Dense, NormRegion, SoftmaxRegion, Attention, Convolution, Pooling, JoinedRows)
} | dict.fromkeys(POINTWISE, Pointwise)
"""Kinds of regions by kernel family: what a whole model on the fabric covers."""


OTHERS: dict[type[RegionKind], tuple[type[Flowing | SharedDense], ...]] = {
    Dense: (Flowing, SharedDense, KeptDense),
    Convolution: (FlowingConvolution,),
}
"""Other programs of a kind; the one that issues and waits least is taken."""


def region_of(
    graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, pace: float = 0.0
) -> RegionKind:
    """The region of a stage of a plan that keeps a pace.

    Rows with keepers hold fewer samples of a skip than stores do, so they are taken where stores would be too slow or too small.
    """
    if Depthwise.is_for(kernel):
        return Depthwise(graph, kernel, stage, wafer)
    if kernel.family == "attention" and AttentionAttributes.of(kernel.attrs).bands > 1:
        return BandedAttention(graph, kernel, stage, wafer)
    found = KINDS[kernel.family](graph, kernel, stage, wafer)
    if not isinstance(found, Dense):
        return found
    others = [other(graph, kernel, stage, wafer) for other in OTHERS.get(type(found), ())]
    possible = [other for other in others if other.is_possible]

    stored = 2 * 2 * found.tokens * found.features
    least = 0.0 if stored > wafer.sram_bytes / 2 else pace

    def cycles(region: Dense) -> tuple[float, bool, float]:
        issued = region.issued_cycles() + region.held_up_cycles()
        return (
            max(issued, region.handed_cycles(), least * ("residual" in region.items)),
            isinstance(region, KeptDense),
            issued,
        )

    return min((*possible, found), key=cycles)


__all__ = ["KINDS", "Inlet", "Ports", "RegionKind", "region_of"]
