"""Heads of models: the mean over tokens, or the first token, before the last layer."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import weights_of
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph, frozen
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import (
    check_graph,
    compare_training,
    compare_with_engine,
    host_rows,
    inputs_over_rows,
    run_whole,
    train_whole,
)
from wse_sim.whole.host_values import patches_of
from wse_sim.whole.parallel_links import link_attributes
from wse_sim.whole.regions.leading_rows import JoinedRows
from wse_sim.whole.values import check_values

T, INPUTS, E, CLASSES = 6, 16, 12, 10
ROUNDING = 2**-11  # of fp16
TAILS = {
    "mean": lambda x: x.mean(1),
    "first": lambda x: x[:, 0],
    "second": lambda x: x[:, 1],
    "last": lambda x: x[:, -1],
}


class Headed(nn.Module):
    """Tokens, then one row, then classes."""

    def __init__(self, tail: str, features: int = E) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(INPUTS, features), nn.LayerNorm(features)
        self.head, self.tail = nn.Linear(features, CLASSES), TAILS[tail]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, inputs) to (batch, classes)."""
        return self.head(self.tail(self.norm(self.layer(x))))


def laid(model: nn.Module, training: bool = False) -> KernelGraph:
    """Return its graph for the fabric."""
    how: dict[str, Any] = {"training": True, "optimizer": "sgd"} if training else {}
    return inputs_over_rows(api.lower(model, (torch.zeros(1, T, INPUTS),), **how))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("tail", ["mean", "first"])
def test_one_row_of_tokens_gives_the_values_of_pytorch(tail: str) -> None:
    """Three samples are in flight; a value of about one is rounded five times, and the period is that of the plan."""
    torch.manual_seed(0)
    model = Headed(tail)
    plan = plan_of(laid(model), 32)
    x = torch.randn(3, T, INPUTS)
    weights = weights_of(model)
    with torch.no_grad():
        wanted = model(x).numpy()
    outputs = run_whole(plan, weights, x.numpy()).outputs
    assert outputs.shape == wanted.shape == (3, CLASSES)
    assert np.abs(outputs - wanted).max() <= 5 * ROUNDING * np.abs(wanted).max()
    assert abs(compare_with_engine(plan).difference) < 0.05


@pytest.mark.thinned(1)
@pytest.mark.parametrize("tail", ["mean", "first"])
def test_one_row_of_tokens_trains(tail: str) -> None:
    """There is one label per sample; compared with a reference that rounds alike, every gradient is within three
    roundings.
    """
    torch.manual_seed(0)
    model = Headed(tail)
    plan = plan_of(laid(model, training=True), 48, phase="training", batch=4, optimizer="sgd")
    weights = weights_of(model)
    x, labels = torch.randn(4, T, INPUTS).half().float().numpy(), np.arange(4)
    checked = check_values(model, plan, x, labels)
    for kind in checked.kinds:
        assert checked.largest(kind)[1] < 3 * ROUNDING, kind
    with pytest.raises(ModelError, match="24 labels for 4 output rows; give one for every row"):
        train_whole(plan, weights, x, np.zeros(4 * T, int), rate=0.1)


def test_notes_say_how_tokens_become_one_row() -> None:
    """A sentence each."""
    assert laid(Headed("mean")).notes == (f"'mean' pools the {T} tokens of a sample",)
    assert laid(Headed("first")).notes == (
        f"'head' reads the first token alone, which a core takes out of {T} as they pass by",
    )


@pytest.mark.parametrize("tail", ["second", "last"])
def test_other_tokens_are_refused(tail: str) -> None:
    """It is not taken for the first one."""
    with pytest.raises(ModelError, match="in another order than it is stored, or only a part of it"):
        check_graph(laid(Headed(tail)))


class Across(nn.Module):
    """A mean over features, with as many features as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens)."""
        return self.layer(x).mean(2)


def test_a_mean_over_features_is_none_over_tokens() -> None:
    """If their numbers are equal, shapes do not show it, and the model is refused."""
    with pytest.raises(ModelError, match="kernel 'mean' is of family reduce"):
        check_graph(laid(Across()))


class Patches(nn.Module):
    """Patches of an image in rows, a class token before them, positions, and the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.first = nn.Linear(2 * 4 * 4, E), nn.Parameter(torch.randn(1, 1, E))
        self.places = nn.Parameter(torch.randn(1, 5, E) / 4)
        self.norm, self.head = nn.LayerNorm(E), nn.Linear(E, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(batch, 2, 8, 8) to (batch, classes)."""
        rows = (
            image.unflatten(2, (2, 4)).unflatten(4, (2, 4)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        )
        x = self.patch(rows)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(x).mean(1))


def test_patches_and_a_class_token_give_the_values_of_pytorch() -> None:
    """The host rearranges the image; all five rows count in the mean."""
    torch.manual_seed(0)
    model = Patches().eval()
    image = torch.randn(3, 2, 8, 8)
    graph = inputs_over_rows(api.lower(model, (image[:1],)))
    assert graph.notes[0] == (
        "the host rearranges 'image' as 'patch' takes it, and sends 4 rows of 32 to the fabric"
    )
    rows = host_rows(graph, model, (image,))
    assert rows.shape == (3, 4, 32)
    weights = weights_of(model)
    plan = plan_of(graph, 32)
    with torch.no_grad():
        wanted = model(image).numpy()
    outputs = run_whole(plan, weights, rows).outputs
    assert np.abs(outputs - wanted).max() <= 5 * ROUNDING * np.abs(wanted).max()
    compared = compare_with_engine(plan)
    assert abs(compared.difference) < 0.05
    joined = next(one for one in compared.regions if one.name == "cat")
    assert joined.busiest == joined.engine == 5 * E / 2  # a word a cycle


