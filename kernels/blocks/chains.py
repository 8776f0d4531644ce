"""Chains of elementwise operators as vector instructions, forward and backward, on n elements per core.

forward    an operator replaces the value: add, sub, mul, max, min with a resident operand; relu, abs, neg,
           square, copy; a special function is scalar code of e cycles per element, a quotient the
           reciprocal of its operand (e) and a product
backward   from the last operator to the first, with what the forward pass kept: a special function is a
           product with its slope in scalar code of e / 4 per element, a product passes a gradient to
           both operands, a sum adds its gradient to that of its operand, a selection multiplies by a mask
           at the rate of maxima (assumed: the vector unit has no select)

e = special_element_cycles: what compiled models take; hand-written programs (softmax, norms) map the
library functions at their own cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, scalar
from wse_sim.fabric.format.classes import Travel
from wse_sim.fabric.format.program import Fn
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import EXPANDED
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, max_rate
from wse_sim.kernels.contract.family import Array, Case, Tiling

ALIASES = {"maximum": "max", "minimum": "min", "swish": "silu", "cast": "copy", "to": "copy", "bias": "add"}
ALIASES |= {"residual": "add", "subtract": "sub", "multiply": "mul", "divide": "div"}
BINARY = ("add", "sub", "mul", "max", "min", "div")
MAPPED = ("relu", "abs", "neg", "square", "copy")
# Special functions of which the fabric knows the values.
FUNCTIONS = (
    *("gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "exp", "log", "erf", "softplus", "sin", "cos"),
    *("sqrt", "rsqrt", "reciprocal"),
)


def ops_of(text: str) -> list[str]:
    """Return the operators of a comma-separated chain, with aliases replaced by the operators' names."""
    names = [part for op in text.split(",") for part in EXPANDED.get(op.strip(), (op.strip(),))]
    return [ALIASES.get(op, op) for op in names if op]


def check_chain(name: str, ops: Sequence[str]) -> None:
    """Raise an error for operators without a fabric program.

    Raises
    ------
    KernelError
        Naming the operator and those that have programs.
    """
    known = (*BINARY, *MAPPED, *FUNCTIONS)
    if unknown := [op for op in ops if op not in known]:
        raise KernelError(f"{name} '{unknown[0]}' has no fabric program; use {', '.join(known)}")


@dataclass
class Chain:
    """A program under construction: one class of cores, its buffers, its inputs and the expected values.

    All arrays are (rows, cols, n); `value` is the content of the running buffer, in the program's precision.
    """

    tiling: Tiling
    n: int
    wafer: Wafer
    dtype: str
    seed: int = 0
    inputs: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    expected: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.builder = new_builder(int(self.tiling.rows), int(self.tiling.cols), self.wafer)
        self.core = self.builder.core_class("core")
        self.rng = np.random.default_rng(self.seed)

    def whole(self, low: int = -4, high: int = 5) -> NDArray[np.float32]:
        """Return random small integers, which every precision represents exactly."""
        shape = (int(self.tiling.rows), int(self.tiling.cols), self.n)
        return self.rng.integers(low, high, shape).astype(np.float32)

    def buffer(self, name: str, values: NDArray[np.float32] | None = None, bank: int = 2) -> Buffer:
        """Declare a buffer of n elements, filled with `values`; operands are two banks away from the running
        value."""
        if values is not None:
            self.inputs[name] = values
        return self.builder.buffer(name, self.n, self.dtype, bank=bank)

    def rounded(self, values: Array) -> NDArray[np.float32]:
        """Round values to the precision of the program's buffers."""
        return core.rounded(values, self.dtype)

    def period(self, cycles: float) -> int:
        """Return the period field of an instruction that takes `cycles` per element, in 1/1000 cycle."""
        return round(1000 * cycles)

    def case(self, *, placed: bool = False) -> Case:
        """Return the finished program; `placed`: core classes are already assigned to cells."""
        if not placed:
            self.builder.place(self.core, None)
        tolerance = 2e-5 if self.dtype == "fp32" else 4e-3
        largest = max(float(np.nanmax(np.abs(v), initial=1.0)) for v in self.expected.values())
        return Case(
            self.builder.build(), self.builder.config, self.inputs, self.expected, tolerance * largest
        )


def chain_program(
    name: str,
    ops: Sequence[str],
    tiling: Tiling,
    n: int,
    wafer: Wafer,
    *,
    dtype: str = "fp32",
    phase: Phase = Phase.FORWARD,
    seed: int = 0,
    **_: object,
) -> Case:
    """Return the program of a chain of operators in a phase; `name` is the kernel's, for messages."""
    check_chain(name, ops)
    c = Chain(tiling, n, wafer, dtype, seed)
    if phase is Phase.FORWARD:
        x, value = forward(c, ops)
    else:
        x, value = backward(c, ops)
    c.expected[x.name] = value
    return c.case()


def forward(c: Chain, ops: Sequence[str]) -> tuple[Any, Any]:
    """Emit the operators in order; return the buffer of the result, and its expected values."""
    # Functions are tried where they bend; of a logarithm or root only positive values have one.
    positive = bool({"log", "sqrt", "rsqrt", "reciprocal"} & set(ops))
    value, k = c.whole(1 if positive else -4), c.core
    x = c.buffer("v0", value, bank=0)
    for i, op in enumerate(ops, 1):
        if op in BINARY:
            operand = c.whole(1, 5) if op == "div" else c.whole()
            other = c.buffer(f"v{i}", operand)
            if op == "div":
                _quotient(c, x, other)
            else:
                getattr(k, op)(x.dsd(), x.dsd(), other.dsd(), dtype=c.dtype)
            value = core.binary(op, value, operand, c.dtype)
        else:
            emit_function(c, op, x)
            value = core.unary(op, value, c.dtype)
    return x, value


