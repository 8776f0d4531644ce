"""Factors of a plan: every cycle of it is measured or named, and a factor follows from its rows."""

from __future__ import annotations

import pytest

from tests.handmade import transformer
from tests.timing.families import SLOWER, register_slow
from wse_sim import timing
from wse_sim.compiler.scores import without_scores
from wse_sim.errors import KernelError
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.kernels.blocks.probes import fill_probes
from wse_sim.kernels.blocks.products import chain_latency
from wse_sim.kernels.contract.equations import fill_cycles
from wse_sim.kernels.contract.family import Tiling
from wse_sim.modes.pipelined.steps import compile_pipelined
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.steps import compile_streaming
from wse_sim.timing.probes import measure

WAFER, CLUSTER = load_wafer("wse2"), load_cluster("default")
MODES = ("pipelined", "weight-streaming")


def plan_of(mode: str, graph=None, **choice):
    graph = graph or transformer(layers=2, hidden=256, heads=4, seq=64)
    if mode == "pipelined":
        small = WAFER.derive(rows=130, cols=130, program_rows=128, program_cols=128)
        return compile_pipelined(graph, small, CLUSTER, batch=4)
    return compile_streaming(graph, WAFER, CLUSTER, batch=64, choice=StreamingChoice(**choice))


@pytest.fixture
def slow_attention(monkeypatch):
    """Let attention take three times its formula."""
    return register_slow(monkeypatch, "attention")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_products_agree_with_their_programs(mode):
    timed = timing.run_timed(plan_of(mode), trace=False)
    report = timed.report
    products = [row for row in report.rows if row.family == "gemm" and row.part == "product"]
    assert products
    for row in products:
        # Forward and back, words trigger as the formula counts.  A weight gradient of w words at rest takes up to
        # 1 / w longer (one word more at the end of a turn) or shorter (words arrive while others are multiplied).
        gradient, at_rest = row.phase == "weight_gradient", int(row.tile.split()[0])
        assert row.ratio == pytest.approx(1.0, abs=0.04 + gradient / at_rest), row
    assert all(row.why for row in (*report.rows, *report.model_only))
    slower = timed.model.samples_per_s / timed.fabric.samples_per_s
    assert 0.9 < slower < 1.1
    assert any("measured on the fabric" in note for note in timed.fabric.notes)


def test_the_fill_of_a_rectangle_is_measured_in_lines_as_long():
    """A word crosses 994 x 750 cores and sums pass 750 of them: as the formula, hop by hop and relay by relay."""
    tiling = Tiling(994, 750, "streamed")
    idle = fill_cycles(994, 750, WAFER) + chain_latency(750, WAFER)
    probes = fill_probes(idle, tiling, WAFER)
    assert sum(probe.cost.total for probe in probes) == pytest.approx(idle)
    assert [probe.part for probe in probes] == ["way along a row", "way down a column", "chain"]
    for probe in probes:
        assert measure(probe, WAFER).ratio == pytest.approx(1.0, abs=0.01)
    # Half of the way: no sums have to be passed on.
    assert [c.part for c in fill_probes(800.0, tiling, WAFER)] == ["way along a row", "way down a column"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_cycle_of_the_plan_is_in_one_row(mode):
    """Measured rows and rows that keep their formula add up to the cycles of the plan."""
    plan = plan_of(mode)
    report = timing.fabric_factors(plan)
    if mode == "pipelined":
        stated = sum(stage.cycles_per_sample for stage in plan.stages)
    else:
        stated = sum(phase.compute_cycles for phase in plan.phases)
    assert report.total_cycles == pytest.approx(stated, rel=1e-9)
    assert 0.9 < report.measured_fraction <= 1
    # A part never stands for more than its kernel: nothing is left over or counted twice.
    assert all(row.model_cycles > 0 for row in (*report.rows, *report.model_only))


@pytest.mark.slow
def test_a_softmax_that_is_worked_out_again_is_measured_again():
    """The backward pass of attention without kept scores has the special elements of the forward pass a second time."""
    plan = plan_of("pipelined", without_scores(transformer(layers=2, hidden=256, heads=4, seq=64)))
    report = timing.fabric_factors(plan)
    assert report.total_cycles == pytest.approx(sum(stage.cycles_per_sample for stage in plan.stages))
    special = sum(stage.forward_parts["special"] for stage in plan.stages if stage.family == "attention")
    again = [row for row in report.rows if row.part == "softmax again"]
    assert sum(row.model_cycles for row in again) == pytest.approx(special)


def test_a_factor_is_the_cycles_of_its_kernels_with_their_ratios(slow_attention):
    """Attention takes three times its formula: its phases get the factor 3."""
    plan = plan_of("weight-streaming")
    report = timing.fabric_factors(plan)
    phases = {phase.name: phase for phase in plan.phases if phase.family == "attention"}
    assert phases
    for name in phases:
        assert report.factors[name] == pytest.approx(SLOWER)
    slow = [row for row in report.rows if row.family == "attention"]
    assert sum(row.difference_cycles for row in slow) == pytest.approx(
        (SLOWER - 1) * sum(phase.compute_cycles for phase in phases.values())
    )
    # The largest difference comes first in the text.
    largest = max(report.rows, key=lambda row: abs(row.difference_cycles))
    assert largest.why in report.text().splitlines()[1]


@pytest.mark.slow
def test_a_slower_stage_slows_the_pipeline_as_a_longer_formula_would(slow_attention):
    """A stage of factor 3 has three times its cycles in the plan that is simulated."""
    plan = plan_of("pipelined")
    timed = timing.run_timed(plan, trace=False)
    before = {stage.name: stage for stage in plan.stages}
    for stage in timed.fabric.plan.stages:
        if stage.family == "attention":
            assert stage.forward_cycles == pytest.approx(SLOWER * before[stage.name].forward_cycles)


@pytest.mark.slow
def test_zero_weights_scale_what_was_measured():
    """With half the weights a product has half its multiply-accumulates; it does not count more than its phase."""
    plan = plan_of("weight-streaming", density=0.5)
    report = timing.fabric_factors(plan)
    assert report.total_cycles == pytest.approx(sum(phase.compute_cycles for phase in plan.phases))
    assert all(row.model_cycles > 0 for row in report.rows)


def test_a_probe_runs_once_and_answers_repeat():
    """The second time nothing runs; a new process reads the files."""
    plan, calls = plan_of("weight-streaming"), []
    first = timing.fabric_factors(plan, progress=calls.append)
    assert len(calls) == first.probes > 0
    assert first.cached == 0
    timing.open_store.cache_clear()
    again = timing.fabric_factors(plan, progress=calls.append)
    assert len(calls) == again.probes == again.cached
    assert dict(first.factors) == dict(again.factors)


def test_a_probe_that_fails_is_named_with_its_fault(slow_attention, monkeypatch):
    """The formula is kept, and the sentence of the fault is the reason."""

    def refuse(*_, **__):
        raise KernelError("kernel 'attention' has no tile of 7; use 8")

    monkeypatch.setattr(slow_attention, "program", refuse)
    report = timing.fabric_factors(plan_of("weight-streaming"))
    rows = [row for row in report.model_only if row.family == "attention"]
    assert {row.why for row in rows} == {"kernel 'attention' has no tile of 7; use 8"}
    assert "no tile of 7" in report.text()
    assert not [row for row in report.rows if row.family == "attention"]
