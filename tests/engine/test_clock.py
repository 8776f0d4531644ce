"""The clock under a power limit: the wafer's value, its effect on a run, and its statement in the result."""

from __future__ import annotations

import pytest

from tests.handmade import transformer
from wse_sim import api, result_cache
from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.errors import ConfigError, ModelError
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.report import tables, views
from wse_sim.uncertainty.draws import ranged

GRAPH = transformer(layers=2, hidden=1024, heads=16, seq=512)  # some phases take longer than their launch
STREAMED = {"mode": "weight-streaming", "batch": 64, "micro_batch": 64, "lanes": 1}


def run(**options: object) -> api.Result:
    result = api.run(GRAPH, trace=False, **(STREAMED | options))
    assert isinstance(result, api.Result)
    return result


def test_the_clock_of_the_wse3_follows_from_two_published_peaks():
    """One code on 64 CS-3: 84.7 PFLOP/s are 90 % of a peak, 112 PFLOP/s without a limit of power are 88 % of another.

    Peaks go as clocks: 1.1 GHz x (84.7 / 0.90) / (112 / 0.88) = 813 MHz.  That the first run is the limited one follows
    from 57 GFLOP/J: at the 23 kW of a system, 64 of them do 83.9 PFLOP/s.
    """
    wafer = load_wafer("wse3")
    ratio = (84.7 / 0.90) / (112 / 0.88)
    assert wafer.power_limited_clock_hz == pytest.approx(wafer.clock_hz * ratio, rel=1e-3)
    assert 57e9 * wafer.power_active_w * 64 == pytest.approx(84.7e15, rel=0.01)


def test_the_clock_of_the_wse2_is_that_of_the_run_whose_power_was_measured():
    """The stencil that drew 22.8 kW took 64,195.4 cycles per step in 75.524 us."""
    wafer = load_wafer("wse2")
    assert wafer.power_limited_clock_hz == pytest.approx(64_195.4 / 75.524e-6, rel=1e-4)


def test_cycles_take_longer_and_lines_do_not():
    """With the same micro-batch and lanes, seconds of cycles scale with the clock; those of weights and launches do
    not.
    """
    plain, limited = run(), run(clock="power-limited")
    wafer = load_wafer("wse2")
    assert limited.plan.wafer.clock_hz == wafer.power_limited_clock_hz
    slower = wafer.clock_hz / wafer.power_limited_clock_hz
    assert limited.bindings["compute"] == pytest.approx(plain.bindings["compute"] * slower)
    for name in ("weight_io", "gradient_io", "launch_floor"):
        assert limited.bindings[name] == plain.bindings[name]
    assert plain.step_s < limited.step_s <= plain.step_s * slower * (1 + 1e-9)


def test_the_result_says_which_clock_applied():
    limited = run(clock="power-limited")
    assert any("power-limited clock: 850 MHz instead of 1,100 MHz" in note for note in limited.notes)
    assert not any("clock" in note for note in run().notes)
    assert limited == run(clock="power-limited")


def test_draws_of_constants_take_the_range_of_the_clock_that_applies():
    """A run at the nominal clock never draws the limited clock; a run at the limited clock draws the range of that one."""
    wafer = load_wafer("wse3")
    names = [constant.name for constant in ranged(wafer)]
    assert "power_limited_clock_hz" not in names
    limited = wafer.under_power_limit()
    assert [constant.name for constant in ranged(limited)] == names
    clock = next(constant for constant in ranged(limited) if constant.name == "clock_hz")
    assert clock.stated.range == (7.5e8, 8.75e8)


@pytest.mark.slow
def test_plans_made_again_for_draws_keep_the_limited_clock(monkeypatch: pytest.MonkeyPatch):
    """A drawn wafer already has the limited clock, which must not be limited once more."""
    clocks = []

    def seen(graph: object, wafer: Wafer, *rest: object, **options: object) -> Plan | Infeasible:
        clocks.append(wafer.clock_hz)
        return compiled(graph, wafer, *rest, **options)

    compiled = api.compile
    monkeypatch.setattr(api, "compile", seen)
    monkeypatch.setattr("wse_sim.uncertainty.spread.SAMPLES", 2)
    with result_cache.paused():
        bounds = run(clock="power-limited", interval=90.0, interval_replans=True).intervals
    assert bounds["samples_per_s"].low < bounds["samples_per_s"].high
    assert clocks[0] == load_wafer("wse2").power_limited_clock_hz
    assert len(set(clocks[1:])) == len(clocks) - 1 > 1


def test_a_wafer_without_a_lower_clock_is_refused():
    with pytest.raises(
        ConfigError, match=r"wafer wse1 has no power-limited clock .* state a lower power_limited_clock_hz"
    ):
        run(wafer="wse1", clock="power-limited")
    with pytest.raises(ModelError, match="clock 'slow' is unknown; use one of nominal, power-limited"):
        run(clock="slow")


def test_a_wafer_that_waits_draws_idle_power():
    """One area: E = S (P t + P0 (T - t)), t the part of the step T in which it is busy."""
    result = run(systems=2, batch=128)
    busy = result.areas[0].fractions[0]
    spent = views.energy(result)
    assert 0 < busy < 1
    idle_s, work_s = (1 - busy) * result.step_s, busy * result.step_s
    used = result.areas[0].region.cores / result.plan.wafer.program_cores
    work_s, idle_s = used * work_s, idle_s + (1 - used) * work_s  # cores beside the area do nothing
    assert spent.step_joules == pytest.approx(2 * (22_800 * work_s + 16_100 * idle_s))
    assert spent.work_joules == pytest.approx(2 * 22_800 * result.step_s)
    assert "of its cores at work" in dict(tables.facts(result))["Energy"]
