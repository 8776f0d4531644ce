"""Checks that two executors agree on one program, field by field."""

from __future__ import annotations

import numpy as np

from tests.fabric.executors.maxplus.compare import differences
from tests.fabric.random_programs import random_program
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.run import FabricResult, run_program

FIELDS = (
    "cycles", "halt_cycles", "busy", "stalled_in", "stalled_out", "idle", "link_wavelets", "link_blocked", "queue_high",
    "sent", "received", "words_left", "busy_bins",
)  # fmt: skip
BUFFERS = ("x", "y", "h")


def run_all(seed: int, config: FabricConfig, executors: tuple[str, ...]) -> dict[str, FabricResult]:
    """Return the results of the random program `seed` by executor; merges take turns."""
    made = random_program(seed, config)
    return {
        executor: run_program(
            made.program, config, executor=executor, inputs=made.inputs, strict=False, max_cycles=200_000
        )
        for executor in executors
    }


def disagreements(expected: FabricResult, found: FabricResult, *, values: bool = True) -> list[str]:
    """Return the names of the fields and buffers that differ; of the max-plus executor those that it counts."""
    if found.executor == "max-plus":
        return differences(found, expected, BUFFERS if values else ())
    differ = [
        field for field in FIELDS if not np.array_equal(getattr(expected, field), getattr(found, field))
    ]
    if values:
        differ += [
            name
            for name in BUFFERS
            if not np.array_equal(expected.read(name), found.read(name), equal_nan=True)
        ]
    if expected.deadlock != found.deadlock:
        differ.append("deadlock")
    return differ
