"""Reduce-scatter (sum) of `words` elements along every row of the rectangle: half of a ring all-reduce.

Mapping: a ring folded over the P = cols cores of a row; the core of rank r ends with the sum of piece r.
Equations: :mod:`wse_sim.kernels.blocks.ring`, T = task start + T_half.  Band: 1 %.
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.classes import CoreClass
from wse_sim.kernels.blocks.ring import RingHalf, RingTurn, emit_reduce_scatter
from wse_sim.kernels.contract.family import Array
from wse_sim.kernels.contract.registry import register


class ReduceScatter(RingHalf):
    """Reduce-scatter along rows: every core starts with x; the core of rank r ends with piece r of the row's
    sum."""

    name = "reduce_scatter"

    def emit(self, k: CoreClass, turn: RingTurn, start: str) -> None:
        """Emit one rank's instructions with :func:`wse_sim.kernels.blocks.ring.emit_reduce_scatter`."""
        emit_reduce_scatter(k, turn, start)

    def expected(self, values: Array, q: int) -> Array:
        """Return piece r of the sums on rank r; other elements are not compared."""
        sums = np.full(values.shape, np.nan, np.float32)
        for position, piece in self.pieces(values.shape[1], q):
            sums[:, position, piece] = values[:, :, piece].sum(axis=1)
        return sums


FAMILY = register(ReduceScatter())
