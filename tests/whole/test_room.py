"""Numbers of streams for room: a transformer block on cores of 8 KiB, stepped, with its values against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import corner
from tests.whole.test_regions import Heads
from wse_sim import api
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.trained import trained_network
from wse_sim.whole.values import check_values

TOKENS, FEATURES = 32, 48


class Block(nn.Module):
    """A layer, attention and two more layers, each with a norm before it and a skip around it, and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.end = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 8)
        self.n1, self.n2, self.heads = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES), Heads(FEATURES, 2)
        self.a, self.b = nn.Linear(FEATURES, 2 * FEATURES), nn.Linear(2 * FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.first(x)
        x = x + self.heads(self.n1(x))
        return self.end(x + self.b(nn.functional.gelu(self.a(self.n2(x)))))


@pytest.mark.slow
@pytest.mark.parametrize("base", ["wse2", "wse3"])
def test_a_block_whose_samples_fit_no_core_trains_in_several_streams(base: str) -> None:
    """Two samples of gradients are 4 x 32 x 48 = 6,144 bytes, and a core has 8,192 less what is reserved and 1,536 of
    instructions: 2,480, which 3 streams need."""
    wafer = corner(56, base, sram_bytes=8_192)
    torch.manual_seed(0)
    model = Block()
    graph = api.lower(model, (torch.zeros(1, TOKENS, FEATURES),), training=True, optimizer="sgd")
    plan = api.compile(inputs_over_rows(graph), wafer, mode="pipelined", batch=4, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    assert plan.round_samples > 0
    bundles = {name: n for one in trained_network(plan, 4).regions for name, n in one.bundles.items()}
    assert bundles["first.out"] >= 3
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, TOKENS, FEATURES)).astype(np.float16)
    checked = check_values(model, plan, x, rng.integers(0, 8, size=4 * TOKENS), rate=0.1)
    assert max(checked.largest(kind)[1] for kind in checked.kinds) < 0.002
