"""Samples of a replica over time, in machine code: the state after a turn is formed holds until the next turn."""

from __future__ import annotations

from wse_sim.jit import inlined_kernel
from wse_sim.serving.fast_state import (
    CACHED,
    COMPUTED,
    EMITTED,
    FREE,
    PREEMPTIONS,
    RECOMPUTED,
    RUNNING,
    WAITING,
    Limits,
    Replica,
)


@inlined_kernel
def see(replica: Replica, limits: Limits) -> None:
    """Store the current state in the last row."""
    row, at, tally = len(replica.samples) - 1, replica.at, replica.tally
    samples = replica.samples
    samples[row, 0], samples[row, 1], samples[row, 2] = at[RUNNING], at[WAITING], limits.blocks - at[FREE]
    samples[row, 3], samples[row, 4], samples[row, 5] = tally[EMITTED], tally[COMPUTED], tally[RECOMPUTED]
    samples[row, 6], samples[row, 7] = tally[CACHED], tally[PREEMPTIONS]
    for r in range(len(replica.busy)):
        samples[row, 8 + r] = replica.busy[r]
    replica.sampled[2] = 1


@inlined_kernel
def sample(replica: Replica, now: int) -> None:
    """Write samples for all times before `now`; when the array is full, keep every second row."""
    samples, sampled = replica.samples, replica.sampled
    seen, columns = len(samples) - 1, samples.shape[1]
    while sampled[0] * sampled[1] < now:
        if sampled[0] == seen:
            for k in range(seen // 2):
                for column in range(columns):
                    samples[k, column] = samples[2 * k, column]
            sampled[0], sampled[1] = seen // 2, 2 * sampled[1]
            continue
        for column in range(columns):
            samples[sampled[0], column] = samples[seen, column]
        sampled[0] += 1
    sampled[2] = 0
