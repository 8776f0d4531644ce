"""A larger batch that spills says which smaller micro-batch does not, and what that gains by the prices here."""

from __future__ import annotations

import re

import pytest

from wse_sim import api
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan


def _plan(graph: object, **how: int) -> WeightStreamingPlan:
    plan = api.compile(graph, mode="weight-streaming", **how)
    assert isinstance(plan, WeightStreamingPlan)
    return plan


@pytest.mark.slow
def test_a_plan_that_spills_names_the_micro_batch_that_does_not() -> None:
    """Twice the batch loses; the note's micro-batch takes back what it says, and nobody who states one is told."""
    pytest.importorskip("torch")
    graph = api.load_model("gpt2-small", seq=1024, training=True)
    spilled = _plan(graph, batch=1024)
    assert spilled.spilled_bytes > 0
    (note,) = [note for note in spilled.notes if "spill nothing" in note]
    size, gain = re.search(r"micro-batches of (\d+) .* take ([\d.]+)% less", note).groups()  # type: ignore[union-attr]
    smaller = _plan(graph, batch=1024, micro_batch=int(size))
    assert smaller.spilled_bytes == 0
    ratio = api.simulate(smaller).compute_samples_per_s / api.simulate(spilled).compute_samples_per_s
    assert ratio == pytest.approx(1 / (1 - float(gain) / 100), rel=0.02)
    for plan in (smaller, _plan(graph, batch=64)):
        assert not [text for text in plan.notes if "spill nothing" in text]
