"""The experimental interface: everything of the present one, and what only elder programs use.

Its loader iterates by itself, its step decorator is ``compile_step``, its summaries are saved by hand.
"""

from __future__ import annotations

import importlib
from typing import NoReturn

from wse_sim.cstorch import faults

# Names of the interface that are not simulated, and what stands for them.
NOT_SIMULATED = {
    "run_implicit_autoregressive_loop": "text generation is simulated by 'wse-sim generate'",
    "start_implicit_loop": "text generation is simulated by 'wse-sim generate'",
    "update_implicit_loop": "text generation is simulated by 'wse-sim generate'",
    "get_loop_iteration_slice": "text generation is simulated by 'wse-sim generate'",
    "Compression": "compressed streams of weights are not simulated; sparsity is (cstorch.sparse)",
}


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
