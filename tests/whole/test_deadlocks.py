"""Networks by chance, in regions of chance shapes: no plan stops, in inference or in training.

The compiler gives a region as many cores as its price asks for.  So prices that are off by a random factor for every layer, forward
and backward by themselves, give regions and samples in flight that the true prices would never give.  A block with GELU
stopped on 3 of 10 such plans, before layers were held to the contract of their streams (a word waits for words of the same sample or
of earlier ones alone).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from torch import nn

from tests.generated import examples
from tests.whole.test_dense_chain import wafer
from tests.whole.test_pointwise import Gated
from tests.whole.test_regions import Block, Heads
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.errors import ModelError
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.run import program_of, stepped
from wse_sim.whole.trained import trained_network
from wse_sim.whole.trained.covered import check_any

LEAST, MOST = 0.15, 6.0
"""Of a true price."""


class Around(nn.Module):
    """A layer, then others with a skip around them, and an activation of the sum."""

    def __init__(self, features: int, inner: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.after = nn.Linear(features, features), inner, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.first(x)
        return self.after(x + self.inner(x))


def two(features: int, hidden: int, activation: type[nn.Module]) -> nn.Sequential:
    """Two layers with an activation between."""
    return nn.Sequential(nn.Linear(features, hidden), activation(), nn.Linear(hidden, features))


PARTS: tuple[Callable[[int, int, type[nn.Module]], nn.Module], ...] = (
    lambda n, h, a: Block(n, 2, a()),
    lambda n, h, a: Around(n, two(n, h, a), nn.Identity()),
    lambda n, h, a: Around(n, nn.Sequential(nn.LayerNorm(n), nn.Linear(n, n)), a()),
    lambda n, h, a: Around(n, Around(n, nn.Linear(n, n), a()), nn.Identity()),
    lambda n, h, a: nn.Sequential(nn.RMSNorm(n, eps=1e-5), Heads(n, 2)),
    lambda n, h, a: Gated(n, h),
    two,
)
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU)


@st.composite
def token_models(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """One to three parts on a few tokens."""
    features, tokens = draw(st.sampled_from((8, 16, 24))), draw(st.sampled_from((2, 4, 6)))
    parts = draw(
        st.lists(
            st.tuples(st.sampled_from(PARTS), st.sampled_from((8, 32, 48)), st.sampled_from(ACTIVATIONS)),
            min_size=1,
            max_size=3,
        )
    )
    layers = [part(features, hidden, activation) for part, hidden, activation in parts]
    return nn.Sequential(*layers, nn.Linear(features, 6)), (tokens, features)


@st.composite
def image_models(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Convolutions and pooling, then a layer or two."""
    channels, side = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((8, 9, 12)))
    layers: list[nn.Module] = []
    shape = (channels, side, side)
    for _ in range(draw(st.integers(1, 2))):
        filters = draw(st.sampled_from((4, 8)))
        layers += [nn.Conv2d(channels, filters, 3, draw(st.sampled_from((1, 2))), 1), nn.ReLU()]
        channels = filters
        pool = draw(st.sampled_from((None, nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3, 1, 1))))
        layers += [] if pool is None else [pool]
    flat = nn.Sequential(*layers, nn.Flatten())
    try:
        size = flat(torch.zeros(1, *shape)).shape[1]
    except RuntimeError:  # a window that is larger than what is left of the image
        reject()
    head: list[nn.Module] = [nn.Linear(size, 10)]
    if draw(st.booleans()):
        head = [nn.Linear(size, 16), draw(st.sampled_from(ACTIVATIONS))(), nn.Linear(16, 10)]
    return nn.Sequential(*flat, *head), shape


def plan_by_chance(
    model: nn.Module, shape: tuple[int, ...], seed: int, side: int, *, training: bool, **how: Any
) -> PipelinedPlan | None:
    """A plan with prices off by random factors; None if the model is refused (odd features) or does not fit."""
    real = Sizer._costs

    def costs(self: Sizer, prices: Any, group: Group, rows: Any, cols: Any) -> tuple[Any, Any, Any]:
        forward, backward, idle = real(self, prices, group, rows, cols)
        chance = random.Random(f"{seed} {group.name}")
        factors = (LEAST * (MOST / LEAST) ** chance.random() for _ in range(2))
        return forward * next(factors), backward * next(factors), idle

    trains = {"training": True, "optimizer": "sgd"} if training else {}
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),), **trains))
    try:
        check_any(graph)
    except ModelError as refused:
        if "use an even number of features" not in str(refused):
            raise
        return None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sizer, "_costs", costs)
        plan = api.compile(graph, wafer=wafer(side), mode="pipelined", replicas=1, **how)
    return None if isinstance(plan, Infeasible) else expect(plan, PipelinedPlan)


MODELS = st.one_of(token_models(), token_models(), image_models())


TRAINING = st.fixed_dictionaries(
    {
        "model": MODELS,
        "seed": st.integers(0, 10**6),
        "side": st.sampled_from((24, 32, 48)),
        "batch": st.sampled_from((4, 6, 12)),
        "most": st.sampled_from((None, 1, 2, 3)),
        "placer": st.sampled_from(("shelves", "snake", "peel")),
        "schedule": st.sampled_from(("1f1b", "gpipe")),
    }
)
INFERENCE = st.fixed_dictionaries(
    {
        "model": MODELS,
        "seed": st.integers(0, 10**6),
        "side": st.sampled_from((24, 32, 48)),
        "placer": st.sampled_from(("shelves", "snake", "peel")),
    }
)


def check_training(
    model: tuple[nn.Module, tuple[int, ...]], seed: int, side: int, batch: int, most: int | None, **how: str
) -> None:
    """All words of a batch come through, whatever the shapes of regions and the samples in flight."""
    if plan := plan_by_chance(*model, seed, side, training=True, batch=batch, **how):
        made = trained_network(plan, batch, 0.0, "squared error", most)
        assert stepped(made.program, made.config, None).words_left == 0


def check_inference(model: tuple[nn.Module, tuple[int, ...]], seed: int, side: int, placer: str) -> None:
    """The same of eight samples in inference."""
    if plan := plan_by_chance(*model, seed, side, training=False, batch=16, placer=placer):
        made = program_of(plan, 8)
        assert stepped(made.program, made.config, None).words_left == 0


@examples(4)
@given(case=TRAINING)
def test_no_training_stops(case: dict[str, Any]) -> None:
    """A few."""
    check_training(**case)


@examples(3)
@given(case=INFERENCE)
def test_no_inference_stops(case: dict[str, Any]) -> None:
    """A few."""
    check_inference(**case)


@pytest.mark.slow
@examples(200)
@given(case=TRAINING)
def test_no_training_of_many_stops(case: dict[str, Any]) -> None:
    """Many."""
    check_training(**case)


@pytest.mark.slow
@examples(100)
@given(case=INFERENCE)
def test_no_inference_of_many_stops(case: dict[str, Any]) -> None:
    """Many."""
    check_inference(**case)


def test_odd_features_are_refused_where_programs_are_made() -> None:
    """81 features are no whole number of words: both programs would wait for the last half word for ever."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(324, 10))
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 1, 9, 9),), training=True, optimizer="sgd"))
    plan = api.compile(graph, wafer=wafer(24), mode="pipelined", replicas=1, batch=4)
    with pytest.raises(ModelError, match="81 features"):
        trained_network(expect(plan, PipelinedPlan), 4)
