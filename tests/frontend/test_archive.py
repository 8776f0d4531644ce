"""Reads a `.pt2` file from an untrusted source for operators and shapes, without executing anything in it.

Each test writes a good program, changes one part of the archive as somebody with bad intent would, and looks whether a
mark was left.  torch.export.load itself leaves the mark for most of them.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from wse_sim.errors import ModelError
from wse_sim.frontend.api import load_model
from wse_sim.frontend.capture import load_exported

Change = Callable[[str, bytes], bytes]


class _Net(nn.Module):
    """Two layers that share a weight, a buffer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, torch.Tensor]:
        return {
            "out": self.b(torch.relu(self.a(x))) * scale + self.shift + torch.tensor([1.0, 2.0, 3.0, 4.0])
        }


class _Leaves:
    """Creates the file `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(torch.export.export(_Net(), (torch.zeros(2, 4),), {"scale": 2.0}), path)
    return path


def _changed(good: Path, path: Path, change: Change, more: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name.partition("/")[2], old.read(name)))
        for name, data in (more or {}).items():
            new.writestr(f"net/{name}", data)
    return path


def _graph(edit: Callable[[dict[str, Any]], None]) -> Change:
    """Return a change of the graph's description."""

    def change(name: str, data: bytes) -> bytes:
        if name != "models/model.json":
            return data
        graph = json.loads(data)
        edit(graph)
        return json.dumps(graph).encode()

    return change


@pytest.mark.slow
def test_a_good_file_gives_the_kernels_of_the_module(good: Path) -> None:
    """Shapes, ties, buffers and constants are read; a parameter's values are not (zeros replace them)."""
    graph = load_model(str(good))
    assert graph.parameters == 4 * 4 + 4 + 4  # the shared weight once
    program = load_exported(str(good))
    assert program.state_dict["shift"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert program.constants["lifted_tensor_0"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert not program.state_dict["a.weight"].any()


@pytest.mark.slow
def test_sample_inputs_are_not_unpickled(good: Path, tmp_path: Path) -> None:
    """The file is read as before, without its sample inputs."""
    mark = tmp_path / "mark"
    buffer = io.BytesIO()
    torch.save((_Leaves(mark),), buffer)
    evil = _changed(
        good, tmp_path / "evil.pt2", lambda name, data: buffer.getvalue() if "sample_inputs" in name else data
    )
    assert load_model(str(evil)).parameters == load_model(str(good)).parameters
    assert not mark.exists()


@pytest.mark.parametrize(
    "kind", ["data/weights/model_weights_config.json", "data/constants/model_constants_config.json"]
)
@pytest.mark.parametrize("name", ["pickled", "opaque_obj_0", "custom_obj_0", "../../x"])
def test_pickled_tensors_and_objects_are_refused(good: Path, tmp_path: Path, kind: str, name: str) -> None:
    mark = tmp_path / "mark"
    folder = kind.rpartition("/")[0]
    own = ("weight_0" if "weights" in kind else "tensor_0") if name == "pickled" else name

    def change(member: str, data: bytes) -> bytes:
        if member == kind:
            config = json.loads(data)
            next(iter(config["config"].values())).update(use_pickle=True, path_name=own)
            return json.dumps(config).encode()
        return pickle.dumps(_Leaves(mark)) if member == f"{folder}/{own}" else data

    more = {} if name == "pickled" else {f"{folder}/{own}": pickle.dumps(_Leaves(mark))}
    with pytest.raises(ModelError, match="which only code can read"):
        load_model(str(_changed(good, tmp_path / "evil.pt2", change, more)))
    assert not mark.exists()


def _expression(text: str) -> Callable[[dict[str, Any]], None]:
    def edit(data: dict[str, Any]) -> None:
        value = data["graph_module"]["graph"]["tensor_values"]["x"]
        value["sizes"][0] = {"as_expr": {"expr_str": text, "hint": {"as_int": 2}}}

    return edit


def _target(text: str) -> Callable[[dict[str, Any]], None]:
    def edit(data: dict[str, Any]) -> None:
        node = data["graph_module"]["graph"]["nodes"][1]
        node["target"] = text
        node["inputs"] = [{"name": "", "arg": {"as_string": "touch MARK"}, "kind": 1}]

    return edit


def _input_name(text: str) -> Callable[[dict[str, Any]], None]:
    def edit(data: dict[str, Any]) -> None:
        whole = json.loads(json.dumps(data).replace('"name": "x"', '"name": ' + json.dumps(text)))
        data.clear()
        data.update(whole)
        values = data["graph_module"]["graph"]["tensor_values"]
        values[text] = values.pop("x")

    return edit


def _tree(kind: str, context: object) -> Callable[[dict[str, Any]], None]:
    def edit(data: dict[str, Any]) -> None:
        signature = data["graph_module"]["module_call_graph"][0]["signature"]
        tree = json.loads(signature["out_spec"])
        tree[1].update(type=kind, context=json.dumps(context))
        signature["out_spec"] = json.dumps(tree)

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        _expression("__import__('pathlib').Path('MARK').touch() or Symbol('s0', integer=True)"),
        _expression("9**9**9**9"),
        _target("torch.os.system"),
        _target("torch.hub.load"),
        _target("torch.ops.import_module.__func__"),
        _target("torch.ops.aten.from_file.default"),
        _input_name("x=__import__('pathlib').Path('MARK').touch()"),
        _tree("builtins.dict", [{"__enum__": True, "fqn": "evil_module:Kind", "name": "A"}]),
        _tree("collections.defaultdict", {"default_factory_module": "evil_module", "default_factory_name": "f"}),
        lambda data: data["graph_module"]["graph"]["nodes"].extend([[[[]]]] * 2),
        lambda data: data.pop("graph_module"),
    ],
)  # fmt: skip
def test_nothing_in_the_description_of_the_graph_runs(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[dict[str, Any]], None]
) -> None:
    """Symbolic sizes (evaluated by torch), functions by name, names (written into source), trees (imported)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil_module.py").write_text("import pathlib\npathlib.Path('MARK').touch()\n")
    with pytest.raises(ModelError, match=r"evil\.pt2"):
        load_model(str(_changed(good, tmp_path / "evil.pt2", _graph(edit))))
    assert not Path("MARK").exists()


@pytest.mark.slow
def test_guards_are_dropped(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards are Python text that torch would compile into the module."""
    monkeypatch.chdir(tmp_path)

    def edit(data: dict[str, Any]) -> None:
        data["guards_code"] = ["__import__('pathlib').Path('MARK').touch() or True"]

    load_model(str(_changed(good, tmp_path / "evil.pt2", _graph(edit))))
    assert not Path("MARK").exists()


def test_an_archive_that_lies_about_its_size_is_refused(good: Path, tmp_path: Path) -> None:
    """Compressed parts (1 GiB of zeros is 1 MiB of file) and duplicate parts are refused."""
    bomb, twice = tmp_path / "bomb.pt2", tmp_path / "twice.pt2"
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ModelError, match="compressed"):
        load_model(str(bomb))
    with pytest.warns(UserWarning, match="Duplicate"):
        _changed(good, twice, lambda name, data: data, {"models/model.json": b"{}"})
    with zipfile.ZipFile(twice, "r") as archive:
        root = archive.namelist()[0].partition("/")[0]
    assert root == "net"
    with pytest.raises(ModelError, match="twice"):
        load_model(str(twice))
