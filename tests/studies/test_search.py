"""The search finds what a grid finds, obeys its constraints, and continues after an interruption."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.studies import tasks
from tests.studies.test_runner import SMALL, frame_of
from wse_sim.studies import pool as pools
from wse_sim.studies.evaluate import DONE, MISFIT, REFUSED, StudyRow
from wse_sim.studies.expressions import Constraint
from wse_sim.studies.pareto import choose, front
from wse_sim.studies.runner import run_study
from wse_sim.studies.schema import study_from
from wse_sim.studies.search import FARTHEST, _distance

FIXED = {"model": "fc-mnist", "mode": "weight-streaming", **SMALL}


@pytest.fixture(autouse=True)
def _handmade(monkeypatch):
    monkeypatch.setattr(pools, "capture", tasks.capture)


def search(trials=24, **more):
    data = {"objectives": {"samples_per_s": "maximize"}, "trials": trials, "seed": 3} | more
    return study_from({"mode": "search", "fixed": FIXED, "draws": 0, "search": data, "constraints": []})


@pytest.mark.slow
def test_the_best_of_a_search_is_the_best_of_the_grid(tmp_path):
    over = {"batch": [1, 4, 16, 64, 256], "wafer.launch_floor_s": [1e-4, 2e-4, 4e-4]}
    run_study(search(trials=40, over=over), tmp_path / "search", workers=0)
    run_study(study_from({"fixed": FIXED, "grid": over, "draws": 0}), tmp_path / "grid", workers=0)
    found, grid = frame_of(tmp_path / "search"), frame_of(tmp_path / "grid")
    assert found["samples_per_s"].max() == grid["samples_per_s"].max()
    best = found.loc[found["samples_per_s"].idxmax()]
    assert (best["batch"], best["wafer.launch_floor_s"]) == (256, 1e-4)
    assert len(found) == 40


def test_a_search_that_was_cut_off_goes_on(tmp_path):
    """Stored trials are reported, not run again: the command ends after the missing ones."""
    over = {"batch": {"from": 1, "to": 512, "scale": "log"}}
    run_study(search(trials=10, over=over), tmp_path, workers=0)
    first = frame_of(tmp_path)
    ran: list[str] = []
    again = run_study(search(trials=10, over=over), tmp_path, workers=0, say=ran.append)
    assert again.counts[DONE] == len(first) == 10
    assert not ran


def test_ranges_and_constraints_hold(tmp_path):
    over = {
        "batch": {"from": 2, "to": 300},
        "wafer.clock_hz": {"from": 0.8e9, "to": 1.1e9},
        "optimizer": ["sgd", "adamw"],
    }
    spec = study_from(
        {
            "mode": "search", "fixed": FIXED, "draws": 0, "constraints": ["step_s <= 0.008"],
            "search": {
                "objectives": {"samples_per_s": "maximize", "sample_joules": "minimize"}, "trials": 20, "over": over,
            },
        }
    )  # fmt: skip
    run_study(spec, tmp_path, workers=0)
    rows = frame_of(tmp_path)
    assert rows["batch"].between(2, 300).all()
    assert rows["wafer.clock_hz"].between(0.8e9, 1.1e9).all()
    assert set(rows["optimizer"]) <= {"sgd", "adamw"}
    assert len(rows) == 20


def test_what_does_not_fit_misses_by_what_it_needs(tmp_path):
    """A setting far from fitting has a larger penalty than one that nearly fits, and both a larger one than a violated
    constraint; the best fits.
    """
    over = {"wafer.sram_bytes": [4200, 4400, 49152, 2**30]}
    spec = search(trials=16, over=over)
    run_study(spec, tmp_path, workers=0)
    rows = frame_of(tmp_path).drop_duplicates("wafer.sram_bytes").set_index("wafer.sram_bytes")
    missed = {size: row["need_over_limit"] for size, row in rows.iterrows() if row["status"] == "misfit"}
    assert set(missed) == {4200, 4400, 2**30} & set(rows.index)
    assert missed[2**30] > 1
    assert not any(ratio <= 1 for ratio in missed.values())  # none where there is nothing of what binds
    assert rows.loc[49152, "status"] == DONE

    far = _distance(StudyRow("a", MISFIT, {"need_over_limit": 7.0}))
    near = _distance(StudyRow("b", MISFIT, {"need_over_limit": 1.2}))
    broken = Constraint.parse("mfu >= 0.9").excess({"mfu": 0.1})
    assert FARTHEST == _distance(StudyRow("c", REFUSED)) > far > near > 1.0 > broken > 0
    assert _distance(StudyRow("d", MISFIT, {"need_over_limit": 1e6})) == FARTHEST


@hypothesis_settings(deadline=None)
@given(
    points=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30
    ),
    ways=st.tuples(*[st.sampled_from(["maximize", "minimize"])] * 3),
)
def test_the_front_is_what_no_other_point_beats(points, ways):
    """Every pair is compared, as in the definition."""
    values = np.array(points, float)
    signs = np.array([1.0 if way == "maximize" else -1.0 for way in ways])

    def beats(a, b):
        gain = (values[a] - values[b]) * signs
        return (gain >= 0).all() and (gain > 0).any()

    everyone = range(len(points))
    unbeaten = {points[i] for i in everyone if not any(beats(j, i) for j in everyone)}
    found = front(values, ways)
    assert {points[i] for i in found} == unbeaten
    assert len(found) == len(unbeaten)
    chosen = choose(values, ["a", "b", "c"], ways, [{"p": p} for p in points])
    assert chosen is not None
    assert chosen.index in found


def test_the_choice_weighs_relative_losses():
    """Half of the rate for a twentieth less energy is not chosen."""
    values = np.array([[100.0, 2000.0], [50.0, 1900.0]])
    chosen = choose(values, ["rate", "joules"], ["maximize", "minimize"], [{"batch": 2}, {"batch": 1}])
    assert chosen is not None
    assert chosen.index == 0
    assert chosen.why.startswith("Pareto front: 2 points. Recommended: batch 2 samples (")
    assert "rate 100 (best), joules 2,000 (105 % of the least)" in chosen.why
