"""A residual of a dense layer waits in stores: their closed forms, and the pace of models with a skip, against stepped
programs.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.test_regions import Case, made
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.blocks.word_rows import finishing_rows
from wse_sim.whole import Compared, compare_with_engine, run_whole
from wse_sim.whole.regions.dense import Dense
from wse_sim.whole.regions.dense_kept import KeptDense

LIES = {"orientation": "kn", "word_rows": True, "most_bundles": 8}


class Skip(nn.Module):
    """Two layers and a sum with their input."""

    def __init__(self, features: int, wide: int, after: nn.Module | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(features, wide), nn.Linear(wide, features)
        self.after = after or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return self.after(x + self.down(torch.relu(self.up(x))))


def stepped(case: Case) -> tuple[Dense, Compared]:
    """Return the layer with the residual as it lies, and both simulators; values of three samples are those of PyTorch."""
    model, plan = made(case)
    x = torch.randn(case.samples, *case.shape).half().float()
    run = run_whole(plan, {name: value.numpy() for name, value in model.state_dict().items()}, x.numpy())
    with torch.no_grad():
        wanted = model(x).numpy().reshape(run.outputs.shape)
    assert np.abs(run.outputs - wanted).max() < 4 * 2.0**-11 * np.abs(wanted).max()
    assert run.fabric.words_left == 0
    found = compare_with_engine(plan, 6)
    dense = [region for region in found.whole.regions if isinstance(region, Dense)]
    return next(region for region in dense if "residual" in region.items), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "wide", "tokens", "side"),
    [(24, 24, 17, 18), pytest.param(32, 64, 31, 24, marks=pytest.mark.slow)],
)
def test_a_store_sets_the_pace_that_the_plan_says(features: int, wide: int, tokens: int, side: int) -> None:
    """For a token of N features, N / 2 words enter, the words of C columns of v outputs leave, and one turns them back;
    the values are PyTorch's.

    The tokens are a prime number and more than there are rows, so rows cannot finish them in turn.
    """
    layer, found = stepped(Case(lambda: Skip(features, wide), (tokens, features), side, 3))
    assert not isinstance(layer, KeptDense)
    each = features / 2 + layer.cols * layer.outputs / 2 + 1
    assert found.fabric.busy[layer.stores[0]] == pytest.approx(12 * tokens * each, rel=0.01)
    assert found.engine_period == pytest.approx(tokens * each)
    assert found.fabric_period == pytest.approx(tokens * each, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "wide", "tokens", "side", "off"),
    [
        (24, 48, 20, 32, 0.05),
        pytest.param(32, 64, 24, 32, 0.05, marks=pytest.mark.slow),
        pytest.param(64, 128, 32, 56, 0.05, marks=pytest.mark.slow),
        pytest.param(96, 96, 24, 48, 0.05, marks=pytest.mark.slow),
        pytest.param(32, 256, 8, 32, 0.05, marks=pytest.mark.slow),  # products set the pace
        pytest.param(64, 64, 12, 40, 0.20, marks=pytest.mark.slow),  # few rows finish tokens of few cycles
    ],
)
def test_rows_beside_keepers_finish_tokens_in_turn(
    features: int, wide: int, tokens: int, side: int, off: float
) -> None:
    """One core sends a token of N / 2 words to each of F rows; per token a keeper receives N words, residual and
    result, and sends both.

    The pace is that of the link beside the last row, or of the products.
    """
    layer, found = stepped(Case(lambda: Skip(features, wide), (tokens, features), side, 3))
    assert isinstance(layer, KeptDense)
    share = tokens // layer.finishing
    words = 12 * tokens * features / 2
    assert found.fabric.busy[layer.stores[-1]] == pytest.approx(words, rel=0.08)  # and a control word a round
    kept = 12 * share * (3 * features / 2 + layer.cols * layer.outputs / 2 + 1)
    assert found.fabric.busy[layer.stores[0]] == pytest.approx(kept, rel=0.03)
    down = next(one for one in found.regions if one.name == "down")
    assert down.busiest == pytest.approx(down.engine, abs=2)
    handed = (tokens + share) * (features / 2 + 2)
    assert found.engine_period == pytest.approx(max(handed, *(one.engine for one in found.regions)), rel=0.01)
    assert found.fabric_period == pytest.approx(found.engine_period, rel=off)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "shape", "side"),
    [
        (nn.GELU(), (9, 24), 28),
        (nn.LayerNorm(24), (40, 24), 48),
        pytest.param(nn.Sequential(Skip(24, 40), nn.Linear(24, 6)), (10, 24), 40, marks=pytest.mark.slow),
    ],
)
def test_what_follows_a_kept_residual_reads_features_in_order(
    after: nn.Module, shape: tuple[int, int], side: int
) -> None:
    """An activation, a norm, another skip: tokens arrive in the order of rows, features from the first column."""
    layer, _ = stepped(Case(lambda: Skip(24, 40, after), shape, side, 3))
    assert isinstance(layer, KeptDense)


def cycles(fused: str, tokens: int, rows: int, cols: int = 64) -> float:
    """Return the cycles of a layer 64-256."""
    dims, attrs = {"m": tokens, "k": 64, "n": 256}, {**LIES, "fused": fused}
    cost = family("gemm").cost(dims, Tiling(rows, cols, "stationary"), load_wafer("wse2"), attrs=attrs)
    return float(np.asarray(cost.total - cost.idle))


def test_a_layer_with_a_residual_is_no_faster_than_its_stores() -> None:
    """256 features on 64 columns of 4: 128 + 128 + 1 words a token of 11, a prime number, in one store on 9 rows.

    Of 16 tokens on 17 rows or more each row has one, and a core hands on 17 x (128 + 2) words with the results of the last row.
    """
    assert cycles("bias,residual", 11, 9) == 11 * 257
    assert cycles("bias", 11, 9) < 11 * 128
    for rows in (17, 20, 32):
        assert cycles("bias,residual", 16, rows) == 17 * 130
    assert (
        cycles("bias,residual", 16, 16) == 18 * 130
    )  # 15 rows beside the one that hands on: 8 finish two tokens each


def test_rows_that_finish_tokens_divide_them() -> None:
    """For 1,024 tokens 128 rows of 193 finish tokens, for a prime number all or one."""
    rows = np.array([1, 2, 12, 193, 197, 300])
    assert list(finishing_rows(1024, rows)) == [1, 2, 8, 128, 128, 256]
    assert list(finishing_rows(197, rows)) == [1, 1, 1, 1, 197, 197]


def test_stores_of_a_large_model_fit_beside_rows() -> None:
    """GPT-2 small, 1,024 tokens of 768: two samples are 3.1 MB in one store, and 28 KB with two results beside each of 128 rows."""
    dims, wafer, gemm = {"m": 1024, "k": 768, "n": 768}, load_wafer("wse2"), family("gemm")
    attrs = {**LIES, "fused": "bias,residual"}

    def held(rows: int, cols: int) -> float:
        return float(np.asarray(gemm.store_bytes(dims, Tiling(rows, cols, "stationary"), wafer, attrs)))

    assert held(193, 6) == 2 * (8 + 1) * 768 * 2
    assert held(193, 5) == 2 * 1024 * 768 * 2  # two columns move: inlets, and one store
    assert gemm.store_bytes(dims, Tiling(193, 6, "stationary"), wafer, {**LIES, "fused": "bias"}) == 0
