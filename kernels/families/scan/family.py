"""Recurrences over `steps`: lstm, gru, rnn_tanh, rnn_relu, selective (state space), cumsum.

lstm        the recurrent weights (width, 4 width) are stationary; each step is a stationary product of the
            batch, then 5 special elements per unit; the next step waits for the whole rectangle::

                T = steps (batch (k (s + ceil(n/w)) + n) + 5 e ceil(batch width / cores) + fill)

            gru: (width, 3 width) and 3 special elements; rnn_tanh: (width, width) and 1; rnn_relu: (width,
            width) and 0

selective   states spread over all cores, n = ceil(batch width / cores); per step one exponential, one
            fma for the state, one for the output: T = steps (n e + 2 ceil(n / fma) + 3 o_map)
cumsum      T = steps (o_map + ceil(n / add))

Backward runs the recurrence in reverse with twice the products and a quarter of the special elements. Source:
the equations of gemm; special elements from calibration. Program: with weights: forward, on one row of cores
(:mod:`wse_sim.kernels.families.scan.recurrent`); selective and cumsum, forward and backward (the decays of
selective are scalar code of e cycles each).  Band of cost against program: 2 % from 20 states per core
(cumsum: 8); lstm 2 %, gru 5 %, rnn_tanh 10 %, rnn_relu 20 % from 64 units: the cost leaves out the starts and
handovers of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Kernel, Phase, TensorKind
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.probes import ROUNDS, pointwise_probe, product_probe
from wse_sim.kernels.blocks.products import TiledProduct, weight_notes
from wse_sim.kernels.blocks.training import pointwise_gradient
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import add_rate, bytes_of, ceil_div, ceil_rate, fma_rate, per_core
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    Family,
    Flow,
    Footprint,
    How,
    Probe,
    ProgramOptions,
    Role,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import DATA, WEIGHT, Tape
from wse_sim.kernels.families.scan.recurrent import RECURRENT, RecurrentRow, recurrent_program, recurrent_step

PROBE_BYTES = 24_000  # operands of the longer run of a measured probe
PROBE_STATES = 512


@dataclass(frozen=True)
class ScanAttributes(Attributes):
    """Attributes of a recurrence."""

    kind: str = attribute("lstm", "recurrence", choices=(*RECURRENT, "selective", "cumsum"))
    weights: str = attribute(
        "", "int8: one byte each; frozen: they do not train", choices=("", "int8", "frozen")
    )
    initial: str = attribute(
        "",
        "initial states that are parameters (h, c), the first of them; -: the only one that is computed is c",
        choices=("", "h", "c", "hc", "-"),
    )


class Scan(Family):
    """The family of recurrences."""

    name = "scan"
    role = Role.MIXER
    dims = sizes(steps="steps in time", width="states", batch="sequences")
    mappings = ("stationary", "streamed")
    lies = "states over all cores; lstm, gru, plain: a stationary product per step"
    programs = "selective, cumsum: both ways in time; with weights: forward, one row of cores"
    bands = "2 %; gru 5 %, rnn_tanh 10 %, rnn_relu 20 % from 64 units"
    attributes = ScanAttributes
    flows = Flow(is_barrier=True)  # the result of a sample needs all of its steps
    more_dims = sizes(
        weights="weights of all gates and both matrices of a recurrence",
        of_input="of these, the weights of the input of the first layer",
        of_state="of these, the weights of a state",
    )

    def flops(self, dims: Dims, attrs: Attrs = NONE, phase: Phase = Phase.FORWARD) -> Size:
        """Return the FLOPs: 2 per weight, step and sample; by default the weights of the recurrent
        product."""
        kind = ScanAttributes.of(attrs).kind
        gates = RECURRENT[kind][0] if kind in RECURRENT else 0
        weights = dims.get("weights", gates * dims["width"] * dims["width"])
        return 2 * dims["steps"] * dims["batch"] * weights

    def notes(self, attrs: Attrs) -> tuple[str, ...]:
        """Return a note on how int8 weights are priced."""
        return weight_notes(attrs)

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of the state and of the recurrent weights."""
        phase, dtype, attrs = self.asked(tiling, how)
        state = 2.0 * per_core(dims["batch"] * dims["width"], tiling) * bytes_of(dtype)
        kind = ScanAttributes.of(attrs).kind
        if kind not in RECURRENT:
            return Footprint(activations_bytes=state, code_bytes=wafer.kernel_code_bytes)
        base = _recurrent_product(dims, tiling, wafer, kind, (phase, dtype, attrs)).footprint()
        return Footprint(base.weights_bytes, state, base.buffers_bytes, base.code_bytes)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of one step of the recurrence, times the number of steps."""
        phase, dtype, attrs = self.asked(tiling, how)
        kind = ScanAttributes.of(attrs).kind
        forward = phase is Phase.FORWARD
        fraction, factor = (1.0, 1.0) if forward else (wafer.backward_special_fraction, 2.0)
        n = per_core(dims["batch"] * dims["width"], tiling)
        element, o_map = fraction * wafer.special_element_cycles, wafer.map_element_cycles
        if kind in RECURRENT:
            product = _recurrent_product(dims, tiling, wafer, kind, (Phase.FORWARD, dtype, attrs))
            turn = factor * product.cost() + Cost(special=RECURRENT[kind][1] * n * element)
        elif kind == "selective":
            turn = Cost(
                compute=factor * 2 * ceil_rate(n, fma_rate(dtype, wafer)),
                special=n * element,
                startup=3 * o_map,
            )
        elif kind == "cumsum":
            turn = Cost(compute=ceil_rate(n, add_rate(dtype, wafer)), startup=o_map + 0.0 * n)
        else:
            raise KernelError(
                f"scan kind '{kind}' is unknown; use {', '.join(RECURRENT)}, selective or cumsum"
            )
        return turn * dims["steps"]

    def compute(self, *operands: Array, kind: str = "lstm", dtype: str = "fp32", parts: int = 1) -> Array:
        """Compute the recurrence over the first dimension (steps).

        lstm: gates x (steps, batch, 4 width) with the input product and biases, recurrent weights
        (width, 4 width), first h, first c; gates in the order input, forget, cell, output; returns all h.
        gru, rnn_tanh, rnn_relu: the same without c; the gates of a gru are reset, update, new.
        selective: decay a, input b and read-out c (steps, ..., width); returns c h for h = a h + b.
        cumsum: x (steps, ...).
        """
        out = []
        if kind in RECURRENT:
            gates, recurrent, h, c = operands
            for step in np.asarray(gates, np.float32):
                product = core.matmul(h, recurrent, dtype, parts=parts)
                h, c = recurrent_step(kind, step, product, h, c, dtype)
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
            known = ", ".join(RECURRENT)
            raise KernelError(f"scan '{kind}' has no numerics; use {known}, selective or cumsum")
        return np.stack(out)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program. With weights, units are spread over a row of cores; otherwise every core steps
        its own states.

        Raises
        ------
        KernelError
            For weights on more than one row, and their backward pass.
        """

        phase, dtype, attrs = asked(options, "fp32")
        kind, seed = ScanAttributes.of(attrs).kind, int(options.get("seed", 0))
        rows, cols, steps = int(tiling.rows), int(tiling.cols), int(dims["steps"])
        if kind in RECURRENT and phase is Phase.FORWARD and rows == 1:
            units = int(ceil_div(int(dims["width"]), cols))
            row = RecurrentRow(kind, cols, steps, int(dims["batch"]), units, dtype)
            return recurrent_program(row, wafer, self.compute, seed)
        if kind not in {"selective", "cumsum"}:
            raise KernelError(
                f"scan '{kind}', {str(phase).replace('_', ' ')}, on {rows} rows has no fabric program; "
                "use a forward pass on one row of cores"
            )
        n = int(per_core(dims["batch"] * dims["width"], tiling))
        rng = np.random.default_rng(seed)
        shape = (steps, rows, cols, n)
        if kind == "cumsum":
            return self._cumsum(shape, wafer, dtype, rng, forward=phase is Phase.FORWARD)
        if phase is Phase.FORWARD:
            return self._selective(shape, wafer, dtype, rng)
        return _selective_backward(shape, wafer, dtype, rng)

    def _cumsum(
        self, shape: tuple[int, ...], wafer: Wafer, dtype: str, rng: np.random.Generator, *, forward: bool
    ) -> Case:
        """Return the program of cumulative sums from the first step on, or (backward) from the last."""
        steps, rows, cols, n = shape
        b = new_builder(rows, cols, wafer)
        k, state = b.core_class("core"), b.buffer("state", n, dtype, bank=0)
        pitch = pitch_of(n, dtype)
        first = 0 if forward else (steps - 1) * pitch
        x = b.buffer(
            "x", steps * pitch, dtype, bank=bank_of(2, first, dtype, wafer)
        )  # two banks away from the state
        given = rng.integers(-2, 3, shape).astype(np.float32)
        with k.loop(steps):
            step = x.dsd(first, n, step=pitch if forward else -pitch)
            # Instructions of one map: each element of the map starts one.
            k.busy(round(wafer.map_element_cycles))
            k.add(state.dsd(), state.dsd(), step, dtype=dtype, start="none")
        b.place(k, None)
        wanted = self.compute(given, kind="cumsum", dtype=dtype)[-1]
        return Case(b.build(), b.config, {"x": _in_cores(given, dtype)}, {"state": wanted}, tolerance=1e-2)

    def _selective(self, shape: tuple[int, ...], wafer: Wafer, dtype: str, rng: np.random.Generator) -> Case:
        """Return the program of h = a h + b and c h; scalar code computes the decays."""
        steps, rows, cols, n = shape
        b = new_builder(rows, cols, wafer)
        k, state = b.core_class("core"), b.buffer("state", n, dtype, bank=0).dsd()
        # The operands of a step start two banks away from the state.
        pitch = pitch_of(n, dtype)
        at = {name: b.buffer(name, steps * pitch, dtype, bank=2) for name in ("a", "b", "c")}
        given = [rng.integers(-2, 3, shape).astype(np.float32) for _ in at]
        given[0] = np.sign(given[0]) * np.float32(0.5)
        with k.loop(steps):
            step = {name: buffer.dsd(0, n, step=pitch) for name, buffer in at.items()}
            k.busy(round(n * wafer.special_element_cycles + 3 * wafer.map_element_cycles))
            k.fmac(state, step["b"], state, step["a"], dtype=dtype, start="none")
            k.mul(step["c"], step["c"], state, dtype=dtype, start="none")
        b.place(k, None)
        inputs = {name: _in_cores(values, dtype) for name, values in zip(at, given, strict=True)}
        wanted = self.compute(*given, kind="selective", dtype=dtype)
        return Case(b.build(), b.config, inputs, {"c": _in_cores(wanted, dtype)}, tolerance=1e-2)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on one core's states, by step; with weights: of a step's product, and of its special
        elements."""
        phase, dtype, attrs = asked(how)
        kind = ScanAttributes.of(attrs).kind
        n = int(per_core(dims["batch"] * dims["width"], tiling))
        if kind not in RECURRENT:
            n_run = min(n, PROBE_STATES)
            start = max(1, min(ROUNDS, PROBE_BYTES // (2 * 5 * n_run * bytes_of(dtype))))
            cost = self.cost(dims, tiling, wafer, **how)
            small, sizes = Tiling(1, 1, "streamed"), {"width": n_run, "batch": 1}
            tile, stated = f"{n} states", {"kind": kind}
            return (Probe(kind, self.name, sizes, small, "steps", start, cost, tile, dtype, phase, stated),)
        times = dims["steps"] * (1.0 if phase is Phase.FORWARD else 2.0)
        product = _recurrent_product(dims, tiling, wafer, kind, (Phase.FORWARD, dtype, attrs))
        probe, specials = product_probe("recurrent product", product, times), RECURRENT[kind][1]
        if not specials:
            return (probe,)
        special = Cost(special=self.cost(dims, tiling, wafer, **how).special)
        elements = specials * n * tiling.rows * tiling.cols
        return probe, pointwise_probe(
            "gates", "activation", elements, tiling, special, dtype=dtype, attrs={"function": "gelu"}
        )

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit one backward pass in time, then the weight gradient."""
        if ScanAttributes.of(kernel.attrs).kind not in RECURRENT:
            pointwise_gradient(kernel, gradient, tape)
            return
        wanted = tape.inputs(kernel)
        states = self._learned_states(kernel, tape)
        weights = [p for p in tape.weights(kernel) if p not in states.values()]
        if not wanted and not tape.weights(kernel):
            return
        of_gates = tape.gradient(kernel.outputs[0])
        learned = (tape.give_weight(p) for p in states.values() if p in tape.wanted)
        outputs = (of_gates, *(tape.give(t) for t in wanted), *learned)
        flops = self._flops_back(kernel, tape.wanted.intersection((*wanted, states.get("h", ""))))
        tape.emit(kernel, "dx", DATA, (gradient, *kernel.inputs), outputs, flops=flops)
        if weights:
            given = tuple(tape.give_weight(p) for p in weights)
            tape.emit(kernel, "dw", WEIGHT, (*kernel.inputs, of_gates), given)

    @staticmethod
    def _learned_states(kernel: Kernel, tape: Tape) -> dict[str, str]:
        """Return the initial states that are parameters, by "h" and "c"."""
        stated = ScanAttributes.of(kernel.attrs).initial.strip("-")
        own = [p for p in kernel.parameters if tape.tensors[p].kind is TensorKind.PARAMETER]
        return dict(zip(stated, own, strict=False))

    def _flops_back(self, kernel: Kernel, wanted: frozenset[str]) -> int:
        """Return the FLOPs of the backward pass in time, without products for a first state or input that
        needs no gradient.

        `wanted` are the inputs that need one, and the first state if it is a parameter; a computed one is the
        second input.
        """
        d, computed = kernel.dims, kernel.inputs[1:2]
        initial = ScanAttributes.of(kernel.attrs).initial
        state = not wanted.isdisjoint(kernel.parameters)
        state = state or (initial in ("", "c") and not wanted.isdisjoint(computed))
        left = 0 if not wanted.isdisjoint(kernel.inputs[:1]) else d.get("of_input", 0) * d["steps"]
        left += 0 if state else d.get("of_state", 0)
        return int(self.flops(d, kernel.attrs)) - 2 * int(d["batch"]) * int(left)


