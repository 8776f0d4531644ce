"""The steady state of a pipeline: when it is reached, and what a skipped sample adds.

A pipeline with fixed times, bounded streams and in-order samples is a max-plus system with finite
memory: once every start time of ``D`` consecutive samples (D the samples in flight) equals the start
time ``q`` samples earlier plus one constant, all later samples repeat the pattern until the batch
ends.  The rest of the batch but its last D samples is then added and not simulated:
``T(N) = T(N - s) + s * period`` for s a multiple of q.

Where regions drift apart very slowly (buffers fill for thousands of samples) the departures alone
decide: constant over four times the depth.  That error is below the drift within one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_CYCLE = 8  # longest pattern of samples that is looked for
RELATIVE_TOLERANCE = 1e-10  # of the time since start: rounding of sums of 64-bit floats
MIN_WINDOW = 8


@dataclass(frozen=True)
class Steady:
    """A pattern of `cycle` samples that repeats every ``cycle * period`` cycles."""

    cycle: int
    period: float
    is_exact: bool


def find_steady(
    departures: Sequence[float], starts: Sequence[Sequence[float]], depth: int, cycles: Sequence[int]
) -> Steady | None:
    """Look for a pattern in the last samples of a batch.

    Parameters
    ----------
    departures
        When each sample left (cycles).
    starts
        Per region and pass: when each sample started; at least as long as `departures`.
    depth
        Samples in flight.
    cycles
        Lengths of patterns to look for.
    """
    done = len(departures)
    for cycle in cycles:
        window = max(depth + 1, MIN_WINDOW)
        if done < window + cycle + 1:
            return None
        tail = np.asarray(departures[done - window - cycle :])
        tolerance = RELATIVE_TOLERANCE * float(tail[-1]) + 1e-6
        shift = tail[cycle:] - tail[:-cycle]
        if np.ptp(shift) > tolerance:
            continue
        period = float(shift[-1]) / cycle
        columns = np.asarray([row[done - window - cycle : done] for row in starts])
        if columns.size == 0 or np.ptp(columns[:, cycle:] - columns[:, :-cycle]) <= tolerance:
            return Steady(cycle, period, is_exact=True)
        long = 4 * window
        if done >= long + cycle:
            tail = np.asarray(departures[done - long - cycle :])
            if np.ptp(tail[cycle:] - tail[:-cycle]) <= tolerance:
                return Steady(cycle, period, is_exact=False)
    return None
