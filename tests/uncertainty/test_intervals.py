"""Bounds of predictions: the quantile function of a range, closed forms of the interval, plans priced again."""

import math

import numpy as np
import pytest

from benchmarks import coverage, fits
from benchmarks.fits import Fit, fitted
from wse_sim import api
from wse_sim.errors import ConfigError
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes import load_result
from wse_sim.modes.registry import mode_of
from wse_sim.report import tables
from wse_sim.report.text import number
from wse_sim.uncertainty import compare_interval, kernel_interval, result_intervals
from wse_sim.uncertainty.draws import Z95, DrawnMachine, draws, machine_at, ranged
from wse_sim.uncertainty.interval import interval_of
from wse_sim.uncertainty.sensitivity import sensitivity
from wse_sim.uncertainty.spread import kernel_figures
from wse_sim.validation.intervals import point_figure
from wse_sim.validation.suite import Point


def test_a_range_ends_at_5_and_95_percent():
    wafer = load_wafer("wse3")
    for constant in ranged(wafer):
        low, high = constant.stated.range
        assert constant.at(0.0) == constant.stated.value
        assert constant.at(-Z95) == pytest.approx(low, abs=1e-9)
        assert constant.at(Z95) == pytest.approx(high, abs=1e-9)
        values = [constant.at(score) for score in np.linspace(-3, 3, 13)]
        assert values == sorted(values)


def test_draws_fill_the_ranges_and_keep_correlations():
    """Of 256 draws about a tenth is outside a range; correlated constants move together."""
    wafer, cluster = load_wafer("wse2"), load_cluster()
    constants = ranged(wafer, cluster)
    machines = list(draws(wafer, cluster, constants, 256))
    loops = np.array([m.wafer.loop_cycles for m in machines])
    low, high = wafer.provenance["loop_cycles"].range
    assert np.mean((loops < low) | (loops > high)) == pytest.approx(0.1, abs=0.03)
    maps = [math.log(m.wafer.map_element_cycles) for m in machines]
    misaligned = [math.log(m.wafer.misaligned_fp16_per_cycle) for m in machines]
    assert np.corrcoef(maps, misaligned)[0, 1] > 0.9
    assert machines[3].wafer.rows == wafer.rows


def test_special_elements_are_drawn_down_to_the_exponential_of_the_fabric():
    """One draw in twenty is below it."""
    wafer, cluster = load_wafer("wse2"), load_cluster()
    machines = draws(wafer, cluster, ranged(wafer, cluster), 1024)
    elements = np.array([m.wafer.special_element_cycles for m in machines])
    assert np.mean(elements < wafer.exp_cycles) == pytest.approx(0.05, abs=0.02)


def test_interval_without_draws_is_the_own_error():
    """The bounds are exp(+-0.1) around 200; at 68.27 % the normal score is 1 of 1.645."""
    found = interval_of(200.0, [1.0] * 10, 0.1)
    assert (found.low, found.high) == (
        pytest.approx(200 * math.exp(-0.1)),
        pytest.approx(200 * math.exp(0.1)),
    )
    narrow = interval_of(200.0, [1.0] * 10, 0.1, 68.2689492)
    assert narrow.high == pytest.approx(200 * math.exp(0.1 / Z95), rel=1e-6)
    assert interval_of(1206.0, [1.0], 0.1).text("samples/s") == "1,206 samples/s (1,091 to 1,333, 90 %)"
    with pytest.raises(ConfigError, match="outside 50 to 99"):
        interval_of(1.0, [1.0], 0.1, 99.9)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pipelined", "weight-streaming"])
def test_a_plan_priced_with_its_own_constants_is_itself(mode):
    """With half the clock a compute-bound rate halves, and the quick figure follows the simulation."""
    graph = api.read("gpt-1b" if mode == "weight-streaming" else "fc-mnist", api.RunOptions(seq=None))
    plan = api.plan_of(graph, api.RunOptions(mode=mode, batch=64))
    same = mode_of(plan).repriced(plan, plan.wafer, plan.cluster)
    one, two = (api.simulate(p, trace=False).samples_per_s for p in (plan, same))
    assert one == two
    slow = mode_of(plan).repriced(plan, plan.wafer.model_copy(update={"clock_hz": 5e8}), plan.cluster)
    simulated = api.simulate(slow, trace=False).samples_per_s / one
    quick = (
        mode_of(plan).quick_figures(slow)["samples_per_s"]
        / mode_of(plan).quick_figures(plan)["samples_per_s"]
    )
    assert quick == pytest.approx(simulated, rel=0.02)


