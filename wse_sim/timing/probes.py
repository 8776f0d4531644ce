"""One probe on the fabric: steady cycles of a turn, by formula and as run.

Symbols: n = `start` of the probe, c(n) cycles of a run with n rounds; steady cycles = c(2n) - c(n).
Subtracting the two runs removes one-time costs (filling, start-up, draining).  A probe without a `step` is run
only once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wse_sim.errors import DeadlockError, KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import How, Probe
from wse_sim.kernels.contract.registry import family

SAME = 0.02  # a ratio this near to one counts as equal


@dataclass(frozen=True)
class Measured:
    """A probe as measured: cycles by formula, on the fabric, and those in which the busiest core issues."""

    model_cycles: float
    fabric_cycles: float
    issue_cycles: float
    reason: str = ""  # why there is no measurement

    @property
    def ratio(self) -> float:
        """Fabric cycles over formula cycles; 1 if nothing was measured."""
        return self.fabric_cycles / self.model_cycles if not self.reason else 1.0

    @property
    def why(self) -> str:
        """Cause of the difference, or the reason why there is no measurement."""
        if self.reason:
            return self.reason
        more = self.fabric_cycles - self.model_cycles
        if abs(self.ratio - 1.0) <= SAME:
            return "as the formula"
        waiting = self.fabric_cycles - self.issue_cycles
        if more < 0:
            part = "the formula counts more than the program issues"
        elif waiting > more / 2:
            part = "the core waits for words"
        else:
            part = "starts and tasks between vectors"
        return f"{more:+.4g} of {self.model_cycles:.4g} cycles: {part}"


def unmeasured(reason: str) -> Measured:
    """The placeholder of a probe that did not run, with ratio 1."""
    return Measured(1.0, 1.0, 0.0, reason)


def measure(probe: Probe, wafer: Wafer) -> Measured:
    """Run a probe: n and 2 n rounds, or only once if it has no `step`.

    Raises
    ------
    KernelError
        If the family has no such program, or its formula does not grow with the turns.
    ProgramError
        If the program is malformed or stops.
    """
    if not probe.step:
        model, fabric, issue = _run(probe, wafer, 0)
    else:
        once, twice = (np.array(_run(probe, wafer, turns)) for turns in (probe.start, 2 * probe.start))
        model, fabric, issue = (float(x) for x in (twice - once) / probe.start)
    if model <= 0:
        raise KernelError(
            f"kernel '{probe.family}': the formula of '{probe.part}' does not grow with {probe.step}; "
            "step the dimension that its turns follow"
        )
    return Measured(model, fabric, issue)


def _run(probe: Probe, wafer: Wafer, turns: int) -> tuple[float, float, float]:
    """(formula, fabric, issue of the busiest core) in cycles."""
    from wse_sim.fabric.run import run_program

    found = family(probe.family)
    dims = {**probe.dims, probe.step: turns} if probe.step else dict(probe.dims)
    how: How = {"phase": probe.phase, "dtype": probe.dtype, "attrs": dict(probe.attrs)}
    cost = found.cost(dims, probe.tiling, wafer, **how)
    case = found.program(dims, probe.tiling, wafer, **how, seed=0)
    result = run_program(case.program, case.config, functional=False)
    if result.deadlock is not None:
        raise DeadlockError(f"the program of '{probe.family}' stopped: {result.deadlock.told()}")
    return float(np.asarray(cost.total)), float(result.cycles), float(result.busy.max())
