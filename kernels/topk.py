"""The k largest of each row of (rows, cols), for the routing of a mixture of experts.

Mapping: rows over all cores (a row is short: one score per expert), n = ceil(rows / cores) rows per core.

    T = n k (2 o + cols / max + cols / mov)        k passes: find the maximum, mask it

Source: vector rates of the SDK documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Cost, Family, Footprint, Tiling, register
from wse_sim.kernels.equations import CODE_BYTES, bytes_of, check_tiling, max_rate, mov_rate, per_core


class TopK(Family):
    """The family of the k largest of a row."""

    name = "topk"
    dims = ("rows", "cols", "k")
    mappings = ("stationary", "streamed")

    def footprint(
        self,
        dims: Mapping[str, Any],
        tiling: Tiling,
        wafer: Wafer,
        *,
        phase: Phase = Phase.FORWARD,
        dtype: str = "fp16",
        attrs: Mapping[str, Any] | None = None,
    ) -> Footprint:
        """The rows of a core, values and indices of the winners, code."""
        check_tiling(self.name, tiling, self.mappings)
        n = per_core(dims["rows"], tiling)
        return Footprint(
            buffers_bytes=1.0 * n * (dims["cols"] + 2 * dims["k"]) * bytes_of(dtype), code_bytes=CODE_BYTES
        )

    def cost(
        self,
        dims: Mapping[str, Any],
        tiling: Tiling,
        wafer: Wafer,
        *,
        phase: Phase = Phase.FORWARD,
        dtype: str = "fp16",
        attrs: Mapping[str, Any] | None = None,
    ) -> Cost:
        """k passes over the rows of a core; backward scatters k gradients per row."""
        check_tiling(self.name, tiling, self.mappings)
        passes = 1.0 * per_core(dims["rows"], tiling) * dims["k"]
        if phase is not Phase.FORWARD:
            return Cost(compute=passes, startup=wafer.vector_start_cycles + 0.0 * passes)
        each = dims["cols"] / max_rate(dtype, wafer) + dims["cols"] / mov_rate(dtype, wafer)
        return Cost(compute=passes * each, startup=passes * 2 * wafer.vector_start_cycles)

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


FAMILY = register(TopK())
