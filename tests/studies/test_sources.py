"""Stored runs of a factory are found again only while all sources of the factory are unchanged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.generated import cases
from wse_sim.studies.schema import study_from
from wse_sim.studies.settings import Resolver
from wse_sim.studies.sources import sources_digest

HEAD = "def f():\n    import torch\n    return torch.nn.Linear(4, 4), (torch.zeros(2, 4),)\n"
STYLES = (  # how a file of number i comes to one of number j, which lies beside it or in a package
    "import m{j}", "from m{j} import W", "from m{j} import *", "import m{j} as other", "def g():\n    import m{j}",
    "try:\n    import m{j}\nexcept ImportError:\n    pass", "import importlib\nx = importlib.import_module('m{j}')",
    "x = __import__('m{j}')", "exec(open('m{j}.py').read())", "import p{j}", "from p{j} import inner", "import p{j}.inner",
    "from p{j}.inner import W", "x = open('d{j}.yaml')", "DATA = 'd{j}.yaml'",
)  # fmt: skip


def made(folder: Path, chance: random.Random, count: int) -> list[Path]:
    """Return the files in a row, each leading to the next by one of the styles; the last ones of all that are led to."""
    ways = [chance.choice(STYLES) for _ in range(count)]
    ways[:-1] = [way if ".yaml" not in way else STYLES[0] for way in ways[:-1]]  # data lead nowhere
    follows, file = [], folder / "mine.py"
    for j, way in enumerate(ways):
        with file.open("a") as text:
            text.write(way.format(j=j) + "\nW = 1\n")
        if "p{j}" in way:
            (folder / f"p{j}").mkdir()
            (folder / f"p{j}" / "__init__.py").write_text("from . import inner\n")
            file = folder / f"p{j}" / "inner.py"
        else:
            file = folder / (f"d{j}.yaml" if ".yaml" in way else f"m{j}.py")
        file.write_text("")
        follows.append(file)
    return follows


def key(spec: str) -> str:
    data = {"fixed": {"model": spec, "mode": "weight-streaming", "batch": 4}, "draws": 0}
    return Resolver(study_from(data)).request(data["fixed"]).key


@pytest.mark.parametrize("seed", range(cases(60)))
def test_a_change_anywhere_below_a_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Chains of imports in all styles: a change of any of these files is a different run, and of any other file the
    same one.
    """
    chance = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(HEAD)
    follows = made(tmp_path, chance, chance.randint(1, 4))
    (tmp_path / "other.py").write_text("W = 1\n")
    before = key("mine.py:f")
    for file in follows:
        text = file.read_text()
        file.write_text(text + "# changed\n")
        assert key("mine.py:f") != before, (file.name, (tmp_path / "mine.py").read_text())
        file.write_text(text)
        assert key("mine.py:f") == before
    (tmp_path / "other.py").write_text("W = 2\n")
    (tmp_path / "d99.yaml").write_text("1")
    assert key("mine.py:f") == before


def test_modes_of_ones_own_and_odd_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import loops, sources that cannot be parsed, and the interpreter's own modules have an answer, and none of them
    is imported.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("import b, os, numpy, nowhere\nraise SystemExit(7)\n")
    (tmp_path / "b.py").write_text("import a\nx = '\\0'\ny = '" + "z" * 900 + "'\n")
    first = sources_digest(tmp_path / "a.py")
    (tmp_path / "b.py").write_text("import a (\n")
    assert sources_digest(tmp_path / "a.py") != first


@pytest.mark.slow
def test_adapters_and_frozen_weights_can_be_varied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of a study over --lora equals a run with it."""
    pytest.importorskip("torch")
    from wse_sim import api
    from wse_sim.studies.evaluate import capture, run_one

    model = {"family": "decoder", "layers": 2, "hidden": 128, "heads": 4, "ffn": 256, "seq": 32, "vocab": 200}
    (tmp_path / "m.yaml").write_text(f"name: m\nsource: x\nmodel: {model}\n")
    monkeypatch.chdir(tmp_path)
    keys = set()
    for lora in (None, 4, 16):
        setting = {"model": "m.yaml", "mode": "weight-streaming", "batch": 8, "lora": lora}
        request = Resolver(study_from({"fixed": setting, "draws": 0})).request(setting)
        row = run_one(capture(request), request)
        alone = api.run("m.yaml", api.RunOptions(mode="weight-streaming", batch=8, lora=lora))
        assert (row.status, row.outputs["step_s"]) == ("done", alone.step_s)
        keys |= {request.key, request.graph_key}
    assert len(keys) == 6
