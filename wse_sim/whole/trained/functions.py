"""Functions with their slopes, as short lists of vector instructions in fp16.

Symbols: x the operand, y the function, s its slope, t and u scratch; k = sqrt(2 / pi)::

    relu        y = max(x, 0)                      s = 1 where y > 0
    tanh        y                                  s = 1 - y y
    sigmoid     y                                  s = y - y y
    silu        y = x sigmoid(x)                   s = sigmoid(x) + y - y sigmoid(x)
    gelu        t = (1 + erf(x / sqrt 2)) / 2      y = x t,            s = t + x exp(-x x / 2) / sqrt(2 pi)
    gelu_tanh   y = tanh(k (x + 0.044715 x^3))     s = (1 + y) / 2 + x (1 - y y) k (1 + 0.134145 x^2) / 2, then y = x (1 + y) / 2

So each takes one special function of the price of compiled models, whose slope is vector work; gelu takes an exponential
of the library besides.  Vectors that an instruction reads lie in different banks: x, y and u in one, s and t in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, pi, sqrt

from wse_sim.fabric.format.builder import Buffer, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.hardware import Wafer
from wse_sim.whole.trained.rows import Slots

K, CUBE = sqrt(2 / pi), 0.044715
Step = tuple[str | float, ...]
"""Operator, result, operands: names of buffers or one number."""
MOST_CUBED = 8.0
"""Beyond, tanh is 1 in fp16; cubes of larger numbers leave its range."""

FUNCTIONS: dict[str, tuple[Step, ...]] = {
    "relu": (("max", "y", "x", 0.0), ("step", "s", "y")),
    "tanh": (("tanh", "y", "x"), ("mul", "s", "y", "y"), ("sub", "s", 1.0, "s")),
    "sigmoid": (("sigmoid", "y", "x"), ("mul", "s", "y", "y"), ("sub", "s", "y", "s")),
    "silu": (
        ("sigmoid", "s", "x"),
        ("mul", "y", "x", "s"),
        ("mul", "t", "y", "s"),
        ("sub", "u", "y", "t"),
        ("add", "s", "s", "u"),
    ),
    "gelu": (
        ("mul", "t", "x", sqrt(0.5)),
        ("erf", "t", "t"),
        ("mul", "t", "t", 0.5),
        ("add", "t", "t", 0.5),
        ("mul", "y", "x", "t"),
        ("mul", "s", "x", "x"),
        ("mul", "s", "s", -0.5),
        ("exp", "s", "s"),
        ("mul", "s", "s", 1 / sqrt(2 * pi)),
        ("mul", "u", "s", "x"),
        ("add", "s", "u", "t"),
    ),
    "gelu_tanh": (
        ("max", "u", "x", -MOST_CUBED),
        ("min", "u", "u", MOST_CUBED),
        ("mul", "s", "u", "u"),
        ("mul", "s", "s", K * CUBE),
        ("add", "s", "s", K),
        ("mul", "y", "u", "s"),
        ("tanh", "y", "y"),
        ("mul", "s", "s", 3.0),
        ("add", "s", "s", -2 * K),
        ("mul", "u", "u", "s"),
        ("mul", "s", "y", "y"),
        ("sub", "s", 1.0, "s"),
        ("mul", "u", "u", "s"),
        ("mul", "u", "u", 0.5),
        ("mul", "t", "y", 0.5),
        ("add", "t", "t", 0.5),
        ("add", "s", "u", "t"),
        ("mul", "y", "x", "t"),
    ),
}
LIBRARY = "exp"  # mapped at its own price
MAPPED = ("tanh", "sigmoid", "erf", "exp", "step")


def emit_function(
    core: CoreClass, name: str, buffers: Mapping[str, Buffer | Slots], count: int, wafer: Wafer
) -> None:
    """A function of `count` elements and its slope; buffers are those of the symbols."""

    def operand(of: str | float) -> Operand:
        return buffers[of].dsd(0, count) if isinstance(of, str) else scalar(of)

    periods = {
        "step": round(1000 / wafer.max_fp16_per_cycle),
        **dict.fromkeys(("tanh", "sigmoid", "erf"), round(1000 * wafer.special_element_cycles)),
    }
    for op, *rest in FUNCTIONS[name]:
        operands = [operand(of) for of in rest]
        if op == LIBRARY:
            core.map(Fn.EXP, *operands, dtype="fp16")
        elif op in MAPPED:
            core.map(Fn[str(op).upper()], *operands, dtype="fp16", period=periods[str(op)])
        else:
            getattr(core, str(op))(*operands, dtype="fp16")


def function_cycles(name: str, count: int, wafer: Wafer) -> float:
    """Cycles that :func:`emit_function` issues."""
    rates = {
        **dict.fromkeys(("add", "sub"), wafer.add_fp16_per_cycle),
        "mul": wafer.fma_fp16_per_cycle,
        **dict.fromkeys(("max", "min", "step"), wafer.max_fp16_per_cycle),
        "exp": 1 / wafer.exp_cycles,
        **dict.fromkeys(("tanh", "sigmoid", "erf"), 1 / wafer.special_element_cycles),
    }
    start = ceil(wafer.vector_start_cycles)
    return float(sum(start + ceil(count / rates[str(op)] - 1e-9) for op, *_ in FUNCTIONS[name]))
