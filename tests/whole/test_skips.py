"""Samples that wait in the stores of skips: as many as the pace needs, and the engine reports fewer."""

from __future__ import annotations

import pytest

from benchmarks.drawn_models import drawn
from benchmarks.random_models import compiled, lowered
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_with_engine, inputs_over_rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", [52, 53])
def test_skips_hold_what_the_pace_needs(seed: int) -> None:
    """Two samples per store were too few in these random models: 14 and 28 % more cycles than in the engine."""
    case = drawn(seed)
    plan = expect(compiled(case, inputs_over_rows(lowered(case))), PipelinedPlan)
    found = compare_with_engine(plan, 8)
    assert not found.full
    assert found.fabric_period == pytest.approx(found.engine_period, rel=0.04)
    last = found.regions[-1]
    assert last.started == pytest.approx(last.engine_started, rel=0.12)  # 0.43 before
