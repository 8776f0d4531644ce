"""Connectionist temporal classification: the sum over all alignments of `states` = 2 labels + 1 with `steps` frames.

A state s is a label, or the blank between two labels.  In logarithms, with emission x_t(s) of the state's class::

    m = max(a(s), a(s-1), a(s-2) + skip(s))        skip: 0 from label to another label, else minus infinity
    a_t(s) = x_t(s) + m + log(exp(a(s) - m) + exp(a(s-1) - m) + exp(a(s-2) + skip(s) - m))

Mapping: a sequence is spread over p cores of a line; a core has q = ceil(batch p / cores) sequences and v = q ceil(states / p)
states, and receives the last two states of the core before it.  The mapping takes the fastest p among powers of two and the
largest number of cores per sequence::

    T = steps (13 o + 10 v / add + 4 v E + 2 o + w(2 q) + hop + handover)      E: an exponential or a logarithm

Backward: the same recurrence from the last frame, and the probability of every state and frame: one
exponential and three sums more.  The forward pass stores a_t(s).  FLOPs are 0, as in torch's counter: there
is no product.  Every sequence is assumed to be as long as the longest one, and values are in fp32.  Source:
vector rates and exponentials as in the grid softmax; nothing is fitted, and no measurement is published.
Program: forward, one sequence on each row of cores.  Band of cost against program: 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.program import Fn
from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnePass
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.training import FP32_BYTES
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import add_rate, ceil_div, check_tiling, words
from wse_sim.kernels.contract.family import (
    Array,
    Case,
    Cost,
    Dims,
    Flow,
    Footprint,
    How,
    Kept,
    ProgramOptions,
    Size,
    Tiling,
)
from wse_sim.kernels.contract.parameters import sizes
from wse_sim.kernels.contract.registry import register

NEVER = -1e30
"""Finite value that represents the logarithm of a zero probability."""
SUMS = (10, 13)
"""Instructions of a step that add or compare; backward also those of the forward logarithm, the emission and
the loss."""
STARTS = (4, 5)
"""Instructions of a step that compute an exponential or a logarithm of every element."""


class AlignmentSum(OnePass):
    """The family of sums over alignments (CTC)."""

    name = "ctc"
    cheaper = "take fewer frames or shorter labels, or more sequences at once"
    dims = sizes(steps="frames", states="2 labels + 1", batch="sequences")
    mappings = ("stationary", "streamed")
    flows = Flow(is_barrier=True)  # the loss of a sequence needs all of its frames
    named_for = ("wse_sim.ctc",)
    lies = "a sequence over a line of cores, or several on each core"
    programs = "forward, one sequence on each row of cores"
    bands = "5 %"
    band = 0.05
    sums_rows = True

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of emissions, four vectors of states, and code, with sequences spread over all
        cores."""
        check_tiling(self.name, tiling, self.mappings)
        states = ceil_div(dims["batch"] * dims["states"], tiling.rows * tiling.cols)
        return Footprint(
            buffers_bytes=FP32_BYTES * (1.0 * states * dims["steps"] + 6 * (states + 2)),
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of all frames, with the fastest number of cores per sequence."""
        phase = self.asked(tiling, how).phase
        most = np.clip(tiling.rows * tiling.cols // dims["batch"], 1, dims["states"])
        best = _step(dims, most, phase, tiling, wafer)
        for k in range(1 + int(log2(max(1, int(np.max(dims["states"])))))):
            best = best.or_faster(_step(dims, 1 << k, phase, tiling, wafer))
        return best * dims["steps"]

    def compute(self, emissions: Array, skips: Array, *, dtype: str = "fp32") -> Array:
        """Return the logarithms a_t(s) for emissions x (steps, batch, states); `skips` (batch, states): 0, or
        :data:`NEVER`.

        The loss of a sequence is minus the logarithm of the sum of its last frame's last two states.
        """
        x = core.rounded(emissions, dtype)
        state = np.full((*x.shape[1:-1], x.shape[-1] + 2), NEVER, np.float32)
        state[..., 1] = 0.0  # before the first frame, ahead of the first blank
        out = []
        for step in x:
            here, before, over = state[..., 2:], state[..., 1:-1], state[..., :-2] + skips
            over = np.maximum(over, np.float32(NEVER))
            m = np.maximum(np.maximum(here, before), over)
            terms = [core.unary("exp", part - m) for part in (here, before, over)]
            made = step + m + core.unary("log", terms[0] + terms[1] + terms[2])
            state = np.concatenate([np.full_like(made[..., :2], NEVER), np.maximum(made, NEVER)], -1)
            out.append(made)
        return core.rounded(np.stack(out), dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program: one sequence per row, its states in equal parts over the cores, which end with
        their last a(s).

        Raises
        ------
        KernelError
            For a backward pass, if the cores do not divide the states, or if there is not one sequence per
            row.
        """
        steps, states, batch = (int(dims[name]) for name in self.dims)
        rows, cols = int(tiling.rows), int(tiling.cols)
        dtype = str(options.get("dtype", "fp32"))
        forward = options.get("phase", Phase.FORWARD) is Phase.FORWARD
        if not forward or states % cols or states < 2 * cols or batch != rows or dtype != "fp32":
            raise KernelError(
                f"ctc: {batch} sequences of {states} states on {rows} x {cols} cores have no fabric program; "
                "use fp32, forward, a sequence per row and columns that divide its states"
            )
        check_tiling(self.name, tiling, self.mappings)
        return self._rows(steps, states // cols, rows, cols, wafer, int(options.get("seed", 0)))

    def _rows(self, steps: int, u: int, rows: int, cols: int, wafer: Wafer, seed: int) -> Case:
        """Write the program with u states on each core."""
        b = new_builder(rows, cols, wafer)
        # Operands of one instruction are in different banks; the state's own two neighbours are one and two elements before.
        a, x = b.buffer("a", u + 2, bank=0), b.buffer("x", u * steps, bank=2)
        skip = b.buffer("skip", u, bank=2)
        m, first, over = b.buffer("m", u, bank=1), b.buffer("first", u, bank=3), b.buffer("over", u, bank=2)
        before = b.buffer("before", u, bank=1)
        for j in range(cols):
            k = b.core_class(f"column {j}")
            with k.loop(steps):
                k.add(over.dsd(), a.dsd(0, u), skip.dsd())
                k.max(m.dsd(), a.dsd(2, u), a.dsd(1, u))
                k.max(m.dsd(), m.dsd(), over.dsd())
                k.sub(first.dsd(), a.dsd(2, u), m.dsd())
                k.sub(before.dsd(), a.dsd(1, u), m.dsd())
                k.sub(over.dsd(), over.dsd(), m.dsd())
                for part in (first, before, over):
                    k.map(Fn.EXP, part.dsd(), part.dsd())
                k.add(first.dsd(), first.dsd(), before.dsd())
                k.add(first.dsd(), first.dsd(), over.dsd())
                k.map(Fn.LOG, first.dsd(), first.dsd())
                k.add(first.dsd(), first.dsd(), m.dsd())
                k.add(a.dsd(2, u), first.dsd(), x.dsd(0, u, step=u))
                if j < cols - 1:
                    k.mov(fabric_out(j % 2), a.dsd(u, 2))
                k.mov(a.dsd(0, 2), fabric_in(1 - j % 2) if j else scalar(NEVER))
            b.place(k, (slice(None), j))
        _route(b, rows, cols)
        rng = np.random.default_rng(seed)
        emissions = np.log(rng.uniform(0.05, 0.9, (steps, rows, cols * u))).astype(np.float32)
        labels = rng.integers(0, 3, (rows, cols * u))
        skips = np.where((np.arange(cols * u) % 2 == 1) & (labels > 0), 0.0, NEVER).astype(np.float32)
        skips[:, 1] = 0.0  # the first label may be the first state
        wanted = np.maximum(self.compute(emissions, skips)[-1], NEVER).reshape(rows, cols, u)
        start = np.full((rows, cols, u + 2), NEVER, np.float32)
        start[:, 0, 1] = 0.0
        inputs = {
            "a": start,
            "x": emissions.reshape(steps, rows, cols, u).transpose(1, 2, 0, 3).reshape(rows, cols, -1),
            "skip": skips.reshape(rows, cols, u),
        }
        # The states received from the core before are not results.
        ends = np.concatenate([np.full((rows, cols, 2), np.nan, np.float32), wanted], -1)
        return Case(b.build(), b.config, inputs, {"a": ends}, tolerance=1e-4)

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the emissions, and the logarithm of every state and frame."""
        states = kernel.dims["steps"] * kernel.dims["states"] * kernel.dims["batch"]
        return Kept(kernel.inputs[:1], states * FP32_BYTES)


def _step(dims: Dims, p: Size, phase: Phase, tiling: Tiling, wafer: Wafer) -> Cost:
    """Return the cost of one frame, with p cores per sequence."""
    cores = tiling.rows * tiling.cols
    q = ceil_div(dims["batch"] * p, cores)
    v = q * ceil_div(dims["states"], p)
    back = phase is not Phase.FORWARD
    sums, functions = SUMS[back], STARTS[back]
    apart = np.where(np.asarray(p) > 1, 1, 0)
    sent = apart * words(2 * q, "fp32") * wafer.wavelet_cycles
    fits: Size = np.where(p <= cores, 0.0, np.inf)
    return Cost(
        compute=sums * v / add_rate("fp32", wafer),
        special=1.0 * functions * v * wafer.exp_cycles,
        ramp=2.0 * sent,
        startup=(sums + functions + 1 + apart) * wafer.vector_start_cycles + 0.0 * v,
        idle=apart * (wafer.hop_cycles + wafer.handover_cycles) + fits,
    )


def _route(b: Builder, rows: int, cols: int) -> None:
    """Route the last states of every column to the east: even columns on color 0, odd columns on color 1."""
    for row in range(rows):
        for j in range(cols - 1):
            b.route(j % 2, (row, j), rx="R", tx="E")
            b.route(j % 2, (row, j + 1), rx="W", tx="R")


FAMILY = register(AlignmentSum())
