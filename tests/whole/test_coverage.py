"""Models that the whole fabric does not cover are refused in one sentence with a remedy, before anything is compiled."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.whole.test_dense_chain import graph_of, network, plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.whole import compare_with_engine, inputs_over_rows


class Residual(nn.Module):
    """A sum next to a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> Any:
        """B of x and A of x."""
        return self.b(x + self.a(x))


class Heads(Residual):
    """Two layers that read one input."""

    def forward(self, x: torch.Tensor) -> Any:
        """A and B of x."""
        return self.a(x), self.b(x)


class Tap(Residual):
    """A model that also returns the output of the first layer."""

    def forward(self, x: torch.Tensor) -> Any:
        """A of x, and B of that."""
        between = self.a(x)
        return between, self.b(between)


class Attention(Residual):
    """Attention between two layers."""

    def forward(self, x: torch.Tensor) -> Any:
        """One head over all rows."""
        head = self.a(x)[:, None]
        return self.b(nn.functional.scaled_dot_product_attention(head, head, head)[:, 0])


class Tied(Residual):
    """A model that applies one layer twice."""

    def forward(self, x: torch.Tensor) -> Any:
        """A of A of x."""
        return self.a(torch.relu(self.a(x)))


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "dense": (network((16, 8, 4)), (1, 16)),
    "norm": (nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4)), (1, 16)),
    "convolution": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 4)), (1, 1, 8, 8)),
    "resampled": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Upsample(scale_factor=2)), (1, 1, 8, 8)),
    "grouped": (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2)), (1, 2, 8, 8)),
    "dilated": (nn.Sequential(nn.Conv2d(2, 4, 3, dilation=2)), (1, 2, 8, 8)),
    "strided": (nn.Sequential(nn.Conv2d(1, 4, 3, stride=3)), (1, 1, 8, 8)),
    "filters": (nn.Sequential(nn.Conv2d(1, 3, 3)), (1, 1, 8, 8)),
    "gelu": (nn.Sequential(nn.Linear(16, 8), nn.GELU()), (1, 16)),
    "odd": (nn.Sequential(nn.Linear(16, 7), nn.LayerNorm(7), nn.Linear(7, 4)), (1, 16)),
    "softmax": (nn.Sequential(nn.Linear(16, 8), nn.Softmax(-1)), (1, 16)),
    "attention": (Attention(), (1, 8, 16)),
    "residual": (Residual(), (1, 16)),
    "heads": (Heads(), (1, 16)),
    "tap": (Tap(), (1, 16)),
    "tied": (Tied(), (1, 16)),
}


def __getattr__(name: str) -> Any:
    """Return a factory for the command line, ``tests.whole.test_coverage:NAME``, of each of the models."""
    if name.replace("_", " ") not in MODELS:
        raise AttributeError(name)
    model, shape = MODELS[name.replace("_", " ")]
    return lambda: (model, (torch.zeros(*shape),))


INFERENCE, TRAINING = "--phase inference", "--phase training --optimizer sgd"
PIPELINED = "--mode pipelined"

