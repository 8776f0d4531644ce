"""Cross-entropy of (rows, cols) logits against one label per row.

Mapping: as softmax; the label's logit is picked where it lies and added to the row's log-sum-exp.

    T = n e + o,      n = ceil(rows cols / cores);      backward (softmax - one-hot): e / 4

Source: calibration (special elements).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Cost, Family, Footprint, Tiling, register
from wse_sim.kernels.equations import BACKWARD_SPECIAL_SHARE, check_tiling, pointwise, pointwise_footprint


class CrossEntropy(Family):
    """The family of softmax cross-entropy losses."""

    name = "cross_entropy"
    dims = ("rows", "cols")
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
        """Stage buffers of the operands and code."""
        check_tiling(self.name, tiling, self.mappings)
        return pointwise_footprint(dims["rows"] * dims["cols"], tiling, dtype)

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
        """Special elements; a quarter in a backward pass."""
        check_tiling(self.name, tiling, self.mappings)
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


FAMILY = register(CrossEntropy())
