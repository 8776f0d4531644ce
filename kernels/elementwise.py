"""Elementwise arithmetic: `ops` ("add", "mul,add") over `inputs` operands.

Mapping: elements spread over all cores of the rectangle, n = ceil(elements / cores).

    T = sum over ops of (o + ceil(n / rate))        special functions (exp, div, ...): n e

A pipelined region also waits for its operands: max(0, words over the west edge - busy).
Source: vector rates of the SDK documentation; o from the published reduce and stencil runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wse_sim.kernels.base import Cost, Family, Footprint, Tiling, register
from wse_sim.kernels.equations import (
    SPECIAL_FUNCTIONS,
    add_rate,
    check_tiling,
    max_rate,
    mov_rate,
    pointwise,
    pointwise_footprint,
)

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer


class Elementwise(Family):
    """The family of elementwise arithmetic."""

    name = "elementwise"
    dims = ("elements",)
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
        inputs = int((attrs or {}).get("inputs", 2))
        return pointwise_footprint(dims["elements"], tiling, dtype, buffers=inputs + 1)

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
        """One vector instruction per operator."""
        check_tiling(self.name, tiling, self.mappings)
        attrs = attrs or {}
        ops = [op for op in str(attrs.get("ops", "add")).split(",") if op]
        special = float(sum(op in SPECIAL_FUNCTIONS for op in ops))
        issue = sum(1.0 / op_rate(op, dtype, wafer) for op in ops if op not in SPECIAL_FUNCTIONS)
        return pointwise(
            dims["elements"],
            tiling,
            wafer,
            dtype=dtype,
            issue=issue,
            special=special,
            instructions=max(1, len(ops)),
            inputs=int(attrs.get("inputs", 2)),
        )


def op_rate(op: str, dtype: str, wafer: Wafer) -> float:
    """Elements per cycle of a vector operator: products, selections, copies, else sums."""
    if op in {"mul", "square", "scale", "fma", "addcmul"}:
        return wafer.mul_fp32_per_cycle if dtype == "fp32" else wafer.fma_fp16_per_cycle
    if op in {
        "max",
        "min",
        "maximum",
        "minimum",
        "relu",
        "clamp",
        "where",
        "abs",
        "neg",
        "gt",
        "lt",
        "eq",
        "ge",
        "le",
    }:
        return max_rate(dtype, wafer)
    if op in {"copy", "cast", "fill", "to", "masked_fill"}:
        return mov_rate(dtype, wafer)
    return add_rate(dtype, wafer)


FAMILY = register(Elementwise())
