"""Recurrences with weights (lstm, gru, plain) on a row of C cores: the values of one step, and the fabric
program.

Core c stores u = width / C units: their columns of the recurrent weights (width, gates u), their state, and
the products of the input with its weights. In every step the cores 0, 1, ... multicast their parts of h one
after the other, in both directions and to themselves. Every arriving word triggers a multiply-accumulate over
the gates of every core. Then each core computes its gates, beginning with the special elements.

Routers of core j: receive from the low side; inject; receive from the high side.  A sender's last word is a
control wavelet; its first command switches the sender's router, its second the next one. That of the last
core resets all routers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, Switch, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command, Fn
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.family import Array, Case

# Kind of recurrence with weights: (gates per unit, special elements per unit).
RECURRENT = {"lstm": (4, 5), "gru": (3, 3), "rnn_tanh": (1, 1), "rnn_relu": (1, 0)}
STATE = 0  # color of h


def recurrent_step(kind: str, x: Array, product: Array, h: Array, c: Array, dtype: str) -> tuple[Any, Any]:
    """Return (h, c) after a step: x (batch, gates width) with all biases, product = h times the recurrent
    weights.

    Gates in the order input, forget, cell, output (lstm); reset, update, new (gru).
    """
    gates = RECURRENT[kind][0]
    sigmoid, tanh = (lambda v, fn=fn: core.unary(fn, v) for fn in ("sigmoid", "tanh"))
    add, mul = (lambda a, b, fn=fn: core.binary(fn, a, b) for fn in ("add", "mul"))
    if kind == "gru":
        (x_r, x_z, x_n), (r, z, n) = (np.split(values, gates, axis=-1) for values in (x, product))
        n = tanh(add(x_n, mul(sigmoid(add(x_r, r)), n)))
        return core.binary("add", mul(core.binary("sub", h, n), sigmoid(add(x_z, z))), n, dtype), c
    parts = np.split(add(x, product), gates, axis=-1)
    if kind != "lstm":
        return core.unary("tanh" if kind == "rnn_tanh" else "relu", parts[0], dtype), c
    i, f, g, o = parts
    c = add(mul(sigmoid(f), c), mul(sigmoid(i), tanh(g)))
    return core.binary("mul", sigmoid(o), tanh(c), dtype), c


@dataclass(frozen=True)
class RecurrentRow:
    """A recurrence on a row: kind, cores, steps, samples, units per core; precision of the weights."""

    kind: str
    cores: int
    steps: int
    batch: int
    u: int
    dtype: str

    @property
    def n(self) -> int:
        """Number of gates of a core."""
        return RECURRENT[self.kind][0] * self.u


@dataclass(frozen=True)
class Buffers:
    """Buffers of a core: inputs of the gates, weights, sums, state of the cell, output and one work vector."""

    x: Buffer
    w: Buffer
    z: Buffer
    c: Buffer
    h: Buffer
    work: Buffer


def recurrent_program(row: RecurrentRow, wafer: Wafer, compute: Callable[..., Array], seed: int) -> Case:
    """Return the program of all steps; `compute` is the family's method."""
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
            if row.cores > 1:
                # The send is posted at once; its first words wait until the core's router switches to them.
                core.mov(fabric_out(STATE), held.h.dsd(), thread=1, priority="medium", start="none")
            _begin(core, row, held)
            for source in range(row.cores):
                _products(core, row, held, source, own=source == j)
            _gates(core, row, held, wafer)
        b.place(core, (0, j))
    if row.cores > 1:
        _route(b, row.cores)
    return _case(b, row, compute, seed)


def _route(b: Builder, cores: int) -> None:
    for j in range(cores):
        onward, back = "E" * (j < cores - 1), "W" * (j > 0)
        inject, from_high = {"rx": "R", "tx": "R" + back + onward}, {"rx": "E", "tx": "R" + back}
        if j == 0:
            b.route(STATE, (0, j), rx="R", tx="R" + onward, switch=Switch([from_high], pop="on_advance"))
        else:
            positions = [inject, from_high] if onward else [inject]
            b.route(STATE, (0, j), rx="W", tx="R" + onward, switch=Switch(positions, pop="on_advance"))


def _begin(core: CoreClass, row: RecurrentRow, held: Buffers) -> None:
    """Initialise the sums with the input's products; those of a gru's new gate with zero, because reset gates
    scale them."""
    if row.kind != "gru":
        core.mov(held.z.dsd(), held.x.dsd(0, row.batch * row.n, step=row.batch * row.n), start="loaded")
        return
    u, n = row.u, row.n
    with core.loop(row.batch):
        before = held.x.dsd(0, 2 * u, step=n, outer_step=row.batch * n)
        core.mov(held.z.dsd(0, 2 * u, step=n), before, start="loaded")
        core.mov(held.z.dsd(2 * u, u, step=n), scalar(0.0), start="loaded")


