"""Closed-form cost of attention on P x P cores: prefill and decode as in WaferLLM (fp16; all heads treated as
one wide head).

Symbols: m queries, n keys, d features per core, E cycles per exponential, o = vector_start_cycles; other symbols and the
products in :mod:`wse_sim.kernels.blocks.mesh`.  Program: :mod:`wse_sim.kernels.families.attention.grid`.

prefill  scores   MeshGEMM of (m, d) x (d, n) in which only the keys move; the sums of a step pass every core of the
                  row once, words(m n) issue cycles each; the ring is filled once: (P - 1) (2 hop + 2 T_R + 1)
         softmax  m n E, five passes over the scores, two row all-reduces of m statistics
         values   MeshGEMM of (m, n) x (n, d); the scores end where it starts, so nothing is skewed
decode   shift    a key and a value of d features leave, as many arrive and take their places:
                  6 o + 4 words(d) + 2 d / mov
         two MeshGEMVs, K-tree all-reduces of n scores, maximum, sum, d outputs; n E and eight short instructions

The layer of :mod:`wse_sim.modes.generation.layer`, which is calibrated on published rates, differs from these
stand-alone kernels: it receives and sends the sums of a step separately, skews the value product, and prices
the K-tree with fitted counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_stages import MATRIX, ROW, RowLayout, Shape, issued
from wse_sim.kernels.blocks.mesh import best_groups, mesh_gemv, mesh_product
from wse_sim.kernels.blocks.softmax import gradient_vectors, softmax_vectors
from wse_sim.kernels.blocks.trees import k_tree, multicast_back, reduce_cost
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, row_allreduce, words
from wse_sim.kernels.contract.family import Attrs, Cost, Dims, Size, Tiling
from wse_sim.kernels.families.attention.attributes import AttentionAttributes

# Scores, and the gradient of the probabilities, in the precision in which they are stored; one statistic per
# query.
SOFTMAX_SHAPES = {
    "scores": Shape(MATRIX, "fp16"),
    "gradient": Shape(MATRIX, "fp16"),
    "statistic": Shape(ROW),
}
SOFTMAX = softmax_vectors("scores")
SOFTMAX_GRADIENT = gradient_vectors("scores", "gradient")


def grid_tile(dims: Dims, tiling: Tiling) -> tuple[Any, Any, Any]:
    """Return the queries, keys and features per core of the grid mapping."""
    return (
        ceil_div(dims["b"] * dims["q"], tiling.rows),
        ceil_div(dims["kv"], tiling.rows),
        ceil_div(dims["heads"] * dims["d"], tiling.cols),
    )


def grid_cost(dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs) -> Cost:
    """Return the cost of prefill or decode on a square grid; the option `groups` sets the groups of the
    K-tree.

    Raises
    ------
    KernelError
        If the grid is not square.
    """
    if not np.all(np.asarray(tiling.rows) == np.asarray(tiling.cols)):
        raise KernelError(
            f"attention 'grid' on {tiling.rows} x {tiling.cols} cores: operands shift on a square; use equal rows and cols"
        )
    m, n, d = grid_tile(dims, tiling)
    if dims["q"] * dims["b"] == 1:
        groups = AttentionAttributes.of(tiling.options, attrs).groups or int(best_groups(int(tiling.rows)))
        return _decode(n, d, int(tiling.rows), groups, wafer)
    return _prefill(m, n, d, tiling.rows, wafer)


def _prefill(m: Size, n: Size, d: Size, grid: Size, wafer: Wafer) -> Cost:
    around = (grid - 1) * (2 * wafer.hop_cycles + wafer.handover_cycles)
    sums = Cost(ramp=1.0 * grid * words(m * n, "fp16") * wafer.wavelet_cycles, idle=1.0 * around)
    scores = mesh_product((m, d, n), grid, wafer, skewed=False, left_moves=False) + sums
    compute, special, starts = issued(SOFTMAX, SOFTMAX_SHAPES, RowLayout(m, n), wafer)
    softmax = Cost(compute=compute, special=special, startup=starts) + 2.0 * row_allreduce(m, grid, wafer)
    return scores + softmax + mesh_product((m, n, d), grid, wafer, skewed=False)


def _decode(n: Size, d: Size, grid: int, groups: int, wafer: Wafer) -> Cost:
    o = wafer.vector_start_cycles
    shift = Cost(
        compute=2.0 * ceil_rate(d, wafer.mov_fp16_per_cycle),
        ramp=4.0 * words(d, "fp16") * wafer.wavelet_cycles,
        startup=6 * o,
    )
    cost = shift + mesh_gemv(d, n, wafer) + mesh_gemv(n, d, wafer)
    tree, call = k_tree(grid, groups, wafer.stream_order), Cost(startup=wafer.loop_cycles + o)
    for length in (n, 1, 1, d):
        up, back = reduce_cost(tree, length, wafer, "fp16"), multicast_back(length, tree, wafer, "fp16")
        cost = cost + call + up + back
    # Maximum and sum accumulate into one number: one element per cycle.
    passes = 2.0 * n + ceil_rate(n, wafer.add_fp16_per_cycle) + ceil_rate(n, wafer.fma_fp16_per_cycle)
    return cost + Cost(compute=passes, special=n * wafer.exp_cycles + wafer.divide_cycles, startup=8 * o)


def special_cycles(wafer: Wafer, attrs: Attrs, phase: Phase) -> float:
    """Return the cycles per score of softmax, mask and dropout."""
    kinds = 1.0 + (AttentionAttributes.of(attrs).dropout > 0.0)
    fraction = 1.0 if phase is Phase.FORWARD else wafer.backward_special_fraction
    return kinds * fraction * wafer.special_element_cycles
