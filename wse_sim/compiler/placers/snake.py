"""The placer ``snake``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wse_sim.compiler.placers.base import RectanglePlacer

if TYPE_CHECKING:
    from wse_sim.compiler.placement.problem import Placement, PlacementProblem, Progress


class Snake(RectanglePlacer):
    """Shelves in snake order, for rectangles of any use."""

    name = "snake"
    about = "shelves of rectangles in snake order: wire counted, around dead cores"

    def place(
        self,
        problem: PlacementProblem,
        *,
        seed: int = 0,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> Placement:
        """See :class:`wse_sim.compiler.placement.snake.SnakePlacer`."""
        from wse_sim.compiler.placement.snake import SnakePlacer

        return SnakePlacer().place(problem, seed=seed, time_limit_s=time_limit_s, progress=progress)


PLACER = Snake()
