"""wse_sim: an open, cycle-approximate simulator of a wafer-scale engine.

``wse_sim.run("gpt2-small")`` goes the whole way; :mod:`wse_sim.api` lists the steps.  Names are loaded
when they are first used: importing the package pulls in neither torch nor matplotlib nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from wse_sim._version import __version__
from wse_sim.view_registry import register_view

if TYPE_CHECKING:
    from wse_sim.api import compare, compile, lower, run, simulate  # noqa: A004
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.engine.result import Result
    from wse_sim.errors import WseError
    from wse_sim.frontend import load_model
    from wse_sim.frontend.registration import (
        register_family,
        register_operator,
        register_rewrite,
        temporary_registrations,
    )
    from wse_sim.hardware import load_cluster, load_wafer
    from wse_sim.modes import load_result

_HOME = {
    "Infeasible": "wse_sim.compiler.plan",
    "Result": "wse_sim.engine.result",
    "WseError": "wse_sim.errors",
    "compare": "wse_sim.api",
    "compile": "wse_sim.api",
    "load_cluster": "wse_sim.hardware",
    "load_model": "wse_sim.frontend",
    "load_result": "wse_sim.modes",
    "load_wafer": "wse_sim.hardware",
    "lower": "wse_sim.api",
    "register_family": "wse_sim.frontend.registration",
    "register_operator": "wse_sim.frontend.registration",
    "register_rewrite": "wse_sim.frontend.registration",
    "run": "wse_sim.api",
    "simulate": "wse_sim.api",
    "temporary_registrations": "wse_sim.frontend.registration",
}

__all__ = [
    "Infeasible",
    "Result",
    "WseError",
    "__version__",
    "compare",
    "compile",
    "load_cluster",
    "load_model",
    "load_result",
    "load_wafer",
    "lower",
    "register_family",
    "register_operator",
    "register_rewrite",
    "run",
    "simulate",
    "temporary_registrations",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'wse_sim' has no attribute '{name}'")


_VIEWS = {
    "breakdown": ("wse_sim.report.hta", "breakdown"),
    "heatmap": ("wse_sim.report.heatmap", "draw_map"),
    "summary": ("wse_sim.report.tables", "summary_text"),
    "table": ("wse_sim.report.tables", "table"),
    "to_dataframe": ("wse_sim.report.data", "to_dataframe"),
    "trace": ("wse_sim.report.trace", "write_trace"),
}
for _name, (_module, _function) in _VIEWS.items():
    register_view(_name, _module, _function)
