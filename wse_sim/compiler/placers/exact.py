"""The placer ``exact``."""

from __future__ import annotations

from wse_sim.compiler.placers.base import Engine, Searching


class Exact(Searching):
    """Placer by constraint programming; it needs OR-tools."""

    name = "exact"
    about = "constraint programming with a proof of the optimum, for a few kernels"

    def engine(self) -> Engine:
        """Return a :class:`wse_sim.compiler.placement.exact.ExactPlacer`."""
        from wse_sim.compiler.placement.exact import ExactPlacer

        return ExactPlacer()


PLACER = Exact()
