"""The columns of a region that compute; the others move data: inlets, stores, cores that pass on results.

Symbols: c of the w columns of a region compute; efficiency e; at most m columns move data in a plan of training that has the
prices of fabric programs (m = 0: no limit)::

    c = max(1, floor(e w), w - m)       narrow regions set the fraction 1 - e aside, wide ones m columns
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.graph import KernelGraph
from wse_sim.hardware import Wafer

MOVING = "moving columns"
"""Fact of a graph: the columns of a region that its programs need, besides those that compute."""


@dataclass(frozen=True)
class ComputeColumns:
    """How many columns of a region compute, and the reverse.

    >>> rule = ComputeColumns(0.72, 3)
    >>> rule.of([5, 10, 40]).tolist(), rule.region_cols([3, 7, 37]).tolist()
    ([3, 7, 37], [5.0, 10.0, 40.0])
    """

    efficiency: float
    most_moving: int = 0

    @classmethod
    def of_plan(cls, graph: KernelGraph, wafer: Wafer) -> ComputeColumns:
        """Return the rule for the plans of a graph."""
        return cls(wafer.pipeline_efficiency, int(str(graph.facts.get(MOVING, 0))))

    def of(self, cols: NDArray[np.int64] | list[int] | int) -> NDArray[np.int64]:
        """Return the columns that compute of regions with `cols` columns, at least one."""
        given = np.asarray(cols)
        least = np.floor(given * self.efficiency + 1e-9)
        if self.most_moving:
            least = np.maximum(least, given - self.most_moving)
        return np.maximum(1, least).astype(np.int64)

    def region_cols(self, compute: NDArray[np.int64] | list[int] | int) -> NDArray[np.float64]:
        """Return the columns of the regions in which `compute` columns compute; without a limit a fraction, not rounded."""
        given = np.asarray(compute, float)
        found = given / self.efficiency
        return np.minimum(np.ceil(found - 1e-9), given + self.most_moving) if self.most_moving else found

    def spread(self, compute: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Return the columns of a region for each of its `compute` columns."""
        return self.region_cols(compute) / compute

    def weight(self, compute: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Return the compute cores for which each one counts, if the fraction `efficiency` of the wafer computes."""
        return self.spread(compute) * self.efficiency
