"""Saved results back: the plan of every mode is known here."""

from __future__ import annotations

from pathlib import Path

from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import SerializationError
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.serialize import load

KNOWN = (PipelinedPlan, WeightStreamingPlan)


def load_result(folder: str | Path) -> Result | Infeasible:
    """Read a result from the folder of a run.

    Raises
    ------
    SerializationError
        If the folder holds no readable result.
    """
    loaded = load(Path(folder), "result")
    if not isinstance(loaded, Result | Infeasible):
        raise SerializationError(f"{folder}/result.json holds a {type(loaded).__name__}, a result is needed")
    return loaded
