"""Uncertainty of predictions: constants vary within their ranges, and the model has its own error.

draws.py        constants at quasi-random places of their ranges
model_error.py    error that no constant explains, per subject, from measurements
interval.py     both combined: a value with its bounds
spread.py       a run, a kernel or a point, priced again at every draw
processes.py    tasks on several processes
sensitivity.py  which constants affect a number
"""

from wse_sim.uncertainty.interval import Interval
from wse_sim.uncertainty.spread import compare_interval, kernel_interval, result_intervals

__all__ = ["Interval", "compare_interval", "kernel_interval", "result_intervals"]
