"""Choose for how many samples in flight the regions of a network that trains in rounds have room.

A round of n samples fills and drains the pipeline, which is d samples deep in both passes. With T(n) the area bound, on a part
of the cores, of regions that have room for n samples, a sample takes about::

    T(n) (n + d) / n

More samples share the fill, but need more memory: cores of attention have the same keys and queries, so their number grows
almost with n^2.
"""

from __future__ import annotations

from wse_sim.compiler.defects import usable_cores
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.modes.pipelined.repricing import sizer_for
from wse_sim.whole.room import with_room

PACKED = 0.8
"""Part of the cores that regions use; where memory binds, they have few shapes, which leave gaps."""


def round_sizes(graph: KernelGraph, wafer: Wafer, samples: int) -> list[int]:
    """Return the divisors of `samples` for which the stages of a laid graph have room at some pace: those with the fewest
    estimated cycles per sample first."""
    depth = max(sizer_for(graph.with_samples(1), wafer).in_flight.values())
    found: list[tuple[float, int]] = []
    for size in (size for size in range(1, samples + 1) if samples % size == 0):
        sizer = sizer_for(with_room(graph, wafer, size).with_samples(1), wafer)
        pace = sizer.pace_for(PACKED * usable_cores(wafer) * wafer.pipeline_efficiency)
        if pace is None:
            break
        found.append((pace * (size + depth) / size, size))
    return [size for _, size in sorted(found)]
