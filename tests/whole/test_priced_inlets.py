"""Inlets and the links next to them set the pace of small regions: their price is what the fabric takes.

Each case took 8 to 45 % longer than its price when only products and the links between regions had one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.whole.plans import corner
from wse_sim import api
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels.blocks.trained_rows import TrainedRows
from wse_sim.kernels.blocks.word_rows import hearing_cycles
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.attention.pairs import pair_cost
from wse_sim.kernels.families.norm import lane_costs
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.whole import compare_streaming, compare_training, compare_with_engine, inputs_over_rows


def planned(model: nn.Module, shape: tuple[int, ...], side: int, base: str, batch: int, **how: Any) -> Any:
    """Return the plan of a model on a corner of a wafer, in inference unless it `trains`."""
    trains = {"training": True, "optimizer": "sgd"} if how.pop("trains", False) else {}
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),), **trains))
    wafer = corner(side, base, **how.pop("constants", {}))
    return api.compile(graph, wafer, batch=batch, **{"mode": "pipelined", **how})


def images(channels: tuple[int, int], image: tuple[int, int, int], stride: int, outputs: int) -> nn.Module:
    """Return two convolutions, or one, and a dense layer on their images."""
    first, second = channels
    convolutions: list[nn.Module] = [nn.Conv2d(image[0], first, 3, stride, 1), nn.ReLU()]
    if second:
        convolutions += [nn.Conv2d(first, second, 3, stride, 1), nn.ReLU()]
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.LazyLinear(outputs))
    model(torch.zeros(1, *image))
    return model


@pytest.mark.parametrize("base", ["wse2", "wse3"])
def test_a_dense_layer_on_an_image(base: str) -> None:
    """125 words reach every inlet, which deals out those of its row as well: with two rows of 63 words a sample took 193
    cycles where the plan said 141."""
    model = images((10, 0), (1, 5, 5), 1, 10)
    plan = planned(model, (1, 5, 5), 20, base, 8, replicas=1)
    assert compare_with_engine(plan).difference == pytest.approx(0.0, abs=0.05)


def test_inlets_of_one_token_deal_together() -> None:
    """16 words arrive, 3 are dealt out: once each together, twice one after the other or on a slow link."""
    fast, slow = load_wafer("wse2"), load_wafer("wse3")
    assert hearing_cycles(16, 3, fast, 1) == 16 + 3
    assert hearing_cycles(16, 3, fast, 4) == 16 + 2 * 3
    assert hearing_cycles(16, 3, slow, 1) == 16 + 2 * 3 > slow.wavelet_cycles * 16


@pytest.mark.slow
@pytest.mark.parametrize("base", ["wse2", "wse3"])
@pytest.mark.parametrize(
    ("channels", "image", "stride"),
    [((12, 12), (4, 8, 8), 2), ((12, 10), (4, 6, 6), 1), ((8, 16), (2, 6, 6), 2)],
)
def test_convolutions_that_train(
    channels: tuple[int, int], image: tuple[int, int, int], stride: int, base: str
) -> None:
    """The inlet of a row folds the gradients of the image, unfolds the image again, and waits for the last sums: these
    models took up to 56 % longer than planned."""
    plan = planned(images(channels, image, stride, 10), image, 48, base, 24, replicas=1, trains=True)
    assert compare_training(plan).difference == pytest.approx(0.0, abs=0.12)


class SelfAttention(nn.Module):
    """One head of attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x).unsqueeze(1) for one in (self.q, self.k, self.v))
        return self.o(nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1))


@pytest.mark.slow
def test_queries_and_keys_share_no_link() -> None:
    """On one link were 256 words of queries and 512 of keys and values, where the price counts 512: +26 %."""
    plan = planned(SelfAttention(32), (16, 32), 64, "wse2", 24, replicas=1, trains=True)
    assert compare_training(plan).difference == pytest.approx(0.0, abs=0.08)


