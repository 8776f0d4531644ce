"""Refit: points made with other constants recover them; ranges hold; undetermined constants stay; files are the shipped
ones plus the changes.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from benchmarks.fits import FITS
from wse_sim.cli import app
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.uncertainty.draws import Z95, ranged
from wse_sim.validation.predict import predict, predict_on, wafer_of
from wse_sim.validation.refit import FITTED, refit, solve, told_apart, value_at, write_refits
from wse_sim.validation.suite import Point

GRIDS = ((16, 16, 64), (32, 32, 128), (48, 48, 96), (64, 64, 512))


def gemv(rows: int, cols: int, size: int, measured: float = 1.0) -> Point:
    params = {"m": size, "n": size, "rows": rows, "cols": cols}
    return Point(
        id=f"gemv-{rows}-{size}", system="wse3", subject="kernel.gemv", params=params, quantity="cycles", measured=measured, evidence="silicon"
    )  # fmt: skip


def made_with(**constants: float) -> list[Point]:
    """Make points whose measurements are predictions with other constants."""
    points = []
    for rows, cols, size in GRIDS:
        point = gemv(rows, cols, size)
        wafer = wafer_of(point).model_copy(update=constants)
        points.append(gemv(rows, cols, size, predict_on(point, wafer).predicted or math.nan))
    return points


def test_a_line_is_solved_as_the_closed_form_says():
    """e_i = a_i x + b_i with hold h: x = - sum a b / (sum a^2 + h^2); bounds cut it off."""
    a, b, h = np.array([1.0, 2.0, -1.0]), np.array([0.3, -0.5, 0.2]), 0.5
    expected = -(a @ b) / (a @ a + h * h)
    for step in (0.0, 0.05):
        found = solve(lambda x: list(a * x[0] + b), 1, spread=1.0, hold=h, bound=5.0, step=step)
        assert found.x[0] == pytest.approx(expected, rel=1e-5)
        assert found.covariance[0, 0] == pytest.approx(1 / (a @ a + h * h), rel=1e-4)
    cut = solve(lambda x: list(a * x[0] + b), 1, spread=1.0, hold=h, bound=0.05, step=0.05)
    assert cut.x[0] == pytest.approx(0.05, abs=1e-4)


@pytest.mark.slow
def test_constants_that_made_the_points_are_found_again():
    """One constant on each side of its range is recovered from four points, more than enough for the most sensitive
    ones.
    """
    stated = load_wafer("wse3")
    true = {"vector_start_cycles": stated.vector_start_cycles * 1.06}
    (found,) = refit(made_with(**true))
    moves = {move.constant.name: move for move in found.moves}
    assert max(abs(row.after) for row in found.rows) < 0.2 * max(abs(row.before) for row in found.rows)
    assert moves["vector_start_cycles"].value > stated.vector_start_cycles
    assert set(moves).isdisjoint({*found.alone, *found.confused})
    assert {"launch_floor_s", "worker_samples_per_s", "special_element_cycles"} <= set(found.alone)
    assert all(row.left_out is not None for row in found.rows)


def test_constants_that_move_points_alike_are_not_told_apart():
    """With two equal columns (J'J)^-1 is bounded only by HOLD, so one constant is dropped and the other is known within
    s / |a|.

    |a| = sqrt(4) * 0.02 = 0.04 and s = 0.005 (the errors are on the line): 0.125.  A column of 0.002 is known within 1.25 and goes."""
    column = np.full(4, 0.02)
    assert told_apart({"a": column, "b": column}, 3 * column) in (["a"], ["b"])
    assert told_apart({"a": column, "weak": np.array([0.002, -0.002, 0.002, -0.002])}, 3 * column) == ["a"]
    other = column * np.array([1, -1, 1, -1])
    assert told_apart({"a": column, "b": other}, 3 * column) == ["a", "b"]
    # with a scatter of 10 % around the line nothing is told: 0.1 * sqrt(4 / 3) / 0.04 > 1
    assert told_apart({"a": column}, 0.1 * np.array([1.0, -1.0, 1.0, -1.0])) == []


@pytest.mark.slow
def test_a_machine_beyond_a_range_leaves_the_constant_at_its_end():
    """The fit of 9.5 cycles stops at 8, where the range ends, and the table states this."""
    (found,) = refit(made_with(vector_start_cycles=9.5))
    moves = {move.constant.name: move for move in found.moves}
    for move in found.moves:
        low, high = move.constant.stated.range
        assert low - 1e-9 <= move.value <= high + 1e-9
    assert moves["vector_start_cycles"].is_at_end
    assert moves["vector_start_cycles"].value == pytest.approx(8.0, rel=1e-3)
    assert "AT ITS END" in found.table()


def test_errors_that_no_constant_explains_move_none():
    """Alternating errors of half as much again and 40 % less cannot be explained by any constant of a grid, so all are
    unchanged.
    """
    points = zip(made_with(), (1.5, 0.6, 1.5, 0.6), strict=True)
    (found,) = refit([p.model_copy(update={"measured": (p.measured or 0.0) * f}) for p, f in points])
    assert found.moves == ()
    assert "vector_start_cycles" in found.confused
    assert "nothing moves" in found.table()
    assert [row.before for row in found.rows] == [row.after for row in found.rows]


def test_two_points_say_that_they_are_too_few_and_leave_none_out():
    (found,) = refit(made_with()[:2])
    assert found.is_short
    assert "fewer points (2) than constants that move them" in found.table()
    assert [row.left_out for row in found.rows] == [None, None]
    # the points are those of the stated constants: nothing moves, and no file is written
    assert not any(move.is_moved for move in found.moves)


@pytest.mark.slow
def test_the_file_that_is_written_predicts_as_the_refit_says(tmp_path):
    points = made_with(vector_start_cycles=7.6, loop_cycles=37.5)
    (found,) = refit(points)
    (path,) = write_refits([found], tmp_path)
    assert path.name == "wafer-wse3-mine.yaml"
    stated = yaml.safe_load(path.read_text())
    assert stated["base"] == "wse3"
    assert set(stated["constants"]) == {move.constant.name for move in found.moves if move.is_moved}
    assert {entry["evidence"] for entry in stated["constants"].values()} == {"silicon"}
    wafer = load_wafer(str(path))
    assert wafer.correlations == load_wafer("wse3").correlations
    for point, row in zip(points, found.rows, strict=True):
        mine = predict(point.model_copy(update={"system": str(path)}))
        assert mine.predicted / point.measured - 1 == pytest.approx(row.after, abs=1e-4)


def test_the_two_rates_of_one_line_move_together(tmp_path):
    """A perceptron whose weights bind, predicted 3 % too slow: MemoryX and SwarmX are one line, and a cluster's file holds both."""
    mlp = {"family": "mlp", "layers": 3, "hidden": 8192, "input": 8192, "classes": 8192}
    params = {"model": mlp, "mode": "weight-streaming", "batch": 1, "systems": 1}
    point = Point(id="mlp", subject="model.evaluation", params=params, quantity="samples_per_s", measured=1.0)
    stated = predict(point)
    assert stated.binding == "weight_io"
    point = point.model_copy(update={"measured": 1.03 * stated.predicted})
    (found,) = refit([point])
    moves = {move.constant.name: move for move in found.moves}
    assert set(moves) == {"memoryx_bytes_per_s", "swarmx_bytes_per_s"}
    assert moves["memoryx_bytes_per_s"].value == moves["swarmx_bytes_per_s"].value > 1.2e11
    assert abs(found.rows[0].after) < 0.002
    (path,) = write_refits([found], tmp_path)
    again = point.model_copy(update={"params": {**params, "cluster": str(path)}})
    assert predict(again).predicted / point.measured - 1 == pytest.approx(found.rows[0].after, abs=1e-4)
    # refitted once more into the same folder, the file that it is on stays
    (second,) = refit([again.model_copy(update={"measured": 0.99 * point.measured})])
    (other,) = write_refits([second], tmp_path)
    assert (other.name, path.exists()) == ("cluster-default-mine-wse2-again.yaml", True)
    assert load_cluster(str(other)).memoryx_bytes_per_s < moves["memoryx_bytes_per_s"].value


def test_points_that_are_not_counted_and_programs_take_no_part():
    points = made_with()
    program = points[0].model_copy(update={"id": "p", "subject": "csl.program"})
    (found,) = refit([points[0], points[1].model_copy(update={"gate": False}), program])
    assert [row.id for row in found.rows] == [points[0].id]
    assert refit([program]) == ()


def test_every_constant_that_was_fitted_can_be_refitted():
    counts = {"tree_root_streams", "tree_handovers"}  # integers
    assert {name for fit in FITS for name in fit.constants} - counts <= set(FITTED)
    for name in ("wse2", "wse3"):
        constants = ranged(load_wafer(name), load_cluster())
        assert {c.name for c in constants if "fitted to" in c.stated.source} - counts <= set(FITTED)
        for constant in constants:
            if constant.name in FITTED:
                ends = [value_at(constant, score) for score in (-Z95, 0.0, Z95)]
                assert ends == pytest.approx(
                    [constant.stated.range[0], constant.stated.value, constant.stated.range[1]]
                )
                owner = load_wafer(name) if constant.owner == "wafer" else load_cluster()
                owner.derive(**{constant.name: (ends[0] + 2 * ends[2]) / 3})  # any number between is a value


@pytest.mark.slow
def test_the_command_writes_what_it_says(tmp_path):
    """There are four timed kernels in a folder: the JSON names the changed constants, the file has them, and the
    exported suite predicts with it.
    """
    for point in made_with(vector_start_cycles=7.6):
        home = tmp_path / "mine" / point.id
        home.mkdir(parents=True)
        said = {"kernel": "gemv", "sizes": point.params, "cycles": point.measured, "wafer": "wse3"}
        (home / "run.yaml").write_text(yaml.safe_dump(said))
    out = tmp_path / "out"
    answer = CliRunner().invoke(
        app, ["validate", "--mine", str(tmp_path / "mine"), "--refit", "--out", str(out), "--json", "-q"]
    )
    assert answer.exit_code == 0, answer.output
    (found,) = json.loads(answer.stdout)["refit"]
    assert found["rms_error"]["after"] < found["rms_error"]["before"]
    moved = {one["name"]: one["refitted"] for one in found["constants"] if one["refitted"] != one["stated"]}
    stated = yaml.safe_load((out / "wafer-wse3-mine.yaml").read_text())["constants"]
    assert {name: entry["value"] for name, entry in stated.items()} == pytest.approx(
        {name: moved[name] for name in stated}, rel=1e-5
    )
    suite = yaml.safe_load((out / "suite.yaml").read_text())["points"]
    assert [one["measured"] for one in suite] == [
        point.measured for point in sorted(made_with(vector_start_cycles=7.6), key=lambda p: p.id)
    ]