class Behind(Patches):
    """The same row after the patches."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(batch, 2, 8, 8) to (batch, 5, features)."""
        x = self.patch(image.flatten(1).unflatten(1, (4, 32)))
        return torch.cat([x, self.first.expand(len(x), -1, -1)], 1)


def test_a_row_behind_the_tokens_is_refused() -> None:
    """It is not taken for one in front."""
    with pytest.raises(ModelError, match="kernel 'cat' moves elements"):
        check_graph(inputs_over_rows(api.lower(Behind(), (torch.zeros(1, 2, 8, 8),))))


class Convolved(Patches):
    """Patches by a convolution, two rows before them, and the first row of the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, E, 4, 4)  # type: ignore[assignment]
        self.second = nn.Parameter(torch.randn(1, 1, E))
        self.places = nn.Parameter(torch.randn(1, 6, E) / 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """(batch, 2, 8, 8) to (batch, classes)."""
        x = self.patch(image).flatten(2).transpose(1, 2)
        front = [one.expand(len(x), -1, -1) for one in (self.first, self.second)]
        return self.head(self.norm(torch.cat([*front, x], 1) + self.places)[:, 0])


def convolved(least: int = 0) -> tuple[nn.Module, PipelinedPlan]:
    """Return such a model, and its plan with at least `least` bundles of the rows, if given."""
    torch.manual_seed(0)
    model = Convolved().eval()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 8, 8),)))
    if least:
        links = link_attributes(graph, {}, {"cat.out": least})
        kernels = tuple(
            dataclasses.replace(one, attrs=frozen({**one.attrs, **links.get(one.name, {})}))
            for one in graph.kernels
        )
        graph = dataclasses.replace(graph, kernels=kernels)
    return model, plan_of(graph, 32)


def test_a_convolution_of_patches_is_a_dense_layer() -> None:
    """Its 32 inputs are the elements of a patch; rows of two parameters come first, and the head reads a row of 3 words of 4."""
    model, plan = convolved()
    assert {kernel.family for kernel in plan.graph.kernels} == {"gemm", "layout", "elementwise", "norm"}
    first = plan.graph.kernel("patch")
    assert (first.dims["m"], first.dims["k"]) == (4, 2 * 4 * 4)
    images = np.random.default_rng(0).standard_normal((4, 2, 8, 8)).astype(np.float16).astype(np.float32)
    checked = check_values(model, plan, images)
    assert checked.largest("outputs")[0] <= 5 * ROUNDING
    assert np.array_equal(
        patches_of(plan.graph, images),
        nn.functional.unfold(torch.tensor(images), 4, stride=4).transpose(1, 2).numpy(),
    )
    assert abs(compare_with_engine(plan).difference) < 0.05


def test_patches_and_rows_before_them_train() -> None:
    """Two steps; gradients of filters, of two rows and of positions as PyTorch gives them, in their shapes."""
    torch.manual_seed(0)
    model = Convolved().eval()
    graph = api.lower(model, (torch.zeros(1, 2, 8, 8),), training=True, optimizer="sgd")
    plan = plan_of(inputs_over_rows(graph), 48, phase="training", batch=6, optimizer="sgd")
    images = np.random.default_rng(0).standard_normal((6, 2, 8, 8)).astype(np.float16).astype(np.float32)
    checked = check_values(model, plan, images, np.arange(6), steps=2)
    names = {one.name for one in checked.values if one.kind == "gradient"}
    assert {"patch.weight", "patch.bias", "first", "second", "places"} <= names
    for kind in ("outputs", "gradient", "update"):
        assert checked.largest(kind)[0] <= 6 * ROUNDING, kind
        assert checked.largest(kind)[1] <= 3 * ROUNDING, kind
    assert abs(compare_training(plan).difference) < 0.05


@pytest.mark.slow
def test_rows_before_the_tokens_in_several_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six words of a row in three bundles: two in each, so a core sends six rows of two words."""
    monkeypatch.setattr(JoinedRows, "splits", lambda region, tensor: (3,))
    model, plan = convolved(3)
    assert next(one for one in plan.stages if one.name == "cat").cycles_per_sample == 6 * 2
    images = np.random.default_rng(0).standard_normal((4, 2, 8, 8)).astype(np.float16).astype(np.float32)
    assert check_values(model, plan, images).largest("outputs")[0] <= 5 * ROUNDING
    joined = next(one for one in compare_with_engine(plan).regions if one.name == "cat")
    assert joined.busiest == joined.engine == 6 * 2


class Overlapping(Convolved):
    """Patches that overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, E, 4, 3, 1)  # type: ignore[assignment]
        self.places = nn.Parameter(torch.zeros(1, 11, E))


def test_patches_that_overlap_are_refused() -> None:
    """The host would have to send their elements twice."""
    with pytest.raises(ModelError, match="kernel 'cat' moves elements"):
        check_graph(inputs_over_rows(api.lower(Overlapping(), (torch.zeros(1, 2, 8, 8),))))
