"""Modes: ways of running a model on the wafer, one folder each, behind one protocol (:mod:`wse_sim.modes.base`).

pipelined          every kernel stays on its own region, samples stream through
weight_streaming   one kernel at a time on the whole wafer, weights stream in
pipelined_systems  the pipelined mode over several wafers: consecutive blocks on each
generation         layers on regions, tokens of requests pass through

The list :data:`MODES` is in :mod:`wse_sim.modes.registry`.
"""

from wse_sim.modes.base import Mode, System, option_names, options_of
from wse_sim.modes.registry import (
    MODES,
    competing,
    forget_mode,
    mode_named,
    mode_names,
    mode_of,
    on_systems,
    register_mode,
    resting,
    streaming,
)
from wse_sim.modes.simulation import load_result, simulate

__all__ = [
    "MODES",
    "Mode",
    "System",
    "competing",
    "forget_mode",
    "load_result",
    "mode_named",
    "mode_names",
    "mode_of",
    "on_systems",
    "option_names",
    "options_of",
    "register_mode",
    "resting",
    "simulate",
    "streaming",
]
