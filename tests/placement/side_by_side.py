"""A made-up placer in one file: rectangles next to each other, from the west, at the least level that fits."""

from __future__ import annotations

import numpy as np

from wse_sim.compiler.placement.curves import area_bound
from wse_sim.compiler.placement.problem import finish
from wse_sim.compiler.placers import RectanglePlacer
from wse_sim.errors import PlacementError


class SideBySide(RectanglePlacer):
    """Places every rectangle in the narrowest of its shapes, one after the other."""

    name = "side-by-side"
    about = "rectangles in one row, from the west"

    def place(self, problem, *, seed=0, time_limit_s=60.0, progress=None):
        """Raise the level until the widths add up to the fabric or less."""
        level = area_bound(problem)
        for _ in range(200):
            fronts = [block.shapes.front(level) for block in problem.blocks]
            picks = [np.flatnonzero(front.heights <= problem.height) for front in fronts]
            if all(len(pick) for pick in picks):
                best = [pick[np.argmin(f.widths[pick])] for f, pick in zip(fronts, picks, strict=True)]
                width = np.array([f.widths[i] for f, i in zip(fronts, best, strict=True)])
                height = np.array([f.heights[i] for f, i in zip(fronts, best, strict=True)])
                if width.sum() <= problem.width:
                    x = np.cumsum(width) - width
                    return finish(problem, np.stack([x, np.zeros_like(x), width, height], axis=1), level)
            level *= 1.1
        raise PlacementError("the rectangles are too wide for one row; use another placer")


PLACER = SideBySide()
