"""Levers: their gains are compared with runs that really have the changed constant or batch."""

from __future__ import annotations

import itertools

import pytest

import wse_sim
from tests.report.made_results import pipelined_result, small_wafer
from wse_sim.engine.result import Result
from wse_sim.report import bottleneck, tables
from wse_sim.report.levers import LEAST, Lever, levers_of


def _run(**how: object) -> Result:
    result = wse_sim.run("fc-mnist", **how)  # type: ignore[arg-type]  # options of several modes
    assert isinstance(result, Result)
    return result


def _named(result: Result) -> dict[str, Lever]:
    return {lever.name: lever for lever in levers_of(result)}


@pytest.mark.slow
def test_input_workers_help_a_run_that_waits_for_them() -> None:
    """A second worker sends twice the samples: the wafer computes 17 times what one sends."""
    result = _run(mode="pipelined", batch=256)
    first = levers_of(result)[0]
    assert (first.name, first.change) == ("input_workers_per_system", "2 instead of 1")
    assert first.gain == pytest.approx(1.0)
    assert "Helps most: input_workers_per_system" in bottleneck.sentence(result, levers_of(result))
    assert "Helps most: input_workers_per_system" in " ".join(tables.summary_text(result).split())


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_gain_of_a_larger_batch_is_that_of_a_run_with_it(phase: str) -> None:
    """Weight streaming starts kernels one after another, so twice the batch gives nearly twice the rate."""
    how = {"mode": "weight-streaming", "phase": phase}
    one, two = _run(batch=64, **how), _run(batch=128, **how)
    gain = two.samples_per_s / one.samples_per_s - 1
    assert gain > 0.5
    assert _named(one)["batch"].gain == pytest.approx(gain, rel=0.05)


def test_gain_of_a_constant_is_that_of_a_run_with_it() -> None:
    """A launch floor a tenth lower is compared with a run on such a wafer."""
    how = {"mode": "weight-streaming", "batch": 64}
    result = _run(**how)
    wafer = result.plan.wafer
    other = _run(**how, wafer=wafer.derive(launch_floor_s=0.9 * wafer.launch_floor_s))
    gain = other.samples_per_s / result.samples_per_s - 1
    lever = _named(result)["launch_floor_s"]
    assert lever.change == "10 % lower"
    assert lever.gain == pytest.approx(gain, rel=1e-3)


def test_levers_are_ranked_and_small_ones_left_out() -> None:
    """The largest comes first, and none is below the least gain."""
    gains = [lever.gain for lever in levers_of(_run(mode="weight-streaming", batch=64))]
    assert len(gains) >= 2
    assert min(gains) >= LEAST
    assert all(a >= b - 1e-4 for a, b in itertools.pairwise(gains))


def test_a_plan_without_kernels_has_no_levers() -> None:
    """The sentence then has the general remedy of the resource."""
    assert levers_of(pipelined_result(small_wafer(), 5)) == ()
    assert "; more input workers per system would help" in bottleneck.sentence(
        _run(mode="pipelined", batch=256)
    )
