"""Measurements on disk are found again, not trusted if they cannot be read, and never confused."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.timing.families import register_slow
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels.contract.family import Cost
from wse_sim.kernels.contract.registry import REGISTRY
from wse_sim.timing import store as stores
from wse_sim.timing.probes import Measured
from wse_sim.timing.store import MeasurementStore, cache_folder, key_of, open_store

WAFER = load_wafer("wse2")
ONE = Measured(100.0, 104.5, 101.0)


def test_what_one_process_measured_the_next_one_reads(tmp_path: Path):
    """Of two stores on one folder the second measures nothing itself."""
    MeasurementStore(tmp_path).put("a", ONE)
    assert MeasurementStore(tmp_path).get("a") == ONE
    assert MeasurementStore(tmp_path).get("b") is None
    assert MeasurementStore(None).get("a") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"model_cycles": 1}', '{"model_cycles": 0, "fabric_cycles": 1, "issue_cycles": 1}',
     '{"model_cycles": NaN, "fabric_cycles": 1, "issue_cycles": 1}', '{"model_cycles": 1, "fabric_cycles": "x", "issue_cycles": 1}'],
)  # fmt: skip
def test_a_file_that_does_not_read_is_no_measurement(tmp_path: Path, text: str):
    """A truncated or edited file is ignored, and the next measurement replaces it."""
    (tmp_path / "a.json").write_text(text)
    assert MeasurementStore(tmp_path).get("a") is None
    MeasurementStore(tmp_path).put("a", ONE)
    assert MeasurementStore(tmp_path).get("a") == ONE


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path: Path):
    """With eight writers a reader finds nothing or a complete measurement."""
    seen: list[Measured | None] = []

    def write() -> None:
        for _ in range(20):
            MeasurementStore(tmp_path).put("a", ONE)
            seen.append(MeasurementStore(tmp_path).get("a"))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {ONE}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]  # no pieces are left


def test_what_could_not_be_measured_is_not_kept(tmp_path: Path):
    """A reason applies only to this process: the next one tries again."""
    first = MeasurementStore(tmp_path)
    first.put("a", Measured(1, 1, 0, "no program"))
    assert first.get("a").reason
    assert MeasurementStore(tmp_path).get("a") is None


def test_a_folder_that_cannot_be_written_is_said_once_and_work_goes_on(tmp_path: Path):
    """A file is in the place of the folder."""
    (tmp_path / "taken").write_text("")
    store = MeasurementStore(tmp_path / "taken")
    store.put("a", ONE)
    assert store.get("a") == ONE
    assert "--cache" in store.fault


def test_a_key_says_everything_that_decides_the_answer(monkeypatch):
    """Same probe, same key; another size, phase, precision, attribute or wafer constant: another key."""
    probe = register_slow(monkeypatch).probe(Cost(compute=1.0))
    same = replace(probe, cost=Cost(compute=9.0), part="other", tile="other")
    assert key_of(same, WAFER) == key_of(probe, WAFER)  # a label or a fraction decides nothing
    others = [
        key_of(replace(probe, start=11), WAFER),
        key_of(replace(probe, dims={"extra": 1}), WAFER),
        key_of(replace(probe, phase=Phase.UPDATE), WAFER),
        key_of(replace(probe, dtype="fp32"), WAFER),
        key_of(replace(probe, attrs={"p": 0.5}), WAFER),
        key_of(replace(probe, tiling=replace(probe.tiling, rows=2)), WAFER),
        key_of(probe, WAFER.derive(hop_cycles=2)),
    ]
    assert len({key_of(probe, WAFER), *others}) == 8


def test_other_sources_ask_anew(monkeypatch, tmp_path: Path):
    """The folder is named by the sources; after a change of a kernel nothing is found."""
    one = open_store(str(tmp_path))
    one.put("a", ONE)
    assert one.folder.name == stores.source_hash()
    monkeypatch.setattr(stores, "source_hash", lambda: "0" * 16)
    open_store.cache_clear()
    assert open_store(str(tmp_path)).get("a") is None


def test_folders_of_other_sources_go_after_a_month_and_nothing_else_does(tmp_path: Path):
    """A folder of old sources and a folder of the user's, both old; one of old sources, used yesterday."""
    root = tmp_path / "wse_sim_timing"
    old, recent, theirs = root / ("a" * 16), root / ("b" * 16), root / "thesis"
    for folder, age_days in ((old, 40), (recent, 1), (theirs, 400)):
        folder.mkdir(parents=True)
        (folder / "x.json").write_text("{}")
        past = folder.stat().st_mtime - age_days * 86_400
        os.utime(folder, (past, past))
    open_store(str(tmp_path))
    assert [folder.exists() for folder in (old, recent, theirs)] == [False, True, True]


def test_the_folder_can_be_named(own_cache: Path, monkeypatch, tmp_path: Path):
    """``$WSE_SIM_CACHE`` first, then where the system keeps such files."""
    assert cache_folder() == own_cache
    monkeypatch.delenv("WSE_SIM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert cache_folder() == tmp_path / "xdg" / "wse_sim"
    assert open_store("none").folder is None


def test_a_family_of_ones_own_is_part_of_the_key(monkeypatch, tmp_path: Path):
    """After an edit of a kernel file outside the package it is measured again."""
    probe = register_slow(monkeypatch).probe(Cost(compute=1.0))
    source, keys = tmp_path / "mine.py", []
    for cycles in (1, 2):
        source.write_text(f"class Mine:\n    cycles = {cycles}\n")
        spec = spec_from_file_location(f"mine_{cycles}", source)
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        monkeypatch.setitem(REGISTRY, "mine", module.Mine())
        keys.append(key_of(replace(probe, family="mine"), WAFER))
    assert keys[0] != keys[1]
