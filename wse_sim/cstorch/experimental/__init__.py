"""The experimental interface: everything in the current one, and names that only older programs use.

Its loader iterates by itself, its step decorator is ``compile_step``, its summaries are saved by hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import NoReturn

import torch

from wse_sim.cstorch import faults
from wse_sim.cstorch.nn import applied_to_a_part
from wse_sim.cstorch.utils.utils import FilterCallable, make_param_filter

# Names of the interface that are not simulated, and their replacements.
NOT_SIMULATED = {
    "run_implicit_autoregressive_loop": "text generation is simulated by 'wse-sim generate'",
    "start_implicit_loop": "text generation is simulated by 'wse-sim generate'",
    "update_implicit_loop": "text generation is simulated by 'wse-sim generate'",
    "get_loop_iteration_slice": "text generation is simulated by 'wse-sim generate'",
}


class Compression:
    """Weights that would be streamed in fewer bits: accepted, without effect on the simulated step (a warning states
    this).

    Args:
        compression_format: the name of a format.
        param_filter: patterns of names, or a function of name and parameter.
    """

    def __init__(self, compression_format: str, param_filter: str | Iterable[str] | FilterCallable) -> None:
        self.format, self.filter = compression_format, make_param_filter(param_filter)
        self.names: list[str] = []

    def __call__(self, model: torch.nn.Module) -> None:
        """Accept a model (``model.apply``)."""
        if applied_to_a_part():
            return
        self.names = [name for name, p in model.named_parameters() if self.filter(name, p)]
        if not self.names:
            raise faults.program_error(
                "Compression: no parameter has a name that the filter accepts; check its patterns"
            )
        faults.warn_once(
            "compression",
            f"{len(self.names)} weights are to be streamed in format '{self.format}', which is not simulated: "
            "the step is that of weights as they are",
        )


def __getattr__(name: str) -> object:
    if name in NOT_SIMULATED:

        def refuse(*_: object, **__: object) -> NoReturn:
            raise faults.program_error(
                f"cstorch.experimental.{name} is not part of this simulator; {NOT_SIMULATED[name]}"
            )

        refuse.__name__ = name
        return refuse
    if name.startswith("__"):
        raise AttributeError(name)
    if name in ("metrics", "listener"):
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module("wse_sim.cstorch"), name)


def __dir__() -> list[str]:
    return sorted([*dir(importlib.import_module("wse_sim.cstorch")), *NOT_SIMULATED, "listener"])
