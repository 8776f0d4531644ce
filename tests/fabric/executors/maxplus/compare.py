"""Runs the max-plus executor and compares it with a stepped run, field by field."""

from __future__ import annotations

from typing import Any

import numpy as np

from wse_sim.fabric.executors.maxplus.executor import MaxPlus
from wse_sim.fabric.executors.oracle import Oracle
from wse_sim.fabric.executors.wavelet.executor import Wavelet
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import FabricResult, run_program

FIELDS = (
    "cycles", "halt_cycles", "busy", "stalled_in", "stalled_out", "idle", "sent", "received", "link_wavelets", "words_left",
)  # fmt: skip
COUNTED = ("link_blocked", "queue_high")


def solve_run(
    program: Program,
    config: FabricConfig,
    *,
    delegate: str = "wavelet",
    speculate: bool = True,
    steady: bool = True,
    fold: bool = True,
    **options: Any,
) -> FabricResult:
    """Run with the max-plus executor, which hands flagged components to `delegate`."""
    stepped = Oracle() if delegate == "oracle" else Wavelet()
    executor = MaxPlus(stepped, speculate=speculate, steady=steady, fold=fold)
    return run_program(program, config, executor=executor, **options)


def differences(solved: FabricResult, reference: FabricResult, buffers: tuple[str, ...] = ()) -> list[str]:
    """Return the names of fields that differ; the deadlock report counts as one field."""
    found = [name for name in FIELDS if not np.array_equal(getattr(solved, name), getattr(reference, name))]
    found += [
        name
        for name in buffers
        if not np.array_equal(solved.read(name), reference.read(name), equal_nan=True)
    ]
    for name in COUNTED:  # -1 in components that were solved
        there = getattr(solved, name)
        if not np.array_equal(there, np.where(there < 0, there, getattr(reference, name))):
            found.append(name)
    if solved.deadlock != reference.deadlock:
        found.append("deadlock")
    return found
