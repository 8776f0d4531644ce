"""Functions of `<math>` on known numbers, rounded as the machine rounds: f32 in, f32 out; f16 by way of f32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from wse_sim.csl import types as ty
from wse_sim.csl.values import round_f32, round_float


def _guard(fn: Callable[[float], float]) -> Callable[[float], float]:
    def call(x: float) -> float:
        try:
            return fn(x)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return call


def _log(x: float) -> float:
    return -math.inf if x == 0.0 else math.log(x)


def _inverse(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0.0 else 1.0 / x


def _rsqrt(x: float) -> float:
    return math.inf if x == 0.0 else 1.0 / math.sqrt(x)


def _whole(fn: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: x if math.isinf(x) or math.isnan(x) else math.copysign(float(fn(x)), x)


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sqrt": math.sqrt,
    "rsqrt": _rsqrt,
    "exp": math.exp,
    "log": _log,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)) if x > -700.0 else 0.0,
    "inv": _inverse,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _whole(round),
    "trunc": _whole(math.trunc),
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "exp2": lambda x: 2.0**x,
    "log2": lambda x: _log(x) if x == 0.0 else math.log2(x),
    "log10": lambda x: _log(x) if x == 0.0 else math.log10(x),
}


def evaluate(name: str, args: Sequence[float], t: ty.Type) -> float:
    """Value of a function for known arguments of float type `t`."""
    if name == "pow":
        try:
            value = math.pow(args[0], args[1])
        except ValueError:
            value = math.inf if args[0] == 0.0 else math.nan
        except OverflowError:
            value = math.inf
    else:
        value = _guard(FUNCTIONS[name])(args[0])
    return round_float(t, round_f32(value) if isinstance(t, ty.FloatType) else value)
