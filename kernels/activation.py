"""Activation function, element by element.

Mapping: elements spread over all cores of the rectangle, n = ceil(elements / cores).

    relu and other selections     T = n / max + o            (vector maximum)
    gelu, silu, tanh, ...         T = n e + o                (scalar code per element)
    backward                      relu: two instructions; others e / 4: the forward value is kept

Source: calibration (special elements); vector rates from the SDK documentation.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Corner, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.corners import elements_corner
from wse_sim.kernels.equations import (
    BACKWARD_SPECIAL_SHARE,
    SPECIAL_FUNCTIONS,
    check_tiling,
    max_rate,
    per_core,
    pointwise,
    pointwise_footprint,
)


class Activation(Family):
    """The family of activation functions."""

    name = "activation"
    dims = ("elements",)
    mappings = ("stationary", "streamed")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        return pointwise_footprint(dims["elements"], tiling, dtype)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Special elements, or vector maxima for relu."""
        phase, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        backward = phase is not Phase.FORWARD
        elements, inputs = dims["elements"], 2 if backward else 1
        function = str(attrs.get("function", "relu"))
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

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """relu as a maximum with zero, gelu as a map of scalar code, on every core."""
        from math import erf

        from wse_sim.fabric.builder import scalar
        from wse_sim.fabric.program import Fn
        from wse_sim.kernels.lines import new_builder

        dtype = str(options.get("dtype", "fp32"))
        function = str((options.get("attrs") or {}).get("function", "relu"))
        rows, cols = int(tiling.rows), int(tiling.cols)
        n = int(per_core(dims["elements"], tiling))
        b = new_builder(rows, cols, wafer)
        k, x = b.core_class("core"), b.buffer("x", n, dtype)
        values = np.random.default_rng(int(options.get("seed", 0))).integers(-4, 5, (rows, cols, n))
        if function == "relu":
            k.max(x.dsd(), x.dsd(), scalar(0.0), dtype=dtype)
            wanted = np.maximum(values, 0)
        elif function == "gelu":
            k.map(Fn.GELU, x.dsd(), x.dsd(), dtype=dtype)
            wanted = values * 0.5 * (1.0 + np.vectorize(erf)(values / 2**0.5))
        else:
            raise KernelError(f"activation '{function}' has no fabric program; use relu or gelu")
        b.place(k, None)
        return Case(b.build(), b.config, {"x": values.astype(np.float32)}, {"x": wanted}, tolerance=2e-2)

    def corners(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Corner, ...]:
        """The elements of one core; forward only."""
        forward = asked(how).phase is Phase.FORWARD
        return elements_corner(self, dims, tiling, wafer, how) if forward else ()


FAMILY = register(Activation())
