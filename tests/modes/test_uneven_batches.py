"""Batches that do not divide: time and useful work."""

from __future__ import annotations

import pytest

from wse_sim import api


def test_samples_that_fill_up_are_no_useful_work() -> None:
    """Seven samples on four systems take the time of eight, and count as seven samples of work."""
    graph = api.load_model("fc-mnist", training=True)
    seven, eight = (
        api.simulate(api.compile(graph, mode="weight-streaming", batch=batch, systems=4)) for batch in (7, 8)
    )
    assert seven.step_s == eight.step_s
    assert seven.flops_per_step == pytest.approx(7 / 8 * eight.flops_per_step)
    assert seven.mfu == pytest.approx(7 / 8 * eight.mfu)
