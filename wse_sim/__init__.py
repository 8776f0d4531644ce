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
    from wse_sim.api import compare, compile, lower, plan_of, run, simulate  # noqa: A004
    from wse_sim.compiler.placers.base import Placer
    from wse_sim.compiler.placers.options import PlaceOptions
    from wse_sim.compiler.placers.registry import register_placer
    from wse_sim.compiler.plan import Infeasible, Region
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
    from wse_sim.kernels.contract.family import Family
    from wse_sim.modes import load_result
    from wse_sim.options import RunOptions
    from wse_sim.report.difference import diff
    from wse_sim.service.predict import predictor
    from wse_sim.studies.study import study

_HOME = {
    "Family": "wse_sim.kernels.contract.family",
    "Infeasible": "wse_sim.compiler.plan",
    "PlaceOptions": "wse_sim.compiler.placers.options",
    "Placer": "wse_sim.compiler.placers.base",
    "Region": "wse_sim.compiler.plan",
    "Result": "wse_sim.engine.result",
    "RunOptions": "wse_sim.options",
    "WseError": "wse_sim.errors",
    "compare": "wse_sim.api",
    "compile": "wse_sim.api",
    "diff": "wse_sim.report.difference",
    "load_cluster": "wse_sim.hardware",
    "load_model": "wse_sim.frontend",
    "load_result": "wse_sim.modes",
    "load_wafer": "wse_sim.hardware",
    "lower": "wse_sim.api",
    "plan_of": "wse_sim.api",
    "predictor": "wse_sim.service.predict",
    "register_family": "wse_sim.frontend.registration",
    "register_operator": "wse_sim.frontend.registration",
    "register_placer": "wse_sim.compiler.placers.registry",
    "register_rewrite": "wse_sim.frontend.registration",
    "run": "wse_sim.api",
    "simulate": "wse_sim.api",
    "study": "wse_sim.studies.study",
    "temporary_registrations": "wse_sim.frontend.registration",
}

__all__ = [
    "Family",
    "Infeasible",
    "PlaceOptions",
    "Placer",
    "Region",
    "Result",
    "RunOptions",
    "WseError",
    "__version__",
    "compare",
    "compile",
    "diff",
    "load_cluster",
    "load_model",
    "load_result",
    "load_wafer",
    "lower",
    "plan_of",
    "predictor",
    "register_family",
    "register_operator",
    "register_placer",
    "register_rewrite",
    "run",
    "simulate",
    "study",
    "temporary_registrations",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'wse_sim' has no attribute '{name}'")


_VIEWS = {
    "card": ("wse_sim.report.card", "card"),
    "breakdown": ("wse_sim.report.hta", "breakdown"),
    "heatmap": ("wse_sim.report.heatmap", "draw_map"),
    "summary": ("wse_sim.report.tables", "summary_text"),
    "table": ("wse_sim.report.tables", "table"),
    "to_dataframe": ("wse_sim.report.data", "to_dataframe"),
    "trace": ("wse_sim.report.trace", "write_trace"),
}
for _name, (_module, _function) in _VIEWS.items():
    register_view(_name, _module, _function)
