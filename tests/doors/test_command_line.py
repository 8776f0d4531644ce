"""The command line for a newcomer: answers, exit statuses, sentences instead of traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import wse_sim  # noqa: E402
from wse_sim.engine.result import Result  # noqa: E402
from wse_sim.modes import load_result  # noqa: E402

FIVE = ("Samples/s", "Compute Samples/s", "Transmission Samples/s", "Active PEs", "Compute Utilization")
KEYS = {
    "feasible", "binding", "samples_per_s", "compute_samples_per_s", "transmission_samples_per_s", "active_pe_fraction",
    "compute_utilization", "step_s", "mfu",
}  # fmt: skip


@pytest.mark.slow
def test_a_run_prints_the_five_lines_first(wse):
    """The output has the lines that users of the real system know, in order, within 80 columns."""
    ran = wse("run", "fc-mnist", "--mode", "pipelined", "--phase", "inference", "--batch", "128")
    assert ran.status == 0
    lines = ran.out.splitlines()
    found = [next(i for i, line in enumerate(lines) if line.startswith(name + " ")) for name in FIVE]
    assert found == sorted(found)
    assert found[-1] - found[0] == 4
    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in ran.out  # no colors in a pipe


@pytest.mark.thinned(1)
@pytest.mark.parametrize("mode", ["pipelined", "weight-streaming"])
def test_json_has_the_promised_keys_and_the_files_load_back(wse, tmp_path: Path, mode: str):
    """`--json` gives all numbers; the saved result is the one that was printed."""
    ran = wse("run", "fc-mnist", "--mode", mode, "--batch", "64", "--json", "--out", str(tmp_path))
    assert ran.status == 0
    data = json.loads(ran.out)
    assert set(data) >= KEYS
    result = load_result(tmp_path)
    assert isinstance(result, Result)
    assert result.samples_per_s == data["samples_per_s"]
    assert (
        data["samples_per_s"]
        <= min(data["compute_samples_per_s"], data["transmission_samples_per_s"]) * 1.000001
    )
    for name in (
        "heatmap_compute.png" if mode == "pipelined" else "time_by_kernel.png",
        "heatmap_links.png",
        "report.html",
        "timeline.pftrace",
        "summary.txt",
    ):
        assert (tmp_path / name).stat().st_size > 500, name
    assert "report.html" in ran.err


@pytest.mark.slow
def test_two_runs_are_byte_identical(wse, tmp_path: Path):
    """Determinism from the command line to the files."""
    for name in ("one", "two"):
        wse("run", "fc-mnist", "--mode", "pipelined", "--batch", "32", "--out", str(tmp_path / name), "-q")
    for file in ("result.json", "summary.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_an_answer(wse):
    """GPT-3 13B holds 13 G weights x 18 B; the pipelined wafer has 33.5 GB: status 1, need and limit."""
    ran = wse("run", "gpt3-13b", "--mode", "pipelined", "--json")
    assert ran.status == 1
    data = json.loads(ran.out)
    assert data["feasible"] is False
    assert data["binding"] == "SRAM"
    assert data["limit"] == 745_500 * 44_976
    assert data["need"] == pytest.approx(12.85e9 * 18, rel=0.02)


@pytest.mark.slow
def test_compare_has_a_row_per_mode_even_if_one_does_not_fit(wse):
    """Infeasible is a row, not a crash."""
    ran = wse("compare", "gpt3-13b", "--batch", "16", "--json")
    assert ran.status == 0
    rows = json.loads(ran.out)["rows"]
    assert [row["mode"] for row in rows] == ["pipelined", "weight-streaming"]
    assert [row["feasible"] for row in rows] == [False, True]
    assert rows[1]["binding"] in rows[1]["bindings_s"]


@pytest.mark.slow
def test_auto_takes_the_faster_mode(wse):
    """`--mode auto` selects the better of the two rows of compare."""
    rows = json.loads(wse("compare", "fc-mnist", "--batch", "64", "--json").out)["rows"]
    auto = json.loads(wse("run", "fc-mnist", "--batch", "64", "--json").out)
    assert auto["samples_per_s"] == max(row["samples_per_s"] for row in rows)


@pytest.mark.slow
def test_show_model_counts_parameters_and_flops(wse):
    """BERT-large, batch 1, 128 positions: the FLOPs that torch's counter gives for eager attention."""
    data = json.loads(wse("show", "model", "bert-large", "--batch", "1", "--seq", "128", "--json").out)
    assert data["forward_flops"] == 87_189_618_688
    assert data["training_flops"] == 3 * data["forward_flops"]
    assert 330e6 < data["parameters"] < 345e6
    gemms = [k for k in data["kernels"] if k["class"] == "gemm"]
    assert sum(k["count"] for k in gemms) >= 24 * 4
    assert {"m", "k", "n"} <= set(gemms[0]["shape"])


