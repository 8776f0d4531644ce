"""Norms of complete tokens in blocks, alone on their fabric: values against PyTorch, cycles against the price of a
plain plan.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import beside_pytorch
from wse_sim import api
from wse_sim.graph import KernelGraph, frozen
from wse_sim.hardware import load_wafer
from wse_sim.kernels.blocks.token_blocks import lanes_of
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_with_engine, inputs_over_rows
from wse_sim.whole.regions.norm import NormRegion
from wse_sim.whole.regions.shared_color import cable
from wse_sim.whole.run import program_of

SIDE = 16
MOVING = 0.72  # of the columns of a region, those that compute


def lowered(model: nn.Module, tokens: int, features: int) -> KernelGraph:
    """Return the graph of a model of tokens."""
    return api.lower(model, (torch.zeros(1, tokens, features),))


def plan_on(graph: KernelGraph, rows: int, cols: int) -> PipelinedPlan:
    """Return the plan with its one region on so many rows and columns of cores that compute; the host is no slower than
    a link.
    """
    pins = {"pin_rows": rows, "pin_cols": int(np.ceil(cols / MOVING))}
    kernels = [dataclasses.replace(one, attrs=frozen({**one.attrs, **pins})) for one in graph.kernels]
    size = dict.fromkeys(("rows", "cols", "program_rows", "program_cols", "io_channels_per_edge"), SIDE)
    wafer = load_wafer("wse2").derive(**size, io_bytes_per_s=1e13)
    graph = dataclasses.replace(graph, kernels=tuple(kernels))
    return expect(api.compile(graph, wafer=wafer, mode="pipelined", batch=8, replicas=1), PipelinedPlan)


def checked(model: nn.Module, tokens: int, features: int, cores: tuple[int, int], samples: int) -> NormRegion:
    """Return the values of random samples beside PyTorch, and the steady cycles beside the plain price or the link,
    within 5 %.
    """
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((1 + 0.3 * torch.randn_like(parameter)).half())
    graph = lowered(model, tokens, features)
    plan = plan_on(inputs_over_rows(graph), *cores)
    x = torch.randn(samples, tokens, features).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    # Six roundings to fp16 are between a token and its result.
    assert np.abs(run.outputs - wanted).max() < 6 * 2.0**-11 * np.abs(wanted).max()
    assert run.fabric.words_left == 0
    region: Any = program_of(plan, 1).regions[0]
    (found,) = compare_with_engine(plan, 4).regions
    assert found.busiest == pytest.approx(found.issued, abs=2)
    price = plan_on(graph, *cores).stages[0].forward_cycles if region.family == "norm" else found.issued
    link = tokens * features / 2  # one link brings two words of 16 bits a cycle
    if price == link:
        assert found.issued < link
    else:
        assert found.issued == pytest.approx(price, abs=1)  # a control word is not priced
    period = found.busiest + sum(found.waits)
    assert period == pytest.approx(max(price, link), rel=0.05)
    return region


def between_layers(
    tokens: int, features: int, side: int, middle: nn.Module | None = None
) -> tuple[PipelinedPlan, nn.Module]:
    """A norm, or `middle`, between two layers, which take and give several links, on a wafer of `side` rows and columns."""
    torch.manual_seed(0)
    middle = middle or nn.LayerNorm(features, eps=0.1)
    model = nn.Sequential(nn.Linear(features, features), middle, nn.Linear(features, features))
    model = model.half().float()
    size = dict.fromkeys(("rows", "cols", "program_rows", "program_cols", "io_channels_per_edge"), side)
    wafer = load_wafer("wse2").derive(**size, io_bytes_per_s=1e13)
    graph = inputs_over_rows(lowered(model, tokens, features))
    plan = api.compile(graph, wafer=wafer, mode="pipelined", batch=8, replicas=1)
    return expect(plan, PipelinedPlan), model


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("tokens", "features", "side", "lane", "groups"),
    [
        (40, 48, 40, 4, 2),  # 533 cycles where one link would take 960
        (13, 96, 40, 6, 1),  # six columns are one group
        (29, 36, 32, 3, 3),
        (17, 48, 32, 4, 3),  # more lanes than tokens
    ],
)
def test_lanes_of_cores_share_tokens_that_come_over_several_links(
    tokens: int, features: int, side: int, lane: int, groups: int
) -> None:
    """Values beside PyTorch; the steady cycles are those of the plan, which has the sums of a lane and 1 / lane of the words on a link."""
    plan, model = between_layers(tokens, features, side)
    x = torch.randn(3, tokens, features).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    assert np.abs(run.outputs - wanted).max() < 10 * 2.0**-11 * np.abs(wanted).max()
    assert run.fabric.words_left == 0
    region: Any = program_of(plan, 1).regions[1]
    assert (region.lane, len({col for _, col in region.takers()})) == (lane, groups)
    found = compare_with_engine(plan, 6)
    assert found.regions[1].busiest == pytest.approx(found.regions[1].issued, abs=2)
    assert found.cycles_per_sample == pytest.approx(plan.pace_cycles, rel=0.06)


@pytest.mark.parametrize(
    ("tokens", "features", "middle"), [(40, 48, nn.Softmax(dim=-1)), (13, 48, nn.LogSoftmax(dim=-1))]
)
def test_lanes_share_the_rows_of_a_softmax(tokens: int, features: int, middle: nn.Module) -> None:
    """A softmax has the links of a norm: values beside PyTorch, and the steady cycles of the plan."""
    plan, model = between_layers(tokens, features, 40, middle)
    x = 8 * torch.randn(3, tokens, features).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    with torch.no_grad():
        scores = float(model[0](x).abs().max())
    # A probability is the exponential of a score, which has 2^-11 of its size; ten more roundings.
    scale = 2.0**-11 * (10 + scores)
    assert np.abs(run.outputs - wanted).max() < scale * np.abs(wanted).max()
    assert run.fabric.words_left == 0
    region: Any = program_of(plan, 1).regions[1]
    assert region.lane > 1
    found = compare_with_engine(plan, 6)
    assert found.regions[1].busiest == pytest.approx(found.regions[1].issued, abs=2)
    assert found.cycles_per_sample == pytest.approx(plan.pace_cycles, rel=0.06)


def test_streams_wind_side_by_side() -> None:
    """Two streams through two groups of two columns of five rows: in on rows 1 and 0, and around each other on rows 3 and 4.

    Three lanes remain in each group, with the neighbours of the first swapped in the second.
    """
    outer, passing = cable(0, 0, 5, 2, 0, 2)
    assert outer == ((1, 0), (2, 0), (3, 0), (4, 0), (4, 1), (4, 2), (4, 3), (3, 3), (2, 3), (1, 3))
    assert passing == {(4, 0), (4, 1), (4, 2), (4, 3)}
    inner, passing = cable(0, 0, 5, 2, 1, 2)
    assert inner == ((0, 0), (0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (2, 2), (1, 2))
    assert passing == {(0, 0), (0, 1)}


def test_lanes_leave_room_for_their_streams_to_turn() -> None:
    """15 x 5 cores: two streams take a row in, and another to turn to a second pair of columns, so 2 x 13 lanes; three take two rows: 13."""
    assert [lanes_of(15, 5, lane) for lane in (1, 2, 3, 5, 6)] == [75, 26, 13, 11, 0]


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("tokens", "features", "cores", "rounds"),
    [
        (16, 64, (4, 1), (1, 4, ())),  # every core has a block of four
        (14, 16, (2, 3), (0, 3, (3, 3, 2, 2, 2, 2))),  # no divisor of 14 is near 6
        (29, 32, (2, 2), (0, 8, (8, 7, 7, 7))),
        (41, 64, (4, 2), (0, 6, (6, 5, 5, 5, 5, 5, 5, 5))),
        (39, 8, (5, 1), (0, 8, (8, 8, 8, 8, 7))),
        (43, 16, (5, 1), (1, 8, (1, 1, 1, 0, 0))),  # two cores leave the last round out
        (41, 16, (5, 1), (1, 8, (1, 0, 0, 0, 0))),
        (3, 8, (2, 3), (1, 1, ())),  # more cores than tokens
        (5, 8, (1, 1), (1, 5, ())),
    ],
)
def test_uneven_blocks_give_the_values_of_pytorch_at_the_price(
    tokens: int, features: int, cores: tuple[int, int], rounds: tuple[Any, ...]
) -> None:
    """Complete rounds, the size of their blocks, and the tokens of every core in the last round are computed by hand."""
    region = checked(nn.LayerNorm(features, eps=0.1), tokens, features, cores, samples=3)
    full, block, last = region.rounds
    assert full * block * len(region.senders) + sum(last) == tokens
    assert (full, last) == (rounds[0], rounds[2])
    assert not full or block == rounds[1]


def test_a_prime_number_of_tokens_on_six_rows() -> None:
    """197 tokens, as in a vision transformer, are 33 on the fullest of 6 cores, where divisors would leave one core at
    work.

    Blocks of 8: four rounds are 192 tokens, and five cores have one more.
    """
    region = checked(nn.RMSNorm(32, eps=0.1), 197, 32, (6, 1), samples=2)
    assert region.rounds == (4, 8, (1, 1, 1, 1, 1, 0))
    assert len(region.senders) == 6


@pytest.mark.slow
def test_a_softmax_lies_as_a_norm_does() -> None:
    """Its logarithm has one more matrix; both are on 4 cores for 13 tokens."""
    for model in (nn.Softmax(-1), nn.LogSoftmax(-1)):
        assert checked(model, 13, 16, (2, 2), samples=3).family == "softmax"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "features", "cores"),
    [(1024, 768, (3, 3)), (197, 768, (6, 1)), (128, 1024, (3, 3)), (96, 256, (4, 3))],
)
def test_norms_of_large_models_keep_their_price(tokens: int, features: int, cores: tuple[int, int]) -> None:
    """Regions of GPT-2, ViT and BERT take the price of the core or of the one link, whichever is longer."""
    checked(nn.LayerNorm(features), tokens, features, cores, samples=1)


def test_a_plan_laid_on_the_fabric_has_the_plain_price_of_norms() -> None:
    """Nothing has to be said of a norm but the words on its one link: the same region has the same price either way."""
    graph = lowered(nn.LayerNorm(48), 20, 48)
    plain, laid = plan_on(graph, 2, 2).stages[0], plan_on(inputs_over_rows(graph), 2, 2).stages[0]
    assert laid.forward_cycles == plain.forward_cycles
    assert laid.memory == plain.memory


def test_columns_wind() -> None:
    """The order is down the first column and up the next, so every cell is next to the one before it."""
    cells = cable(2, 5, 3, 1, 0, 3)[0][:8]
    assert cells == ((2, 5), (3, 5), (4, 5), (4, 6), (3, 6), (2, 6), (2, 7), (3, 7))
