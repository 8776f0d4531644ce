"""Functions of `<math>` for known numbers, rounded as on the machine: f32 to f32; f16 is computed in f32."""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.csl import types as ty
from wse_sim.csl.values import round_float
from wse_sim.fabric.vm.semantics import math_function, power, round_f32


def evaluate(name: str, args: Sequence[float], t: ty.Type) -> float:
    """Evaluate a function for known arguments of the float type `t`."""
    value = power(args[0], args[1]) if name == "pow" else math_function(name, args[0])
    return round_float(t, round_f32(value) if isinstance(t, ty.FloatType) else value)
