"""An lstm on a row of C cores as a fabric program.

Core c holds u = width / C units: their columns of the recurrent weights (width, 4 u), their state, and the products
of the input with its weights.  In every step the cores take turns: core 0, then 1, ... multicasts its part of h in
both directions, and every arriving word triggers a multiply-accumulate over the 4 u gates of every core; the sender
multiplies its own meanwhile.  Then each core works out its gates: 5 special elements per unit.

Routers of core j: receive from the low side; inject; receive from the high side.  A sender's last word is a control
wavelet whose first command turns its own router and whose second the next one's; the last core's resets all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case
from wse_sim.kernels.lines import new_builder

STATE = 0  # color of h
GATES = 4


@dataclass(frozen=True)
class Row:
    """Sizes of an lstm on a row: cores, steps, samples, units per core; precision of the weights."""

    cores: int
    steps: int
    batch: int
    u: int
    dtype: str

    @property
    def n(self) -> int:
        """Gates of a core."""
        return GATES * self.u


@dataclass(frozen=True)
class Buffers:
    """What a core holds: inputs of the gates, weights, sums, state of the cell, output and one vector of work."""

    x: Any
    w: Any
    z: Any
    c: Any
    h: Any
    work: Any


def lstm_program(row: Row, wafer: Wafer, compute: Any, seed: int) -> Case:
    """Program of `steps` steps; `compute` is the family's face."""
    b = new_builder(1, row.cores, wafer)
    held = Buffers(
        x=b.buffer("x", row.steps * row.batch * row.n),
        w=b.buffer("w", row.cores * row.u * row.n, row.dtype, bank=2),
        z=b.buffer("z", row.batch * row.n, bank=0),
        c=b.buffer("c", row.batch * row.u, bank=2),
        h=b.buffer("h", row.batch * row.u, row.dtype),
        work=b.buffer("work", row.u, bank=2),
    )
    for j in range(row.cores):
        core = b.core_class(f"core {j}")
        with core.loop(row.steps):
            core.mov(held.z.dsd(), held.x.dsd(0, row.batch * row.n, step=row.batch * row.n), start="loaded")
            for source in range(row.cores):
                _products(core, row, held, source, own=source == j)
            _gates(core, row, held, wafer)
        b.place(core, (0, j))
    if row.cores > 1:
        _route(b, row.cores)
    return _case(b, row, compute, seed)


def _route(b: Any, cores: int) -> None:
    from wse_sim.fabric.builder import Switch

    for j in range(cores):
        onward, back = "E" * (j < cores - 1), "W" * (j > 0)
        inject, from_high = {"rx": "R", "tx": back + onward}, {"rx": "E", "tx": "R" + back}
        if j == 0:
            b.route(STATE, (0, j), rx="R", tx=onward, switch=Switch([from_high], pop="on_advance"))
        else:
            positions = [inject, from_high] if onward else [inject]
            b.route(STATE, (0, j), rx="W", tx="R" + onward, switch=Switch(positions, pop="on_advance"))


def _products(core: Any, row: Row, held: Buffers, source: int, *, own: bool) -> None:
    """Sums of the u inputs that core `source` holds, for every sample."""
    from wse_sim.fabric.builder import fabric_in, fabric_out
    from wse_sim.fabric.program import Command

    how = {
        "inner": row.n,
        "b_stride": row.n,
        "length": row.u,
        "dtype": "mixed" if row.dtype == "fp16" else row.dtype,
        "start": "none",
    }
    weights = held.w.dsd(source * row.u * row.n, row.u * row.n)
    sends = own and row.cores > 1
    if sends:
        core.mov(fabric_out(STATE), held.h.dsd(), thread=1, priority="medium", start="none")
    with core.loop(row.batch):
        words = held.h.dsd(0, row.u, step=row.u) if own else fabric_in(STATE)
        core.fmac_vectors(held.z.dsd(0, row.n, step=row.n), words, weights, triggered=not own, **how)
    if sends:
        core.join(1)
        last = source == row.cores - 1
        core.control(STATE, *((Command.RESET,) if last else (Command.ADVANCE, Command.ADVANCE)), start="none")


def _gates(core: Any, row: Row, held: Buffers, wafer: Wafer) -> None:
    """c = f c + i g and h = o tanh(c) of every sample; special elements take the cycles of a compiled kernel."""
    from wse_sim.fabric.program import Fn

    u, z = row.u, held.z
    scalar_cycles = (
        wafer.special_element_cycles - 2 * wafer.exp_cycles
    )  # beyond what a map of sigmoid or tanh takes
    with core.loop(row.batch):
        i, f, g, o = (z.dsd(gate * u, u, step=row.n) for gate in range(GATES))
        both, c, h, work = (
            z.dsd(0, 2 * u, step=row.n),
            *(x.dsd(0, u, step=u) for x in (held.c, held.h)),
            held.work.dsd(),
        )
        core.busy(round((GATES + 1) * u * scalar_cycles))
        core.map(Fn.SIGMOID, both, both, start="loaded")
        core.map(Fn.TANH, g, g, start="loaded")
        core.map(Fn.SIGMOID, o, o, start="loaded")
        core.mul(c, c, f, start="loaded")
        core.mac(c, i, g, start="loaded")
        core.map(Fn.TANH, work, c, start="loaded")
        core.mul(h, o, work, start="loaded")


def _case(b: Any, row: Row, compute: Any, seed: int) -> Case:
    """Small random numbers; the last h and the last c of all units."""
    rng = np.random.default_rng(seed)
    width = row.cores * row.u
    gates = rng.normal(size=(row.steps, row.batch, GATES * width)).astype(np.float32)
    weights = (rng.normal(size=(width, GATES * width)) / np.sqrt(width)).astype(np.float32)
    h, c = (rng.normal(size=(row.batch, width)).astype(np.float32) for _ in range(2))
    weights, h = (
        (x.astype(np.float16).astype(np.float32) for x in (weights, h))
        if row.dtype == "fp16"
        else (weights, h)
    )
    wanted = compute(gates, weights, h, c, kind="lstm", dtype=row.dtype)[-1]

    def by_core(values: Any, parts: int) -> Any:
        """(..., parts width) to (1, cores, ... parts u): each core its units of every part."""
        split = values.reshape(-1, parts, row.cores, row.u)
        return split.transpose(2, 0, 1, 3).reshape(1, row.cores, -1)

    inputs = {
        "x": by_core(gates, GATES),
        "w": by_core(weights, GATES),
        "c": by_core(c, 1),
        "h": by_core(h, 1),
    }
    return Case(b.build(), b.config, inputs, {"h": by_core(wanted, 1)}, tolerance=1e-2)
