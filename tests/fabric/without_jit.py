"""Runs ten small programs on every executor, as one line of JSON: the same with NUMBA_DISABLE_JIT=1 and without.

``NUMBA_DISABLE_JIT=1 python -m tests.fabric.without_jit``
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numba
import numpy as np

from tests.fabric import random_programs
from tests.fabric.executors.maxplus import generate
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import FabricResult, run_program
from wse_sim.hardware import load_wafer

EXECUTORS = (("oracle", 1), ("wavelet", 1), ("wavelet", 3), ("max-plus", 1))  # and threads
COUNTERS = ("halt_cycles", "busy", "stalled_in", "stalled_out", "link_wavelets", "sent", "received")


def programs() -> Iterator[tuple[str, FabricConfig, Program, dict[str, np.ndarray], str]]:
    """Yield name, wafer, program, inputs and a buffer to read: five of all kinds, five that the equations cover."""
    for wafer, seeds in (("wse2", (0, 2, 3)), ("wse3", (2, 3))):
        config = FabricConfig.from_wafer(load_wafer(wafer))
        for seed in seeds:
            made = random_programs.random_program(seed, config)
            yield f"{wafer} everything {seed}", config, made.program, made.inputs, "x"
    config = FabricConfig.from_wafer(load_wafer("wse2"))
    for seed in (2, 4, 10, 14, 15):
        program, inputs = generate.random_program(seed, config)
        yield f"routes {seed}", config, program, inputs, "x"


def digest(result: FabricResult, buffer: str) -> list[object]:
    """Return cycles, every counter, the deadlock, and the bits of a buffer."""
    counters = [getattr(result, name).tolist() for name in COUNTERS]
    values = result.read(buffer)
    return [result.cycles, counters, str(result.deadlock), values.view(np.uint8).tolist()]


def digests() -> dict[str, list[object]]:
    """Return the digests by program and executor."""
    return {
        f"{name} {executor} {threads}": digest(
            run_program(
                program,
                config,
                executor=executor,
                inputs=inputs,
                strict=False,
                max_cycles=200_000,
                threads=threads,
            ),
            buffer,
        )
        for name, config, program, inputs, buffer in programs()
        for executor, threads in EXECUTORS
    }


if __name__ == "__main__":
    print(json.dumps({"jit": not numba.config.DISABLE_JIT, "digests": digests()}))
