"""All-gather of `words` elements along every row of the rectangle: half of a ring all-reduce.

Mapping: a ring folded over the P = cols cores of a row; core of rank r starts with piece r and ends with all of them.
Equations: :mod:`wse_sim.kernels.blocks.ring`, T = task start + T_half.  Band: 1 %.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.ring import RingHalf, emit_all_gather, place_ring, ring
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Case, Dims, ProgramOptions, Tiling
from wse_sim.kernels.contract.registry import register


class AllGather(RingHalf):
    """The family of all-gathers along a line."""

    name = "all_gather"
    lies = "every line or the rectangle holds one vector per core"
    programs = "half of a ring folded over the row"
    bands = "exact"

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """The core of rank r holds piece r of x and ends with all pieces of its row."""
        dtype, rows, cols = str(options.get("dtype", "fp32")), int(tiling.rows), int(tiling.cols)
        q = int(ceil_div(int(dims["words"]), cols))
        b = new_builder(rows, cols, wafer)
        x = b.buffer("x", cols * q, dtype)
        place_ring(Line(b, vertical=False), x, q, dtype, (emit_all_gather,))
        rng = np.random.default_rng(int(options.get("seed", 0)))
        values = rng.integers(-4, 5, (rows, cols, cols * q)).astype(np.float32)
        whole = np.empty((rows, cols * q), np.float32)
        for rank, position in enumerate(ring(cols)):
            piece = slice(rank * q, (rank + 1) * q)
            whole[:, piece] = values[:, position, piece]
        expected = np.broadcast_to(whole[:, None], values.shape)
        return Case(b.build(), b.config, {"x": values}, {"x": expected})


FAMILY = register(AllGather())
