"""Samples that wait in the stores of skips: as many as the pace needs, and the engine reports fewer."""

from __future__ import annotations

import pytest

from benchmarks.drawn_models import drawn
from benchmarks.random_models import compiled, lowered
from wse_sim.engine.options import Options
from wse_sim.engine.trace import RunTrace
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.result import PipelinedMeasure
from wse_sim.modes.pipelined.run import PipelinedRun
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


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "rel"), [(56, 0.05), (58, 0.01)])
def test_a_run_counts_the_stores_of_its_program(seed: int, rel: float) -> None:
    """Two residual blocks on a WSE-3, whose skips wait for five periods in stores; with two samples in a stream the engine took 95 % more
    cycles than the fabric, and 5 % more for a smaller model."""
    case = drawn(seed)
    fabric = compare_with_engine(expect(compiled(case, inputs_over_rows(lowered(case))), PipelinedPlan), 10)
    run = expect(compiled(case, lowered(case)), PipelinedPlan)
    engine = PipelinedRun(run, Options(steps=2), None, RunTrace(is_on=False, unit_s=1.0))
    engine.execute()
    assert PipelinedMeasure(engine).step_cycles / case.batch == pytest.approx(fabric.fabric_period, rel=rel)
