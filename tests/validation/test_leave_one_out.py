"""Leave-one-out: the refit recovers the numbers that made the rates."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.leave_one_out import FITTED, changed, neutral, refit
from wse_sim.hardware import load_wafer


def test_the_refit_finds_the_number_behind_an_error():
    # Point 0 is 10 % slow for each tenth more of t_k, point 1 feels only e; both are off by one known step.
    change = {name: np.zeros((3, len(values))) for name, values in FITTED.items()}
    floors, specials = np.array(FITTED["launch_floor_s"]), np.array(FITTED["special_element_cycles"])
    change["launch_floor_s"][0] = -np.log(floors)
    change["special_element_cycles"][1] = -np.log(specials)
    error = np.array([np.log(1.1), np.log(0.9), 0.3])
    found = refit([0, 1], error, change)
    assert found["launch_floor_s"] == pytest.approx(1.1, abs=0.02)
    assert found["special_element_cycles"] == pytest.approx(0.9, abs=0.02)


def test_neutral_numbers_change_nothing():
    wafer = load_wafer("wse2")
    same = changed(wafer, neutral())
    assert all(getattr(same, name) == getattr(wafer, name) for name in FITTED)
    assert changed(wafer, {"triggered_start_cycles": 0.5}).triggered_start_cycles == 0.5
