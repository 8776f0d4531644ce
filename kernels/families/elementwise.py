"""Elementwise arithmetic: `ops` ("add", "mul,add") over `inputs` operands.

Mapping: elements spread over all cores of the rectangle, n = ceil(elements / cores).

    T = sum over ops of (o + n / rate)              special functions (exp, div, ...): n e
    backward: a product takes two instructions (a gradient for each operand); special functions n e / 4

A pipelined region also waits for its operands: max(0, words over the west edge - busy).
Source: vector rates of the SDK documentation; o from the published reduce and stencil runs.
Program: :mod:`wse_sim.kernels.blocks.chains`.  Band of cost against program: 1 % from 100 elements per core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnElements
from wse_sim.kernels.blocks.chains import chain_program, ops_of
from wse_sim.kernels.blocks.elements import chain, chain_work
from wse_sim.kernels.blocks.training import LINEAR, pass_on, pointwise_gradient, reduce_to
from wse_sim.kernels.contract.equations import per_core, pointwise
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    How,
    Kept,
    Link,
    ProgramOptions,
    Tiling,
)
from wse_sim.kernels.contract.parameters import WordAttributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape


@dataclass(frozen=True)
class ElementwiseAttributes(WordAttributes):
    """Attributes of elementwise arithmetic: comma-separated operators, number of operands."""

    ops: str = attribute("add", "operators, comma-separated, in order")
    inputs: int = attribute(2, "operands", at_least=1)
    between: bool = attribute(False, "cores between regions sum gradients on the route to the region")


class Elementwise(OnElements):
    """The family of elementwise arithmetic."""

    name = "elementwise"
    dims = sizes(elements="elements of the result")
    attributes = ElementwiseAttributes

    def link(self, attrs: Attrs = NONE) -> Link:
        """Return the operators; a scaling, or the sum with a tensor of equal size, can be fused to a
        product."""
        stated = ElementwiseAttributes.of(attrs)
        ops, operands = stated.ops, stated.inputs
        part = "scale" if ops in {"mul", "div"} and operands == 1 else "residual" if ops == "add" else ""
        return Link(ops, operands, part)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: one vector instruction per operator."""
        phase, dtype, attrs = self.asked(tiling, how)
        stated = ElementwiseAttributes.of(attrs)
        if stated.between:
            return Cost(compute=0.0 * per_core(dims["elements"], tiling))
        ops = [op for op in stated.ops.split(",") if op]
        issue, special, instructions = chain_work(ops, phase, dtype, wafer)
        return pointwise(
            dims["elements"],
            tiling,
            wafer,
            dtype=dtype,
            issue=issue,
            special=special,
            instructions=max(1, instructions),
            inputs=stated.inputs,
            bundles=stated.gradient_bundles if phase is Phase.INPUT_GRADIENT else stated.bundles,
        )

    def compute(self, *operands: Array, ops: str = "add", dtype: str = "fp32") -> Array:
        """Apply `ops` in order: a binary operator takes the next operand, a function the current value."""
        return chain(operands, ops, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program: the operators in order on every core; backward from the last to the first."""
        ops = ops_of(ElementwiseAttributes.of(options.get("attrs")).ops)
        return chain_program(
            self.name, ops, tiling, int(per_core(dims["elements"], tiling)), wafer, **options
        )

    def has_gradient(self, kernel: Kernel) -> bool:
        """Return False for comparisons and logic; a rounding has a zero gradient, which torch propagates like
        any other."""
        return ElementwiseAttributes.of(kernel.attrs).ops not in STEPS

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the operands, unless the kernel is a sum."""
        return Kept() if _is_linear(kernel) else Kept(kernel.inputs)

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Pass the gradient of a sum on to its operands; otherwise emit one pass."""
        if not _is_linear(kernel):
            pointwise_gradient(kernel, gradient, tape)
            return
        for tensor in tape.inputs(kernel):
            pass_on(kernel, tensor, gradient, tape)
        for parameter in tape.weights(kernel):
            reduce_to(kernel, parameter, gradient, tape)


# Operators whose results carry no gradient.
STEPS = frozenset(
    [
        *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not"),
        *("bitwise_not", "bitwise_and", "bitwise_or"),
    ]
)


def _is_linear(kernel: Kernel) -> bool:
    return all(op in LINEAR for op in ElementwiseAttributes.of(kernel.attrs).ops.split(","))


FAMILY = register(Elementwise())
