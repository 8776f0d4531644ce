"""SUMMA as a fabric program: P steps on P x P cores; in step t column t of A tiles and row t of B tiles are multicast.

One color per axis.  The router of position j goes through three switch positions: receive from the low side
and pass on; inject its own tile both ways; receive from the high side and pass on.  The sender ends its tile
with a control wavelet; its first command switches the sender's router, its second the next one.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.rounds import end_turn, route_turns
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Array, Case, Dims, ProgramOptions, Tiling
from wse_sim.kernels.families.gemm.attributes import GemmAttributes

A_COLOR, B_COLOR = 0, 1


def summa_program(dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
    """Return the program of C = A B on a square grid; tiles are column-major (A, C: columns of M; B: rows of
    N).

    Raises
    ------
    KernelError
        If the grid is not square or another algorithm is requested.
    """
    p = int(tiling.rows)
    if tiling.algorithm not in {"", "summa"} or p != int(tiling.cols):
        raise KernelError(
            f"gemm '{tiling.algorithm}' on {tiling.rows} x {tiling.cols} cores has no fabric program; "
            "use summa on a square grid"
        )
    dtype = str(options.get("dtype", "fp32"))
    m, k, n = (ceil_div(int(dims[name]), p) for name in "mkn")
    conflict = GemmAttributes.of(tiling.options, options.get("attrs")).bank_conflict
    b = new_builder(p, p, wafer)
    c = b.buffer("c", m * n, dtype, bank=0)
    b_own, b_in = b.buffer("b", k * n, dtype), b.buffer("b_in", k * n, dtype)
    bank = 0 if conflict else 2
    a_own, a_in = b.buffer("a", m * k, dtype, bank=bank), b.buffer("a_in", m * k, dtype, bank=bank)
    for color, vertical in ((A_COLOR, False), (B_COLOR, True)):
        route_turns(Line(b, vertical), p, color, loop_back=p == 1)

    row, col = np.mgrid[0:p, 0:p]
    first, last = np.minimum(row, col), np.maximum(row, col)
    before, between, after = b.param(first), b.param(np.maximum(last - first - 1, 0)), b.param(p - 1 - last)
    tile = (m, k, n, c, dtype, round(wafer.fma_turn_cycles))
    for name, where in (("diagonal", row == col), ("below", col < row), ("above", col > row)):
        if not where.any():
            continue
        core = b.core_class(name)
        core.busy(b.config.task_start_cycles)

        def turn(core: CoreClass, sends_a: bool, sends_b: bool) -> None:
            left = _tile(core, A_COLOR, a_own, a_in, dtype, sends_a)
            right = _tile(core, B_COLOR, b_own, b_in, dtype, sends_b)
            _multiply(core, left, right, *tile)

        with core.loop(before):
            turn(core, False, False)
        if name == "diagonal":
            turn(core, True, True)
        else:
            turn(core, name == "below", name == "above")
            with core.loop(between):
                turn(core, False, False)
            turn(core, name == "above", name == "below")
        with core.loop(after):
            turn(core, False, False)
        b.place(core, where)
    return _case(b, dims, p, (m, k, n), int(options.get("seed", 0)))


def _tile(core: CoreClass, color: int, own: Buffer, received: Buffer, dtype: str, sends: bool) -> Buffer:
    """Send the core's tile, or receive one; return the buffer to multiply with."""
    if sends:
        core.mov(fabric_out(color), own.dsd(), dtype=dtype)
        end_turn(core, color)
        return own
    core.mov(received.dsd(), fabric_in(color), dtype=dtype)
    return received


def _multiply(
    core: CoreClass, a: Buffer, b: Buffer, m: int, k: int, n: int, c: Buffer, dtype: str, loop_cycles: int
) -> None:
    """Emit K N multiply-accumulates of length M: C[:, j] += A[:, i] B[i, j]."""
    with core.loop(k), core.loop(n):
        core.busy(loop_cycles)
        target = c.dsd(0, m, step=m)
        core.fmac(
            target,
            target,
            a.dsd(0, m, outer_step=m),
            b.dsd(0, m, 0, step=1, outer_step=n),
            dtype=dtype,
            start="none",
        )


def _case(b: Builder, dims: Dims, p: int, tile: tuple[int, int, int], seed: int) -> Case:
    m, k, n = tile
    rng = np.random.default_rng(seed)
    a, x = np.zeros((p * m, p * k), np.float32), np.zeros((p * k, p * n), np.float32)
    a[: dims["m"], : dims["k"]] = rng.integers(-2, 3, (dims["m"], dims["k"]))
    x[: dims["k"], : dims["n"]] = rng.integers(-2, 3, (dims["k"], dims["n"]))

    def columns(matrix: Array, height: int, width: int) -> Array:
        return matrix.reshape(p, height, p, width).transpose(0, 2, 3, 1).reshape(p, p, height * width)

    right = x.reshape(p, k, p, n).transpose(0, 2, 1, 3).reshape(p, p, k * n)
    return Case(b.build(), b.config, {"a": columns(a, m, k), "b": right}, {"c": columns(a @ x, m, n)})
