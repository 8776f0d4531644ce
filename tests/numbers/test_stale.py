"""Pictures and measured tables name their sources; cheap tables are recomputed."""

from __future__ import annotations

import functools
import json

import pytest

from benchmarks import measurements, pages, stale
from benchmarks.tables.base import group, quantity

PICTURES = stale.ROOT / "docs" / "pictures"


def test_every_picture_and_every_measured_table_names_its_sources():
    """No picture is missing from the list, none in the list is missing, and each source exists."""
    pictures = {f"pictures/{path.name}" for path in PICTURES.iterdir() if path.suffix in (".png", ".gif")}
    assert set(stale.SOURCES) == pictures | set(json.loads(measurements.FILE.read_text()))
    golden = json.loads((stale.ROOT / "docs" / "numbers.json").read_text())["groups"]
    for name, sources in stale.SOURCES.items():
        assert stale.remedy(name)
        for source in sources:
            kind, _, key = source.partition(":")
            if kind == "numbers":
                of, _, run = key.partition("/")
                assert run in golden[of]["numbers"] if run else golden[of]["numbers"], source
            else:
                assert kind == "measured" or (stale.ROOT / kind).exists(), source


def test_code_moves_a_digest_and_prose_does_not(tmp_path, monkeypatch):
    """Comments and docstrings do not change a digest; a number, a template and a golden number do."""
    monkeypatch.setitem(
        stale.SOURCES, "made up", ("code", "numbers:models/m, training, pipelined", "make.py:draw")
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "code").mkdir()
    numbers, code, make = tmp_path / "docs" / "numbers.json", tmp_path / "code" / "a.py", tmp_path / "make.py"

    def digest_with(text='"""Doc."""\nx = 1\n', rate=2.0, drawing="def draw():\n    return 1\n"):
        code.write_text(text)
        make.write_text(f"import os\n\n\n{drawing}\n\ndef other():\n    return {rate}\n")
        numbers.write_text(
            json.dumps({"groups": {"models": {"numbers": {"m, training, pipelined": {"r": rate}}}}})
        )
        stale._text.cache_clear()
        return stale.digest("made up", tmp_path)

    before = digest_with()
    assert digest_with('"""Other words."""\n\n# a remark\nx = 1\n') == before
    assert digest_with('"""Doc."""\nx = 2\n') != before
    assert digest_with(rate=2.1) != before
    assert digest_with(drawing="def draw():\n    return 2\n") != before
    (tmp_path / "code" / "page.html.j2").write_text("<p>")
    assert digest_with() != before
    stale._text.cache_clear()


def test_what_is_made_again_is_up_to_date(tmp_path, monkeypatch):
    """A digest that is missing or wrong is named; recording it removes it from the list."""
    monkeypatch.setattr(stale, "FILE", tmp_path / "digests.json")
    monkeypatch.setattr(
        stale, "SOURCES", {name: stale.SOURCES[name] for name in ("baselines", "contest_published")}
    )
    assert stale.out_of_date() == list(stale.SOURCES)
    stale.made(["baselines"])
    assert "baselines" not in stale.out_of_date()
    noted = json.loads(stale.FILE.read_text())
    noted["baselines"][next(iter(noted["baselines"]))] = "0"
    stale.FILE.write_text(json.dumps(noted))
    assert "baselines" in stale.out_of_date()


def test_a_benchmark_that_keeps_a_part_of_its_entry_leaves_the_rest_out_of_date(tmp_path, monkeypatch):
    """Only a complete entry is recorded as made."""
    for module, name in ((measurements, "measured.json"), (stale, "digests.json")):
        copy = tmp_path / name
        copy.write_text(module.FILE.read_text())
        monkeypatch.setattr(module, "FILE", copy)
    stale.FILE.write_text("{}")
    values = measurements.read("contest")["values"]
    measurements.keep("contest", {"A": values["A"]}, "here")
    assert "contest" not in stale.read()
    measurements.keep("contest", values, "here")
    assert stale.read()["contest"] == stale.digest("contest")


def test_numbers_in_sentences_are_those_of_the_file():
    """A number that is typed over its mark is written again."""
    text = "trains <!-- number: models / gpt2-small, training, pipelined / samples_per_s -->7<!-- end --> samples/s"
    rate = quantity(group("models")["gpt2-small, training, pipelined"]["samples_per_s"])
    assert pages.rendered(text) == text.replace("-->7<", f"-->{rate}<")


def test_the_first_example_of_intervals_is_the_golden_number():
    """A block of text cannot have marks, so the rate in it is compared."""
    page = (stale.ROOT / "docs" / "intervals.md").read_text(encoding="utf-8")
    rate = quantity(group("models")["gpt2-small, training, pipelined"]["samples_per_s"])
    assert f"\n{rate} samples/s (" in page


@pytest.mark.slow
def test_rows_of_the_baselines_are_what_the_program_answers():
    """Three published runs are matched again; the table has their rates."""
    from benchmarks.baselines import CLUSTER, WAFER
    from wse_sim import baselines

    data = baselines.load_baselines()
    chosen = data.points[::4]
    rows = baselines.compare_baselines(
        "all", data=data.model_copy(update={"points": chosen}), wafer=WAFER, cluster=CLUSTER
    )
    kept = measurements.read("baselines")["values"]
    assert len(rows) == len(chosen)
    for row in rows:
        assert kept[row.id]["systems"] == row.systems
        assert kept[row.id]["system_tokens_per_s"] == round(row.system_tokens_per_s)
        assert kept[row.id]["system_mfu"] == pytest.approx(row.system_mfu, rel=1e-9)


@pytest.mark.slow
def test_what_is_cheap_to_make_is_of_these_sources():
    """For pictures and tables whose command takes less than two minutes: run it, look at the picture, commit both."""
    assert set(stale.CHEAP) <= set(stale.SOURCES)
    late = [name for name in stale.CHEAP if stale.changed(name)]
    assert {name: (stale.changed(name), stale.remedy(name)) for name in late} == {}


def test_sentences_comments_and_new_runs_leave_a_digest():
    """A trailing comment and a note do not change it; a number in a note and a short text do; a run that joins a
    growing group does not.
    """
    read = functools.partial(stale._without_prose, has_sentences=False)
    plain = 'x = 1  # one\nnotes = [f"it takes {x} more cycles"]\nkind = "fast"\n'
    assert read(plain) == read(plain.replace("# one", "# two").replace("it takes", "the kernel takes"))
    assert read(plain) != read(plain.replace("{x}", "{x + 1}"))
    assert read(plain) != read(plain.replace("fast", "slow"))
    assert stale._without_prose(plain, has_sentences=True) != read(plain)
    assert stale._is_same("numbers:fabric", "aa bb", "aa bb cc")
    assert not stale._is_same("numbers:fabric", "aa bb", "aa cc")
    assert not stale._is_same("numbers:fabric", "", "aa")
    assert not stale._is_same("numbers:validation", "aa", "aa bb")