@pytest.mark.slow
def test_half_the_efficiency_takes_every_pass_twice_as_long():
    """Forward, backward, update and all their parts; regions stay where they are."""
    plan = api.plan_of(
        api.read("fc-mnist", api.RunOptions(seq=None)), api.RunOptions(mode="pipelined", batch=64)
    )
    wafer = plan.wafer
    halved = wafer.model_copy(update={"pipeline_efficiency": wafer.pipeline_efficiency / 2})
    slow = mode_of(plan).repriced(plan, halved, plan.cluster)
    for before, after in zip(plan.stages, slow.stages, strict=True):
        assert after.region == before.region
        assert after.forward_cycles == pytest.approx(2 * before.forward_cycles)
        assert after.backward_cycles == pytest.approx(2 * before.backward_cycles)
        assert after.update_cycles == pytest.approx(2 * before.update_cycles)
        assert sum(after.forward_parts.values()) == pytest.approx(2 * sum(before.forward_parts.values()))
        assert sum(after.backward_parts.values()) == pytest.approx(2 * sum(before.backward_parts.values()))
    assert max(stage.backward_cycles for stage in plan.stages) > 0
    assert max(stage.update_cycles for stage in plan.stages) > 0


def test_result_and_comparison_have_bounds():
    options = api.RunOptions(batch=64)
    rows = api.compare("fc-mnist", options, trace=False)
    bounds = result_intervals(rows[1], 90, samples=8)
    rate = bounds["samples_per_s"]
    assert rate.low < rows[1].samples_per_s < rate.high
    assert bounds["step_s"].value == pytest.approx(rows[1].step_s)
    lead = compare_interval(rows, samples=8)
    assert lead.faster == max(rows, key=lambda row: row.samples_per_s).mode
    assert 0.5 <= lead.probability <= 1.0


def test_sensitivity_of_a_kernel_names_what_its_formula_reads():
    """In a dense vector operation of 5,124 elements at 1 per cycle, a tenth more rate needs a tenth fewer cycles."""
    wafer = load_wafer("wse2")
    effects = sensitivity(kernel_figures("gemv", {}), wafer, load_cluster(), "cycles")
    names = [effect.name for effect in effects]
    assert "loop_cycles" in names
    assert "special_element_cycles" not in names
    assert [e.reach for e in effects] == sorted((e.reach for e in effects), reverse=True)
    base = kernel_figures("gemv", {})(DrawnMachine(wafer, load_cluster()))["cycles"]
    more = kernel_figures("gemv", {})(
        DrawnMachine(wafer.model_copy(update={"loop_cycles": 33.0}), load_cluster())
    )
    loop = next(effect for effect in effects if effect.name == "loop_cycles")
    assert loop.per_tenth == pytest.approx(more["cycles"] / base - 1)


def test_kernel_interval_holds_its_value():
    found = kernel_interval("gemv", {"rows": 16, "cols": 16}, load_wafer("wse3"), samples=16)
    assert found.low < found.value < found.high
    assert found.half_width < 0.1


def test_machine_at_rounds_whole_numbers():
    wafer, cluster = load_wafer("wse3"), load_cluster()
    constants = ranged(wafer, cluster)
    machine = machine_at(wafer, cluster, constants, [1.0] * len(constants))
    assert isinstance(machine.wafer.ramp_cycles, int)
    assert isinstance(machine.cluster.weight_prefetch_phases, int)


def test_coverage_leaves_the_group_out():
    """Ten points of error 0.02 and one group of error 0.2: judged by the others it is outside, and they inside."""
    calm = [
        {"id": str(i), "subject": "kernel.x", "group": f"g{i}", "error": 0.02, "low": 0.0, "high": 0.0}
        for i in range(10)
    ]
    loud = {"id": "loud", "subject": "kernel.x", "group": "loud", "error": 0.2, "low": -0.01, "high": 0.01}
    found = coverage.answer([*calm, loud])
    assert found["subjects"]["kernel.x"]["inside"] == 10
    assert found["half_width_90"]["kernel.x"] == pytest.approx(math.sqrt(0.2**2 - 0.01**2))


