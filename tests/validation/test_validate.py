"""A tiny suite: every point is listed, faults are reasons, errors and means are computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from wse_sim.errors import ConfigError
from wse_sim.validation.picture import draw
from wse_sim.validation.predict import Prediction, predict
from wse_sim.validation.run import Row, Validation, validate
from wse_sim.validation.suite import Point, Suite, load_suite

SUITE = Path(__file__).parents[2] / "benchmarks" / "validation" / "suite.yaml"
MLP = {"family": "mlp", "layers": 3, "hidden": 32, "input": 64, "classes": 10}


def point(**changes) -> Point:
    fields = {
        "id": "mlp", "system": "wse2", "subject": "model.training", "quantity": "samples_per_s", "measured": 1.0, "unit": "samples/s",
        "params": {"mode": "weight_streaming", "model": MLP, "batch": 8},
    }  # fmt: skip
    return Point(**(fields | changes))


def with_params(**changes) -> Point:
    return point(params={**point().params, **changes})


def test_a_suite_runs_with_faulty_points_among_good_ones(tmp_path):
    good = point().model_dump()
    entries = [
        good,
        {**good, "extra": "a comment"},
        {**good, "measured": -3},
        {**good, "subject": "model.dream"},
        {**good, "params": {**good["params"], "batch": "many"}},
        "no mapping",
        {**good, "id": 7, "gate": False},
    ]
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "points": entries}), encoding="utf-8")
    answer = validate(load_suite(path))
    assert len(answer.rows) == len(entries)
    ran = [row.prediction.predicted is not None for row in answer.rows]
    assert ran == [True, False, False, False, False, False, True]
    reasons = [row.prediction.reason for row in answer.rows]
    for number, word in ((1, "extra"), (2, "measured"), (3, "subject"), (4, "many"), (5, "entry 5")):
        assert word in reasons[number]
    assert answer.rows[6].point.id == "7"
    draw(answer, tmp_path / "validation.png")
    assert (tmp_path / "validation.png").stat().st_size > 10_000


def test_order_of_the_generations_counts_runs_that_both_have():
    """Three runs are on both: measured 10 < 20, 10 < 20, 30 > 20; predicted 11 < 12, 15 > 14, 9 > 8: two of three
    agree. A run on one generation does not count.
    """
    pairs = [(10.0, 20.0, 11.0, 12.0), (10.0, 20.0, 15.0, 14.0), (30.0, 20.0, 9.0, 8.0)]
    rows = [
        Row(point(system=system, params={"run": number}, measured=measured), Prediction(predicted, "", ""))
        for number, (first, second, one, two) in enumerate(pairs)
        for system, measured, predicted in (("wse2", first, one), ("wse3", second, two))
    ]
    rows.append(Row(point(system="wse2", params={"run": 9}), Prediction(1.0, "", "")))
    answer = Validation(tuple(rows))
    assert answer.order() == (2, 3)
    assert "2 of 3 pairs right" in answer.table()
    assert "no run of this suite is measured on both" in Validation(tuple(rows[1::5])).table()


def test_means_count_gated_points_that_ran():
    # Errors +10 %, -20 %, and +50 % that is not counted: means 15 % in total, 10 % and 20 % by subject.
    rows = (
        Row(point(measured=100.0), Prediction(110.0)),
        Row(point(measured=100.0, subject="kernel.gemm"), Prediction(80.0)),
        Row(point(measured=100.0, gate=False), Prediction(150.0)),
        Row(point(measured=100.0), Prediction(None, reason="why")),
    )
    answer = Validation(rows)
    means = answer.mape()
    assert means["total"] == pytest.approx(15)
    assert (means["model.training"], means["kernel.gemm"]) == (pytest.approx(10), pytest.approx(20))
    text = answer.table()
    assert "100          110 samples/s" in text
    assert "total                     15.00 %     2 points" in text
    assert "kernel                    20.00 %     1 point\n" in text
    data = answer.as_dict()
    assert data["points"][3]["reason"] == "why"
    assert data["points"][0]["error"] == pytest.approx(0.1)
    assert Validation(()).as_dict()["mape"] == {"total": None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        with_params(systems=4),
        with_params(micro_batch=2),
        with_params(sparsity=0.5),
        with_params(mode="pipelined"),
        with_params(mode="auto", workers=4),
        with_params(optimizer="sgd"),
        point(params={"model": MLP, "batch": 8}),
        point(subject="model.evaluation"),
        point(system="wse3"),
        point(system="wse1"),
        point(quantity="step_ms"),
    ],
)
def test_points_of_the_format_run(changed):
    assert predict(changed).predicted


def test_grid_points_take_names_and_batches():
    fields = {"subject": "model.decode", "quantity": "tokens_per_s"}
    params = {"model": "llama3-8b", "grid": 420, "groups": 20, "context": 4096}
    one = predict(point(**fields, params=params)).predicted
    assert one == pytest.approx(2699.9, rel=0.03)
    assert predict(point(**fields, params={**params, "batch": 4})).predicted == one


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (with_params(mode="fsdp"), "mode 'fsdp'"),
        (point(system="wse9"), "wse9"),
        (point(quantity="bananas"), "bananas"),
        (point(params={"model": MLP}), "batch"),
        (with_params(model={**MLP, "depth": 3}), "depth"),
        (with_params(systems=999), "999 systems"),
        (point(subject="kernel.fft3d", params={}), "fft3d"),
        (point(subject="model.decode", params={"model": MLP, "grid": 4, "context": 8}), "ffn"),
        (with_params(mode="pipelined-systems", lanes=2), "lanes"),
    ],
)
def test_what_cannot_run_says_why(changed, says):
    found = predict(changed)
    assert found.predicted is None
    assert says in found.reason


def test_the_shipped_suite_holds_its_kernel_and_grid_points():
    points = tuple(p for p in load_suite(SUITE).points if p.subject not in {"model.training"})
    answer = validate(Suite(points=points))
    means = answer.mape()
    assert means["model.prefill"] < 3
    assert means["model.decode"] < 3
    assert all(abs(row.error) < 0.08 for row in answer.rows if row.error is not None and row.point.gate)
    decode = [row.prediction.predicted for row in answer.rows if row.point.id.startswith("decode-llama3")]
    assert decode == sorted(decode, reverse=True)  # slower from 420 x 420 to 660 x 660, as measured


def test_a_file_that_is_no_suite_is_one_sentence(tmp_path):
    path = tmp_path / "suite.yaml"
    path.write_text("points: 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="points"):
        load_suite(path)


@pytest.mark.slow
def test_the_command_exits_with_zero_and_prints_json(tmp_path):
    import typer

    from wse_sim.cli.validate import validate_command

    path = tmp_path / "suite.yaml"
    far = {**point().model_dump(), "measured": 1e9}
    path.write_text(yaml.safe_dump({"schema": 1, "points": [far, far]}), encoding="utf-8")
    app = typer.Typer()
    app.command()(validate_command)
    found = CliRunner().invoke(app, ["--data", str(path), "--json", "--quiet", "--out", str(tmp_path / "o")])
    assert found.exit_code == 0
    data = json.loads(found.stdout)
    assert [p["id"] for p in data["points"]] == ["mlp", "mlp"]
    assert data["mape"]["total"] > 90
    assert (tmp_path / "o" / "validation.json").exists()


def test_points_run_on_the_fabric_where_they_are_small_enough():
    formulas, fabric = predict(point()).predicted, predict(point(), timing="fabric").predicted
    assert fabric == pytest.approx(formulas, rel=0.5)
    fields = {"subject": "kernel.reduce", "quantity": "cycles"}
    small = {"algorithm": "chain", "cores": 16, "words": 64, "dtype": "fp32"}
    by_formula, as_run = (
        predict(point(**fields, params=small), timing=t).predicted for t in ("model", "fabric")
    )
    assert as_run == pytest.approx(by_formula, rel=0.1)
    large = {"m": 33000, "n": 33000, "k": 33000, "rows": 750, "cols": 750, "dtype": "fp32"}
    found = predict(point(subject="kernel.gemm", quantity="cycles", params=large), timing="fabric")
    assert "--timing model" in found.reason


@pytest.mark.thinned(1)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_layers_on_a_grid_run_on_the_fabric_too(phase):
    """420 is 20 groups of 21: the program's tree is the one that the formula counts, and the rates are close."""
    sizes = {"hidden": 840, "ffn": 1680, "layers": 2}
    params = {"model": sizes, "grid": 420, "context": 840, "tokens": 840}
    fields = {"subject": f"model.{phase}", "quantity": "tokens_per_s", "params": params}
    by_formula, as_run = (predict(point(**fields), timing=t).predicted for t in ("model", "fabric"))
    assert as_run != by_formula
    assert as_run == pytest.approx(by_formula, rel=0.05)


