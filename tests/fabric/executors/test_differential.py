"""The wavelet executor equals the oracle on random programs cycle for cycle, counter for counter, value for value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fabric.agreement import disagreements
from tests.fabric.random_programs import random_program
from tests.generated import examples, seeds
from wse_sim.errors import ProgramError
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.run import BusyBins, FabricResult, run_program
from wse_sim.hardware import load_wafer

CONFIG = FabricConfig.from_wafer(load_wafer("wse2"))
NEWER = FabricConfig.from_wafer(load_wafer("wse3"))


def outcome(
    seed: int, executor: str, config: FabricConfig, *, strict: bool, functional: bool
) -> FabricResult | str:
    """Return the result of one executor, or its fault."""
    made = random_program(seed, config)
    try:
        return run_program(
            made.program, config, executor=executor, inputs=made.inputs, strict=strict, functional=functional,
            max_cycles=200_000, bins=BusyBins(5, 37),
        )  # fmt: skip
    except ProgramError as fault:
        return str(fault)


def compare(seed: int, executor: str = "wavelet", config: FabricConfig = CONFIG) -> None:
    """Require the same fault, the same deadlock, or equality in all fields."""
    strict, functional = seed % 4 == 0, seed % 7 != 1
    expected = outcome(seed, "oracle", config, strict=strict, functional=functional)
    found = outcome(seed, executor, config, strict=strict, functional=functional)
    if isinstance(expected, str) or isinstance(found, str):
        assert expected == found, f"seed {seed}"
        return
    differ = disagreements(expected, found, values=functional)
    assert not differ, f"seed {seed}: {differ}"
    total = expected.busy + expected.stalled_in + expected.stalled_out + expected.idle
    assert (total == expected.cycles).all()
    assert expected.idle.min() >= 0


@pytest.mark.thinned(1)
@pytest.mark.parametrize("block", range(20))
def test_wavelet_equals_oracle_on_two_thousand_programs(block: int) -> None:
    """Programs have routes, multicast, merges, switches, tasks, microthreads, loops, fp16 and deadlocks."""
    for seed in range(100 * block, 100 * (block + 1)):
        compare(seed)


@pytest.mark.slow
@examples(100)
@given(st.integers(10**6, 10**9))
def test_wavelet_equals_oracle_on_programs_that_hypothesis_picks(seed: int) -> None:
    """Seeds are drawn by hypothesis."""
    compare(seed)


@st.composite
def other_wafers(draw: st.DrawFn) -> FabricConfig:
    """Draw links, queues and ramps that no wafer has, and those of the newer one."""
    constants = {
        "hop_cycles": draw(st.sampled_from([1, 2, 3, 5])),
        "turn_cycles": draw(st.sampled_from([0, 1, 7, 20])),
        "router_queue_wavelets": draw(st.sampled_from([1, 2, 3, 5])),
        "wavelet_milli": draw(st.sampled_from([800, 1000, 1001, 1125, 1500, 2750])),
        "ramp_cycles": draw(st.sampled_from([1, 2, 4])),
        "forward_cycles": draw(st.sampled_from([1, 2])),
        "die_crossing_cycles": draw(st.sampled_from([0, 0, 1, 17])),
        "die_edge_rows": tuple(draw(st.sets(st.integers(1, 6), max_size=3))),
        "round_robin": draw(st.booleans()),
    }
    return FabricConfig.from_wafer(load_wafer(draw(st.sampled_from(["wse2", "wse3"]))), **constants)


@pytest.mark.slow
@examples(150)
@given(st.integers(0, 10**9), other_wafers())
def test_wavelet_equals_oracle_on_other_wafers(seed: int, config: FabricConfig) -> None:
    """Wafers differ in hop latency, turn cost, edges of dies, time per wavelet, depth of queues, ramps and arbitration."""
    compare(seed, config=config)


@pytest.mark.slow
def test_wavelet_equals_oracle_on_the_newer_wafer() -> None:
    """This wafer has two cycles per hop, 20 more for a turn, and 1.125 cycles per wavelet."""
    for seed in seeds(0, 200):
        compare(seed, config=NEWER)


@pytest.mark.slow
def test_wavelet_equals_oracle_on_more_programs_of_the_newer_wafer() -> None:
    """This is the slow test of the other loop."""
    for seed in seeds(70_000, 500):
        compare(seed, config=NEWER)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(2))
def test_wavelet_equals_oracle_on_further_programs(block: int) -> None:
    """This is the slow test."""
    for seed in seeds(10_000 + 1000 * block, 1000):
        compare(seed)


@pytest.mark.slow
def test_the_generator_makes_what_it_promises() -> None:
    """300 programs include deadlocks, runs that end, merges that raise, control wavelets and switches."""
    kinds = {"deadlock": 0, "ended": 0, "control": 0, "switches": 0, "tasks": 0}
    for seed in range(300):
        made = random_program(seed, CONFIG)
        result = run_program(made.program, CONFIG, inputs=made.inputs, strict=False)
        kinds["deadlock" if result.deadlock else "ended"] += 1
        kinds["control"] += made.program.has_control
        kinds["switches"] += made.program.has_switches
        kinds["tasks"] += len(made.program.tasks) > 0
    assert min(kinds.values()) >= 15, kinds