def _products(core: CoreClass, row: RecurrentRow, held: Buffers, source: int, *, own: bool) -> None:
    """Compute the sums of the u inputs that core `source` has, for every sample."""
    how: dict[str, Any] = {
        "inner": row.n,
        "b_stride": row.n,
        "length": row.u,
        "dtype": "mixed" if row.dtype == "fp16" else row.dtype,
        "start": "none",
    }
    weights = held.w.dsd(source * row.u * row.n, row.u * row.n)
    alone = row.cores == 1
    with core.loop(row.batch):
        words = held.h.dsd(0, row.u, step=row.u) if alone else fabric_in(STATE)
        core.fmac_vectors(held.z.dsd(0, row.n, step=row.n), words, weights, triggered=not alone, **how)
    if own and not alone:
        core.join(1)
        last = source == row.cores - 1
        core.control(STATE, *((Command.RESET,) if last else (Command.ADVANCE, Command.ADVANCE)), start="none")


def _gates(core: CoreClass, row: RecurrentRow, held: Buffers, wafer: Wafer) -> None:
    """Emit the new state of every sample; special elements take the cycles of a compiled kernel."""
    # A map of sigmoid or tanh takes two exponentials; the rest is scalar code.
    beyond = wafer.special_element_cycles - 2 * wafer.exp_cycles
    states: dict[str, Callable[[Any, RecurrentRow, Buffers], None]] = {"lstm": _lstm_state, "gru": _gru_state}
    with core.loop(row.batch):
        core.busy(round(RECURRENT[row.kind][1] * row.u * beyond))
        states.get(row.kind, _plain_state)(core, row, held)


def _lstm_state(core: CoreClass, row: RecurrentRow, held: Buffers) -> None:
    """Emit c = f c + i g and h = o tanh(c)."""
    u, z = row.u, held.z
    both = z.dsd(0, 2 * u, step=row.n)
    i, f, g, o = (z.dsd(gate * u, u, step=row.n) for gate in range(4))
    c, h, work = held.c.dsd(0, u, step=u), held.h.dsd(0, u, step=u), held.work.dsd()
    core.map(Fn.SIGMOID, both, both, start="loaded")
    core.map(Fn.TANH, g, g, start="loaded")
    core.map(Fn.SIGMOID, o, o, start="loaded")
    core.mul(c, c, f, start="loaded")
    core.mac(c, i, g, start="loaded")
    core.map(Fn.TANH, work, c, start="loaded")
    core.mul(h, o, work, start="loaded")


def _gru_state(core: CoreClass, row: RecurrentRow, held: Buffers) -> None:
    """Emit n = tanh(x_n + r n) and h = n + z (h - n)."""
    u, z = row.u, held.z
    both = z.dsd(0, 2 * u, step=row.n)
    reset, update, new = (z.dsd(gate * u, u, step=row.n) for gate in range(3))
    h, work = held.h.dsd(0, u, step=u), held.work.dsd()
    core.map(Fn.SIGMOID, both, both, start="loaded")
    core.mul(new, new, reset, start="loaded")
    core.add(new, new, held.x.dsd(2 * u, u, step=row.n, outer_step=row.batch * row.n), start="loaded")
    core.map(Fn.TANH, new, new, start="loaded")
    core.sub(work, h, new, start="loaded")
    core.mul(work, work, update, start="loaded")
    core.add(h, new, work, start="loaded")


def _plain_state(core: CoreClass, row: RecurrentRow, held: Buffers) -> None:
    """Emit h = tanh or relu of the sums."""
    sums, h = held.z.dsd(0, row.u, step=row.n), held.h.dsd(0, row.u, step=row.u)
    if row.kind == "rnn_tanh":
        core.map(Fn.TANH, h, sums, start="loaded")
    else:
        core.max(h, sums, scalar(0.0), start="loaded")


def _case(b: Builder, row: RecurrentRow, compute: Callable[..., Array], seed: int) -> Case:
    """Return a case with small random inputs, and the last h and c of all units as results."""
    rng = np.random.default_rng(seed)
    width, count = row.cores * row.u, RECURRENT[row.kind][0]
    gates = rng.normal(size=(row.steps, row.batch, count * width)).astype(np.float32)
    weights = (rng.normal(size=(width, count * width)) / np.sqrt(width)).astype(np.float32)
    h, c = (rng.normal(size=(row.batch, width)).astype(np.float32) for _ in range(2))
    weights, h = (
        (x.astype(np.float16).astype(np.float32) for x in (weights, h))
        if row.dtype == "fp16"
        else (weights, h)
    )
    wanted = compute(gates, weights, h, c, kind=row.kind, dtype=row.dtype)[-1]

    def by_core(values: Array, parts: int) -> Array:
        """Rearrange (..., parts x width) to (1, cores, ... parts x u): each core gets its units of every
        part."""
        split = values.reshape(-1, parts, row.cores, row.u)
        return split.transpose(2, 0, 1, 3).reshape(1, row.cores, -1)

    inputs = {
        "x": by_core(gates, count),
        "w": by_core(weights, count),
        "c": by_core(c, 1),
        "h": by_core(h, 1),
    }
    return Case(b.build(), b.config, inputs, {"h": by_core(wanted, 1)}, tolerance=1e-2)
