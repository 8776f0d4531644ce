"""Maps of wavelets per step for weight streaming.

Weight streaming has no routes in its plan; its traffic follows from the mapping (hidden over columns, tokens
over rows, L lanes of ``c = C // L`` columns on R rows). Per step and system:

* Weights: W bytes enter half at the west and half at the east edge, evenly over the rows.  Every weight belongs to one
  column j of all lanes, enters once, from the west if ``j < h = c // 2``, and continues to the farthest lane.  So column x of C
  passes eastward those with ``(L - 1) c + j > x``, a fraction ``(C - c + h - 1 - x) / c`` between 0 and ``h / c``, and
  westward those with ``j < x``, a fraction ``(x - h) / c`` between 0 and ``(c - h) / c``; inside a column, words that entered
  at row e run north and south to all rows.
* Gradients: the same paths backwards (sums run to the rows of the edge where they leave); inside a column the sums are
  fp32, a word each, where two of 16 bits share a word beyond it.
* Partial sums: a product (M, K) x (K, N) adds up over the c columns of a lane along each row:
  ``M N / (R L)`` fp32 words on every eastward link inside a lane, in every forward and input-gradient
  phase with streamed weights.  The plan states M N of each phase; zero weights do not change it.
* Spilled activations and input: evenly over the rows, to and from the columns of their half.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import Region
from wse_sim.hardware import Wafer
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.units import BYTES_PER_WAVELET

NORTH, EAST, SOUTH, WEST = range(4)
FP32_OVER_16_BITS = 2


def program_region(wafer: Wafer, lanes: int) -> Region:
    """Return the rectangle of cores that weight streaming uses: whole lanes, in the middle of the fabric."""
    cols = lanes * (wafer.program_cols // lanes)
    return Region(
        (wafer.rows - wafer.program_rows) // 2,
        (wafer.cols - wafer.program_cols) // 2,
        wafer.program_rows,
        cols,
        wafer.program_rows * cols,
    )


def streaming_wavelets(plan: WeightStreamingPlan, input_bytes: float) -> NDArray[np.float32]:
    """Return the wavelets (rows, cols, 4) per step of one system; `input_bytes` enter per step."""
    wafer = plan.wafer
    area = program_region(plan.used, plan.lanes)
    times = plan.micro_batches
    weights = times * sum(p.edge_weight_bytes for p in plan.phases) / BYTES_PER_WAVELET
    gradients = times * sum(p.edge_gradient_bytes for p in plan.phases) / BYTES_PER_WAVELET
    local = (times * sum(p.spill_bytes for p in plan.phases) + input_bytes) / BYTES_PER_WAVELET
    # Traffic along a row is the same in every row, traffic along a column in every column.
    along_row, along_col = np.zeros((area.cols, 4)), np.zeros((area.rows, 4))
    _add_broadcast(along_row, along_col, weights, plan.lanes, is_reduced=False)
    _add_broadcast(along_row, along_col, gradients, plan.lanes, is_reduced=True)
    _add_local(along_row, local / area.rows / area.cols)
    sums = times * sum(p.output_elements for p in plan.phases)
    lane = area.cols // plan.lanes
    inner = np.arange(area.cols) % lane != lane - 1
    along_row[inner, EAST] += sums / (area.rows * plan.lanes)
    out = np.zeros((wafer.rows, wafer.cols, 4), np.float32)
    view = out[area.row : area.row + area.rows, area.col : area.col + area.cols]
    in_row, in_col = along_row.astype(np.float32), along_col.astype(np.float32)
    for link in range(4):  # one at a time: long loops over columns instead of short ones over links
        np.add(in_row[None, :, link], in_col[:, None, link], out=view[:, :, link])
    return out


def _add_broadcast(
    along_row: NDArray[np.float64],
    along_col: NDArray[np.float64],
    wavelets: float,
    lanes: int,
    *,
    is_reduced: bool,
) -> None:
    rows, cols = len(along_col), len(along_row)
    lane = cols // lanes
    half = lane // 2  # columns of a lane that are fed from the west edge, the others from the east edge
    steps = np.arange(cols)
    per_row = wavelets / rows
    eastward = np.clip((cols - lane + half - 1 - steps) / lane, 0, half / lane) * per_row
    westward = np.clip((steps - half) / lane, 0, (lane - half) / lane) * per_row
    per_column = wavelets / lane
    row = np.arange(rows)
    south = per_column * (row + 1) / rows * (row < rows - 1)
    north = per_column * (rows - row) / rows * (row > 0)
    if is_reduced:
        south, north = FP32_OVER_16_BITS * south, FP32_OVER_16_BITS * north
        # The link from a to b of the broadcast is the link from b to a of the reduction.
        along_row[1:, WEST] += eastward[:-1]
        along_row[:-1, EAST] += westward[1:]
        along_col[1:, NORTH] += south[:-1]
        along_col[:-1, SOUTH] += north[1:]
    else:
        along_row[:, EAST] += eastward
        along_row[:, WEST] += westward
        along_col[:, SOUTH] += south
        along_col[:, NORTH] += north


def _add_local(along_row: NDArray[np.float64], per_core: float) -> None:
    half = len(along_row) // 2
    steps = np.arange(len(along_row))
    along_row[:, EAST] += np.where(steps < half, half - 1 - steps, 0) * per_core
    along_row[:, WEST] += np.where(steps >= half, steps - half, 0) * per_core
