"""Experts on separate cores: each of E experts on a square of the grid, so that the experts of a turn work in
parallel.

Each side of the grid of P x P cores has q = ceil(sqrt(E)) squares with a side of e = P // q cores. (On a
rectangle each side is divided, and the longer distance counts.) A token's vector travels to the squares of
its k experts and the results return, along all lines of the grid in parallel; d = ceil(hidden / P) features
of a token are on a line::

    product     joined_gemv(ceil(k / e), ceil(o / e), m), tree_allreduce(m ceil(o / e)) on e cores
    dispatch    words(n k d), P hops, a handover, a start;  the same to collect the results, and their sum
    weights     of one expert on a core:  sum of ceil(k / e) ceil(o / e)

m is the mean over turns of the largest number of tokens per expert, since the slowest expert determines the
time: with N_e tokens of expert e, binomial over n tokens with its probability p_e, and assumed to be
independent of the others::

    m = sum over j >= 0 of  1 - product over e of P(N_e <= j)

If all tokens use the same experts, m is n. Compared with experts on all cores
(:mod:`wse_sim.modes.generation.joined_layer`), products and all-reduces of a turn are not summed over its experts,
but each works on a tile that is q^2 times as large on fewer cores.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.mesh import best_groups, joined_gemv, tree_allreduce
from wse_sim.kernels.contract.equations import ceil_div, words
from wse_sim.kernels.contract.family import Cost, Count
from wse_sim.modes.generation.decoder import LayerWork, Product
from wse_sim.modes.generation.grid import Sides, sides


def apart_cycles(work: LayerWork, product: Product, tokens: Count, grid: Sides, wafer: Wafer) -> Cost:
    """Return the cost of a product of experts on separate squares, its all-reduce, and its part of the dispatch."""
    m, times, (rows, cols) = fullest_tokens(work, tokens), product.times / product.share, sides(grid)
    is_back = product.n == work.hidden
    alone = Cost()
    for side in product.lies(work.hidden, work.expert_sides(grid)):
        alone = alone + side.times / product.times * joined_gemv(side.k, side.n, m, wafer)
        sums = tree_allreduce(m * side.n, side.line, best_groups(side.line), wafer, vertical=side.vertical)
        alone = alone + side.times / product.times * sums
    moved = words(tokens * product.share * ceil_div(work.hidden, rows), "fp16")
    way = Cost(
        fabric=moved * wafer.wavelet_cycles,
        startup=wafer.vector_start_cycles,
        idle=1.0 * np.maximum(rows, cols) * wafer.hop_cycles + wafer.handover_cycles,
    )
    added = Cost(compute=2.0 * moved / wafer.peak_fma_fp16_per_cycle)
    # Results come back from the products that end in features of the layer; vectors go to the others.
    return times * alone + (times * (way + added) if is_back else way)


def fullest_tokens(work: LayerWork, tokens: Count) -> Count:
    """Return m: the largest number of tokens per expert in a turn, averaged over turns and rounded up."""
    picked, same = work.picked, work.is_identical
    found = [math.ceil(fullest_mean(n, picked, same) - 1e-9) for n in np.atleast_1d(tokens).tolist()]
    return np.array(found, np.int64) if np.ndim(tokens) else found[0]


@lru_cache(maxsize=4096)
def fullest_mean(tokens: int, picked: tuple[tuple[float, int], ...], is_identical: bool) -> float:
    """Return m before rounding, for probabilities, each with the number of experts that have it."""
    if is_identical or tokens == 1 or any(p >= 1.0 for p, _ in picked):
        return float(tokens)
    j, whole = np.arange(tokens), math.lgamma(tokens + 1)
    choose = np.array([whole - math.lgamma(i + 1) - math.lgamma(tokens - i + 1) for i in range(tokens)])
    below = np.zeros(tokens)
    for p, count in picked:
        each = np.exp(choose + j * math.log(p) + (tokens - j) * math.log1p(-p))
        below += count * np.log(np.clip(np.cumsum(each), 1e-300, 1.0))
    return max(1.0, float((1.0 - np.exp(below)).sum()))
