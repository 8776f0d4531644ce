"""The k largest of each row of (rows, cols), for the routing of a mixture of experts; k = cols sorts the row.

Mapping: a row lies over p columns of a lane, p the largest power of two with p <= C // L, p <= cores // rows
and at least PIECE elements per core (a short row, one score per expert, stays on one core: p = 1);
e = ceil(cols/p) elements of n = ceil(rows p / cores) rows per core.

    select  T = n k (2 o + e / max + e / mov) + k (all-reduce of n maxima over p)     k passes: maximum, mask
    sort    T = n (A + B log2(2 e)) 4 (o + e / max) + 2 (2 p - 2 - log2 p) words(n e) + 2 B (o + 2 T_R + 1)
            A = log2 e (log2 e + 1) / 2 stages within a core, B = log2 p (log2 p + 1) / 2 exchanges

The faster of both (a bitonic sort of pairs value, index: each stage is a minimum, a maximum and two selections;
an exchange over distance d sends d pieces through its middle link, and the distances of all exchanges
add up to 2 p - 2 - log2 p).

Source: vector rates of the SDK documentation; the network of Batcher.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import (
    CODE_BYTES,
    bytes_of,
    ceil_div,
    check_tiling,
    max_rate,
    mov_rate,
    row_allreduce,
    words,
)

# A row is spread over more cores only while each keeps this many elements: below, starts outweigh work.
PIECE = 16


class TopK(Family):
    """The family of the k largest of a row."""

    name = "topk"
    dims = ("rows", "cols", "k")
    mappings = ("stationary", "streamed")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """The rows of a core, values and indices of the winners, code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        p, n, e = spread(dims, tiling)
        # Values and indices of the piece, and as much again in an exchange; or the piece and the winners.
        more = np.where(np.asarray(p) > 1, 3 * e, np.maximum(2 * dims["k"], e))
        return Footprint(buffers_bytes=1.0 * n * (e + more) * bytes_of(dtype), code_bytes=CODE_BYTES)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """The faster of k passes and a sort; backward scatters k gradients per row."""
        phase, dtype, _ = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        p, n, e = spread(dims, tiling)
        if phase is not Phase.FORWARD:
            passes = 1.0 * n * ceil_div(dims["k"], p)
            return Cost(compute=passes, startup=wafer.vector_start_cycles + 0.0 * passes)
        ways = (_select(dims["k"], p, n, e, wafer, dtype), _sort(p, n, e, wafer, dtype))
        better = np.asarray(ways[1].total < ways[0].total)
        parts = zip(ways[0].parts().values(), ways[1].parts().values(), strict=True)
        chosen = [np.where(better, b, a) for a, b in parts]
        return Cost(*(value if value.ndim else float(value) for value in chosen))

    def compute(self, x: Any, k: int, *, dtype: str = "fp32") -> tuple[Any, Any]:
        """Values and indices of the k largest of each row: k times find the maximum and mask it."""
        from wse_sim.kernels import numerics as core

        rest = core.rounded(x, dtype).copy()
        values, indices = [], []
        for _ in range(k):
            best = core.row_reduce(rest, core.MAXIMUM)
            at = np.argmax(rest == best, axis=-1)[..., None]
            np.put_along_axis(rest, at, -np.inf, axis=-1)
            values.append(best)
            indices.append(at)
        return np.concatenate(values, axis=-1), np.concatenate(indices, axis=-1)


def spread(dims: Dims, tiling: Tiling) -> tuple[Any, Any, Any]:
    """(cores per row, rows per core, elements per core of a row)."""
    cores = tiling.rows * tiling.cols
    most = np.minimum(tiling.cols // tiling.lanes, np.maximum(1, cores // dims["rows"]))
    most = np.maximum(1, np.minimum(most, dims["cols"] // PIECE))
    p = 2 ** np.floor(np.log2(most)).astype(np.int64)
    return p, ceil_div(dims["rows"] * p, cores), ceil_div(dims["cols"], p)


def _select(k: Any, p: Any, n: Any, e: Any, wafer: Wafer, dtype: str) -> Cost:
    """k times the maximum of every row, known to its cores, and a mask."""
    passes = 1.0 * n * k
    each = e / max_rate(dtype, wafer) + e / mov_rate(dtype, wafer)
    shared = row_allreduce(n, p, wafer) * (k * (np.asarray(p) > 1))
    return Cost(compute=passes * each, startup=passes * 2 * wafer.vector_start_cycles) + shared


def _sort(p: Any, n: Any, e: Any, wafer: Wafer, dtype: str) -> Cost:
    """Bitonic sort of p pieces of e pairs."""
    across, within = np.log2(p), np.ceil(np.log2(e))
    exchanges = across * (across + 1) / 2
    stages = n * (within * (within + 1) / 2 + exchanges * (1 + within))
    links = 2 * p - 2 - across
    return Cost(
        compute=4 * stages * e / max_rate(dtype, wafer),
        startup=(4 * stages + 2 * exchanges) * wafer.vector_start_cycles,
        fabric=2.0 * links * words(n * e, dtype) * wafer.wavelet_cycles,
        idle=2 * exchanges * (2 * wafer.ramp_cycles + 1),
    )


FAMILY = register(TopK())
