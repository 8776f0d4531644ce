"""Images times one number per channel (squeeze and excitation), and means of large images, on the whole fabric."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.whole import check_graph, compare_with_engine, inputs_over_rows
from wse_sim.whole.lower import priced_graph
from wse_sim.whole.regions.pointwise_place import shared_operands
from wse_sim.whole.values import check_values

Factors = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""The result, from the image, one number per channel, and an image that comes early."""


class Squeezed(nn.Module):
    """A convolution, whose channels are weighed by functions of their means."""

    def __init__(self, function: Factors, channels: int = 8, between: int = 4) -> None:
        super().__init__()
        self.first, self.image = nn.Conv2d(4, channels, 1), nn.Conv2d(channels, channels, 3, padding=1)
        self.down, self.up = nn.Conv2d(channels, between, 1), nn.Conv2d(between, channels, 1)
        self.last, self.function = nn.Conv2d(channels, 6, 1), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 4, lines, columns)."""
        early = self.first(x)
        y = F.relu(self.image(early))
        factors = torch.sigmoid(self.up(F.relu(self.down(y.mean((2, 3), keepdim=True)))))
        return self.last(self.function(y, factors, early))


CASES: dict[str, Factors] = {
    "factors": lambda y, g, _: y * g,
    "factors first": lambda y, g, _: g * y,
    "a sum behind": lambda y, g, early: F.relu(y * g + early),
    "a sum before": lambda y, g, early: (y + early) * g,
    "numbers behind": lambda y, g, _: (y * g) * 0.5 + 1,
    "numbers of sums": lambda y, g, _: y + g,
}


def planned(model: nn.Module, side: int, channels: int = 4, cores: int = 48):  # type: ignore[no-untyped-def]
    """Return the plan of an image model with fp16 parameters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    return plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, channels, side, side),))), cores)


def largest_error(model: nn.Module, plan, shape: tuple[int, ...]) -> float:  # type: ignore[no-untyped-def]
    """Return the error of the outputs of samples in flight, beside a PyTorch that rounds alike."""
    checked = check_values(model, plan, torch.randn(shape).half().float().numpy())
    return checked.largest("outputs")[1]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_pytorch(name: str) -> None:
    torch.manual_seed(1)
    model = Squeezed(CASES[name])
    plan = planned(model, 6)
    assert largest_error(model, plan, (5, 4, 6, 6)) < 0.004


@pytest.mark.slow
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    words=st.integers(2, 12),
    between=st.integers(1, 4),
    side=st.integers(2, 9),
    name=st.sampled_from(list(CASES)[:3]),
)
def test_random_sizes(words: int, between: int, side: int, name: str) -> None:
    """Any number of words of a pixel and of pixels: bundles and cores have unequal parts."""
    torch.manual_seed(words + side)
    model = Squeezed(CASES[name], 2 * words, 2 * between)
    assert largest_error(model, planned(model, side), (4, 4, side, side)) < 0.004


@pytest.mark.parametrize(("channels", "side"), [(8, 8), (24, 6), (24, 8)])
def test_the_price_is_the_time_of_the_program(channels: int, side: int) -> None:
    """With 24 channels the stored image sets the pace: 1.5 cycles for each of its words, 24 x 8 x 8 / 2 of them."""
    compared = compare_with_engine(planned(Squeezed(CASES["factors"], channels), side), 8)
    assert abs(compared.difference) < 0.05


def test_cores_hold_whole_pixels_and_the_numbers_once() -> None:
    """An image of 8 channels: each core gets a multiple of 8 elements, and 4 words of factors."""
    plan = planned(Squeezed(CASES["factors"]), 6)
    kernel = next(one for one in plan.graph.kernels if shared_operands(plan.graph, one))
    assert kernel.attrs["shared_inputs"] == 1
    assert kernel.family == "generated"


def test_a_sum_behind_the_product_is_a_kernel() -> None:
    """The image waits for its own mean, so nothing else waits with it."""
    graph = priced_graph(api.lower(Squeezed(CASES["a sum behind"]), (torch.zeros(1, 4, 6, 6),)))
    product, rest = (one for one in graph.kernels if one.family == "generated")
    assert (product.attrs["ops"], rest.attrs["ops"]) == ("mul", "add,relu")
    assert rest.inputs[0] == product.outputs[0]


def test_quotients_of_one_number_per_channel_are_refused() -> None:
    """A quotient is a product with a reciprocal, which would replace the numbers that the next pixel needs."""
    model = Squeezed(lambda y, g, _: y / g)
    with pytest.raises(ModelError, match="of shape"):
        check_graph(inputs_over_rows(api.lower(model, (torch.zeros(1, 4, 6, 6),))))


class Mean(nn.Module):
    """The mean of an image of 4 channels, by its axes."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.conv, self.axes, self.out = nn.Conv2d(4, 4, 1), axes, nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 4, lines, columns)."""
        return self.out(self.conv(x).mean(self.axes))


def test_the_axes_of_a_mean_decide_and_not_the_sizes() -> None:
    """An image of 4 channels, 4 lines and 4 columns: every mean over two of the axes has 4 numbers."""
    torch.manual_seed(2)
    model = Mean((2, 3))
    assert largest_error(model, planned(model, 4, cores=24), (3, 4, 4, 4)) < 0.004
    other = priced_graph(api.lower(Mean((1, 2)), (torch.zeros(1, 4, 4, 4),)))
    assert any(one.family == "reduce" for one in other.kernels)


def test_a_large_mean_is_one_of_means() -> None:
    """72 x 72 pixels: windows of 8 x 8, then the mean of 9 x 9."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 4))
    plan = planned(model, 72)
    pooled = [one for one in plan.graph.kernels if one.family == "pool2d"]
    assert [(one.dims["r"], one.dims["out_h"]) for one in pooled] == [(8, 9), (9, 1)]
    assert largest_error(model, plan, (2, 4, 72, 72)) < 0.004


def test_a_large_mean_of_odd_sides_stays_one() -> None:
    """No number but 1 divides 67."""
    model = nn.Sequential(nn.Conv2d(4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 4))
    graph = priced_graph(api.lower(model, (torch.zeros(1, 4, 67, 67),)))
    assert sum(one.family == "pool2d" for one in graph.kernels) == 1
