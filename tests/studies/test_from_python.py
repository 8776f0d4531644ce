"""A study by one call from Python: rows as a data frame, outputs over named axes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import wse_sim

pytest.importorskip("pandas")
CLOCKS = [8e8, 1e9]
SPEC = {
    "fixed": {"model": "fc-mnist", "mode": "weight-streaming"},
    "grid": {"batch": [64, 256], "wafer.clock_hz": CLOCKS},
    "draws": 0,
}


def test_rows_are_those_of_runs(tmp_path: Path) -> None:
    found = wse_sim.study(SPEC, out=tmp_path / "out")
    frame = found.frame()
    assert frame["status"].tolist() == ["done"] * 4
    wafer = wse_sim.load_wafer("wse2").derive(clock_hz=CLOCKS[0])
    alone = wse_sim.run("fc-mnist", mode="weight-streaming", batch=256, wafer=wafer)
    row = frame[(frame["batch"] == 256) & (frame["wafer.clock_hz"] == CLOCKS[0])]
    assert row["samples_per_s"].item() == alone.samples_per_s
    assert repr(found).startswith("<Study over batch, wafer.clock_hz: 4 runs: 4 with a result")
    assert "<table" in found._repr_html_()
    again = wse_sim.study(SPEC, out=tmp_path / "out")
    assert again.ran.reused == 4
    assert again.frame()["key"].tolist() == frame["key"].tolist()


@pytest.mark.slow
def test_outputs_have_an_axis_for_what_varies() -> None:
    pytest.importorskip("xarray")
    found = wse_sim.study(SPEC)
    cube = found.to_xarray()
    assert dict(cube.sizes) == {"batch": 2, "wafer.clock_hz": 2}
    frame = found.frame()
    for _, row in frame.iterrows():
        at = cube["step_s"].sel({"batch": row["batch"], "wafer.clock_hz": row["wafer.clock_hz"]})
        assert at.item() == row["step_s"]
    path = found.path
    assert path.exists()
    del found
    assert not path.exists()


def test_values_that_vary_together_are_no_grid() -> None:
    pytest.importorskip("xarray")
    spec = {**SPEC, "grid": {}, "zip": [{"batch": [64, 256], "wafer.clock_hz": CLOCKS}]}
    cube = wse_sim.study(spec).to_xarray()
    assert dict(cube.sizes) == {"number": 2}
    assert np.array_equal(cube["batch"], [64, 256])
