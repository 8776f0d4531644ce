"""A folder of the user's runs: points with their provenance, broken runs next to complete ones, kernels, scripts that
ran here.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from wse_sim import api
from wse_sim.cli import app
from wse_sim.errors import ConfigError, WseError
from wse_sim.serialize import save
from wse_sim.validation.predict import predict
from wse_sim.validation.run import validate
from wse_sim.validation.suite import load_suite, write_suite
from wse_sim.validation.user_runs import load_mine

MLP = {"family": "mlp", "layers": 3, "hidden": 32, "input": 64, "classes": 10}
LOG = """2024-03-14 03:18:49,079 INFO:   Effective batch size is 8.
2024-03-14 03:42:56,272 INFO:   Preparing to execute using 1 CSX
2024-03-14 03:45:40,183 INFO:   Beginning appliance run
2024-03-14 03:46:02,970 INFO:   | Train Device=CSX, Step=100, Loss=7.93750, Rate=40.00 samples/sec, GlobalRate=40.00 samples/sec
2024-03-14 03:46:22,970 INFO:   | Train Device=CSX, Step=200, Loss=6.62500, Rate=40.00 samples/sec, GlobalRate=40.00 samples/sec
"""
SAID = {"model": MLP, "wafer": "wse2"}


def run(folder: Path, name: str, stated: object = SAID, **files: str) -> Path:
    """Return a run's folder: run.yaml and files (``__`` stands for the dot)."""
    home = folder / name
    home.mkdir(parents=True)
    if stated is not None:
        (home / "run.yaml").write_text(yaml.safe_dump(stated), encoding="utf-8")
    for file, text in files.items():
        (home / file.replace("__", ".")).write_text(text, encoding="utf-8")
    return home


def one(folder: Path):
    (point,) = load_mine(folder).points
    return point


def test_a_log_and_two_words_of_the_user_make_a_point(tmp_path):
    run(tmp_path, "a", mytest__log=LOG)
    point = one(tmp_path)
    assert point.fault == ""
    assert (point.id, point.system, point.subject, point.measured) == ("a", "wse2", "model.training", 40.0)
    assert point.params == {"model": MLP, "batch": 8, "systems": 1, "mode": "weight-streaming"}
    assert "GlobalRate at step 200 (line 5); mytest.log sha256 " in str(point.source)


def test_runs_share_what_is_stated_once_and_may_be_single_files(tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**SAID, "release": "2.1"}))
    run(tmp_path, "a", None, mytest__log=LOG)
    run(
        tmp_path,
        "b",
        {"seq": 9, "wafer": "wse3", "log": "x.txt"},
        x__txt=LOG.replace("GlobalRate=40.00", "GlobalRate=40.01"),
        y__txt=LOG,
    )
    (tmp_path / "c.log").write_text(LOG)
    (tmp_path / "c.yaml").write_text("systems: 2")
    points = {point.id: point for point in load_mine(tmp_path).points}
    assert [point.fault for point in points.values()] == ["", "", ""]
    assert [points[name].system for name in "abc"] == ["wse2", "wse3", "wse2"]
    assert [points[name].params["systems"] for name in "abc"] == [1, 1, 2]
    assert (points["b"].params["seq"], points["b"].measured) == (9, 40.01)


def test_a_folder_with_one_log_is_itself_the_run(tmp_path, monkeypatch):
    home = run(tmp_path, "model_dir", mytest__log=LOG)
    (home / "events").mkdir()
    monkeypatch.chdir(home)
    assert [(p.id, p.measured) for p in load_mine(Path()).points] == [("model_dir", 40.0)]
    # a log elsewhere that the statement names
    run(tmp_path, "b", SAID | {"log": "../model_dir/mytest.log"})
    found = next(p for p in load_mine(tmp_path).points if p.id == "b")
    assert "../model_dir/mytest.log sha256 " in str(found.source)
    # two logs with one statement are two runs
    (home / "events").rmdir()
    (home / "other.log").write_text(LOG)
    assert [(p.id, p.measured) for p in load_mine(home).points] == [("mytest", 40.0), ("other", 40.0)]


def test_the_suite_that_is_written_gives_the_same_points(tmp_path):
    run(tmp_path, "a", mytest__log=LOG)
    run(tmp_path, "b", {"kernel": "gemv", "sizes": {"m": 64, "n": 64}, "cycles": 900, "wafer": "wse3"})
    mine = load_mine(tmp_path)
    assert load_suite(write_suite(mine, tmp_path / "suite.yaml")) == mine


