"""The inner loops of tables of shelves: the least times within a width, and the least widths that keep a pace.

Symbols are those of :mod:`wse_sim.compiler.shelf_tables`.
"""

from __future__ import annotations

import numpy as np

from wse_sim.compiler.shelf_kernels import NEVER
from wse_sim.jit import kernel


@kernel
def least_widths(quickest: np.ndarray, widths: np.ndarray, pace: float) -> np.ndarray:
    """Return, for each height, the least width int64 that keeps `pace`; NEVER if no width does.

    `quickest` (heights, n) are the least times within each of the first n `widths`; they decrease along a
    row. Neighbouring heights need similar widths, so each search begins at the width found last.
    """
    out = np.full(quickest.shape[0], NEVER, np.int64)
    count = quickest.shape[1]
    at = count // 2
    for row in range(quickest.shape[0]):
        low, high, step = 0, count, 1  # the first that keeps the pace is in [low, high]
        if at < count and quickest[row, at] > pace:
            probe = at + 1
            while probe < count and quickest[row, probe] > pace:
                step *= 2
                probe += step
            low, high = max(at, probe - step) + 1, min(probe, count)
        else:
            probe = at - 1
            while probe >= 0 and quickest[row, probe] <= pace:
                step *= 2
                probe -= step
            low, high = max(probe + 1, 0), min(at, probe + step)
        while low < high:
            middle = (low + high) // 2
            if quickest[row, middle] > pace:
                low = middle + 1
            else:
                high = middle
        at = low
        if low < count:
            out[row] = widths[low]
    return out


@kernel
def least_widths_of(
    times: np.ndarray, known: np.ndarray, first: np.ndarray, widths: np.ndarray, paces: np.ndarray
) -> np.ndarray:
    """Return :func:`least_widths` of all kinds (kinds, heights) for their `paces` (kinds,).

    `times` holds the times by kind, height and width, flattened. Strip s of a kind has the heights from
    `first` [s] to `first` [s + 1]. From the start of the strip, its rows follow each other without gaps and
    contain only the first `known` (kinds, strips) widths.
    """
    heights = first[-1]
    out = np.empty((known.shape[0], heights), np.int64)
    for kind in range(known.shape[0]):
        for strip in range(known.shape[1]):
            top, rows, count = first[strip], first[strip + 1] - first[strip], known[kind, strip]
            start = (kind * heights + top) * widths.shape[0]
            quickest = times[start : start + rows * count].reshape((rows, count))
            least = least_widths(quickest, widths, paces[kind])
            for row in range(rows):
                out[kind, top + row] = least[row]
    return out


@kernel
def add_widths(
    out: np.ndarray,
    known: int,
    cycles: np.ndarray,
    memory: np.ndarray,
    held: float,
    heights: np.ndarray,
    widths: np.ndarray,
    limit: float,
) -> None:
    """Fill in the columns of `out` (heights, all widths so far) from `known` on: the least cycles within each width.

    `cycles` (n,) and `memory` (n,), bytes, are those of regions of `heights` (h,) x `widths` (w,), row by row. `held`
    bytes in addition are spread over the region; with more than `limit` bytes in a core it does not fit.
    """
    at = 0
    for row in range(heights.shape[0]):
        least = np.inf if known == 0 else out[row, known - 1]
        for col in range(widths.shape[0]):
            if memory[at] + held / (heights[row] * widths[col]) <= limit and cycles[at] < least:
                least = cycles[at]
            out[row, known + col] = least
            at += 1


@kernel
def least_sizes_of(times: np.ndarray, sizes: np.ndarray, paces: np.ndarray) -> np.ndarray:
    """Return, for each kind, the first of `sizes` (n,) that keeps the kind's pace; NEVER if none of them
    does.

    `times` (kinds, n) are the times at these sizes, `paces` (kinds,) the paces.
    """
    out = np.full(times.shape[0], NEVER, np.int64)
    for kind in range(times.shape[0]):
        for i in range(sizes.shape[0]):
            if times[kind, i] <= paces[kind]:
                out[kind] = sizes[i]
                break
    return out
