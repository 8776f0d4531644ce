"""The event engine: what the discrete-event simulations of all modes share."""

from wse_sim.engine.result import KernelUse, Result, Slice

__all__ = ["KernelUse", "Result", "Slice"]
