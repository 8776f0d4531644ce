"""Cycles of a batch with the stages on given boxes, used to compare layouts.

Prices of boxes come from the tables of the shelf placer; the rest is one compiled function: a single sample,
the number of samples that fit in SRAM, and the schedule of two batches
(:mod:`wse_sim.modes.pipelined.compiled_schedule`), or the formula of :mod:`wse_sim.modes.pipelined.estimate` if the
schedule would take long. Symbols as there. Streams are assumed to run straight from middle to middle; the
router and the event simulation determine the result.
"""

# mypy: disable-error-code="assignment"
# numba types these, and NumPy's integer stubs are not int
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.sample_buffers import stream_depth
from wse_sim.compiler.shelves import Box, ShelfPlacer
from wse_sim.compiler.sizing import Sizer
from wse_sim.jit import kernel
from wse_sim.modes.pipelined.compiled_schedule import two_batches
from wse_sim.modes.pipelined.regions import WAITING

QUICK = 8000  # stages times samples up to which layouts are compared by their schedule, not by formula

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class LayoutCycles:
    """Function that returns the cycles of one training batch of `samples` on one replica, for any boxes."""

    def __init__(self, sizer: Sizer, samples: int, placer: ShelfPlacer | None = None) -> None:
        self.sizer, self.samples = sizer, samples
        self._placer = placer or ShelfPlacer(sizer)
        self._known: dict[tuple[int, int, int, int], tuple[float, ...]] = {}
        groups = sizer.groups
        self._kinds = [int(kind) for kind in self._placer.kind_of[: len(groups)]]
        self._flow = np.array(
            [(g.rows_per_sample, g.is_barrier, sizer.in_flight[g.name], g.flow.parallel) for g in groups],
            np.float64,
        )
        self._bytes = np.array([(sizer.held_bytes(g), sizer.sample_bytes(g)) for g in groups], np.float64)
        index = {group.name: k for k, group in enumerate(groups)}
        room = stream_depth(groups, sizer.edges, sizer.graph.training)
        self._links = np.array([(index[a], index[b]) for a, b in sizer.edges], np.int64).reshape(-1, 2)
        self._room = np.array([room[edge] for edge in sizer.edges], np.int64)
        self._quick = len(groups) * samples <= QUICK

    def __call__(self, boxes: Sequence[Box]) -> float:
        """Return the cycles; infinite if a stage does not fit in SRAM, or its program has no room on its box."""
        boxes = boxes[: len(self._kinds)]
        prices = np.array(
            [self._priced(kind, box) for kind, box in zip(self._kinds, boxes, strict=True)], np.float64
        )
        if not np.isfinite(prices).all():
            return float("inf")
        places = np.array([(box.row, box.col, box.rows, box.cols) for box in boxes], np.float64)
        wafer = self.sizer.wafer
        middles = places[:, :2] + (places[:, 2:] - 1) / 2
        ends = middles[self._links]  # (streams, 2, 2)
        travel = np.abs(ends[:, 0] - ends[:, 1]).sum(axis=1) * wafer.hop_cycles
        if wafer.die_crossing_cycles:
            travel += np.array([wafer.crossing_cycles(a, b, 0) for a, b in ends[:, :, 0]])
        return float(
            _batch_cycles(
                prices,
                self._flow,
                self._bytes,
                places[:, 2] * places[:, 3],
                float(wafer.sram_usable_bytes),
                self._links,
                travel,
                self._room,
                self.samples,
                self._quick,
            )
        )

    def _priced(self, kind: int, box: Box) -> tuple[float, ...]:
        key = kind, box.rows, box.cols, box.compute_cols
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._placer.priced(*key)
        return found


