"""A residual of a dense layer waits in stores: closed forms of one, and the pace of models with a skip, against stepped programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.test_regions import Case, made
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.whole import compare_with_engine, run_whole


class Skip(nn.Module):
    """Two layers and a sum with what they read."""

    def __init__(self, features: int, wide: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(features, wide), nn.Linear(wide, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return x + self.down(torch.relu(self.up(x)))


@pytest.mark.parametrize(
    ("features", "wide", "tokens", "side"),
    [
        (32, 64, 8, 32),
        pytest.param(64, 64, 12, 40, marks=pytest.mark.slow),
        pytest.param(32, 96, 32, 48, marks=pytest.mark.slow),
    ],
)
def test_a_store_sets_the_pace_that_the_plan_says(features: int, wide: int, tokens: int, side: int) -> None:
    """A token of N features: N / 2 words in, the words of C columns of v outputs out, one to turn them back; and PyTorch's values.

    The first case has N = 32 and v = 6 on 6 columns: 16 + 18 + 1 cycles a token, where the link that brings it takes 16.
    """
    case = Case(lambda: Skip(features, wide), (tokens, features), side, 3)
    model, plan = made(case)
    found = compare_with_engine(plan, 6)
    layer: Any = found.whole.regions[-1]
    each = features / 2 + layer.cols * layer.outputs / 2 + 1
    assert found.fabric.busy[layer.stores[0]] == pytest.approx(12 * tokens * each, rel=0.01)
    assert found.engine_period == pytest.approx(tokens * each)
    assert found.fabric_period == pytest.approx(tokens * each, rel=0.05)
    x = torch.randn(case.samples, *case.shape).half().float()
    run = run_whole(plan, {name: value.numpy() for name, value in model.state_dict().items()}, x.numpy())
    with torch.no_grad():
        wanted = model(x).numpy().reshape(run.outputs.shape)
    assert np.abs(run.outputs - wanted).max() < 4 * 2.0**-11 * np.abs(wanted).max()


def test_a_layer_with_a_residual_is_no_faster_than_its_store() -> None:
    """256 features on 64 columns of 4: 128 + 128 + 1 words a token, on however many rows; without the sum it is faster."""
    wafer, dims = load_wafer("wse2"), {"m": 8, "k": 64, "n": 256}

    def cycles(fused: str, rows: int) -> float:
        lies = {"orientation": "kn", "word_rows": True, "most_bundles": 8, "fused": fused}
        cost = family("gemm").cost(dims, Tiling(rows, 64, "stationary"), wafer, attrs=lies)
        return float(np.asarray(cost.total - cost.idle))

    for rows in (8, 16, 32):
        assert cycles("bias,residual", rows) == 8 * 257
        assert cycles("bias", rows) < 8 * 128
