"""Functions behind convolutions, means of images, and samples of several: what models of public collections are made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling
from wse_sim.kernels.families.rotary.family import FAMILY as ROTARY
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_with_engine, inputs_over_rows
from wse_sim.whole.prices import composed_graph
from wse_sim.whole.values import check_values


class Mean(nn.Module):
    """The mean of every channel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, lines, columns) to (batch, channels)."""
        return x.mean((2, 3))


class ByHand(nn.Module):
    """Hardswish as an author may write it, which reads its input twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the function to every element."""
        return x * torch.clamp(x + 3, 0, 6) / 6


def between(*layers: nn.Module) -> nn.Module:
    """Return layers between two convolutions of an image, with weights that fp16 stores exactly."""
    torch.manual_seed(0)
    ends = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)
    return nn.Sequential(ends[0], *layers, ends[1]).half().float().eval()


@pytest.mark.parametrize(
    ("layers", "stages", "least_ratio"),
    [
        ((nn.SiLU(),), 3, 0.99),
        ((nn.GELU(),), 3, 0.99),
        ((nn.Sigmoid(),), 3, 0.99),
        ((nn.Hardswish(),), 3, 0.9),
        ((ByHand(),), 3, 0.9),
        # The plan has the wait of the convolution's last row, which the words in routers shorten.
        ((nn.LeakyReLU(0.125),), 3, 0.8),
        ((nn.Hardsigmoid(),), 3, 0.8),
        ((nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.SiLU()), 5, 0.95),
    ],
)
def test_a_function_behind_a_convolution_is_apart(
    layers: tuple[nn.Module, ...], stages: int, least_ratio: float
) -> None:
    """Values are PyTorch's, and the fabric needs no more cycles than the plan."""
    model = between(*layers)
    plan = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, 3, 8, 8),))), 40)
    assert len(plan.stages) == stages
    x = torch.randn(4, 3, 8, 8).half().float().numpy()
    checked = check_values(model, plan, x)
    assert checked.largest("outputs")[0] < 0.002
    found = compare_with_engine(plan, 6)
    assert least_ratio <= found.fabric_period / plan.pace_cycles <= 1.02
    for region in found.regions:  # no instruction reads two operands from one bank
        assert region.busiest == pytest.approx(region.issued, abs=1.0), region


def test_the_mean_of_an_image_is_a_pooling() -> None:
    """6 channels of 8 x 8 pixels: as an average of windows of 8 x 8, which adaptive pooling gives, in values and in cycles."""
    head = nn.Linear(6, 4)
    mean = nn.Sequential(between(nn.ReLU()), Mean(), head)
    pool = nn.Sequential(between(nn.ReLU()), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    plans = [
        plan_of(inputs_over_rows(api.lower(one.half().float(), (torch.zeros(1, 3, 8, 8),))), 40)
        for one in (mean, pool)
    ]
    assert plans[0].pace_cycles == plans[1].pace_cycles
    x = torch.randn(4, 3, 8, 8).half().float().numpy()
    assert check_values(mean, plans[0], x).largest("outputs")[0] < 0.002


class OfTokens(nn.Module):
    """A class token that is repeated for every sample, by a view or a copy, and attention whose result is read sample by sample."""

    def __init__(self, is_copied: bool) -> None:
        super().__init__()
        self.is_copied = is_copied
        self.token, self.patches = nn.Parameter(torch.randn(1, 1, 16)), nn.Conv2d(3, 16, 4, 4)
        self.attention, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 3, 16, 16) to (batch, 4)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        first = self.token.repeat(len(x), 1, 1) if self.is_copied else self.token.expand(len(x), -1, -1)
        tokens = torch.cat((first, tokens), 1)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.head(tokens[:, 0])


@pytest.mark.parametrize("is_copied", [False, True])
def test_an_example_of_several_samples_gives_the_plan_of_one(is_copied: bool) -> None:
    """With one sample the token is not repeated, and tokens of all samples are those of one."""
    torch.manual_seed(0)
    model = OfTokens(is_copied).half().float().eval()
    plans = []
    for samples in (1, 2, 3):
        graph = api.lower(model, (torch.zeros(samples, 3, 16, 16),))
        assert not any("token" in one.access.reordered for one in graph.kernels)
        assert not composed_graph(graph).plain
        plan = api.compile(graph, "wse2", mode="pipelined", batch=6, replicas=1)
        assert isinstance(plan, PipelinedPlan)
        plans.append(plan)
    assert len({plan.pace_cycles for plan in plans}) == 1
    assert all("from the programs that the fabric runs" in plan.notes[-1] for plan in plans)


def test_a_convolution_of_a_constant_keeps_its_plain_price() -> None:
    """Nothing streams into it, so it has no program, and the rest of the model keeps its own."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shape = nn.Buffer(torch.randn(1, 4, 8, 8))
            self.first, self.other = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) + self.other(torch.flip(self.shape, (0,)))

    graph = api.lower(Constant().eval(), (torch.zeros(1, 4, 8, 8),))
    constant = [one.name for one in graph.kernels if one.family == "conv2d" and not one.inputs]
    assert constant
    assert set(constant) <= set(composed_graph(graph).plain)


def test_a_chain_that_trains_or_divides_reads_a_tensor_once() -> None:
    """Its derivative would have two terms; a quotient is computed in the memory of the divisor."""
    model = between(ByHand())
    training = api.lower(model, (torch.zeros(1, 3, 8, 8),), training=True, optimizer="sgd")
    assert any("add" in name for name in composed_graph(training).plain)
    assert np.isfinite(api.compile(training, "wse2", mode="pipelined", batch=4, replicas=1).pace_cycles)


class OfAllSamples(nn.Module):
    """A layer divided by the norm of all its results, which is one number for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 8) to (batch, 4)."""
        y = self.first(x)
        return self.last(y) / (y.norm() + 1)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_one_number_for_all_samples_has_no_program(samples: int) -> None:
    """Samples pass the fabric one by one; the plan has plain prices and says so."""
    graph = api.lower(OfAllSamples(), (torch.zeros(samples, 8),))
    plan = api.compile(graph, "wse2", mode="pipelined", batch=6, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    assert "prices: plain" in plan.notes[-1]
    assert composed_graph(graph).plain


def test_a_rotation_of_one_feature_turns_nothing() -> None:
    """A pair of features turns, so one is passed on; such a kernel has a price in every plan."""
    work = ROTARY.work({"rows": 4, "cols": 1}, {})
    assert (work.turned, work.unit) == (0, 1)
    cost = ROTARY.cost({"elements": 64, "cols": 1}, Tiling(4, 4, "stationary"), load_wafer("wse2"))
    assert 0 < cost.total < 1000
