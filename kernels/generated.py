"""A chain of elementwise operators and reductions that no other family took, made into one kernel.

Mapping: elements spread over all cores, n = ceil(elements / cores); a reduction (sum, mean, max) in the
chain also reduces ceil(rows / R) results along the row of cores and multicasts them back.

    T = sum over ops of (o + n / rate) + n e (special functions) + all-reduces

Source: vector rates of the SDK documentation; special elements and all-reduce from calibration.
"""

from __future__ import annotations

from typing import Any, Unpack

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.elementwise import chain, op_rate
from wse_sim.kernels.equations import (
    BACKWARD_SPECIAL_SHARE,
    SPECIAL_FUNCTIONS,
    ceil_div,
    check_tiling,
    pointwise,
    pointwise_footprint,
    row_allreduce,
)

REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "var", "logsumexp", "argmax"})


class Generated(Family):
    """The family of generated kernels."""

    name = "generated"
    dims = ("elements", "rows", "cols")
    mappings = ("stationary", "streamed")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        _, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        inputs = int(attrs.get("inputs", 1))
        return pointwise_footprint(dims["elements"], tiling, dtype, buffers=inputs + 1)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Vector instructions, special elements and all-reduces of the chain."""
        phase, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        ops = [op for op in str(attrs.get("ops", "")).split(",") if op]
        share = 1.0 if phase is Phase.FORWARD else BACKWARD_SPECIAL_SHARE
        special = share * sum(op in SPECIAL_FUNCTIONS for op in ops)
        issue = sum(1.0 / op_rate(op, dtype, wafer) for op in ops if op not in SPECIAL_FUNCTIONS)
        cost = pointwise(
            dims["elements"],
            tiling,
            wafer,
            dtype=dtype,
            issue=issue,
            special=special,
            instructions=max(1, len(ops)),
            inputs=int(attrs.get("inputs", 1)),
        )
        reductions = sum(op in REDUCTIONS for op in ops)
        if not reductions:
            return cost
        rows = ceil_div(max(1, dims.get("rows", 1)), tiling.rows)
        return cost + reductions * row_allreduce(rows, tiling.cols, wafer)

    def compute(self, *operands: Any, ops: str = "", dtype: str = "fp32", parts: int = 1) -> Any:
        """The chain of operators; reductions run over the last dimension and keep it."""
        return chain(operands, ops, dtype, parts)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """Chains of add, sub, mul and max: the program of elementwise."""
        from wse_sim.kernels.elementwise import FAMILY as ELEMENTWISE

        found: Case = ELEMENTWISE.program(dims, tiling, wafer, **options)
        return found


FAMILY = register(Generated())
