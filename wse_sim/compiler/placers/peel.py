"""The placer ``peel``."""

from __future__ import annotations

from wse_sim.compiler.placers.base import Engine, Searching


class Peel(Searching):
    """Placer by the start trees of the portfolio alone."""

    name = "peel"
    about = "dynamic program that peels rows and stacks off the free rectangle; the start of the portfolio"

    def engine(self) -> Engine:
        """Return a :class:`wse_sim.compiler.placement.portfolio.PeelPlacer`."""
        from wse_sim.compiler.placement.portfolio import PeelPlacer

        return PeelPlacer()


PLACER = Peel()
