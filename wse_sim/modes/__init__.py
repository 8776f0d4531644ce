"""Modes: ways of running a model on the wafer, one folder each.

pipelined          every kernel rests on its own region, samples stream through
weight_streaming   one kernel at a time on the whole wafer, weights stream in
generation         layers on square regions, tokens of requests pass through
"""

from wse_sim.modes.loading import load_result
from wse_sim.modes.simulation import simulate

__all__ = ["load_result", "simulate"]
