"""The page of a run that was stepped on the fabric: its maps and its table are the counters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.whole.test_dense_chain import network
from tests.whole.test_streaming import build
from tests.whole.test_training import training_plan
from wse_sim.modes import simulate
from wse_sim.report import html
from wse_sim.whole import compare_streaming, compare_training, measured
from wse_sim.whole.page import STATES


def test_the_page_shows_the_counters_of_every_core() -> None:
    """Issuing, waiting and idle add up to a core's time; a region's row has the busiest core of its part of the map."""
    plan = training_plan(network((16, 8, 6)), 16)
    found = compare_training(plan)
    shown = measured(found)
    by_key = {one.key: one for one in shown.maps}
    times = [by_key[f"measured_{key}"].values for key in ("busy", "stalled_input", "stalled_output", "idle")]
    assert np.sum(times, axis=0) == pytest.approx(np.ones((16, 16)), abs=1e-6)
    words = sum(by_key[f"link_measured_{way}"].values.sum() for way in "nesw")
    assert words * found.fabric_step == pytest.approx(found.fabric.link_wavelets[:, :, :4].sum(), rel=1e-5)
    laid = np.stack([by_key[f"link_laid_{way}"].values for way in "nesw"], axis=2)
    assert laid.sum() > 0
    assert np.all(laid * found.fabric_step <= found.fabric.link_wavelets[:, :, :4] + 0.01)
    assert shown.rows[-1][0] == "loss"
    for row, stage, region in zip(shown.rows[:-1], plan.stages, found.regions[:-1], strict=True):
        area = stage.region
        part = times[0][
            area.row : area.row + area.rows, area.col + area.cols - area.compute_cores // area.rows :
        ]
        assert row[0] == stage.name
        assert float(row[2].replace(",", "")) == pytest.approx(region.busiest, abs=0.5)
        assert part.max() * found.fabric_step >= region.busiest - 0.5


@pytest.mark.slow
def test_a_page_has_the_layers_only_where_the_fabric_ran() -> None:
    """The payload of the page, and its text."""
    plan = training_plan(network((16, 8, 6)), 16)
    result = simulate(plan)
    shown = measured(compare_training(plan))
    keys = [layer["key"] for layer in html.payload(result, measured=shown)["layers"]]
    assert keys[-12:] == [one.key for one in shown.maps]
    page, plain = html.render(result, measured=shown), html.render(result)
    assert 'id="fabric-table"' in page
    assert shown.sentence in page
    assert "On the fabric" not in plain


@pytest.mark.slow
def test_the_page_of_streamed_weights_has_phases_and_counters() -> None:
    """Phases add up to the step, states of the mean core to its time; the maps are those of the last run."""
    _, plan = build("two lanes", training=True)
    found = compare_streaming(plan)
    assert sum(one.fabric for one in found.passes) == found.fabric_step
    assert sum(found.times) == pytest.approx(found.fabric_step)
    assert sum(found.engine_times) == pytest.approx(found.engine_step, rel=1e-6)
    shown = measured(found)
    assert [row[0] for row in shown.rows[:6]] == [*(one.name for one in found.passes)]
    assert [row[0] for row in shown.rows[6:]] == ["step", *(f"a core {state}" for state in STATES)]
    assert "On the fabric" in html.render(simulate(plan), measured=shown)
    # All sums of gradients run down on the fabric, in the map to the rows where they leave.
    planned, counted = found.link_words
    assert 0.5 < planned / counted < 1.4


def test_streamed_links_of_an_inference_are_those_of_the_map() -> None:
    """Weights down the columns, and sums along the lanes."""
    _, plan = build("two lanes", training=False)
    planned, counted = compare_streaming(plan).link_words
    assert 0.75 < planned / counted < 1.1
