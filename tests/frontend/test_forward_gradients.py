"""Modules whose forward() computes gradients: FLOPs by hand and by torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from wse_sim.errors import ModelError
from wse_sim.frontend import lower

pytestmark = pytest.mark.slow

SAMPLES, WIDTH, HIDDEN = 8, 16, 32
LARGE = 2 * SAMPLES * WIDTH * HIDDEN  # FLOPs of a product with the first weight
SMALL = 2 * SAMPLES * HIDDEN  # with the second


class Energy(nn.Module):
    """A scalar per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


class Function(Energy):
    def forward(self, x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: self.net(y).sum())(x)


class EachSample(Energy):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(torch.func.grad(lambda y: self.net(y).squeeze()))(x)


class Forces(Energy):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_(True)
        energy = self.net(x)
        (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy, -slope


class Penalty(Energy):
    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return ((slope.norm(2, dim=1) - 1) ** 2).mean()


class Unlinked(Energy):
    """Nothing trains through a gradient without create_graph."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        return torch.autograd.grad(self.net(x).sum(), x)[0]


class Curvature(Energy):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(torch.func.hessian(lambda y: self.net(y).squeeze()))(x)


class Images(nn.Module):
    """Gradients of convolutions, of a norm and of a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.GroupNorm(2, 8),
            nn.Conv2d(8, 8, 3, groups=2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: self.net(y).sum())(x)


X = torch.zeros(SAMPLES, WIDTH)


@pytest.mark.parametrize(("model", "products"), [(Function, 2), (EachSample, 2), (Forces, 2), (Penalty, 2)])
def test_a_first_gradient_is_two_products_more(model: type[Energy], products: int) -> None:
    # Forward with the first weight, and the gradient back through it; the second weight alike, where its result is read.
    flops = lower(model(), X).total_flops
    assert products * LARGE <= flops - SMALL <= products * LARGE + SMALL


@pytest.mark.parametrize("model", [Function, EachSample, Forces, Penalty, Curvature])
def test_its_gradients_are_those_of_torch(model: type[Energy]) -> None:
    graph = lower(model(), X, training=True)
    assert graph.facts["training_flops"] == "as torch counts"


class Ensemble(nn.Module):
    """Equal networks, whose stacked weights run in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(Energy().net for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        nets = [dict(net.named_parameters()) for net in self.members]
        stacked = {name: torch.stack([net[name] for net in nets]) for name in nets[0]}
        call = torch.func.functional_call
        return torch.vmap(lambda weights: call(self.members[0], weights, (x,)))(stacked)


def test_an_ensemble_of_equal_networks_runs_as_one() -> None:
    """A layer inside a function transform is not captured once for all: its tensors share their memory."""
    # Three forward passes; in training two products for each, except for the gradient of the input.
    assert lower(Ensemble(), X).total_flops == 3 * (LARGE + SMALL)
    graph = lower(Ensemble(), X, training=True)
    assert graph.total_flops == 3 * (2 * LARGE + 3 * SMALL)
    assert graph.facts["training_flops"] == "as torch counts"


def test_gradients_of_convolutions_are_convolutions() -> None:
    # Forward of both, and back to the image through both: 3 x 3 x 3 x 8 at 8 x 8 places, 3 x 3 x 4 x 8 at 6 x 6 places.
    graph = lower(Images(), torch.zeros(2, 3, 16, 16))
    first, second = 2 * 2 * 27 * 8 * 64, 2 * 2 * 36 * 8 * 36
    # The first gradient reaches 16 x 16 places from 8 x 8.  The last result itself is not read.
    assert graph.total_flops == 2 * first + second


def test_nothing_trains_through_a_gradient_without_a_graph() -> None:
    with pytest.raises(ModelError, match="no parameters that train"):
        lower(Unlinked(), X, training=True)


class Checked(Energy):
    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return x if torch.isnan(slope).any() else slope


def test_a_refusal_names_its_own_line_and_not_that_of_the_gradient() -> None:
    """Capture is tried without gradients first; what stops the second try must not be told of the first."""
    with pytest.raises(ModelError, match=r"if torch\.isnan\(slope\).*control flow depends on the values"):
        lower(Checked(), (torch.randn(SAMPLES, WIDTH),))


class Dual(Energy):
    """Forward mode: value and slope along a direction."""

    def forward(self, x: Tensor, along: Tensor) -> Tensor:
        with forward_ad.dual_level():
            made = forward_ad.unpack_dual(self.net(forward_ad.make_dual(x, along)))
        assert made.tangent is not None
        return made.primal + made.tangent


class Slope(Dual):
    def forward(self, x: Tensor, along: Tensor) -> Tensor:
        with forward_ad.dual_level():
            made = forward_ad.unpack_dual(self.net(forward_ad.make_dual(x, along))).tangent
        assert made is not None
        return made


class Linear(Energy):
    def forward(self, x: Tensor, along: Tensor) -> Tensor:
        value, product = torch.func.linearize(self.net, x)
        return value + product(along)  # type: ignore[no-any-return]


@pytest.mark.parametrize("training", [False, True])
def test_dual_tensors_cost_what_torch_runs(training: bool) -> None:
    model, args = Dual(), (torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH))
    with FlopCounterMode(display=False) as counter:
        made = model(*args)
        if training:
            made.sum().backward()
    assert lower(model, args, training=training).total_flops == counter.get_total_flops()


def test_the_slope_alone_needs_no_last_value() -> None:
    """As torch, it multiplies the input also by the tangent of each weight, which is zero."""
    args = (torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH))
    assert lower(Dual(), args).total_flops - lower(Slope(), args).total_flops == SMALL


def test_a_program_traced_inside_forward_is_refused_with_another_way() -> None:
    args = (torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH))
    with pytest.raises(
        ModelError, match=r"torch\.func\.linearize\(self\.net, x\): .* call torch\.func\.jvp\("
    ):
        lower(Linear(), args)
