"""Systems of unequal speed: the all-reduce waits for the slowest, whose mean is known in closed form."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from tests.engine.engine_plans import chain
from tests.handmade import transformer
from wse_sim import api
from wse_sim.engine.skew import expected_factor, slowest_factors
from wse_sim.errors import ConfigError, ModelError
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.simulation import simulate
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.steps import compile_streaming

GRAPH = transformer(layers=2, hidden=256, heads=4, seq=64)
FREE = {"io_bytes_per_s": 1e18, "launch_floor_s": 0.0}
FAST = {
    "memoryx_bytes_per_s": 1e18, "swarmx_bytes_per_s": 1e18, "memoryx_update_bytes_per_s": 1e18, "swarmx_hop_s": 0.0,
    "worker_samples_per_s": 1e12, "worker_bytes_per_s": 1e18, "activation_server_bytes_per_s": 1e18,
}  # fmt: skip


def plan_of(systems: int) -> WeightStreamingPlan:
    """Return a plan that nothing but cycles slows down."""
    wafer, cluster = load_wafer("wse2").derive(**FREE), load_cluster().derive(**FAST)
    choice = StreamingChoice(batch=64 * systems, micro_batch=64, lanes=1)
    plan = compile_streaming(GRAPH, wafer, cluster, batch=64 * systems, systems=systems, choice=choice)
    assert isinstance(plan, WeightStreamingPlan)
    return plan


@pytest.mark.parametrize("systems", [2, 4, 16, 64])
def test_the_slowest_of_many_is_as_late_as_its_closed_form(systems: int):
    """The greatest of S uniform numbers in (0, 1) is S / (S + 1) on average, its variance S / ((S + 1)^2 (S + 2)).

    In (-1, 1) that is (S - 1) / (S + 1) with twice the deviation; 4,000 steps, four standard errors.
    """
    steps, skew = 4000, 0.2
    found = slowest_factors(systems, skew, seed=3, steps=steps)
    deviation = 2 * (systems / (systems + 2)) ** 0.5 / (systems + 1)
    assert expected_factor(systems, skew) == pytest.approx(1 + skew * (2 * systems / (systems + 1) - 1))
    error = 4 * skew * deviation / steps**0.5
    assert sum(found) / steps == pytest.approx(expected_factor(systems, skew), abs=error)
    assert max(found) < 1 + skew


def end_of(factors: list[float], cycles: list[float], stream_s: list[float], depth: int) -> float:
    """Return when the last of all systems has ended its last phase, with each system stepped by itself.

    Weights of phase i go to all systems at one time, when all have ended phase i - depth; a system begins phase i when
    its own phase before has ended and the weights are there.
    """
    ends: list[list[float]] = []  # of each phase, by system
    sent = 0.0
    for i, cost in enumerate(cycles):
        sent = max(sent, max(ends[i - depth]) if i >= depth else 0.0) + stream_s[i]
        before = ends[-1] if ends else [0.0] * len(factors)
        ends.append([max(end, sent) + cost * factor for end, factor in zip(before, factors, strict=True)])
    return max(ends[-1])


def test_the_slowest_alone_is_as_late_as_all_systems_together():
    """Systems wait for each other only in maxima: the slowest is the last everywhere."""
    draw = random.Random(5)
    for _ in range(50):
        cycles = [draw.uniform(0.1, 2.0) for _ in range(12)]
        stream_s = [draw.uniform(0.0, 2.0) for _ in cycles]
        factors = [1 + draw.uniform(-0.3, 0.3) for _ in range(draw.randint(2, 6))]
        depth = draw.randint(1, 4)
        together = end_of(factors, cycles, stream_s, depth)
        assert together == pytest.approx(end_of([max(factors)], cycles, stream_s, depth))


def test_a_step_of_cycles_alone_takes_the_factor_of_the_slowest():
    """If only cycles take time, the step is longer by the factor of the slowest system."""
    plan = plan_of(4)
    plain, skewed = simulate(plan, trace=False), simulate(plan, trace=False, skew=0.3, seed=1)
    factor = skewed.figures["slowest_system_factor"]
    assert factor == slowest_factors(4, 0.3, seed=1, steps=3)[-1] != 1.0
    assert skewed.step_s == pytest.approx(plain.step_s * factor, rel=1e-6)
    assert skewed.bindings["compute"] == pytest.approx(plain.bindings["compute"] * factor)
    assert any("waits for it" in note for note in skewed.notes)
    assert skewed == simulate(plan, trace=False, skew=0.3, seed=1)
    assert skewed.step_s != simulate(plan, trace=False, skew=0.3, seed=2).step_s


def test_without_skew_or_with_one_system_nothing_changes():
    plan = plan_of(4)
    assert simulate(plan, trace=False) == simulate(plan, trace=False, skew=0.0, seed=9)
    alone = simulate(plan_of(1), trace=False, skew=0.5, seed=2)
    assert alone.step_s == simulate(plan_of(1), trace=False).step_s


@pytest.mark.slow
def test_hosts_that_jitter_are_as_late_as_the_last_of_all_systems():
    """The input of a step is complete when the slowest host has sent it: with more hosts never sooner, on average."""
    cluster = load_cluster().derive(**FAST | {"worker_samples_per_s": 1e3})
    steps = []
    for systems in (1, 4, 16):
        choice = StreamingChoice(batch=64 * systems, micro_batch=64, lanes=1)
        plan = compile_streaming(
            GRAPH,
            load_wafer("wse2").derive(**FREE),
            cluster,
            batch=64 * systems,
            systems=systems,
            choice=choice,
        )
        run = [simulate(plan, trace=False, jitter=0.5, seed=seed).step_s for seed in range(30)]
        steps.append(sum(run) / len(run) / (64 / 1e3))
    # A host that is sooner than the mean does not shorten the step below the mean (the rates of a result), so one
    # alone has E max(1, 1 + u/2) = 1.125; of S it is 1 + (S - 1) / (S + 1) / 2 and a little more.
    assert list(accumulate(steps, max)) == steps
    assert steps[0] == pytest.approx(1.125, abs=0.06)
    assert steps[2] == pytest.approx(1 + 0.5 * 15 / 17, abs=0.03)


def test_a_pipeline_says_that_nothing_joins_its_systems():
    plan = chain([(100.0, 0.0), (50.0, 0.0)], batch=4)
    result = simulate(plan, skew=0.1)
    assert result.step_s == simulate(plan).step_s
    assert any("changes nothing here" in note for note in result.notes)


def test_an_impossible_spread_is_one_sentence():
    with pytest.raises(ConfigError, match=r"skew 1\.5 is outside 0 to 1"):
        simulate(plan_of(2), skew=1.5)
    with pytest.raises(ModelError, match="skew"):
        api.run(GRAPH, skew=1.0)
