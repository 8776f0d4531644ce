"""One vector instruction over `elements` elements in the memory of one core.

Operators: copy (mov), add, mul, fma (d = d + a b), fmac (d = d + a s), max.

    T = o_loaded + ceil(kappa n / rate)          o_loaded = vector_start_loaded_cycles

kappa = bank_conflict_factor when two operands that are read are in colliding banks (option `bank_conflict`),
else 1.  Descriptors are already loaded; o_loaded includes time stamps. An fp32 product of vectors without
bank placement runs at plain_fma_fp32_per_cycle, because on WSE-3 their reads conflict. Source: published
fmuls runs, 5,130 and 10,254 cycles for 5,124 elements.  Band: exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import scalar
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract.equations import add_rate, bytes_of, ceil_rate, max_rate, mov_rate
from wse_sim.kernels.contract.family import (
    Attrs,
    Case,
    Cost,
    Dims,
    Family,
    Footprint,
    How,
    ProgramOptions,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register

OPERATORS = ("copy", "add", "mul", "fma", "fmac", "max")


@dataclass(frozen=True)
class VectorOpAttributes(Attributes):
    """Attributes of one vector instruction."""

    op: str = attribute("fmac", "operator", choices=OPERATORS)
    bank_conflict: bool = attribute(False, "operands are in colliding banks")


class VectorOp(Family):
    """The family of single vector instructions."""

    name = "vector_op"
    dims = sizes(elements="elements")
    mappings = ("grid",)
    attributes = VectorOpAttributes

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of two operands and code."""
        dtype = asked(how, dtype="fp32").dtype
        return Footprint(
            activations_bytes=2.0 * dims["elements"] * bytes_of(dtype), code_bytes=wafer.kernel_code_bytes
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: start and issue cycles."""
        _, dtype, attrs = self.asked(tiling, how, "fp32")
        op = _operator(tiling, attrs)
        rate = rate_of(op, dtype, wafer)
        if VectorOpAttributes.of(tiling.options, attrs).bank_conflict and op != "copy":
            rate = rate / wafer.bank_conflict_factor
        elif collides_unplaced(op, dtype, wafer):
            rate = wafer.plain_fma_fp32_per_cycle
        return Cost(
            compute=ceil_rate(dims["elements"], rate),
            startup=wafer.vector_start_loaded_cycles,
        )

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program for one core; operand b is in the banks of a, or four banks away."""
        _, dtype, attrs = asked(options, "fp32")
        n, op = int(dims["elements"]), _operator(tiling, attrs)
        conflict = VectorOpAttributes.of(tiling.options, attrs).bank_conflict
        conflict = conflict or collides_unplaced(op, dtype, wafer)
        b = new_builder(1, 1, wafer)
        x = b.buffer("x", n, dtype, bank=0)
        y = b.buffer("y", n, dtype, bank=0 if conflict else 2)
        k = b.core_class("core")
        u, v = (np.random.default_rng([int(options.get("seed", 0)), i]).integers(-8, 9, n) for i in (0, 1))
        want = {
            "copy": v,
            "add": u + v,
            "mul": u * v,
            "fma": u + u * v,
            "fmac": u + 2 * v,
            "max": np.maximum(u, v),
        }
        a, c = x.dsd(), y.dsd()
        if op == "copy":
            k.mov(a, c, dtype=dtype, start="loaded")
        elif op == "fma":
            k.mac(a, a, c, dtype=dtype, start="loaded")
        elif op == "fmac":
            k.fmac(a, a, c, scalar(2.0), dtype=dtype, start="loaded")
        else:
            getattr(k, op)(a, a, c, dtype=dtype, start="loaded")
        b.place(k, None)
        inputs = {"x": u.reshape(1, 1, n).astype(np.float32), "y": v.reshape(1, 1, n).astype(np.float32)}
        return Case(b.build(), b.config, inputs, {"x": want[op].reshape(1, 1, n).astype(np.float32)})


def collides_unplaced(op: str, dtype: str, wafer: Wafer) -> bool:
    """Return whether reads of an fp32 product conflict in vectors without bank placement, as published plain
    runs show."""
    is_product = dtype == "fp32" and op in ("mul", "fma", "fmac")
    return is_product and wafer.plain_fma_fp32_per_cycle < wafer.fma_fp32_per_cycle


def _operator(tiling: Tiling, attrs: Attrs) -> str:
    op = VectorOpAttributes.of(tiling.options, attrs).op
    if op not in OPERATORS:
        raise KernelError(f"vector_op has no operator '{op}'; use one of {', '.join(OPERATORS)}")
    return op


def rate_of(op: str, dtype: str, wafer: Wafer) -> float:
    """Return the elements per cycle of an operator on operands in memory."""
    if op == "copy":
        return mov_rate(dtype, wafer)
    if op == "add":
        return add_rate(dtype, wafer)
    if op == "max":
        return max_rate(dtype, wafer)
    if op == "mul":
        return wafer.mul_fp32_per_cycle if dtype == "fp32" else wafer.fma_fp16_per_cycle
    return wafer.fma_fp32_per_cycle if dtype == "fp32" else wafer.fma_fp16_per_cycle


FAMILY = register(VectorOp())