BROKEN = {
    "no JSON": ({}, {"performance__json": '{"total_samples": 12'}, "performance.json: is not JSON"),
    "no number": ({}, {"performance__json": '{"total_samples": "many", "total_time": 1, "samples_per_sec": 1}'}, "'many', a number is needed"),
    "NaN": ({}, {"performance__json": '{"total_samples": 8, "total_time": 1, "samples_per_sec": NaN}'}, "'samples_per_sec' is nan"),
    "no steps": ({}, {"performance__json": '{"total_samples": 0, "total_time": 1, "samples_per_sec": 8}'}, "'total_samples' is 0"),
    "huge": ({}, {"performance__json": '{"total_samples": 1' + "0" * 400 + ', "total_time": 1, "samples_per_sec": 8}'}, "'total_samples' is inf"),
    "contradicts itself": ({}, {"performance__json": '{"total_samples": 8, "total_time": 1, "samples_per_sec": 9}'}, "total_samples / total_time is 8"),
    "a list": ({}, {"performance__json": "[]"}, "holds a list"),
    "no key": ({}, {"performance__json": "{}"}, "key 'total_samples' is missing"),
    "no log": ({"batch": 8, "systems": 1, "mode": "pipelined"}, {}, "contains no log of training"),
    "no wafer": ({"wafer": None}, {"a__log": LOG}, "state `wafer: wse2` (CS-2)"),
    "no model": ({"model": None}, {"a__log": LOG}, "no file states which model ran"),
    "no systems": ({}, {"a__log": LOG.replace("execute using 1 CSX", "")}, "no file states `systems`"),
    "no mode": ({}, {"a__log": LOG.replace("CSX,", "xla:0,")}, "no file states `mode`"),
    "zero steps": ({}, {"a__log": LOG.replace("Step=100", "Step=0").replace("Step=200", "Step=0")}, "its last step is 0"),
    "NaN rate": ({}, {"a__log": LOG.replace("GlobalRate=40.00", "GlobalRate=nan")}, "GlobalRate is nan"),
    "wrong batch": ({"batch": 80}, {"a__log": LOG}, "with batch 80 the time stamps give"),
    "two logs": ({}, {"a__log": LOG, "b__log": LOG.replace("Step=200", "Step=300")}, "a.log and b.log are logs of two runs"),
    "two params": ({"model": None}, {"a__log": LOG, "a__yaml": "trainer: {a: 1}", "b__yaml": "trainer: {b: 1}"}, "holds 2 params files"),
    "unknown key": ({"modle": "x"}, {"a__log": LOG}, "key 'modle'"),
    "wrong type": ({"batch": "8"}, {"a__log": LOG}, "key 'batch'"),
    "no report": ({}, {"a__log": LOG, "compile_report__txt": "Samples/s: many"}, "is not a positive number"),
    "empty record": ({}, {"run__json": "{}"}, "names no compile"),
    "odd record": ({}, {"run__json": '{"compiles": [{"batch": 8, "step_s": 1}], "options": {"systems": {}}, "with_effect": {"density": {"a": "b"}}}'}, "b"),
}  # fmt: skip


def test_one_broken_run_does_not_take_the_others_with_it(tmp_path):
    for name, (stated, files, _) in BROKEN.items():
        said = {key: value for key, value in (SAID | stated).items() if value is not None}
        run(tmp_path, name, said, **files)
    run(tmp_path, "whole", mytest__log=LOG)
    points = {point.id: point for point in load_mine(tmp_path).points if "(compiler)" not in point.id}
    for name, (_, _, sentence) in BROKEN.items():
        found = points[name].fault
        if name == "no report":  # the measurement itself stands
            found = next(p.fault for p in load_mine(tmp_path).points if p.id == name and p.fault)
        assert sentence in found, name
        assert str(tmp_path) in found, name
        assert found.count(". ") == 0, name  # one sentence
    assert points["whole"].measured == 40.0


def test_the_command_lists_all_runs_and_ends_with_a_fault_where_one_cannot_be_read(tmp_path):
    run(tmp_path, "broken", performance__json="{")
    run(tmp_path, "whole", mytest__log=LOG)
    out = tmp_path / "out"
    answer = CliRunner().invoke(app, ["validate", "--mine", str(tmp_path), "--out", str(out), "-q"])
    assert isinstance(answer.exception, WseError)
    assert "1 of 2 points cannot be read" in str(answer.exception)
    rows = {line.split()[0]: line for line in answer.stdout.splitlines() if line}
    assert "is not JSON" in rows["broken"]
    assert "%" in rows["whole"]
    assert [point.id for point in load_suite(out / "suite.yaml").points] == ["whole"]
    # the folder of results is no run, neither this command's nor one of before
    assert [point.id for point in load_mine(tmp_path).points] == ["broken", "whole"]
    assert [point.id for point in load_mine(tmp_path, tmp_path / "whole").points] == ["broken"]


