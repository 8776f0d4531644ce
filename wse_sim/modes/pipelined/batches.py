"""Layouts of a pipeline for batches in which fill, drain and update count beside the pace.

Stages of the least cores that keep the pace of the slowest are right for endless batches.  In a short one the
fill, latency and update of the others count as well: cores that the pace leaves over shorten them, and a large
region may take longer to fill than it saves.  Tried are, with the update's share in the time of a stage
(:meth:`wse_sim.compiler.sizing.Sizer.amortised`):

equal     all stages as fast as each other, at the least pace by area times a *slack*, on as many cores as that takes
unequal   the slowest stage within the slack; what that frees of a *share* of the cores goes where it shortens
          the path of a sample most
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from wse_sim.compiler.defects import usable_cores
from wse_sim.compiler.shelves import Box, place_shelves, shelf_placers
from wse_sim.compiler.sizing import FloatArray, Sizer

Layout = list[Box]
EQUAL_SLACKS = (1.02, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
SLACKS = (1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0, inf)
SHARES = (0.95, 0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.03, 0.015, 0.007)
FILL_WEIGHT = 2.0  # a sample fills every region forward and backward
PROMISING = 1.05  # of the cycles to beat: if no coarse trial comes so near, the search ends


class LayoutSearch:
    """A descent over slack and share; `merit` says how many cycles a batch takes with a layout.

    `samples` of a batch lie on one replica.
    """

    def __init__(self, sizer: Sizer, samples: int, merit: Callable[[Layout], float]) -> None:
        self.sizer = sizer.amortised(samples)
        self.merit = merit
        self.cores = usable_cores(sizer.wafer) * (1 - sizer.wafer.transmission_core_share)
        self.found: dict[bytes, tuple[float, Layout]] = {}  # by targets
        self._placers = shelf_placers(self.sizer)

    def layouts(self, to_beat: float) -> list[tuple[float, Layout]]:
        """(cycles, layout), the best first."""
        ideal = self.sizer.pace_for(self.cores)
        if ideal is None:
            return []

        def unequal(slack: int, share: int) -> float:
            if not (0 <= slack < len(SLACKS) and 0 <= share < len(SHARES)):
                return inf
            return self._cycles(
                self.sizer.latency_targets(SHARES[share] * self.cores, SLACKS[slack] * ideal, FILL_WEIGHT)
            )

        for slack in EQUAL_SLACKS:
            self._cycles(np.full(len(self.sizer.groups), slack * ideal))
        best = min(((slack, 2) for slack in range(0, len(SLACKS), 3)), key=lambda at: unequal(*at))
        best = min(
            (best, *((best[0], share) for share in range(0, len(SHARES), 3))), key=lambda at: unequal(*at)
        )
        while unequal(*best) < to_beat * PROMISING:
            slack, share = best
            near = [(slack - 1, share), (slack + 1, share), (slack, share - 1), (slack, share + 1)]
            following = min((best, *near), key=lambda at: unequal(*at))
            if following == best:
                break
            best = following
        return sorted((one for one in self.found.values() if one[0] < inf), key=lambda one: one[0])

    def _cycles(self, targets: FloatArray | None) -> float:
        if targets is None:
            return inf
        key = targets.tobytes()
        if key not in self.found:
            placed = place_shelves(self.sizer, targets, placers=self._placers)
            self.found[key] = (inf, []) if placed is None else (self.merit(placed[1]), placed[1])
        return self.found[key][0]
