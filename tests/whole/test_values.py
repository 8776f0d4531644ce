"""Every value of a whole model on the fabric compared with PyTorch: in fp32, and rounded where the fabric rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.whole_images import Around, Residual, moved
from tests.whole.alone import EPS
from tests.whole.test_dense_chain import network, plan_of
from tests.whole.test_regions import Block
from tests.whole.test_streaming import build
from tests.whole.test_trained import Skip, training_plan
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.whole import inputs_over_rows, values
from wse_sim.whole.reference import Reference
from wse_sim.whole.values import CheckedValues, check_values

BOUND = 8 * EPS
"""Of the largest of a tensor.  Beside a PyTorch that rounds alike, roundings differ only where fp32 sums of another order round the other way."""


def in_fp16(model: nn.Module) -> nn.Module:
    """Return the model with parameters away from their defaults, in fp16 numbers."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).half())
    return model


def checked(
    model: nn.Module, shape: tuple[int, ...], side: int, samples: int, steps: int = 2, **how: Any
) -> CheckedValues:
    """Check a number of steps of a model, with random samples and labels."""
    plan = training_plan(in_fp16(model), shape, side, samples)
    x, labels = data(model, (samples, *shape))
    return check_values(model, plan, x.numpy(), labels, rate=0.05, steps=steps, **how)


def data(model: nn.Module, shape: tuple[int, ...]) -> tuple[torch.Tensor, np.ndarray]:
    """Return samples, and a label for each of their rows."""
    x = torch.randn(shape).half().float()
    with torch.no_grad():
        outputs = model(x)
    rows = outputs.numel() // outputs.shape[-1] if x.ndim == 3 else len(x)
    return x, np.random.default_rng(0).integers(0, outputs.numel() // rows, rows)


def small_images() -> nn.Module:
    """Two convolutions, maxima between, and a layer."""
    first = [nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6))


def residual_images() -> nn.Module:
    """Two residual blocks of convolutions: around one the image goes, around the other its convolution of stride 2."""
    return nn.Sequential(Around(2, 2), Around(2, 4), nn.Flatten(), nn.Linear(36, 6))


class AddsItself(nn.Module):
    """Layers whose input is added to their result, before and behind a function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.layers[0](x)
        x = x + self.layers[1](x * x)
        x = x + torch.relu(self.layers[2](x))
        return self.layers[3](x)


TRAINED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, dict[str, Any]]] = {
    # model, a sample, columns of the wafer, samples of a batch, choices
    "two blocks, ReLU and GELU, two rounds": (
        lambda: nn.Sequential(Block(8, 2, nn.ReLU()), Block(8, 2)), (4, 8), 48, 2, {"in_flight": 1},
    ),
    "convolutions and maxima": (small_images, (2, 8, 8), 32, 4, {}),
    "a convolution, bounds in a region of their own": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU6(), nn.Flatten(), nn.Linear(144, 6)), (2, 6, 6), 32, 4, {},
    ),
    "layers that add their own input": (AddsItself, (3, 8), 32, 4, {}),
    "residual blocks of convolutions": (residual_images, (2, 6, 6), 32, 4, {}),
    "FC-MNIST, scaled": (lambda: network((36, 16, 16, 10)), (36,), 24, 8, {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_two_steps_of_a_model(name: str) -> None:
    """Outputs, gradients and the change of all weights after two updates are compared; also the loss of both steps."""
    make, shape, side, samples, how = TRAINED[name]
    torch.manual_seed(0)
    found = checked(make(), shape, side, samples, **how)
    assert {(one.step, one.kind) for one in found.values} == {
        (step, kind) for step in (1, 2) for kind in ("loss", "outputs", "gradient", "update")
    }
    for kind in found.kinds:
        worst = found.worst(kind)
        assert worst.rounded_error < BOUND, worst
    # A unit that turns makes up for its own share of the gradients alone: a handful among hundreds cannot hide a wrong term.
    assert found.turned_on_fabric <= 2


@pytest.mark.slow
def test_two_steps_of_two_blocks_in_full_size() -> None:
    """8 tokens of 32 features, hidden layers of 128, 96 x 96 cores, a batch of 16 in two rounds; ReLU and GELU."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(32, 2, nn.ReLU()), Block(32, 2, nn.GELU()), nn.Linear(32, 8))
    found = checked(model, (8, 32), 96, 16, in_flight=8)
    for kind in found.kinds:
        assert found.worst(kind).rounded_error < BOUND, found.worst(kind)
    assert found.turned_on_fabric <= 8


def test_streamed_weights() -> None:
    """The same holds for a plan of weight streaming: one step, with gradients in fp16 over the edges."""
    model, plan = build("two lanes", training=True)
    x, labels = data(model, (plan.batch, model[0].in_features))
    found = check_values(model, plan, x.numpy(), labels, loss="squared error", steps=2)
    assert all(found.worst(kind).rounded_error < BOUND for kind in found.kinds), found.text()
    with pytest.raises(ModelError, match="squared error"):
        check_values(model, plan, x.numpy(), labels)


