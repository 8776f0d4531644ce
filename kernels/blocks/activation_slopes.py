"""Activations with their slopes: the outputs of a sample, and the factors of their gradients in the backward
pass.

Symbols: z the sum with bias and residual, y the output, s = dy / dz the slope; P the distribution of the normal, p its density::

    relu        y = max(z, 0)                       s = 1 where y > 0
    gelu        y = z P(z)                          s = P + z p,   P = (1 + erf(z / sqrt 2)) / 2,   p = exp(-z^2 / 2) / sqrt(2 pi)
    gelu_tanh   y = z h                             s = h + 2 z u' (h - h^2),   h = (1 + tanh u) / 2,   u = z q (1 + r z^2)
    silu        y = z g                             s = g + y - y g,   g = 1 / (1 + exp(-z))
    tanh        y = tanh z                          s = 1 - y^2
    sigmoid     y = 1 / (1 + exp(-z))               s = y - y^2
    square      y = z^2                             s = 2 z
    exp         y = exp z                           s = y
    abs         y = z s                             s = 1 where z > 0, else -1
    neg         y = -z                              s = -1

and of a maximum or minimum with a number c:  s = 1 where y > c, or where y < c;  with q = sqrt(2 / pi) and r = 0.044715.  Intermediate values are in fp32. A step takes an instruction start
plus n elements at the wafer's rate; elements take twice as long if both vectors that it reads are in the same
banks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, pi, sqrt

import numpy as np

from wse_sim.fabric.format.builder import scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Dtype, Fn
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Size

Step = tuple[str, ...]
"""Instruction, target and operands: z the value, s the derivative, a, b, c scratch buffers, or a number."""

ROOT, CUBE = sqrt(2 / pi), 0.044715
STEPS: dict[str, tuple[Step, ...]] = {
    "gelu": (
        ("mul", "a", "z", f"{sqrt(0.5)}"),
        ("mul", "b", "z", "-0.5"),
        ("mul", "b", "b", "z"),
        ("erf", "a", "a"),
        ("exp", "b", "b"),
        ("add", "a", "a", "1.0"),
        ("mul", "a", "a", "0.5"),
        ("mul", "b", "b", "z"),
        ("fmac", "s", "a", "b", f"{1 / sqrt(2 * pi)}"),
        ("mul", "z", "z", "a"),
    ),
    "gelu_tanh": (
        ("mul", "b", "z", "z"),
        ("mul", "a", "b", f"{ROOT * CUBE}"),
        ("add", "a", "a", f"{ROOT}"),
        ("mul", "a", "a", "z"),
        ("tanh", "a", "a"),
        ("mul", "a", "a", "0.5"),
        ("add", "a", "a", "0.5"),
        ("mul", "b", "b", f"{3 * ROOT * CUBE}"),
        ("add", "b", "b", f"{ROOT}"),
        ("mul", "b", "b", "z"),
        ("mul", "c", "a", "a"),
        ("sub", "c", "a", "c"),
        ("mul", "b", "b", "c"),
        ("fmac", "s", "a", "b", "2.0"),
        ("mul", "z", "z", "a"),
    ),
    "silu": (
        ("sigmoid", "a", "z"),
        ("mul", "b", "z", "a"),
        ("mul", "c", "a", "b"),
        ("sub", "c", "b", "c"),
        ("add", "s", "a", "c"),
        ("mov", "z", "b"),
    ),
    "tanh": (("tanh", "z", "z"), ("mul", "a", "z", "z"), ("sub", "s", "1.0", "a")),
    "sigmoid": (("sigmoid", "z", "z"), ("mul", "a", "z", "z"), ("sub", "s", "z", "a")),
    "square": (("mul", "s", "z", "2.0"), ("mul", "z", "z", "z")),
    "exp": (("exp", "z", "z"), ("mov", "s", "z")),
    "abs": (("step", "s", "z"), ("mul", "s", "s", "2.0"), ("add", "s", "s", "-1.0"), ("mul", "z", "z", "s")),
    "neg": (("mul", "z", "z", "-1.0"), ("mov", "s", "-1.0")),
}
ACTIVATIONS = ("relu", *STEPS)
BOUNDS = ("max", "min")
"""Operators with a number that pass the gradient where the number does not take the place of the value."""
KEPT = ("add", "sub", "mul", *BOUNDS, *ACTIVATIONS)
"""Operators whose cycles in training :func:`cycles_of_kept` gives."""
BETWEEN = "abc"
BANKS = {"z": 0, "s": 2, "a": 2, "b": 0, "c": 0}


@dataclass(frozen=True)
class Slopes:
    """Value and slope of one activation, as instructions on a core."""

    activation: str
    wafer: Wafer

    @property
    def steps(self) -> tuple[Step, ...]:
        """The fp32 instructions; empty for ReLU."""
        return STEPS.get(self.activation, ())

    @property
    def scratch(self) -> tuple[int, ...]:
        """Banks of the fp32 scratch buffers."""
        used = {step[1] for step in self.steps}
        return tuple(BANKS[name] for name in BETWEEN if name in used)

    def emit(
        self,
        core: CoreClass,
        value: Operand,
        slope: Operand,
        scratch: Sequence[Operand],
        *,
        period: int = 0,
    ) -> None:
        """Convert `value` from z to y, and write the derivative.

        `period` is the time per element of the first function in thousandths of a cycle, overriding the
        wafer's rate.
        """
        if self.activation == "relu":
            core.max(value, value, scalar(0.0), dtype="fp16")
            period = round(1000 / self.wafer.max_fp16_per_cycle)
            core.map(Fn.STEP, slope, value, dtype="fp16", period=period)
            return
        held = {"z": value, "s": slope} | dict(zip(BETWEEN, scratch, strict=False))
        for op, *names in self.steps:
            operands = [held[name] if name in held else scalar(float(name)) for name in names]
            if op.upper() in Fn.__members__:
                core.map(Fn[op.upper()], *operands, period=period)
                period = 0
            else:
                getattr(core, op)(*operands)

    def cycles(self, size: Size) -> Size:
        """Return the issue cycles of :meth:`emit` for `size` elements."""
        o = ceil(self.wafer.vector_start_cycles)
        if self.activation == "relu":
            return 2 * (o + np.ceil(size / self.wafer.max_fp16_per_cycle))
        config = FabricConfig.from_wafer(self.wafer)
        return sum(o + np.ceil(size * _milli(step, config) / 1000) for step in self.steps)


def emit_bound(
    core: CoreClass, op: str, vectors: tuple[Operand, Operand, Operand], number: float, wafer: Wafer
) -> None:
    """Write the maximum or minimum (`op`) of a number and a value, and its slope: `vectors` are the result, the value and the
    slope in fp16. The number is rounded like the result, so that a value on the bound has no slope."""
    number = float(np.float16(number))
    to, value, slope = vectors
    getattr(core, op)(to, value, scalar(number), dtype="fp16")
    beyond = (to, scalar(number)) if op == "max" else (scalar(number), to)
    core.sub(slope, *beyond, dtype="fp16")
    core.map(Fn.STEP, slope, slope, dtype="fp16", period=round(1000 / wafer.max_fp16_per_cycle))


def cycles_of_kept(
    ops: Sequence[str], phase: Phase, size: Size, wafer: Wafer, numbers: Collection[int] = ()
) -> Size:
    """Return the cycles of a chain of sums, products and activations on `size` fp16 elements of a core, in
    training.

    In the forward pass an activation, or a maximum or minimum with a number, also computes its slope. In the backward pass its
    gradient is a product
    with the slope, a product of two operands takes one product for each operand's gradient, and the gradient
    of a sum is copied to the places of the value and of the operand (negated for a difference). A number (`numbers` has the
    positions of the operators that take one) has no gradient, and that of a sum with one stays where it is.
    """
    o = ceil(wafer.vector_start_cycles)
    copy, product = (
        o + np.ceil(size / rate) for rate in (wafer.mov_fp16_per_cycle, wafer.fma_fp16_per_cycle)
    )
    total = 0.0 * product
    bound = 3 * o + 2 * np.ceil(size / wafer.max_fp16_per_cycle) + np.ceil(size / wafer.add_fp16_per_cycle)
    for place, op in enumerate(ops):
        if place in numbers and op not in BOUNDS and phase is not Phase.FORWARD:
            total = total + product * (op == "mul")
        elif op in BOUNDS:
            total = total + (bound if phase is Phase.FORWARD else product)
        elif op in ACTIVATIONS:
            is_forward = phase is Phase.FORWARD
            total = total + (Slopes(op, wafer).cycles(size) if is_forward else product)
        elif op == "mul":
            total = total + (product if phase is Phase.FORWARD else 2 * product)
        elif phase is Phase.FORWARD:
            total = total + o + np.ceil(size / wafer.add_fp16_per_cycle)
        else:
            total = total + copy + (product if op == "sub" else copy)
    return total


def _milli(step: Step, config: FabricConfig) -> int:
    """Return the time per element of one step, in thousandths of a cycle."""
    op, _, *names = step
    if op.upper() in Fn.__members__:
        return config.fn_milli[Fn[op.upper()]]
    read = {name for name in names if name in BANKS}
    added = (
        config.add_memory_milli if len([name for name in names if name in BANKS]) > 1 else config.add_milli
    )
    rates = {
        "mov": config.mov_milli,
        "add": added,
        "sub": added,
        "mul": config.mul_milli,
        "fmac": config.fma_milli,
    }
    same = len(read) > 1 and len({BANKS[name] for name in read}) == 1
    return rates[op][Dtype.FP32] * (config.conflict_milli if same else 1000) // 1000
