"""A dense layer that trains on samples of one row, as a chain of them lies on the fabric: cycles of its busiest core.

Symbols: K inputs and N outputs on R - 1 rows with inputs and C columns, and a last row without; w multiply-accumulates per
cycle, o = vector_start_cycles; k = 2 ceil(ceil(K / 2) / (R - 1)) inputs and v = 2 ceil(ceil(N / C) / 2) outputs of a core.
Each kind of core takes, of a sample::

    row          forward   k ceil(v / w) + v                                products; sums down
                 backward  v / 2 + k ceil(v / w)                            gradients in; those of the weights
                           [+ v ceil(k / w) + k]                            gradients of the inputs; sums west
    first row    backward  the same [+ o + v]                               gradient of a bias below ReLU
    last row     forward   v + v / 2 [+ o + v / add] [+ o + v / max]        sums in, outputs out; bias; ReLU
                 backward  v [+ v / 2] [+ 2 o + v / max + v / mul]            gradients in and up, a second time for the inputs; slope
                           [+ o + v]                                        gradient of a bias without ReLU

Brackets: where the inputs have a gradient, or the layer has that item.  The kind with the longest sum of both is counted: passes
alternate, so that is the pace.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import op_rate
from wse_sim.kernels.blocks.products import chain_latency
from wse_sim.kernels.blocks.word_rows import PAIR
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, fill_cycles
from wse_sim.kernels.contract.family import Cost, Size, Tiling


def chain_rows_cost(
    k: Size, n: Size, fused: Iterable[str], tiling: Tiling, wafer: Wafer, *, has_dx: bool
) -> tuple[Cost, Cost]:
    """Forward and backward cycles of one sample; `tiling` counts the rows with inputs alone, `has_dx` says whether inputs have gradients."""
    items, o = set(fused), np.ceil(wafer.vector_start_cycles)
    v = PAIR * ceil_div(ceil_div(n, tiling.cols), PAIR)
    k = PAIR * ceil_div(ceil_div(k, PAIR), tiling.rows)
    w = wafer.fma_mixed_per_cycle
    products, zero = 1.0 * k * ceil_rate(v, w), 0.0 * (k * v)
    has_bias, bends = "bias" in items, "relu" in items
    summed = o + v + zero  # the gradient of the bias
    of_inputs = (v * ceil_rate(k, w) + k) if has_dx else zero
    row = products + v, products + v / PAIR + of_inputs
    slope = ceil_rate(v, wafer.max_fp16_per_cycle) + ceil_rate(v, op_rate("mul", "fp16", wafer))
    finish = has_bias * (o + ceil_rate(v, wafer.add_fp16_per_cycle)) + bends * (
        o + ceil_rate(v, wafer.max_fp16_per_cycle)
    )
    last = (
        v + v / PAIR + finish + zero,
        v + has_dx * v / PAIR + bends * (2 * o + slope) + (summed if has_bias and not bends else 0.0) + zero,
    )
    first = (row[0], row[1] + summed) if has_bias and bends else row
    is_last = sum(last) > sum(first)
    forward, backward = (np.where(is_last, a, b) for a, b in zip(last, first, strict=True))
    # Of these cycles, words on links and starts of instructions; the rest multiplies.
    starts = np.where(is_last, o * (has_bias + bends), 0.0)
    back_starts = np.where(is_last, o * (2.0 * bends + (has_bias and not bends)), o * (has_bias and bends))
    moved = np.where(is_last, v * 1.5, 1.0 * v)
    back_moved = np.where(is_last, v + has_dx * v / PAIR, v / PAIR + has_dx * k)
    idle = fill_cycles(tiling.rows, tiling.cols, wafer) + chain_latency(tiling.rows, wafer) + zero
    return (
        Cost(compute=forward - starts - moved, fabric=moved, startup=starts, idle=idle),
        Cost(compute=backward - back_starts - back_moved, fabric=back_moved, startup=back_starts),
    )