def test_show_lists_what_there_is(wse):
    """Wafers with evidence, clusters, models and kernels are listed."""
    wafer = json.loads(wse("show", "wafer", "wse2", "--json").out)["constants"]
    assert wafer["hop_cycles"]["evidence"] in {"silicon", "vendor", "simulator", "paper", "assumed"}
    assert "gpt3-175b" in wse("show", "models").out.split()
    assert "gemm" in wse("show", "kernels").out
    assert "swarmx" in wse("show", "cluster").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "gpt9"), "gpt9"),
        (("run", "fc-mnist", "--wafer", "wse9"), "wse1, wse2, wse3"),
        (("run", "fc-mnist", "--batch", "0"), "batch 0"),
        (("run", "fc-mnist", "--systems", "0"), "systems"),
        (("run", "fc-mnist", "--mode", "sideways"), "pipelined, weight-streaming"),
        (("run", "fc-mnist", "--phase", "dreaming"), "training, inference"),
        (("run", "fc-mnist", "--trace-cycles", "9:3"), "A:B"),
        (("run", "no.such.module:thing"), "no.such.module"),
        (("run", "/nowhere/model.yaml"), "nowhere"),
        (("compare",), "wse-sim study"),
        (("kernel", "frob"), "frob"),
        (("kernel", "reduce", "--param", "words"), "key=value"),
        (("place", "fc-mnist-contest"), "fc-mnist-contest"),
        (("report", "/nowhere"), "/nowhere"),
        (("validate", "--data", "/nowhere/suite.yaml"), "cannot be read"),
    ],
)
def test_faults_are_one_sentence_with_status_2(wse, words, says):
    """Bad input: one line that names the value and the remedy, never a trace."""
    ran = wse(*words)
    assert ran.status == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_factory_and_a_yaml_file_are_models_too(wse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`package.module:factory` from the current folder, and a YAML file like those shipped, are models."""
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def small():\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))\n"
        "    return net, (torch.zeros(1, 32),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = json.loads(wse("run", "mine:small", "--phase", "inference", "--mode", "pipelined", "--json").out)
    assert data["feasible"]
    (tmp_path / "tiny.yaml").write_text(
        "name: tiny\nsource: made for a test\nmodel:\n  family: mlp\n  layers: 2\n  hidden: 16\n  input: 8\n  classes: 4\n"
    )
    ran = wse("show", "model", str(tmp_path / "tiny.yaml"), "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["parameters"] > 0


@pytest.mark.slow
def test_the_contest_door_places_and_checks(wse, tmp_path: Path):
    """A made-up instance is placed by `place`, and its placement passes `--check`."""
    from tests.placement.graphs import kgraph_text

    convs = [(14, 14, 3, 3, 16, 32, 1), (14, 14, 1, 1, 32, 32, 1), (7, 7, 3, 3, 32, 64, 1)]
    graph = tmp_path / "chain.kgraph"
    graph.write_text(kgraph_text(convs, [(0, 1), (1, 2)]))
    out = tmp_path / "out"
    ran = wse(
        "place", f"ispd2020:{graph}", "--time-limit", "1", "--placer", "peel", "--json", "--out", str(out)
    )
    assert ran.status == 0, ran.err
    data = json.loads(ran.out)
    assert set(data) >= {"max_time", "wire_l1", "cost", "lower_bound", "wall_s"}
    assert data["max_time"] >= data["lower_bound"]
    assert (out / "placement.paint").exists()
    checked = json.loads(wse("place", "--check", str(graph), str(out / "placement.paint"), "--json").out)
    assert checked["cost"] == data["cost"]


@pytest.mark.slow
def test_both_timings_say_where_they_differ(wse, tmp_path: Path):
    """Rates by formulas and by programs, with the measured fractions; the second run measures nothing."""
    words = ("run", "fc-mnist", "--mode", "weight-streaming", "--batch", "64", "--timing", "both")
    cache = ("--cache", str(tmp_path / "cache"))
    ran = wse(*words, *cache)
    assert ran.status == 0
    assert "by formulas" in ran.out
    assert "by programs" in ran.out
    first, again = (json.loads(wse(*words, *cache, "--json").out)["timing"] for _ in range(2))
    assert first == again
    assert again["cached"] == again["probes"] > 0
    assert any((tmp_path / "cache").rglob("*.json"))
    shares = sum(row["model_cycles"] for row in again["rows"])
    total = shares + sum(row["model_cycles"] for row in again["model_only"])
    assert again["measured_fraction"] == pytest.approx(shares / total)


@pytest.mark.slow
def test_compare_takes_the_cycles_of_programs(wse, tmp_path: Path):
    """Every row of programs states how much of it was measured; the rows of formulas do not."""
    words = ("compare", "fc-mnist", "--batch", "64", "--json", "--cache", str(tmp_path))
    rows = json.loads(wse(*words, "--timing", "fabric").out)["rows"]
    assert all(any("measured on the fabric" in note for note in row["notes"]) for row in rows)
    plain = json.loads(wse(*words).out)["rows"]
    assert not any("measured on the fabric" in note for row in plain for note in row["notes"])
    assert wse(*words, "--timing", "both").status == 2


@pytest.mark.slow
def test_checkpoints_take_their_share_of_every_step(wse):
    """AdamW keeps an fp32 weight and two fp32 moments: 12 bytes per parameter at 0.1 GB/s, in one step of ten."""
    words = ("run", "fc-mnist", "--mode", "weight-streaming", "--batch", "64", "--json")
    plain = json.loads(wse(*words).out)
    saved = json.loads(wse(*words, "--checkpoint-steps", "10", "--checkpoint-gbytes-per-s", "0.1").out)
    parameters = json.loads(wse("show", "model", "fc-mnist", "--json").out)["parameters"]
    assert saved["step_s"] - plain["step_s"] == pytest.approx(12 * parameters / 0.1e9 / 10, rel=1e-6)
    bad = wse(*words, "--checkpoint-steps", "0")
    assert bad.status == 2
    assert "give 1 to" in bad.err


@pytest.mark.slow
def test_jitter_of_input_workers_repeats_with_its_seed(wse):
    """A run that waits for its input changes with the spread of the workers, and equal seeds are equal."""
    words = ("run", "fc-mnist", "--mode", "pipelined", "--batch", "256", "--json")
    plain, one, again = (
        json.loads(wse(*words, *more).out)
        for more in ((), ("--jitter", "0.5", "--seed", "1"), ("--jitter", "0.5", "--seed", "1"))
    )
    assert one == again
    assert one["step_s"] != plain["step_s"]
    assert wse(*words, "--jitter", "2").status == 2


@pytest.mark.slow
def test_generation_prints_both_timings(wse, tmp_path: Path):
    """Decode and prefill rates are printed by formulas and by programs, on one grid."""
    words = ("generate", "llama3-8b", "--grid", "240", "--context", "256", "--cache", str(tmp_path))
    ran = wse(*words, "--timing", "both")
    assert ran.status == 0
    assert ran.out.count("by programs") == 2
    data = json.loads(wse(*words, "--timing", "fabric", "--json").out)
    # All of decode is measured; the skew and the small sums of prefill keep their formula.
    assert 0.95 < data["timing"]["measured_fraction"] <= 1
    assert data["timing"]["cached"] == data["timing"]["probes"]
    plain = json.loads(wse(*words, "--json").out)
    assert data["timing"]["model"]["tokens_per_s_per_user"] == plain["figures"]["tokens_per_s_per_user"]
    assert wse(*words, "--timing", "wall").status == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--mode-options", "replicas=2"), "needs a mode that has them"),
        (("--mode", "pipelined", "--mode-options", "replicas"), "is not NAME=VALUE"),
        (("--mode", "pipelined", "--mode-options", "copies=2"), "has no option 'copies'; it has"),
        (("--mode", "pipelined", "--mode-options", "batch=2"), "has no option 'batch'"),
        (("--mode", "pipelined", "--mode-options", "replicas=two"), "replicas"),
        (("--mode", "pipelined", "--mode-options", "prices=cheap"), "prices"),
        (("--mode", "pipelined", "--mode-options", "prices=[a"), "is not YAML"),
        (("--mode", "pipelined", "--mode-options", "replicas=2,replicas=3"), "is given twice"),
        (("--mode", "pipelined", "--mode-options", "replicas=0"), "too small"),
        (("--mode", "pipelined", "--mode-options", "placer=nope"), "there is no placer 'nope'"),
        (("--mode", "weight-streaming", "--mode-options", "rectangle=[4,x]"), "rectangle"),
    ],
)
def test_options_of_a_mode_are_checked_before_the_model_is_read(wse, given: tuple[str, ...], said: str):
    """The model does not exist, and is not what the sentence is about."""
    ran = wse("run", "no-such-model", *given)
    assert ran.status == 2
    assert said in ran.err
    assert "no-such-model" not in ran.err


def test_an_option_of_a_mode_changes_the_plan(wse):
    """Two copies of the model are faster than one, by as much as in Python."""
    rates = []
    for replicas in (1, 2):
        how = f"replicas={replicas},layouts=false"
        ran = wse("run", "fc-mnist", "--mode", "pipelined", "--batch", "64", "--json", "--mode-options", how)
        rates.append(json.loads(ran.out)["compute_samples_per_s"])
    assert rates[1] > 1.1 * rates[0]
    two = wse_sim.run("fc-mnist", mode="pipelined", batch=64, mode_options={"replicas": 2, "layouts": False})
    assert rates[1] == two.compute_samples_per_s
