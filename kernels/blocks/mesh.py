"""Closed-form costs of the grid mappings for inference: shifting and broadcasting products, and the K-tree.

Symbols: a grid of P x P cores; M, K, N = the tile of one core (ceil of the dimension over P); v(n) =
1 + ceil((n - W) / w) issue cycles of a column of n > W elements, else 1 (W = SIMD width = peak_fma_fp16_per_cycle,
w = rate of long columns; both are 4 on WSE-2, where this is ceil(n / 4)), and for odd n in fp16 the mean of that and ceil(n / w') with w' =
misaligned_fp16_per_cycle, because every other pair of columns starts half a 32-bit word apart; o = vector_start_cycles, o_map = map_element_cycles, o_vec = map_vector_cycles, L = loop_cycles, S =
step_cycles, kappa = bank_conflict_factor, hop = hop_cycles, T_R = ramp_cycles; all fp16 unless said.

MeshGEMM (cyclic shift, ring folded so that the wrap-around costs two hops)::

    T     = P [ S + K (L + N (o_map(M) + v(M))) + moves ] + skew       o_map(n) = o_map, and o_vec more if n > 1
    moves = 2 (ceil(M K / mov) + ceil(K N / mov))     send and receive, taken from the issue slot
    skew  = floor(P/2) (S + words(M K) + 2 hop + 2 T_R + 1)   when the left operand is not yet skewed

Cannon (plain ring: the wrap-around crosses the grid)::

    as MeshGEMM, and once per axis max(0, S + (P - 1) hop + 2 T_R + 1 + words - step)

Cores are not synchronised, so the first core of a ring is delayed by the wrap-around once and keeps that lag.
With a barrier after each step, the delay would be paid P times.

SUMMA (broadcast of a column of A tiles and a row of B tiles per step, not overlapped)::

    T = P [ K N (L + kappa v(M)) + words(M K) + words(K N) + 2 o + 2 (hop + 2 T_R + 1) ] + 2 P hop

kappa = 1 when C and A start in different banks; cores wait only for their two tiles (a barrier after each
step would cost P hop per step).

MeshGEMV and its all-reduce over a K-tree: G groups of g = P / G cores, group roots in the middle of
their group, the final root in the middle group, R = (G/2) g + g/2 hops away from the far end::

    gemv      = L + K (o_map(N) + v(N)), then an all-reduce of N
    allreduce = 2 R hop + 2 x(R) + (g/2 + G/2) hop + q (o + B) + h T_H + L,      B = words(N)

The root takes q = 6 streams (`tree_root_streams`) one after another (two halves of its group, two sides of the group
roots, and one multicast each way): six starts and six times B.  h = 8 (`tree_handovers`) dependent receive-and-send
steps are on the critical path beyond the hops.  Skew survives a collective, so each pays the full
2 R.  Both counts are **fitted**: calibration 1.4 prints 5 (g/2 + G/2) + 4 B + 4 o,
which misses its own decode table by up to 1.5 %; this form meets that table within 0.2 % and the four
measurements within 1 %.  The recursion of :mod:`wse_sim.kernels.blocks.trees`, which agrees with the program
and which `gemv` uses, makes decode 0.8 to 2.5 % faster than measured.

Source: calibration 1.3 to 1.5 against WaferLLM (arXiv 2502.04563v3) and a published SGEMM.
"""

from __future__ import annotations

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import ceil_rate, crossing_cycles, fma_rate, mov_rate, words
from wse_sim.kernels.contract.family import Cost, Size
from wse_sim.kernels.contract.parameters import HALF_SUMS


def _issue(elements: Size, wafer: Wafer, dtype: str, accumulate: str, conflict: float = 1.0) -> Size:
    """Return v(n), the issue cycles of a multiply-accumulate over a column of `elements` in a tile of such
    columns."""
    rate = fma_rate(dtype, wafer, accumulate) / conflict
    if dtype == "fp32" or accumulate not in HALF_SUMS:
        return ceil_rate(elements, rate)
    if conflict == 1.0:
        aligned = 1 + ceil_rate(
            np.maximum(0, np.asarray(elements) - int(wafer.peak_fma_fp16_per_cycle)), rate
        )
    else:
        aligned = ceil_rate(elements, rate)
    slow = ceil_rate(elements, min(rate, wafer.misaligned_fp16_per_cycle))
    return aligned + 0.5 * (np.asarray(elements) % 2) * (slow - aligned)


def _mapped(elements: Size, wafer: Wafer) -> Size:
    """Return o_map(n), the cycles of a map around one instruction over `elements`."""
    return wafer.map_element_cycles + wafer.map_vector_cycles * (np.asarray(elements) > 1)