@kernel
def _passes(
    cycles: Floats, fill: Floats, flow: Floats, links: Ints, travel: Floats, first: Floats, last: Floats
) -> tuple[Floats, Floats]:
    """Return start and end of a single sample's pass through all stages; updates the row times `first` and
    `last`."""
    count = cycles.shape[0]
    begin, end = np.zeros(count), np.zeros(count)
    backward = links.shape[0] > 0 and links[0, 0] > links[0, 1]
    for n in range(count):
        k = count - 1 - n if backward else n
        rows = flow[k, 0]
        start = last[k] if flow[k, 1] > 0 else first[k]
        done = max(start + cycles[k], last[k] + cycles[k] / rows)
        begun = start + (cycles[k] / rows if flow[k, 3] > 0 else (done - start) / rows + fill[k])
        for e in range(links.shape[0]):
            if links[e, 0] == k:
                to = links[e, 1]
                first[to] = max(first[to], begun + travel[e])
                last[to] = max(last[to], done + fill[k] + travel[e])
        begin[k], end[k] = start, done
    return begin, end


@kernel
def _batch_cycles(
    prices: Floats,
    flow: Floats,
    held: Floats,
    cores: Floats,
    limit: float,
    links: Ints,
    travel: Floats,
    room: Ints,
    samples: int,
    quick: bool,
) -> float:
    """Return the cycles of a batch; `prices` (K, 6) are in the order of
    :class:`~wse_sim.compiler.sizing.ShapePrices`.

    `flow` (K, 4): rows, barrier, samples in flight, parallel; `held` (K, 2): bytes of all those samples and of those in
    streams, and of one more in flight.
    """
    count, streams = prices.shape[0], links.shape[0]
    memory = prices[:, 4] + held[:, 0] / cores
    if memory.max() > limit:
        return np.inf
    forward, backward, update, fill = prices[:, 0], prices[:, 1], prices[:, 2], prices[:, 3]
    back_fill = prices[:, 5]
    begin, end = _passes(forward, fill, flow, links, travel, np.zeros(count), np.zeros(count))
    reads = np.zeros(count, np.bool_)
    for e in range(streams):
        reads[links[e, 0]] = True
    first = np.where(reads, 0.0, end + fill)
    back_links = np.ascontiguousarray(links[:, ::-1])
    back_begin, back_end = _passes(backward, back_fill, flow, back_links, travel, first, first.copy())
    pace = (forward + backward).max()
    depth = flow[:, 2].copy()
    for k in range(count):
        wanted = min(float(samples), np.ceil((back_end[k] - begin[k]) / pace) + WAITING) - depth[k]
        each = held[k, 1] / cores[k]
        if wanted > 0 and each > 0:
            wanted = min(wanted, np.floor((limit - memory[k]) / each))
        depth[k] += max(wanted, 0.0)
    wide = room.copy()
    for e in range(streams):  # samples in transit take no memory at the reader
        wide[e] += int((min(fill[links[e, 0]], fill[links[e, 1]]) + travel[e]) / pace)
    if quick:
        stages = np.empty((count, 11))
        for k in range(count):
            stages[k, 0], stages[k, 1], stages[k, 2], stages[k, 3] = (
                forward[k],
                backward[k],
                update[k],
                fill[k],
            )
            stages[k, 4], stages[k, 5] = flow[k, 0], flow[k, 1]
            stages[k, 6], stages[k, 7] = depth[k], flow[k, 3]
            stages[k, 8], stages[k, 9] = forward[k] / flow[k, 0], backward[k] / flow[k, 0]
            stages[k, 10] = back_fill[k]
        both = np.concatenate((links, back_links + count))
        order = np.argsort(both[:, 0] * (2 * count) + both[:, 1])
        done, over = two_batches(
            stages,
            both[order],
            np.concatenate((travel, travel))[order],
            np.concatenate((wide, wide))[order],
            samples,
            np.zeros(count),
        )
        return over - done
    loop = ((back_end - begin) / depth).max()
    for e in range(streams):
        a, b = links[e, 0], links[e, 1]
        loop = max(loop, (begin[b] - begin[a]) / wide[e], (back_begin[a] - back_begin[b]) / wide[e])
    last = (back_end + update).max()
    high = last + (samples - 1) * max(pace, loop)
    once = np.maximum(forward, backward).max()
    low = (begin + samples * (forward + backward) + np.maximum(last - back_end, update)).max()
    return (high + max(low, last + (samples - 1) * max(loop, once))) / 2
