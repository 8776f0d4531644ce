"""A residual of a dense layer waits in stores: closed forms of them, and the pace of models with a skip, against stepped programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import beside_pytorch
from tests.whole.test_regions import Case, made
from wse_sim import api
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import Compared, compare_with_engine
from wse_sim.whole.regions import dense_shape
from wse_sim.whole.regions.contract import part_of
from wse_sim.whole.regions.dense import Dense

LIES = {"orientation": "kn", "word_rows": True, "most_bundles": 8}


class Skip(nn.Module):
    """Two layers and a sum with what they read."""

    def __init__(self, features: int, wide: int, after: nn.Module | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(features, wide), nn.Linear(wide, features)
        self.after = after or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return self.after(x + self.down(torch.relu(self.up(x))))


def stepped(case: Case) -> tuple[Dense, Compared]:
    """The layer with the residual as it lies, and both simulators; values of three samples are those of PyTorch."""
    model, plan = made(case)
    if plan.replicas > 1:
        plan = expect(
            api.compile(plan.graph, plan.wafer, mode="pipelined", batch=8, replicas=1), PipelinedPlan
        )
    x = torch.randn(case.samples, *case.shape).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    assert np.abs(run.outputs - wanted).max() < 4 * 2.0**-11 * np.abs(wanted).max()
    assert run.fabric.words_left == 0
    found = compare_with_engine(plan, 6)
    dense = [region for region in found.whole.regions if isinstance(region, Dense)]
    return next(region for region in dense if "residual" in region.items), found


@pytest.mark.parametrize(
    ("features", "wide", "tokens", "side", "bundles", "off"),
    [
        pytest.param(
            32, 64, 24, 32, 4, 0.12, marks=pytest.mark.slow
        ),  # inlets and stores are as busy as the pace
        pytest.param(
            64, 64, 12, 40, 6, 0.18, marks=pytest.mark.slow
        ),  # 32 words in parts of 5 and 6: rows take two parts in step
        (32, 256, 8, 32, 1, 0.08),  # inlets set the pace, and deal out between words
        pytest.param(24, 48, 20, 32, 3, 0.30, marks=pytest.mark.slow),  # streams of the host share links
    ],
)
def test_bundles_of_a_residual_meet_the_sums(
    features: int, wide: int, tokens: int, side: int, bundles: int, off: float
) -> None:
    """Every bundle has its own store, which takes in two words per cycle and deals out one, with a control word per token; no row
    waits."""
    layer, found = stepped(Case(lambda: Skip(features, wide), (tokens, features), side, 3))
    assert layer.residuals == bundles
    for bundle in range(bundles):
        busy, part = (
            found.fabric.busy[layer.stores_of(bundle)[0]],
            len(part_of(features // 2, bundle, bundles)),
        )
        assert busy == pytest.approx(12 * tokens * (1.5 * part + 1), rel=0.03)
    down = next(one for one in found.regions if one.name == "down")
    assert down.busiest == pytest.approx(down.engine, abs=2)
    assert found.fabric_period == pytest.approx(found.engine_period, rel=off)


@pytest.mark.slow
def test_stores_hold_parts_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with room for three parts of six tokens of eight features each passes a sample of 24 tokens on in four parts.

    A token of a bundle is 16 bytes, and 3 x 6 x 16 = 288.
    """
    wafer = load_wafer("wse2")
    monkeypatch.setattr(dense_shape, "STORED_FRACTION", 288 / wafer.sram_usable_bytes)
    layer, _ = stepped(Case(lambda: Skip(32, 64), (24, 32), 32, 3))
    assert (layer.residuals, layer.cols * layer.outputs) == (4, 32)
    assert (layer.unit, layer.stored) == (6, 48)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "shape", "side"),
    [
        (nn.GELU(), (9, 24), 28),
        (nn.LayerNorm(24), (40, 24), 48),
        pytest.param(nn.Sequential(Skip(24, 40), nn.Linear(24, 6)), (10, 24), 40, marks=pytest.mark.slow),
    ],
)
def test_what_follows_a_residual_reads_features_in_order(
    after: nn.Module, shape: tuple[int, int], side: int
) -> None:
    """An activation, a norm, another skip: the values are those of PyTorch."""
    stepped(Case(lambda: Skip(24, 40, after), shape, side, 3))


def cycles(fused: str, tokens: int, rows: int, cols: int = 64, residuals: int = 1) -> float:
    """Return the price of a layer 64-256 as it lies."""
    dims, attrs = {"m": tokens, "k": 64, "n": 256}, {**LIES, "fused": fused, "most_residuals": residuals}
    cost = family("gemm").cost(dims, Tiling(rows, cols, "stationary"), load_wafer("wse2"), attrs=attrs)
    return float(np.asarray(cost.total - cost.idle))


def test_a_layer_with_a_residual_is_no_faster_than_its_stores() -> None:
    """256 features on 64 columns of 4: 64 + 128 + 1 cycles for each of 11 tokens in one store, a quarter of the words in each of four.

    Products of 8 rows of 4 words take 2 x 4 x 2 + 4 = 20 cycles, and the last row 2 x 4.
    """
    assert cycles("bias,residual", 11, 9) == 11 * 193
    assert cycles("bias,residual", 11, 9, residuals=4) == 11 * 49
    assert (
        cycles("bias,residual", 11, 9, residuals=16) == 11 * 23.5
    )  # in nine of 15 words or less, as many as rows
    assert cycles("bias", 11, 9) == 11 * 20


def test_stores_of_a_large_model_fit_beside_rows() -> None:
    """GPT-2 small, 1,024 tokens of 768: two samples are 3.1 MB in one store, and 8 KB in each of two columns of 193."""
    dims, wafer, gemm = {"m": 1024, "k": 768, "n": 768}, load_wafer("wse2"), family("gemm")
    attrs = {**LIES, "fused": "bias,residual"}

    def held(rows: int, cols: int) -> float:
        return float(np.asarray(gemm.store_bytes(dims, Tiling(rows, cols, "stationary"), wafer, attrs)))

    whole = 2 * 1024 * 768 * 2
    assert held(193, 6) == pytest.approx(whole / (2 * 193))
    assert held(193, 5) == pytest.approx(whole / 193)  # two columns move: inlets, and one of stores
    assert held(193, 2) == pytest.approx(
        whole / 193
    )  # one column moves, and one of those that compute becomes another
    assert gemm.store_bytes(dims, Tiling(193, 6, "stationary"), wafer, {**LIES, "fused": "bias"}) == 0
