"""Activation function, element by element.

Mapping: elements spread over all cores of the rectangle, n = ceil(elements / cores).

    relu and other selections     T = n / max + o            (vector maximum)
    gelu, silu, tanh, ...         T = n e + o                (scalar code per element)
    backward                      relu: two instructions; others e / 4, because the forward value is kept

Source: calibration (special elements); vector rates from the SDK documentation.
Program: :mod:`wse_sim.kernels.blocks.chains`.  Band of cost against program: 1 % from 50 elements per core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from wse_sim.errors import KernelError
from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnElements
from wse_sim.kernels.blocks.chains import chain_program, slope_program
from wse_sim.kernels.blocks.training import RESULT_FUNCTIONS
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, max_rate, per_core, pointwise
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    Flow,
    How,
    Kept,
    Link,
    ProgramOptions,
    Tiling,
)
from wse_sim.kernels.contract.parameters import WordAttributes, attribute
from wse_sim.kernels.contract.registry import register


@dataclass(frozen=True)
class ActivationAttributes(WordAttributes):
    """Attributes of an activation."""

    function: str = attribute("relu", "function of every element")
    met: bool = attribute(
        False, "backward: gradients meet slopes as they arrive at the product before, whose price has it"
    )


class Activation(OnElements):
    """The family of activation functions."""

    name = "activation"
    attributes = ActivationAttributes

    def flow(self, dims: Dims, attrs: Mapping[str, object] = NONE) -> Flow:
        """Rows follow the producer; with whole words a core has its part of a sample at once, which waits
        for a special function."""
        stated = ActivationAttributes.of(attrs)
        is_long = stated.in_words and stated.function in SPECIAL_FUNCTIONS
        return Flow(rows=int(is_long), parallel=is_long)

    def link(self, attrs: Attrs = NONE) -> Link:
        """Return the function, which can be fused to a product."""
        function = ActivationAttributes.of(attrs).function
        return Link(function, part=function)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of special elements, or of vector maxima for relu."""
        phase, dtype, attrs = self.asked(tiling, how)
        backward = phase is not Phase.FORWARD
        if backward and ActivationAttributes.of(attrs).met:
            return Cost(compute=0.0 * per_core(dims["elements"], tiling))
        elements, inputs = dims["elements"], 2 if backward else 1
        stated = ActivationAttributes.of(attrs)
        function, bundles = stated.function, stated.gradient_bundles if backward else stated.bundles
        come = (
            inputs if bundles is None else 1
        )  # with whole words, slopes stay on the core that computed them
        if function in SPECIAL_FUNCTIONS:
            work: dict[str, Any] = {"special": wafer.backward_special_fraction if backward else 1.0}
        else:
            work = {"issue": inputs / max_rate(dtype, wafer), "instructions": inputs}
        return pointwise(elements, tiling, wafer, dtype=dtype, inputs=come, bundles=bundles, **work)

    def compute(self, x: Array, *, function: str = "relu", dtype: str = "fp32") -> Array:
        """Return the function of every element."""
        if function not in core.UNARY:
            raise KernelError(f"activation '{function}' has no numerics; use one of {', '.join(core.UNARY)}")
        return core.unary(function, core.rounded(x, dtype), dtype)

    def gradient(self, x: Array, g: Array, *, function: str = "relu", dtype: str = "fp32") -> Array:
        """Return the gradient of the input, from the input x and the gradient g of the result."""
        return core.unary_gradient(function, core.rounded(x, dtype), g, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of the function on every core; backward: the gradient times the slope at the
        kept input."""
        function = ActivationAttributes.of(options.get("attrs")).function
        n = int(per_core(dims["elements"], tiling))
        if options.get("phase", Phase.FORWARD) is Phase.FORWARD:
            return chain_program(self.name, [function], tiling, n, wafer, **options)
        return slope_program(function, tiling, n, wafer, **options)

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the result if the derivative follows from it, else the operand."""
        return Kept(
            kernel.outputs
            if ActivationAttributes.of(kernel.attrs).function in RESULT_FUNCTIONS
            else kernel.inputs
        )


FAMILY = register(Activation())
