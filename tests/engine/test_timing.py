"""Factors from fabric programs: products agree with their formulas, and the rest is named."""

from __future__ import annotations

import dataclasses

import pytest

from tests.handmade import transformer
from wse_sim import timing
from wse_sim.compiler.pipelined import compile_pipelined
from wse_sim.compiler.streaming import compile_streaming
from wse_sim.errors import ConfigError
from wse_sim.hardware import load_cluster, load_wafer

WAFER, CLUSTER = load_wafer("wse2"), load_cluster("default")


def plan_of(mode: str):
    graph = transformer(layers=2, hidden=256, heads=4, seq=64)
    if mode == "pipelined":
        small = WAFER.derive(rows=130, cols=130, program_rows=128, program_cols=128)
        return compile_pipelined(graph, small, CLUSTER, batch=4)
    return compile_streaming(graph, WAFER, CLUSTER, batch=64)


@pytest.mark.parametrize("mode", ["pipelined", "weight-streaming"])
def test_products_agree_with_their_programs(mode):
    timed = timing.run_timed(plan_of(mode), "both", trace=False)
    report = timed.report
    products = [row for row in report.rows if row.family == "gemm"]
    assert products
    # Long vectors hide the start of a turn; tiny tiles of this small model show a few cycles of it.
    assert all(0.8 < row.ratio < 1.6 for row in products)
    assert {row.family for row in report.model_only} >= {"attention"}
    assert all(row.why for row in (*report.rows, *report.model_only))
    slower = timed.model.samples_per_s / timed.fabric.samples_per_s
    assert 0.8 < slower < 1.6
    assert "model only" in report.text()


def test_a_tile_is_measured_once_and_answers_repeat():
    plan = plan_of("weight-streaming")
    calls: list[str] = []
    first = timing.fabric_factors(plan)
    again = timing.fabric_factors(plan, progress=calls.append)
    assert calls == []
    assert dict(first.factors) == dict(again.factors)


def test_a_slower_core_shows_on_the_fabric_as_in_the_formula():
    # Half the multiply-accumulates per cycle: both sides double their arithmetic, the ratio stays near one.
    slow = WAFER.derive(fma_mixed_per_cycle=1.0)
    plan = compile_streaming(transformer(2, 256, 4, 64), slow, CLUSTER, batch=64)
    rows = [row for row in timing.fabric_factors(plan).rows if row.family == "gemm"]
    assert all(0.8 < row.ratio < 1.6 for row in rows)


def test_an_unknown_timing_is_one_sentence():
    with pytest.raises(ConfigError, match="timing 'wall'"):
        timing.run_timed(plan_of("weight-streaming"), "wall")


def test_formulas_alone_ask_no_fabric():
    timed = timing.run_timed(plan_of("weight-streaming"), "model", trace=False)
    assert timed.report is None
    assert timed.fabric is None
    assert dataclasses.is_dataclass(timed.model)
