"""Training scripts on the simulated wafer: the programming interface.

``import wse_sim.cstorch as cstorch`` needs no runner; the runner (``wse-sim script``) also opens the names
under which public scripts import the interface (:mod:`wse_sim.cstorch.doors`).  Names are loaded when they
are first used.
"""

from __future__ import annotations

from importlib import import_module

_HERE = "wse_sim.cstorch"

__version__ = "2.1.1"
"""Release of the interface whose names are followed; scripts compare it."""

_generating_docs = False
"""Whether the documentation of a program is being made: trainers leave out base classes then."""

# Public name -> module that defines it (of this package).
_HOME = {
    "Backend": "machine",
    "BackendType": "machine",
    "backend": "machine",
    "compile": "machine",
    "configure": "machine",
    "trace": "step",
    "compile_step": "step",
    "step_closure": "step",
    "checkpoint_closure": "step",
    "use_cs": "runtime",
    "is_tracing": "runtime",
    "reset": "runtime",
    "install_aliases": "doors",
    "current_backend": "helpers",
    "current_executor": "helpers",
    "current_torch_device": "helpers",
    "make_constant": "helpers",
    "from_numpy": "helpers",
    "to_numpy": "helpers",
    "manual_seed": "helpers",
    "set_debug_scope": "helpers",
    "add_debug_name": "helpers",
    "get_debug_name": "helpers",
    "ProgramError": "faults",
    # the other half: data, optimizers, numerics, checkpoints, metrics, summaries
    "save": "checkpoint",
    "load": "checkpoint",
    "pol": "amp",
    "current_pol": "amp",
    "name_scope": "summaries",
    "summarize_scalar": "summaries",
    "summarize_tensor": "summaries",
    "scalar_summary": "summaries",
    "tensor_summary": "summaries",
    "save_summaries": "summaries",
    "metrics_report": "counters",
    "short_metrics_report": "counters",
    "counter_names": "counters",
    "counter_value": "counters",
    "metric_names": "counters",
    "metric_data": "counters",
    "clear_all": "counters",
}

# Public submodules.
_MODULES = (
    "amp", "appliance", "backends", "cbtorch", "cirh", "core", "decomp", "distributed", "experimental", "metrics", "monitor", "nn",
    "optim", "profiler", "saver", "sparse", "storage", "utils",
)  # fmt: skip

# Names that differ from what their module calls them.
_RENAMED = {"compile_step": "trace"}


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(f"{_HERE}.{_HOME[name]}"), _RENAMED.get(name, name))
        globals()[name] = value
        return value
    if name in _MODULES:
        try:
            return import_module(f"{_HERE}.{name}")
        except ModuleNotFoundError as fault:
            if fault.name != f"{_HERE}.{name}":
                raise
    raise AttributeError(f"'{name}' is not part of the interface here; supported names: docs/cstorch.md")


def __dir__() -> list[str]:
    return sorted([*_HOME, *_MODULES])
