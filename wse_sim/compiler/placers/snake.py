"""The placer ``snake``."""

from __future__ import annotations

from wse_sim.compiler.placers.base import Engine, Searching


class Snake(Searching):
    """Shelves in snake order, for rectangles of any use."""

    name = "snake"
    about = "shelves of rectangles in snake order: wire counted, around dead cores"

    def engine(self) -> Engine:
        """See :class:`wse_sim.compiler.placement.snake.SnakePlacer`."""
        from wse_sim.compiler.placement.snake import SnakePlacer

        return SnakePlacer()


PLACER = Snake()
