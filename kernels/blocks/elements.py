"""Chains of elementwise operators on the elements of a core: their values, their rates, and operators fused
to a product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.probes import pointwise_probe
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, add_rate, max_rate, mov_rate
from wse_sim.kernels.contract.family import Array, Attrs, Cost, Probe, Size, Tiling
from wse_sim.kernels.contract.parameters import ProductAttributes

ALIASES = {"maximum": "max", "minimum": "min", "amax": "max", "amin": "min"}


# Operators of the graph that are several vector operators.
EXPANDED = {"mse_loss": ("sub", "square")}


REDUCED = {"sum": 0, "mean": 0, "amax": 2, "amin": 3}


def chain(operands: tuple[Any, ...], ops: str, dtype: str, parts: int = 1) -> Array:
    """Apply a chain of operators in fp32 and round once.

    Raises
    ------
    KernelError
        If an operator is unknown or operands are missing.
    """
    rest = [core.rounded(x, dtype) for x in operands]
    if not rest:
        raise KernelError(f"chain '{ops}' has no operand; give at least one")
    value = rest.pop(0)
    for op in filter(None, (item.strip() for item in ops.split(","))):
        name = ALIASES.get(op, op)
        if op in REDUCED:
            value = core.row_reduce(value, REDUCED[op], parts)
            value = value / np.float32(np.shape(operands[0])[-1]) if op == "mean" else value
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
    """Return vector issue cycles and special elements per element of a chain, and its number of instructions.

    In the backward pass, a product passes a gradient to both operands, a special function is a product with
    its kept slope, and the gradient of a sum is copied to the elements of its row.
    """
    forward = phase is Phase.FORWARD
    ops = [part for op in ops for part in EXPANDED.get(op, (op,))]
    fraction = 1.0 if forward else wafer.backward_special_fraction
    special = fraction * sum(op in SPECIAL_FUNCTIONS for op in ops)
    times = {op: 2 if op == "mul" and not forward else 1 for op in ops}
    rates = {op: op_rate("copy" if op in {"sum", "mean"} and not forward else op, dtype, wafer) for op in ops}
    issue = sum(times[op] / rates[op] for op in ops if op not in SPECIAL_FUNCTIONS)
    return issue, special, sum(times[op] for op in ops)


def op_rate(op: str, dtype: str, wafer: Wafer) -> float:
    """Return the elements per cycle of a vector operator; operators other than products, selections and
    copies have the rate of sums."""
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
    if op in REDUCED:
        return 1.0  # one fp32 accumulator per row takes an element a cycle
    if op in {"copy", "cast", "fill", "to", "masked_fill"}:
        return mov_rate(dtype, wafer)
    return add_rate(dtype, wafer)


def fused_forward(attrs: Attrs, phase: Phase) -> str:
    """Return the operators fused to a product: only the forward pass has them; gradients have separate kernels."""
    return ProductAttributes.of(attrs).fused if phase is Phase.FORWARD else ""


def fused_cost(fused: str, n: Size, wafer: Wafer, dtype: str) -> Cost:
    """Return the cost of fused operators on the `n` outputs of a core: bias and residual adds, and one activation."""
    cost = Cost(compute=0.0 * n)
    for item in filter(None, (part.strip() for part in fused.split(","))):
        if item in SPECIAL_FUNCTIONS:
            cost = cost + Cost(special=n * wafer.special_element_cycles)
        else:
            cost = cost + Cost(compute=n / op_rate(item, dtype, wafer), startup=wafer.vector_start_cycles)
    return cost


AS_OPERATOR = {"bias": "add", "residual": "add", "scale": "mul"}


def fused_probes(fused: str, n: Size, wafer: Wafer, dtype: str) -> tuple[Probe, ...]:
    """Return one probe per fused operator: its program on the `n` outputs of a core."""
    probes, tiling = [], Tiling(1, 1, "streamed")
    for item in filter(None, (part.strip() for part in fused.split(","))):
        function = item in SPECIAL_FUNCTIONS or item == "relu"
        name = "activation" if function else "elementwise"
        attrs = {"function": item} if function else {"ops": AS_OPERATOR.get(item, item), "inputs": 2}
        cost = fused_cost(item, n, wafer, dtype)
        probes.append(pointwise_probe(f"fused {item}", name, n, tiling, cost, dtype=dtype, attrs=attrs))
    return tuple(probes)