def _recurrent_product(
    dims: Dims, tiling: Tiling, wafer: Wafer, kind: str, how: tuple[Phase, str, Attrs]
) -> TiledProduct:
    """Return the product of a step: the states of a batch times the stationary weights of all gates."""
    at_rest = Tiling(tiling.rows, tiling.cols, "stationary", options=tiling.options)
    width = dims["width"]
    return TiledProduct(dims["batch"], width, RECURRENT[kind][0] * width, at_rest, wafer, *how)


def pitch_of(n: int, dtype: str) -> int:
    """Return the elements from one step to the next; vectors of 16-bit elements start at whole words."""
    return n + n % 2 * (bytes_of(dtype) < 4)


def _in_cores(values: Array, dtype: str) -> Array:
    """Rearrange (steps, rows, cols, n) to (rows, cols, steps x pitch)."""
    n = values.shape[-1]
    padded = np.pad(values, (*((0, 0),) * 3, (0, pitch_of(n, dtype) - n)))
    return np.moveaxis(padded, 0, 2).reshape(*values.shape[1:3], -1)


def bank_of(bank: int, element: int, dtype: str, wafer: Wafer) -> int:
    """Return the bank in which a buffer must start so that its `element` is in `bank`."""
    return (bank - element * bytes_of(dtype) // 2) % wafer.sram_banks


def _selective_backward(shape: tuple[int, ...], wafer: Wafer, dtype: str, rng: np.random.Generator) -> Case:
    """Return the backward program, last step first: db = ds + c g, dc = g h, da = db p, ds = db a.

    h is the state of a step, p the previous state, g the gradient of the read-out.
    """
    steps, rows, cols, n = shape
    b = new_builder(rows, cols, wafer)
    k, ds = b.core_class("core"), b.buffer("ds", n, dtype, bank=0).dsd()
    # Two operands of one instruction start two banks apart.
    banks = {"a": 2, "c": 2, "g": 0, "h": 2, "p": 2, "db": 0}
    pitch = pitch_of(n, dtype)
    last = (steps - 1) * pitch
    at = {
        name: b.buffer(name, steps * pitch, dtype, bank=bank_of(bank, last, dtype, wafer))
        for name, bank in banks.items()
    }
    given = {name: rng.integers(-2, 3, shape).astype(np.float32) for name in ("a", "c", "g", "h", "p")}
    given["a"] = np.sign(given["a"]) * np.float32(0.5)
    special = wafer.backward_special_fraction * n * wafer.special_element_cycles
    with k.loop(steps):
        step = {name: buffer.dsd(last, n, step=-pitch) for name, buffer in at.items()}
        k.busy(round(special + 3 * wafer.map_element_cycles))
        k.fmac(step["db"], ds, step["c"], step["g"], dtype=dtype, start="none")
        k.mul(step["c"], step["g"], step["h"], dtype=dtype, start="none")
        k.mul(step["g"], step["db"], step["p"], dtype=dtype, start="none")
        k.mul(ds, step["db"], step["a"], dtype=dtype, start="none")
    b.place(k, None)
    carry = np.zeros(shape[1:], np.float32)
    wanted = {
        "c": given["g"] * given["h"],
        "g": np.empty(shape, np.float32),
        "db": np.empty(shape, np.float32),
    }
    for t in reversed(range(steps)):
        wanted["db"][t] = carry + given["c"][t] * given["g"][t]
        wanted["g"][t] = wanted["db"][t] * given["p"][t]
        carry = wanted["db"][t] * given["a"][t]
    inputs = {name: _in_cores(values, dtype) for name, values in given.items()}
    expected = {name: _in_cores(values, dtype) for name, values in wanted.items()}
    return Case(b.build(), b.config, inputs, expected, tolerance=0.1 if dtype == "fp16" else 1e-4)


FAMILY = register(Scan())
