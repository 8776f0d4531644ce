"""All-gather of `words` elements along every row of the rectangle: half of a ring all-reduce.

Mapping: a ring folded over the P = cols cores of a row; the core of rank r starts with piece r and ends with
all pieces. Equations: :mod:`wse_sim.kernels.blocks.ring`, T = task start + T_half.  Band: 1 %.
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.classes import CoreClass
from wse_sim.kernels.blocks.ring import RingHalf, RingTurn, emit_all_gather
from wse_sim.kernels.contract.family import Array
from wse_sim.kernels.contract.registry import register


class AllGather(RingHalf):
    """All-gather along rows: the core of rank r starts with piece r of x and ends with all pieces of its
    row."""

    name = "all_gather"

    def emit(self, k: CoreClass, turn: RingTurn, start: str) -> None:
        """Emit one rank's instructions with :func:`wse_sim.kernels.blocks.ring.emit_all_gather`."""
        emit_all_gather(k, turn, start)

    def expected(self, values: Array, q: int) -> Array:
        """Return the expected buffers: piece r of every rank r, on all cores."""
        whole = np.empty((values.shape[0], values.shape[2]), np.float32)
        for position, piece in self.pieces(values.shape[1], q):
            whole[:, piece] = values[:, position, piece]
        return np.broadcast_to(whole[:, None], values.shape)


FAMILY = register(AllGather())
