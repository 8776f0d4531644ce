"""The fast executor is the oracle cycle for cycle: memories, counters, waits and faults of random programs."""

from __future__ import annotations

import pytest

from tests.fabric.vm.random_bytecode import RandomProgram
from tests.generated import seeds

PROGRAMS = 150


@pytest.mark.thinned(1)
@pytest.mark.parametrize("block", range(3))
def test_random_programs_agree(block: int):
    """Programs that finish, wait forever and fault; some of each, or the comparison says little."""
    reasons = set()
    for seed in range(block * PROGRAMS, (block + 1) * PROGRAMS):
        program = RandomProgram(seed)
        oracle, fast = program.run("oracle"), program.run("fast")
        reasons.add(oracle["reason"])
        for name, value in oracle.items():
            assert fast[name] == value, (seed, name)
    assert {"asked", "waits"} <= reasons


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_many_random_programs_agree(block: int):
    """The same, 2,000 programs."""
    for seed in seeds(10_000 + 500 * block, 500):
        program = RandomProgram(seed)
        assert program.run("oracle") == program.run("fast"), seed
