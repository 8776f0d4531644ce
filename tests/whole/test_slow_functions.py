"""Slow functions apart from dense layers whose tokens no number of rows divides, compared with PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.whole import compare_with_engine, inputs_over_rows, run_whole
from wse_sim.whole.slow_functions import finished_apart


@pytest.mark.parametrize(
    ("tokens", "features", "function", "is_apart"),
    [
        (13, 16, nn.GELU(), True),  # 8 words; 13 is prime, so one row would finish all
        (26, 24, nn.SiLU(), True),  # two of 12 rows
        (12, 16, nn.GELU(), False),  # six of eight rows
        (13, 32, nn.GELU(), False),  # a row per token
        (13, 16, nn.ReLU(), False),  # finished as sums arrive
    ],
)
def test_a_function_is_apart_where_few_rows_could_share_it(
    tokens: int, features: int, function: nn.Module, is_apart: bool
) -> None:
    """The largest divisor of the tokens up to the words is at most half of both."""
    model = nn.Sequential(nn.Linear(features, 24), function, nn.Linear(24, 8))
    graph = api.lower(model, (torch.zeros(1, tokens, features),))
    found = finished_apart(graph)
    assert [one.family for one in found.kernels] == ["gemm", *["activation"] * is_apart, "gemm"]
    assert sum(one.flops for one in found.kernels) == sum(one.flops for one in graph.kernels)
    assert (found is graph) is not is_apart


def test_values_and_cycles_of_a_function_apart() -> None:
    """Values beside PyTorch; the fabric keeps the pace of the plan, which is less than that of one row with the functions of all tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8)).half().float()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 13, 16),)))
    plan = plan_of(graph, 32)
    assert len(plan.stages) == 3
    x = torch.randn(4, 13, 16).half().float()
    run = run_whole(plan, {name: value.numpy() for name, value in model.state_dict().items()}, x.numpy())
    with torch.no_grad():
        wanted = model(x).numpy().reshape(run.outputs.shape)
    assert np.abs(run.outputs - wanted).max() < 10 * 2.0**-11 * np.abs(wanted).max()
    found = compare_with_engine(plan, 6)
    assert found.fabric_period == pytest.approx(plan.pace_cycles, rel=0.1)
    # Two outputs of a column are the fewest; each takes the cycles of a special element.
    assert plan.pace_cycles < 13 * 2 * plan.wafer.special_element_cycles
