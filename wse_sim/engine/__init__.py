"""The event engine: common parts of the discrete-event simulations of all modes."""

from wse_sim.engine.result import KernelUse, Result, Slice

__all__ = ["KernelUse", "Result", "Slice"]
