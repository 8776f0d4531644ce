"""Optimizer update of fp32 master weights: sgd, momentum, adamw.

Mapping: on the cores that store the weights, n = ceil(elements / cores) per core; nothing moves.

    sgd       w -= lr g                                                         1 fma
    momentum  v = mu v + g;  w -= lr v                                          2 fma
    adam      M = b1 M + g;  V = b2 V + g g;  w -= lr' M / (sqrt(V) + eps')     6 instructions, a root, a division
    adamw     and w *= 1 - lr decay                                             7 instructions, a root, a division
    copy      rewrites the 16-bit weights that products read                   1 move
    T = (instructions + functions) o + n (instructions / fma + moves / mov + functions)

M = m / (1 - b1) and V = v / (1 - b2) are stored, so that one multiply-accumulate updates a moment; lr' and
eps' include these factors and the bias corrections.

In weight streaming the update runs in the memory service, not on the wafer.
Source: vector rates of the SDK documentation; the division and root are scalar library code.
Band of cost against program: 2 % from 100 elements per core (ceilings).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import scalar
from wse_sim.fabric.format.program import Fn
from wse_sim.graph.optimizers import DEFAULT_OPTIMIZER, optimizer_named
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.probes import elements_probe
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import per_core, pointwise
from wse_sim.kernels.contract.family import (
    Array,
    Case,
    Cost,
    Dims,
    Family,
    Footprint,
    How,
    Probe,
    ProgramOptions,
    Tiling,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register

# Number of fma instructions, and whether each element needs a root and a division.
ALGORITHMS = {"sgd": (1, False), "momentum": (2, False), "adam": (6, True), "adamw": (7, True)}


@dataclass(frozen=True)
class OptimizerAttributes(Attributes):
    """Attributes of an update; `state_bytes` of the whole kernel."""

    algorithm: str = attribute(DEFAULT_OPTIMIZER, "algorithm", choices=tuple(ALGORITHMS))
    state_bytes: int = attribute(0, "bytes of the moments of the whole kernel")
    copy: bool = attribute(False, "writes the 16-bit copy of the weights that products read")


class Optimizer(Family):
    """The family of optimizer updates."""

    name = "optimizer"
    dims = sizes(elements="weights")
    mappings = ("stationary", "streamed")
    lies = "where the weights rest"
    programs = "sgd, momentum, adam, adamw"
    bands = "1 %"
    attributes = OptimizerAttributes
    color = "#fcbba1"

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of fp32 moments and code; weights and gradients are counted where they are
        stored."""
        attrs = self.asked(tiling, how).attrs
        moments = optimizer_named(OptimizerAttributes.of(attrs).algorithm).moments
        return Footprint(
            weights_bytes=4.0 * moments * per_core(dims["elements"], tiling),
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the update's vector instructions, and of scalar root and division."""
        attrs = self.asked(tiling, how).attrs
        stated = OptimizerAttributes.of(attrs)
        algorithm = stated.algorithm
        _check(algorithm)
        count, has_root = ALGORITHMS[algorithm]
        scalar = wafer.sqrt_cycles + wafer.divide_cycles if has_root else 0.0
        return pointwise(
            dims["elements"],
            Tiling(tiling.rows, tiling.cols, "streamed"),
            wafer,
            dtype="fp32",
            issue=count / wafer.fma_fp32_per_cycle + stated.copy / wafer.mov_fp32_per_cycle,
            scalar=scalar,
            instructions=count + 2 * has_root + stated.copy,
        )

    def compute(
        self,
        weights: Array,
        gradient: Array,
        state: tuple[Any, ...] = (),
        *,
        algorithm: str = DEFAULT_OPTIMIZER,
        lr: float = 1e-3,
        step: int = 1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return new weights and moments in fp32; `state` has the moments, initially zero."""
        _check(algorithm)
        w, g = core.as_float(weights), core.as_float(gradient)
        zero = np.zeros_like(w)
        if algorithm in {"sgd", "momentum"}:
            moment = g
            if algorithm == "momentum":
                moment = core.binary("add", core.binary("mul", state[0] if state else zero, betas[0]), g)
            return core.binary("sub", w, core.binary("mul", moment, lr)), (moment,)
        first, second = state if state else (zero, zero)
        if algorithm == "adamw":
            w = core.binary("mul", w, 1.0 - lr * weight_decay)
        first = core.binary("add", core.binary("mul", first, betas[0]), core.binary("mul", g, 1 - betas[0]))
        squares = core.binary("mul", core.unary("square", g), 1 - betas[1])
        second = core.binary("add", core.binary("mul", second, betas[1]), squares)
        root = core.unary("sqrt", core.binary("div", second, 1 - betas[1] ** step))
        change = core.binary(
            "div", core.binary("div", first, 1 - betas[0] ** step), core.binary("add", root, eps)
        )
        return core.binary("sub", w, core.binary("mul", change, lr)), (first, second)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of one update of every core's weights, with the bias corrections of the first
        step."""
        algorithm = OptimizerAttributes.of(options.get("attrs")).algorithm
        _check(algorithm)
        rows, cols, n = int(tiling.rows), int(tiling.cols), int(per_core(dims["elements"], tiling))
        rng = np.random.default_rng(int(options.get("seed", 0)))
        b = new_builder(rows, cols, wafer)
        k = b.core_class("core")
        # An addend starts two banks away from its sum; momentum adds the moment to the weights.
        w, g = b.buffer("w", n, bank=0), b.buffer("g", n, bank=0 if algorithm == "momentum" else 2)
        w_d, g_d = w.dsd(), g.dsd()
        inputs = {name: rng.standard_normal((rows, cols, n)).astype(np.float32) for name in "wg"}
        lr, beta, beta2, eps, decay = 1e-2, 0.9, 0.999, 1e-8, 0.1
        if algorithm == "sgd":
            wanted, _ = self.compute(inputs["w"], inputs["g"], algorithm=algorithm, lr=lr)
            k.fmac(w_d, w_d, g_d, scalar(-lr))
        else:
            first = b.buffer("first", n, bank=2 if algorithm == "momentum" else 0).dsd()
            inputs["first"] = rng.standard_normal((rows, cols, n)).astype(np.float32)
            state: tuple[Any, ...] = (inputs["first"],)
            k.fmac(first, g_d, first, scalar(beta))
        if algorithm == "momentum":
            wanted, _ = self.compute(inputs["w"], inputs["g"], state, algorithm=algorithm, lr=lr)
            k.fmac(w_d, w_d, first, scalar(-lr))
        elif algorithm != "sgd":
            second = b.buffer("second", n, bank=0).dsd()
            inputs["second"] = rng.random((rows, cols, n)).astype(np.float32) + 0.5
            state = (state[0] * np.float32(1 - beta), inputs["second"] * np.float32(1 - beta2))
            wanted, _ = self.compute(
                inputs["w"], inputs["g"], state, algorithm=algorithm, lr=lr, eps=eps, weight_decay=decay
            )
            if algorithm == "adamw":
                k.mul(w_d, w_d, scalar(1 - lr * decay))
            k.mul(g_d, g_d, g_d)
            k.fmac(second, g_d, second, scalar(beta2))
            k.map(Fn.SQRT, g_d, second)
            # At the first step both bias corrections cancel the factors of M and V.
            k.add(g_d, g_d, scalar(eps))
            k.map(Fn.RECIPROCAL, g_d, g_d)
            k.mul(g_d, g_d, first)
            k.fmac(w_d, w_d, g_d, scalar(-lr))
        if not OptimizerAttributes.of(options.get("attrs")).copy:
            b.place(k, None)
            return Case(b.build(), b.config, inputs, {"w": wanted}, tolerance=1e-4)
        k.mov(b.buffer("copy", n, "fp16", bank=2).dsd(), w_d)
        b.place(k, None)
        return Case(b.build(), b.config, inputs, {"w": wanted, "copy": wanted}, tolerance=1e-3)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on the weights of one core."""
        return elements_probe(self, dims, tiling, wafer, how)


def _check(algorithm: str) -> None:
    if algorithm not in ALGORITHMS:
        raise KernelError(f"optimizer '{algorithm}' is unknown; use one of {', '.join(sorted(ALGORITHMS))}")


FAMILY = register(Optimizer())
