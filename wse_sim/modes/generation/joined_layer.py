"""The joined layer: n tokens pass a decoder layer together while its weights are stationary.

Decode pays for starts, hops and handovers once per token; n joined tokens pay for them once, and n times for
words and arithmetic. Symbols as in :mod:`wse_sim.kernels.blocks.mesh`; k x o the tile of a product, e
exponentials of a token, I short vector instructions of a layer, P the rows of the grid or, where a term is of
both directions, its shorter side, d = ceil(hidden / P)::

    product      the faster of n gemv(k, o), a row of weights at a time, and
                 S + k (L + o (o_map(n) + v(n))), one weight times a column of n tokens
    all-reduce   tree_allreduce(n o); of a statistic tree_allreduce(n)
    attention    n (gemv(q, 1) + gemv(1, q)), tree_allreduce(n), tree_allreduce(n q)
    special      ceil(n / P) times those of one token; for n > 1 their n e words travel along a line once more
    short        I o once; for n > 1 also I n d / rate

All contexts are one slot (up to P tokens) long; :func:`deep_cycles` gives the cost of longer ones. Experts:
if each token uses k of E at random, n tokens use g = E (1 - (1 - k / E)^n) experts on average, each with n k
/ g of them; with unequal probabilities, g = sum over experts of 1 - (1 - p_e)^n; if all tokens use the same,
g = k. Weights of 8 or 4 bits are unpacked once per turn, for g experts:
:mod:`wse_sim.modes.generation.quantized_weights`. Experts on separate cores: :mod:`wse_sim.modes.generation.expert_cores`.

Assumed, because no joined kernel is published: the cores of a line, which have copies of the data, divide the
special functions of several tokens. Without that these would be most of the layer.
"""

from __future__ import annotations

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.mesh import joined_gemv, mesh_gemv
from wse_sim.kernels.contract.equations import ceil_div, words
from wse_sim.kernels.contract.family import Cost, Count, Size
from wse_sim.modes.generation.decoder import LayerShape, LayerWork, Product
from wse_sim.modes.generation.expert_cores import apart_cycles, fullest_tokens
from wse_sim.modes.generation.grid import Sides, sides
from wse_sim.modes.generation.layer import decode_layer_cycles, reduced, work_of
from wse_sim.modes.generation.quantized_weights import unpacked_cycles


def joined_layer_cycles(
    shape: LayerShape | LayerWork, tokens: Count, grid: Sides, wafer: Wafer, *, groups: int | None = None
) -> Cost:
    """Return the cost of one layer for `tokens` joined tokens, with at most one token of context per row of
    cores.

    For one token this is the cost of decode.

    Example
    -------
    >>> from wse_sim.hardware import load_wafer
    >>> wafer, shape = load_wafer("wse3"), LayerShape(4096, 14336)
    >>> one, eight = (float(joined_layer_cycles(shape, n, 300, wafer).total) for n in (1, 8))
    >>> one == float(decode_layer_cycles(shape, 300, 300, wafer).total), 2 * one < eight < 3 * one
    (True, True)
    """
    work, (rows, cols) = work_of(shape), sides(grid)
    short = np.minimum(rows, cols)
    q, d = ceil_div(work.query, cols), ceil_div(work.hidden, short)
    cost = tokens * mesh_gemv(q, 1, wafer) + tokens * mesh_gemv(1, q, wafer)
    cost = cost + work.statistics * reduced(tokens, rows, groups, wafer, vertical=True)
    cost = cost + reduced(tokens, cols, groups, wafer)
    cost = cost + reduced(tokens * q, rows, groups, wafer, vertical=True)
    for p in work.products:
        if work.has_squares(p):
            cost = cost + apart_cycles(work, p, tokens, grid, wafer)
            continue
        more, vectors = met(work, p, tokens)
        for way in reversed(p.lies(work.hidden, grid)):
            cost = cost + (more * way.times) * joined_gemv(way.k, way.n, vectors, wafer)
            sums = reduced(vectors * way.n, way.line, groups, wafer, vertical=way.vertical)
            cost = cost + (more * way.times) * sums
    elements = 1 + 2.0 * ceil_div(work.activated, cols)
    roots = work.roots * wafer.sqrt_cycles + work.divisions * wafer.divide_cycles
    several, instructions = np.asarray(tokens) > 1, work.instructions(wafer)
    return cost + Cost(
        compute=several * instructions * tokens * d / wafer.peak_fma_fp16_per_cycle
        + unpacking(work, tokens, grid),
        special=ceil_div(tokens, short) * (elements * wafer.exp_cycles + roots),
        fabric=several * words(np.ceil(tokens * elements), "fp16") * wafer.wavelet_cycles,
        startup=instructions * wafer.vector_start_cycles,
    )


def met(work: LayerWork, product: Product, tokens: Count) -> tuple[Size, Count]:
    """Return the number of distinct matrices that `tokens` tokens use, relative to one token, and the tokens
    per matrix.

    With experts on separate cores, the fullest expert counts: one matrix, as for a single token.
    """
    if work.has_squares(product):
        return 1.0, fullest_tokens(work, tokens)
    if product.groups == 1:
        return 1.0, tokens
    share = min(product.share, float(product.groups))
    n = np.asarray(tokens, float)
    if work.is_identical:
        distinct = share + 0.0 * n
    elif work.expert_loads:
        distinct = np.sum(1.0 - (1.0 - np.array(work.expert_loads)) ** n[..., None], axis=-1)
    else:
        distinct = product.groups * (1.0 - (1.0 - share / product.groups) ** n)
    more = np.maximum(1.0, distinct / share)
    return more, np.ceil(np.asarray(tokens) / more - 1e-9).astype(np.int64)


def unpacking(work: LayerWork, tokens: Count, grid: Sides) -> Size:
    """Return the cycles in which a core unpacks the weights that `tokens` tokens use, each weight once."""
    return sum(met(work, p, tokens)[0] * unpacked_cycles(work, p, grid) for p in work.products)


def deep_cycles(
    shape: LayerShape | LayerWork, slots: Count, grid: Sides, wafer: Wafer, *, groups: int | None = None
) -> Size:
    """Return the extra cycles per token for `slots` tokens of context on every core of a line, compared with
    one slot."""
    rows, _ = sides(grid)
    deep = decode_layer_cycles(shape, slots * rows, grid, wafer, groups=groups)
    return deep.total - decode_layer_cycles(shape, rows, grid, wafer, groups=groups).total
