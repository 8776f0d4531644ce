"""Elementwise arithmetic: `ops` ("add", "mul,add") over `inputs` operands.

Mapping: elements spread over all cores of the rectangle, n = ceil(elements / cores).

    T = sum over ops of (o + n / rate)              special functions (exp, div, ...): n e
    backward: a product takes two instructions (a gradient for each operand); special functions n e / 4

A pipelined region also waits for its operands: max(0, words over the west edge - busy).
Source: vector rates of the SDK documentation; o from the published reduce and stencil runs.
Program: :mod:`wse_sim.kernels.parts.chains`.  Band of cost against program: 1 % from 100 elements per core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Corner, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import (
    BACKWARD_SPECIAL_SHARE,
    SPECIAL_FUNCTIONS,
    add_rate,
    check_tiling,
    max_rate,
    mov_rate,
    per_core,
    pointwise,
    pointwise_footprint,
)
from wse_sim.kernels.parts.corners import elements_corner, pointwise_corner


class Elementwise(Family):
    """The family of elementwise arithmetic."""

    name = "elementwise"
    dims = ("elements",)
    mappings = ("stationary", "streamed")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        _, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        inputs = int(attrs.get("inputs", 2))
        return pointwise_footprint(dims["elements"], tiling, dtype, buffers=inputs + 1)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """One vector instruction per operator."""
        phase, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        ops = [op for op in str(attrs.get("ops", "add")).split(",") if op]
        issue, special, instructions = chain_work(ops, phase, dtype, wafer)
        return pointwise(
            dims["elements"],
            tiling,
            wafer,
            dtype=dtype,
            issue=issue,
            special=special,
            instructions=max(1, instructions),
            inputs=int(attrs.get("inputs", 2)),
        )

    def compute(self, *operands: Any, ops: str = "add", dtype: str = "fp32") -> Any:
        """Apply `ops` in turn: a binary operator takes the next operand, a function the value so far."""
        return chain(operands, ops, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """The operators one after another on every core; backward from the last to the first."""
        from wse_sim.kernels.parts.chains import chain_program, ops_of

        ops = ops_of(str((options.get("attrs") or {}).get("ops", "add")))
        return chain_program(
            self.name, ops, tiling, int(per_core(dims["elements"], tiling)), wafer, **options
        )

    def corners(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Corner, ...]:
        """The elements of one core."""
        return elements_corner(self, dims, tiling, wafer, how)


ALIASES = {"maximum": "max", "minimum": "min", "amax": "max", "amin": "min"}
# Operators of the graph that are several vector operators.
EXPANDED = {"mse_loss": ("sub", "square")}
REDUCED = {"sum": 0, "mean": 0, "amax": 2, "amin": 3}


def chain(operands: tuple[Any, ...], ops: str, dtype: str, parts: int = 1) -> Any:
    """Apply a chain of operators in fp32 and round once; `rotary` takes cosines and sines.

    Raises
    ------
    KernelError
        If an operator is unknown or operands are missing.
    """
    from wse_sim.kernels import numerics as core

    rest = [core.rounded(x, dtype) for x in operands]
    if not rest:
        raise KernelError(f"chain '{ops}' has no operand; give at least one")
    value = rest.pop(0)
    for op in filter(None, (item.strip() for item in ops.split(","))):
        name = ALIASES.get(op, op)
        if op in REDUCED:
            value = core.row_reduce(value, REDUCED[op], parts)
            value = value / np.float32(np.shape(operands[0])[-1]) if op == "mean" else value
        elif op == "rotary":
            cosine, sine, rest = rest[0], rest[1], rest[2:]
            half = value.shape[-1] // 2
            turned = np.concatenate([-value[..., half:], value[..., :half]], axis=-1)
            value = core.binary("add", core.binary("mul", value, cosine), core.binary("mul", turned, sine))
        elif name in core.UNARY:
            value = core.unary(name, value)
        elif name in core.BINARY:
            if not rest:
                raise KernelError(f"operator '{op}' of chain '{ops}' lacks an operand; give one more")
            value = core.binary(name, value, rest.pop(0))
        else:
            raise KernelError(
                f"operator '{op}' has no numerics; use {', '.join((*core.UNARY, *core.BINARY, *REDUCED))}"
            )
    return core.rounded(value, dtype)


def chain_work(ops: Sequence[str], phase: Phase, dtype: str, wafer: Wafer) -> tuple[float, float, int]:
    """(vector issue cycles, special elements) per element of a chain, and its instructions.

    Backward a product passes a gradient to both operands, special functions are products with kept slopes, and
    the gradient of a sum is copied to the elements of its row.
    """
    forward = phase is Phase.FORWARD
    ops = [part for op in ops for part in EXPANDED.get(op, (op,))]
    share = 1.0 if forward else BACKWARD_SPECIAL_SHARE
    special = share * sum(op in SPECIAL_FUNCTIONS for op in ops)
    times = {op: 2 if op == "mul" and not forward else 1 for op in ops}
    rates = {op: op_rate("copy" if op in {"sum", "mean"} and not forward else op, dtype, wafer) for op in ops}
    issue = sum(times[op] / rates[op] for op in ops if op not in SPECIAL_FUNCTIONS)
    return issue, special, sum(times[op] for op in ops)


def op_rate(op: str, dtype: str, wafer: Wafer) -> float:
    """Elements per cycle of a vector operator: products, selections, copies, else sums."""
    if op in {"mul", "square", "scale", "fma", "addcmul"}:
        return wafer.mul_fp32_per_cycle if dtype == "fp32" else wafer.fma_fp16_per_cycle
    if op == "rotary":
        # x cos + rotated x sin: a product and a multiply-accumulate
        return (wafer.mul_fp32_per_cycle if dtype == "fp32" else wafer.fma_fp16_per_cycle) / 2
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
    if op in REDUCED:
        return 1.0  # one fp32 accumulator per row takes an element a cycle
    if op in {"copy", "cast", "fill", "to", "masked_fill"}:
        return mov_rate(dtype, wafer)
    return add_rate(dtype, wafer)


def fused_cost(fused: str, outputs: Any, tiling: Tiling, wafer: Wafer, dtype: str) -> Cost:
    """Work on each output element before it leaves: bias and residual adds, one activation."""
    n = per_core(outputs, tiling)
    cost = Cost(compute=0.0 * n)
    for item in filter(None, (part.strip() for part in fused.split(","))):
        if item in SPECIAL_FUNCTIONS:
            cost = cost + Cost(special=n * wafer.special_element_cycles)
        else:
            cost = cost + Cost(compute=n / op_rate(item, dtype, wafer), startup=wafer.vector_start_cycles)
    return cost


ADDITIONS = frozenset({"bias", "residual"})


def fused_corners(fused: str, outputs: Any, tiling: Tiling, wafer: Wafer, dtype: str) -> tuple[Corner, ...]:
    """One corner per fused item: its program on the outputs of a core."""
    corners = []
    for item in filter(None, (part.strip() for part in fused.split(","))):
        function = item in SPECIAL_FUNCTIONS or item == "relu"
        name = "activation" if function else "elementwise"
        attrs = {"function": item} if function else {"ops": "add" if item in ADDITIONS else item, "inputs": 2}
        cost = fused_cost(item, outputs, tiling, wafer, dtype)
        corners.append(
            pointwise_corner(f"fused {item}", name, outputs, tiling, cost, dtype=dtype, attrs=attrs)
        )
    return tuple(corners)


FAMILY = register(Elementwise())
