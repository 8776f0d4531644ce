"""The placement benchmark runs without any file and prints its numbers."""

from __future__ import annotations

import json

import pytest

from benchmarks.placement import main, seed_range
from tests.placement.graphs import chain, kgraph_text


@pytest.mark.slow
def test_generated_case_as_json(capsys):
    """A generated instance is placed and its cost, time and seed are in the JSON."""
    assert main(["--dir", "", "--cases", "chain32", "--seeds", "3", "--placer", "snake", "--json"]) == 0
    told = capsys.readouterr()
    out = json.loads(told.out)
    run = out["runs"][0]
    assert "chain32 seed 3: cost" in told.err
    assert (run["case"], run["seed"], run["legal"]) == ("chain32", 3, True)
    assert run["cost"] == run["max_time"] + run["wire_l1"]
    assert out["cases"][0]["median_cost"] == run["cost"]


def test_missing_case_is_a_fault(capsys, tmp_path):
    """A case that is not in the folder gives status 2 and one sentence."""
    assert main(["--dir", str(tmp_path), "--cases", "none"]) == 2
    assert "none.kgraph" in capsys.readouterr().err


def test_seed_words():
    """Seeds may be single numbers or ranges."""
    assert seed_range(["0..2", "7"]) == [0, 1, 2, 7]


def test_cases_may_be_files(capsys, tmp_path):
    """A path among the cases is read as it is, in any folder."""
    path = tmp_path / "two.kgraph"
    path.write_text(kgraph_text([(7, 7, 1, 1, 16, 16, 1)] * 2, chain(2)))
    assert main(["--dir", "", "--cases", str(path), "--seeds", "0", "--placer", "snake"]) == 0
    assert "two seed 0: cost" in capsys.readouterr().out


def test_an_empty_folder_is_a_fault(capsys, tmp_path):
    """A folder without instances gives status 2 and one sentence."""
    assert main(["--dir", str(tmp_path)]) == 2
    assert "no .kgraph file" in capsys.readouterr().err
