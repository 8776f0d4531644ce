"""``cstorch.utils.tracker``: rates of a run in wafer time."""

from wse_sim.cstorch.rates import Rate, RateTracker

__all__ = ["Rate", "RateTracker"]
