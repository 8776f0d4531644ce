"""Every way to name a model at every place that takes one gives the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import wse_sim
from wse_sim.api import run_both
from wse_sim.cli import app
from wse_sim.errors import WseError
from wse_sim.frontend import diagnose, draw_graph, explain, load_model, table_of

TOKENS = 32
DECODER = """
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.ln = nn.RMSNorm(64), nn.RMSNorm(64)
        self.qkv, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)
        self.up, self.down = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(1, -1, 64))
        return x + self.down(F.silu(self.up(self.ln(x))))


def heads(x):
    return x.view(1, -1, 4, 16).transpose(1, 2)


def net():
    return nn.Sequential(nn.Embedding(96, 64), Block(), Block(), nn.Linear(64, 96, bias=False))


def make():
    return net().eval(), (torch.zeros(1, 32, dtype=torch.long),)
"""
HF = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 96,
    "max_position_embeddings": TOKENS,
}  # fmt: skip
YAML = """
name: mine
source: this test
model: {family: decoder, layers: 2, hidden: 64, heads: 4, ffn: 128, vocab: 96, seq: 32}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder with the model in every form of a file."""
    path = tmp_path_factory.mktemp("doors")
    (path / "decoder_of_doors.py").write_text(DECODER)
    (path / "mine.yaml").write_text(YAML)
    (path / "config.json").write_text(json.dumps(HF))
    module, args = _made()
    torch.export.save(torch.export.export(module, args), path / "saved.pt2")
    return path


def _made() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    space: dict[str, Any] = {}
    exec(DECODER, space)
    made: tuple[torch.nn.Module, tuple[torch.Tensor, ...]] = space["make"]()
    return made


NAMES = ("FILE.py:factory", "module:factory", "saved.pt2", "hf:config.json", "mine.yaml")


def _name(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the model as a user types it in its folder; only hf: and YAML are other models than the factory."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return {"FILE.py:factory": "decoder_of_doors.py:make", "module:factory": "decoder_of_doors:make"}.get(
        form, form
    )


# --- the command line

COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "run": lambda model: ["run", model, "--phase", "inference", "--batch", "4"],
    "compare": lambda model: ["compare", model, "--batch", "4"],
    "doctor": lambda model: ["doctor", model],
    "show model": lambda model: ["show", "model", model],
    "show table": lambda model: ["show", "model", model, "--table"],
    "place": lambda model: ["place", model, "--phase", "inference", "--placers", "fast"],
    "generate": lambda model: ["generate", model, "--prompt", "8"],
    "serve": lambda model: ["serve", model, "--requests", "4", "--input", "8", "--output", "8"],
    "sensitivity": lambda model: ["sensitivity", model, "--phase", "inference", "--batch", "4"],
    "study": lambda model: ["study", _study(model), "--workers", "0", "--out", _out(model)],
}
QUICK = {
    ("run", "FILE.py:factory"),
    ("show table", "saved.pt2"),
    ("generate", "module:factory"),
    ("doctor", "saved.pt2"),
}


def _study(model: str) -> str:
    """Return a file of two settings of a model."""
    spec = {
        "fixed": {"model": model, "mode": "pipelined", "phase": "inference"},
        "grid": {"batch": [1, 4]},
        "draws": 0,
    }
    Path("study.yaml").write_text(json.dumps(spec))
    return "study.yaml"


def _out(model: str) -> str:
    return "study-" + "".join(letter for letter in model if letter.isalnum())


@pytest.mark.parametrize(
    ("command", "form"),
    [
        pytest.param(command, form, marks=() if (command, form) in QUICK else pytest.mark.slow)
        for number, command in enumerate(COMMANDS)
        for form in NAMES
        if (command, form) in QUICK or form in (NAMES[number % len(NAMES)], NAMES[(number + 2) % len(NAMES)])
    ],
)
def test_commands(command: str, form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command takes two kinds of names in turn: they share one reader."""
    name = _name(form, folder, monkeypatch)
    found = CliRunner().invoke(app, COMMANDS[command](name))
    assert found.exit_code == 0, found.output or found.exception


# --- Python

Given = tuple[Any, ...]


def _objects() -> dict[str, Given]:
    """Return the same model in every form that an object has, as the arguments of a call."""
    module, args = _made()
    program = torch.export.export(module, args)
    traced = torch.fx.symbolic_trace(module)
    return {
        "module, inputs": (module, args[0]),
        "pair": ((module, args),),
        "with names": ((module, args, {}),),
        "factory": (_made,),
        "program": (program,),
        "program, inputs": (program, args),
        "fx, inputs": (traced, args),
        "fx pair": ((traced, args),),
        "graph": (load_model(module, args),),
    }


@pytest.fixture(scope="module")
def objects() -> dict[str, Given]:
    return _objects()


