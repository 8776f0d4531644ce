"""Optimizer update of fp32 master weights: sgd, momentum, adamw.

Mapping: where the weights rest, n = ceil(elements / cores) per core; nothing moves.

    sgd       w -= lr g                                           1 fma
    momentum  v = mu v + g;  w -= lr v                            2 fma
    adamw     m, v, bias correction, m / (sqrt(v) + eps), decay   7 fma, one square root, one division
    T = instructions o + n (instructions / fma + scalar)

In weight streaming the update runs in the memory service, not on the wafer.
Source: vector rates of the SDK documentation; the division and root are scalar library code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Cost, Family, Footprint, Tiling, register
from wse_sim.kernels.equations import CODE_BYTES, check_tiling, per_core, pointwise

# fma instructions and whether a root and a division per element are needed.
ALGORITHMS = {"sgd": (1, False), "momentum": (2, False), "adam": (6, True), "adamw": (7, True)}


class Optimizer(Family):
    """The family of optimizer updates."""

    name = "optimizer"
    dims = ("elements",)
    mappings = ("stationary", "streamed")

    def footprint(
        self,
        dims: Mapping[str, Any],
        tiling: Tiling,
        wafer: Wafer,
        *,
        phase: Phase = Phase.FORWARD,
        dtype: str = "fp16",
        attrs: Mapping[str, Any] | None = None,
    ) -> Footprint:
        """Moments in fp32 and code; weights and gradients are counted where they rest."""
        check_tiling(self.name, tiling, self.mappings)
        moments = {"sgd": 0, "momentum": 1}.get(str((attrs or {}).get("algorithm", "adamw")), 2)
        return Footprint(
            weights_bytes=4.0 * moments * per_core(dims["elements"], tiling), code_bytes=CODE_BYTES
        )

    def cost(
        self,
        dims: Mapping[str, Any],
        tiling: Tiling,
        wafer: Wafer,
        *,
        phase: Phase = Phase.FORWARD,
        dtype: str = "fp16",
        attrs: Mapping[str, Any] | None = None,
    ) -> Cost:
        """Vector instructions of the update, and scalar root and division."""
        check_tiling(self.name, tiling, self.mappings)
        algorithm = str((attrs or {}).get("algorithm", "adamw"))
        if algorithm not in ALGORITHMS:
            raise KernelError(
                f"optimizer '{algorithm}' is unknown; use one of {', '.join(sorted(ALGORITHMS))}"
            )
        count, has_root = ALGORITHMS[algorithm]
        scalar = wafer.sqrt_cycles + wafer.divide_cycles if has_root else 0.0
        return pointwise(
            dims["elements"],
            Tiling(tiling.rows, tiling.cols, "streamed"),
            wafer,
            dtype="fp32",
            issue=count / wafer.fma_fp32_per_cycle,
            scalar=scalar,
            instructions=count,
        )

    def compute(
        self,
        weights: Any,
        gradient: Any,
        state: tuple[Any, ...] = (),
        *,
        algorithm: str = "adamw",
        lr: float = 1e-3,
        step: int = 1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> tuple[Any, tuple[Any, ...]]:
        """New weights and moments in fp32; `state` holds the moments, zeros at first."""
        from wse_sim.kernels import numerics as core

        if algorithm not in ALGORITHMS:
            raise KernelError(
                f"optimizer '{algorithm}' is unknown; use one of {', '.join(sorted(ALGORITHMS))}"
            )
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


FAMILY = register(Optimizer())
