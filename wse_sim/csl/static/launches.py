"""Launches of a host script, one after the other: which can be lowered to fabric programs, and their cycles
by the max-plus executor."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from wse_sim.csl.static.course import NotStaticError
from wse_sim.csl.static.lower import Keep, LoweredLaunch, lower
from wse_sim.csl.static.proof import Proof, Verdict
from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import MAX_CYCLES
from wse_sim.fabric.result import FabricResult
from wse_sim.fabric.run import run_program
from wse_sim.fabric.vm.image import Image
from wse_sim.hardware.wafer import Wafer

EXECUTOR = "max-plus"
AFTER = "a launch before it was not followed"


@dataclasses.dataclass(frozen=True)
class Launch:
    """Result of the analysis of one launch.

    ``cycles`` counts from the launch to the release of the last command stream; without a value the launch is
    not lowered, for the ``reason`` given. ``how`` is how the executor found the times of the cores ("clean",
    "time-ordered", "wavelet", joined by commas). ``bounds`` are the least and most cycles, usually equal;
    :mod:`wse_sim.csl.static.lower` defines ``is_exact``. Seconds are CPU time. ``machine_cycles`` and
    ``machine_s`` are those of the CSL machine, if it ran as well.
    """

    name: str
    cycles: int | None
    reason: str
    verdicts: tuple[Verdict, ...] = ()
    how: str = ""
    bounds: tuple[int, int] = (0, 0)
    is_exact: bool = True
    proof_s: float = 0.0
    run_s: float = 0.0
    machine_cycles: int | None = None
    machine_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON."""
        return dataclasses.asdict(self)


class StaticTimes:
    """Analysis of one program's launches in order; see :meth:`launch`."""

    def __init__(self, image: Image, wafer: Wafer) -> None:
        self.image, self.wafer = image, wafer
        self.proof: Proof | None = None
        self._spoiled = ""
        self._free = np.zeros(
            image.n_cores, np.int64
        )  # cycle, counted from the last launch, at which a core becomes idle

    def spoil(self, reason: str) -> None:
        """Mark the state of the cores as unknown from now on, for `reason`."""
        self._spoiled = self._spoiled or reason

    def launch(
        self,
        name: str,
        arguments: tuple[int, ...] = (),
        *,
        since: int | None = None,
        executor: str = EXECUTOR,
    ) -> Launch:
        """Analyse a call of function `name` on all cores.

        ``since`` is the number of cycles from the last launch to this one; a core that has not finished the
        last launch starts later. None means that all cores have finished it.

        Raises
        ------
        WseError
            If no core has the function.
        """
        begin = time.process_time()
        if self._spoiled:
            return Launch(name, None, self._spoiled)
        self.proof = self.proof or Proof(self.image, self.wafer)
        proved = self.proof.launch(name, arguments)
        verdicts = tuple(proved.verdicts)
        first = next((v for v in verdicts if v.reason), None)
        if first is not None:
            self.spoil(AFTER)
            return Launch(name, None, first.reason, verdicts, proof_s=time.process_time() - begin)
        try:
            busy = self.wafer.launch_row_cycles * (np.arange(self.image.n_cores) // self.image.cols)
            if since is not None:
                busy = np.maximum(busy, self._free - since)
            lowered = lower(self.image, self.wafer, proved, busy_until=busy)
        except NotStaticError as why:
            return Launch(name, None, str(why), verdicts, proof_s=time.process_time() - begin)
        proof_s = time.process_time() - begin
        begin = time.process_time()
        try:
            result = _run(lowered, executor)
            bounds = (result.cycles, result.cycles)
            if lowered.has_longer:
                low, high = (
                    _run(lower(self.image, self.wafer, proved, keep, busy), executor).cycles
                    for keep in (Keep.NONE, Keep.ALL)
                )
                bounds = (low, high)
        except ProgramError as fault:
            self.spoil(AFTER)
            return Launch(name, None, str(fault), verdicts, proof_s=proof_s)
        unfit = _unfit(result)
        run_s = time.process_time() - begin
        if unfit:
            self.spoil(AFTER)
            return Launch(name, None, unfit, verdicts, proof_s=proof_s, run_s=run_s)
        tails = np.array([course.tail_cycles for course in proved.courses])
        has_course = proved.course_of >= 0
        self._free = np.where(has_course, result.halt_cycles.ravel() + tails[proved.course_of], 0)
        kinds = {c.kind for c in result.certificate.components} if result.certificate else {"wavelet"}
        how = ", ".join(sorted(kinds)) or "clean"
        return Launch(name, result.cycles, "", verdicts, how, bounds, lowered.is_exact, proof_s, run_s)


def _run(lowered: LoweredLaunch, executor: str) -> FabricResult:
    return run_program(
        lowered.program, lowered.config, executor=executor, functional=False, max_cycles=MAX_CYCLES
    )


def _unfit(result: FabricResult) -> str:
    """Return why a run does not represent the launch (cores that never end, or words that are not read), or
    "" if it does."""
    if result.deadlock is not None:
        return f"cores wait for words that do not come: {result.deadlock}"
    if result.words_left:
        return f"{result.words_left} words are left on the fabric, which a later launch or a task would find"
    return ""


__all__ = ["EXECUTOR", "Launch", "StaticTimes"]
