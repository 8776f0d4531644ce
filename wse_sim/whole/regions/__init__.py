"""Regions of a complete model on the fabric, one kind per kernel family.

contract.py          the interface of a kind of region: inlets, an outlet, core programs, issue cycles
shared_color.py      cells that receive words in sequence, cells that send in sequence
turns.py             loops over items in the buffers of a core
stores.py            cores in which samples wait, of gradients as well
dense.py             products with weights, and the operations fused to them
norm.py              layer and RMS norm
softmax.py           softmax of every token
leading_rows.py      rows of a parameter in front of the tokens
attention.py         softmax attention: inlets, collectors and forward pass, which training has as well
collectors.py        cores that collect sums and send them in sequence
attention_bands.py   attention with its heads in bands of rows
pointwise_place.py   cores and operators of elementwise work, in both passes
pointwise.py         elementwise work and activations
element_work.py      families that describe the work of a core, such as rotary positions
windows.py           the elements that the windows of a convolution read from a stored image
convolution.py       convolutions: a dense layer on unfolded pixels
pooling.py           maximum or mean of windows
depthwise.py         convolutions with one filter per channel
"""

from wse_sim.compiler.plan import Stage
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.families.conv2d.cost import abreast_of
from wse_sim.whole.regions.attention_bands import BandedAttention
from wse_sim.whole.regions.contract import POINTWISE, Inlet, Kinds, Ports, RegionKind
from wse_sim.whole.regions.convolution import Convolution
from wse_sim.whole.regions.dense import Dense
from wse_sim.whole.regions.depthwise import Depthwise
from wse_sim.whole.regions.element_work import WorkRegion
from wse_sim.whole.regions.leading_rows import JoinedRows
from wse_sim.whole.regions.norm import NormRegion
from wse_sim.whole.regions.pointwise import Pointwise
from wse_sim.whole.regions.pooling import Pooling
from wse_sim.whole.regions.softmax import SoftmaxRegion

KINDS: Kinds[RegionKind] = Kinds(
    {
        kind.family: kind
        for kind in (Dense, NormRegion, SoftmaxRegion, BandedAttention, Convolution, Pooling, JoinedRows)
    }
    | dict.fromkeys(POINTWISE, Pointwise),
    WorkRegion,
)
"""Kinds of regions by kernel family: the families that the whole-fabric simulation supports."""


def region_of(graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer) -> RegionKind:
    """Return the region of a stage; a convolution computes as many pixels at a time as is fastest."""
    if Depthwise.is_for(kernel):
        return Depthwise(graph, kernel, stage, wafer)
    kind = KINDS[kernel.family]
    if not issubclass(kind, Convolution):
        return kind(graph, kernel, stage, wafer)
    ways = [kind(graph, kernel, stage, wafer, count) for count in abreast_of(kernel.dims, kernel.attrs)]
    return min(ways, key=lambda way: way.fastest_cycles)


__all__ = ["KINDS", "Inlet", "Ports", "RegionKind", "region_of"]
