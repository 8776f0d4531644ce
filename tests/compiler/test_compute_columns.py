"""Columns of regions that compute: the count, its reverse, and which plans have a limit on the others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.whole.test_dense_chain import graph_of
from wse_sim import api
from wse_sim.compiler.compute_columns import MOVING, ComputeColumns
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import load_wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan

WAFER = load_wafer("wse2")


@given(st.integers(1, 757), st.floats(0.3, 1.0), st.integers(0, 5))
def test_a_region_is_the_narrowest_whose_columns_compute(compute: int, efficiency: float, most: int) -> None:
    """As many columns compute as asked, and one column fewer is too narrow."""
    rule = ComputeColumns(efficiency, most)
    region = int(np.ceil(rule.region_cols(compute) - 1e-9))
    assert int(rule.of(region)) >= compute
    assert region == compute or int(rule.of(region - 1)) < compute or compute == 1
    assert region - compute <= most or not most


@pytest.mark.parametrize(("most", "expected"), [(0, [1, 2, 7, 28]), (3, [1, 2, 7, 37])])
def test_wide_regions_lose_a_number_of_columns_and_narrow_ones_a_part(most: int, expected: list[int]) -> None:
    """0.72 of 1, 4, 10 and 40 columns: 0.7, 2.9, 7.2 and 28.8 rounded down; with a limit of 3, 37 of 40 compute."""
    assert ComputeColumns(0.72, most).of([1, 4, 10, 40]).tolist() == expected


def test_a_graph_states_the_limit_of_its_plans() -> None:
    """A graph as it is captured states none."""
    graph = graph_of(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), 8)
    assert ComputeColumns.of_plan(graph, WAFER) == ComputeColumns(WAFER.pipeline_efficiency)
    limited = dataclasses.replace(graph, facts=frozen({**graph.facts, MOVING: 3}))
    assert ComputeColumns.of_plan(limited, WAFER) == ComputeColumns(WAFER.pipeline_efficiency, 3)


@pytest.mark.parametrize(("side", "limit"), [(64, 0), (210, 3)])
def test_training_with_composed_prices_has_a_limit_on_large_wafers(side: int, limit: int) -> None:
    """A wafer of 210 x 210 cores is too large for the fabric to step (40,000 cores)."""
    graph = graph_of(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), 8, training=True, optimizer="sgd"
    )
    sides = dict.fromkeys(("rows", "cols", "program_rows", "program_cols"), side)
    plan = api.compile(graph, WAFER.derive(**sides), mode="pipelined", batch=8, replicas=1, prices="composed")
    assert isinstance(plan, PipelinedPlan)
    assert ComputeColumns.of_plan(plan.graph, plan.wafer).most_moving == limit
