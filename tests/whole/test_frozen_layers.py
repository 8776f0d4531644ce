"""Layers before the first parameter that trains: forward passes alone, on the regions of inference, with weights that stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.whole.plans import weights_of
from tests.whole.test_regions import Block
from tests.whole.test_trained import training_plan
from tests.whole.test_values import BOUND, data, in_fp16
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_training, inputs_over_rows, train_whole
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.trained.coverage import check_trained
from wse_sim.whole.values import check_values


class Behind(nn.Module):
    """A skip around a frozen layer ends behind a layer that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest, self.own, self.head = (nn.Linear(8, n) for n in (8, 8, 8, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.first(x)
        return self.head(x + torch.relu(self.own(torch.relu(self.rest(x)))))


def images() -> nn.Module:
    """Convolutions, maxima between, and a layer."""
    first = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU6(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str, set[str]]] = {
    # model, a sample, prefixes of frozen parameters, frozen kernels
    "a block": (lambda: nn.Sequential(Block(8, 2), nn.Linear(8, 6)), (4, 8), "0.", {"0.heads.attention", "0.first", "0.second"}),
    "convolutions": (images, (3, 8, 8), "0. 3.", {"0", "0.numbers", "2", "3"}),
    "a skip": (Behind, (3, 8), "first. rest.", {"first", "rest"}),
}  # fmt: skip


def made(name: str, batch: int = 4) -> tuple[nn.Module, PipelinedPlan]:
    """Return a model with some frozen parameters, and its plan."""
    make, shape, rest, _ = MODELS[name]
    model = in_fp16(make())
    for parameter, value in model.named_parameters():
        value.requires_grad_(not parameter.startswith(tuple(rest.split())))
    return model, training_plan(model, shape, 48, batch)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", MODELS)
def test_two_steps_with_frozen_layers(name: str) -> None:
    """Two rounds of two samples: values equal those of PyTorch, and only parameters that train have gradients and change."""
    model, plan = made(name)
    assert frozen_layers(plan.graph) >= MODELS[name][3]
    shape = MODELS[name][1]
    x, labels = data(model, (4, *shape))
    found = check_values(model, plan, x.numpy(), labels, rate=0.05, steps=2, in_flight=2)
    wanted = {key for key, value in model.named_parameters() if value.requires_grad}
    assert {one.name for one in found.values if one.kind == "gradient"} == wanted
    for kind in found.kinds:
        assert found.largest(kind)[1] < BOUND, found.text()
    weights = weights_of(model)
    run = train_whole(plan, weights, x.numpy(), labels, rate=0.05)
    assert set(run.gradients) == set(run.weights) == wanted


class Cut(Behind):
    """Layers under `torch.no_grad()`; their parameters could train."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        with torch.no_grad():
            x = torch.relu(self.rest(torch.relu(self.first(x))))
        return self.head(torch.relu(self.own(x)))


def test_layers_without_gradients_in_the_model_are_frozen() -> None:
    """PyTorch gives their parameters no gradient either."""
    model = in_fp16(Cut())
    plan = training_plan(model, (3, 8), 32, 4)
    assert frozen_layers(plan.graph) == {"first", "rest"}
    x, labels = data(model, (4, 3, 8))
    found = check_values(model, plan, x.numpy(), labels, rate=0.05, steps=2)
    trained = {one.name for one in found.values if one.kind == "gradient"}
    assert trained == {"own.weight", "own.bias", "head.weight", "head.bias"}
    assert max(found.largest(kind)[1] for kind in found.kinds) < BOUND


def test_a_frozen_layer_takes_what_it_takes_in_inference() -> None:
    """The busiest cores of a block issue the cycles of its plan, one pass, and 24 samples take the engine's time."""
    _, plan = made("a block", 24)
    compared = compare_training(plan)
    assert abs(compared.difference) < 0.05
    rest = [one for one in compared.regions if one.name in frozen_layers(plan.graph)]
    assert len(rest) == 10
    assert all(one.busiest == pytest.approx(one.engine, rel=0.01) for one in rest)
    assert all(stage.backward_cycles == 0 for stage in plan.stages if stage.name in frozen_layers(plan.graph))


def test_a_frozen_parameter_behind_one_that_trains_is_refused() -> None:
    """A gradient passes through its layer."""
    model = MODELS["a skip"][0]()
    model.head.requires_grad_(False)  # type: ignore[operator]
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 3, 8),), training=True, optimizer="sgd"))
    assert not frozen_layers(graph)
    with pytest.raises(
        ModelError, match=r"parameter 'head.weight' of 'head' does not train, .* a gradient reaches"
    ):
        check_trained(graph)
