"""Functions apart from dense layers, compared with PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import beside_pytorch
from tests.whole.test_dense_chain import plan_of
from tests.whole.test_trained import training_plan
from wse_sim import api
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_with_engine, inputs_over_rows
from wse_sim.whole.separate_work import worked_apart
from wse_sim.whole.values import check_values


@pytest.mark.parametrize(
    ("tokens", "features", "function", "is_apart"),
    [
        (13, 24, nn.GELU(), True),
        (12, 24, nn.SiLU(), True),
        (1, 24, nn.GELU(), True),
        (12, 25, nn.GELU(), True),  # words of two regions with a zero
        (12, 24, nn.ReLU(), False),  # finished as sums arrive
    ],
)
def test_a_function_is_apart(tokens: int, features: int, function: nn.Module, is_apart: bool) -> None:
    """Otherwise the last row, which has all outputs, would apply it; no other work changes, and none with streamed weights."""
    model = nn.Sequential(nn.Linear(16, features), function, nn.Linear(features, 8))
    graph = api.lower(model, (torch.zeros(1, tokens, 16),))
    found = worked_apart(graph)
    assert [one.family for one in found.kernels] == ["gemm", *["activation"] * is_apart, "gemm"]
    assert sum(one.flops for one in found.kernels) == sum(one.flops for one in graph.kernels)
    assert (found is graph) is not is_apart
    assert len(inputs_over_rows(graph, streamed=True).kernels) == 2


def test_values_and_cycles_of_a_function_apart() -> None:
    """Values beside PyTorch; the fabric keeps the pace of the plan, which is less than that of one row with the functions of all tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8)).half().float()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 13, 16),)))
    plan = plan_of(graph, 32)
    assert len(plan.stages) == 3
    x = torch.randn(4, 13, 16).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    assert np.abs(run.outputs - wanted).max() < 10 * 2.0**-11 * np.abs(wanted).max()
    found = compare_with_engine(plan, 6)
    assert found.fabric_period == pytest.approx(plan.pace_cycles, rel=0.1)
    # The last row alone would take the cycles of a special element for at least two outputs of every token.
    assert plan.pace_cycles < 13 * 2 * plan.wafer.special_element_cycles


@pytest.mark.parametrize("tokens", [1, 5])
def test_an_odd_number_of_features_has_whole_words_between_regions(tokens: int) -> None:
    """Values beside PyTorch; the zero behind 25 features goes through the function and meets a weight of zero."""
    torch.manual_seed(1)
    layers = nn.Linear(16, 25), nn.Sigmoid(), nn.Linear(25, 8), nn.Linear(8, 7), nn.Sigmoid()
    model = nn.Sequential(*layers).half().float()
    plan = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, tokens, 16),))), 32)
    assert len(plan.stages) == 5
    x = torch.randn(4, tokens, 16).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    assert np.abs(run.outputs - wanted).max() < 10 * 2.0**-11 * np.abs(wanted).max()
    found = compare_with_engine(plan, 6)
    assert found.fabric_period == pytest.approx(plan.pace_cycles, rel=0.1)


def test_an_odd_number_of_features_trains() -> None:
    """Gradients and weights beside PyTorch's, in one step; so do functions around a residual and behind one."""
    torch.manual_seed(1)

    class Around(nn.Module):
        """GELU of a sum, and a sum with SiLU."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(i, o) for i, o in ((8, 9), (9, 9), (9, 9), (9, 6)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """(batch, tokens, features)."""
            x = self.a(x)
            x = nn.functional.gelu(x + self.b(x))
            return self.d(torch.relu(x + nn.functional.silu(self.c(x))))

    model = Around().half().float()
    plan = training_plan(model, (3, 8), 32, batch=4)
    x, labels = np.random.default_rng(0).normal(size=(4, 3, 8)), np.arange(12) % 6
    found = check_values(model, plan, x.astype(np.float32), labels, rate=0.05)
    assert max(one.rounded_error for one in found.values) < 0.01


@pytest.mark.slow
def test_functions_do_not_limit_a_model_on_a_full_wafer() -> None:
    """3,136 tokens of 96 features to 384: 48 rows have a word each, and 192 columns two outputs, so at most 9,216 cores would have the
    functions of a block, 3,136 x 384 x 366 cycles / 9,216 = 48,000.  A separate region has as many cores as the pace needs, which is that
    of a row with one word and a column with two outputs: two cycles for products, two for sums.
    """
    block = nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96))
    graph = api.lower(block, (torch.zeros(1, 3136, 96),))
    plan = api.compile(graph, "wse2", mode="pipelined", batch=64, replicas=1, prices="composed")
    assert isinstance(plan, PipelinedPlan)
    assert plan.pace_cycles == 3136 * 4
