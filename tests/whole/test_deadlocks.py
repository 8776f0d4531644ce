"""Random networks in regions of random shapes: no plan deadlocks, in inference or in training.

The compiler gives a region as many cores as its price asks for.  So prices that are off by a random factor for every layer, forward
and backward by themselves, give regions and samples in flight that the true prices would never give.  A block with GELU
stopped on 3 of 10 such plans, before layers were held to the contract of their streams (a word waits for words of the same sample or
of earlier ones alone).
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.drawn_models import image_model, parts_model
from tests.generated import examples
from tests.whole.plans import corner
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.errors import ModelError
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.run import program_of, stepped
from wse_sim.whole.trained import trained_network
from wse_sim.whole.trained.coverage import check_any

LEAST, MOST = 0.15, 6.0
"""Of a true price."""


def plan_by_chance(
    model: nn.Module, shape: tuple[int, ...], seed: int, side: int, *, training: bool, **how: Any
) -> PipelinedPlan | None:
    """Return a plan with prices off by random factors; None if the model is refused (odd features) or does not fit."""
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
        plan = api.compile(graph, wafer=corner(side), mode="pipelined", replicas=1, **how)
    return None if isinstance(plan, Infeasible) else expect(plan, PipelinedPlan)


MODELS = st.tuples(
    st.sampled_from((parts_model, parts_model, image_model)), st.randoms(use_true_random=False)
).map(lambda drawn: drawn[0](drawn[1]))


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
    """Check that all words of a batch leave, for any shapes of regions and samples in flight."""
    if plan := plan_by_chance(*model, seed, side, training=True, batch=batch, **how):
        made = trained_network(plan, batch, 0.0, "squared error", most)
        assert stepped(made.program, made.config, None).words_left == 0


def check_inference(model: tuple[nn.Module, tuple[int, ...]], seed: int, side: int, placer: str) -> None:
    """Check the same for eight samples in inference."""
    if plan := plan_by_chance(*model, seed, side, training=False, batch=16, placer=placer):
        made = program_of(plan, 8)
        assert stepped(made.program, made.config, None).words_left == 0


@pytest.mark.slow
@examples(4)
@given(case=TRAINING)
def test_no_training_stops(case: dict[str, Any]) -> None:
    """A few random networks are trained."""
    check_training(**case)


@examples(3)
@given(case=INFERENCE)
def test_no_inference_stops(case: dict[str, Any]) -> None:
    """A few random networks are run."""
    check_inference(**case)


@pytest.mark.slow
@examples(50)
@given(case=TRAINING)
def test_no_training_of_many_stops(case: dict[str, Any]) -> None:
    """Many random networks are trained."""
    check_training(**case)


@pytest.mark.slow
@examples(50)
@given(case=INFERENCE)
def test_no_inference_of_many_stops(case: dict[str, Any]) -> None:
    """Many random networks are run."""
    check_inference(**case)


def test_odd_features_are_refused_where_programs_are_made() -> None:
    """81 features are not a whole count of words: both programs would wait forever for the last half word."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(324, 10))
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 1, 9, 9),), training=True, optimizer="sgd"))
    plan = api.compile(graph, wafer=corner(24), mode="pipelined", replicas=1, batch=4)
    with pytest.raises(ModelError, match="81 features"):
        trained_network(expect(plan, PipelinedPlan), 4)
