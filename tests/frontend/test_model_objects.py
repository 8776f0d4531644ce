"""Models as objects: every form is accepted by every entry point, and a sentence names only types and shapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import wse_sim  # noqa: E402
from wse_sim import api  # noqa: E402
from wse_sim.errors import ModelError  # noqa: E402
from wse_sim.frontend import diagnose, load_model, lower, lower_exported, named_models  # noqa: E402


class Scaled(nn.Module):
    """One product, and an argument by name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Any, scale: Any = None) -> Any:
        y = self.fc(x)
        return y if scale is None else y * scale


class Direct(nn.Module):
    """A class that defines __call__() and no forward(), as losses of many repositories do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 2)

    def __call__(self, x: Any) -> Any:
        return self.fc(x)


X = torch.zeros(4, 6)
FLOPS = 2 * 4 * 6 * 2  # of the product of (4, 6) and (6, 2)


def _with_shapes() -> Any:
    """Return a graph of torch.fx that says the shapes of its inputs."""
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(6, 2)))
    torch.fx.passes.shape_prop.ShapeProp(graph).propagate(X)
    return graph


def _carrying() -> Any:
    net = Scaled()
    net.example_args = X
    return net


def _parallel(net: nn.Module) -> nn.Module:
    """Simulate a machine without accelerators, because a process of many tests may have the device of training scripts."""
    with patch("torch.nn.parallel.data_parallel._get_available_device_type", return_value=None):
        return nn.DataParallel(net)


def _forms() -> dict[str, tuple[Any, ...]]:
    """Return a model in every form, as the arguments of a door."""
    net = Scaled()
    program = torch.export.export(net, (X,))
    free = torch.export.export(net, (X,), dynamic_shapes={"x": {0: torch.export.Dim("b", min=2, max=64)}})
    return {
        "module, tuple": (net, (X,)),
        "module, tensor": (net, X),
        "module, list": (net, [X]),
        "module, names": (net, {"x": X, "scale": torch.ones(4, 2)}),
        "tuple": ((net, (X,)),),
        "tuple of three": ((net, (X,), {"scale": torch.ones(4, 2)}),),
        "carrying": (_carrying(),),
        "factory": (lambda: (net, X),),
        "factory of a program": (lambda: program,),
        "program": (program,),
        "program, inputs": (program, (X,)),
        "program with free shapes": (free,),
        "graph, inputs": (torch.fx.symbolic_trace(nn.Sequential(nn.Linear(6, 2))), (X,)),
        "graph with shapes": (_with_shapes(),),
        "method": (net.forward, (X,)),
        "scripted": (torch.jit.script(nn.Sequential(nn.Linear(6, 2))), (X,)),
        "holding a scripted": (nn.Sequential(torch.jit.script(nn.Linear(6, 2)), nn.ReLU()), (X,)),
        "parallel": (_parallel(net), (X,)),
        "called directly": (Direct(), (X,)),
    }


@pytest.mark.thinned(8)
@pytest.mark.parametrize("form", list(_forms()))
def test_every_form_is_the_same_product(form: str) -> None:
    """Whatever contains the module, there is one product with the computed FLOPs, and twice as many more in training.

    The gradient of the weight is as large a product, and the input needs none: twice in all.
    """
    given = _forms()[form]
    graph = load_model(*given)
    assert graph.forward_flops == FLOPS
    assert graph.samples == 4
    assert load_model(*given, batch=8).forward_flops == 2 * FLOPS
    assert lower(*given, training=True).total_flops == 2 * FLOPS
    assert diagnose(*given).flops == FLOPS


@pytest.mark.slow
@pytest.mark.parametrize("form", ["module, tensor", "tuple", "factory", "program", "graph, inputs"])
def test_every_door_takes_them(form: str) -> None:
    """Run, compare and compile accept it, with and without options after the inputs."""
    given = _forms()[form]
    result = wse_sim.run(*given, mode="pipelined", phase="inference")
    again = api.run(
        given if len(given) > 1 else given[0], api.RunOptions(mode="pipelined", phase="inference")
    )
    assert result.samples_per_s == again.samples_per_s > 0
    assert len(wse_sim.compare(*given)) == len(wse_sim.compare(given if len(given) > 1 else given[0]))
    plan = wse_sim.compile(*given, mode="pipelined", phase="inference")
    assert plan.graph.forward_flops == result.plan.graph.forward_flops > 0
    assert wse_sim.compile(lower(*given), "wse3", mode="pipelined").wafer.name == "wse3"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((X,), r"a tensor of shape \(4, 6\); give \(module, inputs\)"),
        ((None,), "is None; give"),
        ((3,), "is an int; give"),
        ((Scaled,), r"the class Scaled, not a module of it; give \(Scaled\(\.\.\.\), inputs\)"),
        ((Scaled, (X,)), "the class Scaled"),
        ((Scaled(),), r"a module without arguments, Scaled; give \(module, inputs\)"),
        ((Scaled(), "text"), "text as its inputs"),
        ((Scaled(), (torch.zeros(4, 5),)), "the shapes do not fit"),
        ((Scaled(), (None,)), "something other than a tensor"),
        ((Scaled().state_dict(),), "a dict of tensors contains weights but no program"),
        ((lambda x: x,), "cannot be called without arguments"),
        ((lambda: X,), r"what the model given returns is a tensor"),
        ((lambda: 1 / 0,), "test_model_objects.py:.* raises ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_is_no_model(given: Any, sentence: str) -> None:
    """One sentence is raised, without any value of a tensor."""
    with pytest.raises(ModelError, match=sentence) as fault:
        load_model(*given)
    assert "tensor(" not in str(fault.value)
    assert len(str(fault.value)) < 300


def test_a_length_that_example_arguments_give_has_no_effect_and_a_note() -> None:
    """There are 60 rows, as the arguments have, with and without a requested length of 7."""
    given = (nn.Linear(4, 4), (torch.zeros(1, 60, 4),))
    plain, asked = load_model(given), load_model(given, seq=7)
    assert asked.kernels == plain.kernels
    assert set(asked.notes) - set(plain.notes) == {
        "seq 7 has no effect: the example arguments give the length of a sample"
    }


def test_free_shapes_without_an_example_are_named() -> None:
    """A program with a free dimension that lost its example cannot be read."""
    free = torch.export.Dim("free", min=2, max=64)
    program = torch.export.export(torch.nn.ReLU(), (X,), dynamic_shapes=({0: free},))
    program._example_inputs = None
    with pytest.raises(ModelError, match=r"shape of a result depends on values.*Dim"):
        lower_exported(program)


FILE = """
import torch
from torch import nn
def one():
    return nn.Linear(4, 4), torch.zeros(2, 4)
