"""A stationary product as it lies in a region of a whole model on the fabric: whole words, outputs finished by the last row.

Symbols: T tokens of W words of inputs (two elements each) and N outputs, R rows and C columns; w multiply-accumulates per
cycle, o = vector_start_cycles; v = 2 ceil(ceil(N / C) / 2) outputs of a column, m words of a row.  A core takes::

    row          T (2 m ceil(v / w) + v)
    last row     the same for its words, and T v / 2 words sent, and for every item o + T v / rate

The last row has so many words less that it is no later than the others.  With bias and ReLU alone it may have none: the first
row adds the bias, the last one takes ReLU as the sums arrive (T (v / rate + v / 2)), and all words lie on R - 1 rows.
With a slow function, rows may share the work: the sums of T / F tokens come back to each of F of them (the largest number up to
R that divides T is min(R, T) here)::

    row          T (2 m ceil(v / w) + v) + ceil(T / F) (3 v / 2 + for every item but the bias o + v / rate)

For these, rows wait for a last row that finishes outputs: the time of the items and of what is sent, less that of 14 / v tokens,
whose sums lie in the queues between two cores.  The region keeps that pace, and its cores are stalled on input meanwhile.  The
fastest is counted, as :mod:`wse_sim.whole.regions` has it.

A residual waits in stores beside the last row, one core each, which take every word in, hand it out to the columns, and end a token
with a control word; no sample is faster::

    store        T (N / 2 + ceil(N / v) v / 2 + 1)
"""

from __future__ import annotations

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import op_rate
from wse_sim.kernels.blocks.products import chain_latency
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, ceil_div, fill_cycles
from wse_sim.kernels.contract.family import Cost, Size, Tiling

PAIR = 2  # fp16 elements of a word
QUEUED_WORDS = 14  # of sums between two cores: output queue, router, input queue
LIGHT = frozenset({"bias", "relu"})
"""Items that need no turn of their own."""


def word_rows_cost(
    tokens: Size,
    words: Size,
    outputs: Size,
    fused: str,
    tiling: Tiling,
    wafer: Wafer,
    *,
    shares: bool = False,
    waits: bool = False,
    most_bundles: int = 0,
) -> Cost:
    """Cycles of the busiest core for `tokens` of `words` of inputs.

    With `shares` rows may share slow functions; with `waits` or `shares` it counts how long rows wait for the last one.  With
    `most_bundles` cores beside the rows count: the one which hears the bundles of its row's words, and the store of a residual.
    """
    items = tuple(part.strip() for part in fused.split(",") if part.strip())
    v = PAIR * ceil_div(ceil_div(outputs, tiling.cols), PAIR)
    per_word = PAIR * ceil_div(v, wafer.fma_mixed_per_cycle)
    issued, stalled = _finishing(tokens, words, v, per_word, items, tiling, wafer)
    if not shares and not waits:
        stalled = 0.0 * stalled
    others = []
    if set(items) <= LIGHT:
        others.append(_flowing(tokens, words, v, per_word, items, tiling, wafer))
    if shares and not SPECIAL_FUNCTIONS.isdisjoint(items):
        others.append(_shared(tokens, words, v, per_word, items, tiling, wafer))
    for other in others:
        is_first = issued + stalled < other
        issued, stalled = np.where(is_first, issued, other), np.where(is_first, stalled, 0.0)
    if most_bundles:
        heard = tokens * _heard(words, tiling, most_bundles, wafer)
        if "residual" in items:
            heard = np.maximum(heard, tokens * stored_cycles(outputs, v))
        stalled = np.maximum(stalled, heard - issued)
    sums = 1.0 * tokens * v
    idle = fill_cycles(tiling.rows, tiling.cols, wafer) + chain_latency(tiling.rows, wafer)
    return Cost(compute=issued - sums, fabric=sums, idle=idle + 0.0 * v, stalled_input=stalled)


def stored_cycles(outputs: Size, v: Size) -> Size:
    """Cycles of a token of a residual in its store: words in, words out to columns of `v` outputs each, a control word."""
    return outputs / PAIR + ceil_div(outputs, v) * v / PAIR + 1.0


