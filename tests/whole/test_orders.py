"""A graph omits views, which cost nothing: a kernel that reads elements in another order is recognised and refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.whole import check_graph, host_rows, inputs_over_rows


class Square(nn.Module):
    """As many tokens as features, so that shapes do not distinguish a turned tensor from a stored one."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.norm, self.function = nn.Linear(8, 8), nn.LayerNorm(8), function
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 8, 8)."""
        return self.function(self, x)


def lowered(function: Callable[..., torch.Tensor]) -> object:
    """Return the graph of such a model."""
    return inputs_over_rows(api.lower(Square(function), (torch.zeros(1, 8, 8),)))


def one_head(m: Square, x: torch.Tensor) -> torch.Tensor:
    """Return attention of tensors of three axes: samples, tokens, features."""
    x = m.norm(x)
    return F.scaled_dot_product_attention(m.layer(x), x, x @ m.weight.t())


TURNED = {
    "a turned weight": (lambda m, x: F.linear(m.norm(x), m.weight.t()), "weight"),
    "a sum with another order of letters": (
        lambda m, x: torch.einsum("btk,kn->btn", m.norm(x), m.weight),
        "norm.out",
    ),
    "turned operand": (lambda m, x: m.layer(m.norm(x).transpose(1, 2)), "norm.out"),
    "turned residual": (lambda m, x: m.norm(x).transpose(1, 2) + m.layer(m.norm(x)), "norm.out"),
    "one token for all": (lambda m, x: m.layer(m.norm(x)[:, :1].expand(1, 8, 8)), "norm.out"),
    "turned result": (lambda m, x: m.layer(m.norm(x)).transpose(1, 2), "layer.out"),
    "heads of attention not joined": (
        lambda m, x: m.layer(F.scaled_dot_product_attention(*[m.layer(x).view(1, 8, 2, 4).transpose(1, 2)] * 3).reshape(1, 8, 8)),
        "attention.out",
    ),
    "turned result of one head": (lambda m, x: m.layer(one_head(m, x).transpose(1, 2)), "attention.out"),
}  # fmt: skip
STRAIGHT = {
    "a weight read turned": lambda m, x: m.norm(x) @ m.weight.t(),
    "a sum as a layer": lambda m, x: torch.einsum("btk,nk->btn", m.norm(x), m.weight),
    "turned and back": lambda m, x: m.layer(m.norm(x).transpose(1, 2).transpose(1, 2)),
    "reshaped": lambda m, x: m.layer(m.norm(x).view(8, 8)).unsqueeze(0),
    "all of a slice": lambda m, x: m.layer(m.norm(x)[:, :8]),
    "result of one head": lambda m, x: m.layer(one_head(m, x)),
}


@pytest.mark.parametrize("name", TURNED)
def test_another_order_is_named_and_refused(name: str) -> None:
    """With square tensors the fabric would compute different values, and sizes do not show it."""
    function, tensor = TURNED[name]
    graph = lowered(function)
    assert tensor in [one for kernel in graph.kernels for one in kernel.access.reordered]
    if "attention" not in tensor:  # which is refused before for its operands
        with pytest.raises(ModelError, match=f"reads '{tensor}' in another order than it is stored"):
            check_graph(graph)


def test_a_turned_input_is_turned_by_the_host() -> None:
    """The input has one reader, so the host sends it in that order. Outputs are PyTorch's."""
    model, x = Square(lambda m, x: m.layer(x.mT)), torch.randn(3, 8, 8)
    graph = inputs_over_rows(api.lower(model, (x,)))
    check_graph(graph)
    assert np.array_equal(host_rows(graph, model, (x,)), x.mT.numpy())
    assert any("the host rearranges 'x'" in note for note in graph.notes)


def test_a_weight_as_inputs_and_outputs_is_turned() -> None:
    """In the square case only the views show the order. The fabric stores it as outputs and inputs."""
    graph = lowered(lambda m, x: m.norm(x) @ m.weight)
    check_graph(graph)
    assert ("weight.T",) in [kernel.parameters for kernel in graph.kernels]


@pytest.mark.parametrize("name", STRAIGHT)
def test_views_that_keep_the_order_are_free(name: str) -> None:
    """The numbers of elements decide, not the names of views."""
    graph = lowered(STRAIGHT[name])
    assert not any(kernel.access.reordered for kernel in graph.kernels)
    check_graph(graph)


class Wide(nn.Module):
    """More than 2^18 elements: a convolution of patches of one pixel, a class token, and one token for the last layer."""

    def __init__(self, token: int, pixels: bool = True) -> None:
        super().__init__()
        self.patch, self.first = nn.Conv2d(2, 1280, 1), nn.Parameter(torch.zeros(1, 1, 1280))
        self.norm, self.head, self.token, self.pixels = nn.LayerNorm(1280), nn.Linear(1280, 2), token, pixels

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(batch, 2, 16, 16) to (batch, 2)."""
        x = self.patch(image)
        x = x.flatten(2).transpose(1, 2) if self.pixels else x.transpose(2, 3).flatten(2).transpose(1, 2)
        return self.head(self.norm(torch.cat([self.first, x], 1))[:, self.token])


def test_views_of_large_tensors_are_told_by_their_strides() -> None:
    """Pixels in order and the first token are recognised; columns before lines, and another token, are not."""
    image = (torch.zeros(1, 2, 16, 16),)
    check_graph(inputs_over_rows(api.lower(Wide(0), image)))
    with pytest.raises(ModelError, match=r"kernel 'head' reads 'norm\.out' in another order"):
        check_graph(inputs_over_rows(api.lower(Wide(3), image)))
    with pytest.raises(ModelError, match="kernel 'cat' moves elements"):
        check_graph(inputs_over_rows(api.lower(Wide(0, pixels=False), image)))