INFERENCE: dict[str, Any] = {"phase": "inference", "batch": 4}
ENTRIES: dict[str, Callable[..., object]] = {
    "load_model": lambda *given: load_model(*given).forward_flops,
    "lower": lambda *given: wse_sim.lower(*given).forward_flops,
    "diagnose": lambda *given: diagnose(*given).flops,
    "run": lambda *given: wse_sim.run(*given, **INFERENCE).samples_per_s,
    "run_both": lambda *given: run_both(*given, **INFERENCE, mode="pipelined").fabric.samples_per_s,
    "compare": lambda *given: [row.samples_per_s for row in wse_sim.compare(*given, **INFERENCE)],
    "compile": lambda *given: len(wse_sim.compile(*given, **INFERENCE, mode="pipelined").stages),
    "generate": lambda *given: wse_sim.run(*given, **INFERENCE, mode="generation").samples_per_s,
    "table": lambda *given: table_of(load_model(*given)).root.flops,
    "explain": lambda *given: bool(explain(_one(given))),
    "serve": lambda *given: wse_sim.predictor(_one(given), context=TOKENS).turn_s(decode=[8]),
    "study": lambda *given: wse_sim.study(_settings(_one(given))).frame()["samples_per_s"].tolist(),
}
QUICK_ENTRIES = ("load_model", "compile", "diagnose")


def _one(given: Given) -> Any:
    return given[0] if len(given) == 1 else given


def _settings(model: object) -> dict[str, object]:
    fixed = {"model": model, "mode": "weight-streaming", "phase": "inference"}
    return {"fixed": fixed, "grid": {"batch": [1, 4]}, "draws": 0}


@pytest.mark.parametrize(
    "entry",
    [name if name in QUICK_ENTRIES else pytest.param(name, marks=pytest.mark.slow) for name in ENTRIES],
)
def test_objects(entry: str, objects: dict[str, Given]) -> None:
    """Each place takes each form of an object, with one answer for all."""
    if entry == "study":
        pytest.importorskip("pandas")
    asked = ENTRIES[entry]
    answers = {
        form: asked(*given) for form, given in objects.items() if (entry, form) != ("explain", "graph")
    }
    first = answers["module, inputs"]
    assert all(answer == pytest.approx(first) for answer in answers.values()), answers


@pytest.mark.slow
def test_a_picture_of_an_object(objects: dict[str, Given], tmp_path: Path) -> None:
    """A command and Python draw the same picture."""
    assert draw_graph(load_model(*objects["pair"]), tmp_path / "graph.svg").exists()


# --- what is no model

MODULE = torch.nn.Linear(3, 2)
FAULTS: dict[str, Given] = {
    "tensor": (torch.full((40, 40), 7.25),),
    "list": ([torch.full((4,), 7.25)],),
    "state": (MODULE.state_dict(),),
    "module": (MODULE,),
    "misfit": (MODULE, torch.full((4, 5), 7.25)),
    "text": (MODULE, "7.25"),
    "class": (torch.nn.Linear, torch.full((4, 3), 7.25)),
    "names": (MODULE, {"y": torch.full((4, 3), 7.25)}),
    "third": ((MODULE, (torch.full((4, 3), 7.25),), torch.full((4, 3), 7.25)),),
    "twice": ((MODULE, torch.full((4, 3), 7.25)), torch.full((4, 3), 7.25)),
    "named": ("fc-mnist", torch.full((4, 3), 7.25)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_sentences_have_no_values(name: str) -> None:
    """The error is one sentence with a remedy, at most a line long in print; it shows no tensor and no module."""
    with pytest.raises(WseError) as raised:
        wse_sim.run(*FAULTS[name])
    text = str(raised.value)
    assert "7.25" not in text
    assert "tensor(" not in text
    assert "in_features" not in text
    assert "; " in text
    assert len(text) < 400


def test_a_name_has_its_own_inputs() -> None:
    with pytest.raises(WseError, match="give it alone, without inputs"):
        wse_sim.run(*FAULTS["named"])


@pytest.mark.slow
def test_a_study_of_objects_continues_with_an_equal_one_only(tmp_path: Path) -> None:
    """An equal module that is made again is the same setting; one with weights that do not train is a different one."""
    pytest.importorskip("pandas")
    net, x = torch.nn.Linear(16, 8), torch.zeros(4, 16)
    first = wse_sim.study(_settings((net, x)), out=tmp_path / "kept")
    again = wse_sim.study(_settings((torch.nn.Linear(16, 8), x)), out=tmp_path / "kept")
    assert (first.ran.reused, again.ran.reused) == (0, 2)
    net.bias.requires_grad_(False)
    other = wse_sim.study(_settings((net, x)), out=tmp_path / "other")
    assert first.spec.fixed["model"] != other.spec.fixed["model"]
