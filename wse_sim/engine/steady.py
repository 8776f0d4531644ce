"""Detects the steady state of a pipeline, and what a skipped sample adds.

A pipeline with fixed times, bounded streams and in-order samples has finite memory.  Two tests:

* exact: every start time of D consecutive samples (D the samples in flight) equals the start time ``q``
  samples earlier plus one constant.  Then all later samples repeat the pattern until the batch ends.
* even: unequal regions often fluctuate around the pace of the slowest one without a short pattern. Then the
  busy fraction of the slowest region must be equal within a thousandth over two windows of D / 2 samples.

In both cases the rest of the batch, except for the samples in flight, is added instead of simulated::

    period = s_max / (busy fraction of the slowest region)        s_max its cycles per sample
    T(N)   = T(N - s) + s * period                             s a multiple of q
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Books = NDArray[np.float64]  # (regions, 4) cycles: busy, stalled on input, stalled on output, idle

CHECK_EVERY = 4  # samples between two searches for a pattern
MAX_CYCLE = 8  # longest pattern that is searched for
MIN_WINDOW = 8  # samples that a pattern must hold
MIN_EVEN_WINDOW = 24  # samples of a window of the even test
RELATIVE_TOLERANCE = 1e-10  # of the time since start: rounding of sums of 64-bit floats
EVEN_TOLERANCE = 1e-3  # of the busy fraction


@dataclass(frozen=True)
class Steady:
    """What one sample adds in steady state: cycles, and the time of all regions by state; `cycle` is the
    period in samples."""

    cycle: int
    period: float
    rates: Books
    is_exact: bool


@dataclass(frozen=True)
class Look:
    """Snapshot of a batch for the steady-state detector: completed samples, time, samples in flight, and more
    on demand."""

    rows: int
    now: float
    depth: int
    departures: Callable[[], Sequence[float]]
    starts: Callable[[], Sequence[Sequence[float]]]  # per region and pass: start of each sample
    books: Callable[[], Books]


class SteadyWatch:
    """Observes one batch until its steady state is found."""

    def __init__(self, slowest: int, slowest_cycles: float) -> None:
        self._slowest = slowest
        self._slowest_cycles = slowest_cycles
        self._pattern: tuple[int, int, float, Books] | None = None  # cycle, row, time, books
        self._marks: list[tuple[int, float, Books]] = []  # row, time, books

    def look(self, seen: Look) -> Steady | None:
        """Return the steady state if it has been reached, else None."""
        if self._pattern is not None:
            cycle, row, since, before = self._pattern
            if seen.rows < row + cycle:
                return None
            period = (seen.now - since) / cycle
            return Steady(cycle, period, (seen.books() - before) / cycle, is_exact=True)
        if seen.rows % CHECK_EVERY:
            return None
        cycle = find_pattern(seen.departures(), seen.starts, seen.depth)
        if cycle:
            self._pattern = (cycle, seen.rows, seen.now, seen.books())
            return None
        return self._even(seen)

    def _even(self, seen: Look) -> Steady | None:
        window = max(seen.depth // 2, MIN_EVEN_WINDOW)
        if self._marks and seen.rows < self._marks[-1][0] + window:
            return None
        self._marks.append((seen.rows, seen.now, seen.books()))
        if len(self._marks) < 3:
            return None
        (_, first, one), (_, second, two), (_, third, three) = self._marks[-3:]
        before = float((two - one)[self._slowest, 0]) / (second - first)
        after = float((three - two)[self._slowest, 0]) / (third - second)
        if after <= 0 or abs(after - before) > EVEN_TOLERANCE * after:
            return None
        fraction = float((three - one)[self._slowest, 0]) / (third - first)
        period = self._slowest_cycles / fraction
        rates = (three - one) * (period / (third - first))
        return Steady(1, period, rates, is_exact=False)


def find_pattern(
    departures: Sequence[float], starts: Callable[[], Sequence[Sequence[float]]], depth: int
) -> int:
    """Return the length of the pattern that the last samples repeat; 0 if there is none."""
    done = len(departures)
    window = max(depth + 1, MIN_WINDOW)
    columns = None
    for cycle in range(1, MAX_CYCLE + 1):
        if done < window + cycle + 1:
            return 0
        tail = np.asarray(departures[done - window - cycle :])
        tolerance = RELATIVE_TOLERANCE * float(tail[-1]) + 1e-6
        if np.ptp(tail[cycle:] - tail[:-cycle]) > tolerance:
            continue
        if columns is None:
            columns = np.asarray([row[:done] for row in starts()])
        recent = columns[:, done - window - cycle :]
        if np.ptp(recent[:, cycle:] - recent[:, :-cycle]) <= tolerance:
            return cycle
    return 0
