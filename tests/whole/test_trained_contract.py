"""The contract of regions that train, for every kind: words wait only for those of the same sample or of earlier ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.drawn_models import Gated
from tests.whole.alone import first_sample_alone, region_alone, run_alone
from tests.whole.plans import weights_of
from tests.whole.test_regions import Block, Heads
from tests.whole.test_trained import Positions, training_plan
from tests.whole.test_trained_rows import Fronted
from wse_sim.whole.coverage import forward_kernel
from wse_sim.whole.trained import TRAINED


class AfterSkip(nn.Module):
    """An activation after a residual."""

    def __init__(self, features: int, function: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(features, features) for _ in range(3))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.first(x)
        return self.third(self.function(x + self.second(torch.relu(x))))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "heads": (lambda: Heads(8, 2), (4, 8), 32),
    "a block with GELU": (lambda: Block(8, 2), (4, 8), 48),
    "gated": (lambda: nn.Sequential(nn.Linear(8, 8), Gated(8, 16)), (4, 8), 64),
    "positions": (lambda: Positions(4, 8), (4, 8), 40),
    "ReLU behind a skip": (lambda: AfterSkip(8, nn.ReLU()), (4, 8), 32),
    "GELU behind a skip": (lambda: AfterSkip(8, nn.GELU()), (4, 8), 32),
    "rows before tokens": (lambda: Fronted("rows"), (5, 6), 24),
    "the first token": (lambda: Fronted("first"), (5, 6), 24),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)
        ),
        (2, 6, 6),
        32,
    ),
}
FAMILIES = {
    "heads": {"gemm", "attention"},
    "a block with GELU": {"gemm", "attention", "norm"},
    "gated": {"gemm", "norm", "generated"},
    "positions": {"gemm", "norm"},
    "ReLU behind a skip": {"gemm"},
    "GELU behind a skip": {"gemm"},
    "rows before tokens": {"gemm", "layout"},
    "the first token": {"gemm", "layout"},
    "images": {"conv2d", "gemm", "pool2d"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_sample_leaves_though_the_next_one_never_comes(name: str) -> None:
    """Of two samples in flight only the first arrives, then both with the gradient of the first alone: all of its words
    leave.

    They are those of a run in which both come.  Were a word of it held back for the second sample, its place would be zero.
    """
    make, shape, side = MODELS[name]
    torch.manual_seed(0)
    model = make()
    plan = training_plan(model, shape, side, 2)
    weights = weights_of(model)
    rng = np.random.default_rng(0)
    families = set()
    for stage in plan.stages:
        kernel = forward_kernel(plan, stage.name)
        families.add(kernel.family)
        region = region_alone(TRAINED[kernel.family], plan, stage.name)
        tensors = plan.graph.tensors
        operands = {tensor: rng.normal(size=(2, *tensors[tensor].shape[1:])) for tensor in region.operands}
        gradient = rng.normal(size=(2, *tensors[kernel.outputs[0]].shape[1:]))
        whole = run_alone(region, operands, gradient, weights, in_flight=2, rate=0.0)
        output, _ = first_sample_alone(region, operands, gradient, weights, (1, 1))
        assert np.array_equal(output[0], whole.output[0].ravel()), f"result of '{stage.name}'"
        _, gradients = first_sample_alone(region, operands, gradient, weights, (2, 1))
        for tensor, found in gradients.items():
            wanted = whole.operand_gradients[tensor][0].ravel()
            assert np.abs(wanted).max() > 0
            assert np.array_equal(found[0], wanted), f"gradient of '{tensor}' from '{stage.name}'"
    assert families >= FAMILIES[name]


def test_all_kinds_are_held_to_it() -> None:
    """Every class of regions that trains has a model here."""
    tested = set().union(*FAMILIES.values())
    assert {TRAINED[family] for family in tested} == set(TRAINED.values())