def test_inference_of_blocks_and_of_images() -> None:
    """Outputs alone: a block, and a residual network whose batch norms are folded into filters."""
    for model, shape, side in (
        (in_fp16(Block(8, 2)), (4, 8), 40),
        (
            moved(nn.Sequential(Residual(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6))),
            (4, 6, 6),
            24,
        ),
    ):
        plan = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),))), side)
        found = check_values(model, plan, torch.randn(3, *shape).numpy())
        assert found.kinds == ("outputs",)
        assert found.worst("outputs").rounded_error < BOUND, found.text()
        assert "gradient" not in found.text()


# ---- what the check sees -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_reference_is_the_model_and_rounds() -> None:
    """Without roundings it is PyTorch's model, gradients included; with them, all that it gives are fp16 numbers."""
    model = in_fp16(nn.Sequential(Block(8, 2, nn.ReLU()), Block(8, 2)))
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 4, 8),), training=True, optimizer="sgd"))
    x = torch.randn(3, 4, 8).half().float()
    held = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    found, wanted = Reference(graph, rounds=False)(held, x), model(x)
    assert torch.allclose(found.reshape(wanted.shape), wanted, atol=1e-5)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(
            held[name].grad, parameter.grad, atol=1e-4 * float(parameter.grad.abs().max() + 1)
        )
    rounded = Reference(graph, rounds=True)(held, x).detach()
    assert torch.equal(rounded, rounded.half().float())
    assert 0 < float((rounded - found.detach()).abs().max()) < 16 * EPS * float(found.detach().abs().max())


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of one gradient is off by 2 % of the largest, which no unit near zero explains."""
    model, real, name = Skip(8), values.train_whole, "a.weight"

    def wrong(*arguments: Any, **how: Any) -> Any:
        run = real(*arguments, **how)
        run.gradients[name][3, 5] += 0.02 * np.abs(run.gradients[name]).max()
        return run

    monkeypatch.setattr(values, "train_whole", wrong)
    found = checked(model, (4, 8), 24, 4, steps=1)
    worst = found.worst("gradient")
    assert worst.name == name
    assert worst.rounded_error == pytest.approx(0.02, rel=0.1)
    assert f"{name}, step 1" in found.text()


def test_a_unit_near_zero_turns_in_both() -> None:
    """The bias of a unit is less its sum, to a hundredth of a rounding: fp16 may let its gradient through or not.

    Turned, the reference gives the gradient of that unit alone, and the same outputs.
    """
    model = in_fp16(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 6)))
    x = torch.randn(1, 2, 8).half().float()
    with torch.no_grad():
        model[0].bias[1] = -(x[0, 0] @ model[0].weight[1]) + 1e-6
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 8),), training=True, optimizer="sgd"))
    gradients = {}
    for turned in ((), ((0, 1),)):
        held = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
        reference = Reference(graph, rounds=True, turned=turned)
        outputs = reference(held, x)
        outputs.sum().backward()
        gradients[turned] = {name: value.grad for name, value in held.items()}
        assert torch.allclose(outputs, model(x), atol=1e-3)
    assert values._undecided(reference.before)[0] == (0, 1)
    (one, other), share = gradients.values(), model[2].weight[:, 1].sum() * x[0, 0]
    moved_by = (one["0.weight"] - other["0.weight"]).abs()
    assert torch.allclose(moved_by[1], share.detach().abs(), rtol=4 * EPS, atol=EPS)
    assert not moved_by[[0, 2, 3]].any()


def test_a_plan_of_another_model_is_refused() -> None:
    """Other parameters, other weights under the same names; and what a check needs."""
    plan = training_plan(Skip(8), (4, 8), 24, 4)
    x, labels = np.zeros((4, 4, 8), np.float32), np.zeros(16, np.int64)
    with pytest.raises(ModelError, match=r"no parameter 'a\.weight'"):
        check_values(nn.Linear(8, 8), plan, x, labels)

    class Other(Skip):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    with pytest.raises(ModelError, match="are not those of the plan's graph"):
        check_values(Other(8), plan, np.ones_like(x), labels)
    with pytest.raises(ModelError, match="no labels"):
        check_values(Skip(8), plan, x)
    with pytest.raises(ModelError, match="at least one"):
        check_values(Skip(8), plan, x, labels, steps=0)
    with pytest.raises(ModelError, match="at least one"):
        check_values(Skip(8), plan, x, labels, in_flight=0)


def test_models_of_which_the_host_does_a_part_are_refused() -> None:
    """Tables in front and the logarithm of a softmax at the end are refused in one sentence with the remedy."""
    words, tokens = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 8)), torch.zeros(1, 3, dtype=torch.long)
    plan = plan_of(inputs_over_rows(api.lower(words, (tokens,))), 24)
    with pytest.raises(ModelError, match=r"the host looks up '0\.weight'"):
        check_values(words, plan, tokens.numpy())
    classes = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.LogSoftmax(-1))
    with pytest.raises(ModelError, match="the host takes the logarithm of '2'"):
        check_values(
            classes, training_plan(classes, (3, 8), 24, 4), np.zeros((4, 3, 8)), np.zeros(12, np.int64)
        )
