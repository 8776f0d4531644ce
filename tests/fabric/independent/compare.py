"""Compares the independent simulator with an executor on one program, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.fabric.independent.machine import Machine, Outcome
from tests.fabric.random_constants import config_of
from tests.fabric.random_programs import random_program
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import FabricResult, run_program

EXECUTORS = (("oracle", 1), ("wavelet", 1), ("wavelet", 2), ("wavelet", 3), ("max-plus", 1))
COUNTERS = {
    "halt": "halt_cycles",
    "busy": "busy",
    "stalled_in": "stalled_in",
    "stalled_out": "stalled_out",
    "sent": "sent",
    "received": "received",
    "links": "link_wavelets",
    "blocked": "link_blocked",
    "queue_high": "queue_high",
}
UNCOUNTED = ("blocked", "queue_high")
"""-1 in components that max-plus solves."""


def differences(program: Program, own: Outcome, found: FabricResult) -> list[str]:
    """Return the names of what differs."""
    shape = (program.rows, program.cols)
    cut = slice(program.west, program.cols - program.east)

    def plane(values: Any) -> Any:
        return values.reshape(*shape, *values.shape[1:])[:, cut]

    differ = [] if own.cycles == found.cycles else ["cycles"]
    for name, field in COUNTERS.items():
        mine, theirs = plane(getattr(own, name)), getattr(found, field)
        if found.executor == "max-plus" and name in UNCOUNTED:
            mine = np.where(theirs < 0, theirs, mine)
        differ += [] if np.array_equal(mine, theirs) else [name]
    if not np.array_equal(own.cycles - plane(own.busy + own.stalled_in + own.stalled_out), found.idle):
        differ.append("idle")
    if own.words_left != found.words_left:
        differ.append("words left")
    stopped = 0 if found.deadlock is None else found.deadlock.unfinished
    if int(own.unfinished.sum()) != stopped or (stopped and found.deadlock.cycle != own.cycles):
        differ.append("unfinished")
    for name, info in program.buffers.items():
        size = info.rows * info.cols * info.length
        mine = own.memory[info.base : info.base + size].reshape(info.rows, info.cols, info.length)
        if not np.array_equal(mine, found.read(name).astype(np.float32), equal_nan=True):
            differ.append(f"values of {name}")
    return differ


def disagreements(
    program: Program, config: FabricConfig, inputs: Mapping[str, Any], *, strict: bool = False
) -> dict[str, list[str]]:
    """Return the differences of every executor from the independent simulator, by executor and threads."""
    own = Machine(program, config, inputs).run()
    differ = {}
    for executor, threads in EXECUTORS:
        found = run_program(program, config, executor=executor, inputs=inputs, strict=strict, threads=threads)
        if names := differences(program, own, found):
            differ[f"{executor}, {threads} threads"] = names
    return differ


def of_seed(seed: int, config: FabricConfig | None = None) -> dict[str, list[str]]:
    """Return the same of the random program `seed`; merges take turns."""
    config = config or config_of(seed)
    made = random_program(seed, config)
    return disagreements(made.program, config, made.inputs)
