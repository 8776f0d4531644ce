"""Factors of queries, and batch norms outside convolutions: the values are PyTorch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import weights_of
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.whole import check_graph, inputs_over_rows, run_whole

T, E, HEADS = 4, 16, 2


class Scaled(nn.Module):
    """Attention whose factor multiplies the queries, in one of four places."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.q, self.k, self.v, self.out = (nn.Linear(E, E) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        factor = 3.0 / math.sqrt(E)
        q = self.q(x) * factor if self.place == "queries" else self.q(x)
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (q, self.k(x), self.v(x)))
        q = q / (1 / factor) if self.place == "heads" else q
        k = k * factor if self.place == "keys" else k
        if self.place == "own":
            mixed = nn.functional.scaled_dot_product_attention(q * 0.5, k, v)
        elif self.place == "queries":
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5)
        else:
            mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("place", ["queries", "heads", "keys", "own"])
def test_a_factor_of_the_queries_is_one_of_the_scores(place: str) -> None:
    """The model is refused or right: five kernels round to fp16 a few times. Without the factor the outputs differ by
    more.
    """
    torch.manual_seed(0)
    model = Scaled(place)
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, T, E),)))
    if place in ("own", "keys"):  # the product gives its results in another order than it makes them
        with pytest.raises(ModelError):
            check_graph(graph)
        return
    attention = next(kernel for kernel in graph if kernel.family == "attention")
    expected = {"queries": 1.5 / math.sqrt(E)}.get(place, 3 / math.sqrt(E))
    assert attention.attrs["scale"] == pytest.approx(expected)
    x = torch.randn(2, T, E).half().float()
    weights = weights_of(model)
    found = run_whole(plan_of(graph, 40), weights, x.numpy()).outputs
    with torch.no_grad():
        wanted = model(x).numpy()
    assert np.abs(found - wanted.reshape(found.shape)).max() < 10 * 2**-11 * np.abs(wanted).max()


class Normed(nn.Module):
    """A batch norm before a convolution, and one after a convolution with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(4), nn.BatchNorm2d(6, eps=0.1)
        self.filters, self.layer = nn.Conv2d(4, 6, 3), nn.Linear(6 * 16, 8)
        self.last = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (batch, 4, 6, 6) to (batch, 8)."""
        x = torch.relu(self.second(self.filters(torch.relu(self.first(x)))))
        return self.last(self.layer(x.flatten(1)))


def test_a_batch_norm_of_its_own_multiplies_and_adds() -> None:
    """The norms are of images and of rows, with statistics that are far from zero and one."""
    torch.manual_seed(0)
    model = Normed().eval()
    for norm in (model.first, model.second, model.last):
        for values, low, high in (
            (norm.weight, 0.5, 2), (norm.bias, -1, 1), (norm.running_mean, -1, 1), (norm.running_var, 0.2, 3),
        ):  # fmt: skip
            nn.init.uniform_(values, low, high)
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 4, 6, 6),)))
    assert sum("with factors from its running statistics" in note for note in graph.notes) == 3
    x = torch.randn(2, 4, 6, 6).half().float()
    weights = weights_of(model)
    plan = plan_of(graph, 32)
    found = run_whole(plan, weights, x.numpy()).outputs
    with torch.no_grad():
        wanted = model(x).numpy()
    assert np.abs(found - wanted).max() < 16 * 2**-11 * np.abs(wanted).max()
    del weights["last.running_var"]
    with pytest.raises(ModelError, match=r"weights 'last.scale.* are missing"):
        run_whole(plan, weights, x.numpy())
