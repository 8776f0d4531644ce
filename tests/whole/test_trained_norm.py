"""Norms that train, alone on their fabric: every value against PyTorch, cycles against closed forms."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.generated import examples
from tests.whole.alone import Alone, check_alone, issued, region_alone, run_alone
from tests.whole.test_trained import training_plan
from wse_sim.errors import ModelError
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.contract.registry import family
from wse_sim.kernels.families.norm import lane_bytes
from wse_sim.whole.regions.contract import rows_in_turn
from wse_sim.whole.trained import trained_network, trained_region_of
from wse_sim.whole.trained.norm import TrainedNorm

EPS = 0.1  # large enough to be seen in every value
NORMS = {
    "layer": lambda features: nn.LayerNorm(features, eps=EPS),
    "rms": lambda features: nn.RMSNorm(features, eps=EPS),
    "layer without bias": lambda features: nn.LayerNorm(features, eps=EPS, bias=False),
    "layer without parameters": lambda features: nn.LayerNorm(features, eps=EPS, elementwise_affine=False),
    "rms without parameters": lambda features: nn.RMSNorm(features, eps=EPS, elementwise_affine=False),
}


class Normed(nn.Module):
    """A layer and its norm."""

    def __init__(self, kind: str, features: int) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(features, features), NORMS[kind](features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return self.norm(self.layer(x))


@cache
def region(
    kind: str, tokens: int, features: int, side: int = 16, needs: tuple[str, ...] | None = None
) -> TrainedNorm:
    """Return the norm of a plan of training."""
    plan = training_plan(Normed(kind, features), (tokens, features), side)
    found = region_alone(TrainedNorm, plan, "norm", needs)
    assert isinstance(found, TrainedNorm)
    return found


def checked(norm: TrainedNorm, kind: str, *, samples: int, in_flight: int) -> Alone:
    """Return a batch of random values against autograd."""
    rng = np.random.default_rng(0)
    tokens, features = norm.tokens, norm.features
    x, g = rng.normal(0.5, 1.0, (2, samples, tokens, features))
    names = norm.kernel.parameters
    weights = {name: rng.normal(1, 0.5, features).astype(np.float16).astype(np.float32) for name in names}

    def op(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        if "rms" in kind:
            return F.rms_norm(x, (features,), *parameters, eps=EPS)
        return F.layer_norm(x, (features,), *(*parameters, None, None)[:2], eps=EPS)

    # Seven roundings to fp16 are between a gradient and that of its token: h, two factors, two sums, 1 / s, the product.
    # They are of the size of h / s, of which little is left where features are few.
    given = torch.tensor(x).half().float().requires_grad_()
    op(given, *map(torch.tensor, weights.values())).backward(torch.tensor(g).float())
    mean = 0.0 if "rms" in kind else given.mean(-1, keepdim=True)
    deviation = ((given - mean).square().mean(-1, keepdim=True) + EPS).sqrt()
    scale = next(iter(weights.values()), 1.0)
    worst = (torch.tensor(g * scale) / deviation).abs().max() / given.grad.abs().max()
    roundings = 7 * max(1, int(np.ceil(worst.item())))
    return check_alone(norm, op, {norm.operands[0]: x}, g, weights, in_flight=in_flight, roundings=roundings)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", NORMS)
def test_values_equal_those_of_autograd(kind: str) -> None:
    """Result, gradients of token, scale and shift, and the updated parameters; three rounds of two samples."""
    checked(region(kind, 6, 10), kind, samples=6, in_flight=2)


@pytest.mark.slow
@examples(8)
@given(
    kind=st.sampled_from(sorted(NORMS)),
    tokens=st.integers(1, 9),
    features=st.integers(1, 12).map(lambda half: 2 * half),
    rounds=st.integers(1, 3),
    in_flight=st.integers(1, 3),
)
def test_any_size_and_any_number_in_flight(
    kind: str, tokens: int, features: int, rounds: int, in_flight: int
) -> None:
    """Odd and even numbers of tokens per round, one core and many: the values stay those of autograd."""
    checked(region(kind, tokens, features), kind, samples=rounds * in_flight, in_flight=in_flight)


def in_bundles(kind: str, tokens: int, features: int, count: int, side: int = 24) -> TrainedNorm:
    """Return the norm with its tokens in bundles."""
    norm = region.__wrapped__(kind, tokens, features, side)
    norm.bundles = dict.fromkeys(norm.tied, count)
    norm.settle()
    return norm


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("count", [2, 3])
def test_neighbours_share_a_token_that_comes_in_bundles(kind: str, count: int) -> None:
    """Statistics and means of the gradient are sums over the neighbours; every column updates its own parameters."""
    norm = in_bundles(kind, 6, 12, count)
    assert (norm.cols, norm.each > 0) == (count, True)
    checked(norm, kind, samples=6, in_flight=2)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", NORMS)
def test_the_plan_counts_what_cores_issue(kind: str) -> None:
    """Forward and both gradients of a sample, as the event engine prices them."""
    norm = region(kind, 12, 16)
    of = [one for one in norm.graph.kernels if one.family == "norm"]
    place = Tiling(norm.region.rows, norm.compute_cols)
    costs = (
        family("norm").cost(one.dims, place, norm.wafer, phase=one.phase, attrs=one.attrs, dtype="fp16")
        for one in of
    )
    assert len(of) == 2 + bool(norm.affine)
    assert sum(float(cost.total) - float(cost.idle) for cost in costs) == pytest.approx(issued(norm))


def test_every_core_has_the_same_parameters_after_the_update() -> None:
    """Each core updates its own copy, from sums that all of them got."""
    norm = region("layer", 6, 10)
    fabric = checked(norm, "layer", samples=2, in_flight=2).fabric
    assert norm.height > 1
    for name in ("gradients", "master"):
        rows = fabric.read(f"{norm.name}.{name}")
        assert (rows == rows[:1]).all()
        assert np.abs(rows).max() > 0


@pytest.mark.slow
def test_without_a_gradient_of_its_token_only_parameters_train() -> None:
    """It is the first kernel of a model: the gradient of its input is not requested, and none is sent."""
    norm, whole = (region("layer", 4, 8, needs=needs) for needs in ((), None))
    rng = np.random.default_rng(1)
    x, g = rng.normal(size=(2, 4, 4, 8))
    weights = {name: np.ones(8, np.float32) for name in norm.kernel.parameters}
    runs = [run_alone(one, {one.operands[0]: x}, g, weights, in_flight=2) for one in (norm, whole)]
    assert runs[0].operand_gradients == {}
    for name in norm.kernel.parameters:
        assert np.array_equal(runs[0].gradients[name], runs[1].gradients[name])
    assert issued(norm) < issued(whole)


def test_more_samples_in_flight_are_held_where_memory_allows() -> None:
    """2 bytes for each of 24 features and for 1 / s, four tokens a core, in 44,976 bytes less 1,536 of instructions, two rows
    and two results, 26 numbers of a scale four times (two in fp32, two in fp16), and 480 for small buffers and gaps."""
    norm = region("rms", 40, 24)
    room = 44_976 - 1_536 - 4 * 2 * 24 - 26 * (2 * 4 + 2 * 2) - 480
    assert norm.most_in_flight() == int(room // (norm.each * 2 * 25))


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_bytes_of_a_core_are_at_least_those_of_its_program(kind: str) -> None:
    """The last buffer of a core ends below the bytes that bound the samples in flight, by no more than the 480 for small
    buffers and gaps."""
    made = trained_network(training_plan(Normed(kind, 24), (8, 24), 24, 6), 6)
    norm = next(one for one in made.regions if isinstance(one, TrainedNorm))
    row, col = norm.senders[0]
    held = [one for one in made.program.buffers.values() if one.name.startswith(f"{norm.name}.")]
    assert all(one.row <= row < one.row + one.rows and one.col <= col for one in held)
    end = max(one.address + one.length * (2 if one.dtype == "fp16" else 4) for one in held)
    rows = rows_in_turn(norm.region, norm.wafer)
    fixed, each = lane_bytes(norm.kernel.dims, rows, norm.lane, norm.wafer, norm.kernel.attrs)
    assert fixed + made.batch.in_flight * each - 480 <= end <= fixed + made.batch.in_flight * each


def test_kind_is_found_by_its_family() -> None:
    """The network makes it from a stage."""
    plan = training_plan(Normed("layer", 8), (4, 8), 16)
    stage = next(one for one in plan.stages if one.name == "norm")
    found = trained_region_of(plan.graph, plan.graph.kernel("norm"), stage, plan.wafer, frozenset())
    assert isinstance(found, TrainedNorm)


def test_a_shift_alone_is_refused() -> None:
    """A norm has a scale, a scale and a shift, or neither."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.shift = nn.Linear(8, 8), nn.Parameter(torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(self.layer(x), (8,), None, self.shift)

    plan = training_plan(Shifted(), (4, 8), 16)
    with pytest.raises(ModelError, match="a shift and no scale"):
        region_alone(TrainedNorm, plan, plan.stages[-1].name)
