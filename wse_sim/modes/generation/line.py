"""Closed form of a flow line, in which turns pass regions in order without overtaking.

For one turn after the other, with t_r the time of region r and c_r the time at which it is free again::

    c_r = max(c_r of the turn before, c_(r-1)) + t_r

The time of m equal turns is a longest path through a lattice of turns and regions. It enters at some region
j, visits every region from there to r, and visits the slowest of them m - 1 more times::

    c_r after m turns = max over j <= r of [ c_j + sum of t_j .. t_r + (m - 1) max of t_j .. t_r ]

From an empty line that is (m - 1) max t + sum t at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def line_s(times: Sequence[Sequence[float]], counts: Sequence[int]) -> float:
    """Return when the last turn leaves the last region: `times` (kinds, regions) of a turn, `counts` equal
    turns each.

    Example
    -------
    >>> line_s([[1.0, 3.0, 2.0]], [4])  # 3 x 3 + 6
    15.0
    """
    regions = len(times[0])
    is_before = np.tri(regions, dtype=bool).T  # (from, to)
    free = np.zeros(regions)
    for turn, count in zip(times, counts, strict=True):
        t = np.asarray(turn)
        until = np.cumsum(t)
        slowest = np.maximum.accumulate(np.where(is_before, t, 0.0), axis=1)
        way = (until - (until - t)[:, None]) + (count - 1) * slowest
        free = np.max(np.where(is_before, free[:, None] + way, 0.0), axis=0)
    return float(free[-1])
