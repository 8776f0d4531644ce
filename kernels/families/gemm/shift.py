"""MeshGEMM and Cannon as fabric programs: both operands shift around rings, P steps on P x P cores.

MeshGEMM folds the ring: it visits even positions upward and odd positions downward, so that neighbours are at
most two links apart.  Cannon's ring is plain: neighbours are adjacent, and the wrap-around crosses the grid.
With r and c the ring ranks of a core's row and column, the steps start with the tiles of k = (r + c) mod P
(the skewed placement), and after every step a core passes both on to the next rank.  The right operand is
stored skewed, and so is the left one with ``skew=False``. Otherwise MeshGEMM first shifts the left operand
into place: on the folded ring an even row y moves its tiles back by y / 2 ranks, an odd row forward by (y +
1) / 2 ranks. Per step: S cycles of task switching, four asynchronous moves, K rounds of L cycles and a map of
N multiply-accumulates of length M.  Moves share the issue slot with the arithmetic; those of fp16 elements
move two words per issue cycle (SIMD-64, as the published program does), which is the mov16 rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.ring import WIDE, ring, route_ring
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Case, Dims, ProgramOptions, Tiling, asked
from wse_sim.kernels.families.gemm.attributes import GemmAttributes


def mesh_program(dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
    """Return the program of C = A B in fp16; ``algorithm="cannon"``: plain rings, operands already skewed."""
    _, dtype, attrs = asked(options)
    p = int(tiling.rows)
    folded = tiling.algorithm != "cannon"
    skewed = folded and p > 1 and GemmAttributes.of(tiling.options, attrs).skew
    order = ring(p, folded=folded)
    m, k, n = (ceil_div(int(dims[name]), p) for name in "mkn")
    b = new_builder(p, p, wafer)
    # A starts two banks away from C, so that the columns that one instruction reads do not conflict.
    c = b.buffer("c", m * n, dtype, bank=0)
    left = [b.buffer(f"a{i}", m * k, dtype, bank=2) for i in (0, 1)]
    right = [b.buffer(f"b{i}", k * n, dtype) for i in (0, 1)]
    a_send, a_receive, used = route_ring(Line(b, vertical=False), order, 0)
    b_send, b_receive, more = route_ring(Line(b, vertical=True), order, used)
    shifts = [(a_send, a_receive), (a_send, a_receive)]  # of even and odd rows
    counts = np.zeros((p, p), np.int64)
    if skewed:
        even = Line(b, vertical=False, across=slice(0, None, 2))
        shifts[0] = route_ring(even, [order[0], *order[:0:-1]], used + more)[:2]
        counts[...] = ((np.arange(p) + 1) // 2)[:, None]
    odd_step, pairs = b.param(counts % 2), b.param(counts // 2)
    kinds: dict[tuple[int, int, int, int, int, int], Any] = {}
    for row, col in np.ndindex(p, p):
        send, receive = shifts[row % 2]
        key = (a_send[col], a_receive[col], b_send[row], b_receive[row], send[col], receive[col])
        kinds.setdefault(key, np.zeros((p, p), bool))[row, col] = True
    costs = (round(wafer.step_cycles), round(wafer.loop_cycles))
    for number, ((a_out, a_in, b_out, b_in, skew_out, skew_in), mask) in enumerate(kinds.items()):
        core = b.core_class(f"core {number}")
        colors = (a_out, a_in, b_out, b_in)
        if skewed:
            for rounds, starts in ((odd_step, (1,)), (pairs, (0, 1))):
                with core.loop(rounds):
                    for now in starts:
                        core.busy(costs[0])
                        _move(
                            core,
                            ((fabric_out(skew_out), left[now]), (left[1 - now], fabric_in(skew_in))),
                            dtype,
                        )
        with core.loop(p // 2):
            for i in (0, 1):
                _step(core, colors, left, right, c, (m, k, n), i, dtype, costs)
        if p % 2:
            _step(core, colors, left, right, c, (m, k, n), 0, dtype, costs)
        b.place(core, mask)
    return _case(b, dims, order, (m, k, n), int(options.get("seed", 0)), counts if skewed else None)


def _step(
    core: CoreClass,
    colors: tuple[int, int, int, int],
    left: Sequence[Buffer],
    right: Sequence[Buffer],
    c: Buffer,
    tile: tuple[int, int, int],
    now: int,
    dtype: str,
    costs: tuple[int, int],
) -> None:
    """Start the four moves, multiply the current tiles, wait for the moves."""
    (m, k, n), (step_cycles, loop_cycles) = tile, costs
    a_out, a_in, b_out, b_in = colors
    core.busy(step_cycles)
    moves = (
        (fabric_out(a_out), left[now]),
        (fabric_out(b_out), right[now]),
        (left[1 - now], fabric_in(a_in)),
        (right[1 - now], fabric_in(b_in)),
    )
    _start(core, moves, dtype)
    with core.loop(k):
        core.busy(loop_cycles)
        core.fmac_vectors(
            c.dsd(),
            right[now].dsd(0, n, step=n),
            left[now].dsd(0, m, step=m),
            m,
            dst_stride=m,
            b_stride=0,
            dtype=dtype,
            start="none",
        )
    for thread in range(1, 5):
        core.join(thread)


def _start(core: CoreClass, moves: tuple[tuple[Any, Any], ...], dtype: str) -> None:
    """Start moves between tiles and the fabric, each on its own microthread."""
    for thread, pair in enumerate(moves, 1):
        target, source = (end.dsd() if hasattr(end, "dsd") else end for end in pair)
        core.mov(
            target, source, dtype=dtype, wire=WIDE.get(dtype), thread=thread, start="none", priority="medium"
        )


def _move(core: CoreClass, moves: tuple[tuple[Any, Any], ...], dtype: str) -> None:
    """Start moves and wait for all of them."""
    _start(core, moves, dtype)
    for thread in range(1, len(moves) + 1):
        core.join(thread)


def _case(
    b: Builder,
    dims: Dims,
    order: list[int],
    tile: tuple[int, int, int],
    seed: int,
    counts: np.ndarray | None,
) -> Case:
    """Return the program with its inputs; `counts` (P, P): remaining skew steps, or None if already
    skewed."""
    (m, k, n), p = tile, len(order)
    rng = np.random.default_rng(seed)
    a, x = np.zeros((p * m, p * k), np.float32), np.zeros((p * k, p * n), np.float32)
    a[: dims["m"], : dims["k"]] = rng.integers(-1, 2, (dims["m"], dims["k"]))
    x[: dims["k"], : dims["n"]] = rng.integers(-1, 2, (dims["k"], dims["n"]))
    rank = np.argsort(order)
    row, col = np.mgrid[0:p, 0:p]
    inner = (rank[row] + rank[col]) % p
    held = inner if counts is None else np.broadcast_to(rank[col], (p, p))
    a_tiles = a.reshape(p, m, p, k).transpose(0, 2, 3, 1).reshape(p, p, k * m)
    x_tiles = x.reshape(p, k, p, n).transpose(0, 2, 1, 3).reshape(p, p, k * n)
    wanted = (a @ x).reshape(p, m, p, n).transpose(0, 2, 3, 1).reshape(p, p, n * m)
    inputs = {"a0": a_tiles[row, held], "b0": x_tiles[inner, col]}
    if counts is not None:  # an odd number of steps starts from the other buffer
        inputs["a1"] = inputs["a0"]
    return Case(b.build(), b.config, inputs, {"c": wanted})
