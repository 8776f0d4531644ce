"""A chain of operators that ends in a reduction over rows, as a fabric program.

A core has n elements of r rows and reduces each row to an fp32 sum, one element per cycle; the r results are
reduced along the row of cores and multicast back. In the backward pass the r gradients are multicast along
the row and copied to the elements of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.chains import Chain, backward, check_chain, forward, mask_of
from wse_sim.kernels.blocks.lines import Line, emit_reduce, route_broadcast, route_reduce
from wse_sim.kernels.blocks.trees import chain as line_chain
from wse_sim.kernels.contract.equations import max_rate
from wse_sim.kernels.contract.family import Case, Tiling

REDUCED = {"sum": "add", "mean": "add", "amax": "max", "amin": "min"}
NUMPY: dict[str, Any] = {"add": np.sum, "max": np.max, "min": np.min}
FIRST = {"add": 0.0, "max": -6e4, "min": 6e4}


class Every:
    """Several core classes that are written as one."""

    def __init__(self, cores: Sequence[Any]) -> None:
        self.cores = cores

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*operands: object, **options: object) -> None:
            for core in self.cores:
                getattr(core, name)(*operands, **options)

        return call


def folded_program(
    ops: Sequence[str],
    tiling: Tiling,
    n: int,
    rows: int,
    wafer: Wafer,
    *,
    dtype: str = "fp32",
    phase: Phase = Phase.FORWARD,
    seed: int = 0,
    **_: object,
) -> Case:
    """Return the program of operators and a reduction (sum, mean, amax, amin); backward: row gradients to
    elements.

    Raises
    ------
    KernelError
        If the elements of a core are not equal, whole rows.
    """
    if n % rows:
        raise KernelError(f"generated: {n} elements per core are not {rows} equal rows; use multiples")
    check_chain("generated", ops[:-1])
    c = Chain(tiling, n, wafer, dtype, seed)
    cores = [c.builder.core_class(f"column {v}") for v in range(int(tiling.cols))]
    c.core = cast("CoreClass", Every(cores))
    factor = 1.0 / (n // rows * len(cores)) if ops[-1] == "mean" else 1.0
    if phase is Phase.FORWARD:
        _forward(c, cores, ops, rows, factor)
    else:
        _backward(c, cores, ops, rows, factor)
    for v, core in enumerate(cores):
        c.builder.place(core, (slice(None), v))
    return c.case(placed=True)


def _forward(c: Chain, cores: list[Any], ops: Sequence[str], rows: int, factor: float) -> None:
    line, op, width = Line(c.builder, vertical=False), REDUCED[ops[-1]], len(cores)
    steps, color = route_reduce(line, line_chain(width), 0)
    route_broadcast(line, 0, width, color)
    x, value = forward(c, ops[:-1])
    statistic = c.builder.buffer("statistic", rows)
    _fold(c, x, rows, op, statistic)
    if factor != 1.0:
        c.core.mul(statistic.dsd(), statistic.dsd(), scalar(factor), start="loaded")
    if width > 1:
        for v, core in enumerate(cores):
            emit_reduce(core, steps[v], statistic, "fp32", start="code", op=op)
            _multicast(core, statistic, color, v == 0)
    tiles = value.reshape(-1, width, rows, c.n // rows)
    wanted = factor * NUMPY[op](tiles, axis=(1, 3))
    c.expected["statistic"] = np.broadcast_to(wanted[:, None], (wanted.shape[0], width, rows))


def _backward(c: Chain, cores: list[Any], ops: Sequence[str], rows: int, factor: float) -> None:
    """Write the backward pass: the first column sends the gradients of rows, which are copied or multiplied
    by kept masks."""
    width, length = len(cores), c.n // rows
    route_broadcast(Line(c.builder, vertical=False), 0, width, 0)
    high = int(c.tiling.rows)
    given = c.rng.integers(-2, 3, (high, 1, rows)).astype(np.float32)
    statistic = c.builder.buffer("statistic", rows)
    c.inputs["statistic"] = np.broadcast_to(given * (np.arange(width) == 0)[:, None], (high, width, rows))
    g = c.buffer("g", bank=0)
    spread = np.broadcast_to(given[..., None], (high, width, rows, length)).reshape(high, width, c.n)
    if width > 1:
        for v, core in enumerate(cores):
            _multicast(core, statistic, 0, v == 0)
    if factor != 1.0:
        c.core.mul(statistic.dsd(), statistic.dsd(), scalar(factor), start="loaded")
    mask = mask_of(c) if REDUCED[ops[-1]] != "add" else None
    kept = c.buffer("won", mask) if mask is not None else None
    for r in range(rows):
        row, one = g.dsd(r * length, length), statistic.dsd(r, 1, 0)
        start = "loaded" if r else "code"
        if kept is None:
            c.core.mov(row, one, length=length, dtype=c.dtype, start=start)
        else:
            period = c.period(1.0 / max_rate(c.dtype, c.wafer))
            c.core.mul(
                row,
                kept.dsd(r * length, length),
                one,
                length=length,
                dtype=c.dtype,
                start=start,
                period=period,
            )
    gradient = c.rounded(np.float32(factor) * spread * (1.0 if mask is None else mask))
    result, values = backward(c, ops[:-1], (g, gradient))
    c.expected[result.name] = values


def _fold(c: Chain, x: Buffer, rows: int, op: str, statistic: Buffer) -> None:
    """Reduce every row to its statistic."""
    length, dtype = c.n // rows, "fp32" if c.dtype == "fp32" else "mixed"
    c.core.mov(statistic.dsd(), scalar(FIRST[op]))
    for r in range(rows):
        one = statistic.dsd(r, 1, 0)
        elements = x.dsd(r * length, length)
        getattr(c.core, op)(one, one, elements, length=length, dtype=dtype, start="loaded")


def _multicast(core: CoreClass, statistic: Buffer, color: int, is_root: bool) -> None:
    """Multicast a statistic from the first column to the others."""
    if is_root:
        core.mov(fabric_out(color), statistic.dsd())
    else:
        core.mov(statistic.dsd(), fabric_in(color))
