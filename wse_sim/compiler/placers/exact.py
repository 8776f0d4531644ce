"""The placer ``exact``."""

from __future__ import annotations

from wse_sim.compiler.placers.base import Engine, Searching


class Exact(Searching):
    """Constraint programming; needs OR-tools."""

    name = "exact"
    about = "proofs for a few kernels"

    def engine(self) -> Engine:
        """See :class:`wse_sim.compiler.placement.exact.ExactPlacer`."""
        from wse_sim.compiler.placement.exact import ExactPlacer

        return ExactPlacer()


PLACER = Exact()
