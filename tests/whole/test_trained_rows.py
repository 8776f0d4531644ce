"""Rows of parameters before the tokens, and the first token alone, that train: values against autograd, cycles against closed forms."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.alone import Alone, Op, check_alone, issued, region_alone
from tests.whole.test_trained import training_plan
from wse_sim.whole.trained.leading_rows import TrainedLeadingRows

T, E, INPUTS = 5, 14, 6
STAGES = {"rows": "cat", "first": "layer.out.first token"}


class Fronted(nn.Module):
    """Rows of two parameters before tokens, or the first token alone, and a layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.head, self.kind = nn.Linear(INPUTS, E), nn.Linear(E, 6), kind
        if kind == "rows":
            self.first, self.second = (nn.Parameter(torch.randn(1, n, E)) for n in (1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, inputs)."""
        x = self.layer(x)
        if self.kind == "first":
            return self.head(x[:, 0])
        return self.head(
            torch.cat([one.expand(len(x), -1, -1) for one in (self.first, self.second)] + [x], 1)
        )


def joined(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The rows before the tokens."""
    return torch.cat([one.reshape(1, -1, E).expand(len(x), -1, -1) for one in (first, second)] + [x], 1)


OPS: dict[str, Op] = {"rows": joined, "first": lambda x: x[:, :1]}


@cache
def region(kind: str, bundles: int, *, needs: bool = True) -> TrainedLeadingRows:
    """Return the region in a plan of training, with a number of bundles."""
    plan = training_plan(Fronted(kind), (T, INPUTS), 24)
    found = region_alone(TrainedLeadingRows, plan, STAGES[kind], None if needs else ())
    assert isinstance(found, TrainedLeadingRows)
    found.bundles = dict.fromkeys(found.tied, bundles)
    found.region = found.region.__class__(4, 4, 4, 2, 4)
    found.top, found.left = 4, 5
    found.settle()
    return found


def checked(found: TrainedLeadingRows, kind: str, *, samples: int, in_flight: int) -> Alone:
    """Return a batch of random values against autograd: words are copied, sums are fp32."""
    draw = np.random.default_rng(0).normal
    weights: dict[str, Any] = {
        name: draw(size=found.graph.tensors[name].shape).astype(np.float16).astype(np.float32)
        for name in found.kernel.parameters
    }
    operands = {name: draw(size=(samples, T, E)) for name in found.operands}
    gradient = draw(size=(samples, found.tokens, E))
    return check_alone(found, OPS[kind], operands, gradient, weights, in_flight=in_flight, roundings=1)


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize(("bundles", "samples", "in_flight"), [(1, 6, 2), (3, 4, 4), (2, 3, 1)])
def test_values_equal_those_of_autograd(kind: str, bundles: int, samples: int, in_flight: int) -> None:
    """Result, gradient of the tokens, sums over samples of the rows' gradients, and updated rows; 7 words in 3 bundles are 2,
    2 and 3."""
    found = region(kind, bundles)
    assert len(set(found.gradient_inlets)) == bundles
    checked(found, kind, samples=samples, in_flight=in_flight)


def test_tokens_of_the_host_get_no_gradient() -> None:
    """The rows still train."""
    found = checked(region("rows", 2, needs=False), "rows", samples=4, in_flight=2)
    assert not found.operand_gradients
    assert set(found.gradients) == {"first", "second"}


@pytest.mark.parametrize("bundles", [1, 7])
def test_a_core_issues_a_word_at_a_time(bundles: int) -> None:
    """Rows and tokens leave; gradients of rows are added as they arrive, those of tokens pass on."""
    words = 7 // bundles
    assert issued(region("rows", bundles)) == 2 * (3 + T) * words
    assert issued(region("first", bundles)) == words + T * words
