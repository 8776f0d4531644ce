"""Run a fabric program: ``run_program(program, config) -> FabricResult``."""

from __future__ import annotations

import warnings
from typing import NamedTuple

from wse_sim.compile_time import clock
from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import MAX_CYCLES, BusyBins, Executor, Options
from wse_sim.fabric.executors.gpu.executor import Gpu
from wse_sim.fabric.executors.maxplus.executor import MaxPlus
from wse_sim.fabric.executors.oracle import Oracle
from wse_sim.fabric.executors.parts import Parts
from wse_sim.fabric.executors.wavelet.executor import Wavelet
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.lower import lower
from wse_sim.fabric.format.memory import Inputs
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.result import FabricResult, result_of

__all__ = ["EXECUTORS", "BusyBins", "FabricResult", "choose_executor", "find_executor", "run_program"]


class Listed(NamedTuple):
    """An executor, and the number of cores from which "auto" chooses it."""

    executor: Executor
    from_cores: int


ON_REQUEST = 1 << 62  # more cores than any program has

EXECUTORS = (
    # From this number of cores on, the max-plus executor is much faster; with fewer, stepping is fast and
    # counts everything.
    Listed(MaxPlus(Wavelet()), from_cores=16_384),
    Listed(Wavelet(), from_cores=0),
    Listed(Oracle(), from_cores=0),
    Listed(Gpu(), from_cores=ON_REQUEST),
)
"""All executors.  "auto" takes the first that is meant for a program of this size and can run it."""

FORMER_NAMES = {"stream": "max-plus"}


def choose_executor(program: Program, options: Options) -> Executor:
    """Return the executor that "auto" chooses for `program`."""
    return next(
        listed.executor
        for listed in EXECUTORS
        if program.n_cores >= listed.from_cores and listed.executor.can_run(program, options) is None
    )


def find_executor(name: str) -> Executor:
    """Return the executor with the name `name`.

    Raises
    ------
    ProgramError
        If there is no such executor.
    """
    if name in FORMER_NAMES:
        warnings.warn(
            f"the executor '{name}' is now called '{FORMER_NAMES[name]}'; the old name will be removed",
            FutureWarning,
            stacklevel=3,
        )
        name = FORMER_NAMES[name]
    by_name = {listed.executor.name: listed.executor for listed in EXECUTORS}
    if name not in by_name:
        raise ProgramError(f"executor '{name}' is unknown; use auto, {', '.join(by_name)}")
    return by_name[name]


def _check(executor: Executor, program: Program, options: Options) -> None:
    reason = executor.can_run(program, options)
    if reason is None:
        return
    able = [other.name for other, _ in EXECUTORS if other.can_run(program, options) is None]
    raise ProgramError(f"{reason.text}; use executor={' or '.join(repr(name) for name in able)}")


def run_program(
    program: Program,
    config: FabricConfig,
    *,
    executor: str | Executor = "auto",
    functional: bool = True,
    strict: bool = True,
    inputs: Inputs | None = None,
    max_cycles: int = MAX_CYCLES,
    bins: BusyBins | None = None,
    trace_rows: int = 0,
    threads: int = 1,
) -> FabricResult:
    """Run `program` on the fabric of `config`.

    Parameters
    ----------
    executor : str or Executor
        "auto", "oracle", "wavelet", "max-plus", "gpu" or an executor made by the caller.  "auto" steps small programs,
        which counts everything, and solves large ones with the max-plus executor, which steps what its
        certificate does not cover.
    functional : bool
        False: timing only; no values are stored and none travel.
    strict : bool
        Two inputs of one color in the same cycle raise; otherwise they are serialised.
    inputs : mapping
        Values (rows, cols, length) per buffer name, in place at cycle 0.
    bins : BusyBins
        Number and length of time bins of busy cycles; without it nothing is counted over time.
    trace_rows : int
        Record up to that many events (oracle only); see :mod:`wse_sim.fabric.wseviz`.
    threads : int
        Threads that step the fabric, at most one per row of cores.  Results do not depend on it.

    Raises
    ------
    ProgramError
        Undefined behaviour (core, color, cycle), access outside a buffer, or not finished within `max_cycles`.  A deadlock
        does not raise: ``result.deadlock`` explains it.
    """
    if not 1 <= max_cycles < 2**31:
        raise ProgramError(f"max_cycles = {max_cycles} is outside 1..{2**31 - 1}; use a bound in between")
    if threads < 1:
        raise ProgramError(f"threads = {threads} is less than 1; use 1 or the number of free processor cores")
    options = Options(functional, strict, max_cycles, bins, trace_rows, threads)
    if executor == "auto":
        executor = choose_executor(program, options)
    elif isinstance(executor, str):
        executor = find_executor(executor)
    _check(executor, program, options)
    wall, cpu = clock()
    parts = Parts()
    lowered = lower(program, config)
    parts.done("tables of the program")
    run = executor.run(lowered, inputs, options)
    parts.done("the executor")
    seconds = parts.seconds
    if run.seconds:
        seconds = {"tables of the program": seconds["tables of the program"], **run.seconds}
    wall, cpu = (now - then for now, then in zip(clock(), (wall, cpu), strict=True))
    return result_of(program, executor.name, run, wall, cpu, seconds)
