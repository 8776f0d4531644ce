"""The command ``place``: contest instances end to end, models ranked, faults as one sentence."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.placement.graphs import chain, kgraph_text
from wse_sim.cli import app
from wse_sim.door import main

TEXT = kgraph_text([(14, 14, 3, 3, 16, 32, 1), (14, 14, 1, 1, 32, 32, 1), (7, 7, 3, 3, 32, 16, 1)], chain(3))


def run(*words: str):
    """Run ``wse-sim place`` in this process."""
    return CliRunner().invoke(app, ["place", *words])


@pytest.fixture
def graph(tmp_path):
    """Write an instance of three convolutions."""
    path = tmp_path / "three.kgraph"
    path.write_text(TEXT)
    return path


def test_contest_mode_writes_a_placement_that_passes_its_check(graph, tmp_path):
    """It writes JSON, placement.paint and a picture; the check finds the same cost."""
    out = tmp_path / "out"
    found = run(f"ispd2020:{graph}", "--placer", "snake", "--time-limit", "1", "--out", str(out), "--json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    assert {"max_time", "wire_l1", "cost", "lower_bound", "wall_s"} <= set(data)
    assert data["cost"] == data["max_time"] + data["wire_l1"]
    assert data["lower_bound"] <= data["max_time"]
    assert (out / "placement.png").stat().st_size > 1000
    again = run("--check", str(graph), str(out / "placement.paint"), "--json")
    checked = json.loads(again.stdout)
    assert [checked[k] for k in ("max_time", "wire_l1", "cost")] == [
        data[k] for k in ("max_time", "wire_l1", "cost")
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ispd2020:missing.kgraph"], "missing.kgraph"),
        (["--check", "missing.kgraph", "nothing.paint"], "missing.kgraph"),
        ([], "nothing to place"),
        (["fc-mnist", "--placers", "oracle"], "oracle"),
        (["fc-mnist", "--placers", ","], "names no placer"),
        (["fc-mnist", "--mode", "weight-streaming"], "weight-streaming"),
        (["no-such-model"], "no-such-model"),
        (["fc-mnist", "--time-limit", "0"], "time limit 0"),
    ],
)
def test_faults_are_one_sentence_with_status_2(words, says, capsys, monkeypatch):
    """Standard error has one line that names the value; standard output stays empty."""
    monkeypatch.setattr("sys.argv", ["wse-sim", "place", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    told = capsys.readouterr()
    assert says in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


@pytest.mark.slow
def test_an_illegal_placement_is_named_with_status_2(graph, tmp_path, capsys, monkeypatch):
    """Two kernels on one place: the sentence names both."""
    out = tmp_path / "out"
    run(f"ispd2020:{graph}", "--placer", "snake", "--time-limit", "1", "--out", str(out))
    lines = (out / "placement.paint").read_text().splitlines()
    places = [i for i, line in enumerate(lines) if ": place(" in line]
    lines[places[1]] = lines[places[1]].split(":")[0] + ":" + lines[places[0]].split(":")[1]
    (out / "bad.paint").write_text("\n".join(lines))
    monkeypatch.setattr("sys.argv", ["wse-sim", "place", "--check", str(graph), str(out / "bad.paint")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "'k1' and 'k2' overlap" in capsys.readouterr().err


@pytest.mark.slow
def test_model_mode_ranks_placers(tmp_path):
    """The output has a table of placers against objectives, best throughput first, a verdict and a picture."""
    words = (
        "fc-mnist",
        "--placers",
        "shelves,snake",
        "--time-limit",
        "1",
        "--batch",
        "16",
        "--out",
        str(tmp_path),
    )
    found = run(*words, "--json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    rates = [row["samples_per_s"] for row in data["placements"]]
    assert rates == sorted(rates, reverse=True)
    assert {row["placer"] for row in data["placements"]} == {"shelves", "snake"}
    assert all(row["slowest_cycles"] >= row["bound_cycles"] * 0.99 for row in data["placements"])
    assert "wire" in data["verdict"]
    assert (tmp_path / "placements.png").stat().st_size > 1000
    table = run(*words).output
    assert all(word in table for word in ("samples/s", "slowest", "wire L1", "used", "wall", "area bound"))


def test_a_time_limit_is_kept_where_nothing_is_placed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many different blocks, where preparation alone exceeds the limit, the answer is a sentence with the remedy."""
    from wse_sim.compiler.contest_graph import parse_kgraph
    from wse_sim.compiler.placement import portfolio, snake
    from wse_sim.errors import PlacementError

    convs = "".join(f"conv[{i}] H=7 W=7 R=1 S=1 C={i} K={i} T=1 U=1 name='k{i}'\n" for i in range(16, 80))
    head = "width=300\nheight=300\nwdeltat=1\nwlength=1\nwadapter=0\nmemlimit=24576\n"
    problem = parse_kgraph(head + convs).problem()
    for module in (snake, portfolio):
        monkeypatch.setattr(module, "FIRST_S", -1.0)
    for placer in (snake.SnakePlacer(), portfolio.PortfolioPlacer(1)):
        with pytest.raises(PlacementError, match="give more by --time-limit"):
            placer.place(problem, time_limit_s=0.5)
