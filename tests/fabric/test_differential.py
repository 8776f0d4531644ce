"""Random programs: the wavelet executor equals the oracle cycle for cycle, counter for counter, value for value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fabric.random_programs import random_program
from wse_sim.errors import ProgramError
from wse_sim.fabric.config import FabricConfig
from wse_sim.fabric.run import FabricResult, run_program
from wse_sim.hardware import load_wafer

FIELDS = (
    "cycles", "halt_cycles", "busy", "stalled_in", "stalled_out", "idle", "link_wavelets", "link_blocked", "queue_high",
    "sent", "received", "words_left", "busy_bins",
)  # fmt: skip
CONFIG = FabricConfig.from_wafer(load_wafer("wse2"))


def outcome(seed: int, executor: str, *, strict: bool, functional: bool) -> FabricResult | str:
    """Result of one executor, or its fault."""
    made = random_program(seed, CONFIG)
    try:
        return run_program(
            made.program, CONFIG, executor=executor, inputs=made.inputs, strict=strict, functional=functional,
            max_cycles=200_000, bins=5, bin_cycles=37,
        )  # fmt: skip
    except ProgramError as fault:
        return str(fault)


def compare(seed: int, executor: str = "wavelet") -> None:
    """Both report the same fault, the same deadlock, or the same everything."""
    strict, functional = seed % 4 == 0, seed % 7 != 1
    expected = outcome(seed, "oracle", strict=strict, functional=functional)
    found = outcome(seed, executor, strict=strict, functional=functional)
    if isinstance(expected, str) or isinstance(found, str):
        assert expected == found, f"seed {seed}"
        return
    for field in FIELDS:
        np.testing.assert_array_equal(
            getattr(expected, field), getattr(found, field), err_msg=f"seed {seed}: {field}"
        )
    assert expected.deadlock == found.deadlock, f"seed {seed}"
    if functional:
        for name in ("x", "y", "h"):
            np.testing.assert_array_equal(
                expected.read(name), found.read(name), err_msg=f"seed {seed}: {name}"
            )
    total = expected.busy + expected.stalled_in + expected.stalled_out + expected.idle
    assert (total == expected.cycles).all()
    assert expected.idle.min() >= 0


@pytest.mark.parametrize("block", range(20))
def test_wavelet_equals_oracle_on_two_thousand_programs(block: int) -> None:
    """Routes, multicast, merges, switches, tasks, microthreads, loops, fp16, deadlocks."""
    for seed in range(100 * block, 100 * (block + 1)):
        compare(seed)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(10**6, 10**9))
def test_wavelet_equals_oracle_on_programs_that_hypothesis_picks(seed: int) -> None:
    """Seeds that no one chose."""
    compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_wavelet_equals_oracle_on_fifty_thousand_programs(block: int) -> None:
    """The long run."""
    for seed in range(10_000 + 1000 * block, 11_000 + 1000 * block):
        compare(seed)


def test_the_generator_makes_what_it_promises() -> None:
    """Among 300 programs are deadlocks, runs that end, merges that raise, control wavelets and switches."""
    kinds = {"deadlock": 0, "ended": 0, "control": 0, "switches": 0, "tasks": 0}
    for seed in range(300):
        made = random_program(seed, CONFIG)
        result = run_program(made.program, CONFIG, inputs=made.inputs, strict=False)
        kinds["deadlock" if result.deadlock else "ended"] += 1
        kinds["control"] += made.program.has_control
        kinds["switches"] += made.program.has_switches
        kinds["tasks"] += len(made.program.tasks) > 0
    assert min(kinds.values()) >= 15, kinds