@pytest.mark.slow
def test_training_points_stay_within_the_goal():
    points = tuple(p for p in load_suite(SUITE).points if p.subject == "model.training")
    answer = validate(Suite(points=points))
    assert answer.mape()["model.training"] <= 6
    assert all(abs(row.error or 1.0) <= 0.15 for row in answer.rows)
    rate = {row.point.id: row.prediction.predicted or 0.0 for row in answer.rows}
    assert rate["P04-bert-large-b256"] == pytest.approx(rate["P01-bert-large"], rel=0.15)


@pytest.mark.slow
def test_two_processes_say_what_one_says() -> None:
    """The rows are the same, in the same order, bounds included."""
    points = tuple(p for p in load_suite().points if p.subject in ("kernel.gemv", "kernel.reduce"))[:6]
    one, two = (validate(Suite(points=points), percent=90.0, workers=workers) for workers in (1, 2))
    assert one.as_dict() == two.as_dict()
    assert all(row.interval is not None for row in one.rows)


def test_fitted_points_have_a_mean_of_their_own():
    """Errors are 10 and 30 % for fitted points and 2 % for the others; points that are not counted are in neither mean."""
    cases = ((True, True, 110.0), (True, True, 130.0), (False, True, 98.0), (False, False, 200.0))
    rows = tuple(
        Row(point(fitted=fitted, gate=gate, measured=100.0), Prediction(predicted, "compute", ""))
        for fitted, gate, predicted in cases
    )
    found = Validation(rows).split()
    assert found == {"fitted": (pytest.approx(20.0), 2), "predicted": (pytest.approx(2.0), 1)}
    assert "predicted                  2.00 %     1 point" in Validation(rows).table()


def test_the_marks_of_fitted_points_are_those_that_the_fits_take():
    """The marks in the suites are those of the points to which `benchmarks.fits` fits constants."""
    from benchmarks.fits import FITS

    points = load_suite().points
    assert [one.id for one in points if one.fitted] == [
        one.id for one in points if any(fit.takes(one) for fit in FITS)
    ]
