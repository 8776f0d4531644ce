"""When regions start, and what they do all the time, in both simulators.

A region starts in the event engine when rows of all its operands have come.  On the fabric a core takes in an operand as it comes,
so a layer takes the residual of its first sample long before that.  These cycles are left out (`ahead_cycles` of a place):
both starts are those of the work on all operands.

A region is idle before the first word of a step has come and after it has done its last; between, it is busy, stalled on output or stalled
on input.  A core cannot know whether words that it waits for are those of a sample that has partly come, and the engine's own
books, which call a region idle between two samples, are not compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from wse_sim.engine.books import BUSY, STALLED_OUTPUT
from wse_sim.fabric.executors.base import BusyBins
from wse_sim.fabric.result import FabricResult
from wse_sim.modes.pipelined.run import PipelinedRun
from wse_sim.whole.areas import FabricPlace

BINS, LEAST_CYCLES = 1024, 8
"""Where the starts are looked for: bins, and cycles of one."""
Waits = tuple[float, float, float]
"""Cycles stalled on input, stalled on output and idle."""
LONGEST = 4
"""Times the last start in the event engine at which every region of the fabric has started."""


def engine_starts(engine: PipelinedRun) -> list[float]:
    """Cycles at which regions start their first samples."""
    return [float(region.forward.starts[0][0]) for region in engine.regions]


def start_bins(engine: PipelinedRun) -> BusyBins:
    """Bins of busy cycles over the time in which regions start."""
    latest = max(engine_starts(engine)) + max(region.stage.forward_cycles for region in engine.regions)
    return BusyBins(BINS, max(LEAST_CYCLES, ceil(LONGEST * latest / BINS)))


def first_busy(run: FabricResult, place: FabricPlace, bins: BusyBins, ahead: float = 0.0) -> float:
    """Cycle of the bin in which a core of a place has issued more than `ahead` cycles; the end of the run if none has."""
    issued = np.cumsum(run.busy_bins[:, place.rows, place.cols], axis=0)
    busy = np.flatnonzero((issued > ahead).any(axis=(1, 2)))
    return float(busy[0] * bins.cycles if busy.size else run.cycles)


def engine_waits(engine: PipelinedRun, step_cycles: float, books: Sequence[Sequence[float]]) -> list[Waits]:
    """Of a batch of training, by region: cycles stalled on input, stalled on output, idle."""
    end = engine.records[0].end
    idle = [
        start + end - region.ends[0]
        for start, region in zip(engine_starts(engine), engine.regions, strict=True)
    ]
    return [
        _waits(step_cycles, book[BUSY], book[STALLED_OUTPUT], none)
        for book, none in zip(books, idle, strict=True)
    ]


def core_waits(run: FabricResult, core: tuple[int, int], started: float) -> Waits:
    """The same of a core that began at `started`."""
    idle = started + run.cycles - run.halt_cycles[core]
    return _waits(run.cycles, run.busy[core], run.stalled_out[core], idle)


def steady_waits(period: float, busy: float, stalled_output: float) -> Waits:
    """The same of a sample in a steady stream, where nothing is idle."""
    return _waits(period, busy, stalled_output, 0.0)


def _waits(cycles: float, busy: float, stalled_output: float, idle: float) -> Waits:
    return float(cycles - busy - stalled_output - idle), float(stalled_output), float(idle)


def same_order(engine: Sequence[float], fabric: Sequence[float], within: float = 0.0) -> bool:
    """Whether no two regions start one way round in one and the other way round in the other.

    Starts on the fabric that are at most `within` cycles apart, the length of a bin, have no order.
    """
    ahead, found = np.subtract.outer(engine, engine), np.subtract.outer(fabric, fabric)
    return not np.any((ahead < 0) & (found > within))
