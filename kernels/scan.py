"""Recurrences over `steps`: lstm, selective (state space), cumsum.

lstm        the recurrent weights (width, 4 width) rest on the rectangle; each step is a stationary product
            of the batch, then 5 special elements per unit; the next step waits for the whole rectangle::

                T = steps (batch (k (s + ceil(n/w)) + n) + 5 e ceil(batch width / cores) + fill)

selective   states spread over all cores, n = ceil(batch width / cores); per step one exponential, one
            fma for the state, one for the output: T = steps (n e + 2 ceil(n / fma) + 3 o_map)
cumsum      T = steps (o_map + ceil(n / add))

Backward runs the recurrence in reverse with twice the products and a quarter of the special elements.
Source: the equations of gemm; special elements from calibration.
Program: selective and cumsum (the decays of selective are scalar code of e cycles each); an lstm's product
is gemm's stationary program.  Band of cost against program: 2 % from 20 states per core.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import (
    BACKWARD_SPECIAL_SHARE,
    CODE_BYTES,
    add_rate,
    bytes_of,
    ceil_rate,
    check_tiling,
    fma_rate,
    per_core,
)
from wse_sim.kernels.products import product_footprint, stationary

GATES = 4


class Scan(Family):
    """The family of recurrences."""

    name = "scan"
    dims = ("steps", "width", "batch")
    mappings = ("stationary", "streamed")

    def flops(self, dims: Dims) -> Any:
        """2 steps batch width (4 width) of an lstm's recurrent product."""
        return 2 * GATES * dims["steps"] * dims["batch"] * dims["width"] * dims["width"]

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """State, and the recurrent weights of an lstm."""
        phase, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        state = 2.0 * per_core(dims["batch"] * dims["width"], tiling) * bytes_of(dtype)
        if str(attrs.get("kind", "lstm")) != "lstm":
            return Footprint(activations_bytes=state, code_bytes=CODE_BYTES)
        at_rest = Tiling(tiling.rows, tiling.cols, "stationary", options=tiling.options)
        width = dims["width"]
        base = product_footprint(dims["batch"], width, GATES * width, at_rest, dtype, attrs, phase)
        return Footprint(base.weights_bytes, state, base.buffers_bytes, base.code_bytes)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """One turn of the recurrence, times the steps."""
        phase, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        kind = str(attrs.get("kind", "lstm"))
        forward = phase is Phase.FORWARD
        share, factor = (1.0, 1.0) if forward else (BACKWARD_SPECIAL_SHARE, 2.0)
        n = per_core(dims["batch"] * dims["width"], tiling)
        element, o_map = share * wafer.special_element_cycles, wafer.map_element_cycles
        if kind == "lstm":
            at_rest = Tiling(tiling.rows, tiling.cols, "stationary", options=tiling.options)
            width = dims["width"]
            turn = factor * stationary(dims["batch"], width, GATES * width, at_rest, wafer, dtype, attrs)
            turn = turn + Cost(special=(GATES + 1) * n * element)
        elif kind == "selective":
            turn = Cost(
                compute=factor * 2 * ceil_rate(n, fma_rate(dtype, wafer)),
                special=n * element,
                startup=3 * o_map,
            )
        elif kind == "cumsum":
            turn = Cost(compute=ceil_rate(n, add_rate(dtype, wafer)), startup=o_map + 0.0 * n)
        else:
            raise KernelError(f"scan kind '{kind}' is unknown; use lstm, selective or cumsum")
        return turn * dims["steps"]

    def compute(self, *operands: Any, kind: str = "lstm", dtype: str = "fp32", parts: int = 1) -> Any:
        """The recurrence over the first dimension (steps).

        lstm: gates x (steps, batch, 4 width) with the input product and biases, recurrent weights
        (width, 4 width), first h, first c; gates in the order input, forget, cell, output; returns all h.
        selective: decay a, input b and read-out c (steps, ..., width); returns c h for h = a h + b.
        cumsum: x (steps, ...).
        """
        from wse_sim.kernels import numerics as core

        out = []
        if kind == "lstm":
            gates, recurrent, h, c = operands
            width = np.shape(h)[-1]
            for step in np.asarray(gates, np.float32):
                z = core.binary("add", step, core.matmul(h, recurrent, dtype, parts=parts))
                i, f, g, o = (z[..., n * width : (n + 1) * width] for n in range(GATES))
                kept = core.binary("mul", core.unary("sigmoid", f), c)
                c = core.binary(
                    "add", kept, core.binary("mul", core.unary("sigmoid", i), core.unary("tanh", g))
                )
                h = core.binary("mul", core.unary("sigmoid", o), core.unary("tanh", c), dtype)
                out.append(h)
        elif kind == "selective":
            state = np.zeros(np.shape(operands[0])[1:], np.float32)
            for a, b, c in zip(*(core.rounded(x, dtype) for x in operands), strict=True):
                state = core.binary("add", core.binary("mul", a, state), b)
                out.append(core.binary("mul", c, state, dtype))
        elif kind == "cumsum":
            state = np.zeros(np.shape(operands[0])[1:], np.float32)
            for x in core.rounded(operands[0], dtype):
                state = core.binary("add", state, x)
                out.append(core.rounded(state, dtype))
        else:
            raise KernelError(f"scan kind '{kind}' is unknown; use lstm, selective or cumsum")
        return np.stack(out)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
        """Every core works through the steps of its states.

        Raises
        ------
        KernelError
            For an lstm.
        """
        from wse_sim.kernels.lines import new_builder

        kind = str((options.get("attrs") or {}).get("kind", "lstm"))
        if kind not in {"selective", "cumsum"}:
            raise KernelError(f"scan '{kind}' has no fabric program; use selective or cumsum")
        rows, cols, steps = int(tiling.rows), int(tiling.cols), int(dims["steps"])
        n = int(per_core(dims["batch"] * dims["width"], tiling))
        dtype = str(options.get("dtype", "fp32"))
        rng = np.random.default_rng(int(options.get("seed", 0)))
        b = new_builder(rows, cols, wafer)
        k, state = b.core_class("core"), b.buffer("state", n, dtype, bank=0)
        names = ("a", "b", "c") if kind == "selective" else ("x",)
        # The operands of a step lie two banks off the state.
        at = {name: b.buffer(name, steps * n, dtype, bank=2) for name in names}
        given = [rng.integers(-2, 3, (steps, rows, cols, n)).astype(np.float32) for _ in names]
        if kind == "selective":
            given[0] = np.sign(given[0]) * np.float32(0.5)
        wanted = self.compute(*given, kind=kind, dtype=dtype)
        state_d = state.dsd()
        with k.loop(steps):
            step = {name: buffer.dsd(0, n, step=n) for name, buffer in at.items()}
            # Instructions of one map: an element of the map starts each.
            if kind == "cumsum":
                k.busy(round(wafer.map_element_cycles))
                k.add(state_d, state_d, step["x"], dtype=dtype, start="none")
            else:
                k.busy(round(n * wafer.special_element_cycles + 3 * wafer.map_element_cycles))
                k.fmac(state_d, step["b"], state_d, step["a"], dtype=dtype, start="none")
                k.mul(step["c"], step["c"], state_d, dtype=dtype, start="none")
        b.place(k, None)
        inputs = {
            name: np.moveaxis(x, 0, 2).reshape(rows, cols, -1) for name, x in zip(names, given, strict=True)
        }
        if kind == "cumsum":
            expected = {"state": wanted[-1]}
        else:
            expected = {"c": np.moveaxis(wanted, 0, 2).reshape(rows, cols, -1)}
        return Case(b.build(), b.config, inputs, expected, tolerance=1e-2)


FAMILY = register(Scan())
