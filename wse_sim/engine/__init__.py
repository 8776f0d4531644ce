"""The event engine: runs a plan as a discrete-event simulation; the main loop is in ``simulation.py``."""

from wse_sim.engine.result import KernelUse, Result, Slice, load_result
from wse_sim.engine.simulation import simulate

__all__ = ["KernelUse", "Result", "Slice", "load_result", "simulate"]
