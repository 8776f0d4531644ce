"""The placer ``exact``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wse_sim.compiler.placers.base import RectanglePlacer

if TYPE_CHECKING:
    from wse_sim.compiler.placement.problem import Placement, PlacementProblem, Progress


class Exact(RectanglePlacer):
    """Constraint programming; needs OR-tools."""

    name = "exact"
    about = "proofs for a few kernels"

    def place(
        self,
        problem: PlacementProblem,
        *,
        seed: int = 0,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> Placement:
        """See :class:`wse_sim.compiler.placement.exact.ExactPlacer`."""
        from wse_sim.compiler.placement.exact import ExactPlacer

        return ExactPlacer().place(problem, seed=seed, time_limit_s=time_limit_s, progress=progress)


PLACER = Exact()
