"""Proof that arbitration never had a choice: no two colors used the same output port of a router in one
cycle.

Every router node on a shared output port logs its moves as arithmetic runs (node, start, step, n): the cycles
start, start + step, ..., start + (n - 1) step.  Two runs of different colors with a common output port collide if
their progressions share a cycle.  Rates are not enough: two streams at rate 1/2 add up to 1 and collide in
every cycle if they are in phase.  Overlapping intervals would be sound but refuse streams that interleave.

Without a collision the round-robin pointer never decided anything, so the times of :mod:`~wse_sim.fabric.executors.maxplus.advance` are the
trajectory of the stepped executors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.maxplus.graph import CORE, PORTS, SLOT
from wse_sim.jit import kernel

NODE, START, STEP, COUNT = range(4)


@kernel
def meet(s1, d1, n1, s2, d2, n2):  # type: ignore[no-untyped-def]
    """Return whether the progressions s1 + i d1 (i < n1) and s2 + j d2 (j < n2) share a cycle."""
    low, high = max(s1, s2), min(s1 + d1 * (n1 - 1), s2 + d2 * (n2 - 1))
    if low > high:
        return False
    if n1 > 1 and (n2 == 1 or d2 > d1):
        s1, d1, n1, s2, d2, n2 = s2, d2, n2, s1, d1, n1
    # now the first is the coarser one, or a single cycle
    if n1 == 1:
        return n2 == 1 or (s1 - s2) % d2 == 0
    t = s1 + (low - s1 + d1 - 1) // d1 * d1
    for _ in range(d2):  # residues repeat after at most d2 terms
        if t > high:
            return False
        if (t - s2) % d2 == 0:
            return True
        t += d1
    return False


@kernel
def by_router(log, n_log, nodes, n_cores):  # type: ignore[no-untyped-def]
    """Counting sort of the log by router: (first entry per router, entries)."""
    first = np.zeros(n_cores + 1, np.int32)
    for i in range(n_log):
        first[nodes[log[i, NODE], CORE] + 1] += 1
    for r in range(n_cores):
        first[r + 1] += first[r]
    order = np.empty(n_log, np.int32)
    place = first[:-1].copy()
    for i in range(n_log):
        r = nodes[log[i, NODE], CORE]
        order[place[r]] = i
        place[r] += 1
    return first, order


@kernel
def collisions(log, n_log, nodes, n_cores, found):  # type: ignore[no-untyped-def]
    """Write the first collision of every router to `found` (core, ports, slot, slot); return their number."""
    first, order = by_router(log, n_log, nodes, n_cores)
    n_found = np.int64(0)
    active = np.empty(max(1, n_log), np.int32)
    for r in range(n_cores):
        begin, end = first[r], first[r + 1]
        if end - begin < 2:
            continue
        several = False
        for i in range(begin + 1, end):
            if nodes[log[order[i], NODE], SLOT] != nodes[log[order[begin], NODE], SLOT]:
                several = True
                break
        if not several:
            continue
        part = order[begin:end]
        if end - begin > 32:
            part = part[np.argsort(log[part, START])]
        else:
            for i in range(1, end - begin):
                entry, j = part[i], i
                while j > 0 and log[part[j - 1], START] > log[entry, START]:
                    part[j] = part[j - 1]
                    j -= 1
                part[j] = entry
        n_active, hit = 0, False
        for entry in part:
            start, step, n = (
                np.int64(log[entry, START]),
                np.int64(log[entry, STEP]),
                np.int64(log[entry, COUNT]),
            )
            u = log[entry, NODE]
            kept = 0
            for i in range(n_active):
                other = active[i]
                s2, d2, n2 = (
                    np.int64(log[other, START]),
                    np.int64(log[other, STEP]),
                    np.int64(log[other, COUNT]),
                )
                if s2 + d2 * (n2 - 1) < start:
                    continue
                active[kept] = other
                kept += 1
                v = log[other, NODE]
                common = nodes[u, PORTS] & nodes[v, PORTS]
                if nodes[u, SLOT] != nodes[v, SLOT] and common and meet(start, step, n, s2, d2, n2):
                    found[n_found, 0], found[n_found, 1] = r, common
                    found[n_found, 2], found[n_found, 3] = nodes[v, SLOT], nodes[u, SLOT]
                    n_found += 1
                    hit = True
                    break
            if hit:
                break
            n_active = kept
            active[n_active] = entry
            n_active += 1
    return n_found


def find_collisions(
    log: npt.NDArray[np.int32], n_log: int, nodes: npt.NDArray[np.int32], n_cores: int
) -> npt.NDArray[np.int64]:
    """Return rows (core, ports, slot, slot): the first collision of every router that has one."""
    found = np.zeros((n_cores, 4), np.int64)
    n_found = collisions(log, n_log, nodes, n_cores, found)
    return found[:n_found]