def test_results_of_attention_come_after_the_collectives_of_a_row() -> None:
    """10 tokens of 12 features on 10 x 10 cores of a WSE-3, where a core passes a word on in 2 + 10 cycles and a hop takes 2:
    sums take 9 x 14 + 10 = 136 cycles along a row, three of them 408, and 12 from the first core to its collector."""
    dims = {"b": 1, "heads": 1, "kv_heads": 1, "q": 10, "kv": 10, "d": 12}
    wafer, place = load_wafer("wse3"), Tiling(11, 10, "stationary")
    cost = pair_cost(dims, place, wafer, Phase.FORWARD, {"pairs": True, "trains": True})
    assert float(cost.idle) == 3 * 136 + 12
    assert float(cost.stalled_input) >= 2 * 136  # the collectives also take part in the pace
    assert float(pair_cost(dims, place, wafer, Phase.FORWARD, {"pairs": True}).idle) == 0


def test_an_inlet_that_deals_lets_its_link_wait() -> None:
    """82 inputs are 41 words, of which a row of 11 has 4: 41 + 4 cycles at one cycle per word; 1.125 x 41 + 4 on a WSE-3."""
    for base, cycles in (("wse2", 45.0), ("wse3", 1.125 * 41 + 4)):
        rows = TrainedRows(1, 82, 4, "", Tiling(11, 15, "stationary"), load_wafer(base), passes_on=True)
        assert float(rows.forward[1]) == pytest.approx(cycles)


def test_streamed_weights_take_the_cycles_of_a_word() -> None:
    """On a WSE-3 a word takes 1.125 cycles on a link, also on those of the edges: it took 12 % longer."""
    plan = planned(
        nn.Linear(189, 119), (189,), 24, "wse3", 96, mode="weight-streaming", constants={"program_rows": 22}
    )
    assert isinstance(plan, WeightStreamingPlan)
    assert compare_streaming(plan).difference == pytest.approx(0.0, abs=0.03)


def test_a_norm_without_a_gradient_of_its_operand_still_receives_those_of_its_result() -> None:
    """Rows of 32 features on a core each; a word is received in a cycle. Whether the operand needs a gradient does not
    change what arrives: 16 words a row, once for each of three readers over one link."""
    wafer, rows = load_wafer("wse2"), 4
    attrs = {"kind": "rms", "whole": True, "readers": 3}
    found = {
        passes_on: lane_costs(
            {"rows": rows, "cols": 32}, rows, 1, wafer, "fp16", {**attrs, "passes_on": passes_on}
        )
        for passes_on in (True, False)
    }
    weight = found[False][Phase.WEIGHT_GRADIENT]
    assert found[False][Phase.INPUT_GRADIENT].total == 0
    assert float(weight.ramp) == 16
    assert float(weight.total) >= 3 * rows * 16
    # The products alone take as long where the gradients have arrived for the gradient of the operand.
    assert float(weight.compute) >= float(found[True][Phase.WEIGHT_GRADIENT].compute)
    assert found[True][Phase.FORWARD] == found[False][Phase.FORWARD]


def test_the_last_gradient_passes_a_region_along_its_rows() -> None:
    """Sums of results pass the rows of a region one by one, sums of gradients its columns: 21 rows of products and a last
    row, 4 columns. A core passes a word on in 1 + 2 x 2 + 1 = 6 cycles, a hop takes 1."""
    wafer = load_wafer("wse2")
    rows = TrainedRows(1, 84, 16, "", Tiling(21, 4, "stationary"), wafer, passes_on=True)
    way = (22 + 4 - 2) * wafer.hop_cycles + wafer.handover_cycles
    relay = wafer.hop_cycles + wafer.handover_cycles
    assert float(rows.forward_cost().idle) == way + 20 * relay + relay
    assert float(rows.input_gradient_cost().idle) == way + 3 * relay


@pytest.mark.slow
def test_gradients_of_a_loss_keep_their_links_to_themselves() -> None:
    """11 tokens of 56 features: the loss sends 308 words a sample down its column. Gradients of the first layer crossed
    them: a round took 18 % longer than planned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 54), nn.ReLU(), nn.Linear(54, 56))
    plan = planned(model, (11, 64), 24, "wse2", 32, trains=True, replicas=1)
    assert compare_training(plan).difference == pytest.approx(0.0, abs=0.05)
