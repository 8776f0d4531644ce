"""A larger batch is never slower for lack of memory: smaller micro-batches are always to be had."""

from __future__ import annotations

import itertools

import pytest

from wse_sim import api
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan


def rate(graph, batch: int, systems: int, **more: int) -> float:
    plan = api.compile(graph, mode="weight-streaming", batch=batch, systems=systems, **more)
    assert isinstance(plan, WeightStreamingPlan)
    return api.simulate(plan).samples_per_s


@pytest.mark.parametrize(("model", "systems"), [("gpt2-small", 1), ("gpt3-1.3b", 4)])
def test_twice_the_batch_is_never_slower(model: str, systems: int) -> None:
    """Where activations of the whole batch spill or are worked out again, halves that fit are faster."""
    graph = api.load_model(model, training=True)
    rates = [rate(graph, batch, systems) for batch in (32, 64, 128, 256, 512, 1024)]
    for smaller, larger in itertools.pairwise(rates):
        assert larger > 0.995 * smaller


def test_no_half_of_the_default_is_faster() -> None:
    """The choice holds against micro-batches that a user fixes."""
    graph = api.load_model("gpt2-small", training=True)
    best = rate(graph, 512, 1)
    for micro_batch in (32, 64, 128, 256):
        assert rate(graph, 512, 1, micro_batch=micro_batch) < 1.002 * best


def test_samples_that_fill_up_are_no_useful_work() -> None:
    """Seven samples on four systems take the time of eight, and are seven samples of work."""
    graph = api.load_model("fc-mnist", training=True)
    seven, eight = (
        api.simulate(api.compile(graph, mode="weight-streaming", batch=batch, systems=4)) for batch in (7, 8)
    )
    assert seven.step_s == eight.step_s
    assert seven.flops_per_step == pytest.approx(7 / 8 * eight.flops_per_step)
    assert seven.mfu == pytest.approx(7 / 8 * eight.mfu)
