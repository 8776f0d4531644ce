"""Kernel graphs stored on disk: the same graph without torch, and never a wrong one."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import wse_sim
from tests.conftest import kept_plan
from wse_sim import api
from wse_sim import result_cache as kept_values
from wse_sim.frontend import load_model, store
from wse_sim.frontend.lowering import Lowering
from wse_sim.frontend.registration import register_operator, temporary_registrations
from wse_sim.serialize import same

SIZES = {"family": "mlp", "layers": 2, "hidden": 64, "input": 32, "classes": 10}


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    """Return the folder of the stored graphs."""
    monkeypatch.setenv("WSE_SIM_CACHE", str(tmp_path))
    monkeypatch.setattr(api, "_kept_plan", kept_plan)
    return tmp_path / "wse_sim_graphs"


def files(kept: Path) -> list[Path]:
    return sorted(file for file in kept.rglob("*") if file.is_file())


def test_a_kept_graph_is_the_graph(kept):
    """The graph is equal bit for bit, training included; the plans made from it are equal."""
    fresh = load_model(SIZES, training=True, batch=8)
    (file,) = files(kept)
    before = file.stat().st_mtime_ns
    again = load_model(SIZES, training=True, batch=8)
    assert again is not fresh
    assert same(fresh, again)
    assert file.stat().st_mtime_ns == before
    speeds = [
        wse_sim.run(g, mode="weight-streaming", phase="training", batch=8).samples_per_s
        for g in (fresh, again)
    ]
    assert speeds[0] == speeds[1]


@pytest.mark.slow
def test_torch_is_not_loaded_again(kept):
    """A second process reads the graph without it."""
    load_model("fc-mnist")
    code = "import sys; from wse_sim.frontend import load_model; load_model('fc-mnist'); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]


def test_the_name_holds_whatever_decides(kept, tmp_path, monkeypatch):
    """Sizes, samples, phase, precision, versions, the bytes of a file: a change in any of them gives another name."""
    file = tmp_path / "config.json"
    file.write_text("{}")
    plain = Lowering()
    keys = [store.key_of(SIZES, None, None, plain), store.key_of({**SIZES, "hidden": 96}, None, None, plain)]
    keys += [store.key_of(SIZES, 4, None, plain), store.key_of(SIZES, None, None, Lowering(training=True))]
    keys += [store.key_of(SIZES, None, None, Lowering(skip=frozenset({"gated activation"})))]
    keys += [store.key_of(f"hf:{file}", None, None, plain)]
    file.write_text("{} ")
    keys += [store.key_of(f"hf:{file}", None, None, plain)]
    monkeypatch.setattr(kept_values, "versions", lambda *_: "torch of another kind")
    keys += [store.key_of(SIZES, None, None, plain)]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_factories_and_foreign_rules_are_not_kept(kept):
    """What they read is unknown."""
    assert store.key_of("mine:factory", None, None, Lowering()) is None
    with temporary_registrations():
        register_operator("demo.thing")(lambda node, trace: None)
        assert store.key_of(SIZES, None, None, Lowering()) is None
    assert store.key_of(SIZES, None, None, Lowering()) is not None


@pytest.mark.parametrize("damage", ["", "short", "changed", "other"])
def test_a_damaged_file_is_worked_out_again(kept, damage):
    """For an empty, truncated, changed or text file the graph is correct, and the file is complete again."""
    fresh = load_model(SIZES)
    (file,) = files(kept)
    whole = file.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    file.write_bytes({"": b"", "short": whole[:middle], "changed": changed, "other": b"text\n"}[damage])
    assert same(load_model(SIZES), fresh)
    assert same(store.get(file.name), fresh)


@pytest.mark.slow
def test_writers_at_the_same_time(kept):
    """Many threads store and read one graph: each reads nothing or the complete graph."""
    graph = load_model(SIZES)
    (file,) = files(kept)
    wrong: list[object] = []

    def work() -> None:
        for _ in range(20):
            store.put(file.name, graph)
            found = store.get(file.name)
            if found is None or not same(found, graph):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert files(kept) == [file]


def test_a_folder_that_cannot_be_written_is_left_alone(kept):
    """A file is in the place of the folder: the graph is returned, and nothing else happens."""
    kept.write_text("not a folder")
    assert load_model(SIZES).kernels


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pipelined", "weight-streaming"])
def test_a_kept_plan_is_the_plan(kept, mode):
    """The plan is the same object field by field, with the same result; another batch is another plan."""
    how = {"mode": mode, "phase": "training"}
    first, again = (wse_sim.run(SIZES, batch=8, **how) for _ in range(2))
    assert same(first.plan, again.plan)
    assert first.samples_per_s == again.samples_per_s
    plans = [file for file in kept.parent.rglob("*") if file.is_file() and "wse_sim_plans" in str(file)]
    assert len(plans) == 1
    assert wse_sim.run(SIZES, batch=16, **how).plan.batch == 16
