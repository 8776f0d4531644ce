"""Activation function, element by element.

Mapping: elements spread over all cores of the rectangle, n = ceil(elements / cores).

    relu and other selections     T = n / max + o            (vector maximum)
    gelu, silu, tanh, ...         T = n e + o                (scalar code per element)
    backward                      relu: two instructions; others e / 4: the forward value is kept

Source: calibration (special elements); vector rates from the SDK documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wse_sim.kernels.base import Cost, Family, Footprint, Tiling, register
from wse_sim.kernels.equations import (
    BACKWARD_SPECIAL_SHARE,
    SPECIAL_FUNCTIONS,
    check_tiling,
    max_rate,
    pointwise,
    pointwise_footprint,
)

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer


class Activation(Family):
    """The family of activation functions."""

    name = "activation"
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
        return pointwise_footprint(dims["elements"], tiling, dtype)

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
        """Special elements, or vector maxima for relu."""
        check_tiling(self.name, tiling, self.mappings)
        backward = phase is not Phase.FORWARD
        elements, inputs = dims["elements"], 2 if backward else 1
        function = str((attrs or {}).get("function", "relu"))
        if function in SPECIAL_FUNCTIONS:
            share = BACKWARD_SPECIAL_SHARE if backward else 1.0
            return pointwise(elements, tiling, wafer, dtype=dtype, special=share, inputs=inputs)
        issue = inputs / max_rate(dtype, wafer)
        return pointwise(
            elements, tiling, wafer, dtype=dtype, issue=issue, instructions=inputs, inputs=inputs
        )

    def compute(self, x: Any, *, function: str = "relu", dtype: str = "fp32") -> Any:
        """The function of every element."""
        from wse_sim.kernels import numerics as core

        if function not in core.UNARY:
            raise KernelError(f"activation '{function}' has no numerics; use one of {', '.join(core.UNARY)}")
        return core.unary(function, core.rounded(x, dtype), dtype)

    def gradient(self, x: Any, g: Any, *, function: str = "relu", dtype: str = "fp32") -> Any:
        """Gradient of the input from the input x and the gradient g of the result."""
        from wse_sim.kernels import numerics as core

        return core.unary_gradient(function, core.rounded(x, dtype), g, dtype)


FAMILY = register(Activation())
