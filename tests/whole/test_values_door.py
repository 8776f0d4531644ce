"""``wse-sim run --whole-fabric --check-values``: values of a random batch compared with PyTorch, or one sentence why
not.
"""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.whole.alone import EPS
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.random_values import check_random

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
PIPELINED = "--mode pipelined --phase inference"
TRAINING = "--mode pipelined --phase training --optimizer sgd"
STREAMED = "--mode weight-streaming --phase training --optimizer sgd"


def dense() -> Made:
    """Two layers of numbers, on flattened images of 4 x 4."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 6)), (
        torch.zeros(1, 4, 4),
    )


def tokens() -> Made:
    """Return a table and a layer."""
    return nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 6)), (torch.zeros(1, 4, dtype=torch.long),)


def meta() -> Made:
    """Return a layer without values."""
    return nn.Linear(16, 6, device="meta"), (torch.zeros(1, 16),)


class Two(nn.Module):
    """A layer of the sum of two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(x + y)


def two() -> Made:
    """Return a model with two arguments."""
    return Two(), (torch.zeros(1, 16), torch.zeros(1, 16))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a wafer of 16 x 16 cores with a row above and below its programs."""
    counts = {"rows": 18, "cols": 16, "program_rows": 16, "program_cols": 16, "io_channels_per_edge": 4}
    lines = [
        f"  {name}: {{value: {n}, unit: '1', source: a corner, evidence: assumed}}"
        for name, n in counts.items()
    ]
    file = tmp_path_factory.mktemp("wafers") / "small.yaml"
    file.write_text("\n".join(["name: small", "base: wse2", "constants:", *lines]))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (PIPELINED, {"outputs"}),
        (TRAINING, {"outputs", "loss", "gradient", "update"}),
        (STREAMED, {"outputs", "loss", "gradient", "update"}),
    ],
)
def test_values_of_a_random_batch(wse: Any, small: Path, tmp_path: Path, words: str, kinds: set[str]) -> None:
    """Screen, folder: every tensor of one step of inference or of two of training, within eight roundings."""
    asked = f"run tests.whole.test_values_door:dense {words} --batch 8 --whole-fabric --check-values --seed 3"
    ran = wse(*shlex.split(asked), "--wafer", str(small), "--out", str(tmp_path / "out"), "--quiet")
    assert ran.status == 0, ran.err
    assert "--seed" not in ran.err  # it has an effect
    assert "values compared with PyTorch, relative to the largest of their tensor:" in ran.out
    values = json.loads((tmp_path / "out" / "values.json").read_text())["values"]
    assert {one["kind"] for one in values} == kinds
    assert {one["step"] for one in values} == ({1, 2} if "loss" in kinds else {1})
    assert max(one["rounded_error"] for one in values) < 8 * EPS


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("dense", "", "--check-values compares values of the whole fabric with PyTorch; give --whole-fabric"),
        ("fc-mnist", "--whole-fabric", "fc-mnist has none; give package.module:factory or FILE.py:factory"),
        ("tokens", "--whole-fabric", "takes torch.int64 (tokens), and --check-values draws numbers; give the model behind"),
        ("meta", "--whole-fabric", "parameter 'weight' of tests.whole.test_values_door:meta is on 'meta' and has no values"),
        ("two", "--whole-fabric", "takes 2 arguments and 0 by name, and --check-values draws one tensor of samples; give"),
    ],
)  # fmt: skip
def test_refused_before_the_model_is_read(
    wse: Any, small: Path, monkeypatch: pytest.MonkeyPatch, model: str, options: str, sentence: str
) -> None:
    """The error is one sentence with status 2, without a reader."""
    monkeypatch.delattr(api, "read")
    monkeypatch.delattr(api, "run")
    spec = model if "-" in model else f"tests.whole.test_values_door:{model}"
    ran = wse("run", spec, *shlex.split(f"{PIPELINED} {options} --check-values --wafer {small} --quiet"))
    assert ran.status == 2, ran.err
    assert ran.err.count("\n") == 1
    assert sentence in ran.err


def test_the_example_of_a_checked_model_may_have_several_samples() -> None:
    """A plan states one sample, whatever the example has; values are drawn for all samples of the batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4)).half().float().eval()
    example = torch.zeros(3, 12)
    plan = plan_of(inputs_over_rows(api.lower(model, (example,))), 24)
    assert plan.graph.samples == 1
    assert check_random("a model", (model, (example,), {}), plan).largest("outputs")[0] < 0.01


def convolution(channels: int, side: int) -> Made:
    """Return patches of an image, and their mean."""
    layers = nn.Conv2d(3, channels, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 6)
    return nn.Sequential(*layers), (torch.zeros(1, 3, side, side),)


def perceptron(*sizes: int) -> Made:
    """Return dense layers."""
    layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
    return nn.Sequential(*layers), (torch.zeros(1, sizes[0]),)


@pytest.mark.parametrize(
    ("planned", "given", "sentence"),
    [
        (perceptron(16, 12, 6), perceptron(16, 10, 6), r"'0.weight' has shape \(10, 16\).* of a model with \(12, 16\)"),
        (perceptron(16, 12, 6), perceptron(16, 12, 12, 6), r"'1.weight' has shape \(12, 12\).* of a model with \(6, 12\)"),
        (perceptron(16, 12, 6), perceptron(16, 12), "has no parameter '1.weight'"),
        (perceptron(16, 12), perceptron(20, 12), r"samples have shape \(\d+, 20\).* a model that takes \(1, 16\)"),
        (convolution(8, 16), convolution(10, 16), r"'0.weight' has shape \(10, 3, 4, 4\).* with \(8, 3, 4, 4\)"),
        (convolution(8, 16), convolution(8, 32), r"samples have shape \(\d+, 3, 32, 32\)"),
    ],
)  # fmt: skip
def test_another_model_than_that_of_the_plan_is_refused(planned: Made, given: Made, sentence: str) -> None:
    """A factory may draw a model at every call: weights, layers or samples that do not fit are its user's fault."""
    plan = plan_of(inputs_over_rows(api.lower(planned[0].eval(), planned[1])), 48)
    with pytest.raises(ModelError, match=f"{sentence}.*give the model that the plan was made from"):
        check_random("a model", (*given, {}), plan)


def test_a_factory_that_draws_its_size_ends_in_a_sentence(wse: Any, small: Path, tmp_path: Path) -> None:
    """The model is built once for the plan and once for its values."""
    file = tmp_path / "drawn.py"
    file.write_text(
        "import itertools, torch\nsizes = itertools.count(12, 2)\n"
        "def model():\n    n = next(sizes)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(16, n), torch.nn.Linear(n, 6)), (torch.zeros(1, 16),)\n"
    )
    options = f"{PIPELINED} --whole-fabric --check-values --batch 4 --wafer {small} --quiet"
    ran = wse("run", f"{file}:model", *shlex.split(options))
    assert ran.status == 2, ran.err
    assert "let a factory make the same one at every call" in ran.err
