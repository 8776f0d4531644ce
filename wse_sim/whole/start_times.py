"""Start times and wait times of regions, in the engine and on the fabric.

A region starts in the event engine once rows of all its operands have arrived. On the fabric a core reads an
operand as it arrives, so a layer reads the residual of its first sample long before that. These cycles and rows are
left out (`ahead_cycles` and `start_rows` of a place): both starts then mean the start of work on all operands. A region is
idle before the first word of a step arrives and after its last work; in between it is busy, stalled on output
or stalled on input. A core cannot know whether the words for which it waits belong to a sample that has
partly arrived. So the time accounts of the engine, in which a region is idle between two samples, are not
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from wse_sim.engine.accounts import BUSY, STALLED_OUTPUT
from wse_sim.fabric.executors.base import BusyBins
from wse_sim.fabric.result import FabricResult
from wse_sim.modes.pipelined.run import PipelinedRun
from wse_sim.whole.areas import FabricPlace

BINS, LEAST_CYCLES = 1024, 8
"""Number of bins, and least cycles per bin, used to find the starts."""
Waits = tuple[float, float, float]
"""Cycles stalled on input, stalled on output and idle."""
LONGEST = 4
"""The bins cover this multiple of the last start in the event engine."""


def engine_starts(engine: PipelinedRun) -> list[float]:
    """Return the cycles at which regions start their first samples."""
    return [float(region.forward.starts[0][0]) for region in engine.regions]


def start_bins(engine: PipelinedRun) -> BusyBins:
    """Return bins of busy cycles that cover the start of all regions."""
    latest = max(engine_starts(engine)) + max(region.stage.forward_cycles for region in engine.regions)
    return BusyBins(BINS, max(LEAST_CYCLES, ceil(LONGEST * latest / BINS)))


def first_busy(run: FabricResult, place: FabricPlace, bins: BusyBins, ahead: float = 0.0) -> float:
    """Return the start of the bin in which a core of the start rows exceeds `ahead` busy cycles; the end of the
    run if none does."""
    issued = np.cumsum(run.busy_bins[:, place.start_rows or place.rows, place.cols], axis=0)
    busy = np.flatnonzero((issued > ahead).any(axis=(1, 2)))
    return float(busy[0] * bins.cycles if busy.size else run.cycles)


def engine_waits(engine: PipelinedRun, step_cycles: float, books: Sequence[Sequence[float]]) -> list[Waits]:
    """Return the waits of every region for a batch of training."""
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
    """Return the waits of a core that began at cycle `started`."""
    idle = started + run.cycles - run.halt_cycles[core]
    return _waits(run.cycles, run.busy[core], run.stalled_out[core], idle)


def steady_waits(period: float, busy: float, stalled_output: float) -> Waits:
    """Return the waits per sample in steady state, where no time is idle."""
    return _waits(period, busy, stalled_output, 0.0)


def _waits(cycles: float, busy: float, stalled_output: float, idle: float) -> Waits:
    return float(cycles - busy - stalled_output - idle), float(stalled_output), float(idle)


def same_order(engine: Sequence[float], fabric: Sequence[float], within: float = 0.0) -> bool:
    """Return whether no two regions start in opposite orders in the engine and on the fabric.

    Starts on the fabric that are at most `within` cycles apart (the length of a bin) count as unordered.
    """
    ahead, found = np.subtract.outer(engine, engine), np.subtract.outer(fabric, fabric)
    return not np.any((ahead < 0) & (found > within))
