"""Kernel graphs that the package contains: those of a capture, and used only where they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wse_sim import result_cache
from wse_sim.frontend import load_model, shipped_graphs, store
from wse_sim.frontend.lowering import Lowering
from wse_sim.frontend.parameters import model_names, named_model
from wse_sim.frontend.registration import register_operator, temporary_registrations
from wse_sim.serialize import same

REMEDY = "python -m benchmarks.shipped_graphs"


@pytest.fixture
def up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State that the sources are those of the last capture; return the folder of a user's graphs."""
    sources = tmp_path / "sources.txt"
    sources.write_text(result_cache.sources(*store.SOURCES))
    monkeypatch.setattr(shipped_graphs, "SOURCES", sources)
    monkeypatch.setenv("WSE_SIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.thinned(1)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["fc-mnist", *sorted({*model_names()} - {"fc-mnist"})])
def test_a_shipped_graph_is_that_of_a_capture(name: str, training: bool) -> None:
    """Bit for bit, for every model, in training and in inference; the sources may have changed meanwhile."""
    with result_cache.paused():
        captured = load_model(name, training=training)
    found = shipped_graphs.read(name, None, Lowering(training=training))
    assert found is not None, f"run {REMEDY}"
    assert same(found, captured), f"run {REMEDY}"


def test_there_are_no_others() -> None:
    """Every file is of a model that is still shipped."""
    phases = [Lowering(training=training) for training in (True, False)]
    assert {*shipped_graphs.FOLDER.glob("*.graph")} == {
        shipped_graphs.file_of(n, how) for n in model_names() for how in phases
    }


def test_it_is_used_for_any_batch_and_nothing_is_stored(up_to_date: Path) -> None:
    """The default length may be stated or not; the lines of source are those of this installation."""
    length = named_model("gpt2-small").model.seq
    graph = load_model("gpt2-small", batch=8, training=True)
    stated = load_model("gpt2-small", batch=8, seq=length, training=True)
    assert graph.samples == 8
    assert same(graph, stated)
    assert not up_to_date.exists()
    zoo = str(Path(shipped_graphs.__file__).with_name("zoo.py"))
    assert any(line.startswith(zoo) for kernel in graph.kernels for line in kernel.source.splitlines())


def test_it_is_not_used_for_anything_else(up_to_date: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other lengths, options, rules or sources, a damaged file, no caches: None, so the model is captured."""
    plain = Lowering()
    assert shipped_graphs.get("fc-mnist", None, plain) is not None
    assert shipped_graphs.get("gpt2-small", 7, plain) is None
    assert shipped_graphs.get("fc-mnist", None, Lowering(skip=frozenset({"gated activation"}))) is None
    assert shipped_graphs.get({"family": "mlp"}, None, plain) is None
    with temporary_registrations():
        register_operator("demo.thing")(lambda node, trace: None)
        assert shipped_graphs.get("fc-mnist", None, plain) is None
    with result_cache.paused():
        assert shipped_graphs.get("fc-mnist", None, plain) is None
    shipped_graphs.SOURCES.write_text("other sources")
    assert shipped_graphs.get("fc-mnist", None, plain) is None
    shipped_graphs.SOURCES.unlink()
    assert shipped_graphs.get("fc-mnist", None, plain) is None
    key, packed = shipped_graphs.file_of("fc-mnist", plain).read_bytes().split(b"\n", 1)
    monkeypatch.setattr(shipped_graphs, "FOLDER", up_to_date)
    up_to_date.mkdir()
    shipped_graphs.file_of("fc-mnist", plain).write_bytes(key + b"\n" + packed[:-9])
    assert shipped_graphs.read("fc-mnist", None, plain) is None


@pytest.mark.slow
def test_torch_is_not_loaded(up_to_date: Path) -> None:
    """A process that reads a shipped model has no torch."""
    code = (
        "import sys, pathlib; from wse_sim.frontend import load_model, shipped_graphs; "
        f"shipped_graphs.SOURCES = pathlib.Path({str(shipped_graphs.SOURCES)!r}); load_model('resnet50', batch=4, training=True); "
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]
