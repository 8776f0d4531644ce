"""All-gather and reduce-scatter (sum) of `words` elements along every row of the rectangle: halves of a ring all-reduce.

Mapping: a ring folded over the P = cols cores of a row.  all_gather: the core of rank r starts with piece r and ends
with all pieces; reduce_scatter: it ends with the sum of piece r. Equations: :mod:`wse_sim.kernels.blocks.ring`,
T = task start + T_half.  Band: 1 %.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Unpack

import numpy as np

from wse_sim.fabric.format.classes import CoreClass
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import Collective
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.ring import (
    RingTurn,
    emit_all_gather,
    emit_reduce_scatter,
    half_cost,
    place_ring,
    ring,
)
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Array, Case, Cost, Dims, How, ProgramOptions, Tiling, asked
from wse_sim.kernels.contract.registry import register


class RingHalf(Collective):
    """Common base of the two halves of a ring all-reduce: the vector in whole pieces, P - 1 steps of one
    piece each."""

    programs = "half of a ring folded over the row"
    in_pieces = True

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of P - 1 steps of one piece each; the number of cores must be one integer."""
        dtype = self.asked(tiling, how, "fp32").dtype
        half = half_cost(dims["words"], int(tiling.cols), wafer, dtype)
        return half + Cost(startup=wafer.task_start_cycles)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program; every core starts with x, and :meth:`expected` gives the result."""
        dtype, rows, cols = asked(options, "fp32").dtype, int(tiling.rows), int(tiling.cols)
        q = int(ceil_div(int(dims["words"]), cols))
        b = new_builder(rows, cols, wafer)
        x = b.buffer("x", cols * q, dtype)
        place_ring(Line(b, vertical=False), x, q, dtype, (self.emit,))
        rng = np.random.default_rng(int(options.get("seed", 0)))
        values = rng.integers(-4, 5, (rows, cols, cols * q)).astype(np.float32)
        return Case(b.build(), b.config, {"x": values}, {"x": self.expected(values, q)})

    @staticmethod
    @abstractmethod
    def emit(k: CoreClass, turn: RingTurn, start: str) -> None:
        """Emit the instructions of one rank."""

    @abstractmethod
    def expected(self, values: Array, q: int) -> Array:
        """Return the final content of the cores, from their initial content, with pieces of q elements."""

    @staticmethod
    def pieces(cores: int, q: int) -> Iterator[tuple[int, slice]]:
        """Yield the position in the row and the piece of every rank."""
        for rank, position in enumerate(ring(cores)):
            yield position, slice(rank * q, (rank + 1) * q)


class AllGather(RingHalf):
    """All-gather along rows: the core of rank r starts with piece r of x and ends with all pieces of its
    row."""

    name = "all_gather"

    emit = staticmethod(emit_all_gather)

    def expected(self, values: Array, q: int) -> Array:
        """Return the expected buffers: piece r of every rank r, on all cores."""
        whole = np.empty((values.shape[0], values.shape[2]), np.float32)
        for position, piece in self.pieces(values.shape[1], q):
            whole[:, piece] = values[:, position, piece]
        return np.broadcast_to(whole[:, None], values.shape)


class ReduceScatter(RingHalf):
    """Reduce-scatter along rows: every core starts with x; the core of rank r ends with piece r of the row's
    sum."""

    name = "reduce_scatter"

    emit = staticmethod(emit_reduce_scatter)

    def expected(self, values: Array, q: int) -> Array:
        """Return piece r of the sums on rank r; other elements are not compared."""
        sums = np.full(values.shape, np.nan, np.float32)
        for position, piece in self.pieces(values.shape[1], q):
            sums[:, position, piece] = values[:, :, piece].sum(axis=1)
        return sums


ALL_GATHER = register(AllGather())
REDUCE_SCATTER = register(ReduceScatter())
