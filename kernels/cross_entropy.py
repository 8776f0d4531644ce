"""Cross-entropy of (rows, cols) logits against one label per row.

Mapping: as softmax; the label's logit is picked where it lies and added to the row's log-sum-exp.

    T = n e + o,      n = ceil(rows cols / cores);      backward (softmax - one-hot): e / 4

Mapping "grid" is hand-written for fp32 rows like the grid softmax (:mod:`wse_sim.kernels.rows`): maximum,
difference, the label's element by a product with its mask, exponentials, sum, logarithm.

Source: calibration (special elements).  Band of cost against program (grid): 3 %.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import (
    BACKWARD_SPECIAL_SHARE,
    CODE_BYTES,
    ceil_div,
    check_tiling,
    pointwise,
    pointwise_footprint,
)
from wse_sim.kernels.rows import PICKED, STATISTIC, Stage, grid_values, stages_cost, stages_program


class CrossEntropy(Family):
    """The family of softmax cross-entropy losses."""

    name = "cross_entropy"
    dims = ("rows", "cols")
    mappings = ("stationary", "streamed", "grid")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        if tiling.mapping == "grid":
            t = ceil_div(dims["rows"], tiling.rows)
            elements = 2.0 * t * ceil_div(dims["cols"], tiling.cols)
            # Elements and mask, three statistics, gaps between banks.
            return Footprint(activations_bytes=4.0 * (elements + 3 * t) + 32, code_bytes=CODE_BYTES)
        return pointwise_footprint(dims["rows"] * dims["cols"], tiling, dtype)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Special elements; a quarter in a backward pass."""
        phase, dtype, _ = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        if tiling.mapping == "grid":
            return stages_cost(GRID_STAGES, dims["rows"], dims["cols"], tiling, wafer)
        share = 1.0 if phase is Phase.FORWARD else BACKWARD_SPECIAL_SHARE
        elements = dims["rows"] * dims["cols"]
        return pointwise(elements, tiling, wafer, dtype=dtype, special=share, instructions=3)

    def compute(self, logits: Any, labels: Any, *, dtype: str = "fp32", parts: int = 1) -> Any:
        """Mean over the rows of log-sum-exp minus the label's logit."""
        from wse_sim.kernels import numerics as core
        from wse_sim.kernels.softmax import FAMILY as SOFTMAX

        logs = SOFTMAX.compute(core.rounded(logits, dtype), parts=parts, log=True)
        picked = np.take_along_axis(logs, np.asarray(labels)[:, None], axis=-1)
        return -picked.mean(dtype=np.float32)

    def gradient(self, logits: Any, labels: Any, *, dtype: str = "fp32", parts: int = 1) -> Any:
        """(softmax - one-hot) / rows."""
        from wse_sim.kernels import numerics as core
        from wse_sim.kernels.softmax import FAMILY as SOFTMAX

        g = SOFTMAX.compute(core.rounded(logits, dtype), parts=parts)
        g[np.arange(len(g)), np.asarray(labels)] -= 1.0
        return core.binary("mul", g, 1.0 / len(g), dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """The loss of every row, hand-written; rows and cols must fill the tiles."""
        values = grid_values(self.name, dims, tiling, options)
        rng = np.random.default_rng(int(options.get("seed", 0)) + 1)
        labels = rng.integers(0, values.shape[1], len(values))
        mask = np.zeros_like(values)
        mask[np.arange(len(values)), labels] = 1.0
        losses = np.array([self.compute(row[None], labels[i : i + 1]) for i, row in enumerate(values)])
        return stages_program(
            GRID_STAGES, dims["rows"], dims["cols"], tiling, wafer, values, losses, mask=mask
        )


GRID_STAGES = (
    Stage("fold", "max"),
    Stage("share", "max"),
    Stage("row", "sub"),
    Stage("pick"),
    Stage("share", "add", PICKED),
    Stage("map", "exp"),
    Stage("scale", value=0.0),
    Stage("fold", "add"),
    Stage("share", "add"),
    Stage("map", "log", STATISTIC),
    Stage("minus"),
)

FAMILY = register(CrossEntropy())
