"""The pace that a placement of stages states, against the times of the stages in their rectangles."""

from __future__ import annotations

import pytest

from tests.handmade import transformer
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.sizing import Shapes, Sizer
from wse_sim.compiler.stage_placement import place_stages
from wse_sim.hardware import load_wafer

WAFER = load_wafer("wse2").derive(rows=132, cols=137, program_rows=130, program_cols=130)


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize("placer", ["shelves", "snake"])
def test_no_stage_is_slower_than_the_stated_pace(placer: str, objective: str) -> None:
    """The slowest stage takes the pace or, where sizes are whole cores, somewhat less."""
    sizer = Sizer(transformer(2, 128, 4, 128), WAFER, Prices(WAFER, {"training": True}))
    found = place_stages(sizer, placer, objective=objective)
    assert found is not None
    pace, boxes = found
    slowest = max(
        float(sizer.times(sizer.shape_prices(group, Shapes.one(box.compute_rows, box.compute_cols)))[0])
        for group, box in zip(sizer.copies, boxes, strict=True)
    )
    assert 0.9 * pace < slowest <= pace * (1 + 1e-9)
