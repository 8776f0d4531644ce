"""Attention by pairs: queries over the rows, keys and values over the columns; a core has the scores of its pairs.

Symbols: T tokens, H heads of d features, of keys and values H' of them (H' = H, or a divisor: groups of queries share them); t = ceil(T / R) queries and n = ceil(T / C) keys of the fullest core on R rows and C
columns; S = H t n scores and N = t H d results of it; o = vector_start_cycles, e = special_element_cycles,
w multiply-accumulates per cycle, p = ceil(T / n) columns in use::

    scores    3 o + S d + S / mov + S / mul [+ 2 o + e S + S / mul with a cap] [+ o + S / add with a mask]
    softmax   e S, or its instructions if these take longer; maximum and sum: 4 (o + H t), and two row collectives of
              (p - 1) (relay + hop) + handover cycles each
    values    2 o + S / mov + S ceil(d / w); o + N words along the row, even with a single column
    words     N / 2 queries, n H' d keys and values received
    late      min(n H' d, excess of the T H' d words over the time of the scores and their maximum)
    link      T H' d words of keys and values
    fill      in training: both row collectives, the sum along the row, hop + handover to its collector

The heads may be split into `bands` of rows, each with H / bands heads on R / bands rows and with separate links. A band
has at least two rows; otherwise there are no bands.

Columns receive their keys and values in sequence, from the beginning of a sample. A column that receives them
after its maximum delays the row's sum by that time, because the other columns, which have theirs, wait for
it.

Cores next to the rows collect results and send them. In training (`trains`) those of one row of the region also collect
sums of keys and values, so R - 1 rows have pairs. Backward, with K = n H' d sums of keys::

    products  4 o + S d + S / mov + 3 S ceil(d / w) + o + S / w       dp; dv, dq and dk; ds in fp16
    softmax   e S / 4, or its instructions if these take longer; a sum: 2 (o + H t) and one collective, as above
    sums      o + N words along the row, 2 K down the column
    words     N / 2 gradients received
    link      T H' d words of the gradients of keys and values

Of the numbers of bands in training, the one with which both passes together are fastest is counted.

This is the layout of attention in a region of a whole model on the fabric
(:mod:`wse_sim.whole.regions.attention`, :mod:`wse_sim.whole.trained.attention`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_stages import MATRIX, ROW, RowLayout, Shape, issued
from wse_sim.kernels.blocks.softmax import gradient_vectors, softmax_vectors
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, relay_cycles
from wse_sim.kernels.contract.family import Attrs, Cost, Count, Dims, Footprint, Size, Tiling
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.kernels.families.attention.cost import special_cycles

SHAPES = {"scores": Shape(MATRIX), "statistic": Shape(ROW)}
SOFTMAX = softmax_vectors("scores")
GRADIENT_SHAPES = {"y": Shape(MATRIX, "fp16"), "g": Shape(MATRIX), "statistic": Shape(ROW)}
GRADIENT = gradient_vectors("y", "g")
LEAST_ROWS = 2  # of one band
SLOT_ELEMENTS, BUFFERS = 4, 9
AHEAD = 2
"""Slots by which the gradient of a sample's results precedes its queries: one gradient is used, the next one arrives."""


def pair_tile(tokens: int, tiling: Tiling, attrs: Attrs) -> tuple[Size, Size]:
    """Return the queries and keys of the fullest core."""
    spare = AttentionAttributes.of(attrs).trains
    return ceil_div(tokens, np.maximum(tiling.rows - spare, 1)), ceil_div(tokens, tiling.cols)


def heads_of_keys(dims: Dims) -> Size:
    """Return the heads of keys and values: fewer than those of queries if groups of queries share them."""
    return dims.get("kv_heads", dims["heads"])


def in_band(dims: Dims, tiling: Tiling, attrs: Attrs) -> tuple[Dims, Tiling]:
    """Return the sizes and the cores of one band of rows, or of the whole region if there are no bands."""
    bands = AttentionAttributes.of(attrs).bands
    if bands == 1:
        return dims, tiling
    count = np.ones(np.shape(tiling.rows), np.int64)
    for part in range(2, bands + 1):
        if bands % part == 0:
            count = np.where(tiling.rows >= LEAST_ROWS * part, np.int64(part), count)
    return _parted(dims, tiling, count)