def test_energy_has_bounds_of_power_and_rate() -> None:
    """Power between that of an idle system (15,500 to 16,700 W) and of one at work (22,000 to 23,000); a sample costs power over rate."""
    result = api.run("fc-mnist", mode="weight-streaming", batch=512)
    found = result_intervals(result, 90.0, samples=16)
    power, sample, rate = (found[name] for name in ("system_power_w", "sample_joules", "samples_per_s"))
    assert 15_400 < power.low < power.value < power.high < 23_100  # quantiles of a few draws
    assert power.high - power.low > 200
    assert sample.value * rate.value == pytest.approx(power.value)
    assert sample.half_width == pytest.approx(rate.half_width, rel=0.5)
    assert found["step_joules"].value == pytest.approx(512 * sample.value)


@pytest.mark.slow
def test_a_run_carries_the_bounds_it_was_asked_for(tmp_path) -> None:
    """The call from Python equals the command line; two processes give the same as one, and a saved result keeps the
    bounds.
    """
    one, two = (
        api.run("fc-mnist", mode="pipelined", batch=64, interval=90, interval_workers=workers)
        for workers in (1, 2)
    )
    assert dict(one.intervals) == dict(two.intervals)
    rate = one.intervals["samples_per_s"]
    assert rate.low < one.samples_per_s < rate.high
    text = str(tables.summary(one))
    assert f"to {number(rate.high)}, 90 %)" in text
    one.save(tmp_path)
    assert load_result(tmp_path).intervals == one.intervals
    assert not api.run("fc-mnist", mode="pipelined", batch=64).intervals


def test_compiling_anew_at_every_draw_starts_from_the_same_plan() -> None:
    """A plan of a small model in weight streaming hardly depends on the constants: nearly the same bounds."""
    options = api.RunOptions(mode="weight-streaming", batch=64)
    graph = api.read("fc-mnist", options)
    result = api.run(graph, options)
    kept = result_intervals(result, samples=8)["samples_per_s"]
    anew = result_intervals(
        result, samples=8, again=lambda w, c: api.plan_of(graph, options.replace(wafer=w, cluster=c))
    )["samples_per_s"]
    assert (anew.low, anew.high) == (pytest.approx(kept.low, rel=0.02), pytest.approx(kept.high, rel=0.02))


def test_a_refit_finds_constants_that_made_up_points_were_made_with() -> None:
    """Measured values of eight products are those of a wafer with other constants: the fit goes there."""
    fit = Fit("made up", ("loop_cycles", "step_cycles"), {"kernel.gemm": 0.01})
    points, figures = [], {}
    sizes = [(1, 1, 1), (1, 8, 1), (8, 1, 1), (2, 2, 2), (3, 3, 3), (1, 8, 8), (8, 8, 8), (2, 4, 1)]
    for place, (m, k, n) in enumerate(sizes):
        params = {
            "m": 16 * m,
            "k": 16 * k,
            "n": 16 * n,
            "algorithm": "mesh",
            "rows": 16,
            "cols": 16,
            "dtype": "fp16",
        }
        point = Point(
            id=str(place),
            system="wse3",
            subject="kernel.gemm",
            quantity="cycles",
            measured=1.0,
            params=params,
        )
        figures[point.id] = point_figure(point)
        true = load_wafer("wse3").model_copy(update={"loop_cycles": 42.0, "step_cycles": 60.0})
        points.append(
            point.model_copy(update={"measured": figures[point.id](DrawnMachine(true, load_cluster()))})
        )
    found = fitted(fit, points, figures)
    stated = load_wafer("wse3")
    assert found.factors * [stated.loop_cycles, stated.step_cycles] == pytest.approx([42.0, 60.0], rel=0.01)


@pytest.mark.slow
def test_correlations_of_the_newer_wafer_are_those_of_its_fit() -> None:
    """The file states what benchmarks.fits prints: values within their ranges, correlations to a tenth.

    Other pairs are of constants that it takes over, and correlate as on the wafer from which it does.
    """
    wafer, base = load_wafer("wse3"), load_wafer("wse2")
    found = fits.answer([fits.FITS[0]])["grids of a CS-3"]
    for name, row in found["constants"].items():
        low, high = wafer.provenance[name].range
        assert low < row["fitted"] < high, name
        assert row["fitted"] == pytest.approx(getattr(wafer, name), rel=0.05), name
    order = fits.FITS[0].constants
    for pair, value in wafer.correlations.items():
        if set(pair.split()) <= set(order):
            printed = found["correlations"][" ".join(sorted(pair.split(), key=order.index))]
            assert printed == pytest.approx(value, abs=0.1), pair
        else:
            assert base.correlations[pair] == value, pair
            assert all(wafer.provenance[name] == base.provenance[name] for name in pair.split()), pair
