"""Runs random programs on the kernels in numba's simulator of a GPU, and prints one line of JSON.

``NUMBA_ENABLE_CUDASIM=1 python -m tests.fabric.executors.gpu.simulated``
"""

from __future__ import annotations

import json
import sys

import numba

from tests.fabric.agreement import disagreements
from tests.fabric.executors.test_differential import CONFIG
from tests.fabric.random_programs import random_program
from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import Executor
from wse_sim.fabric.executors.gpu.device import Cuda
from wse_sim.fabric.executors.gpu.executor import Gpu
from wse_sim.fabric.run import BusyBins, FabricResult, run_program

SEEDS = (0, 2, 3, 5, 6, 8, 9, 10, 11, 14, 19)


def outcome(seed: int, executor: str | Executor) -> FabricResult | str:
    """Return result or fault of a random program."""
    made = random_program(seed, CONFIG)
    try:
        return run_program(
            made.program, CONFIG, executor=executor, inputs=made.inputs, strict=seed % 4 == 0, bins=BusyBins(5, 37),
        )  # fmt: skip
    except ProgramError as fault:
        return str(fault)


def main() -> None:
    """Compare, and print how many programs ran in which way and the differences by seed."""
    sys.setswitchinterval(1e-4)  # threads of the simulator mostly wait for each other
    told: dict[str, object] = {"simulated": bool(numba.config.ENABLE_CUDASIM), "persistent": 0, "launches": 0}
    differ: dict[int, object] = {}
    for seed in SEEDS:
        in_launches = seed % 3 == 2
        device = Gpu(lambda persistent=not in_launches: Cuda(persistent=persistent), cycles=60)
        expected, found = outcome(seed, "oracle"), outcome(seed, device)
        told["launches" if in_launches else "persistent"] += 1  # type: ignore[operator]
        if isinstance(expected, str) or isinstance(found, str):
            if expected != found:
                differ[seed] = [str(expected), str(found)]
        elif fields := disagreements(expected, found):
            differ[seed] = fields
    print(json.dumps(told | {"differ": differ}))


if __name__ == "__main__":
    main()