def test_what_lies_beside_a_log_does_not_hide_it(tmp_path, monkeypatch):
    """Files of the cluster: a log without progress, one that is too large, and two performance.json; one log of the script among them."""
    home = run(tmp_path, "a", mytest__log=LOG, performance__json="{", cluster__log="poll ingress\n")
    (home / "job").mkdir()
    (home / "job" / "performance.json").write_text("{}")
    (home / "job" / "large.log").write_text("x" * 2000)
    monkeypatch.setattr("wse_sim.files.MAX_TEXT_BYTES", 1000)
    point = one(tmp_path)
    assert (point.measured, point.fault) == (40.0, "")
    assert "holds 2 different files performance.json" in str(point.note)
    (home / "mytest.log").unlink()
    assert "the limit is 1,000" in one(tmp_path).fault


def test_folders_without_a_run_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, sentence in (("nowhere", "is not a folder"), ("empty", "contains no run")):
        with pytest.raises(ConfigError, match=sentence):
            load_mine(tmp_path / name)
    answer = CliRunner().invoke(app, ["validate", "--refit"])
    assert "give --mine FOLDER or --data SUITE" in str(answer.exception)


def test_what_the_compiler_expected_is_shown_and_not_counted(tmp_path):
    said = {"batch": 8, "systems": 1, "mode": "pipelined", **SAID}
    report = "Estimated Overall Performance\n-------\nSamples/s:                    14724.2\nCompute Samples/s:            17287.7\n"
    run(
        tmp_path,
        "a",
        said,
        compile_report__txt=report,
        performance__json='{"total_samples": 80, "total_time": 2.0, "samples_per_sec": 40.0}',
    )
    elder = {"total_samples": 80, "total_time": 2.0, "samples_per_sec": 40.0, "est_samples_per_sec": 55}
    run(tmp_path, "b", said, performance__json=json.dumps(elder))
    run(
        tmp_path,
        "c",
        said,
        a__log=LOG + "Compile estimated performance: 44.5 samples/sec (44.5 samples/sec/system).\n",
    )
    found = [(p.id, p.measured, p.gate) for p in load_mine(tmp_path).points]
    assert found == [
        ("a", 40.0, True), ("a (compiler)", 14724.2, False), ("b", 40.0, True), ("b (compiler)", 55.0, False),
        ("c", 40.0, True), ("c (compiler)", 44.5, False),
    ]  # fmt: skip


def test_time_stamps_of_cores_are_read_as_the_host_copies_them(tmp_path):
    """Two cores: 2^16 + 5 to 2^32 + 7 and 3 to 9, as six 16-bit words and packed into three words of 32 bits."""
    words = np.array([[5, 1, 0, 7, 0, 1], [3, 0, 0, 9, 0, 0]], np.uint32)
    packed = np.array([[5 | 1 << 16, 0 | 7 << 16, 0 | 1 << 16], [3, 0 | 9 << 16, 0]], np.uint32)
    long, short = 2**32 + 7 - (2**16 + 5), 6
    said = {"kernel": "gemv", "sizes": {"m": 64, "n": 64}, "wafer": "wse2", "stamps": "t.npy"}
    for name, array in (
        ("a", words),
        ("b", packed),
        ("c", packed.view(np.float32)),
        ("d", words.reshape(1, 2, 6)),
    ):
        np.save(run(tmp_path, name, said) / "t.npy", array)
    run(tmp_path, "e", said | {"stamps": "none.npy"})
    np.save(run(tmp_path, "f", said) / "t.npy", np.zeros((2, 5), np.uint32))
    np.save(run(tmp_path, "g", said) / "t.npy", words[:, ::-1])
    points = {p.id: p for p in load_mine(tmp_path).points}
    assert [points[name].measured for name in "abcd"] == [(long + short) / 2] * 4
    assert points["a"].subject == "kernel.gemv"
    assert [
        word in points[name].fault for name, word in (("e", "cannot be read as .npy"), ("f", "shape (2, 5)"))
    ] == [True, True]
    assert "a positive number is needed" in points["g"].fault


