"""The placer ``portfolio``, and the names ``fast``, ``normal`` and ``best`` for it with a time limit."""

from __future__ import annotations

from wse_sim.compiler.placers.base import Engine, Searching


class Portfolio(Searching):
    """Placer by start trees, annealing, compaction and windows, with a default time limit of `limit_s`
    seconds.
    """

    name = "portfolio"
    about = "peel seeds, annealing over slicing trees, compaction by linear programs, local windows by CP-SAT"

    def __init__(self, name: str = "", limit_s: float | None = None) -> None:
        if name:
            self.name, self.limit_s = name, limit_s
            self.about = f"the portfolio for {limit_s:g} seconds"

    def engine(self) -> Engine:
        """Return a :class:`wse_sim.compiler.placement.portfolio.PortfolioPlacer`."""
        from wse_sim.compiler.placement.portfolio import PortfolioPlacer

        return PortfolioPlacer()


PLACERS = (Portfolio(), Portfolio("fast", 4.0), Portfolio("normal", 20.0), Portfolio("best", 60.0))
