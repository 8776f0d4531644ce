"""Golden numbers: the simulator still gives the answers of the stored file.

If a test here fails, a result moved.  Moved on purpose: run ``make numbers`` and say in the commit which numbers
moved, how far and why.  Not on purpose: something is broken, however small the difference.
"""

from __future__ import annotations

import copy

import pytest

from benchmarks import numbers, pages

GROUPS = [group.name for group in numbers.GROUPS]


@pytest.mark.parametrize("group", GROUPS)
def test_no_result_drifts_unseen(group):
    """Runs of a few CPU seconds in total; every key of the file must still be made, and every made key must be in the
    file.
    """
    assert numbers.check(quick=True, only=[group]) == []


@pytest.mark.slow
@pytest.mark.parametrize("group", [name for name in GROUPS if name != "left_out"])
def test_no_result_drifts_unseen_in_all_runs(group):
    """Every number of the file but those of refits: they take as long as all others, follow from the engine's answers in
    "validation", and `make numbers-check` computes them.
    """
    assert numbers.check(only=[group]) == []


def test_the_comparison_sees_a_change_of_one_in_a_million():
    """A rate off by 1e-6, an integer off by one, a removed field and a changed word give four lines."""
    group = numbers.GROUPS[0]
    before = {"rate": 1.0, "cycles": 100, "gone": 1.0, "binding": "compute", "same": 2.5}
    now = {"rate": 1.000001, "cycles": 101, "binding": "sram", "same": 2.5 * (1 + 1e-12)}
    found = numbers.differences(group, "made up", before, now)
    assert [line.split(" / ")[-1].partition(":")[0] for line in found] == [
        "binding",
        "cycles",
        "gone",
        "rate",
    ]


def test_a_changed_file_is_noticed(monkeypatch):
    """The same check runs with one price of the file changed by a tenth of a percent."""
    kept = copy.deepcopy(numbers.read())
    prices = kept["groups"]["prices"]["numbers"]
    key = next(iter(prices))
    prices[key]["cycles"] *= 1.001
    del prices["gemm on wse2"]
    monkeypatch.setattr(numbers, "read", lambda: kept)
    found = numbers.check(quick=True, only=["prices"])
    assert len(found) == 2
    assert f"prices / {key} / cycles" in found[1]
    assert "gemm on wse2: computed, not in the file" in found[0]


def test_the_numbers_say_where_they_come_from():
    """Every group has its command, evidence and band, and its constants are the current ones."""
    kept = numbers.read()
    assert list(kept["groups"]) == GROUPS
    for group in numbers.GROUPS:
        entry = kept["groups"][group.name]
        assert entry["band"] == group.band <= 1e-6
        assert entry["command"]
        assert entry["evidence"]
    before, now = kept["provenance"], numbers.provenance()
    assert before["constants_sha256"] == now["constants_sha256"]
    assert before["suite_sha256"] == now["suite_sha256"]


def test_no_page_is_stale():
    """The tables of the pages are those of the file; ``python -m benchmarks.pages`` writes them again."""
    assert pages.stale() == []


def test_every_table_stands_on_a_page_and_every_mark_has_its_table():
    """Every table is on a page, and every mark on a page has its table."""
    marked = [
        name for page in pages.PAGES for _, name, *_ in pages.MARK.findall(page.read_text(encoding="utf-8"))
    ]
    assert sorted(set(marked)) == sorted(pages.TABLES)


def test_a_table_typed_by_hand_is_noticed():
    """A digit changed inside the marks is overwritten."""
    page = next(page for page in pages.PAGES if page.name == "numbers.md")
    text = page.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| gpt2-small | training | pipelined"))
    assert pages.rendered(text.replace(row, row.replace("112", "113"))) == text


def test_a_benchmark_keeps_its_values_with_where_and_when(tmp_path, monkeypatch):
    """Keys that ran are replaced, others stay, and the page's table shows both."""
    from benchmarks import measurements, pages

    copy = tmp_path / "measured.json"
    copy.write_text(measurements.FILE.read_text())
    monkeypatch.setattr(measurements, "FILE", copy)
    monkeypatch.setattr("benchmarks.stale.FILE", tmp_path / "digests.json")
    before = measurements.read("fabric")["values"]
    measurements.keep("fabric", {"dense_256": 5.0e8}, "a made-up machine")
    after = measurements.read("fabric")
    assert after["values"] == {**before, "dense_256": 5.0e8}
    assert after["where"] == "a made-up machine"
    assert "| 500 M |" in pages.TABLES["fabric.speed"]()