def emit_function(c: Chain, op: str, x: Buffer) -> None:
    """Apply a function to every element of x, in place."""
    k, v = c.core, x.dsd()
    how: Travel = {"dtype": c.dtype}
    if op in SPECIAL_FUNCTIONS:
        k.map(Fn[op.upper()], v, v, period=c.period(c.wafer.special_element_cycles), **how)
    elif op == "relu":
        k.max(v, v, scalar(0.0), **how)
    elif op == "square":
        k.mul(v, v, v, **how)
    elif op == "copy":
        k.mov(v, v, **how)
    else:
        fn = {"abs": Fn.ABS, "neg": Fn.NEGATE}[op]
        k.map(fn, v, v, period=c.period(1.0 / max_rate(c.dtype, c.wafer)), **how)


def _quotient(c: Chain, x: Buffer, other: Buffer) -> None:
    """Compute x / other: the reciprocal in scalar code, then a product with loaded descriptors."""
    element = c.period(c.wafer.special_element_cycles)
    c.core.map(Fn.RECIPROCAL, other.dsd(), other.dsd(), dtype=c.dtype, period=element)
    c.core.mul(x.dsd(), x.dsd(), other.dsd(), dtype=c.dtype, start="loaded")


def backward(c: Chain, ops: Sequence[str], given: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """Emit the gradients, last operator first; return the buffer of the first operand's gradient and its
    values.

    `given`: buffer and values of the result's gradient, unless that is an input of the program.
    """
    k = c.core
    if given is None:
        gradient = c.whole(-2, 3)
        given = c.buffer("g", gradient, bank=0), gradient
    g, gradient = given
    for i, op in reversed(list(enumerate(ops, 1))):
        if op in {"add", "sub"}:
            others = c.whole()
            total = c.buffer(f"d{i}", others)
            getattr(k, op)(total.dsd(), total.dsd(), g.dsd(), dtype=c.dtype)
            c.expected[f"d{i}"] = core.binary(op, others, gradient, c.dtype)
        elif op == "mul":
            operand, value = c.whole(-2, 3), c.whole(-2, 3)
            factor, kept = c.buffer(f"v{i}", operand), c.buffer(f"x{i}", value)
            k.mul(kept.dsd(), kept.dsd(), g.dsd(), dtype=c.dtype)
            k.mul(g.dsd(), g.dsd(), factor.dsd(), dtype=c.dtype)
            c.expected[f"x{i}"] = core.binary("mul", value, gradient, c.dtype)
            gradient = core.binary("mul", gradient, operand, c.dtype)
        elif op == "copy":
            k.mov(g.dsd(), g.dsd(), dtype=c.dtype)
        else:
            slope = mask_of(c) if op in {"max", "min", "relu", "abs"} else slope_of(c, op)
            kept = c.buffer(f"s{i}", slope)
            k.mul(g.dsd(), g.dsd(), kept.dsd(), dtype=c.dtype, period=_product_period(c, op))
            gradient = core.binary("mul", gradient, slope, c.dtype)
    return g, gradient


def _product_period(c: Chain, op: str) -> int:
    """Return the period of a product with a slope (scalar code) or a mask, in 1/1000 cycle; 0: the vector
    rate."""
    if op in SPECIAL_FUNCTIONS:
        return c.period(c.wafer.backward_special_fraction * c.wafer.special_element_cycles)
    return c.period(1.0 / max_rate(c.dtype, c.wafer)) if op in {"max", "min", "relu", "abs", "neg"} else 0


def mask_of(c: Chain) -> NDArray[np.float32]:
    """Return a random mask of ones and zeros."""
    return c.whole(0, 2)


def slope_of(c: Chain, op: str) -> NDArray[np.float32]:
    """Return slopes as the forward pass keeps them, taken at integers."""
    x = c.whole(1, 5)
    known = op in {"gelu", "gelu_tanh", "silu", "tanh", "sigmoid"}
    slope = core.unary_gradient(op, x, np.ones_like(x)) if known else c.whole(-2, 3)
    return c.rounded(slope)


def slope_program(
    function: str,
    tiling: Tiling,
    n: int,
    wafer: Wafer,
    *,
    dtype: str = "fp32",
    seed: int = 0,
    **_: object,
) -> Case:
    """Return the backward program of one function: its slope at the kept input x times the gradient.

    A selection (relu) first computes its mask; scalar code includes the slope of a special function.
    """
    check_chain("activation", [function])
    c = Chain(tiling, n, wafer, dtype, seed)
    x, gradient = c.whole(), c.whole(-2, 3)
    special = function in SPECIAL_FUNCTIONS
    slope = c.rounded(core.unary_gradient(function, x, np.ones_like(x)))
    kept, g = c.buffer("x", slope if special else x), c.buffer("g", gradient, bank=0)
    if not special:
        c.core.map(Fn.STEP, kept.dsd(), kept.dsd(), dtype=dtype, period=c.period(1 / max_rate(dtype, wafer)))
    c.core.mul(g.dsd(), g.dsd(), kept.dsd(), dtype=dtype, period=_product_period(c, function))
    c.expected["g"] = core.binary("mul", gradient, slope, dtype)
    return c.case()