NOT_READ = [
    ("--mode auto", "steps a pipeline or streamed weights, not mode auto; give --mode pipelined or"),
    (
        "--mode weight-streaming --phase inference",
        "no row above and below is left for weights that stream in; give program_rows of at most",
    ),
    (f"{PIPELINED} --systems 2", "steps one wafer, not 2 systems; give --systems 1"),
    (f"{PIPELINED} {INFERENCE} --wafer wse2", "on at most 40,000; use a smaller wafer"),
    (f"{PIPELINED} --phase training", "updates by sgd, not adamw; give --optimizer sgd"),
    (f"{PIPELINED} --phase training --optimizer adam", "updates by sgd, not adam; give --optimizer sgd"),
    (f"{PIPELINED} --optimizer momentum", "updates by sgd, not momentum; give --optimizer sgd"),
    (f"{PIPELINED} {TRAINING} --lora 2", "has no adapters, --lora is 2; leave --lora out"),
]
KINDS_ONLY = (
    "a whole model on the fabric has dense layers, layer and RMS norms, softmax, attention, convolutions, pooling, rows before "
    "the tokens, elementwise work; leave it out"
)
NOT_COMPILED = [
    ("resampled", INFERENCE, f"is of family resample, {KINDS_ONLY}"),
    ("grouped", TRAINING, "has groups, which the whole fabric supports in inference only; train a plain"),
    ("dilated", INFERENCE, "has dilation or is transposed; use a plain torch.nn.Conv2d"),
    ("strided", TRAINING, "has stride 3, limit 2 in training; use a smaller one"),
    ("filters", INFERENCE, "has 3 filters, but each word contains 2; use an even number of filters"),
    ("attention", INFERENCE, "reads 1 tensors, attention on the fabric queries, keys and values"),
    ("softmax", TRAINING, "is of family softmax, a whole model on the fabric trains"),
    ("tap", TRAINING, "returns 2 tensors ('a.out', 'b.out'), a whole model on the fabric one; leave the others out"),
    ("heads", INFERENCE, "returns 2 tensors ('a.out', 'b.out'), a whole model on the fabric one"),
    ("tap", INFERENCE, "returns 2 tensors ('a.out', 'b.out'), a whole model on the fabric one"),
    ("odd", INFERENCE, "tensor '0.out' has 7 features, but each word contains 2; use an even number of features"),
    ("dense", f"{INFERENCE} --precision bf16", "computes in bf16, but a whole model on the fabric computes in fp16"),
    ("tied", TRAINING, "parameter 'a.weight' belongs to 'a' and 'a_2', limit one layer in training"),
    ("dense", f"{TRAINING} --train '0.*'", "parameter '2.weight' of '2' does not train, and the whole fabric updates all"),
]  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file of a wafer of 40 x 40 cores."""
    counts = {"rows": 40, "cols": 40, "program_rows": 40, "program_cols": 40, "io_channels_per_edge": 10}
    lines = [
        f"  {name}: {{value: {n}, unit: '1', source: a corner, evidence: assumed}}"
        for name, n in counts.items()
    ]
    file = tmp_path_factory.mktemp("wafers") / "small.yaml"
    file.write_text("\n".join(["name: small", "base: wse2", "constants:", *lines]))
    return file


def refuses(wse: Any, words: str, sentence: str) -> None:
    """Check that the command ends with status 2 and one line that contains the sentence."""
    ran = wse("run", *shlex.split(words), "--whole-fabric", "--batch", "8", "--quiet")
    assert ran.status == 2, ran.err
    assert ran.err.count("\n") == 1
    assert sentence in ran.err
    assert ";" in ran.err  # a remedy follows
    assert ran.out == ""


@pytest.mark.parametrize(("options", "sentence"), NOT_READ)
def test_options_are_refused_before_the_model_is_read(
    wse: Any, small: Path, monkeypatch: pytest.MonkeyPatch, options: str, sentence: str
) -> None:
    """Without a reader the command gives the same answer."""
    monkeypatch.delattr(api, "read")
    wafer = "" if "--wafer" in options else f"--wafer {small}"
    refuses(wse, f"fc-mnist {options} {wafer}", sentence)


@pytest.mark.thinned(8)
@pytest.mark.parametrize(("model", "options", "sentence"), NOT_COMPILED)
def test_models_are_refused_before_they_are_compiled(
    wse: Any, small: Path, monkeypatch: pytest.MonkeyPatch, model: str, options: str, sentence: str
) -> None:
    """Without a compiler and a simulator the command gives the same answer."""
    monkeypatch.delattr(api, "run")
    refuses(
        wse,
        f"tests.whole.test_coverage:{model.replace(' ', '_')} {PIPELINED} --wafer {small} {options}",
        sentence,
    )


def test_one_replica_is_planned_and_several_are_refused(
    wse: Any, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command requests one replica of the model from the compiler; a plan of two, made in Python, is refused."""
    graph = inputs_over_rows(graph_of(network((16, 8, 4)), 16))
    with pytest.raises(ModelError, match="has one replica, but this plan has 2; plan with replicas=1"):
        compare_with_engine(plan_of(graph, 40, mode_options={"replicas": 2}))
    asked, run = [], api.run

    def recorded(model: Any, options: Any, **more: Any) -> Any:
        asked.append(options.mode_options)
        return run(model, options, **more)

    monkeypatch.setattr(api, "run", recorded)
    words = f"run tests.whole.test_coverage:dense {PIPELINED} {INFERENCE} --batch 8 --wafer {small} --quiet"
    ran = wse(*words.split(), "--whole-fabric")
    assert ran.status == 0, ran.err
    assert "whole model on the fabric, input free" in ran.out
    assert asked == [{"replicas": 1}]