def two(width=3):
    return nn.Linear(4, width), torch.zeros(2, 4)
def needs(width):
    return nn.Linear(4, width), torch.zeros(2, 4)
def helper():
    print("called")
def _hidden():
    return 3
"""


def test_a_file_lists_its_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no factory is named, the error lists those of the file, and none of its code runs; a doctor examines all of
    them.
    """
    monkeypatch.chdir(tmp_path)
    Path("users.py").write_text("raise SystemExit(9)\n" + FILE)
    with pytest.raises(ModelError, match=r"it has users\.py:one, users\.py:two; name one of them"):
        load_model("users.py")
    assert named_models("users.py") == ["users.py:one", "users.py:two"]
    Path("empty.py").write_text("x = 3\n")
    with pytest.raises(ModelError, match=r"empty\.py has no factory; write a function without arguments"):
        named_models("empty.py")
    Path("classes.py").write_text(
        "class Net(nn.Module): pass\nclass Config: pass\ndef train(net): return net\n"
    )
    with pytest.raises(
        ModelError, match=r"returns \(Net\(\.\.\.\), example_args\) of its class Net and name it"
    ):
        load_model("classes.py")
    Path("names.py").write_text("from math import sin\nclass A: pass\ndef b(): pass\ndef _c(): pass\nd = 3\n")
    with pytest.raises(ModelError, match=r"has no 'nothing'; name a factory of it \(it defines A, b\)"):
        load_model("names.py:nothing")
    Path("broken.py").write_text("x = = 3\n")
    with pytest.raises(ModelError, match=r"broken\.py:1: does not parse"):
        load_model("broken.py")
    with pytest.raises(ModelError, match=r"there is no file nothing\.py"):
        load_model("nothing.py")


@pytest.mark.slow
def test_the_doctor_of_a_file(tmp_path: Path) -> None:
    """Every factory of a file has its own answer."""
    (tmp_path / "users.py").write_text(FILE)
    done = subprocess.run(
        [sys.executable, "-m", "wse_sim.cli", "doctor", "users.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "users.py:one: 0 obstacles" in done.stdout
    assert "users.py:two: 0 obstacles" in done.stdout