def _heard(words: Size, tiling: Tiling, most_bundles: int, wafer: Wafer) -> Size:
    """Cycles of a token in the core beside a row: it hears all bundles in which the row has words, and deals those out.

    What is dealt out counts twice: a word goes on when the last of its readers takes it, and they deal at different times.
    """
    rows = np.minimum(tiling.rows, words)
    each = ceil_div(words, rows)
    found = np.inf + 0.0 * each
    for count in (count for count in range(1, most_bundles + 1) if most_bundles % count == 0):
        size = words / count
        bundles = np.where(
            rows % count == 0, 1.0, np.where(count % rows == 0, count // rows, ceil_div(each, size) + 1.0)
        )
        found = np.minimum(
            found, np.maximum(wafer.wavelet_cycles, np.minimum(bundles, count)) * size + 2 * each
        )
    return found


def _finishing(
    tokens: Size,
    words: Size,
    v: Size,
    per_word: Size,
    items: tuple[str, ...],
    tiling: Tiling,
    wafer: Wafer,
) -> tuple[Size, Size]:
    """With a last row that multiplies as well: what the busiest core issues, and how long rows wait for the last one."""
    o, size = np.ceil(wafer.vector_start_cycles), tokens * v
    finish = (
        size / PAIR
        + sum(_item_cycles(item, size, wafer) for item in items)
        + ("residual" in items) * size / PAIR
    )
    rows = np.minimum(tiling.rows, words)
    others = np.maximum(1, rows - 1)
    less = ceil_div(finish, tokens * per_word)
    most = np.minimum(ceil_div(words + less, rows), ceil_div(words - 1, others))
    last = np.maximum(np.maximum(1, np.minimum(most - less, words // rows)), words - most * others)
    last = np.where(rows > 1, last, words)
    alone = np.where(rows > 1, 0.0, tokens * (o + np.ceil(v / wafer.mov_fp32_per_cycle) - v))
    above = np.where(rows > 1, tokens * (ceil_div(words - last, others) * per_word + v), 0.0)
    busiest = np.maximum(above, tokens * (last * per_word + v) + finish + alone)
    held_up = np.maximum(0.0, finish - busiest / tokens * QUEUED_WORDS / v)
    return busiest, np.where(rows > 1, held_up, 0.0)


def _flowing(
    tokens: Size, words: Size, v: Size, per_word: Size, items: tuple[str, ...], tiling: Tiling, wafer: Wafer
) -> Size:
    """With a last row without inputs; infinite for a single row."""
    rows = np.minimum(tiling.rows, words + 1)
    each = ceil_div(words, np.maximum(1, rows - 1)) * per_word + v
    rate = min(1.0, wafer.max_fp32_per_cycle) if "relu" in items else 1.0
    return np.where(rows > 1, tokens * np.maximum(each, v / rate + v / PAIR), np.inf)


def _shared(
    tokens: Size, words: Size, v: Size, per_word: Size, items: tuple[str, ...], tiling: Tiling, wafer: Wafer
) -> Size:
    """With rows that finish outputs in turn; infinite for a single row or token."""
    rows = np.minimum(tiling.rows, words)
    rounds = ceil_div(tokens, np.minimum(rows, tokens))
    size = rounds * v
    work = rounds * sum(_item_cycles(item, v, wafer) for item in items if item != "bias")
    moved = size + size / PAIR * (1 + ("residual" in items))
    each = tokens * (ceil_div(words, rows) * per_word + v) + moved + work
    return np.where((rows > 1) & (tokens > 1), each, np.inf)


def _item_cycles(item: str, size: Size, wafer: Wafer) -> Size:
    if item in SPECIAL_FUNCTIONS:
        return np.ceil(wafer.vector_start_cycles) + size * wafer.special_element_cycles
    return np.ceil(wafer.vector_start_cycles) + np.ceil(size / op_rate(item, "fp16", wafer))
