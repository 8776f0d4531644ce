"""The main loop: from a plan to a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.engine.checkpoint import Checkpoints, with_checkpoints
from wse_sim.engine.options import Options, Progress
from wse_sim.engine.result import Result
from wse_sim.errors import ConfigError, SerializationError
from wse_sim.modes.registry import mode_of
from wse_sim.serialize import load

Timing = str | Mapping[str, float]


def simulate(
    plan: Plan,
    *,
    timing: Timing = "model",
    trace: bool = True,
    steps: int | None = None,
    extrapolate: bool = True,
    jitter: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
    checkpoints: Checkpoints | None = None,
    skew: float = 0.0,
) -> Result:
    """Run a plan as a discrete-event simulation and measure its last step.

    Parameters
    ----------
    plan
        Plan from the compiler.
    timing
        "model" uses the plan's cycles. A mapping from stage or phase names to factors multiplies the cycles
        of the named ones; a factor is the ratio of measured to modelled cycles.
    trace
        Whether to keep the timeline.
    steps
        Steps to run; the last one is measured.  Default: as many as the mode needs to settle.
    extrapolate
        Whether to add the samples (or micro-batches) that repeat a steady pattern.
    jitter, seed
        Relative spread of an input worker's time per sample, and the seed of the draws.
    progress
        Called with (done, total) from time to time.
    checkpoints
        How often the state is written; its time is added to every step in equal parts.
    skew
        Relative spread of the systems' times per step, if a collective synchronizes them; the slowest sets
        the pace.

    Example
    -------
    >>> import wse_sim
    >>> plan = wse_sim.compile("fc-mnist", mode="weight-streaming", batch=8)
    >>> plain, slower = simulate(plan, trace=False), simulate(plan, trace=False, timing={"forward fc": 2.0})
    >>> plain.mode
    'weight-streaming'

    Raises
    ------
    ConfigError
        If an option is out of range.
    PipelineDeadlockError
        If stages wait for each other forever.
    """
    mode = mode_of(plan)
    options = Options(
        steps if steps is not None else mode.simulated_steps, extrapolate, jitter, seed, progress, skew
    )
    options.check()
    if checkpoints is not None:
        checkpoints.check()
    if isinstance(timing, Mapping):
        plan = mode.scaled(plan, timing)
    elif timing != "model":
        raise ConfigError(f"timing '{timing}' is unknown; use 'model' or a mapping of names to factors")
    result = dataclasses.replace(mode.simulate(plan, options, trace=trace), facts=mode.describe(plan))
    if skew and "slowest_system_factor" not in result.figures:
        note = (
            f"a skew of {skew:g} changes nothing here: no collective joins the systems of mode {result.mode}"
        )
        result = dataclasses.replace(result, notes=(*result.notes, note))
    return result if checkpoints is None else with_checkpoints(result, checkpoints)


def load_result(folder: str | Path) -> Result | Infeasible:
    """Read a result from the folder of a run; the plans of all modes in the list are known.

    Example
    -------
    >>> import tempfile, wse_sim
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = wse_sim.run("fc-mnist", mode="weight-streaming", batch=8).save(folder)
    ...     load_result(folder).mode
    'weight-streaming'

    Raises
    ------
    SerializationError
        If the folder contains no readable result.
    """
    loaded = load(Path(folder), "result")
    if not isinstance(loaded, Result | Infeasible):
        raise SerializationError(
            f"{folder}/result.json contains a {type(loaded).__name__}, but a result is needed"
        )
    return loaded
