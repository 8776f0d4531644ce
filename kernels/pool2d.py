"""2-D pooling (max or avg) of b images (h, w, c) over windows of (r, s).

Mapping: outputs spread over all cores, n = ceil(b out_h out_w c / cores); r s vector instructions, each
over the n outputs with the stride of the window in memory.

    T = r s (o + n / rate)          rate: maximum (max) or addition (avg)
    backward: the gradient is added back to the window: the same instructions

Source: vector rates of the SDK documentation.  Program: max; the positions of a window rest as planes two
banks off the result.  Band of cost against program: 2 % from 50 outputs per core.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import (
    add_rate,
    check_tiling,
    max_rate,
    per_core,
    pointwise,
    pointwise_footprint,
)


class Pool2d(Family):
    """The family of 2-D pooling."""

    name = "pool2d"
    dims = ("b", "h", "w", "c", "r", "s", "stride", "out_h", "out_w")
    mappings = ("stationary", "streamed")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        return pointwise_footprint(dims["b"] * dims["out_h"] * dims["out_w"] * dims["c"], tiling, dtype)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """One vector instruction per position of the window."""
        _, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        is_max = str(attrs.get("kind", "max")) == "max"
        rate = max_rate(dtype, wafer) if is_max else add_rate(dtype, wafer)
        taps = dims["r"] * dims["s"]
        outputs = dims["b"] * dims["out_h"] * dims["out_w"] * dims["c"]
        inputs = max(1.0, dims["h"] * dims["w"] / (dims["out_h"] * dims["out_w"]))
        return pointwise(
            outputs, tiling, wafer, dtype=dtype, issue=taps / rate, instructions=taps, inputs=round(inputs)
        )

    def compute(
        self,
        x: Any,
        *,
        window: int = 2,
        stride: int = 2,
        padding: int = 0,
        kind: str = "max",
        dtype: str = "fp32",
    ) -> Any:
        """Pool x (b, h, w, c): one vector instruction per position of the window."""
        from wse_sim.kernels import numerics as core

        is_max = kind == "max"
        fill = -np.inf if is_max else 0.0
        pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
        padded = np.pad(core.rounded(x, dtype), pads, constant_values=fill)
        out_h, out_w = ((padded.shape[axis] - window) // stride + 1 for axis in (1, 2))
        total = None
        for i, j in np.ndindex(window, window):
            view = padded[:, i : i + stride * out_h : stride, j : j + stride * out_w : stride][
                :, :out_h, :out_w
            ]
            total = view if total is None else core.binary("max" if is_max else "add", total, view)
        return core.rounded(total, dtype) if is_max else core.binary("mul", total, 1.0 / window**2, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """Maxima over the positions of the window, on every core.

        Raises
        ------
        KernelError
            For averages and backward passes.
        """
        from wse_sim.fabric.builder import scalar
        from wse_sim.kernels.lines import new_builder

        kind = str((options.get("attrs") or {}).get("kind", "max"))
        if kind != "max" or options.get("phase", Phase.FORWARD) is not Phase.FORWARD:
            raise KernelError(f"pool2d '{kind}' has no fabric program for this phase; use forward max")
        rows, cols, taps = int(tiling.rows), int(tiling.cols), int(dims["r"]) * int(dims["s"])
        n = int(per_core(dims["b"] * dims["out_h"] * dims["out_w"] * dims["c"], tiling))
        dtype = str(options.get("dtype", "fp32"))
        rng = np.random.default_rng(int(options.get("seed", 0)))
        values = rng.integers(-99, 99, (taps, rows, cols, n)).astype(np.float32)
        b = new_builder(rows, cols, wafer)
        k, y = b.core_class("core"), b.buffer("y", n, dtype, bank=0).dsd()
        inputs = {f"tap{i}": values[i] for i in range(taps)}
        for i, name in enumerate(inputs):
            tap = b.buffer(name, n, dtype, bank=2).dsd()
            k.max(y, tap, y if i else scalar(-1e4), dtype=dtype)
        b.place(k, None)
        return Case(b.build(), b.config, inputs, {"y": values.max(axis=0)})


FAMILY = register(Pool2d())
