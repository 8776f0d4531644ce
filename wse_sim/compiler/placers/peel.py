"""The placer ``peel``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wse_sim.compiler.placers.base import RectanglePlacer

if TYPE_CHECKING:
    from wse_sim.compiler.placement.problem import Placement, PlacementProblem, Progress


class Peel(RectanglePlacer):
    """The seeds of the portfolio alone."""

    name = "peel"
    about = "peel dynamic program over rows and stacks"

    def place(
        self,
        problem: PlacementProblem,
        *,
        seed: int = 0,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> Placement:
        """See :class:`wse_sim.compiler.placement.portfolio.PeelPlacer`."""
        from wse_sim.compiler.placement.portfolio import PeelPlacer

        return PeelPlacer().place(problem, seed=seed, time_limit_s=time_limit_s, progress=progress)


PLACER = Peel()
