"""Regions of a whole model on the fabric, one kind per kernel family.

contract.py    what a kind of region is: inlets, an outlet, programs of its cores, cycles that they issue
turns.py       cells that take words in turn, cells that send in turn
dense.py       products with weights, and the work fused to them
norm.py        layer and RMS norm
attention.py   softmax attention
"""

from wse_sim.whole.regions.attention import Attention
from wse_sim.whole.regions.contract import Inlet, Ports, RegionKind
from wse_sim.whole.regions.dense import Dense
from wse_sim.whole.regions.norm import Norm

KINDS: dict[str, type[RegionKind]] = {kind.family: kind for kind in (Dense, Norm, Attention)}
"""Kinds of regions by kernel family: what a whole model on the fabric covers."""

__all__ = ["KINDS", "Inlet", "Ports", "RegionKind"]