def _parted(dims: Dims, tiling: Tiling, count: Count) -> tuple[Dims, Tiling]:
    """Return the sizes and the cores of one of `count` bands."""
    heads = {"heads": dims["heads"] // count, "kv_heads": heads_of_keys(dims) // count}
    return {**dims, **heads}, replace(tiling, rows=tiling.rows // count)


def pair_footprint(dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs) -> Footprint:
    """Return the bytes of a core: fp16 queries, keys and values of two samples, scores, weights and
    results; in training those of :func:`collected_bytes`."""
    dims, tiling = in_band(dims, tiling, attrs)
    t, n = pair_tile(int(dims["q"]), tiling, attrs)
    width, scores = dims["heads"] * dims["d"], dims["heads"] * t * n
    if AttentionAttributes.of(attrs).trains:
        fixed, each = collected_bytes(dims, t, n, wafer, attrs)
        held = 1.0 * max(1, AttentionAttributes.of(attrs).held_samples) * each
        return Footprint(
            activations_bytes=held, buffers_bytes=1.0 * fixed, code_bytes=wafer.kernel_code_bytes
        )
    return Footprint(
        activations_bytes=2.0 * (2 * t * width + 4 * n * heads_of_keys(dims) * dims["d"]),
        buffers_bytes=10 * scores + 4.0 * t * width,
        code_bytes=wafer.kernel_code_bytes,
    )


def collected_bytes(dims: Dims, t: Size, n: Size, wafer: Wafer, attrs: Attrs) -> tuple[Size, Size]:
    """Return the bytes of a core with `t` queries and `n` keys in training: those of the sample in process, with the gaps
    before buffers that start in their bank, and those that each sample in flight adds.

    In process are fp32 scores, a number per query and head, the mask, sums of results, of keys and of values, and
    fp16 gradients of scores and of results. In flight are fp16 queries, keys, values and weights; gradients of results take the
    slots of queries that are done with, and :data:`AHEAD` more.
    """
    heads, per_query, per_key = (
        dims["heads"],
        dims["heads"] * dims["d"] * t,
        heads_of_keys(dims) * dims["d"] * n,
    )
    scores = heads * t * n
    wide = scores * (1 + AttentionAttributes.of(attrs).masks) + heads * t + per_query + 2 * per_key
    held = [slot_elements(size) for size in (per_query, 2 * per_key, scores)]
    gaps = BUFFERS * 2 * (wafer.sram_banks + 1)
    return 4 * wide + 2 * (scores + AHEAD * held[0]) + gaps, 2 * sum(held)


def slot_elements(size: Size) -> Size:
    """Return the elements from a sample's slot to the next: every slot starts in the bank of the first one."""
    return SLOT_ELEMENTS * ceil_div(size, SLOT_ELEMENTS)


def pair_cost(dims: Dims, tiling: Tiling, wafer: Wafer, phase: Phase, attrs: Attrs) -> Cost:
    """Return the cost per sample of the busiest core, including waits for row sums and for late words; in training also
    for the words of a link."""
    stated = AttentionAttributes.of(attrs)
    if not stated.trains:
        return _band_cost(*in_band(dims, tiling, attrs), wafer, phase, attrs)
    found, least = Cost(), np.inf + 0.0 * tiling.rows * tiling.cols
    for count in range(1, stated.bands + 1):
        if stated.bands % count or count < stated.least_bundles:
            continue
        band = _parted(dims, tiling, count)
        fixed, each = collected_bytes(band[0], *pair_tile(int(dims["q"]), band[1], attrs), wafer, attrs)
        has_room = (
            fixed + max(1, stated.held_samples) * each + wafer.kernel_code_bytes <= wafer.sram_usable_bytes
        )
        passes = {one: _band_cost(*band, wafer, one, attrs) for one in (Phase.FORWARD, Phase.INPUT_GRADIENT)}
        is_possible = has_room & ((count == 1) | (tiling.rows >= LEAST_ROWS * count))
        total = np.where(is_possible, sum(one.total - one.idle for one in passes.values()), np.inf)
        is_less = total < least
        found, least = found.replaced(is_less, passes[phase]), np.minimum(total, least)
    return found.replaced(np.isinf(least), Cost(stalled_input=least))


def _band_cost(dims: Dims, tiling: Tiling, wafer: Wafer, phase: Phase, attrs: Attrs) -> Cost:
    """Return the cost of one band."""
    t, n = pair_tile(int(dims["q"]), tiling, attrs)
    cols, forward = ceil_div(int(dims["q"]), n), phase is Phase.FORWARD
    way = (cols - 1) * (relay_cycles(wafer) + wafer.hop_cycles) + wafer.handover_cycles
    busy = pair_busy if forward else pair_backward
    late = forward * (not AttentionAttributes.of(attrs).trains) * _late(dims, t, n, wafer, attrs)
    cost = busy(dims, t, n, wafer, attrs) + Cost(
        stalled_input=np.where(cols > 1, (1 + forward) * way + late, 0.0)
    )
    link = wafer.wavelet_cycles * dims["q"] * heads_of_keys(dims) * dims["d"]
    fill: Size = 0.0
    if AttentionAttributes.of(attrs).trains:
        fill = np.where(cols > 1, 3.0 * way, 0.0) + wafer.hop_cycles + wafer.handover_cycles
    return cost + Cost(stalled_input=np.maximum(0.0, link - cost.total), idle=fill)


def _late(dims: Dims, t: Size, n: Size, wafer: Wafer, attrs: Attrs) -> Size:
    """Return the words of keys and values that the last column, which receives last, gets after its
    maximum."""
    heads, d, o = dims["heads"], dims["d"], wafer.vector_start_cycles
    scores, masks = heads * t * n, AttentionAttributes.of(attrs).masks
    rest = special_cycles(wafer, attrs, Phase.FORWARD) * scores
    rest = np.maximum(0.0, rest - sum(issued(SOFTMAX, SHAPES, RowLayout(heads * t, n, by_row=True), wafer)))
    moves = ceil_rate(scores, wafer.mov_fp32_per_cycle) + ceil_rate(scores, wafer.mul_fp32_per_cycle)
    masked = o + ceil_rate(scores, wafer.add_fp32_memory_per_cycle) if masks else 0.0
    capped = _capped(scores, wafer, attrs)
    maximum = 5 * o + scores * d + moves + masked + capped.total + rest
    words = 1.0 * n * heads_of_keys(dims) * d
    return np.clip(dims["q"] * heads_of_keys(dims) * d - maximum, 0.0, words)


def _capped(scores: Size, wafer: Wafer, attrs: Attrs) -> Cost:
    """Return the cost of a bound of the scores: a quotient becomes part of their factor, a function and a product follow."""
    has = 1.0 * (AttentionAttributes.of(attrs).cap > 0.0)
    special, product = wafer.special_element_cycles * scores, ceil_rate(scores, wafer.mul_fp32_per_cycle)
    return Cost(compute=has * product, special=has * special, startup=has * 2.0 * wafer.vector_start_cycles)


def pair_busy(dims: Dims, t: Size, n: Size, wafer: Wafer, attrs: Attrs) -> Cost:
    """Return the issue cost of a core with `t` queries and `n` keys per sample."""
    heads, d, o = dims["heads"], dims["d"], wafer.vector_start_cycles
    scores, results = heads * t * n, heads * t * d
    masks = AttentionAttributes.of(attrs).masks
    compute, functions, starts = issued(SOFTMAX, SHAPES, RowLayout(heads * t, n, by_row=True), wafer)
    special = special_cycles(wafer, attrs, Phase.FORWARD) * scores
    special = np.maximum(special, compute + functions + starts)
    several: Size = np.where(int(dims["q"]) / n > 1, 1.0, 0.0)
    moves = 2 * ceil_rate(scores, wafer.mov_fp32_per_cycle) + ceil_rate(scores, wafer.mul_fp32_per_cycle)
    masked = ceil_rate(scores, wafer.add_fp32_memory_per_cycle) if masks else 0.0
    products = scores * d + scores * ceil_rate(d, wafer.fma_mixed_per_cycle)
    return _capped(scores, wafer, attrs) + Cost(
        compute=1.0 * (moves + masked + products),
        special=1.0 * special,
        fabric=several * 4.0 * heads * t + results,
        ramp=results / 2 + n * heads_of_keys(dims) * d,
        startup=o * (6 + masks + 4 * several),
    )


def pair_backward(dims: Dims, t: Size, n: Size, wafer: Wafer, attrs: Attrs) -> Cost:
    """Return the issue cost of a core with `t` queries and `n` keys per sample, backward: all three gradients."""
    heads, d, o = dims["heads"], dims["d"], wafer.vector_start_cycles
    scores, results, per_key = heads * t * n, heads * t * d, heads_of_keys(dims) * n * d
    compute, functions, starts = issued(
        GRADIENT, GRADIENT_SHAPES, RowLayout(heads * t, n, by_row=True), wafer
    )
    special = special_cycles(wafer, attrs, Phase.INPUT_GRADIENT) * scores
    special = np.maximum(special, compute + functions + starts)
    several: Size = np.where(int(dims["q"]) / n > 1, 1.0, 0.0)
    moves = ceil_rate(scores, wafer.mov_fp32_per_cycle) + ceil_rate(scores, wafer.fma_mixed_per_cycle)
    return Cost(
        compute=1.0 * (moves + scores * d + 3 * scores * ceil_rate(d, wafer.fma_mixed_per_cycle)),
        special=1.0 * special,
        fabric=several * 2.0 * heads * t + results + 2.0 * per_key,
        ramp=results / 2,
        startup=o * (7 + 2 * several),
    )
