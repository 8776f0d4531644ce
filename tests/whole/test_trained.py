"""Training of networks of regions: ways of gradients, sums, loss; every value against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.alone import region_alone, run_alone
from tests.whole.copies import Copies
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import inputs_over_rows


class Skip(nn.Module):
    """A layer, then two with a skip around them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(features, features) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.a(x)
        return x + self.c(self.b(x))


def training_plan(model: nn.Module, shape: tuple[int, ...], side: int, batch: int = 8) -> PipelinedPlan:
    """The plan of a batch with plain gradient descent."""
    graph = api.lower(model, (torch.zeros(1, *shape),), training=True, optimizer="sgd")
    return plan_of(inputs_over_rows(graph), side, phase="training", optimizer="sgd", batch=batch)


@pytest.mark.parametrize("in_flight", [1, 2, 6])
def test_a_region_alone_gets_and_gives_all_streams(in_flight: int) -> None:
    """The bench on which kinds are tested: operands in, result out, its gradient in, gradients of operands out."""
    plan = training_plan(Skip(8), (4, 8), 16)
    region = region_alone(Copies, plan, "c")
    rng = np.random.default_rng(0)
    x, y, g = (rng.normal(size=(6, 4, 8)).astype(np.float16) for _ in range(3))
    first, second = region.operands
    run = run_alone(region, {first: x, second: y}, g, {}, in_flight=in_flight)
    assert np.array_equal(run.output, (x + y).astype(np.float32))
    assert all(np.array_equal(found, g.astype(np.float32)) for found in run.operand_gradients.values())
    assert set(run.operand_gradients) == {first, second}
