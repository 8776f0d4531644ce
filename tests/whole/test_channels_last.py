"""Images whose channels a model moves behind the pixels and back: blocks of ConvNeXt on the whole fabric."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.whole.test_channel_factors import largest_error, planned
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.whole import check_graph, inputs_over_rows


class ImageNorm(nn.LayerNorm):
    """A layer norm over the channels of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, lines, columns)."""
        y = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return y.permute(0, 3, 1, 2)


class Block(nn.Module):
    """Filters of one channel, then a norm and dense layers on pixels; `scaled_as` tells what the factors of channels multiply."""

    def __init__(self, channels: int, scaled_as: str) -> None:
        super().__init__()
        self.filters = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm, self.wide = nn.LayerNorm(channels), nn.Linear(channels, 2 * channels)
        self.narrow, self.scaled_as = nn.Linear(2 * channels, channels), scaled_as
        shape = (channels, 1, 1) if scaled_as == "image" else (channels,)
        self.factors = nn.Parameter(torch.linspace(0.25, 1, channels).reshape(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, lines, columns)."""
        y = self.narrow(F.gelu(self.wide(self.norm(self.filters(x).permute(0, 2, 3, 1)))))
        if self.scaled_as == "image":
            return x + self.factors * y.permute(0, 3, 1, 2)
        return x + (self.factors * y).permute(0, 3, 1, 2)


def network(channels: int, scaled_as: str) -> nn.Module:
    """Return a small ConvNeXt of two stages, whose first layer takes patches of the image."""
    return nn.Sequential(
        *(nn.Conv2d(4, channels, 2, 2), ImageNorm(channels), Block(channels, scaled_as)),
        *(ImageNorm(channels), nn.Conv2d(channels, 2 * channels, 2, 2), Block(2 * channels, scaled_as)),
        *(nn.AdaptiveAvgPool2d(1), ImageNorm(2 * channels), nn.Flatten(), nn.Linear(2 * channels, 6)),
    )


def graph_of(model: nn.Module, *shape: int, **how: Any) -> KernelGraph:
    """Return the graph of a model of images, as it is on the fabric."""
    return inputs_over_rows(api.lower(model, (torch.zeros(shape),), **how))


@pytest.mark.parametrize("scaled_as", ["image", "pixels"])
def test_outputs_equal_those_of_pytorch(scaled_as: str) -> None:
    """8 channels and 8 lines and columns: only the views tell one from the other."""
    torch.manual_seed(1)
    model = network(8, scaled_as)
    plan = planned(model, 16)
    assert not any(kernel.access.reordered for kernel in plan.graph.kernels)
    assert largest_error(model, plan, (3, 4, 16, 16)) < 0.005


@pytest.mark.slow
@settings(max_examples=4, deadline=None, derandomize=True)
@given(words=st.integers(2, 7), half=st.integers(2, 4), scaled_as=st.sampled_from(["image", "pixels"]))
def test_random_sizes(words: int, half: int, scaled_as: str) -> None:
    torch.manual_seed(words)
    model = network(2 * words, scaled_as)
    assert largest_error(model, planned(model, 4 * half), (3, 4, 4 * half, 4 * half)) < 0.006


def test_dense_layers_on_pixels_are_convolutions_of_one_pixel() -> None:
    """Every tensor between convolutions is an image; what follows the patches of the host is rows of one token each."""
    graph = graph_of(network(8, "pixels"), 1, 4, 16, 16)
    wide = next(one for one in graph.kernels if one.name.endswith("2.wide"))
    assert (wide.family, wide.dims["r"], wide.dims["c"], wide.dims["k"]) == ("conv2d", 1, 8, 16)
    factors = [
        graph.tensors[name].shape for one in graph.kernels for name in one.parameters if "factors" in name
    ]
    assert factors == [(8, 1, 1), (16, 1, 1)]


class Turned(nn.Module):
    """A dense layer on an image whose lines and columns change places, as the channels move."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Conv2d(4, 8, 1), nn.Linear(8, 8), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 4, lines, columns)."""
        return self.last(self.layer(self.first(x).permute(0, 3, 2, 1)).permute(0, 3, 1, 2))


def test_other_orders_are_refused() -> None:
    """8 lines and 8 columns: the sizes do not tell that they change places."""
    with pytest.raises(ModelError, match="in another order"):
        check_graph(graph_of(Turned(), 1, 4, 8, 8))


class OverColumns(nn.Module):
    """A norm over the columns of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(4, 8, 1), nn.LayerNorm(8), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 4, lines, columns)."""
        return self.last(self.norm(self.first(x)))


def test_a_norm_over_columns_is_refused() -> None:
    """8 channels and 8 columns: rows of the norm are no pixels."""
    with pytest.raises(ModelError, match="rows per sample"):
        check_graph(graph_of(OverColumns(), 1, 4, 8, 8))
