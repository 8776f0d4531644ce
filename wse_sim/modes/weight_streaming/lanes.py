"""The number of copies of a layer that share the wafer, and the memory that they leave for activations.

Rectangles are priced together: the closed forms take arrays, so a table of all lanes of many rectangles costs
about as much as that of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import CoreMemory
from wse_sim.compiler.pricing import FloatArray, Prices
from wse_sim.graph import Kernel
from wse_sim.hardware import Wafer
from wse_sim.kernels import Cost, family
from wse_sim.modes.weight_streaming.work import Work

MAX_LANES = 32
Rectangle = tuple[int, int]  # rows, columns


@dataclass(frozen=True)
class LaneTable:
    """Costs of kernels for every number of lanes of some rectangles."""

    costs: dict[object, Cost]  # by signature; arrays over all lanes of all rectangles
    lanes: tuple[NDArray[np.int64], ...]  # of each rectangle
    starts: tuple[int, ...]  # where a rectangle begins in the arrays
    total_s: FloatArray

    def by_time(self, number: int) -> list[int]:
        """Return the numbers of lanes of a rectangle by rising compute time; the smaller one first if equal."""
        lanes, start = self.lanes[number], self.starts[number]
        seconds = self.total_s[start : start + len(lanes)]
        return [int(n) for n in lanes[np.argsort(seconds, kind="stable")]]

    def cycles(self, kernel: Kernel, number: int, lanes: int) -> dict[str, float] | None:
        """Return the cycles of a kernel by cause; None if it is not in the table."""
        cost = self.costs.get(kernel.signature)
        if cost is None:
            return None
        at = self.starts[number] + lanes - 1
        return {
            name: float(part[at] if isinstance(part, np.ndarray) and part.ndim else np.asarray(part))
            for name, part in vars(cost).items()
        }


def lane_table(
    work: Iterable[Work], prices: Prices, wafer: Wafer, rectangles: Sequence[Rectangle]
) -> LaneTable:
    """Return the costs of a step for all numbers of lanes on the rectangles."""
    # Every lane has at least one column.
    each = tuple(np.arange(1, min(MAX_LANES, cols) + 1) for _, cols in rectangles)
    counts = [len(lanes) for lanes in each]
    rows = np.repeat([rows for rows, _ in rectangles], counts)
    cols = np.repeat([cols for _, cols in rectangles], counts)
    lanes = np.concatenate(each)
    total_s = np.zeros(lanes.shape)
    known: dict[object, FloatArray] = {}  # of equal kernels, once
    costs: dict[object, Cost] = {}
    for item in work:
        signature = item.kernel.signature
        if signature not in known:
            cost = costs[signature] = prices.cost(item.kernel, rows, cols, "streamed", lanes)
            known[signature] = np.maximum(
                np.asarray(cost.total) / wafer.clock_hz, _floor_s(item.kernel, wafer)
            )
        total_s += known[signature]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).tolist()
    return LaneTable(costs, each, tuple(int(start) for start in starts), total_s)


def chosen_lanes(
    numbers: Sequence[int], once: Sequence[Work], prices: Prices, wafer: Wafer, need: float, *, is_least: bool
) -> int:
    """Return the first number of lanes; if the micro-batch cannot be halved (`is_least`), the first one that
    fits.

    Each lane has separate buffers.
    """
    if not is_least:
        return numbers[0]
    return next((n for n in numbers if need <= left_bytes(once, prices, wafer, n)), numbers[0])


def left_bytes(work: Sequence[Work], prices: Prices, wafer: Wafer, lanes: int) -> float:
    """Return the bytes left for activations; every core has buffers and code of the largest kernel."""
    fixed = core_memory(work, prices, wafer, lanes, 0.0)
    return max(0.0, wafer.program_cores * (wafer.sram_usable_bytes - fixed.total_bytes))


def core_memory(
    work: Sequence[Work], prices: Prices, wafer: Wafer, lanes: int, activations_bytes: float
) -> CoreMemory:
    """Return the memory of the fullest core: activations spread over all cores, buffers of the largest
    kernel."""
    buffers = code = weights = 0.0
    seen: set[object] = set()
    for item in work:
        if item.kernel.signature in seen:
            continue
        seen.add(item.kernel.signature)
        print_ = prices.footprint(item.kernel, wafer.program_rows, wafer.program_cols, "streamed", lanes)
        weights = max(weights, float(np.asarray(print_.weights_bytes)))
        buffers = max(buffers, float(np.asarray(print_.buffers_bytes)))
        code = max(code, float(np.asarray(print_.code_bytes)))
    return CoreMemory(weights, activations_bytes / wafer.program_cores, buffers, code)


def _floor_s(kernel: Kernel, wafer: Wafer) -> float:
    return wafer.launch_floor_s * family(kernel.family).matmul_phases(kernel.phase)
