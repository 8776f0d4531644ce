"""The GPU executor on a real GPU; without one these tests are skipped, and `test_agreement.py` runs its functions on
the CPU.
"""

from __future__ import annotations

import pytest

from tests.fabric.executors.test_differential import CONFIG
from tests.fabric.executors.test_threads import compare
from tests.generated import seeds
from wse_sim.fabric.executors.gpu.device import Cuda, is_simulated, what_is_missing
from wse_sim.fabric.executors.gpu.executor import Gpu

pytestmark = pytest.mark.skipif(
    is_simulated() or what_is_missing() is not None, reason=f"needs a GPU: {what_is_missing()}"
)


def test_random_programs_equal_the_oracle() -> None:
    """Counters, values, deadlocks, faults and time bins are equal, with one launch for 2,000 cycles."""
    for seed in seeds(0, 250):
        compare(seed, CONFIG, "gpu", 1)


def test_random_programs_equal_the_oracle_with_a_launch_for_every_half_cycle() -> None:
    """This is the method for devices whose blocks cannot wait for each other."""
    executor = Gpu(lambda: Cuda(persistent=False))
    for seed in seeds(1000, 25):
        compare(seed, CONFIG, executor, 1)