def mesh_product(
    tile: tuple[Size, Size, Size],
    grid: Size,
    wafer: Wafer,
    *,
    dtype: str = "fp16",
    accumulate: str = "fp16",
    skewed: bool = True,
    left_moves: bool = True,
    reduce_rows: bool = False,
    ring: str = "folded",
) -> Cost:
    """Return the cost of MeshGEMM or (``ring="plain"``) Cannon: tiles (m, k) x (k, n) on `grid` x `grid`
    cores.

    `reduce_rows`: only the right operand moves and each step ends in a reduce of the (m, n) sums along
    the row, pipelined over the steps (the scores of attention).
    """
    m, k, n = tile
    rate = mov_rate(dtype, wafer)
    compute = k * n * _issue(m, wafer, dtype, accumulate)
    loops = wafer.step_cycles + k * (wafer.loop_cycles + n * _mapped(m, wafer))
    moves = 2.0 * ceil_rate(k * n, rate)
    if left_moves:
        moves = moves + 2.0 * ceil_rate(m * k, rate)
    if reduce_rows:
        # Receive and send the sums, and move them once as the root; chained over the steps.
        moves = moves + 2.0 * words(m * n, dtype) + ceil_rate(m * n, rate)
    flight = 2 * wafer.hop_cycles + wafer.handover_cycles
    skew = (grid // 2) * (wafer.step_cycles + words(m * k, dtype) + flight) if skewed else 0.0 * compute
    wait = 0.0 * compute
    if ring == "plain":
        far = wafer.step_cycles + (grid - 1) * wafer.hop_cycles + wafer.handover_cycles
        for elements in (m * k, k * n):
            wait = wait + np.maximum(0.0, far + words(elements, dtype) - compute - loops - moves)
    return Cost(compute=grid * compute, startup=grid * loops, ramp=grid * moves, fabric=wait, idle=skew)


def summa(
    m: Size, k: Size, n: Size, steps: Size, wafer: Wafer, *, dtype: str, accumulate: str, conflict: bool
) -> Cost:
    """Return the cost of SUMMA: tiles (m, k) x (k, n), `steps` steps; `conflict`: C and A start in the same
    bank."""
    factor = wafer.bank_conflict_factor if conflict else 1.0
    sent = (words(m * k, dtype) + words(k * n, dtype)) * wafer.wavelet_cycles
    relay = wafer.hop_cycles + wafer.handover_cycles
    return Cost(
        compute=steps * k * n * _issue(m, wafer, dtype, accumulate, factor),
        startup=wafer.task_start_cycles
        + 1.0 * steps * (k * n * wafer.fma_turn_cycles + 2 * wafer.vector_start_cycles),
        ramp=1.0 * steps * sent,
        idle=2.0 * steps * (relay + wafer.hop_cycles),
    )


def mesh_gemv(k: Size, n: Size, wafer: Wafer, *, dtype: str = "fp16", accumulate: str = "fp16") -> Cost:
    """Return the cost of the local product of a vector piece of length k with a (k, n) tile."""
    return Cost(
        compute=1.0 * k * _issue(n, wafer, dtype, accumulate),
        startup=wafer.loop_cycles + 1.0 * k * _mapped(n, wafer),
    )


def joined_gemv(
    k: Size,
    n: Size,
    vectors: Size,
    wafer: Wafer,
    *,
    column: str = "",
    dtype: str = "fp16",
    accumulate: str = "fp16",
) -> Cost:
    """Return the cost of a local product of `vectors` vector pieces of length k with a stationary (k, n)
    tile, without transport.

    The `column` of an instruction is a row of "weights", once for every vector, or a feature of all
    "vectors", once for every weight; "" selects the faster one.
    """
    weights = vectors * mesh_gemv(k, n, wafer, dtype=dtype, accumulate=accumulate)
    together = Cost(
        compute=1.0 * k * n * _issue(vectors, wafer, dtype, accumulate),
        startup=wafer.step_cycles + k * (wafer.loop_cycles + n * _mapped(vectors, wafer)),
    )
    if column:
        return weights if column == "weights" else together
    # A single vector would give columns of one element, which no kernel uses.
    return weights.or_faster(together + Cost(idle=np.where(np.asarray(vectors) > 1, 0.0, np.inf)))


def best_groups(grid: Size) -> Size:
    """Return the number of groups that makes the K-tree shallow: about sqrt(P)."""
    return (
        np.maximum(1, np.rint(np.sqrt(grid)).astype(np.int64))
        if isinstance(grid, np.ndarray)
        else max(1, round(grid**0.5))
    )


def tree_allreduce(
    n: Size, grid: Size, groups: Size, wafer: Wafer, *, dtype: str = "fp16", vertical: bool = False
) -> Cost:
    """Return the cost of an all-reduce of n elements along lines of `grid` cores in `groups` groups."""
    g = grid // groups
    b = words(n, dtype) * wafer.wavelet_cycles
    distance = (groups // 2) * g + g // 2
    depth = g // 2 + groups // 2
    zero = 0.0 * (b + distance)
    crossings = 2 * crossing_cycles(distance, wafer) if vertical else 0
    return Cost(
        fabric=wafer.tree_root_streams * b + zero,
        startup=wafer.tree_root_streams * wafer.vector_start_cycles + wafer.loop_cycles + zero,
        ramp=wafer.tree_handovers * wafer.handover_cycles + zero,
        idle=(2 * distance + depth) * wafer.hop_cycles + crossings + zero,
    )
