"""The placer ``snake``."""

from __future__ import annotations

from wse_sim.compiler.placers.base import Engine, Searching


class Snake(Searching):
    """Placer of any rectangles on shelves in snake order."""

    name = "snake"
    about = "dynamic program over shelves of rectangles in snake order; considers wire, avoids dead cores"

    def engine(self) -> Engine:
        """Return a :class:`wse_sim.compiler.placement.snake.SnakePlacer`."""
        from wse_sim.compiler.placement.snake import SnakePlacer

        return SnakePlacer()


PLACER = Snake()
