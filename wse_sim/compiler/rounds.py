"""Sizes of stages whose programs train in rounds: all forward passes of a round, then all its backward passes."""

from __future__ import annotations

from math import inf

from wse_sim.compiler.defects import usable_cores
from wse_sim.compiler.sizing import Sizer
from wse_sim.graph import KernelGraph

ATTRIBUTES = ("trained_rows", "trains")
"""Attributes of kernels with the layout of programs that train."""
FRACTIONS = tuple(step / 20 for step in range(4, 17))
"""Fractions of a sample's time for forward passes that are tried."""


def trains_in_rounds(graph: KernelGraph) -> bool:
    """Return whether the programs of the fabric train the graph."""
    return any(kernel.attrs.get(name) for kernel in graph.kernels for name in ATTRIBUTES)


def for_rounds(sizer: Sizer) -> Sizer:
    """Return a sizer for rounds, with the fraction of forward passes for which the area bounds the time least."""
    cores = usable_cores(sizer.wafer) * sizer.wafer.pipeline_efficiency
    split = [sizer.in_rounds(fraction) for fraction in FRACTIONS]
    paces = [one.pace_for(cores) for one in split]
    return min(zip(paces, split, strict=True), key=lambda one: one[0] or inf)[1]
