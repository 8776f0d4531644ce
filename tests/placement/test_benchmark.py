"""The placement benchmark runs without any file and prints its numbers."""

from __future__ import annotations

import json

from benchmarks.placement import main, seed_range


def test_generated_case_as_json(capsys):
    """A generated instance is placed and its cost, time and seed are in the JSON."""
    assert main(["--dir", "", "--cases", "chain32", "--seeds", "3", "--placer", "shelves", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    run = out["runs"][0]
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
