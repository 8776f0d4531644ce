"""A chain of operators that ends in a reduction over rows, as a fabric program.

A core holds n elements of r rows and folds each row into a sum in fp32, one element per cycle; the r results
are reduced along the row of cores and multicast back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Tiling
from wse_sim.kernels.chains import Chain, check_chain, forward
from wse_sim.kernels.lines import Line, emit_reduce, route_broadcast, route_reduce
from wse_sim.kernels.trees import chain as line_chain

REDUCED = {"sum": "add", "mean": "add", "amax": "max", "amin": "min"}
NUMPY = {"add": np.sum, "max": np.max, "min": np.min}
FIRST = {"add": 0.0, "max": -6e4, "min": 6e4}


class Every:
    """Several core classes that are written as one."""

    def __init__(self, cores: Sequence[Any]) -> None:
        self.cores = cores

    def __getattr__(self, name: str) -> Any:
        def call(*operands: Any, **options: Any) -> None:
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
    **_: Any,
) -> Case:
    """Operators, then a reduction: sum, mean, amax or amin.

    Raises
    ------
    KernelError
        Backward, and if the elements of a core are not whole rows.
    """
    from wse_sim.fabric.builder import scalar

    if phase is not Phase.FORWARD:
        raise KernelError(f"generated '{ops[-1]}' has no fabric program for phase {phase.value}; use forward")
    if n % rows:
        raise KernelError(f"generated: {n} elements per core are not {rows} equal rows; use multiples")
    check_chain("generated", ops[:-1])
    c, width = Chain(tiling, n, wafer, dtype, seed), int(tiling.cols)
    line, op = Line(c.builder, vertical=False), REDUCED[ops[-1]]
    steps, color = route_reduce(line, line_chain(width), 0)
    route_broadcast(line, 0, width, color)
    cores = [c.builder.core_class(f"column {v}") for v in range(width)]
    c.core = Every(cores)
    x, value = forward(c, ops[:-1])
    statistic = c.builder.buffer("statistic", rows)
    factor = 1.0 / (n // rows * width) if ops[-1] == "mean" else 1.0
    _fold(c, x, rows, op, statistic)
    if factor != 1.0:
        c.core.mul(statistic.dsd(), statistic.dsd(), scalar(factor), start="loaded")
    for v, core in enumerate(cores):
        if width > 1:
            _share(core, op, statistic, steps[v], color, v == 0)
        c.builder.place(core, line.place(v))
    tiles = value.reshape(int(tiling.rows), width, rows, n // rows)
    wanted = factor * NUMPY[op](tiles, axis=(1, 3))
    c.expected["statistic"] = np.broadcast_to(wanted[:, None], (int(tiling.rows), width, rows))
    return c.case(placed=True)


def _fold(c: Chain, x: Any, rows: int, op: str, statistic: Any) -> None:
    """Every row onto its statistic."""
    from wse_sim.fabric.builder import scalar

    length, dtype = c.n // rows, "fp32" if c.dtype == "fp32" else "mixed"
    c.core.mov(statistic.dsd(), scalar(FIRST[op]))
    for r in range(rows):
        one = statistic.dsd(r, 1, 0)
        elements = x.dsd(r * length, length)
        getattr(c.core, op)(one, one, elements, length=length, dtype=dtype, start="loaded")


def _share(core: Any, op: str, statistic: Any, step: Any, back: int, is_root: bool) -> None:
    """Reduce along the row of cores, multicast back."""
    from wse_sim.fabric.builder import fabric_in, fabric_out

    emit_reduce(core, step, statistic, "fp32", start="code", op=op)
    if is_root:
        core.mov(fabric_out(back), statistic.dsd())
    else:
        core.mov(statistic.dsd(), fabric_in(back))
