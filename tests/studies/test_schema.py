"""A study's file: its valid content, the sentence for every fault, and the settings that it makes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from wse_sim.errors import ConfigError
from wse_sim.hardware import Cluster, Wafer
from wse_sim.hardware.chip import Chip
from wse_sim.modes import MODES, option_names
from wse_sim.options import RunOptions
from wse_sim.studies.expand import settings
from wse_sim.studies.expressions import Constraint
from wse_sim.studies.parameters import parameters
from wse_sim.studies.schema import MOST_RUNS, read_study, study_from
from wse_sim.studies.study_plan import planned_sweep

FIXED = {"model": "fc-mnist", "mode": "weight-streaming"}


def of(**more):
    return study_from({"fixed": FIXED, **more})


def values(spec, *names):
    return [tuple(setting[name] for name in names) for setting in settings(spec)]


def test_everything_that_is_declared_can_be_varied():
    names = set(parameters())
    assert {option.name for option in RunOptions.options()} - {"cache"} <= names
    for owner, kind in (("wafer", Wafer), ("cluster", Cluster), ("chip", Chip)):
        stated = set(kind.model_fields) - {"name", "provenance", "correlations"}
        assert {f"{owner}.{name}" for name in stated} <= names
    for mode in MODES:
        own = set(option_names(mode)) - {"batch"} - set(RunOptions.model_fields)
        assert {f"{mode.name.replace('-', '_')}.{name}" for name in own} <= names


def test_a_grid_is_the_product_and_the_first_axis_changes_slowest():
    spec = of(grid={"batch": [1, 2, 3], "systems": [1, 2]})
    assert values(spec, "batch", "systems") == list(itertools.product([1, 2, 3], [1, 2]))


def test_ranges_are_those_of_numpy():
    spec = of(grid={"wafer.clock_hz": {"from": 0.9e9, "to": 1.2e9, "steps": 4}})
    assert np.allclose([v for (v,) in values(spec, "wafer.clock_hz")], np.linspace(0.9e9, 1.2e9, 4))
    spec = of(grid={"batch": {"from": 1, "to": 1000, "steps": 4, "scale": "log"}})
    assert values(spec, "batch") == [(1,), (10,), (100,), (1000,)]
    spec = of(grid={"batch": {"from": 8, "to": 33, "step": 8}})
    assert values(spec, "batch") == [(8,), (16,), (24,), (32,)]


def test_zipped_lists_walk_together_beside_a_grid():
    spec = of(grid={"systems": [1, 2]}, zip=[{"batch": [8, 16], "density": [1.0, 0.5]}])
    assert values(spec, "systems", "batch", "density") == [
        (1, 8, 1.0),
        (1, 16, 0.5),
        (2, 8, 1.0),
        (2, 16, 0.5),
    ]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("method", ["latin", "sobol"])
@hypothesis_settings(deadline=None)
@given(runs=st.integers(1, 40), seed=st.integers(0, 1000))
def test_samples_fill_every_stripe_and_repeat_with_their_seed(method, runs, seed):
    over = {"wafer.clock_hz": {"from": 1e9, "to": 2e9}, "optimizer": ["sgd", "adamw"]}
    data = {"fixed": FIXED, "sample": {"method": method, "runs": runs, "seed": seed, "over": over}}
    first, again = (values(study_from(data), "wafer.clock_hz", "optimizer") for _ in range(2))
    assert first == again
    assert len(first) == runs
    places = sorted((clock - 1e9) / 1e9 for clock, _ in first)
    assert all(0 <= place <= 1 for place in places)
    if method == "latin":  # one in each of `runs` equal stripes: what makes a hypercube Latin
        assert [int(min(place, 1 - 1e-12) * runs) for place in places] == list(range(runs))


def test_constraints_on_parameters_leave_settings_out():
    spec = of(grid={"batch": [1, 2, 3, 4], "systems": [1, 2]}, constraints=["batch % systems == 0"])
    assert values(spec, "batch", "systems") == [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2)]
    # A parameter that the study does not state has its default: 1 system.
    assert len(list(settings(of(grid={"batch": [1, 2]}, constraints=["batch > systems"])))) == 1


FAULTS = [
    ({"grid": {"batches": [1]}}, "parameter 'batches' is unknown; did you mean batch"),
    ({"grid": {"wafer.sram_byte": [1]}}, "did you mean wafer.sram_bytes"),
    ({"grid": {"batch": []}}, "'batch' has an empty list"),
    ({"grid": {"batch": [0]}}, "batch 0 is too small; give 1 to 1,000,000,000 samples"),
    ({"grid": {"batch": ["many"]}}, "batch 'many' is not an integer"),
    ({"grid": {"batch": {"from": 4, "to": 2, "steps": 2}}}, "from 4 is above to 2; swap them"),
    ({"grid": {"batch": {"from": 0, "to": 2, "steps": 2, "scale": "log"}}}, "a log scale needs from above 0"),
    ({"grid": {"batch": {"from": 1, "to": 2}}}, "a range without steps or step"),
    ({"grid": {"batch": {"from": 1, "to": float("nan"), "steps": 2}}}, "key 'grid.batch.to'"),
    ({"grid": {"optimizer": {"from": 1, "to": 2, "steps": 2}}}, "'optimizer' is not a number and has no range"),
    ({"grid": {"wafer.colors": [30]}}, "'wafer.colors' 30: Input should be less than or equal to 24"),
    ({"grid": {"wafer.sram_bytes": [-5]}}, "'wafer.sram_bytes' -5"),
    ({"grid": {"batch": [1]}, "fixed": {**FIXED, "batch": 2}}, "'batch' is given twice"),
    ({"zip": [{"batch": [1, 2], "systems": [1]}]}, "zip needs lists of one length, batch 2, systems 1 are given"),
    ({"fixed": {"mode": "auto"}}, "no model is named"),
    ({"outputs": ["speed"]}, "output 'speed' is unknown; use some of samples_per_s"),
    ({"outputs": []}, "key 'outputs'"),
    ({"constraints": ["__import__('os')"]}, "cannot be read"),
    ({"constraints": ["batch >"]}, "cannot be read (invalid syntax)"),
    ({"constraints": ["bath > 1"]}, "names 'bath', which is neither a parameter nor an output"),
    ({"girds": {}}, "key 'girds' is unknown; use some of about, mode, fixed"),
    ({"mode": "hunt"}, "key 'mode'"),
    ({"mode": "search"}, "mode search needs a key 'search'"),
    ({"search": {"objectives": {"mfu": "maximize"}, "over": {"batch": [1]}}}, "needs mode: search"),
    ({"sample": {"runs": 0, "over": {"batch": [1]}}}, "key 'sample.runs'"),
    ({"derive": ["equal-area"], "grid": {"wafer.rows": [1]}}, "equal-area computes wafer.rows itself"),
    ({"draws": -1}, "key 'draws'"),
    ({"grid": [1]}, "key 'grid'"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "sentence"), FAULTS, ids=[text[:40] for _, text in FAULTS])
def test_a_fault_is_one_sentence(more, sentence):
    with pytest.raises(ConfigError) as found:
        list(settings(study_from({"fixed": FIXED, **more}, "study.yaml")))
    text = str(found.value)
    assert sentence in text
    assert "\n" not in text
    assert len(text) < 600


def test_too_many_runs_are_refused_before_they_are_made():
    axis = list(range(1, 2001))
    with pytest.raises(ConfigError, match=f"the limit is {MOST_RUNS:,}"):
        list(settings(of(grid={"batch": axis, "systems": axis})))


@hypothesis_settings(deadline=None)
@given(st.integers(-50, 50), st.integers(1, 50))
def test_constraints_mean_what_python_means(a, b):
    given_values = {"batch": a, "wafer.rows": b}
    for text, truth in (
        ("batch % wafer.rows == 0 or -batch < wafer.rows // 2", a % b == 0 or -a < b // 2),
        ("1 < batch <= max(wafer.rows, 3)", 1 < a <= max(b, 3)),
        ("not (batch * 2 + 1 > wafer.rows)", not (a * 2 + 1 > b)),
        ("batch in [1, 2, 3]", a in [1, 2, 3]),
    ):
        condition = Constraint.parse(text)
        assert condition.holds(given_values) == truth
        assert (condition.excess(given_values) == 0) == truth
    assert Constraint.parse("batch > wafer.rows").names == {"batch", "wafer.rows"}


EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "studies").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_studies_that_make_runs(path):
    planned = planned_sweep(read_study(path))
    assert len(planned.requests) >= 12
    assert not planned.faults
    assert f"`studies/{path.name}`" in (path.parents[1] / "README.md").read_text(encoding="utf-8")
