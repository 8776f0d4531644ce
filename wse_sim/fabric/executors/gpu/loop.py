"""A cycle in two halves. Any number of threads may run each half in any order; between halves all threads synchronise.

First half:   words of routers decide, rings push.
Second half:  moves are applied to the queues; cores receive words and run their cycle.

In a half no thread reads data that another one writes, except for bits that are set by atomic operations and read in a later half.  So results do not depend on the number of threads nor on their order.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors.core import DONE, OUT_OF_BOUNDS, STUCK, TOO_LONG, TWO_INPUTS, is_finished
from wse_sim.fabric.executors.gpu import planes as G
from wse_sim.fabric.executors.gpu.routers import decide, settle
from wse_sim.fabric.executors.gpu.stations import push_ring, step_station
from wse_sim.fabric.executors.sleep import account
from wse_sim.jit import bare_kernel

ALIVE, COLS, N_CORES, NEVER, SPREAD, BIN = G.ALIVE, G.COLS, G.N_CORES, G.NEVER, G.SPREAD, G.BIN
AT_INPUTS, AT_BOUNDS = G.TWO_INPUTS, G.OUT_OF_BOUNDS


@bare_kernel
def is_over(t, marks, sets):
    """Return whether the run ended before cycle t; equal in all threads while some are in the first half of
    cycle t."""
    if t == 0:
        return False
    if min(marks.faults[AT_INPUTS], marks.faults[AT_BOUNDS]) < t * sets[N_CORES] * SPREAD:
        return True
    return marks.alive[(t - 1) % ALIVE] == 0


@bare_kernel
def has_fault(marks):
    """Return whether two inputs met; only first halves set this, so all threads of a second half get the same
    value."""
    return marks.faults[AT_INPUTS] != NEVER


@bare_kernel
def first_half(i, n, t, routes, planes, payload, cores, tally, marks, sets):
    """Run the first half of cycle t for thread `i` of `n`: router words, then stations, with stride n."""
    alive, words = False, routes.first_core.shape[0]
    for k in range(i, words + routes.stations.shape[0], n):
        if k >= words:
            core = np.int64(routes.stations[k - words])
            if push_ring(core, t, routes, planes, payload, cores, sets):
                alive = True
        elif routes.first_core[k] >= 0 and decide(k, t, routes, planes, payload, tally, marks, sets):
            alive = True
    if alive:
        marks.alive[t % ALIVE] = 1


@bare_kernel
def second_half(i, n, t, routes, planes, payload, cores, tally, marks, sets):
    """Run the second half of cycle t for thread `i` of `n`."""
    alive, words = False, routes.first_core.shape[0]
    if i == 0:
        marks.alive[(t + 1) % ALIVE] = 0
        marks.clock[0] = t
    for k in range(i, words + routes.stations.shape[0], n):
        if k >= words:
            core = np.int64(routes.stations[k - words])
            if step_station(core, t, routes, planes, payload, cores, marks, sets):
                alive = True
        elif routes.first_core[k] >= 0:
            settle(k, routes, planes, tally, sets)
    if alive:
        marks.alive[t % ALIVE] = 1


def outcome_of(marks: G.Marks, n_cores: int, max_cycles: int) -> tuple[int, int, int, int] | None:
    """Return how the run has ended: kind, cycle, core, slot; None if it continues."""
    t = int(marks.clock[0])
    for kind, fault in ((TWO_INPUTS, AT_INPUTS), (OUT_OF_BOUNDS, AT_BOUNDS)):
        if marks.faults[fault] != NEVER:
            place, slot = divmod(int(marks.faults[fault]), SPREAD)
            cycle, core = divmod(place, n_cores)
            return kind, cycle, core, slot
    if marks.alive[t % ALIVE] == 0:
        return DONE, t, 0, 0
    return (TOO_LONG, t + 1, 0, 0) if t + 1 >= max_cycles else None


@bare_kernel
def end_cores(t, cores, sets):
    """Finish the counters; return STUCK if some core has not finished."""
    found = DONE
    for c in range(sets[N_CORES]):
        account(cores.st, c, t, cores.bins, sets[BIN])
        if not is_finished(cores.st[c], c, cores.lay):
            found = STUCK
    return found
