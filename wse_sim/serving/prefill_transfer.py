"""Prefill elsewhere: the time at which keys and values of a prompt have arrived.

A request is admitted first: it holds blocks for its whole length before any transfer starts, so no cache waits in transit. Then::

    machines    begin = max(now, free), done = begin + ticks[p]; the machines work on one prompt after the other
    wafers      a line of regions with resident weights: chunk after chunk, c_r = max(c_r, c_(r-1)) + t_r; of several lines that
                whose first region is free first; a chunk holds tokens of one prompt
    link        begin = max(now, link free) if layers stream, max(done, link free) else; it is occupied by all tokens
    there       max(done + the last layer's share if layers stream, end of the link) + hop

All wafers of a replica transfer their parts at the same time; the slowest sets the time of a token. Prefill
needs only the cache in transit, for which decode replicas hold blocks. It is assumed to fit together with the
weights of the prefill wafers.
"""

from __future__ import annotations

import numpy as np

from wse_sim.serving.base import EdgeLink, PrefillElsewhere, Ticks
from wse_sim.serving.latency import Latency


class EdgeState:
    """The edge link of a replica's wafers; transfers are served first come, first served."""

    def __init__(self, link: EdgeLink) -> None:
        self.link, self.free_at = link, 0

    def moves(self, tokens: int, now: int) -> int:
        """Return the tick at which some tokens have passed the link."""
        self.free_at = max(now, self.free_at) + self.link.ticks_of(tokens)
        return self.free_at


class PrefillState:
    """Machines or lines of wafers that read prompts for one replica."""

    def __init__(self, prefill: PrefillElsewhere, latency: Latency, turn_tokens: int) -> None:
        self.prefill, self.latency, self.turn_tokens = prefill, latency, turn_tokens
        self.free_at = 0
        self.lines: Ticks = np.zeros((prefill.lines, latency.regions), np.int64)
        self.busy: Ticks = np.zeros(latency.regions, np.int64)

    def there(self, found: int, length: int, now: int, edge: EdgeState) -> int:
        """Return the tick at which the tokens from `found` to `length` of a request are in the cache."""
        done = self._read(found, length, now)
        begin = now if self.prefill.streams else done
        passed = edge.moves(length - found, begin)
        last = edge.link.ticks_of(-(-(length - found) // self.prefill.layers)) if self.prefill.streams else 0
        return max(done + last, passed) + edge.link.hop_ticks

    def _read(self, found: int, length: int, now: int) -> int:
        if self.prefill.ticks is not None:
            self.free_at = max(now, self.free_at) + int(self.prefill.ticks[length - found])
            return self.free_at
        line = self.lines[int(self.lines[:, 0].argmin())]
        for start in range(found, length, self.turn_tokens):
            end = min(length, start + self.turn_tokens)
            times = self.latency.ticks_of([(end - start, end, int(end == length))])
            free_at = now
            for place, took in enumerate(times.tolist()):
                free_at = max(int(line[place]), free_at) + took
                line[place] = free_at
            self.busy += times
        return int(line[-1])
