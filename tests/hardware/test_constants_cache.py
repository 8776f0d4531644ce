"""Files of constants are read again when they change, or when the same name is another file."""

from __future__ import annotations

from pathlib import Path

import pytest

from wse_sim.hardware import load_cluster, load_wafer


def _write(file: Path, base: str, clock_hz: float | None = None) -> None:
    constant = (
        f"constants:\n  clock_hz: {{value: {clock_hz}, unit: Hz, source: x, evidence: assumed}}\n"
        if clock_hz
        else ""
    )
    file.write_text(f"name: {file.stem}\nbase: {base}\n{constant}")


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    """The file itself and a base next to it are checked; what did not change is the same object."""
    near, mine = tmp_path / "near.yaml", tmp_path / "mine.yaml"
    _write(near, "wse2", 1.0e9)
    _write(mine, "near")
    first = load_wafer(str(mine))
    assert (first.clock_hz, load_wafer(str(mine)) is first) == (1.0e9, True)
    _write(near, "wse2", 0.75e9)
    assert load_wafer(str(mine)).clock_hz == 0.75e9
    _write(mine, "wse3")
    assert load_wafer(str(mine)).clock_hz == load_wafer("wse3").clock_hz


def test_a_name_is_another_file_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, clock_hz in (("a", 1.0e9), ("b", 0.75e9)):
        (tmp_path / name).mkdir()
        _write(tmp_path / name / "w.yaml", "wse2", clock_hz)
        monkeypatch.chdir(tmp_path / name)
        assert load_wafer("w.yaml").clock_hz == clock_hz


def test_shipped_sets_are_read_once() -> None:
    assert load_wafer("wse2") is load_wafer("wse2")
    assert load_cluster("default") is load_cluster("default")
