"""Pictures, the page and the command of a study."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from tests.studies import tasks
from tests.studies.test_runner import study
from wse_sim.cli import app
from wse_sim.door import run as door
from wse_sim.studies import pool as pools
from wse_sim.studies.data import Shown, shown
from wse_sim.studies.folder import Folder
from wse_sim.studies.page import render
from wse_sim.studies.plots import Axes, crossings, draw_all, effects
from wse_sim.studies.runner import run_study
from wse_sim.studies.store import Store

YAML = """
about: batch against clock
fixed: {model: fc-mnist, mode: weight-streaming, wafer.rows: 60, wafer.cols: 60, wafer.program_rows: 58, wafer.program_cols: 56}
grid:
  batch: [8, 32, 128, 4000000]
  wafer.clock_hz: {from: 0.9e9, to: 1.1e9, steps: 3}
outputs: [samples_per_s, sample_joules]
draws: 2
"""


@pytest.fixture(autouse=True)
def _handmade(monkeypatch):
    monkeypatch.setattr(pools, "capture", tasks.capture)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "capture", tasks.capture)
        spec = study(
            grid={"batch": [8, 32, 128], "optimizer": ["sgd", "adamw"], "wafer.sram_bytes": [4200, 49152]},
            outputs=["samples_per_s", "sample_joules"], draws=2,
        )  # fmt: skip
        run_study(spec, folder, workers=0)
    opened, number, name = Folder.opened(folder)
    with Store(opened.store) as store:
        return folder, shown(store, number, name)


@pytest.mark.slow
def test_all_pictures_are_drawn(ran):
    folder, read = ran
    written = draw_all(read, folder)
    assert {path.stem for path in written} == {"lines", "map", "axes", "pareto", "tornado"}
    assert all(path.stat().st_size > 10_000 for path in written)
    chosen = draw_all(
        read, folder, Axes(x="batch", y="step_s", by="optimizer", objectives="mfu:max,power_w:min")
    )
    assert {path.stem for path in chosen} >= {"lines", "map", "pareto"}


@pytest.mark.slow
def test_models_that_do_not_fit_have_no_size_and_a_choice_may_be_left_to_the_compiler(tmp_path):
    """A missing value in a row (a size, a number that is "none") breaks neither the pictures nor the page."""
    spec = study(grid={"micro_batch": [None, 8], "batch": [8, 32]}, outputs=["samples_per_s", "parameters"])
    rows = tuple(
        {
            "number": i, "parameters": {"micro_batch": micro, "batch": batch}, "key": str(i), "seconds": 1.0,
            "status": "done" if i < 3 else "misfit", "mode": "", "binding": "compute" if i < 3 else "SRAM",
            "message": "", "low": {}, "high": {},
            "outputs": {"samples_per_s": 5.0 + i, "parameters": 1e6 * (1 + i)} if i < 3 else {},
        }
        for i, (micro, batch) in enumerate([(None, 8), (None, 32), (8, 8), (8, 32)])
    )  # fmt: skip
    read = Shown("sizes", spec, rows, ("micro_batch", "batch"), ("samples_per_s", "parameters"))
    for axes in (Axes(), Axes(x="parameters"), Axes(x="micro_batch", by="batch")):
        drawn = {path.stem for path in draw_all(read, tmp_path, axes)}
        assert {"lines", "axes", "pareto"} <= drawn, axes
        assert "SRAM" in render(read, tmp_path, axes)


@pytest.mark.slow
def test_the_tornado_is_the_difference_of_means(ran):
    _, read = ran
    rows = [row for row in read.rows if row["status"] == "done"]
    rates = np.array([row["outputs"]["samples_per_s"] for row in rows])
    batches = np.array([row["parameters"]["batch"] for row in rows])
    found = {effect.name: effect for effect in effects(read, "samples_per_s")}
    assert found["batch"].high == pytest.approx(rates[batches == 128].mean() / rates.mean() - 1)
    assert found["batch"].low == pytest.approx(rates[batches == 8].mean() / rates.mean() - 1)
    assert found["batch"].at_high == "128"


def test_lines_cross_where_powers_are_equal():
    """x^2 = 8 x at x = 8; lines are straight in logarithms, so the crossing is exact between any two points."""
    x = np.array([1.0, 3.0, 20.0, 50.0])
    assert crossings((x, x**2), (x, 8 * x)) == [pytest.approx(8.0)]
    assert crossings((x, x**2), (x, x**2 + 1)) == []
    nearly = x**2 * np.where(x < 8, 0.999, 1.001)
    assert len(crossings((x, x**2), (x, nearly))) == 1
    assert crossings((x, x**2), (x, nearly), least=0.01) == []
    straight = np.array([-1.0, 1.0])
    assert crossings((straight, straight), (straight, -straight)) == [pytest.approx(0.0)]


@pytest.mark.slow
def test_the_page_carries_every_run_and_nothing_from_elsewhere(ran):
    folder, read = ran
    text = render(read, folder, Axes())
    assert not re.search(r'(src|href)="(?!#)', text)
    assert "http" not in text.replace("http-equiv", "")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found.group(1).replace("<\\/", "</"))
    assert [row["n"] for row in data["rows"]] == list(range(12))
    place = [column["name"] for column in data["columns"]].index("samples_per_s")
    for row, kept in zip(data["rows"], read.rows, strict=True):
        assert row["s"] == kept["status"]
        if row["s"] == "done":
            assert row["v"][place] == pytest.approx(kept["outputs"]["samples_per_s"], rel=1e-8)
            assert row["b"]["samples_per_s"][0] < row["v"][place] < row["b"]["samples_per_s"][1]
    assert data["chosen"] in data["front"]
    assert "SRAM" in text


def command(*words):
    return door(app, [str(word) for word in words])


def test_the_command_runs_plots_exports_and_says_what_is_wrong(tmp_path, capsys):
    path = tmp_path / "clock.yaml"
    path.write_text(YAML, encoding="utf-8")
    out = tmp_path / "out"
    assert command("study", path, "--dry-run") == 0
    assert "12 runs of 1 captured models" in capsys.readouterr().out
    assert not out.exists()
    assert command("study", path, "--out", out, "--workers", 0, "--export", "csv", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["counts"]["done"] + said["counts"]["misfit"] == 12
    frame = pd.read_csv(out / "clock.csv")
    assert len(frame) == 12
    assert {
        "batch",
        "wafer.clock_hz",
        "samples_per_s",
        "samples_per_s.low",
        "binding",
        "seconds",
        "key",
    } <= set(frame)
    assert command("study", "export", out) == 0
    assert len(pd.read_parquet(out / "clock.parquet")) == 12
    assert command("study", "plot", out, "--quiet") == 0
    assert "Recommended: " in capsys.readouterr().out
    assert (out / "study.html").is_file()
    assert command("study", "plot", out, "--x", "colour") == 2
    assert "--x colour is neither varied nor an output" in capsys.readouterr().err
    assert command("study", "plot", tmp_path) == 2
    assert "contains no study" in capsys.readouterr().err
    assert command("study", "result", out, 99) == 2
    assert "has no run 99" in capsys.readouterr().err
    assert command("study", path) == 2
    assert "give --out DIR, or --dry-run" in capsys.readouterr().err
    assert command("study", tmp_path / "none.yaml", "--out", out) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_what_can_be_varied_is_listed(capsys):
    assert command("study", "parameters", "sram_bytes") == 0
    assert "wafer.sram_bytes" in capsys.readouterr().out


def test_a_chip_is_shown(capsys):
    assert command("show", "chip") == 0
    assert "mm2 with 49,152 bytes of SRAM" in capsys.readouterr().out


@pytest.mark.slow
def test_lines_mark_what_has_no_result_and_names_have_units():
    """A line without any result stays in the legend; rates have their units, energies and times have words."""
    from matplotlib.figure import Figure

    from wse_sim.studies.labels import quantity, setting, short
    from wse_sim.studies.plots import lines

    spec = study(grid={"optimizer": ["sgd", "adam"], "batch": [8, 32]}, outputs=["samples_per_s"])
    rows = tuple(
        {
            "number": i, "parameters": {"optimizer": name, "batch": batch}, "key": str(i), "seconds": 1.0,
            "status": "misfit" if name == "adam" else "done", "mode": "", "binding": "SRAM", "message": "", "low": {},
            "high": {}, "outputs": {} if name == "adam" else {"samples_per_s": 5.0 + i},
        }
        for i, (name, batch) in enumerate([("sgd", 8), ("sgd", 32), ("adam", 8), ("adam", 32)])
    )  # fmt: skip
    figure = Figure()
    assert lines(
        Shown("sizes", spec, rows, ("optimizer", "batch"), ("samples_per_s",)), Axes(x="batch"), figure
    )
    assert figure.axes[0].get_legend_handles_labels()[1] == ["optimizer sgd", "optimizer adam: no result"]
    equal = tuple({**row, "status": "done", "outputs": {"samples_per_s": 5.0}} for row in rows)
    figure = Figure()
    assert lines(
        Shown("sizes", spec, equal, ("optimizer", "batch"), ("samples_per_s",)), Axes(x="batch"), figure
    )
    assert [line.get_linestyle() for line in figure.axes[0].get_lines()[:2]] == ["-", "--"]
    assert (quantity("samples_per_s", 26.07), quantity("step_s", 0.0135)) == (
        "26.07 samples/s",
        "step 13.5 ms",
    )
    assert (short("compute_samples_per_s"), setting("batch", 8)) == ("compute samples/s", "batch 8 samples")
