"""Reduce-scatter (sum) of `words` elements along every row of the rectangle: half of a ring all-reduce.

Mapping: a ring folded over the P = cols cores of a row; core of rank r ends with the sums of piece r.
Equations: :mod:`wse_sim.kernels.blocks.ring`, T = task start + T_half.  Band: 1 %.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.ring import RingHalf, emit_reduce_scatter, place_ring, ring
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Case, Dims, ProgramOptions, Tiling
from wse_sim.kernels.contract.registry import register


class ReduceScatter(RingHalf):
    """The family of reduce-scatters along a line."""

    name = "reduce_scatter"
    lies = "every line or the rectangle holds one vector per core"
    programs = "half of a ring folded over the row"
    bands = "exact"

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Every core holds x; the core of rank r ends with piece r of the sum of its row."""
        dtype, rows, cols = str(options.get("dtype", "fp32")), int(tiling.rows), int(tiling.cols)
        q = int(ceil_div(int(dims["words"]), cols))
        b = new_builder(rows, cols, wafer)
        x = b.buffer("x", cols * q, dtype)
        place_ring(Line(b, vertical=False), x, q, dtype, (emit_reduce_scatter,))
        rng = np.random.default_rng(int(options.get("seed", 0)))
        values = rng.integers(-4, 5, (rows, cols, cols * q)).astype(np.float32)
        expected = np.full(values.shape, np.nan, np.float32)
        for rank, position in enumerate(ring(cols)):
            piece = slice(rank * q, (rank + 1) * q)
            expected[:, position, piece] = values[:, :, piece].sum(axis=1)
        return Case(b.build(), b.config, {"x": values}, {"x": expected})


FAMILY = register(ReduceScatter())
