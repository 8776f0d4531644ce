"""The fidelity benchmark on small inputs: it passes correct values, and names wrong ones."""

from __future__ import annotations

import json

import pytest

from benchmarks import fidelity


def test_published_times_come_out_within_one_percent() -> None:
    """Vector operations and words of two wafers are compared by program; the reductions are in test_closed_forms."""
    rows = list(fidelity.published(kernels=("vector_op", "point_to_point")))
    assert len(rows) >= 9
    assert [row.name for row in rows if row.fails] == []


def test_a_published_row_that_was_not_run_is_not_passed() -> None:
    """512 cores for 9,000 cycles exceed a limit of 1,000 core cycles."""
    row = next(fidelity.published(1e3, kernels=("reduce",)))
    assert row.found is None
    assert row.fails
    assert "core cycles" in row.line()


def test_programs_meet_their_closed_forms() -> None:
    """Chain, star and broadcast agree exactly, tree within 2 %."""
    rows = list(fidelity.forms(((4, 16), (16, 64))))
    assert len(rows) == 10
    assert [row.name for row in rows if row.fails] == []
    assert {row.limit for row in rows} == {0.0, fidelity.TREE_LIMIT}


@pytest.mark.slow
def test_the_executors_agree_on_both_wafers() -> None:
    """Ten random programs run on each wafer."""
    for seen in fidelity.agreement(10):
        assert (seen["programs"], seen["wavelet_differs"], seen["max_plus_differs"]) == (10, 0, 0)


def test_a_row_beyond_its_limit_is_named_and_sets_the_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A form that is one cycle off fails the command."""
    wrong = fidelity.Row("forms", "chain P=4 B=16", 91.0, 90.0, 0.0)
    monkeypatch.setattr(fidelity, "forms", lambda: iter([wrong]))
    assert fidelity.main(["--only", "forms", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["failed"] == ["chain P=4 B=16"]
    assert told["rows"][0]["error"] == pytest.approx(-1 / 91)