def test_a_program_is_measured_by_what_its_host_printed_and_runs_only_where_its_sources_are_named(tmp_path):
    program = {"commands": "commands.sh", "printed": r"cycles_send = (\d+)"}
    run(
        tmp_path,
        "a",
        {"program": program, "output": "sim.log", "wafer": "wse2"},
        sim__log="step 6\ncycles_send = 4711 cycles\n",
    )
    run(tmp_path, "b", {"program": program, "output": "sim.log", "wafer": "wse2"}, sim__log="no cycles\n")
    run(tmp_path, "c", {"program": program, "wafer": "wse2"})
    run(tmp_path, "d", {"program": program | {"layout": "x.csl"}, "cycles": 3, "wafer": "wse2"})
    a, b, c, d = load_mine(tmp_path).points
    assert (a.measured, a.subject, a.params["program"]["commands"]) == (
        4711.0,
        "csl.program",
        "commands.sh",
    )
    assert "prints nothing like" in b.fault
    assert "does not state what was measured" in c.fault
    assert "either" in d.fault
    assert "--sources" in predict(a).reason


def test_a_script_that_ran_here_is_met_without_error(tmp_path):
    """The runner's record and its captured graph give the step that it simulated. The log of a real machine next to
    that graph needs no other statement of the model.
    """
    graph = api.load_model(MLP, training=True)
    result = api.run(graph, api.RunOptions(mode="weight-streaming", batch=8))
    save(graph, tmp_path / "art" / "compile_0_step", "graph")
    step = {
        "name": "step",
        "mode": result.mode,
        "step_s": result.step_s + 1e-5,
        "on_top_s": 1e-5,
        "batch": 8,
        "training": True,
    }
    settings = {
        "num_csx": 1,
        "num_workers_per_csx": 1,
        "max_act_per_csx": 1,
        "max_wgt_servers": 24,
        "micro_batch_size": "auto",
        "density": {},
    }
    record = {
        "options": {"wafer": "wse2", "cluster": "default", "systems": None},
        "with_effect": settings,
        "compiles": [step],
    }
    (tmp_path / "art" / "run.json").write_text(json.dumps(record))
    run(tmp_path, "real", {"graph": "../art/compile_0_step", "wafer": "wse2"}, mytest__log=LOG)
    run(
        tmp_path,
        "wrong",
        {"graph": "../art/compile_0_step", "wafer": "wse2", "phase": "evaluation", "samples_per_s": 3.0},
        mytest__log=LOG,
    )
    art, real, wrong = validate(load_mine(tmp_path)).rows
    assert art.error == pytest.approx(0.0, abs=1e-9)
    assert real.prediction.predicted == pytest.approx(8 / result.step_s)
    assert "holds a training graph" in wrong.prediction.reason


def test_a_folder_with_thousands_of_files_is_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr("wse_sim.validation.user_runs.MOST_FILES", 3)
    run(tmp_path, "a", a__log=LOG, b__log=LOG, c__log=LOG)
    assert "holds more than 3 files" in one(tmp_path).fault
    monkeypatch.setattr("wse_sim.validation.user_runs.MOST_RUNS", 0)
    with pytest.raises(ConfigError, match="the limit is 0"):
        load_mine(tmp_path)


@given(data=st.data())
def test_files_that_were_cut_or_changed_never_stop_the_reader(tmp_path_factory, data):
    """Every file of a run with a piece overwritten by odd characters: a point with a measurement, or one with a sentence that names a path."""
    folder = tmp_path_factory.mktemp("mine")
    files = {
        "mytest__log": LOG,
        "performance__json": '{"total_samples": 1600, "total_time": 40.0, "samples_per_sec": 40.0}',
        "compile_report__txt": "Estimated Overall Performance\nSamples/s:   14724.2\n",
    }
    stated = "model: {family: mlp, layers: 3, hidden: 32, input: 64, classes: 10}\nwafer: wse2\n"
    name = data.draw(st.sampled_from([*files, "run__yaml"]))
    text = files.get(name, stated)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    odd = data.draw(st.text(st.sampled_from("0-9=.,:{}[]\"'\\\n\r\0 nae\u2588\ud7ff"), max_size=12))
    home = run(folder, "a", None, **{**files, "run__yaml": stated, name: text[:start] + odd + text[end:]})
    points = load_mine(folder).points
    assert points
    for point in points:
        assert bool(point.fault) != bool(point.measured)
        assert not point.fault or str(home) in point.fault
